"""Logical inference between two propositional formulas (Bowman, Manning and Potts 2015, arXiv 1506.04834)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import islice
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Count
from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile, published_files
from ostinato.tasks.base import Only, Task, TaskConfig
from ostinato.tasks.propositional import RELATIONS, Pair, draw_pairs

SEPARATOR = "#SEP#"
PATTERNS = {
    "A": re.compile(r"\( and \( not a \) \)"),
    "B": re.compile(r"\( and \( not "),
    "C": re.compile(r"\( (?:and|or) \( not "),
}
"""Sub-expressions to keep out of training (Shen et al. 2019): A `( and ( not a ) )`, B `( and ( not * ) )`,
C `( {and,or} ( not * ) )`, `*` being any formula."""

_LAST_BIN = 12
_LAST_TRAINED = 6
_DEV_EVERY = 10
_TRAIN_SHARE = 0.85

_PUBLISHED: dict[str, tuple[tuple[int, int, str], ...]] = {
    "train": (
        (30, 180, "6b7679d24a5121e747bbb6e1606c33773ef2803d2f1e3e5961f396bfe6d5ead1"),
        (2319, 58386, "b18140de23966481c20d6d4cac1f014322f760d6f891f643ff4beca48df1d347"),
        (12451, 462233, "b08cfe4e89fa941d053b7ba229f3743d25d0a73235c628bf45da645336ecc22a"),
        (23252, 1121339, "ab0dd5694b97815ed29d2be7016790ba78b5173b68df5702ed4d0f9cad087041"),
        (30373, 1831496, "ca53b91edcb966330ca6a4241ca313932f3dd897ce7af18b2446e6c551bb63fc"),
        (34152, 2493499, "8c6db46c7527aea7f685400075c2cebad2a36acb4904371c052827f3769baa00"),
        (32952, 2824732, "ab507a99dcd2f7a2c4a3c81fbdbf0e55e1169d48f1be177ee8278778f34cf141"),
    ),
    "test": (
        (6, 36, "0f0f47ea2699b52c8e49d84466afdae457111320669b328e752b690d21dab0ef"),
        (410, 13456, "d846fd8e2e10c44b95796cd31a3ea9056bd2ab7e510447e92172d252b5a4ebcf"),
        (2198, 88889, "74d3b9346bbdff39e9f6bd81bb84446309b3918e4d6dbae820280958c935fb82"),
        (4104, 205435, "c22eb4b2120fd2599eea1772ff2983e44b5e5501f17bfedc7f526ab6ddea9557"),
        (5361, 325528, "171a5b9ff84c8c8972662d7ee84d9bae88a0b0caf121c779e1898d08ff23d056"),
        (6027, 443141, "4456aab62f4189a95645822d7fd22b8b12ebadc15679fb37ed93921d1ee11004"),
        (5816, 498119, "b99fa4c2b48db710213cbfcf948ab08fdaf327c07f5e7fa978747f1cf73c53d0"),
        (4707, 462270, "9951b19945ea6b7b388118b05ac497b197aba7e24fbd501c5d9cf71f57433da5"),
        (3347, 374167, "8b653190922c9b5902339714e79d22654e0f34e61d691e0d592589a92882bc30"),
        (2230, 273795, "6d404315b4e0b15e70084f621f7e9677deebf7378016b0df95fbb63487851ed5"),
        (1444, 196231, "bb3b3d312bb3223bdad030695d6004dc9d1d6131fe26a5531f2e54cc1bd1e780"),
        (864, 125549, "f6ee99fac9b1459448f6b2dc0a263fab7493d9a1e05ed1d32e0674031aa4fda5"),
        (853, 139799, "37d63e62b894cd2f25977d3092c71da23244cbadcfa12909183f57da938abb9f"),
    ),
}
"""Rows, bytes and SHA-256 of every bin's file."""
_FILES = published_files(
    repo="yikangshen/Ordered-Memory",
    commit="2a0d3a22fb70216993a7faf25de3515f42e10431",
    licence="MIT",
    path="data/propositionallogic/{}",
    table={f"{part}{number}": known for part, bins in _PUBLISHED.items() for number, known in enumerate(bins)},
)


class LogicalInferenceConfig(TaskConfig):
    """Settings of logical inference."""

    only: ClassVar[tuple[Only, ...]] = (Only(("n_pairs", "seed"), "origin", ("generated",)),)
    kind: Literal["logical_inference"] = "logical_inference"
    origin: Literal["published", "generated"] = "published"
    """generated: the same distribution, drawn here."""
    held_out: Literal["none", "A", "B", "C"] = "none"
    """Pattern that no training row contains."""
    max_operators: Annotated[int, Field(ge=1, le=_LAST_TRAINED)] = _LAST_TRAINED
    """Bins up to this one are train and dev: fewer for the first stages of a curriculum (training.init_from)."""
    max_test_operators: Annotated[int, Field(ge=1, le=_LAST_BIN)] = _LAST_BIN
    """Bins up to this one are test: fewer where a small model is compared with another on short formulas."""
    n_pairs: Annotated[int, Field(ge=1000, le=2**31 - 1)] = 500_000
    """generated: pairs drawn, before repetitions are removed."""
    seed: Count = 0
    """generated: of the data; independent of the seed of training."""


