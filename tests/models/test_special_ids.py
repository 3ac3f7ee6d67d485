"""Ids of padding, begin and end symbol are a setting: a model whose ids are exchanged gives exchanged outputs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

import ostinato as o
from ostinato.config.load import check_recipe
from ostinato.data.collate import Row, collate
from ostinato.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.models import Model

VOCAB = 12
MOVED = torch.tensor([9, 4, 11, 0, 1, 2, 3, 5, 6, 7, 8, 10])
"""The new id of every id: padding is 9, the begin symbol 4, the end symbol 11."""
IDS = o.SpecialIds(pad=9, bos=4, eos=11)
DRAW = random.Random(1)
SOURCES, TARGETS = ([[DRAW.randint(3, 11) for _ in range(DRAW.randint(0, 5))] for _ in range(12)] for _ in range(2))


def model_of(kind: str, **settings: Any) -> Model:
    """Return a model with random weights, the same for every setting."""
    torch.manual_seed(4)
    dense: dict[str, Any] = {"ffn": {"d_ff": 8}, "self_attention": {"n_heads": 2}, "n_steps": 2}
    stack = o.StackConfig(**dense)
    decoder = o.DecoderConfig(**dense, cross_attention={"n_heads": 2})
    common: dict[str, Any] = {"d_model": 8, "tie_embeddings": "none", **settings}
    both = {"source_vocab_size": VOCAB, "target_vocab_size": VOCAB}
    configs = {
        "seq2seq": lambda: o.Seq2SeqConfig(encoder=stack, decoder=decoder, **both, **common),
        "prefix": lambda: o.LanguageModelConfig(decoder=stack, mask="prefix", vocab_size=VOCAB, **common),
        "language_model": lambda: o.LanguageModelConfig(decoder=stack, vocab_size=VOCAB, **common),
        "lstm": lambda: o.LstmSeq2SeqConfig(**both, **common),
    }
    model = o.build_model(configs[kind]()).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name and "bias" not in name:
                parameter.normal_()
    return model


def moved(model: Model, kind: str) -> Model:
    """Return the model with the rows of its embeddings, and its special ids, at their new places."""
    other = model_of(kind, special_ids=IDS)
    weights = model.state_dict()
    for name in ("target_weight", "source_weight", "output_weight"):
        if name in weights:
            weights[name] = torch.empty_like(weights[name]).index_copy(0, MOVED, weights[name])
    other.load_state_dict(weights)
    return other


def moved_lists(rows: list[list[int]]) -> list[list[int]]:
    return [[int(MOVED[i]) for i in ids] for ids in rows]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["seq2seq", "prefix", "language_model", "lstm"])
@pytest.mark.parametrize("search", [{}, {"beam": 3, "min_length": 2}, {"strategy": "sample", "top_k": 1}])
def test_exchanged_ids_give_exchanged_outputs_and_the_same_loss(kind: str, search: dict[str, Any]) -> None:
    model = model_of(kind)
    other = moved(model, kind)
    joins = model.config.joins_pairs
    batch = o.Batch.from_lists(TARGETS, SOURCES, joins_pairs=joins)
    same = o.Batch.from_lists(moved_lists(TARGETS), moved_lists(SOURCES), joins_pairs=joins, special_ids=IDS)
    assert torch.equal(same.target.ids_BT, MOVED[batch.target.ids_BT])
    assert torch.equal(same.loss_mask_BT, batch.loss_mask_BT)
    found, wanted = other.generate(same, max_length=6, **search), model.generate(batch, max_length=6, **search)
    assert found == moved_lists(wanted)
    assert any(len(ids) < 6 for ids in wanted), "some output must end before the limit"
    assert {9, 4, 11}.isdisjoint(i for ids in found for i in ids)
    torch.testing.assert_close(other.loss(same), model.loss(batch))


def test_lists_of_ids_become_what_rows_of_examples_become() -> None:
    for joins in (False, True):
        rows = [Row(s, t, is_joined=joins) for s, t in zip(SOURCES, TARGETS, strict=True)]
        batch, wanted = o.Batch.from_lists(TARGETS, SOURCES, joins_pairs=joins), collate(rows)
        for name in ("labels_BT", "loss_mask_BT", "prefix_lengths_B"):
            one, other = getattr(batch, name), getattr(wanted, name)
            assert (one is None and other is None) or torch.equal(one, other)
    texts = o.Batch.from_lists([[5, 6], []], special_ids=IDS)
    assert texts.source is None
    assert texts.target.ids_BT.tolist() == [[4, 5, 6], [4, 9, 9]]
    assert texts.labels_BT.tolist() == [[5, 6, 11], [11, 9, 9]]
    assert texts.loss_mask_BT.tolist() == [[True] * 3, [True, False, False]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "at least one row"),
        (([[3], [4]], [[5]]), "1 sources for 2 targets"),
        (([[3], [1.5]],), r"targets: row 2 is \[1.5\]"),
        (([[3]], [["a"]]), r"sources: row 1 is \['a'\]"),
        (([[3], 4],), "targets: row 2 is 4"),
        (([[-1]],), r"row 1 is \[-1\]"),
    ],
)
def test_what_is_no_list_of_ids_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        o.Batch.from_lists(*arguments)
    with pytest.raises(DataError, match="give sources"):
        o.Batch.from_lists([[3]], joins_pairs=True)


def test_the_tokenizers_have_the_ids_that_are_the_default() -> None:
    assert o.SpecialIds() == o.SpecialIds(pad=PAD_ID, bos=BOS_ID, eos=EOS_ID)
    with pytest.raises(ConfigError, match=r"model.special_ids is .*tokenizers whose ids are 0, 1 and 2"):
        check_recipe({"model": {"kind": "seq2seq", "special_ids": {"eos": 5}}})
    with pytest.raises(ConfigError, match=r"special_ids.eos is 12: must be below .* 12"):
        o.LanguageModelConfig(vocab_size=12, special_ids=o.SpecialIds(eos=12))


@pytest.mark.parametrize("min_length", [0, 3])
def test_an_end_symbol_that_is_also_padding_and_begin_symbol_can_be_written(min_length: int) -> None:
    model = model_of("language_model", special_ids=o.SpecialIds(pad=11, bos=11, eos=11))
    with torch.no_grad():  # so that it is the most probable one now and then
        model.output_projection[11] *= 4
    prompts = torch.tensor([[11, i] for i in range(11)])
    found = model.generate(prompts, max_length=8, min_length=min_length)
    assert any(len(ids) < 8 for ids in found)
    for prompt, ids in zip(prompts.tolist(), found, strict=True):
        for n in range(len(ids) + 1):  # every token is the most probable one, the end symbol where it may be
            if n == 8:
                continue
            logits_V = model(torch.tensor([[*prompt, *ids[:n]]])).logits_BTV[0, -1]
            if n + 1 < min_length:
                logits_V[11] = -torch.inf
            assert int(logits_V.argmax()) == [*ids, 11][n]


def test_a_saved_model_is_read_again_with_its_special_ids(tmp_path: Path) -> None:
    model = model_of("seq2seq", special_ids=IDS)
    o.save_model(model, f"{tmp_path}/new/model")
    again = o.load_model(f"{tmp_path}/new/model")
    assert again.config == model.config
    assert again.special_ids == IDS
    batch = o.Batch.from_lists(TARGETS, SOURCES, special_ids=IDS)
    assert torch.equal(again(batch).logits_BTV, model(batch).logits_BTV)
    with pytest.raises(CheckpointError, match=r"is a saved model: ostinato.load_model reads it"):
        o.load(tmp_path / "new" / "model")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be made"):
        o.save_model(model, tmp_path / "file")
