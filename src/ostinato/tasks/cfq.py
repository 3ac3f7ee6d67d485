"""CFQ: questions and their SPARQL queries on Freebase (Keysers et al. 2020, arXiv 1912.09713)."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO, Literal

from ostinato.data.disk import reading, refetch_hint
from ostinato.data.example import Example
from ostinato.data.registry import RemoteFile, open_member, read_split_numbers
from ostinato.errors import DataError
from ostinato.tasks.base import Task, TaskConfig
from ostinato.tasks.sparql import simplify, tokenise

_ARCHIVE = RemoteFile(
    repo="google-research/google-research",
    commit="1c1f5b9a835e8475e3562a50354fc2641a9ee9c8",
    path="cfq1.1.tar.gz",
    sha256=None,
    n_bytes=None,
    n_rows=239_357,
    licence="CC BY 4.0",
    url="https://storage.googleapis.com/cfq_dataset/cfq1.1.tar.gz",
)
_SIZES = {"train": 95_743, "dev": 11_968, "test": 11_968}
_QUESTION, _QUERY = "questionPatternModEntities", "sparqlPatternModEntities"
_FIELD = re.compile(rb'"(questionPatternModEntities|sparqlPatternModEntities)"\s*:\s*("(?:[^"\\]|\\.)*")')
_CHUNK = 1 << 22


class CfqConfig(TaskConfig):
    """Settings of CFQ."""

    kind: Literal["cfq"] = "cfq"
    split: Literal["mcd1", "mcd2", "mcd3", "random"] = "mcd1"
    """The published split."""
    target_form: Literal["published", "simplified"] = "published"
    """simplified: clauses that share their parts in one, everything in alphabetical order; on mcd2 and mcd3 ten inverse
    predicates are turned first, and which ten is a guess."""


class CfqTask(Task):
    """CFQ: questions with masked entities and their SPARQL queries; splits of maximum compound divergence.

    Splits: mcd1, mcd2, mcd3, as published with 95,743 train, 11,968 dev and 11,968 test each, and random. Train and
    test have the same atoms, and compounds that differ as much as possible.
    The archive could not be had when its address was written down: its hash is not known, sizes and the 239,357
    questions are checked. A copy of yours lies below a mirror as storage.googleapis.com/cfq_dataset/cfq1.1.tar.gz.
    Targets: target_form=published is the query with `ns:` dropped and `m.` written `m_`. simplified (Zheng and Lapata
    2022, used by Tan et al. 2023) writes clauses together and sorts them, and for mcd2 and mcd3 turns ten inverse
    predicates first, see `ostinato.tasks.sparql`. The scores of the two are not comparable.
    Tokens: words; blanks stand round the punctuation of a question.
    Metric: exact match of the query, free running; clauses in another order count as wrong. With target_form=simplified
    on mcd2 and mcd3 ten inverse predicates are turned, and which ten is a guess: the paper names none. Such a score
    compares with published ones only as far as the guess is right; on mcd1 nothing is turned.
    Selection: dev, which is drawn like test: choosing on it uses the kind of generalisation that the test asks for, as
    the papers do.
    Departures: Tan et al. 2023 choose on MCD1's dev for all splits; here every split has its own.
    """

    config: CfqConfig

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the published archive."""
        return (_ARCHIVE,)

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the splits of maximum compound divergence."""
        return {} if self.config.split == "random" else dict(_SIZES)

    def _examples(self, split: str) -> Iterator[Example]:
        turn_inverses = self.config.split in ("mcd2", "mcd3")
        for number in self._numbers[split]:
            question, query = self._pairs[number]
            if self.config.target_form == "simplified":
                try:
                    query = simplify(query, turn_inverses=turn_inverses)
                except ValueError as error:
                    raise DataError(f"{_ARCHIVE.path}: question {number}: {error}") from error
            yield Example(question, query, {"id": number})

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        name = "random_split" if self.config.split == "random" else self.config.split
        path = self.access.fetch(_ARCHIVE)
        found = read_split_numbers(path, f"splits/{name}.json", _SIZES)
        sizes = {split: len(numbers) for split, numbers in found.items()}
        if self.config.split != "random" and sizes != _SIZES:
            raise DataError(f"{path}: {name} has {sizes} questions, but {_SIZES} were published")
        return found

    @cached_property
    def _pairs(self) -> dict[int, tuple[str, str]]:
        """Questions and queries of this split by their number; the archive is read once, because that is slow."""
        wanted = {number for numbers in self._numbers.values() for number in numbers}
        path = self.access.fetch(_ARCHIVE)
        found: dict[int, tuple[str, str]] = {}
        number = -1
        with open_member(path, "dataset.json") as stream:
            for number, (question, query) in enumerate(read_pairs(stream, path)):
                if number in wanted:
                    found[number] = spaced_punctuation(question), tokenise(query)
        if number + 1 != _ARCHIVE.n_rows:
            raise DataError(f"{path}: {number + 1} questions, but {_ARCHIVE.n_rows} were published{refetch_hint(path)}")
        return found


def read_pairs(stream: IO[bytes], path: Path) -> Iterator[tuple[str, str]]:
    """Yield question and query of every record of the data set, which is read in chunks to save memory.

    Raises:
        DataError: a record lacks one of the two.
    """
    # The two fields of a record stand in any order; a field that a chunk cuts is read with the next chunk.
    record: dict[str, str] = {}
    rest = b""
    while chunk := stream.read(_CHUNK):
        buffer, end = rest + chunk, 0
        for match in _FIELD.finditer(buffer):
            end, name = match.end(), match[1].decode()
            if name in record:
                raise DataError(f"{path}: two fields {name} in a row: a record lacks the question or the query")
            with reading(path, DataError, refetch_hint(path)):
                record[name] = str(json.loads(match[2]))
            if len(record) == 2:
                yield record[_QUESTION], record[_QUERY]
                record = {}
        rest = buffer[end:]
    if record:
        raise DataError(f"{path}: the last record lacks the question or the query")


def spaced_punctuation(text: str) -> str:
    """Return a text with blanks round every punctuation mark."""
    return " ".join("".join(f" {c} " if c in string.punctuation else c for c in text).split())
