"""ARC-AGI (Chollet 2019): find the rule behind a few pairs of coloured grids, and apply it to another grid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ostinato.config.base import Count, Size
from ostinato.config.special_ids import NO_LABEL
from ostinato.data.disk import reading, refetch_hint
from ostinato.data.example import Example
from ostinato.data.registry import RemoteFile
from ostinato.errors import DataError
from ostinato.tasks.base import Only, Share, Task, TaskConfig, first_hashed

Grid = Sequence[Sequence[int]]
_FILES = Path(__file__).with_name("arc_files.tsv")
"""Version, folder, name, bytes and SHA-256 of every task's file."""
_SOURCES = {
    1: ("fchollet/ARC-AGI", "399030444e0ab0cc8b4e199870fb20b863846f34"),
    2: ("arcprize/ARC-AGI-2", "f3283f727488ad98fe575ea6a5ac981e4a188e49"),
}
_PUBLISHED = {1: {"train": 416, "test": 419}, 2: {"train": 1076, "test": 167}}
"""Test grids of the training and of the evaluation tasks."""
_END_OF_ROW, _BECOMES, _NEXT = "/", ">", ";"


class ArcConfig(TaskConfig):
    """Settings of ARC-AGI."""

    only: ClassVar[tuple[Only, ...]] = (Only(("dev_seed",), "dev_fraction", but=(0,)),)
    kind: Literal["arc"] = "arc"
    version: Literal[1, 2] = 1
    """ARC-AGI-1 (400 + 400 tasks) or ARC-AGI-2 (1,000 + 120)."""
    max_words: Size = 2048
    """Longest sequence, in cells, row ends and separators; what is longer is left out of every split."""
    dev_fraction: Share = 0.1
    """Share of the training tasks that becomes `dev`; 0: train whole, no dev."""
    dev_seed: Count = 0
    """Of the choice of dev."""


class ArcTask(Task):
    """ARC-AGI 1 or 2: the colours of an output grid from pairs of grids and an input of the same shape.

    Splits: train and dev (`dev_fraction` of the tasks) from the training tasks, test from the public evaluation tasks.
    An example is one test grid of a task, with all its pairs. **Covered are grids whose output has the shape of the
    input, in sequences of `max_words` at most**; the others are left out of every split. With 2,048 words that is 232
    of the 416 test grids of the training tasks of version 1 and 179 of 419 of its evaluation tasks; of version 2 565 of
    1,076 and 49 of 167. (Of the same shape are 268, 277, 723 and 119.) `ostinato data show arc` prints sizes beside
    those published.
    Overlap: the training tasks of version 2 hold 391 of version 1's training and 376 of its evaluation tasks, and the
    evaluation tasks of version 2 6 of version 1's evaluation, by name. What was trained on version 2 has seen most of
    version 1's test; inside a version train, dev and test have no task in common.
    Tokens: words; rows of colours 0 to 9, `/` after every row, `>` between the grids of a pair, `;` after a pair and
    before the test grid. A label is a colour of the output, read at the cell of the test grid that has its place;
    nothing else has a label.
    Metric: exact match (all cells of an output right) and tag accuracy (cells right). Beside them belongs what needs no
    model (`ostinato data baselines`): `copy` gives the test grid itself, right for most cells and for no task.
    Selection: dev.
    Departures: ARC counts tasks, all of whose test grids are right in one of two attempts (version 1: three); here are
    single grids and one attempt. HRM and TRM learn an embedding for every task, from its pairs in a thousand forms,
    also those of the evaluation tasks, and vote over forms; here a model reads the pairs, and there are no further
    forms.
    """

    config: ArcConfig
    answers = "tags"
    metrics = ("exact_match", "tag_accuracy")
    missing = ("dev", "task.dev_fraction above 0 cuts one from train")

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the file of every task, those for training first."""
        return tuple(file for folder in ("training", "evaluation") for file in self._files(folder))

    def splits(self) -> tuple[str, ...]:
        """Return train, dev (unless dev_fraction is 0) and test."""
        return ("train", "dev", "test") if self.config.dev_fraction > 0 else ("train", "test")

    def published_sizes(self) -> dict[str, int]:
        """Return all test grids of the training and of the evaluation tasks, of any shape."""
        return _PUBLISHED[self.config.version]

    def rules(self, source: str) -> dict[str, str]:
        """Return the test grid as its own output."""
        before, _, grid = source.rpartition(_NEXT)
        n_before = len(before.split()) + 1
        words = [NO_LABEL if word == _END_OF_ROW else word for word in grid.split()]
        return {"copy": " ".join([NO_LABEL] * n_before + words)}

    def _files(self, folder: str) -> list[RemoteFile]:
        repo, commit = _SOURCES[self.config.version]
        rows = (line.split("\t") for line in _FILES.read_text(encoding="ascii").splitlines())
        return [
            RemoteFile(repo, commit, f"data/{folder}/{name}.json", sha256, int(n_bytes), None, "Apache-2.0")
            for version, of, name, n_bytes, sha256 in rows
            if (int(version), of) == (self.config.version, folder)
        ]

    @cached_property
    def _dev(self) -> set[str]:
        config = self.config
        return first_hashed([_name(file) for file in self._files("training")], config.dev_fraction, config.dev_seed)

    def _examples(self, split: str) -> Iterator[Example]:
        files = self._files("evaluation" if split == "test" else "training")
        for file in files:
            if split != "test" and (_name(file) in self._dev) != (split == "dev"):
                continue
            path = self.access.fetch(file)
            with reading(path, DataError, refetch_hint(path)):
                examples = list(examples_of(json.loads(path.read_text(encoding="utf-8"))))
            for example in examples:
                if len((example.source or "").split()) <= self.config.max_words:
                    yield Example(example.source, example.target, {"task": _name(file)})


def examples_of(task: dict[str, Any]) -> Iterator[Example]:
    """Yield the test grids of a task whose outputs have their shape, each as one sequence with the task's pairs.

    Args:
        task: ``train`` and ``test``, lists of pairs ``input`` and ``output``, each rows of colours.

    Raises:
        KeyError, TypeError, ValueError: it is something else.
    """
    pairs = [[*_words(pair["input"]), _BECOMES, *_words(pair["output"]), _NEXT] for pair in task["train"]]
    shown = [word for pair in pairs for word in pair]
    for pair in task["test"]:
        given, wanted = _words(pair["input"]), _words(pair["output"])
        if _shape(pair["input"]) == _shape(pair["output"]):
            labels = [NO_LABEL if word == _END_OF_ROW else word for word in wanted]
            yield Example(" ".join([*shown, *given]), " ".join([NO_LABEL] * len(shown) + labels))


def _words(grid: Grid) -> list[str]:
    if (
        not all(isinstance(cell, int) and 0 <= cell <= 9 for row in grid for cell in row)
        or len(set(map(len, grid))) != 1
    ):
        raise ValueError("a grid is rows of equal length, of colours from 0 to 9")
    return [str(cell) for row in grid for cell in (*row, _END_OF_ROW)]


def _shape(grid: Grid) -> tuple[int, int]:
    return len(grid), len(grid[0])


def _name(file: RemoteFile) -> str:
    return Path(file.path).stem
