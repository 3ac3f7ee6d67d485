"""GeoQuery: questions on the geography of the United States and their FunQL queries (Zelle and Mooney 1996)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, get_args

from ostinato.config.base import Count
from ostinato.data.disk import read_json_object, reading, refetch_hint
from ostinato.data.example import Example
from ostinato.data.registry import RemoteFile
from ostinato.errors import DataError
from ostinato.tasks.base import Only, Share, Task, TaskConfig, first_hashed
from ostinato.tasks.funql import anonymise, clean_query, clean_question, normalise, spaced

_CORPUS = RemoteFile(
    repo="tomsherborne/geoquery-src",
    commit="0f1602984bd1f2183d201d101563d49df5d2d802",
    path="data/geoquery_multilingual_augmented.json",
    sha256="cd51b93576dcf0bd96d66a1dc5bd4f8477a3b6f49c155f2f133c3c519cc70653",
    n_bytes=3_587_667,
    n_rows=880,
    licence="GPL-2.0",
)
_Shaw = Literal["standard", "nqg_length", "nqg_template", "nqg_tmcd"]
_Qiu = Literal["length", "template_1", "template_2", "template_3", "tmcd_1", "tmcd_2", "tmcd_3"]
Split = Literal[_Shaw, _Qiu]
_SPLITS: dict[str, tuple[str, tuple[int, ...], str]] = {
    "standard": ("standard", (600, 280), "e05d48357694bfa7ce9b9257cc05aa413dc843b483af8b1a462f30cbebe8fbc8"),
    "nqg_length": ("length_1", (440, 440), "7908c912927f20f692c3edb102d6bc944652d0345a2f51682f3b7ed703973be4"),
    "nqg_template": ("template_1", (441, 439), "7549bcc721ac8102de5a513baab5d3d4f438033a552328ddfe7c0284929ab9e0"),
    "nqg_tmcd": ("tmcd_1", (440, 440), "49f83b36d7b9c468b3a98c52356e9d8b337d40c420e982e1e1db40abedea7a9e"),
    "length": ("length", (440, 110, 330), "bfe1ea81769f9f8c424a77e907b6e57b0dfae66482b97a73301f51dc3e07a3b4"),
    "template_1": ("template_1", (438, 110, 332), "754c79278ce1beeeab03f6e627e425fe7f1d8977a1f55edaff67396ae4adb795"),
    "template_2": ("template_2", (439, 110, 331), "37718b1315afc1aaed9e272f4eae3ff53ee309de29aad02197bed65d9ad999f4"),
    "template_3": ("template_3", (440, 110, 330), "ff066cefe85c6d8b08771764650c500ca8b467a5011ba551cab666632d52d8f6"),
    "tmcd_1": ("tmcd_1", (440, 110, 330), "ca1612c00ab8de1ea62a5b18bd54dff8255bfb35e33c7c65fd681593fc083955"),
    "tmcd_2": ("tmcd_2", (440, 110, 330), "d334725fce0c014551fe47d8d708f266bd6987279f30c99b1ca336413a863b27"),
    "tmcd_3": ("tmcd_3", (440, 110, 330), "49793305f646a1cd9993f65e91cdd53292219d4e3285dc6db598093a4049bec6"),
}
"""Name, sizes and SHA-256 of the list of rows that makes up every split; three sizes where a dev set is published."""


def _list_of(split: str) -> RemoteFile:
    name, sizes, sha256 = _SPLITS[split]
    library, n_bytes = ("csl", 7861) if len(sizes) == 3 else ("nqg", 7846)
    return RemoteFile(
        repo="google-research/language",
        commit="865fae65f63ef7e6b2989d4ff8b47f61750415a8",
        path=f"language/compgen/{library}/tasks/geoquery/splits/{name}.json",
        sha256=sha256,
        n_bytes=n_bytes,
        n_rows=_CORPUS.n_rows,
        licence="Apache-2.0",
    )


class GeoQueryConfig(TaskConfig):
    """Settings of GeoQuery."""

    only: ClassVar[tuple[Only, ...]] = (
        Only(("dev_fraction", "dev_seed"), "split", get_args(_Shaw)),
        Only(("dev_seed",), "dev_fraction", but=(0,)),
    )
    kind: Literal["geoquery"] = "geoquery"
    split: Split = "standard"
    """standard and nqg_*: Shaw et al. 2021. length, template_1-3 and tmcd_1-3: Qiu et al. 2022, with a dev set."""
    dev_fraction: Share = 0.1
    """standard, nqg_*: share of the training rows that becomes `dev`; 0: train whole, no dev."""
    dev_seed: Count = 0
    """Of the choice of dev."""


class GeoQueryTask(Task):
    """GeoQuery: 880 questions on US geography and their FunQL queries; random, length, template and TMCD splits.

    Splits: standard 600 / 280 (by question, not compositional); nqg_length 440 / 440, nqg_template 441 / 439, nqg_tmcd
    440 / 440 (Shaw et al. 2021), and length, template_1-3, tmcd_1-3 of about 440 / 110 / 330 with a dev set (Qiu et al.
    2022). Length: the test's questions are longer than any in training; template: no query's shape is in both; TMCD:
    the compounds of train and test diverge as far as possible.
    Data: questions in lower case without last punctuation; queries in normal form, see `ostinato.tasks.funql`; places
    that a question names are m0 and m1 on both sides.
    So made alike, questions repeat: 99 of the 280 of the standard test set are in training, and of dev sets that are
    cut from training 17 of 60 (standard) and 26 of 44 (nqg_length).
    Tokens: words; brackets, commas and names of the query are separate. Test questions have words that training lacks
    (23 of 280 in standard, 62 of 330 in tmcd_1), which the named recipes read as unknown.
    Metric: exact match of the query, free running. No query is run: answers are not compared.
    Selection: dev; where there is none, a seeded share of the training rows (`dev_fraction`), taken out of train, which
    says nothing of the generalisation the test asks for.
    Departures: the papers train a fixed number of updates on all training rows, without a dev set.
    """

    config: GeoQueryConfig
    missing = ("dev", "this split has no dev set: task.dev_fraction above 0 cuts one from train")

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the corpus and the list of rows of the split."""
        return _CORPUS, _list_of(self.config.split)

    def splits(self) -> tuple[str, ...]:
        """Return train, dev (unless it would have to be cut from train and dev_fraction is 0) and test."""
        has_dev = self._has_published_dev or self.config.dev_fraction > 0
        return ("train", "dev", "test") if has_dev else ("train", "test")

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the split; train with the dev set that is cut from it where none is published."""
        parts = ("train", "dev", "test") if self._has_published_dev else ("train", "test")
        return dict(zip(parts, _SPLITS[self.config.split][1], strict=True))

    @property
    def _has_published_dev(self) -> bool:
        return len(_SPLITS[self.config.split][1]) == 3

    def _examples(self, split: str) -> Iterator[Example]:
        for number in self._numbers[split]:
            yield self._rows[number]

    @cached_property
    def _numbers(self) -> dict[str, list[int]]:
        path = self.access.fetch(_list_of(self.config.split))
        parts = ("train", "dev", "test") if self._has_published_dev else ("train", "test")
        with reading(path, DataError, refetch_hint(path)):
            record = read_json_object(path, DataError, refetch_hint(path))
            found = {part: [int(number) for number in record[part]] for part in parts}
        if not self._has_published_dev and self.config.dev_fraction > 0:
            dev = first_hashed(found["train"], self.config.dev_fraction, self.config.dev_seed)
            found["dev"] = [number for number in found["train"] if number in dev]
            found["train"] = [number for number in found["train"] if number not in dev]
        return found

    @cached_property
    def _rows(self) -> list[Example]:
        path = self.access.fetch(_CORPUS)
        with reading(path, DataError, refetch_hint(path)):
            return self._read_rows(path)

    def _read_rows(self, path: Path) -> list[Example]:
        records = read_json_object(path, DataError, refetch_hint(path))["examples"]["example"]
        if len(records) != _CORPUS.n_rows:
            raise DataError(f"{path}: {len(records)} questions, but {_CORPUS.n_rows} were published")
        examples = []
        for number, record in enumerate(records):
            question, query = clean_question(record["nl"]["en"]), clean_query(record["mrl"]["geo-funql"])
            try:
                source, target = anonymise(question, normalise(query))
            except ValueError as error:
                raise DataError(f"{path}: question {number}: {error}") from error
            examples.append(Example(source, spaced(target), {"id": number}))
        return examples
