"""Localism (Hupkes et al. 2020, arXiv 1908.08351): is a model's output for a sequence that of computing it in steps?

A file of problems has lines `unrolled TAB source TAB target`, one for every function, smallest parts first, and then a
line `original` with the whole sequence. A target `*k` names the model's own output, which replaces `*k` in later
sources. The last unrolled output is compared with the output for the original.
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

Predictor = Callable[[list[str]], Sequence[str]]
"""Returns a model's outputs for sources."""


@dataclass(frozen=True, slots=True)
class UnrolledSequence:
    """A sequence with its published result, and the steps that compute it, (source, target) each."""

    steps: tuple[tuple[str, str], ...]
    source: str
    target: str


def read_unrolled(access: DataAccess | None = None) -> Iterator[UnrolledSequence]:
    """Yield the 9,567 published sequences.

    Raises:
        DataError: the file cannot be downloaded or read.
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
        yield UnrolledSequence(tuple(steps), source, target)
        steps = []


def measure_localism(sequences: Iterable[UnrolledSequence], predict: Predictor) -> float:
    """Return the consistency of the outputs in steps and of the whole; all sequences advance one step at a time.

    Raises:
        DataError: there are no sequences.
    """
    sequences = list(sequences)
    outputs: list[dict[str, str]] = [{} for _ in sequences]
    last = [""] * len(sequences)
    for step in range(max((len(sequence.steps) for sequence in sequences), default=0)):
        unfinished = [i for i, sequence in enumerate(sequences) if step < len(sequence.steps)]
        sources = []
        for i in unfinished:
            source, _ = sequences[i].steps[step]
            sources.append(" ".join(outputs[i].get(token, token) for token in source.split()))
        for i, output in zip(unfinished, predict(sources), strict=True):
            _, name = sequences[i].steps[step]
            outputs[i][name] = last[i] = output
    return consistency(last, predict([sequence.source for sequence in sequences]))
