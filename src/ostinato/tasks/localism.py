"""Localism (Hupkes et al. 2020, arXiv 1908.08351): does a model answer as it does when it is led step by step?

A file of problems has lines `unrolled TAB source TAB target`, one for every function, smallest parts first, and then a
line `original` with the whole sequence. `*k` as a target names the model's own output, which is put where `*k` stands
in a later source. The last unrolled output is compared with the one for the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ostinato.data.lines import bad_line, read_lines
from ostinato.data.registry import DataAccess, RemoteFile
from ostinato.metrics.matching import consistency

LOCALISM_FILE = RemoteFile(
    repo="i-machine-think/am-i-compositional",
    commit="4f75bdd78889150dd78e90bbb7ddec840204c159",
    path="data/pcfgset/localism/unrolled_test.tsv",
    sha256=None,
    n_bytes=3_149_699,
    n_rows=59_177,
    licence="MIT",
)
_COLUMNS = 3

Answer = Callable[[list[str]], Sequence[str]]
"""Gives a model's outputs for sources."""


@dataclass(frozen=True, slots=True)
class Item:
    """The steps of a problem, (source, target) each, and the whole sequence with its published result."""

    steps: tuple[tuple[str, str], ...]
    source: str
    target: str


def read_items(access: DataAccess | None = None) -> Iterator[Item]:
    """Yield the published problems, 9,567 of them.

    Raises:
        DataError: the file cannot be had or read.
    """
    path = (access or DataAccess.default()).fetch(LOCALISM_FILE)
    steps: list[tuple[str, str]] = []
    for number, line in read_lines(path):
        cells = [cell.strip() for cell in line.split("\t")]
        if len(cells) != _COLUMNS or cells[0] not in ("unrolled", "original"):
            raise bad_line(path, number, "expected 'unrolled' or 'original', a source and a target between tabs")
        label, source, target = cells
        if label == "unrolled":
            steps.append((source, target))
            continue
        yield Item(tuple(steps), source, target)
        steps = []


def measure_localism(items: Iterable[Item], answer: Answer) -> float:
    """Return the consistency of stepwise and direct answers; problems advance side by side, one step at a time.

    Raises:
        DataError: there are no problems.
    """
    asked = list(items)
    outputs: list[dict[str, str]] = [{} for _ in asked]
    last = [""] * len(asked)
    for step in range(max((len(item.steps) for item in asked), default=0)):
        open_ones = [i for i, item in enumerate(asked) if step < len(item.steps)]
        sources = [_filled(asked[i].steps[step][0], outputs[i]) for i in open_ones]
        for i, output in zip(open_ones, answer(sources), strict=True):
            outputs[i][asked[i].steps[step][1]] = last[i] = output
    return consistency(last, answer([item.source for item in asked]))


def _filled(source: str, outputs: dict[str, str]) -> str:
    """Put outputs where their placeholders stand."""
    return " ".join(outputs.get(token, token) for token in source.split())
