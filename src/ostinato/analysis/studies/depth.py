"""Studies of depth by token: by metadata column, and one example's halting map."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.analysis.arrays import Floats, Ints
from ostinato.analysis.collectors import DepthByColumn, OneExample
from ostinato.analysis.drawing import (
    COLOURS,
    FONT,
    common_legend,
    finish,
    heat,
    name_axes,
    panels,
    ticks,
    whole_numbers,
)
from ostinato.analysis.maps import halting_map, ponder_times
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, natural_order, no_halting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_DRAWN = 16
"""Values of a column in the figure; the data hold all."""


_COLUMNS = ("stack", "column", "value", "tokens", "rounds, mean", "expected depth")


def _depth(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return depths of all tokens and by column."""
    found: DepthByColumn = subject.collected[DepthByColumn]
    halting = subject.model.halting_stacks()
    overall = {name: numbers for name, numbers in found.overall.compute().items() if name in halting}
    by = {
        column: {value: values[value].compute() for value in sorted(values, key=natural_order)}
        for column, values in found.by.items()
    }
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
        _COLUMNS,
        rows,
        {"thresholds": subject.model.halting_thresholds(), "overall": overall, "by": by},
        lambda narrow: _draw_depth(overall, by, narrow),
    )


DEPTH = Study(
    name="depth",
    title="Depth by token",
    reading=(
        "First how many tokens took part in how many rounds; then, for every column of the data, the mean number of "
        "rounds by its value, and the histogram of every value as a column (bright: many tokens): values that need "
        "more depth stand higher."
    ),
    columns=_COLUMNS,
    needs=(DepthByColumn,),
    why_not_model=no_halting,
    of_run=_depth,
)


def _draw_depth(overall: dict[str, Any], by: dict[str, dict[str, Any]], narrow: bool) -> Figure:
    figure, axes = panels(1 + len(by) * (1 + len(overall)), narrow)
    for i, (stack, numbers) in enumerate(overall.items()):
        share = _shares(numbers)
        at = np.arange(1, len(share) + 1) + (i - (len(overall) - 1) / 2) * 0.8 / len(overall)
        axes[0].bar(at, share, 0.8 / len(overall), color=COLOURS[i], label=stack)
    whole_numbers(axes[0])
    finish(axes[0], "rounds executed", "tokens, %", "all tokens")
    rest = iter(axes[1:])
    for column, all_values in by.items():
        values = dict(islice(all_values.items(), _MOST_DRAWN))
        panel = next(rest)
        for i, stack in enumerate(overall):
            means = [numbers[stack]["mean"] if stack in numbers else np.nan for numbers in values.values()]
            at = np.arange(len(means)) + (i - (len(overall) - 1) / 2) * 0.8 / len(overall)
            panel.bar(at, means, 0.8 / len(overall), color=COLOURS[i], label=stack)
        ticks(panel, x=list(values))
        finish(panel, column, "rounds executed, mean", f"mean by {column}")
        for stack in overall:
            _histograms(next(rest), stack, column, {v: found[stack] for v, found in values.items() if stack in found})
    common_legend(figure, axes)
    return figure


def _histograms(axes: Axes, stack: str, column: str, values: dict[str, Any]) -> None:
    """Draw the histogram of every value of a column as a column of a matrix."""
    shares_RV = np.array([_shares(numbers) for numbers in values.values()]).T
    heat(axes, shares_RV, "tokens, %", vmin=0, origin="lower")
    rounds = range(0, len(shares_RV), max(len(shares_RV) // 8, 1))
    axes.set_yticks(rounds, [str(r + 1) for r in rounds], fontsize=FONT)
    ticks(axes, x=list(values))
    name_axes(axes, column, "rounds executed", f"{stack}: histogram by {column}")


def _shares(numbers: dict[str, Any]) -> Floats:
    shares: Floats = 100 * np.array(numbers["histogram"]) / max(sum(numbers["histogram"]), 1)
    return shares


_MAP_COLUMNS = ("stack", "position", "token", "rounds")


def _halting_map(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return maps and ponder times of one example, by stack."""
    example: OneExample = subject.collected[OneExample]
    found: dict[str, _Map] = {}
    for name, stack in example.stacks.items():
        if stack.remaining_TR is not None and stack.executed_TR is not None:
            map_TR = halting_map(stack.remaining_TR, stack.executed_TR)
            texts = [subject.text(name, token) for token in stack.ids_T]
            ran_R = np.flatnonzero(np.asarray(stack.executed_TR).any(0))
            found[name] = map_TR, ponder_times(stack.executed_TR), texts, int(ran_R.max(initial=-1)) + 1
    rows: list[list[object]] = [
        [name, i, text, int(ponder)]
        for name, (_, times, texts, _) in found.items()
        for i, (text, ponder) in enumerate(zip(texts, times.tolist(), strict=True))
    ]
    data = {name: {"tokens": texts, "ponder_times": times.tolist()} for name, (_, times, texts, _) in found.items()}
    return Finding(
        _MAP_COLUMNS,
        rows,
        {"example": subject.shown(), "stacks": data},
        lambda narrow: _draw_maps(found, narrow),
        {f"{name}_map_TR": map_TR for name, (map_TR, *_) in found.items()},
        f"{subject.which()}.{''.join(_not_run(name, map_TR, n_ran) for name, (map_TR, *_, n_ran) in found.items())}",
    )


HALTING_MAP = Study(
    name="halting-map",
    title="Halting map of one example",
    reading=(
        "Columns are tokens, rows rounds from the first (top): bright where much of a token's mass is left "
        "before the round, dark where it has halted; the bars count the rounds each token took part in (ponder time)."
    ),
    columns=_MAP_COLUMNS,
    needs=(OneExample,),
    why_not_model=no_halting,
    of_run=_halting_map,
)


_Map = tuple[Floats, Ints, list[str], int]
"""The halting map of one example in one stack, its ponder times, its tokens as text, and the last round that ran for
any: tokens may be left out of a round and take part in later ones."""


def _not_run(stack: str, map_TR: Floats, n_ran: int) -> str:
    """Say which rounds of a stack ran for no token of the example, and are not drawn."""
    first, last = n_ran + 1, map_TR.shape[1]
    if first > last:
        return ""
    return f" In the {stack} round{f' {first}' if first == last else f's {first} to {last}'} ran for no token."


def _draw_maps(found: dict[str, _Map], narrow: bool) -> Figure:
    longest = max(len(texts) for _, _, texts, _ in found.values())
    figure, axes = panels(2 * len(found), narrow, width=min(2.5 + 0.22 * longest, 9.0), height=2.4, columns=1)
    for (name, (map_TR, times, texts, n_ran)), panel, bars in zip(found.items(), axes[::2], axes[1::2], strict=True):
        heat(panel, map_TR[:, :n_ran].T, "mass left", vmin=0, vmax=1)
        panel.set_yticks(range(n_ran), [str(r + 1) for r in range(n_ran)], fontsize=FONT)
        ticks(panel, x=texts)
        name_axes(panel, "token", "round", name)
        bars.bar(range(len(texts)), times, color=COLOURS[0])
        bars.margins(x=0.01)
        bars.locator_params(axis="y", integer=True, nbins=6)
        ticks(bars, x=texts)
        finish(bars, "token", "rounds")
    return figure
