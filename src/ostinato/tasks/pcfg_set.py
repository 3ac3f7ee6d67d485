"""PCFG SET: sequences of string edits and their results (Hupkes et al. 2020, arXiv 1908.08351)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice, zip_longest
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from ostinato.config.base import Count, Size
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile, published_files
from ostinato.errors import Problem
from ostinato.tasks.base import Only, Task, TaskConfig
from ostinato.tasks.string_edits import apply_edits, draw_edits, exceptional_results, functions_of, has_held_out_pair

_MOST_TRAINED = 8
"""Functions in a training sequence for productivity."""
_FOLDERS = {
    "iid": "pcfgset",
    "systematicity": "systematicity",
    "productivity": "productivity",
    "substitutivity_equal": "substitutivity/equally_distributed",
    "substitutivity_primitive": "substitutivity/primitive",
}
_Known = tuple[int | None, int | None, str | None]
_SUBSTITUTIVITY: dict[str, _Known] = {
    "train.src": (None, None, None),
    "test.src": (10000, 1073727, "21a135fb2e7c828bc264d467fd2353a51a411bffa20416c381290bce500e7899"),
    "test.tgt": (10000, 392456, "71c5545a9fed0792389b18d470d78c310d578cdf4fa09913f481983f5dbdd29d"),
    "test_twin.src": (10000, 1139517, "b6111cb54df3f9c44bca73ee97a89006e8dc1fae91803017203ce5623ffe1e40"),
    "test_twin.tgt": (10000, 392456, "71c5545a9fed0792389b18d470d78c310d578cdf4fa09913f481983f5dbdd29d"),
}
"""Both test sets are the same."""
_PUBLISHED: dict[str, _Known] = {
    "pcfgset/dev.src": (4860, 438284, "67bd466f77b7acb9863ddbbbacb4784848bdfb9094c40e2f94955aff7cb75d0a"),
    "pcfgset/dev.tgt": (4860, 164248, "95648e697cb86a8724d71d6e841f37eea27d15951091b134538906bfbf0d14d1"),
    "pcfgset/test.src": (9721, 863344, "65af9357dc169a22629456be7cf43e97e275e076db10d72202d5389be7d8c0b2"),
    "pcfgset/test.tgt": (9721, 321669, "7d23524995eb28a4726b3f1ffc11daec8f13692f7f804f4be20ca1a25c941517"),
    "pcfgset/train.src": (82622, None, None),
    "pcfgset/train.tgt": (82622, 2742789, "3fa13c7ca2f3fb8dce126612d77f6666fb49f541c0936aa55c88cd033693475a"),
    "productivity/train.src": (81010, None, None),
    "productivity/train.tgt": (81010, 2444044, "604b73127083b9dc6f6331be6722423d2344eac36278e48d658618f0e78a8da9"),
    "productivity/test.src": (11333, 1930144, "ba03bc5c468e955d537c06ca02c900c431a16f37b8b3f02e5eaa8a93434a3f73"),
    "productivity/test.tgt": (11333, 620414, "55704b1e887ffeffb104fc1ba4bc44dd6b0e95e34a355bd07d86881fd226a254"),
    "systematicity/train.src": (82168, None, None),
    "systematicity/train.tgt": (82168, 2589979, "5b8911aac24433e1a32e769e4ae237ace7e599352f8c4783334f9cae4de53b98"),
    "systematicity/test.src": (10175, 1235202, "9c47ccf869899e65c2c2cf530403c8fefdcb5de57787c9ff029dc7d9b8018941"),
    "systematicity/test.tgt": (10175, 474479, "2896474cdeb151929bd85ed10aeeca37866e11dafa00f62e1660804f0dfc5a8a"),
    **{
        f"substitutivity/{kind}/{name}": known
        for kind in ("equally_distributed", "primitive")
        for name, known in _SUBSTITUTIVITY.items()
    },
    "substitutivity/equally_distributed/train.tgt": (
        None,
        2742788,
        "2a451e0ad648f1801de3fe320dfa5be96249616bb3ce0e66e8c4a027206eddc5",
    ),
    "substitutivity/primitive/train.tgt": (
        None,
        2748925,
        "eb5e426d23e6b39bcded649c37bc28c19774cfe2517123d1335d5648d36f9559",
    ),
    **{
        f"overgeneralisation/{part}.{side}": (None, None, None)
        for share in ("0.0001", "0.0005", "0.001", "0.005")
        for part in (f"train_pcfg_ratio={share}", *(f"test_pcfg_ratio={share}_{m}" for m in ("exception", "original")))
        for side in ("src", "tgt")
    },
}
"""Rows, bytes and SHA-256 of every file. Those without a hash could not be downloaded when this was written."""
_FILES = published_files(
    repo="i-machine-think/am-i-compositional",
    commit="4f75bdd78889150dd78e90bbb7ddec840204c159",
    licence="MIT",
    path="data/pcfgset/{}",
    table=_PUBLISHED,
)
_N_GENERATED = (82_622, 4_860, 9_721)
"""Sizes of train, dev and test that are published for the random split."""
_PARTS = ("train", "dev", "test")


class PcfgSetConfig(TaskConfig):
    """Settings of PCFG SET."""

    only: ClassVar[tuple[Only, ...]] = (
        Only(("exceptions",), "split", ("overgeneralisation",)),
        Only(("whole_dev",), "split", ("systematicity", "productivity")),
        Only(("n_train", "max_functions", "seed"), "origin", ("generated",)),
        Only(("max_functions",), "split", ("iid",)),
    )
    kind: Literal["pcfg_set"] = "pcfg_set"
    split: Literal[
        "iid",
        "systematicity",
        "productivity",
        "substitutivity_equal",
        "substitutivity_primitive",
        "overgeneralisation",
    ] = "iid"
    """The published split, one for each kind of generalisation."""
    exceptions: Annotated[Literal["0.0001", "0.0005", "0.001", "0.005"], BeforeValidator(str)] | None = None
    """overgeneralisation: exceptions in training, as a share of the rarer function's occurrences; None: 0.001."""
    origin: Literal["published", "generated"] = "published"
    """generated: sequences of the same functions, letters and numbers of functions, drawn here."""
    whole_dev: bool = False
    """Keep the sequences of dev that have what the split's training set lacks, so that they take part in selection."""
    n_train: Size | None = None
    """generated: training sequences before the split takes some away; None: as published, 82,622."""
    max_functions: Size | None = None
    """generated, iid: most functions of a sequence; None: as published, 24."""
    seed: Count = 0
    """generated: of the data; independent of the seed of training."""

    @property
    def of_train(self) -> tuple[str, ...]:
        """The number of sequences, of which other splits than iid test some."""
        return ("n_train",) if self.split == "iid" else ()

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Synonyms and exceptions are only in the published files."""
        yield from super().problems(path)
        if self.origin == "generated" and self.split.startswith(("substitutivity", "overgeneralisation")):
            yield Problem(f"{path}origin", self.origin, f"must be published with {path}split={self.split}")


class PcfgSetTask(Task):
    """PCFG SET: nested string edits and their results; random split, systematicity, productivity, substitutivity.

    A question: `echo append A1 B2 , C3`, its answer: `A1 B2 C3 C3`; ten functions, 520 letters.
    Splits, published: iid has train 82,622, dev 4,860, test 9,721. productivity pools train and test: up to 8 functions
    train 81,010, 9 and more test 11,333. systematicity: test 10,175 with one of four pairs of neighbouring functions,
    train 82,168 without. substitutivity: test and test_twin 10,000 each, one function replaced by its synonym, which
    training has as often as the function (equal) or only in sequences of one function (primitive). dev is the one of
    iid for all; by default it loses the sequences that have what the split's training set lacks, whole_dev keeps them.
    overgeneralisation: train has a few sequences in which four pairs of functions mean something else (`exceptions`);
    test asks these again for that meaning, and test_original for the regular one: a model that writes test_original's
    targets overgeneralises, one that writes test's has memorised. Its dev is that of iid, whole.
    origin=generated draws other sequences: functions and letters uniform, as many functions as in the published test,
    or with max_functions, which is no published task, only the shorter ones of them.
    The training sources have no known hash, but their published targets have one, and must come out.
    Tokens: words. Every target, published or not, is checked against the functions' definition.
    Metric: exact match, free running; by number of functions. Substitutivity: `ostinato.metrics.consistency` of the
    outputs for test and test_twin, right or wrong. Localism: `ostinato.tasks.localism`.
    Selection: dev.
    Departures: papers report the mean of three runs, chosen on the whole dev.
    """

    config: PcfgSetConfig
    missing = ("test_twin", "task.split=substitutivity_equal has it")
    by = ("n_functions",)

    def files(self) -> tuple[RemoteFile, ...]:
        """Return sources and targets of the split; none where they are generated."""
        if self.config.origin == "generated":
            return ()
        return tuple(_FILES[f"{self._stem(split)}.{side}"] for split in self.splits() for side in ("src", "tgt"))

    def splits(self) -> tuple[str, ...]:
        """Return train, dev and test, test_twin for substitutivity, test_original for overgeneralisation."""
        if self.config.split == "overgeneralisation":
            return (*_PARTS, "test_original")
        return (*_PARTS, "test_twin") if self.config.split.startswith("substitutivity") else _PARTS

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the files; that of dev counts the sequences that are left out here."""
        rows = {split: _FILES[f"{self._stem(split)}.src"].n_rows for split in self.splits()}
        return {split: n for split, n in rows.items() if n is not None}

    def _stem(self, split: str) -> str:
        if self.config.split == "overgeneralisation" and split != "dev":
            kind = {"train": "", "test": "_exception", "test_original": "_original"}[split]
            return f"overgeneralisation/{split.partition('_')[0]}_pcfg_ratio={self.config.exceptions or '0.001'}{kind}"
        folder = _FOLDERS["iid" if split == "dev" else self.config.split]
        return f"{folder}/{split}"

    def _examples(self, split: str) -> Iterator[Example]:
        if self.config.origin == "generated":
            yield from self._generated(split)
            return
        rows = self._read(self._stem(split))
        for example in rows:
            if split != "dev" or self.config.whole_dev or not self._is_new(example):
                yield example

    def _is_new(self, example: Example) -> bool:
        """Return whether a sequence has what the training set of the split lacks."""
        if self.config.split == "productivity":
            return int(str(example.columns["n_functions"])) > _MOST_TRAINED
        return self.config.split == "systematicity" and bool(example.columns["has_held_out_pair"])

    def _read(self, stem: str) -> Iterator[Example]:
        sources, targets = self._published(_FILES[f"{stem}.src"]), self._published(_FILES[f"{stem}.tgt"])
        for of_source, of_target in zip_longest(sources, targets):
            if of_source is None or of_target is None:
                path, number, _ = of_source or of_target
                raise bad_line(path, number, f"has no line beside it in the {'targets' if of_source else 'sources'}")
            (path, number, source), (_, _, target) = of_source, of_target
            try:
                regular = apply_edits(source)
                exceptional = exceptional_results(source) if "pcfg_ratio=" in stem else set()
            except ValueError as error:
                raise bad_line(path, number, str(error)) from error
            found = " ".join(target.split())
            results = exceptional if stem.endswith("_exception") else {regular}
            if found not in (results | exceptional if stem.startswith("overgeneralisation/train") else results):
                given = " or ".join(map(repr, sorted(results))) or "no exception"
                raise bad_line(path, number, f"the target is {target!r}, but the functions give {given}")
            yield _example(source, found)

    def _generated(self, split: str) -> Iterator[Example]:
        """Yield the generated examples of a split; as published, train and test are pooled and divided again."""
        examples = self._drawn[split]
        if self.config.split == "iid":
            yield from examples
        elif split == "test":
            yield from (example for part in ("train", "test") for example in self._drawn[part] if self._is_new(example))
        else:
            extra = self._drawn["test"] if split == "train" else []
            keep_all = split == "dev" and self.config.whole_dev
            yield from (example for example in (*examples, *extra) if keep_all or not self._is_new(example))

    @cached_property
    def _drawn(self) -> dict[str, list[Example]]:
        """The generated examples of the random split; no sequence is in it twice. Test and dev are drawn first."""
        n_train, n_dev, n_test = _N_GENERATED
        sources = _distinct(draw_edits(Random(f"{self.config.seed}/pcfg_set"), self.config.max_functions))
        sizes = {"test": n_test, "dev": n_dev, "train": self.config.n_train or n_train}
        return {part: [_example(s, apply_edits(s)) for s in islice(sources, n)] for part, n in sizes.items()}


def _distinct(sources: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for source in sources:
        if source not in seen:
            seen.add(source)
            yield source


def _example(source: str, target: str) -> Example:
    columns: dict[str, object] = {
        "n_functions": len(functions_of(source)),
        "has_held_out_pair": has_held_out_pair(source),
    }
    return Example(source, target, columns)
