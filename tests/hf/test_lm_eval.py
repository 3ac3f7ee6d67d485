"""lm-eval scores runs as `ostinato evaluate` does: the same accuracies and log-likelihoods."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="needs the extra hf")
pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

import runs

import ostinato
from ostinato.cli import main
from ostinato.data.batching import evaluation_batches
from ostinato.data.example import Example
from ostinato.data.rows import encode_rows
from ostinato.errors import ConfigError, OstinatoError
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.scores import score_sentences
from ostinato.hf.export import export_run
from ostinato.hf.harness import score
from ostinato.hf.harness_tasks import write_tasks

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORDS = "the old man and sea, one two three a b c d e f u v w x y z".split()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what the library of data sets stores in the test's folder."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))


def lines(file: Path, rows: list[dict[str, Any]]) -> str:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return str(file)


def pieces(n: int) -> list[list[str]]:
    """Return sentences of words that the runs' tokenizers know, no two alike in length and words."""
    return [[WORDS[(i * 7 + j * (i % 3 + 1)) % len(WORDS)] for j in range(3 + i % 5)] for i in range(n)]


def everywhere(file: str) -> list[str]:
    return [f"data.{split}={file}" for split in ("train", "dev", "test")]


def lambada(folder: Path) -> list[str]:
    rows = [{"source": " ".join(words[:-1]), "target": words[-1]} for words in pieces(24)]
    file = lines(folder / "lambada.jsonl", rows)
    return ["task={kind: lambada}", *everywhere(file)]


def minimal_pairs(folder: Path) -> list[str]:
    rows = [
        {"source": " ".join(words[:-2]), "target": words[-2], "wrong": words[-1], "n_attractors": len(words) % 2}
        for words in pieces(24)
    ]
    file = lines(folder / "pairs.jsonl", rows)
    return ["task={kind: agreement, origin: files, train_form: prefixes}", *everywhere(file)]


def labels(folder: Path) -> list[str]:
    rows = [{"source": " ".join(words[:-1]), "target": ["one", "two", "three"][len(words) % 3]} for words in pieces(24)]
    file = lines(folder / "labels.jsonl", rows)
    task = "task={kind: classification, choices: [one, two, three]}"
    return [task, *everywhere(file)]


def pairs(folder: Path) -> list[str]:
    rows = [{"source": " ".join(words[:-2]), "target": " ".join(words[-2:])} for words in pieces(12)]
    return everywhere(lines(folder / "files.jsonl", rows))


def expected_log_likelihoods(run: LoadedRun, examples: list[Example], n_steps: int | None) -> list[float]:
    """Return log p(target | source) by our own rows and model."""
    rows = encode_rows(examples, run.tokenizers, run.recipe.data, run.model.config, training=False, name="x")
    found = [0.0] * len(examples)
    for batch in evaluation_batches(rows, 512):
        scores = score_sentences(run.model(batch, n_steps=n_steps).logits_BTV, batch.labels_BT, batch.loss_mask_BT)
        for index, one in zip(batch.indices, scores, strict=True):
            found[index] = -one.nll
    return found


CASES: list[tuple[str, Any, list[str], dict[str, Any], int | None]] = [
    ("looped", lambada, [], {}, None),
    ("looped", lambada, ["data.tokenizer={kind: bpe, vocab_size: 300}"], {}, 2),
    ("halting", minimal_pairs, [], {"halting_threshold": 0.4}, None),
    ("experts", minimal_pairs, [], {}, None),
    ("pairs", labels, [], {"halting_threshold": 0.3}, 2),
    ("looped", labels, [], {}, None),
    ("pairs", pairs, [], {}, None),
]


@pytest.mark.parametrize(("name", "data", "more", "how", "n_steps"), CASES)
def test_scores_and_log_likelihoods_are_those_of_evaluate(
    name: str, data: Any, more: list[str], how: dict[str, Any], n_steps: int | None, tmp_path: Path
) -> None:
    runs.make_run(name, tmp_path / "run", *more)
    run = ostinato.load(tmp_path / "run", overrides=[*data(tmp_path), "data.block_length=null"], **how)
    files = write_tasks(run, tmp_path / "tasks", ["test"])
    found = score(run, [str(file) for file in files], n_steps=n_steps)
    (task,) = found["results"]
    ours = run.evaluate("test", n_steps=n_steps, metrics=[])
    if "ranking" in ours:
        assert found["results"][task]["acc,none"] == pytest.approx(ours["ranking"]["accuracy"], abs=1e-12)
        assert 0 < ours["ranking"]["accuracy"] < 1
    else:
        assert found["results"][task]["acc,none"] == pytest.approx(ours["sequence_accuracy_forced"], abs=1e-12)
    documents = [json.loads(line) for line in files[0].with_suffix(".jsonl").read_text().splitlines()]
    samples = sorted(found["samples"][task], key=lambda one: one["doc_id"])
    assert len(samples) == len(documents) == ours["n"]
    theirs = [response[0][0] for sample in samples for response in sample["resps"]]
    end = "<eos>" if data not in (lambada, minimal_pairs) else ""
    examples = []
    for document in documents:
        for text in document.get("choices", [document.get("continuation")]):
            source = document["context"].removesuffix("<eos><bos>")
            examples.append(Example(source, text.removesuffix(end).strip(), continues=not end))
    expected = expected_log_likelihoods(run, examples, n_steps)
    assert theirs == pytest.approx(expected, abs=1e-4)
    assert len({round(value, 3) for value in theirs}) > 3