class LogicalInferenceTask(Task):
    """Logical inference: which of seven relations holds between two propositional formulas, by number of operators.

    Splits by bin, the operators of the longer formula (12: 12 or more): train and dev from the training rows of
    bins 0-6 (135,529 in all; every tenth row is dev), or of fewer with max_operators, test 37,367 rows of bins
    0-12, or of fewer with max_test_operators. With held_out A, B or C (Shen et al. 2019): train and dev lose every
    row in which either formula has the pattern (128,969 / 87,948 / 51,896 rows are left, every tenth of them dev),
    test is the test rows with it, of all bins, and test_removed the training rows that were taken out, which later
    work measures on. Which test set the papers mean is not certain: report both.
    origin=published reads Bowman's files, as Ordered Memory published them. origin=generated draws n_pairs pairs by the
    same rules, removes repetitions within a bin, and takes the first 85 % of each bin for training: the sizes come out
    close to the published ones, the rows are others.
    Tokens: words; source `left #SEP# right`, fully bracketed; target one symbol of = < > ^ | v #.
    Metric: exact match, which with one symbol is accuracy; by bin. Bins 7-12 measure generalisation to longer formulas;
    the most frequent label (#) alone gives about 51 % in 7-11 and 48 % in 12.
    Selection: dev, bins 0-6. Nothing is selected on the longer bins.
    Departures: none known with held_out=none (Tan et al. 2023 write one symbol, too); of A, B and C see above.
    """

    config: LogicalInferenceConfig
    missing = ("test_removed", "task.held_out=none removes no rows: set it to A, B or C")
    metrics = ("exact_match",)
    by = ("bin",)

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the published files of bins 0-6 for training and 0-12 for testing; none where they are generated."""
        return tuple(_FILES.values()) if self.config.origin == "published" else ()

    def splits(self) -> tuple[str, ...]:
        """Return train, dev and test, and test_removed where a pattern is held out."""
        extra = () if self.config.held_out == "none" else ("test_removed",)
        return ("train", "dev", "test", *extra)

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the published rows, train with the tenth that is dev here."""
        if self.config.held_out != "none":
            return {}
        last = {"train": self.config.max_operators, "test": self.config.max_test_operators}
        bins = {part: _PUBLISHED[part][: bin_index + 1] for part, bin_index in last.items()}
        return {part: sum(n for n, _, _ in of_part) for part, of_part in bins.items()}

    def _examples(self, split: str) -> Iterator[Example]:
        held_out = self.config.held_out
        rows = self._rows("test" if split == "test" else "train")
        if split in ("test", "test_removed"):
            yield from (row for row in rows if held_out == "none" or held_out in str(row.columns["patterns"]))
        else:
            kept = (row for row in rows if held_out not in str(row.columns["patterns"]))
            for number, row in enumerate(kept, start=1):
                is_wanted = int(str(row.columns["bin"])) <= self.config.max_operators
                if is_wanted and (number % _DEV_EVERY == 0) == (split == "dev"):
                    yield row

    def _rows(self, part: Literal["train", "test"]) -> Iterator[Example]:
        last = _LAST_TRAINED if part == "train" else self.config.max_test_operators
        for bin_index in range(last + 1):
            if self.config.origin == "published":
                yield from (_example(pair, bin_index) for pair in self._read(_FILES[f"{part}{bin_index}"]))
            else:
                pairs = self._drawn_bins[bin_index]
                n_train = int(_TRAIN_SHARE * len(pairs))
                chosen = islice(pairs, n_train) if part == "train" else islice(pairs, n_train, None)
                yield from (_example(pair, bin_index) for pair in chosen)

    def _read(self, file: RemoteFile) -> Iterator[Pair]:
        for path, number, line in self._published(file):
            cells = line.split("\t")
            if len(cells) != 3 or len(cells[0]) != 1 or cells[0] not in RELATIONS:
                raise bad_line(
                    path, number, f"expected one of {' '.join(RELATIONS)}, a tab, a formula, a tab, a formula"
                )
            yield Pair(cells[1], cells[2], cells[0])

    @cached_property
    def _drawn_bins(self) -> list[list[Pair]]:
        """The generated pairs by bin; drawn once, because that takes some seconds."""
        return into_bins(islice(draw_pairs(Random(self.config.seed)), self.config.n_pairs))


def into_bins(pairs: Iterable[Pair]) -> list[list[Pair]]:
    """Return the pairs of bins 0-12 by their number of operators, in their order, without repetitions."""
    bins: list[dict[Pair, None]] = [{} for _ in range(_LAST_BIN + 1)]
    for pair in pairs:
        bins[min(pair.n_ops, _LAST_BIN)].setdefault(pair)
    return [list(pairs_of) for pairs_of in bins]


def _example(pair: Pair, bin_index: int) -> Example:
    found = "".join(
        name for name, pattern in PATTERNS.items() if pattern.search(pair.left) or pattern.search(pair.right)
    )
    columns = {"bin": bin_index, "n_ops": pair.n_ops, "patterns": found}
    return Example(f"{pair.left} {SEPARATOR} {pair.right}", pair.relation, columns)
