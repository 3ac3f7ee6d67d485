"""Studies of depth by token: by metadata column, and one example's halting map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.analysis.arrays import Floats
from ostinato.analysis.canvas import COLOURS
from ostinato.analysis.collectors import DepthByColumn, OneExample, StackExample
from ostinato.analysis.drawing import MAP, finish, heat, panels, scale, ticks, whole_numbers
from ostinato.analysis.halting import halting_map, ponder_times
from ostinato.analysis.studies.base import EachRun, Finding, OnProgress, Subject, natural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_VALUES = 16


def _no_halting(subject: Subject) -> str | None:
    return None if subject.model.halting_thresholds() else "no token of its model can halt"


class Depth(EachRun):
    """Mean executed rounds by column, and their histogram."""

    name = "depth"
    title = "Depth by token"
    reading = (
        "First how many tokens took part in how many rounds; then, for every column of the data, the mean number of "
        "rounds by its value, and the histogram of every value as a column (bright: many tokens): values that need "
        "more depth stand higher."
    )
    needs = (DepthByColumn,)

    def why_not(self, subject: Subject) -> str | None:
        """Say that no token can halt."""
        return _no_halting(subject)

    def of_run(self, subject: Subject, on_progress: OnProgress) -> Finding:
        """Return depths of all tokens and by column."""
        found: DepthByColumn = subject.collected[DepthByColumn]
        halting = set(subject.model.halting_thresholds())
        overall = {name: numbers for name, numbers in found.overall.compute().items() if name in halting}
        by = {
            column: {value: totals.compute() for value, totals in sorted(values.items(), key=lambda kv: natural(kv[0]))}
            for column, values in found.by.items()
        }
        by = {column: dict(list(values.items())[:_MOST_VALUES]) for column, values in by.items()}
        rows: list[list[object]] = [
            [stack, "all", "", sum(n["histogram"]), n["mean"], n["expected"]] for stack, n in overall.items()
        ]
        for column, values in by.items():
            for value, stacks in values.items():
                rows += [
                    [name, column, value, sum(n["histogram"]), n["mean"], n["expected"]]
                    for name, n in stacks.items()
                    if name in halting
                ]
        return Finding(
            subject.name,
            ("stack", "column", "value", "tokens", "rounds, mean", "expected depth"),
            rows,
            {"thresholds": subject.model.halting_thresholds(), "overall": overall, "by": by},
            lambda: _draw_depth(overall, by),
        )


def _draw_depth(overall: dict[str, Any], by: dict[str, dict[str, Any]]) -> Figure:
    figure, axes = panels(1 + len(by) * (1 + len(overall)))
    for i, (stack, numbers) in enumerate(overall.items()):
        share = _shares(numbers)
        at = np.arange(1, len(share) + 1) + (i - (len(overall) - 1) / 2) * 0.8 / len(overall)
        axes[0].bar(at, share, 0.8 / len(overall), color=COLOURS[i], label=stack)
    whole_numbers(axes[0])
    finish(axes[0], "rounds executed", "tokens, %", "all tokens")
    rest = iter(axes[1:])
    for column, values in by.items():
        panel = next(rest)
        for i, stack in enumerate(overall):
            means = [numbers[stack]["mean"] if stack in numbers else np.nan for numbers in values.values()]
            at = np.arange(len(means)) + (i - (len(overall) - 1) / 2) * 0.8 / len(overall)
            panel.bar(at, means, 0.8 / len(overall), color=COLOURS[i], label=stack)
        ticks(panel, x=list(values))
        finish(panel, column, "rounds executed, mean", f"mean by {column}", legend=False)
        for stack in overall:
            _histograms(next(rest), stack, column, {v: found[stack] for v, found in values.items() if stack in found})
    return figure


def _histograms(axes: Axes, stack: str, column: str, values: dict[str, Any]) -> None:
    """Draw the histogram of every value of a column as a column of a matrix."""
    shares_RV = np.array([_shares(numbers) for numbers in values.values()]).T
    axes.imshow(shares_RV, aspect="auto", interpolation="nearest", cmap=MAP, vmin=0, origin="lower")
    scale([axes], "tokens, %")
    rounds = range(0, len(shares_RV), max(len(shares_RV) // 8, 1))
    axes.set_yticks(rounds, [str(r + 1) for r in rounds], fontsize=7)
    ticks(axes, x=list(values))
    axes.set_xlabel(column)
    axes.set_ylabel("rounds executed")
    axes.set_title(f"{stack}: histogram by {column}", fontsize=9)


def _shares(numbers: dict[str, Any]) -> Floats:
    shares: Floats = 100 * np.array(numbers["histogram"]) / max(sum(numbers["histogram"]), 1)
    return shares


class HaltingMap(EachRun):
    """Which tokens of one example go on, and with what mass."""

    name = "halting-map"
    title = "Halting map of one example"
    reading = (
        "Columns are tokens, rows rounds from the first (top): bright where much of a token's mass is left "
        "before the round, dark where it has halted; the bars count the rounds each token took part in (ponder time)."
    )
    needs = (OneExample,)

    def why_not(self, subject: Subject) -> str | None:
        """Say that no token can halt."""
        return _no_halting(subject)

    def of_run(self, subject: Subject, on_progress: OnProgress) -> Finding:
        """Return maps and ponder times of one example, by stack."""
        example: OneExample = subject.collected[OneExample]
        maps = {name: _map(subject, name, stack) for name, stack in example.stacks.items()}
        found = {name: one for name, one in maps.items() if one is not None}
        rows: list[list[object]] = [
            [name, i, text, int(ponder)]
            for name, (_, times, texts) in found.items()
            for i, (text, ponder) in enumerate(zip(texts, times.tolist(), strict=True))
        ]
        data = {name: {"tokens": texts, "ponder_times": times.tolist()} for name, (_, times, texts) in found.items()}
        return Finding(
            subject.name,
            ("stack", "position", "token", "rounds"),
            rows,
            {"example": subject.shown(), "stacks": data},
            lambda: _draw_maps(found),
            {f"{name}_map_TR": map_TR for name, (map_TR, _, _) in found.items()},
            f"Example {subject.shown() + 1:,} of the {len(subject.examples):,}, the one of middle length.",
        )


_Map = tuple[Any, Any, list[str]]


def _map(subject: Subject, name: str, stack: StackExample) -> _Map | None:
    if stack.remaining_TR is None or stack.executed_TR is None:
        return None
    texts = [subject.text(name, token) for token in stack.ids_T]
    return halting_map(stack.remaining_TR, stack.executed_TR), ponder_times(stack.executed_TR), texts


def _draw_maps(found: dict[str, _Map]) -> Figure:
    longest = max(len(texts) for _, _, texts in found.values())
    figure, axes = panels(2 * len(found), width=min(2.5 + 0.22 * longest, 9.0), height=2.4, columns=1)
    for (name, (map_TR, times, texts)), panel, bars in zip(found.items(), axes[::2], axes[1::2], strict=True):
        heat(panel, map_TR.T, "mass left", vmin=0, vmax=1)
        panel.set_yticks(range(map_TR.shape[1]), [str(r + 1) for r in range(map_TR.shape[1])], fontsize=7)
        ticks(panel, x=texts)
        panel.set_xlabel("token")
        panel.set_ylabel("round")
        panel.set_title(name, fontsize=9)
        _bars(bars, times, texts)
    return figure


def _bars(axes: Axes, times: Any, texts: list[str]) -> None:
    axes.bar(range(len(texts)), times, color=COLOURS[0])
    axes.margins(x=0.01)
    axes.locator_params(axis="y", integer=True, nbins=6)
    ticks(axes, x=texts)
    finish(axes, "token", "rounds")


DEPTH, HALTING_MAP = Depth(), HaltingMap()
