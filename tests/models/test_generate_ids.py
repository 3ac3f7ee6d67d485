"""`model.generate`: the search of `ostinato.decoding` on plain tensors of token ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_special_ids import SOURCES, TARGETS, VOCAB, model_of

import ostinato as o
from ostinato.config.load import check_settings
from ostinato.data.batch import Tokens
from ostinato.decoding.search import left_padded, search
from ostinato.errors import ConfigError, DataError

SEARCHES: list[dict[str, Any]] = [
    {"strategy": "greedy", "beam": 1},
    {"strategy": "beam", "beam": 3},
    {"strategy": "sample", "beam": 1, "seed": 7, "temperature": 0.8},
]


def given_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return what a user writes: a beam alone says that it is a beam search."""
    return {"beam": settings["beam"]} if settings["strategy"] == "beam" else {**settings}


@pytest.mark.parametrize("kind", ["seq2seq", "lstm"])
@pytest.mark.parametrize("settings", SEARCHES)
def test_sources_give_what_the_search_finds_wherever_their_padding_stands(kind: str, settings: dict[str, Any]) -> None:
    model = model_of(kind).train()
    batch = o.Batch.from_lists(TARGETS, SOURCES)
    assert batch.source is not None
    config = check_settings({"max_length": 7, **settings}, o.DecodingConfig)
    found = model.generate(batch.source.ids_BT, batch.source.keep_BT, max_length=7, **given_of(settings))
    assert model.training
    assert all(module.training for module in model.modules())
    model.eval()
    assert found == [h.ids for h in search(model, batch, config)]
    assert found == model.generate(batch, max_length=7, **given_of(settings))
    assert len({tuple(ids) for ids in found}) > 1 or settings["strategy"] == "beam"
    begun = torch.tensor([[1, 8], [1, 3], [1, 3]] * 4)
    keep = torch.tensor([[True, True], [True, False], [True, True]] * 4)
    prefix = left_padded([[1, 8], [1], [1, 3]] * 4, 0, torch.device("cpu"))
    source = (batch.source.ids_BT, batch.source.keep_BT)
    found = model.generate(*source, target=begun, target_keep=keep, max_length=7, **given_of(settings))
    assert found == [h.ids for h in search(model, batch, config, prefix)]


