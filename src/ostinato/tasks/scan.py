"""SCAN: commands and their action sequences (Lake and Baroni 2018, arXiv 1711.00350), from the grammar.

Grammar of the commands and their meaning [[.]] (their supplement):

    C -> S and S | S after S | S        [[x and y]] = [[x]] [[y]]          [[x after y]] = [[y]] [[x]]
    S -> V twice | V thrice | V         [[v twice]] = [[v]] [[v]]          [[v thrice]] = [[v]] [[v]] [[v]]
    V -> U | U d | U opposite d | U around d,    d in {left, right}
    U -> walk | look | run | jump | turn (turn needs a direction, and adds no action of its own)

    [[u]] = I_U    [[u d]] = I_TURN_d [[u]]    [[u opposite d]] = I_TURN_d I_TURN_d [[u]]
    [[u around d]] = (I_TURN_d [[u]]) four times

34 phrases V, 102 phrases S and 102 + 2 * 102^2 = 20,910 commands, none of them ambiguous.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from itertools import product
from typing import ClassVar, Literal

from ostinato.config.base import Count
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile, published_files, read_split_numbers
from ostinato.errors import DataError, Problem
from ostinato.tasks.base import Only, Share, Task, TaskConfig, bucket_of, first_hashed

Row = tuple[str, str]
"""A command and its actions."""

_PRIMITIVES = ("walk", "look", "run", "jump", "turn")
_DIRECTIONS = ("left", "right")
_LONGEST_TRAINED = 22
"""Actions: no command has 23, the test set of the length split begins at 24."""
_HELD_OUT = {
    "addprim_jump": "jump",
    "addprim_turn_left": "turn left",
    "addprim_complex_jump": "jump",
    "few_shot": "around right",
}
"""What training shows little of, all of which stays there: dev takes no command that holds it."""
_BUCKET = 8

_SIMPLE = published_files(
    repo="brendenlake/SCAN",
    commit="c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f",
    licence="BSD-3-Clause",
    path="simple_split/tasks_{}_simple.txt",
    table={
        "train": (16728, 3267938, "941bb8a088c5f53ceff12fde902dc008933cf0c4203cc672c47b5f79d73262dd"),
        "test": (4182, 812450, "1fe1c8f5a19d0dc40e41bab94278f45f66f3dc415a978bd29855a23440610fc6"),
    },
)
_ALL = replace(
    _SIMPLE["train"],
    path="tasks.txt",
    sha256="d824c7d9e9149ba497e25f701981dac79954e04bf670d22e5c209f076ac6c89f",
    n_bytes=4080388,
    n_rows=20910,
)
_MCD_LISTS = RemoteFile(
    repo="google-research/google-research",
    commit="1c1f5b9a835e8475e3562a50354fc2641a9ee9c8",
    path="scan-splits.tar.gz",
    sha256="e8fff9d88699abd1b88e8eeb44d199bc9706fb21dd9887c3a928dcb11f140785",
    n_bytes=79199,
    n_rows=None,
    licence="CC BY 4.0",
    url="https://storage.googleapis.com/cfq_dataset/scan-splits.tar.gz",
)
_SIZES = {
    "simple": {"train": 16728, "test": 4182},
    "length": {"train": 16990, "test": 3920},
    "addprim_jump": {"train": 14670, "test": 7706},
    "addprim_turn_left": {"train": 21890, "test": 1208},
}
_MCD_SIZES = {"train": 8365, "dev": 1045, "test": 1045}
_WITHOUT_FILLERS, _JUMP_AROUND_RIGHT = (15225, 2558693), (1173, 333598)
_READ: dict[str, dict[str, tuple[int, int]]] = {
    "template_right": {"train": (15225, 3173282), "test": (4476, 729823)},
    "template_opposite_right": {"train": (15225, 2990057), "test": (4476, 871363)},
    "template_around_right": {"train": _WITHOUT_FILLERS, "test": (4476, 1243177)},
    "template_jump_around_right": {"train": (18528, 3468272), "test": _JUMP_AROUND_RIGHT},
    "filler_num0": {"train": _WITHOUT_FILLERS, "test": _JUMP_AROUND_RIGHT},
    "filler_num1": {"train": (16290, 2851719), "test": _JUMP_AROUND_RIGHT},
    "filler_num2": {"train": (17391, 3158377), "test": _JUMP_AROUND_RIGHT},
    "filler_num3": {"train": (18528, 3468272), "test": _JUMP_AROUND_RIGHT},
}
"""Rows and bytes of published files that could not be downloaded when this was written.

