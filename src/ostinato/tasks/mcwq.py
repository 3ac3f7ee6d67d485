"""MCWQ: CFQ's questions with SPARQL queries on Wikidata, in four languages (Cui et al. 2022, arXiv 2108.03509)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile
from ostinato.tasks.base import Task, TaskConfig
from ostinato.tasks.sparql import simplify

_PUBLISHED: dict[str, tuple[int, int | None, str | None]] = {
    "mcd1/train": (57190, None, None),
    "mcd1/dev": (5408, 1057687, "94ea6c55dbebcc9d194616df430b6d522f088101122b5083851688fe58cd87b0"),
    "mcd1/test": (5310, 1042279, "00bca38c6ec05399035e7a3dd85d9b64ee8502ddd67dc66bd37462992e309c31"),
    "mcd2/train": (54713, None, None),
    "mcd2/dev": (5929, 1095574, "a782a4ba1e2aa2bbd5de016e2cad2aac70e0c9362de4c5383b85459201f22b3b"),
    "mcd2/test": (5891, 1091829, "5939afdb71a2c5a404513aee0b265389bf61c9f6e5a7c2d67bd319007586588a"),
    "mcd3/train": (54927, None, None),
    "mcd3/dev": (6034, 1115221, "43b1d5041f275b44c83f5a1cb841484c3cfe9a6213647ebc3c6b8ff9bac71dee"),
    "mcd3/test": (6151, 1135618, "5a7bb771fcd6073595064c3ed9c64d61b71e526cdf9d6bb383b4b5b8abb291c6"),
}
"""Rows, bytes and SHA-256 of the English files. The training files could not be downloaded when this was written.

The hashes are of the rows written again in the published layout; sizes, where they could be compared (three of six),
and last rows are those of the published files.
"""
_PARTS = ("train", "dev", "test")


def _remote(split: str, part: str, language: str) -> RemoteFile:
    known = _PUBLISHED.get(f"{split}/{part}") if language == "en" else None
    n_rows, n_bytes, sha256 = known or (None, None, None)
    folder = "random_split" if split == "random" else split
    return RemoteFile(
        repo="coastalcph/seq2sparql",
        commit="7f9d6e64109f7a600539d2186b33b06d7d80abd3",
        path=f"mcwq/official/{folder}/{part}.{language}.txt",
        sha256=sha256,
        n_bytes=n_bytes,
        n_rows=n_rows,
        licence="CC BY 4.0",
    )


class McwqConfig(TaskConfig):
    """Settings of MCWQ."""

    kind: Literal["mcwq"] = "mcwq"
    split: Literal["mcd1", "mcd2", "mcd3", "random"] = "mcd1"
    """The published split."""
    language: Literal["en", "he", "kn", "zh"] = "en"
    """Of the questions: English, Hebrew, Kannada, Chinese. The hashes of English dev and test files alone are known."""
    target_form: Literal["published", "simplified"] = "published"
    """simplified: clauses that share their parts in one, everything in alphabetical order."""


class McwqTask(Task):
    """MCWQ: questions with masked entities and their SPARQL queries on Wikidata; three splits as in CFQ, one at random.

    Splits: mcd1 57,190 train, 5,408 dev, 5,310 test; mcd2 54,713, 5,929, 5,891; mcd3 54,927, 6,034, 6,151: compounds of
    train and test differ as much as possible. random: drawn alike; sizes and hashes of its files are not known here.
    Questions in English, or translated into Hebrew, Kannada or Chinese.
    Targets: target_form=published is the query as it is. simplified writes clauses together and sorts them, see
    `ostinato.tasks.sparql`; this is CFQ's short form, not the one of MCWQ's authors, which has brackets.
    Tokens: words.
    Metric: exact match of the query, free running; clauses in another order count as wrong.
    Selection: dev, which is drawn like test: choosing on it uses the kind of generalisation the test asks for.
    Departures: only the published targets compare with published scores; the authors also shorten theirs, otherwise.
    """

    config: McwqConfig

    def files(self) -> tuple[RemoteFile, ...]:
        """Return the three files of the split in the language."""
        return tuple(_remote(self.config.split, part, self.config.language) for part in _PARTS)

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of the split."""
        rows = {part: _remote(self.config.split, part, "en").n_rows for part in _PARTS}
        return {part: n for part, n in rows.items() if n is not None}

    def _examples(self, split: str) -> Iterator[Example]:
        file = _remote(self.config.split, split, self.config.language)
        for path, number, line in self._published(file):
            question, separator, query = line.removeprefix("IN:").partition(" OUT:")
            if not separator or not line.startswith("IN:"):
                raise bad_line(path, number, "expected 'IN: question OUT: query'")
            target = " ".join(query.split())
            if self.config.target_form == "simplified":
                try:
                    target = simplify(target)
                except ValueError as error:
                    raise bad_line(path, number, str(error)) from error
            yield Example(" ".join(question.split()), target, {})
