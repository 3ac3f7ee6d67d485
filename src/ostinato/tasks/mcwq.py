"""MCWQ: CFQ's questions with SPARQL queries on Wikidata, in four languages (Cui et al. 2022, arXiv 2108.03509)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ostinato.data.example import Example
from ostinato.data.lines import bad_line
from ostinato.data.registry import RemoteFile
from ostinato.tasks.base import Task, TaskConfig
from ostinato.tasks.sparql import simplify

_SIZES = {
    "mcd1": {"train": 57190, "dev": 5408, "test": 5310},
    "mcd2": {"train": 54713, "dev": 5929, "test": 5891},
    "mcd3": {"train": 54927, "dev": 6034, "test": 6151},
}
_HASHES: dict[str, tuple[int, str]] = {
    "mcd1/dev.en": (1057687, "94ea6c55dbebcc9d194616df430b6d522f088101122b5083851688fe58cd87b0"),
    "mcd1/dev.he": (1129756, "f8a984c4fd783d0d9a05645fa8db14739d14dc1750ff1c90e4f2f81a101f98ce"),
    "mcd1/dev.kn": (1623385, "d7b614efff8aa606e8b7b29cc8bf463e5a7143d555cfda04a07fe2c5bf790563"),
    "mcd1/dev.zh": (1028450, "001dc2a8d3d3b950799766a7b2bf419abd1ca2731be4c2c2bb3bdea6fa0188ce"),
    "mcd1/test.en": (1042279, "00bca38c6ec05399035e7a3dd85d9b64ee8502ddd67dc66bd37462992e309c31"),
    "mcd1/test.he": (1112928, "abf63e4d3f5080c06d53557e9d3bb61bba73d5467e765e4ca22bc0bd34039ac9"),
    "mcd1/test.kn": (1602920, "f0cbf49d792c4a6fd64c0aa2bc99e10d5ebc64dbc4a90b397a4b0e1ef723e81e"),
    "mcd1/test.zh": (1013399, "8728e8dce3b8b2d8037526b6bc0413713e62e0777c119e6c2995ae138a94b4dc"),
    "mcd2/dev.en": (1095574, "a782a4ba1e2aa2bbd5de016e2cad2aac70e0c9362de4c5383b85459201f22b3b"),
    "mcd2/dev.he": (1177902, "2d4e330624169ed89ecf98bccb3a679c960d8a8a5508e29ea11de37af6a98aa0"),
    "mcd2/dev.kn": (1714341, "ba5ea8549bfdc199fc656f0920f6ff51d6285351fa0a38b582f3d9a228b556c6"),
    "mcd2/dev.zh": (1070510, "d8d8a257f5dfde6726067e9fde84390db9645c8cfe39c803674706881e936cb9"),
    "mcd2/test.en": (1091829, "5939afdb71a2c5a404513aee0b265389bf61c9f6e5a7c2d67bd319007586588a"),
    "mcd2/test.he": (1173279, "d1f9cddc59d860fe8753877c8be3be4c71fb39362ea0499a9a164ba8b9545a73"),
    "mcd2/test.kn": (1712928, "0bc83b16c32d542b54565158cfdb451a730f2d8dc1faba3c744ee516dfdc9eef"),
    "mcd2/test.zh": (1066848, "b56ce9edcf57bfa5d7884d505fe5b685d15812424e6126b1bf5db7520bf53b97"),
    "mcd3/dev.en": (1115221, "43b1d5041f275b44c83f5a1cb841484c3cfe9a6213647ebc3c6b8ff9bac71dee"),
    "mcd3/dev.he": (1202731, "4f2680ffdafc08f223a8b47cd293f0fa0e4a057139f6c094b1b1aee91acc3397"),
    "mcd3/dev.kn": (1767908, "efb2831a63364bcef03b29e98eaba0d31c8e29e54f5668bb878962b13b6849d8"),
    "mcd3/dev.zh": (1087969, "e1fb03eca5f9e83e06ed4aeb6b88f2326763203e1493da2d7cc6abbae0ebb211"),
    "mcd3/test.en": (1135618, "5a7bb771fcd6073595064c3ed9c64d61b71e526cdf9d6bb383b4b5b8abb291c6"),
    "mcd3/test.he": (1225357, "98b580f8a0acb6db90968ca555ec61027c6d4bc7694525c257941192bb1bdbfe"),
    "mcd3/test.kn": (1795572, "6ab0f6ce8e7134430055a828757b838ef049e0a5c466fb01b913c686176520df"),
    "mcd3/test.zh": (1107380, "d41fdd68da7009da599d34ac19a214fd16df6729abf45a51271a5fbcc5723028"),
}
"""Bytes and SHA-256 of the dev and test files. The training files could not be downloaded when this was written."""
_PARTS = ("train", "dev", "test")


def _remote(split: str, part: str, language: str) -> RemoteFile:
    n_bytes, sha256 = _HASHES.get(f"{split}/{part}.{language}", (None, None))
    # Whether a training file in another language has as many rows as the English one has not been checked.
    n_rows = None if part == "train" and language != "en" else _SIZES.get(split, {}).get(part)
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
    """Of the questions: English, Hebrew, Kannada, Chinese. The hashes of dev and test files are known."""
    target_form: Literal["published", "simplified"] = "published"
    """simplified: clauses that share their parts in one, everything in alphabetical order."""


class McwqTask(Task):
    """MCWQ: questions with masked entities and their SPARQL queries on Wikidata; three splits as in CFQ, one at random.

    Splits: mcd1 57,190 train, 5,408 dev, 5,310 test; mcd2 54,713, 5,929, 5,891; mcd3 54,927, 6,034, 6,151: compounds of
    train and test differ as much as possible. random: drawn alike; sizes and hashes of its files are not known here.
    Questions in English, or translated into Hebrew, Kannada or Chinese, where 134 to 209 rows of a dev or test file
    repeat an earlier question, some of them with another query.
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
        return dict(_SIZES.get(self.config.split, {}))

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
