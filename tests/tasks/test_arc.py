from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.special_ids import NO_LABEL
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.tasks.arc import ArcConfig, ArcTask, examples_of
from ostinato.tasks.base import Task
from ostinato.tasks.baselines import trivial_scores

TASK = {
    "train": [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3], [4]], "output": [[4, 3]]}],
    "test": [{"input": [[5, 0], [0, 6]], "output": [[0, 5], [6, 0]]}, {"input": [[7]], "output": [[7, 7]]}],
}


def test_a_test_grid_is_read_behind_all_pairs_and_has_the_labels_of_its_output() -> None:
    (example,) = examples_of(TASK)  # the second one has another shape
    assert example.source == "1 2 / > 2 1 / ; 3 / 4 / > 4 3 / ; 5 0 / 0 6 /"
    labels = example.target.split()
    assert labels == [NO_LABEL] * 17 + ["0", "5", NO_LABEL, "6", "0", NO_LABEL]
    assert len(labels) == len((example.source or "").split())
    task = ArcTask(ArcConfig(kind="arc"), DataConfig())
    copied = task.rules(example.source or "")["copy"].split()
    assert copied == [NO_LABEL] * 17 + ["5", "0", NO_LABEL, "0", "6", NO_LABEL]


@pytest.mark.parametrize("grid", [[[1, 2], [3]], [[10]], [["1"]], []])
def test_what_is_no_grid_is_refused(grid: Any) -> None:
    with pytest.raises(ValueError, match="rows of equal length"):
        list(examples_of({"train": [], "test": [{"input": grid, "output": grid}]}))


@pytest.mark.parametrize(("version", "n_files", "n_bytes"), [(1, 800, 3_782_011), (2, 1120, 6_016_232)])
def test_every_file_has_an_address_and_a_hash(version: int, n_files: int, n_bytes: int) -> None:
    files = ArcTask(ArcConfig.model_validate({"version": version}), DataConfig()).files()
    assert len({file.key for file in files}) == n_files
    assert sum(file.n_bytes or 0 for file in files) == n_bytes
    assert all(file.sha256 is not None and len(file.sha256) == 64 for file in files)


def test_a_file_that_is_another_one_is_refused(tmp_path: Path) -> None:
    task = ArcTask(ArcConfig(kind="arc"), DataConfig(), DataAccess(tmp_path / "cache", str(tmp_path / "mirror")))
    for file in task.files()[:400]:
        path = tmp_path / "mirror" / file.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(TASK), encoding="utf-8")
    with pytest.raises(DataError, match="not the published file data/training/"):
        next(task.examples("train"))


@pytest.mark.slow
def test_splits_hold_what_the_protocol_says(open_published: Callable[..., Task]) -> None:
    task = open_published("arc")
    found = {split: list(task.examples(split)) for split in task.splits()}
    assert {split: len(rows) for split, rows in found.items()} == {"train": 207, "dev": 25, "test": 179}
    names = {split: {row.columns["task"] for row in rows} for split, rows in found.items()}
    assert not names["train"] & names["dev"]
    assert not (names["train"] | names["dev"]) & names["test"]
    assert max(len((row.source or "").split()) for rows in found.values() for row in rows) <= 2048
    copied = trivial_scores(task, "dev")["copy"]
    assert copied["exact_match"] == 0.0
    assert 0.5 < copied["tag_accuracy"] < 1
    short = open_published("arc", max_words=512, dev_fraction=0)
    assert short.splits() == ("train", "test")
    assert sum(1 for _ in short.examples("test")) < 25


@pytest.mark.slow
def test_the_counts_of_version_two_are_those_of_the_protocol(open_published: Callable[..., Task]) -> None:
    task = open_published("arc", version=2)
    counts = {split: sum(1 for _ in task.examples(split)) for split in task.splits()}
    assert counts["train"] + counts["dev"] == 565
    assert counts["test"] == 49
    every = {version: open_published("arc", version=version, max_words=9999, dev_fraction=0) for version in (1, 2)}
    sizes = [sum(1 for _ in every[version].examples(split)) for version in (1, 2) for split in ("train", "test")]
    assert sizes == [268, 277, 723, 119]
