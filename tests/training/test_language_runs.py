"""Encoder-only models, blocks of text and rankings through a whole run: trained, resumed, evaluated, fine-tuned."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.data.collate import collate
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.errors import ConfigError, DataError
from ostinato.evaluation import evaluate
from ostinato.evaluation.loading import LoadedRun, load
from ostinato.experiments.compare.paired import compare
from ostinato.tasks.registry import build_task
from ostinato.training import Reporter, train

STACK: dict[str, Any] = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 16}}
WORDS = ["ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen"]
NAMES = {"Ann": "PER", "Bob": "PER", "Rome": "LOC", "Oslo": "LOC"}


def _write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def _files(folder: Path, make: Callable[[random.Random], dict[str, Any]]) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    sizes = {"train": 80, "dev": 20, "test": 20}
    return {split: _write(folder / f"{split}.jsonl", [make(rng) for _ in range(n)]) for split, n in sizes.items()}


def _recipe(data: dict[str, Any], task: dict[str, Any], model: dict[str, Any], **training: Any) -> Recipe:
    model = {"kind": "encoder", "d_model": 16, "dropout": 0.0, "encoder": STACK} | model
    training = {
        "n_updates": 60,
        "optimizer": {"lr": 1e-2},
        "schedule": {"kind": "constant", "warmup": 5},
        "evaluate_every": 20,
        "save_every": 20,
        "device": "cpu",
    } | training
    data = {"tokens_per_batch": 256, "unknown": "replace"} | data
    return check_recipe({"task": task, "data": data, "model": model, "training": training})


def _pair(rng: random.Random) -> dict[str, Any]:
    first, second = rng.choice(WORDS), rng.choice(WORDS)
    label = "same" if first[0] < "d" else "an other"
    return {"source": f"{first} {second}\t{second}", "target": label, "lang": rng.choice(["en", "de"])}


def _text(rng: random.Random) -> dict[str, Any]:
    start = rng.randrange(len(WORDS))
    return {"text": " ".join((WORDS * 2)[start : start + rng.randint(2, 7)])}


def _repeated(rng: random.Random) -> dict[str, Any]:
    return {"text": " ".join([rng.choice(WORDS)] * rng.randint(4, 7))}


def _tagged(rng: random.Random) -> dict[str, Any]:
    words = [rng.choice([*WORDS, *NAMES]) for _ in range(rng.randint(1, 6))]
    return {"source": " ".join(words), "target": " ".join(f"B-{NAMES[w]}" if w in NAMES else "O" for w in words)}


def _question(rng: random.Random) -> dict[str, Any]:
    words = [rng.choice(WORDS) for _ in range(5)]
    place = rng.randrange(5)
    words[place] = rng.choice(list(NAMES))
    return {"source": f"who\t{' '.join(words)}", "target": words[place]}


def test_batches_without_a_label_are_passed_over(tmp_path: Path) -> None:
    rows = [{"source": "a b", "target": "<no-label> <no-label>"}] * 9 + [{"source": "c d", "target": "x y"}]
    path = tmp_path / "tags.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = dict.fromkeys(("train", "dev", "test"), str(path)) | {"tokens_per_batch": 6}
    selection = {"split": "dev", "metric": "token_accuracy", "mode": "max"}
    model = {"head": {"kind": "tagging"}, "d_model": 8}
    recipe = _recipe(data, {"kind": "tagging"}, model, selection=selection, n_updates=3)
    results = train(recipe, tmp_path / "run")
    assert results["n_updates"] == 3
    logged = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert all(json.loads(line)["n_labels"] > 0 for line in logged if '"training"' in line)
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text("".join(json.dumps(row) + "\n" for row in rows[:9]), encoding="utf-8")
    none = _recipe(data | {"train": str(nothing)}, {"kind": "tagging"}, model, selection=selection)
    with pytest.raises(DataError, match="there are no labels"):
        train(none, tmp_path / "none")


class _Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, update: int, message: str) -> None:
        self.notes.append(message)


def test_what_is_cut_of_texts_is_said_once_in_training_and_in_evaluation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = _files(tmp_path, _text) | {"max_target_length": 4, "over_length": "truncate"}
    task = {"kind": "files", "model_kind": "language_model"}
    model = {"kind": "language_model", "d_model": 16, "decoder": STACK}
    training = {"n_updates": 2, "evaluate_every": 1, "schedule": {"warmup": 1}, "device": "cpu"}
    recipe = check_recipe({"task": task, "data": data, "model": model, "training": training})
    reporter = _Notes()
    train(recipe, tmp_path / "run", reporter=reporter)
    expected = []
    for split in ("train", "dev", "test"):
        texts = Path(data[split]).read_text(encoding="utf-8").splitlines()
        n_words = [len(json.loads(text)["text"].split()) for text in texts]
        expected.append(f"{split}: {sum(n > 3 for n in n_words)} of {len(texts)} texts")
    assert [note.partition(" were cut")[0] for note in reporter.notes] == expected
    assert not caplog.messages
    run = load(tmp_path / "run", device="cpu")
    for _ in range(2):
        run.evaluate("dev")
    assert caplog.messages == [reporter.notes[1]]


def test_a_classifier_learns_labels_of_pairs_and_is_scored_by_language(tmp_path: Path) -> None:
    data = _files(tmp_path, _pair)
    task = {"kind": "classification", "language_field": "lang"}
    recipe = _recipe(data, task, {"head": {"kind": "classification"}})
    test = train(recipe, tmp_path / "run")["splits"]["test"]
    assert test["accuracy"] == test["token_accuracy"] == 1.0
    assert test["macro_f1"] == 1.0
    assert set(test["by"]["lang"]) == {"de", "en"}
    assert test["macro"]["lang"]["accuracy"] == 1.0
    run = load(tmp_path / "run", device="cpu")
    assert run.model.config.n_labels == 2  # type: ignore[union-attr]
    written: list[dict[str, Any]] = []
    run.evaluate("test", predictions=written.append)
    assert {record["prediction"] for record in written} == {"same", "an other"}
    with pytest.raises(ConfigError, match="writes no text: `ostinato evaluate RUN --predictions FILE` writes its lab"):
        run.generate(["ant bee"])
    assert "n_generated" not in test
    assert "decoding_seconds" not in test
    (row, other) = compare([tmp_path / "run", tmp_path / "run"])
    assert (row["metrics"]["macro_f1"]["value"], row["decoding"]) == (1.0, None)
    assert other["metrics"]["accuracy"]["verdict"] == "no difference shown"


def test_a_tagger_labels_words_at_their_first_pieces(tmp_path: Path) -> None:
    data = _files(tmp_path, _tagged) | {"tokenizer": {"kind": "bpe", "vocab_size": 270}}
    selection = {"metric": "span_f1", "mode": "max"}
    model = {"head": {"kind": "tagging"}, "d_model": 32}
    recipe = _recipe(data, {"kind": "tagging"}, model, selection=selection, n_updates=120)
    test = train(recipe, tmp_path / "run")["splits"]["test"]
    assert test["span_f1"] > 0.9
    assert test["tag_accuracy"] == pytest.approx(test["token_accuracy"])


def test_an_extractor_finds_answers_in_passages(tmp_path: Path) -> None:
    data = _files(tmp_path, _question)
    recipe = _recipe(data, {"kind": "span_extraction", "format": "lines"}, {"head": {"kind": "span"}}, n_updates=100)
    test = train(recipe, tmp_path / "run")["splits"]["test"]
    assert test["answer_em"] > 0.9
    assert test["answer_f1"] >= test["answer_em"]
    assert test["n_labels"] == 2 * test["n"]


MASKED: dict[str, Any] = {"kind": "files", "model_kind": "language_model"}


def _masked_recipe(folder: Path, **training: Any) -> Recipe:
    data = _files(folder, _repeated) | {"masking": {"rate": 0.3, "random": 0.0}}
    recipe = _recipe(data, MASKED, {"head": {"kind": "masked"}}, **training)
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"metrics": []})})


def test_a_masked_language_model_learns_and_a_resumed_run_draws_the_same_masks(tmp_path: Path) -> None:
    recipe = _masked_recipe(tmp_path / "data", save_every=20, n_updates=60)
    whole = train(recipe, tmp_path / "whole")
    test = whole["splits"]["test"]
    assert test["perplexity"] < 0.3 * len(WORDS)
    assert "word_perplexity" not in test
    _interrupt_at(recipe, tmp_path / "cut", update=40)
    resumed = train(recipe, tmp_path / "cut", resume=True)
    assert resumed["splits"]["test"]["loss"] == test["loss"]
    name = "checkpoints/update-000060/model.safetensors"
    assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def _interrupt_at(recipe: Recipe, directory: Path, update: int) -> None:
    """Begin a run and stop it after an update that was saved."""

    class Stop(Exception):
        """Stands for a crash."""

    class Stopping(Reporter):
        def on_save(self, update_saved: int, directory: Path) -> None:
            if update_saved == update:
                raise Stop

    with pytest.raises(Stop):
        train(recipe, directory, reporter=Stopping())


def test_packing_changes_no_total_and_word_perplexity_and_bits_follow_from_the_loss(tmp_path: Path) -> None:
    data = _files(tmp_path, _text)
    settings = {"d_model": 16, "dropout": 0.0, "kind": "language_model", "decoder": STACK}
    training = {"n_updates": 5, "device": "cpu", "evaluate_every": 5, "save_every": 5}
    recipe = check_recipe({"task": MASKED, "data": data, "model": settings, "training": training})
    train(recipe, tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    plain = run.evaluate("test")
    texts = [json.loads(line)["text"] for line in Path(data["test"]).read_text().splitlines()]
    n_words, n_bytes = sum(len(t.split()) + 1 for t in texts), sum(len(t) + 1 for t in texts)
    total = plain["loss"] * plain["n_labels"]
    assert (plain["n_words"], plain["n_bytes"], plain["n_labels"]) == (n_words, n_bytes, n_words)
    assert plain["word_perplexity"] == pytest.approx(math.exp(total / n_words))
    assert plain["bits_per_byte"] == pytest.approx(total / math.log(2) / n_bytes)
    packed = _evaluated(run, texts, block_length=7)
    assert (packed["n_words"], packed["n_bytes"], packed["n_labels"]) == (n_words, n_bytes, n_words)
    assert packed["n"] == math.ceil(n_words / 7)
    with pytest.raises(ConfigError, match=r"evaluation\.by"):
        _evaluated(run, texts, block_length=7, by=["x"])


def _evaluated(run: LoadedRun, texts: list[str], by: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    data = run.recipe.data.model_copy(update=changes)
    examples = [Example(None, text, {"x": 1}) for text in texts]
    decoding = run.recipe.decoding
    return evaluate(run.model, examples, run.tokenizers, data=data, decoding=decoding, metrics=[], by=by or [])


def test_a_language_model_is_asked_which_verb_it_prefers(tmp_path: Path) -> None:
    model = {"kind": "language_model", "d_model": 16, "dropout": 0.0, "decoder": STACK}
    task = {"kind": "agreement", "n_train": 300, "n_eval": 12, "max_attractors": 2}
    training = {"n_updates": 30, "device": "cpu", "evaluate_every": 30, "save_every": 30, "optimizer": {"lr": 1e-2}}
    recipe = check_recipe({"task": task, "model": model, "training": training})
    test = train(recipe, tmp_path / "run")["splits"]["test"]
    ranking = test["ranking"]
    assert ranking["n"] == 36
    assert {value: found["n"] for value, found in ranking["by"]["n_attractors"].items()} == {"0": 12, "1": 12, "2": 12}
    run = load(tmp_path / "run", device="cpu")
    assert run.evaluate("test")["ranking"] == ranking
    rights = []
    for example in _test_examples(recipe):
        scores = []
        for verb in (example.target, str(example.columns["wrong"])):
            ids = run.tokenizers.target.encode(f"{example.source} {verb}")
            (row,) = encode_rows(
                [Example(None, f"{example.source} {verb}")],
                run.tokenizers,
                run.recipe.data,
                run.model.config,
                training=False,
                name="x",
            )
            with torch.inference_mode():
                log_probs_TV = run.model(collate([row])).logits_BTV[0].log_softmax(-1)
            scores.append(float(log_probs_TV[len(ids) - 1, ids[-1]]))
        rights.append(scores[0] > scores[1])
    assert ranking["accuracy"] == sum(rights) / len(rights)


def _test_examples(recipe: Recipe) -> list[Example]:
    return list(build_task(recipe.task, recipe.data).examples("test"))