@pytest.mark.parametrize("settings", SEARCHES)
def test_prompts_are_continued_wherever_their_padding_stands(settings: dict[str, Any]) -> None:
    model, prompts = model_of("language_model"), [[1, 5, 6, 7], [1, 9], [1]]
    right = o.Batch.from_lists([ids[1:] for ids in prompts]).target
    left = left_padded(prompts, 0, torch.device("cpu"))
    given = {"max_length": 6, **given_of(settings)}
    found = model.generate(right.ids_BT, right.keep_BT, **given)
    assert found == model.generate(left.ids_BT, left.keep_BT, **given)
    if settings["strategy"] != "sample":  # which draws by row
        assert found == [model.generate(torch.tensor([ids]), **given)[0] for ids in prompts]


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "coordinates", "none"])
def test_sources_are_read_alike_with_padding_on_either_side(positions: str) -> None:
    small = {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    sizes = {"d_model": 8, "source_vocab_size": 20, "target_vocab_size": 20}
    stacks = {
        "encoder": {**small, "n_steps": 2, "positions": {"kind": positions}},
        "decoder": {**small, "n_steps": 1, "cross_attention": {"n_heads": 2}},
    }
    torch.manual_seed(5)
    config = check_settings({**sizes, **stacks}, o.Seq2SeqConfig)
    model, sources = o.build_model(config), [[5, 6, 7, 2], [9, 2], [3, 8, 4, 4, 6, 2]]
    alone = [model.generate(torch.tensor([ids]), max_length=6)[0] for ids in sources]
    assert len({tuple(ids) for ids in alone}) > 1
    right = o.Batch.from_lists([[]] * 3, [ids[:-1] for ids in sources]).source
    assert right is not None
    assert model.generate(right.ids_BT, right.keep_BT, max_length=6) == alone
    left = left_padded(sources, 0, torch.device("cpu"))
    assert model.generate(left.ids_BT, left.keep_BT, max_length=6) == alone


@pytest.mark.parametrize("kind", ["seq2seq", "language_model"])
def test_a_call_with_ids_and_a_mask_reads_real_tokens_wherever_the_padding_stands(kind: str) -> None:
    model, rows = model_of(kind).eval(), [[1, 5, 6, 7], [1, 9], [1, 3, 8]]
    left = left_padded(rows, 0, torch.device("cpu"))
    more = {"target": torch.tensor([[1, 4]] * 3)} if kind == "seq2seq" else {}
    found = model(left.ids_BT, keep=left.keep_BT, **more).logits_BTV[:, -1]
    for row, ids in zip(found, rows, strict=True):
        alone = model(torch.tensor([ids]), **{name: ids_BT[:1] for name, ids_BT in more.items()}).logits_BTV[0, -1]
        torch.testing.assert_close(row, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["seq2seq", "lstm"])
def test_as_many_targets_as_sources_are_needed(kind: str) -> None:
    model, source, targets = model_of(kind), torch.tensor([[5, 2]]), torch.tensor([[1, 8]] * 3)
    for call in (
        lambda: model.generate(source, target=targets),
        lambda: model(source, targets),
        lambda: (
            model(o.Batch.from_lists([[8]] * 3, [[5]] * 3).rows(slice(0, 3)), None)
            and model.generate(replace(o.Batch.from_lists([[8]] * 3), source=Tokens(source, source > 0)))
        ),
    ):
        with pytest.raises(DataError, match="as many targets as sources, got 3 and 1"):
            call()


@pytest.mark.parametrize("kind", ["language_model"])
def test_sources_that_a_model_would_not_read_are_refused(kind: str) -> None:
    model, pairs = model_of(kind), o.Batch.from_lists([[8, 9]], [[5]])
    for call in (lambda: model(pairs), lambda: model.generate(pairs), lambda: model.loss(pairs)):
        with pytest.raises(DataError, match="joins_pairs=True"):
            call()
    assert model(o.Batch.from_lists([[8, 9]], [[5]], joins_pairs=True)).logits_BTV.shape[0] == 1


def test_no_rows_give_no_outputs() -> None:
    assert model_of("language_model").generate(torch.zeros(0, 3, dtype=torch.long)) == []
    assert model_of("seq2seq").generate(torch.zeros(0, 3, dtype=torch.long)) == []


def test_what_cannot_be_generated_is_refused() -> None:
    model, ids = model_of("seq2seq"), torch.tensor([[5, 2]])
    for settings, message in (
        ({"beams": 4}, "beams is 4: no such setting; did you mean beam"),
        ({"beam": 0}, "beam is 0: must be an integer in [1, 2^31 - 1]"),
        ({"beam": 3, "n_best": 2}, "n_best is 2: one output of each row"),
        ({"token_scores": True}, "token_scores is True: one output of each row"),
    ):
        with pytest.raises(ConfigError, match=re.escape(message)):
            model.generate(ids, **settings)
    with pytest.raises(DataError, match=r"must be whole numbers \[B, T\]"):
        model.generate(ids.float())
    with pytest.raises(DataError, match="must have their shape"):
        model.generate(ids, torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(DataError, match="target_keep goes with a target"):
        model.generate(ids, target_keep=torch.ones(1, 2, dtype=torch.bool))
    language = model_of("language_model")
    with pytest.raises(DataError, match="leave out the target"):
        language.generate(ids, target=ids)
    with pytest.raises(DataError, match="give the prompts' token ids"):
        language.generate(o.Batch.from_lists([[5]]))
    encoder = o.build_model(o.EncoderConfig(d_model=8, vocab_size=9, encoder=o.StackConfig(n_steps=1)))
    with pytest.raises(DataError, match="writes no text"):
        encoder.generate(ids)


def pass_over(model: Any, *ids: list[int], **given: Any) -> Any:
    return model(*(torch.tensor([one]) for one in ids), **given)


def encoder_of(n_token_types: int = 0) -> Any:
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    given = {"d_model": 8, "vocab_size": VOCAB, "n_token_types": n_token_types, "encoder": stack}
    return o.build_model(check_settings({**given, "head": {"kind": "masked"}}, o.EncoderConfig)).eval()


@pytest.mark.parametrize("wrong", [VOCAB, -1, 10**12])
@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: pass_over(model_of("language_model"), [1, wrong]),
        lambda wrong: pass_over(model_of("seq2seq"), [5, wrong], [1, 5]),
        lambda wrong: pass_over(model_of("seq2seq"), [5, 2], [1, wrong]),
        lambda wrong: pass_over(model_of("lstm"), [5, wrong], [1, 5]),
        lambda wrong: pass_over(encoder_of(), [1, wrong]),
        lambda wrong: model_of("language_model").generate(torch.tensor([[1, 5, wrong]]), max_length=3),
        lambda wrong: model_of("seq2seq").generate(torch.tensor([[5, wrong, 2]]), max_length=3),
        lambda wrong: model_of("seq2seq").generate(
            torch.tensor([[5, 2]]), target=torch.tensor([[1, wrong]]), max_length=3
        ),
    ],
)
def test_an_id_that_the_vocabulary_does_not_have_is_named(call: Callable[[int], Any], wrong: int) -> None:
    with pytest.raises(
        DataError, match=rf"^token id {wrong} is not in a vocabulary of {VOCAB}: must be 0 to {VOCAB - 1}$"
    ):
        call(wrong)


def test_so_is_one_of_a_batch_whose_loss_is_asked_for() -> None:
    with pytest.raises(DataError, match=rf"^token id {VOCAB} is not in a vocabulary of {VOCAB}"):
        model_of("language_model").loss(o.Batch.from_lists([[5, 6], [VOCAB]]))


@pytest.mark.parametrize("wrong", [2, -1])
def test_a_token_type_without_a_row_is_named(wrong: int) -> None:
    with pytest.raises(DataError, match=rf"^token type {wrong} is not in a vocabulary of 2: must be 0 to 1$"):
        pass_over(encoder_of(n_token_types=2), [1, 5], token_types=torch.tensor([[0, wrong]]))