They are what the rules of the splits give in the files' layout. Where sizes of published files could be compared (four
of sixteen) they are the same.
"""
_MOST_JUMPS = 32


def _verb_phrases() -> Iterator[tuple[str, list[str]]]:
    for verb in _PRIMITIVES:
        action = [] if verb == "turn" else [f"I_{verb.upper()}"]
        if action:
            yield verb, action
        for direction in _DIRECTIONS:
            turn = [f"I_TURN_{direction.upper()}"]
            yield f"{verb} {direction}", turn + action
            yield f"{verb} opposite {direction}", turn * 2 + action
            yield f"{verb} around {direction}", (turn + action) * 4


def all_commands() -> Iterator[Row]:
    """Yield all 20,910 commands with their actions: the single phrases first, then their pairs, in grammar order."""
    phrases = [
        (text + suffix, actions * times)
        for text, actions in _verb_phrases()
        for suffix, times in (("", 1), (" twice", 2), (" thrice", 3))
    ]
    for text, actions in phrases:
        yield text, " ".join(actions)
    for (left, first), (right, second) in product(phrases, repeat=2):
        yield f"{left} and {right}", " ".join(first + second)
        yield f"{left} after {right}", " ".join(second + first)


def length_split() -> tuple[list[Row], list[Row]]:
    """Return train (up to 22 actions) and test (24 to 48) of the length split, shorter action sequences first."""
    rows = sorted(all_commands(), key=lambda row: row[1].count(" "))
    n_train = sum(row[1].count(" ") < _LONGEST_TRAINED for row in rows)
    return rows[:n_train], rows[n_train:]


def addprim_split(primitive: str) -> tuple[list[Row], list[Row]]:
    """Return train and test of the split that shows `primitive` in training only alone.

    test: every longer command in which it occurs. train: the others, and the primitive itself repeated until it is one
    row in ten, at rows 0, 10, 20 and so on.
    """
    rows = list(all_commands())
    alone = next(row for row in rows if row[0] == primitive)
    test = [row for row in rows if row != alone and f" {primitive} " in f" {row[0]} "]
    unseen = {alone, *test}
    train: list[Row] = []
    for index, row in enumerate(row for row in rows if row not in unseen):
        if index % 9 == 0:
            train.append(alone)
        train.append(row)
    return train, test


class ScanConfig(TaskConfig):
    """Settings of SCAN."""

    only: ClassVar[tuple[Only, ...]] = (
        Only(("n_shots", "repetition"), "split", ("few_shot", "addprim_complex_jump")),
        Only(("percent",), "split", ("size",)),
        Only(("dev_fraction", "dev_seed"), "split", but=("mcd1", "mcd2", "mcd3")),
        Only(("dev_seed",), "dev_fraction", but=(0,)),
    )
    kind: Literal["scan"] = "scan"
    split: Literal[
        "simple",
        "size",
        "length",
        "addprim_jump",
        "addprim_turn_left",
        "addprim_complex_jump",
        "template_right",
        "template_opposite_right",
        "template_around_right",
        "template_jump_around_right",
        "filler_num0",
        "filler_num1",
        "filler_num2",
        "filler_num3",
        "few_shot",
        "mcd1",
        "mcd2",
        "mcd3",
    ] = "simple"
    """The published split."""
    n_shots: Literal[1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024] | None = None
    """few_shot, addprim_complex_jump (up to 32): commands added to training; None: 1."""
    repetition: Literal[1, 2, 3, 4, 5] | None = None
    """few_shot, addprim_complex_jump: which of the published draws of these commands; None: 1."""
    percent: Literal[1, 2, 4, 8, 16, 32, 64] | None = None
    """size: share of all commands in training; None: 1."""
    dev_fraction: Share = 0.05
    """Share of the training commands that become `dev`; 0: train whole, no dev."""
    dev_seed: Count = 0
    """Of the choice of dev."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """More commands than the test set holds."""
        yield from super().problems(path)
        if self.split == "addprim_complex_jump" and (self.n_shots or 1) > _MOST_JUMPS:
            yield Problem(
                f"{path}n_shots", self.n_shots, f"must be at most {_MOST_JUMPS} with {path}split={self.split}"
            )


class ScanTask(Task):
    """SCAN: simple commands with their action sequences, in the published splits.

    Splits: train, dev, test of the published split named by `split`. simple: 16,728 / 4,182 at random, from the
    published files, in their order. length: up to 22 actions / 24 to 48 (16,990 / 3,920). addprim_jump and
    addprim_turn_left: the primitive alone, one training row in ten / all other commands with it (14,670 / 7,706 and
    21,890 / 1,208). These three are made from the grammar. They hold the same rows as the published files, repetitions
    included. The order differs: the published rows were shuffled by a random state that was not published; here they
    are in grammar order (length: by number of actions, as published), and training shuffles them anyway.
    As published are also read, every row checked against the grammar: template_* (Loula et al. 2018), no command with a
    template in train, commands with it and another verb than turn in test (15,225 / 4,476; jump around right 18,528 /
    1,173); filler_num0 to 3, test jump around right (1,173), train with around right after so many other verbs (15,225,
    16,290, 17,391, 18,528); few_shot, filler_num0 with `n_shots` commands of filler_num1, drawn five times
    (`repetition`); size, `percent` of all commands at random; addprim_complex_jump, `n_shots` of the test's commands in
    train, too.
    Tokens: words, separated by single blanks, on both sides; the markers IN: and OUT: are dropped.
    Metric: exact match of the whole action sequence, free running; by number of actions.
    Selection: mcd has a published dev, drawn like its test. Otherwise SCAN has no validation set. `dev` is a seeded 5 %
    of the distinct training commands (`dev_fraction`), taken out of train; so it has training lengths and primitives,
    and does not measure the generalisation that the test measures. The primitive that an addprim split repeats and the
    commands that `n_shots` adds always stay in train. dev_fraction=0 trains on the whole published set, without dev:
    then select on another split or keep the last checkpoint.
    Departures: the papers train on all training rows and report the last update of a fixed number.
    """

    by = ("actions",)
    config: ScanConfig
    missing = ("dev", "SCAN has no validation set: task.dev_fraction above 0 cuts one from train")

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the two published files of a split, commands and lists of mcd, nothing for those that are made."""
        if self._is_mcd:
            return _ALL, _MCD_LISTS
        return () if self._is_made else tuple(self._file(part) for part in ("train", "test"))

    def splits(self) -> tuple[str, ...]:
        """Return train, dev (unless it would have to be cut from train and dev_fraction is 0) and test."""
        return ("train", "dev", "test") if self._is_mcd or self.config.dev_fraction > 0 else ("train", "test")

    @property
    def _is_mcd(self) -> bool:
        return self.config.split.startswith("mcd")

    @property
    def _is_made(self) -> bool:
        return self.config.split in ("length", "addprim_jump", "addprim_turn_left")

    def _file(self, part: Literal["train", "test"]) -> RemoteFile:
        """Return the published file of one side of a split."""
        config, split = self.config, self.config.split
        if split == "simple":
            return _SIMPLE[part]
        drawn = f"num{config.n_shots or 1}_rep{config.repetition or 1}"
        n_rows, n_bytes = _READ.get(split, {}).get(part, (None, None))
        if split == "few_shot":
            path = f"few_shot_split/tasks_{part}_fewshot_{drawn}.txt"
            n_rows, n_bytes = (
                _JUMP_AROUND_RIGHT if part == "test" else (_WITHOUT_FILLERS[0] + (config.n_shots or 1), None)
            )
        elif split == "addprim_complex_jump":
            path = f"add_prim_split/with_additional_examples/tasks_{part}_{split}_{drawn}.txt"
        elif split == "size":
            path = f"simple_split/size_variations/tasks_{part}_simple_p{config.percent or 1}.txt"
        else:
            path = f"{split.partition('_')[0]}_split/tasks_{part}_{split}.txt"
        return replace(_SIMPLE["train"], path=path, sha256=None, n_bytes=n_bytes, n_rows=n_rows)

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes that the papers state, without the dev set that is cut from train here."""
        if self._is_mcd:
            return _MCD_SIZES
        if self.config.split in _SIZES:
            return _SIZES[self.config.split]
        rows = {part: self._file(part).n_rows for part in ("train", "test")}
        return {part: n for part, n in rows.items() if n is not None}

    def _examples(self, split: str) -> Iterator[Example]:
        chosen: Iterator[Row]
        if self._is_mcd:
            chosen = (self._all_rows[number] for number in self._mcd_numbers[split])
        elif split == "test":
            chosen = self._rows("test")
        else:
            rows = list(self._rows("train"))
            few = _HELD_OUT.get(self.config.split)
            commands = {command for command, _ in rows if few is None or f" {few} " not in f" {command} "}
            dev = first_hashed(commands, self.config.dev_fraction, self.config.dev_seed)
            chosen = (row for row in rows if (row[0] in dev) == (split == "dev"))
        for command, actions in chosen:
            n_actions = actions.count(" ") + 1
            yield Example(
                command, actions, {"n_actions": n_actions, "actions": bucket_of(n_actions, _BUCKET, digits=2)}
            )

    def _rows(self, part: Literal["train", "test"]) -> Iterator[Row]:
        split = self.config.split
        if not self._is_made:
            grammar = dict(all_commands())
            for number, (command, actions) in enumerate(self._read(self._file(part)), 1):
                if grammar.get(command) != actions:
                    raise bad_line(self.access.fetch(self._file(part)), number, "the grammar has no such row")
                yield command, actions
            return
        train, test = length_split() if split == "length" else addprim_split(_HELD_OUT[split])
        yield from train if part == "train" else test

    def _read(self, file: RemoteFile) -> Iterator[Row]:
        for path, number, line in self._published(file):
            command, separator, actions = line.strip().removeprefix("IN: ").partition(" OUT: ")
            if not separator or not line.startswith("IN: "):
                raise bad_line(path, number, "expected 'IN: command OUT: actions'")
            yield command, actions

    @cached_property
    def _mcd_numbers(self) -> dict[str, list[int]]:
        path = self.access.fetch(_MCD_LISTS)
        found = read_split_numbers(path, f"{self.config.split}.json", _MCD_SIZES)
        sizes = {split: len(numbers) for split, numbers in found.items()}
        if sizes != _MCD_SIZES:
            raise DataError(f"{path}: {self.config.split} has {sizes} rows, but {_MCD_SIZES} were published")
        return found

    @cached_property
    def _all_rows(self) -> list[Row]:
        """All commands in the order of their file; they must be the grammar's, each of them once."""
        rows, grammar = list(self._read(_ALL)), dict(all_commands())
        wrong = next((number for number, row in enumerate(rows, 1) if grammar.pop(row[0], None) != row[1]), None)
        if wrong is not None:
            raise bad_line(self.access.fetch(_ALL), wrong, "the grammar has no such row, or the file has it twice")
        return rows
