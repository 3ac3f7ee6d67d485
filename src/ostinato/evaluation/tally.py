"""Totals over all examples of an evaluation and by metadata column; memory does not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ostinato.budget import SentenceMacs
from ostinato.data.columns import numeric_order
from ostinato.data.example import Example
from ostinato.errors import DataError
from ostinato.evaluation.depth import DepthTotals
from ostinato.evaluation.passes import SentenceResult
from ostinato.evaluation.predictions import WriteRecord
from ostinato.evaluation.scores import ForcedCounts, Totals, count_failed, macro_means


@dataclass(slots=True)
class _Group:
    """Totals of a group of examples."""

    scores: Totals
    depths: DepthTotals = field(default_factory=DepthTotals)
    macs: SentenceMacs = field(default_factory=lambda: SentenceMacs(0, 0))

    def add(self, found: SentenceResult) -> None:
        """Count one example."""
        self.scores.add(found.scores, found.size)
        self.depths.add(found.depths)
        # Integers: their sum does not depend on the order.
        self.macs = SentenceMacs(self.macs.full + found.macs.full, self.macs.realised + found.macs.realised)

    def compute(self, halting: Collection[str]) -> dict[str, Any]:
        """Return all numbers; `halting`: stacks whose depths are not the same for every token."""
        found = self.scores.compute()
        found["macs"] = {name: total / self.scores.n for name, total in self.macs._asdict().items()}
        depths = {stack: numbers for stack, numbers in self.depths.compute().items() if stack in halting}
        return found | ({"halting": depths} if depths else {})


class Tally:
    """Totals over all examples and by category.

    Args:
        metrics: decoded metrics by name. by: metadata columns, which all examples have (`with_columns`). name: of the
            split, for error messages.
        text_of: from an output's ids and its example to its text.
        predictions: called with a record for every output. each: called with the index and the teacher-forced counts of
            every example.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        by: Sequence[str],
        name: str,
        text_of: Callable[[list[int], Example], str],
        predictions: WriteRecord | None,
        each: Callable[[int, ForcedCounts], None] | None = None,
    ) -> None:
        self.metrics, self.name, self.text_of, self.predictions = metrics, name, text_of, predictions
        self.each = each
        self.total = _Group(Totals(metrics))
        self.groups: dict[str, dict[str, _Group]] = {column: {} for column in by}
        self.n_generated = self.n_unfinished = 0

    def add(self, index: int, example: Example, found: SentenceResult) -> None:
        """Count one example."""
        groups = [self.total, *self._groups_of(example.columns)]
        for group in groups:
            group.add(found)
        if self.each is not None:
            self.each(index, ForcedCounts.of(found.scores, found.size))
        if found.output is None:
            return
        prediction = self.text_of(found.output.ids, example)
        for group in groups:
            group.scores.add_prediction(prediction, example.target, example.source or "")
        self.n_generated += found.output.n_tokens
        self.n_unfinished += not found.output.finished
        if self.predictions is not None:
            self.predictions(
                {
                    "index": index,
                    "source": example.source,
                    "reference": example.target,
                    "prediction": prediction,
                    "score": found.output.score,
                    "finished": found.output.finished,
                    "columns": example.columns,
                }
            )

    def result(self, halting: Collection[str], *, is_decoding: bool) -> dict[str, Any]:
        """Return all numbers.

        Args:
            halting: stacks whose depths are not the same for every token.
            is_decoding: text is written, whose tokens are counted (n_generated, n_unfinished).

        Raises:
            DataError: there were no examples.
        """
        if self.total.scores.n == 0:
            raise DataError(f"{self.name}: there are no examples to evaluate")
        by = {
            column: {value: groups[value].compute(halting) for value in sorted(groups, key=numeric_order)}
            for column, groups in self.groups.items()
        }
        macro = {column: macro_means(groups) for column, groups in by.items()}
        failed = {column: n for column, groups in by.items() if (n := count_failed(groups)) is not None}
        depth = {stack: found["mean"] for stack, found in self.total.depths.compute().items()}
        found = {"name": self.name, **self.total.compute(halting), "by": by, "macro": macro, "depth": depth}
        found |= {"failed": failed} if failed else {}
        decoded = {"n_generated": self.n_generated, "n_unfinished": self.n_unfinished}
        return found | (decoded if is_decoding else {})

    def _groups_of(self, columns: dict[str, object]) -> Iterator[_Group]:
        for column, groups in self.groups.items():
            value = str(columns[column])
            if value not in groups:
                groups[value] = _Group(Totals(self.metrics))
            yield groups[value]
