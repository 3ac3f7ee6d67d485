"""An exported run is the same model in transformers: its logits, its outputs, its tokens."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

import huggingface_hub
import runs
import tokenizers
import transformers
from kept_tokenizers import LAST, keep_tokenizer
from runs import ids_of, padded

import ostinato.hf
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import CheckpointError, ConfigError
from ostinato.evaluation.loading import load
from ostinato.evaluation.threshold import TunedThreshold, write_tuned
from ostinato.hf.cache import CACHE
from ostinato.hf.export import export_plain, export_run, wrapped
from ostinato.hf.fast_tokenizer import fast_tokenizer


@pytest.mark.sampled
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", runs.RUNS)
def test_logits_are_ours(made: Any, name: str, side: str) -> None:
    run, folder = made(name)
    model, ours = runs.auto(run).from_pretrained(folder), copy.deepcopy(run.model)
    ids, mask = padded(ids_of(run), side)
    alone = ids_of(run, 3, 5)
    more = {"decoder_input_ids": alone} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        expected = ours(ids, *more.values()).logits_BTV
        torch.testing.assert_close(model(input_ids=ids, **more).logits, expected, rtol=1e-6, atol=1e-6)
        # Sums over rows with padding and without have another order.
        model.double()
        ours.double()
        found = model(input_ids=ids, attention_mask=mask, **more).logits
        for row in range(3):  # every sentence alone, without padding
            one = ids[row : row + 1, mask[row]]
            target = (alone[row : row + 1],) if more else ()
            expected = ours(one, *target).logits_BTV
            got = found[row : row + 1] if more else found[row : row + 1, mask[row]]
            torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["language-model", "halting", "masked"])
def test_a_text_with_padding_in_its_middle_is_the_text_without_it(made: Any, name: str) -> None:
    run, folder = made(name)
    model, ids = runs.auto(run).from_pretrained(folder), ids_of(run, 2)
    mask = torch.ones_like(ids)
    mask[0, 2], mask[1, 0] = 0, 0
    rows = [row[keep.bool()][None] for row, keep in zip(ids, mask, strict=True)]
    cached = [] if name == "masked" else [{"use_cache": True}]
    with torch.no_grad():
        expected = [model(input_ids=row).logits[0] for row in rows]
        for more in ({}, {"position_ids": mask.cumsum(-1) - 1}, *cached):
            for i in ([0], [0, 1]):
                given = {key: x[i] if isinstance(x, torch.Tensor) else x for key, x in more.items()}
                found = model(input_ids=ids[i], attention_mask=mask[i], **given).logits
                for row in i:
                    torch.testing.assert_close(found[row][mask[row].bool()], expected[row], rtol=0, atol=1e-5)
        with pytest.raises(ConfigError, match="must count the real tokens of every row"):
            model(input_ids=ids, attention_mask=mask, position_ids=torch.arange(7)[None])


def test_logits_of_chosen_columns_are_those_of_all(made: Any) -> None:
    run, folder = made("looped")
    model = runs.auto(run).from_pretrained(folder)
    ids = ids_of(run)
    for columns, chosen in ((2, [5, 6]), (torch.tensor([1, 4]), [1, 4])):
        others = ids.clone()
        others[:, [i for i in range(1, 7) if i - 1 not in chosen]] = -100
        for use_cache in (False, True):
            with torch.no_grad():
                whole = model(ids, labels=others, use_cache=use_cache)
                found = model(ids, labels=ids, use_cache=use_cache, logits_to_keep=columns)
            torch.testing.assert_close(found.logits, whole.logits[:, chosen], rtol=0, atol=1e-6)
            torch.testing.assert_close(found.loss, whole.loss, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_one_slot_of_the_cache_is_one_executed_attention(made: Any, name: str) -> None:
    run, folder = made("looped")
    model = runs.auto(run).from_pretrained(folder)
    ids = ids_of(run)
    with torch.no_grad():
        first = model(ids[:, :4], use_cache=True)
        second = model(ids[:, 4:], **{name: first[CACHE]})
        whole = model(ids, output_hidden_states=True, output_attentions=True)
    assert second[CACHE] is first[CACHE]
    assert len(first[CACHE]) == 4  # rounds of one parameter set
    assert first[CACHE].get_seq_length() == 7
    torch.testing.assert_close(second.logits, whole.logits[:, 4:], rtol=0, atol=1e-6)
    assert len(whole.hidden_states) == len(whole.attentions) == 4
    torch.testing.assert_close(whole.attentions[3].sum(-1), torch.ones(3, 2, 7), rtol=0, atol=1e-5)


def test_hidden_states_are_of_every_step_or_of_every_round(made: Any, tmp_path: Path) -> None:
    core = "segments: [{n_steps: 1}, {n_steps: 2, repeats: 3}, {n_steps: 1}]"
    run = runs.make_run("looped", tmp_path, f"model.decoder={{n_steps: 4, {core}, self_attention: {{n_heads: 2}}, "
                        "ffn: {d_ff: 24}, norm: {placement: pre}}")  # fmt: skip
    model, ids = wrapped(run), ids_of(run)
    with torch.no_grad():
        steps = model(ids, output_hidden_states=True).hidden_states
        rounds = model(ids, output_hidden_states="rounds").hidden_states
        two = model(ids, output_hidden_states="rounds", n_steps=2)
    assert (len(steps), len(rounds), len(two.hidden_states)) == (8, 3, 2)
    for number, states in enumerate(rounds):  # after the prelude's step, two steps a round
        torch.testing.assert_close(states, steps[2 + 2 * number], rtol=0, atol=0)
    torch.testing.assert_close(two.hidden_states[1], rounds[1], rtol=0, atol=0)
    pairs, folder = made("pairs")
    with torch.no_grad():
        output = runs.auto(pairs).from_pretrained(folder)(ids, decoder_input_ids=ids, output_hidden_states="rounds")
    assert len(output.encoder_hidden_states) == 4
    assert len(output.decoder_hidden_states) >= 1


@pytest.mark.parametrize("name", ["experts", "pairs", "masked"])
def test_a_saved_and_reloaded_model_is_the_same(made: Any, name: str, tmp_path: Path) -> None:
    run, folder = made(name)
    model = runs.auto(run).from_pretrained(folder)
    model.save_pretrained(tmp_path)
    assert (tmp_path / "modeling_ostinato.py").read_text() == (folder / "modeling_ostinato.py").read_text()
    again = runs.auto(run).from_pretrained(tmp_path)
    mine, theirs = model.state_dict(), again.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    assert again.config.model == run.model.config.model_dump(mode="json")


@pytest.mark.parametrize("trains", [True, False])
def test_losses_are_those_of_training_and_of_evaluation(made: Any, trains: bool) -> None:
    for name in ("experts", "halting", "pairs"):
        run, _ = made(name)
        model = wrapped(run).train(trains)
        own = copy.deepcopy(run.model).train(trains)
        torch.manual_seed(0)
        ids = ids_of(run, 4, 6)
        training = run.recipe.training
        if run.model.config.has_two_sides:
            batch = Batch.from_lists(ids.tolist(), ids.tolist())
            found = model(input_ids=batch.source.ids_BT, labels=batch.labels_BT).loss  # type: ignore[union-attr]
        else:
            begun = torch.cat([torch.ones(4, 1, dtype=torch.long), ids], dim=1)
            batch = Batch(Tokens(begun[:, :-1], torch.ones_like(ids).bool()), ids, torch.ones_like(ids).bool())
            labels = begun.clone()
            found = model(input_ids=begun[:, :-1], labels=begun[:, :-1]).loss
            batch = Batch(batch.target, torch.roll(labels[:, :-1], -1, 1),
                          torch.ones_like(ids).bool() & (torch.arange(6) < 5))  # fmt: skip
        torch.manual_seed(0)
        # In evaluation the loss has no balance and no cost of depth in it.
        names = ("balance", "halting", "round_loss", "label_smoothing") if trains else ()
        added = {name: getattr(training, name) for name in names}
        expected = own.loss(batch, **added)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


_EXITS = (
    "model.decoder={n_steps: 3, self_attention: {n_heads: 2, share: all}, ffn: {d_ff: 24, share: all}, "
    "halting: {kind: exit}}"
)
CHOSEN = [(0.3, None), (0.9, "change")]


@pytest.mark.parametrize(("threshold", "exit"), CHOSEN)
def test_the_threshold_that_was_chosen_after_training_is_exported(
    threshold: float, exit: str | None, tmp_path: Path
) -> None:
    trained = runs.make_run("halting", tmp_path / "run")
    chosen = TunedThreshold(threshold, trained.checkpoint.name, "dev", "loss", 0.1, exit)
    write_tuned(tmp_path / "run", chosen)
    run = ostinato.load(tmp_path / "run")
    assert run.halting_threshold_from == "tuned"
    model = runs.auto(run).from_pretrained(export_run(run, tmp_path / "out"))
    assert (model.config.halting_threshold, model.config.exit) == (threshold, exit)
    ids = ids_of(run)
    with torch.no_grad():
        found = model(ids).logits
        torch.testing.assert_close(found, run.model(ids).logits_BTV, rtol=0, atol=1e-6)
        assert float((found - trained.model(ids).logits_BTV).abs().max()) > 1e-3


ROUND_LOSSES = {
    "window": ["training.round_loss={kind: window, n_rounds: 2}", "training.label_smoothing=0.1"],
    "drawn": ["training.round_loss={kind: drawn, weight: 0.3}"],
    "weights": ["training.round_loss={kind: weights, weights: [0.5, 0.0, 2.0]}"],
    "exit": [_EXITS, "training.round_loss.kind=exit", "training.halting.weight=0.1"],
    "improvement": [_EXITS, "training.round_loss={kind: improvement, margin: 0.1}"],
}


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ROUND_LOSSES)
def test_losses_of_rounds_are_those_of_training(kind: str, tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path, *ROUND_LOSSES[kind])
    training, ids = run.recipe.training, ids_of(run, 4, 6)
    batch = Batch(Tokens(ids, torch.ones_like(ids).bool()), ids.roll(-1, 1), (torch.arange(6) < 5).expand(4, -1))
    given = {"balance": training.balance, "halting": training.halting}
    model = wrapped(run)
    assert model.config.left_out is None
    # Evaluations are of the last round alone, without what depth costs.
    torch.testing.assert_close(model(ids, labels=ids).loss, run.model.loss(batch), rtol=0, atol=1e-6)
    model.train()
    run.model.train()
    torch.manual_seed(3)
    found = model(ids, labels=ids, output_hidden_states=True).loss
    torch.manual_seed(3)
    expected = run.model.loss(batch, label_smoothing=training.label_smoothing, round_loss=training.round_loss, **given)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert abs((found - run.model.loss(batch, **given)).item()) > 1e-3
    found.backward()
    expected.backward()
    own = {name: parameter.grad for name, parameter in run.model.named_parameters()}
    for name, parameter in model.model.named_parameters():
        torch.testing.assert_close(parameter.grad, own[name], rtol=0, atol=1e-6)


def test_what_of_training_is_left_out_is_said_once_when_it_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = [
        "training.rounds={kind: poisson, rate: 3.0}",
        "training.consistency.states=0.1",
        "training.freeze=[banks.*]",
    ]
    run = runs.make_run("looped", tmp_path / "run", *more)
    ids = ids_of(run)
    model = runs.auto(run).from_pretrained(export_run(run, tmp_path / "out"))
    model(ids, labels=ids)
    assert not caplog.messages
    model.train()
    for _ in range(2):
        model(ids, labels=ids)
    [line] = caplog.messages
    assert line == (
        "this model was trained with training.rounds, training.consistency, training.freeze, which have no counterpart "
        "here and are left out"
    )


def test_a_classifier_starts_from_a_masked_model_with_a_new_head(made: Any, tmp_path: Path) -> None:
    run, folder = made("masked")
    for kind, shape in (("SequenceClassification", (3, 5)), ("TokenClassification", (3, 7, 5))):
        model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder, num_labels=5)
        ids, mask = padded(ids_of(run), "right")
        labels = torch.zeros(shape[:-1], dtype=torch.long)
        output = model(ids, attention_mask=mask, labels=labels)
        assert output.logits.shape == shape
        assert bool(output.logits.isfinite().all())
        assert torch.equal(model.model.target_weight, run.model.target_weight)
        output.loss.backward()
        assert float(model.model.head.weight.grad.abs().sum()) > 0
        model.save_pretrained(tmp_path / kind)
        again = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(tmp_path / kind)
        torch.testing.assert_close(again(ids, attention_mask=mask).logits, output.logits, rtol=0, atol=1e-6)
    spans = transformers.AutoModelForQuestionAnswering.from_pretrained(folder)(ids, attention_mask=mask)
    assert spans.start_logits.shape == spans.end_logits.shape == (3, 7)


_MASKED_EXITS = (
    "model.encoder={n_steps: 3, self_attention: {n_heads: 2, share: all}, ffn: {d_ff: 24, share: all}, "
    "halting: {kind: exit}}"
)
NEW_HEADS: dict[str, tuple[list[str], str]] = {
    "SequenceClassification": (
        ["label_smoothing"],
        "a classification head cannot have round_loss, exit, halting_threshold of the masked model: left out",
    ),
    "TokenClassification": (["label_smoothing", "round_loss", "exit", "halting_threshold"], ""),
    "QuestionAnswering": (
        [],
        "a span head cannot have round_loss, label_smoothing, exit, halting_threshold of the masked model: left out",
    ),
}


@pytest.mark.parametrize("kind", NEW_HEADS)
def test_a_new_head_leaves_out_what_it_cannot_have(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    more = [_MASKED_EXITS, "training.round_loss.kind=exit", "training.label_smoothing=0.1"]
    runs.make_run("masked", tmp_path / "run", *more)
    run = ostinato.load(tmp_path / "run", exit="margin", halting_threshold=0.5)
    folder = export_run(run, tmp_path / "out")
    assert not caplog.messages
    model = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(folder)
    kept, line = NEW_HEADS[kind]
    assert [message for message in caplog.messages if "left out" in message] == [line] * bool(line)
    stated = {"label_smoothing": 0.1, "round_loss": run.recipe.training.round_loss.model_dump(mode="json")}
    stated |= {"exit": "margin", "halting_threshold": 0.5}
    without = {"label_smoothing": 0.0, "round_loss": None, "exit": None, "halting_threshold": None}
    for name in stated:
        assert getattr(model.config, name) == (stated if name in kept else without)[name], name
    ids = ids_of(run)
    if kind == "QuestionAnswering":
        given = {"start_positions": torch.tensor([1, 2, 3]), "end_positions": torch.tensor([2, 3, 4])}
    else:
        given = {"labels": torch.tensor([0, 1, 1]) if kind == "SequenceClassification" else ids % 2}
    assert bool(model(ids, **given).loss.isfinite())  # an evaluation
    found = model.train()(ids, **given)
    if kind == "SequenceClassification":
        expected = torch.nn.functional.cross_entropy(found.logits, given["labels"], label_smoothing=0.1)
        torch.testing.assert_close(found.loss, expected, rtol=0, atol=1e-6)
    if kind == "QuestionAnswering":
        losses = [
            torch.nn.functional.cross_entropy(logits, labels)
            for logits, labels in zip((found.start_logits, found.end_logits), given.values(), strict=True)
        ]
        torch.testing.assert_close(found.loss, sum(losses) / 2, rtol=0, atol=1e-5)


TOKENIZERS = ["{kind: words}", "{kind: characters}", "{kind: bpe, vocab_size: 300}", "{kind: unigram, vocab_size: 290}"]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_the_fast_tokenizer_has_our_ids(tokenizer: str, tmp_path: Path) -> None:
    run = runs.make_run("language-model", tmp_path / "run", f"data.tokenizer={tokenizer}")
    export_run(run, tmp_path / "out")
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in [*runs.TEXTS, "a the man", "the  old"]:
        ids = run.tokenizers.target.encode(text)
        assert fast(text)["input_ids"] == [1, *ids]
        assert fast.decode(ids) == run.tokenizers.target.decode(ids)
    assert fast("")["input_ids"] == [1]  # also where ours has a blank piece, which no normaliser of theirs gives it
    assert (fast.pad_token_id, fast.bos_token_id, fast.eos_token_id, fast.unk_token_id) == (0, 1, 2, 3)
    assert len(fast) == run.tokenizers.target.vocab_size


_PIECES = ["[CLS]", "[UNK]", "the", "old", "man", "##s"]
_NUMBERED = {text: i for i, text in enumerate(_PIECES)}
_SCORED = [(text, -float(i)) for i, text in enumerate(["[CLS]", "[UNK]", "the", " ", "old"])]
_MERGED = {text: i for i, text in enumerate(["[UNK]", "t", "h", "e", " ", "th", "the"])}
FILES = {
    "words": tokenizers.models.WordLevel(_NUMBERED, unk_token="[UNK]"),
    "word pieces": tokenizers.models.WordPiece(_NUMBERED, unk_token="[UNK]"),
    "byte pairs": tokenizers.models.BPE(_MERGED, [("t", "h"), ("th", "e")], unk_token="[UNK]"),
    "unigram": tokenizers.models.Unigram(_SCORED, unk_id=1),
    "ids with gaps": tokenizers.models.WordLevel({text: 2 * i for i, text in enumerate(_PIECES)}, unk_token="[UNK]"),
    "a piece <mask>": tokenizers.models.WordLevel({**_NUMBERED, "<mask>": len(_PIECES)}, unk_token="[UNK]"),
}
"""Models of files of other libraries, whose unknown piece is not the first one."""


def tokenizer_of_a_file(name: str, folder: Path) -> str:
    """Write such a file, and return the setting that reads it."""
    content = tokenizers.Tokenizer(FILES[name])
    if name not in ("unigram", "byte pairs"):
        content.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    content.save(str(folder / "tokenizer.json"))
    return f"data.tokenizer={{kind: file, path: {folder / 'tokenizer.json'}}}"


@pytest.mark.parametrize("name", FILES)
def test_the_fast_tokenizer_of_a_file_reads_unknown_text_as_the_run_does(name: str, tmp_path: Path) -> None:
    run = runs.make_run("language-model", tmp_path / "run", tokenizer_of_a_file(name, tmp_path), "data.unknown=replace")
    export_run(run, tmp_path / "out")
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for text in ("the zebra", "the old mans", "ä"):
        ids = run.tokenizers.target.encode(text, unknown="replace")
        assert fast(text)["input_ids"] == [1, *ids]
    assert ids == [3] == [fast.unk_token_id]


@pytest.mark.parametrize("name", FILES)
def test_a_mask_has_the_id_of_its_row_or_is_refused(name: str, tmp_path: Path) -> None:
    run = runs.make_run("masked", tmp_path / "run", tokenizer_of_a_file(name, tmp_path), "data.unknown=replace")
    if name in ("ids with gaps", "a piece <mask>"):
        with pytest.raises(CheckpointError, match=r"^<mask> cannot have the id of its row .*: its ids have gaps, or"):
            fast_tokenizer(run)
    else:
        assert fast_tokenizer(run).mask_token_id == run.model.mask_id


@pytest.mark.parametrize("own", [None, "<s> $A", "$A </s>", "<s> $A </s>"])
def test_an_exported_tokenizer_that_was_kept_surrounds_a_text_as_the_model_reads_it(
    own: str | None, tmp_path: Path
) -> None:
    kept = keep_tokenizer(tmp_path / "kept", template=own)
    run = runs.make_run("language-model", tmp_path / "run", f"data.tokenizer={{kind: hf, path: {kept}}}")
    fast = fast_tokenizer(run)
    assert fast("the cat").input_ids == [run.model.special_ids.bos, *run.tokenizers.target.encode("the cat")]


@pytest.mark.parametrize("own", ["[CLS] $A [SEP]", "[CLS] $A", "$A [SEP]"])
def test_what_a_kept_tokenizer_puts_around_a_text_besides_begin_and_end_is_exported_with_them(
    own: str, tmp_path: Path
) -> None:
    symbols = [*LAST, "[CLS]", "[SEP]"]
    kept = keep_tokenizer(tmp_path / "kept", symbols)
    content = tokenizers.Tokenizer.from_file(str(kept / "tokenizer.json"))
    named = [(text, symbols.index(text)) for text in ("[CLS]", "[SEP]")]
    content.add_special_tokens([text for text, _ in named])
    content.post_processor = tokenizers.processors.TemplateProcessing(own, special_tokens=named)
    content.save(str(kept / "tokenizer.json"))
    run = runs.make_run("language-model", tmp_path / "run", f"data.tokenizer={{kind: hf, path: {kept}}}")
    export_run(run, tmp_path / "out")
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    first, second = [run.tokenizers.target.encode(text) for text in ("the cat", "sat")]
    bos = run.model.special_ids.bos
    assert fast("the cat").input_ids == [bos, *first]
    assert fast("the cat", "sat").input_ids == [bos, *first, *second]


def test_limits_in_proportion_become_those_of_the_longest_input(tmp_path: Path) -> None:
    more = ("decoding.max_length=0", "decoding.max_length_ratio=2.0", "data.max_target_length=30")
    run = runs.make_run("language-model", tmp_path / "run", *more)
    assert wrapped(run).generation_config.max_new_tokens == 60
    # There is no more room than there are learned positions.
    learned = (*more, "model.decoder.positions={kind: learned, max_length: 40}")
    run = runs.make_run("language-model", tmp_path / "learned", *learned)
    assert wrapped(run).generation_config.max_new_tokens == 40


def test_limits_in_proportion_to_a_source_do_not_grow_with_its_target(tmp_path: Path) -> None:
    reads = ("task.kind=files", "task.model_kind=seq2seq", "data.max_source_length=12", "data.max_target_length=30")
    run = runs.make_run("looped", tmp_path / "run", *reads, "decoding.max_length=1", "decoding.max_length_ratio=2.0")
    assert run.model.config.joins_pairs
    model = wrapped(run)
    assert model.generation_config.max_new_tokens == 1 + 2 * 12
    assert model.config.max_position_embeddings == 12 + 30


LONGEST: dict[str, tuple[str, list[str], int, int]] = {
    "texts": ("looped", ["data.max_target_length=20"], 20, 20),
    "blocks": ("looped", ["data.block_length=30", "data.max_target_length=20"], 30, 30),
    "learned": (
        "looped",
        ["data.block_length=8", "data.max_target_length=20", "decoding.max_length=8",
         "model.decoder={positions: {kind: learned, max_length: 8}, relative: {kind: none}}"],
        8,
        8,
    ),
    "pairs": ("pairs", ["data.max_source_length=12", "data.max_target_length=20"], 20, 12),
    "pairs, learned": (
        "pairs",
        ["data.max_source_length=12", "data.max_target_length=20",
         "model.encoder={positions: {kind: learned, max_length: 12}}"],
        20,
        12,
    ),
    "classification": ("classification", ["data.max_source_length=12", "data.max_target_length=20"], 12, 12),
}  # fmt: skip
"""Settings, and what a folder says of the longest sequence and of the longest text."""


@pytest.mark.parametrize("name", LONGEST)
def test_a_folder_says_how_long_its_texts_may_be(name: str, tmp_path: Path) -> None:
    base, settings, sequence, text = LONGEST[name]
    run = runs.make_run(base, tmp_path / "run", *settings)
    folder = export_run(run, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = runs.auto(run).from_pretrained(folder)
    assert (model.config.max_position_embeddings, tokenizer.model_max_length) == (sequence, text)
    batch = tokenizer(" ".join(["the old man"] * 20), truncation=True, return_tensors="pt")
    assert batch["input_ids"].shape == (1, text)
    more = {"decoder_input_ids": torch.tensor([[1]])} if base == "pairs" else {}
    assert bool(model(**batch, **more).logits.isfinite().all())
    # Folders that were exported before say nothing of it.
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    assert runs.auto(run).from_pretrained(folder).config.max_position_embeddings is None


def test_the_least_length_is_that_of_the_recipe(tmp_path: Path) -> None:
    run = runs.make_run("language-model", tmp_path / "run", "decoding.min_length=3")
    # Ours counts the end symbol, theirs what is written before one may stand.
    assert wrapped(run).generation_config.min_new_tokens == 2
    once = runs.make_run("language-model", tmp_path / "once", "decoding.min_length=1")
    assert wrapped(once).generation_config.min_new_tokens is None


def test_a_cache_of_some_rounds_is_not_lost_in_silence(tmp_path: Path) -> None:
    run = runs.make_run("looped", tmp_path / "run", "decoding.cached_rounds=1")
    for write in (export_run, lambda run, folder: export_plain(run, folder, "llama")):
        with pytest.raises(
            CheckpointError, match=r"decoding keeps 1 of the loop's rounds .* --set decoding\.cached_rounds=null"
        ):
            write(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_lengths_of_rounds_are_not_lost_in_silence(tmp_path: Path) -> None:
    timed = "model.decoder={n_steps: 1, segments: [{n_steps: 1, repeats: 2, modulation: {kind: by_time}}]}"
    runs.make_run("looped", tmp_path / "run", timed)
    run = load(tmp_path / "run", device="cpu", round_lengths=[0.25, 0.75])
    with pytest.raises(CheckpointError, match=r"lengths of its rounds \(round_lengths\), .*: load it without"):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_sources_end_with_the_end_symbol_and_masks_have_an_id(made: Any) -> None:
    run, folder = made("pairs")
    text = runs.TEXTS[0]
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    assert fast(text)["input_ids"] == [*run.tokenizers.source.encode(text), 2]
    run, folder = made("masked")
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    assert fast(f"a {fast.mask_token} u")["input_ids"][2] == run.model.mask_id
    assert fast("a", "u")["input_ids"] == [
        1,
        *run.tokenizers.source.encode("a"),
        2,
        *run.tokenizers.source.encode("u"),
        2,
    ]


def test_pipelines_work(made: Any) -> None:
    run, folder = made("language-model")
    pipeline = transformers.pipeline("text-generation", model=str(folder), device="cpu")
    text = runs.TEXTS[0][:12]
    found = pipeline(text, max_new_tokens=6, do_sample=False, top_k=None, return_full_text=False)[0]["generated_text"]
    expected = run.generate([text], strategy="greedy", max_length=6)[0]
    assert found.strip() == expected.strip()


def test_the_library_has_no_pipeline_for_translation(made: Any) -> None:
    """transformers 5 took it out; what it did is in docs/hugging-face.md. When this fails, it is back."""
    run, folder = made("pairs")
    with pytest.raises(KeyError, match="task translation"):
        transformers.pipeline("translation", model=str(folder), device="cpu")
    model, tokenizer = runs.auto(run).from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(runs.TEXTS, return_tensors="pt", padding=True)
    written = model.generate(**batch, max_new_tokens=9, num_beams=1)
    expected = run.generate(runs.TEXTS, strategy="greedy", max_length=9)
    assert tokenizer.batch_decode(written, skip_special_tokens=True) == expected


def test_the_code_beside_the_weights_imports_ours(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = made("looped")
    source = (folder / "modeling_ostinato.py").read_text()
    space: dict[str, Any] = {"__name__": "modeling_ostinato"}
    exec(compile(source, "modeling_ostinato.py", "exec"), space)
    assert issubclass(space["OstinatoForCausalLM"], ostinato.hf.OstinatoForCausalLM)
    assert json.loads((folder / "config.json").read_text())["auto_map"]["AutoModelForCausalLM"] in (
        "modeling_ostinato.OstinatoForCausalLM"
    )
    monkeypatch.setitem(sys.modules, "ostinato.hf", None)
    with pytest.raises(ImportError, match="this model needs ostinato: pip install"):
        exec(compile(source, "modeling_ostinato.py", "exec"), {"__name__": "again"})


def loaded_without_our_import(folder: Path, auto: str, home: Path) -> list[str]:
    """Return model type and class of a folder that another process loads by the code in it."""
    code = (
        "import sys, transformers\n"
        f"model = transformers.{auto}.from_pretrained({str(folder)!r}, trust_remote_code=True)\n"
        "print(model.config.model_type, type(model).__name__)"
    )
    environment = {**os.environ, "HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_a_program_without_our_import_loads_it_where_it_trusts_the_code(made: Any, tmp_path: Path) -> None:
    _, folder = made("looped")
    found = loaded_without_our_import(folder, "AutoModelForCausalLM", tmp_path)
    assert found == ["ostinato", "OstinatoForCausalLM"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "task"), [("looped", "CausalLM"), ("pairs", "Seq2SeqLM"), ("masked", "SequenceClassification")]
)
def test_so_it_does_when_it_was_saved_again(made: Any, name: str, task: str, tmp_path: Path) -> None:
    _, folder = made(name)
    # Of a masked model also with another head, whose class the first folder does not name.
    getattr(transformers, f"AutoModelFor{task}").from_pretrained(folder).save_pretrained(tmp_path / "again")
    found = loaded_without_our_import(tmp_path / "again", f"AutoModelFor{task}", tmp_path / "home")
    assert found == ["ostinato", f"OstinatoFor{task}"]


def test_the_model_card_has_the_recipe(made: Any) -> None:
    run, folder = made("halting")
    card = (folder / "README.md").read_text()
    assert "AutoModelForCausalLM.from_pretrained" in card
    assert f"{run.model.n_parameters():,} parameters" in card
    assert "kind: act" in card
    assert "parameters, imported or converted with Ostinato" in card  # no update was done


def test_the_model_card_has_the_scores_of_the_weights_that_are_exported(tmp_path: Path) -> None:
    runs.make_run("looped", tmp_path / "start")
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"text": text}) + "\n" for text in runs.TEXTS))
    more = ["training.n_updates=2", "training.evaluate_every=1", "training.save_every=1", "training.schedule.warmup=1"]
    files = [f"data.{split}={texts}" for split in ("train", "dev", "test")]
    recipe = ostinato.load_recipe(tmp_path / "start", [*files, *more, "evaluation.splits=[test]"])
    results = ostinato.train(recipe, tmp_path / "run")
    card = (export_run(ostinato.load(tmp_path / "run"), tmp_path / "out") / "README.md").read_text()
    scores = results["splits"]["test"]
    assert "|  | test |\n| --- | --- |\n| examples | 6 |\n" in card
    assert f"| loss | {scores['loss']:.4g} |" in card
    assert f"| perplexity | {scores['perplexity']:.4g} |" in card
    assert "| seconds" not in card
    assert "parameters, trained with Ostinato" in card
    assert json.loads(card.split("```json\n")[1].split("```")[0]) == json.loads(
        (tmp_path / "run" / "results.json").read_text()
    )
    # Scores of other weights are not those of these, nor are those of all rounds where tokens stop before.
    stopping = TunedThreshold(0.9, ostinato.load(tmp_path / "run").checkpoint.name, "dev", "loss", 0.1, "change")
    write_tuned(tmp_path / "run", stopping)
    tuned = ostinato.load(tmp_path / "run")
    assert tuned.halting_threshold_from == "tuned"
    assert "## Results" not in (export_run(tuned, tmp_path / "tuned") / "README.md").read_text()
    (tmp_path / "run" / "halting-threshold.json").unlink()
    of_first_edition = {key: value for key, value in results.items() if key != "checkpoint"}
    (tmp_path / "run" / "results.json").write_text(json.dumps(of_first_edition))
    older = export_run(ostinato.load(tmp_path / "run"), tmp_path / "older")
    assert "## Results" in (older / "README.md").read_text()
    (tmp_path / "run" / "results.json").write_text(json.dumps({**results, "checkpoint": "update-000009"}))
    assert (
        "## Results" not in (export_run(ostinato.load(tmp_path / "run"), tmp_path / "other") / "README.md").read_text()
    )


def test_what_is_pushed_to_a_hub_is_the_model(made: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, folder = made("looped")
    pushed: list[str] = []

    def commit(self: Any, repo_id: str, operations: Any, **_: Any) -> str:
        for one in operations:
            shutil.copy(one.path_or_fileobj, tmp_path / one.path_in_repo)
            pushed.append(one.path_in_repo)
        return repo_id

    # No network: the two calls that would use it, which older versions import, and the card the hub may have already.
    calls = {"create_commit": commit, "create_repo": lambda _, repo_id, **__: SimpleNamespace(repo_id=repo_id)}
    for name, call in calls.items():
        monkeypatch.setattr(huggingface_hub.HfApi, name, call)
        monkeypatch.setattr(f"transformers.utils.hub.{name}", partial(call, None), raising=False)
    card = huggingface_hub.ModelCard("of the hub")
    monkeypatch.setattr("transformers.utils.hub.create_and_tag_model_card", lambda *_, **__: card)
    model = runs.auto(run).from_pretrained(folder)
    assert model.push_to_hub("me/looped") == "me/looped"
    assert {"config.json", "generation_config.json", "model.safetensors", "README.md", "modeling_ostinato.py"} <= set(
        pushed
    )
    assert not [name for name in pushed if name.endswith((".bin", ".pt", ".pkl"))]
    again = runs.auto(run).from_pretrained(tmp_path)
    ids = ids_of(run)
    assert torch.equal(again(ids).logits, model(ids).logits)
