"""One figure of a sweep: a point for every seed and a bar for every arm's mean, over the arms or over a number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from ostinato.analysis.drawing import (
    COLOURS,
    common_legend,
    in_units,
    legend_label,
    new_figure,
    save_figure,
    without_math,
)
from ostinato.errors import ConfigError, Problem

Row = Mapping[str, Any]
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""With the colours (`ostinato.analysis.drawing`) these tell 42 arms apart, also without colour."""
FIGURES = ("parameters", "macs", "n_updates", "training_seconds", "seconds", "seed")
_WIDTH, _HEIGHT = 4.2, 3.4


def draw_sweep(
    rows: Sequence[Row],
    path: Path,
    *,
    x: str | None = None,
    y: Sequence[str] = (),
    title: str | None = None,
    overwrite: bool = False,
) -> tuple[Path, Path]:
    """Draw measures by arm, or against a figure of the rows or another measure; write `path`.svg and `path`.png.

    Args:
        x: one of `FIGURES` or a measure; None: the arms. y: measures, a panel each; empty: all of them.
        overwrite: figures that are there are replaced.

    Raises:
        ConfigError: a name that the rows do not have, matplotlib is not installed, or files that
            cannot be written (`ostinato.data.output_files`).
    """
    names = list(dict.fromkeys(name for row in rows for name in row["values"]))
    wanted = list(y) or [name for name in names if name != x]
    problems = [Problem("y", name, f"must be one of {', '.join(names)}") for name in wanted if name not in names]
    if x is not None and not any(_number(row, x) is not None for row in rows):
        problems.append(Problem("x", x, f"must be one of {', '.join([*FIGURES, *names])}"))
    if not wanted:
        problems.append(Problem("y", wanted, "the rows have no measure to draw"))
    if problems:
        raise ConfigError(problems)
    n_columns = min(len(wanted), 3)
    n_rows = -(-len(wanted) // n_columns)
    figure = new_figure(_WIDTH * n_columns, _HEIGHT * n_rows + 0.5)
    panels = figure.subplots(n_rows, n_columns, squeeze=False).flatten()
    arms = list(dict.fromkeys(row["arm"] for row in rows))
    for axes, name in zip(panels, wanted, strict=False):
        for place, arm in enumerate(arms):
            points = [
                (float(place) if x is None else _number(row, x), _number(row, name))
                for row in rows
                if row["arm"] == arm
            ]
            found = [(left, value) for left, value in points if left is not None and value is not None]
            if not found:
                continue
            # The seeds as points, their mean as a bar across them, or as a larger point where x is a number.
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place // len(COLOURS) % len(MARKERS)]
            xs, ys = zip(*found, strict=True)
            label = legend_label(f"{arm} (n {sum(row['arm'] == arm for row in rows)})")
            axes.plot(xs, ys, marker, color=colour, markersize=4.5, alpha=0.6, linestyle="none", label=label)
            if x is None:
                axes.plot([place - 0.25, place + 0.25], [mean(ys)] * 2, color=colour, linewidth=2.5)
            else:
                larger: dict[str, Any] = {"markersize": 9, "markeredgecolor": "black", "linestyle": "none"}
                axes.plot([mean(xs)], [mean(ys)], marker, color=colour, **larger)
        if x is None:
            names = [without_math(arm) for arm in arms]
            axes.set_xticks(range(len(arms)), names, rotation=0 if len(arms) < 4 else 30, ha="center", fontsize=8)
            axes.set_xlim(-0.6, len(arms) - 0.4)
        else:
            axes.set_xlabel(without_math(_label(rows, x)))
            in_units(axes.xaxis)
        axes.set_ylabel(without_math(name))
        in_units(axes.yaxis)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(wanted) :]:
        axes.set_visible(False)
    if title:
        figure.suptitle(without_math(title), fontsize=11)
    common_legend(figure, list(panels))
    return save_figure(figure, path, overwrite=overwrite)


def _number(row: Row, name: str) -> float | None:
    found = row["values"].get(name, row.get(name) if name in FIGURES else None)
    return None if found is None else float(found)


def _label(rows: Sequence[Row], name: str) -> str:
    """Return the name of an axis; of the rows' own MACs with the lengths of the pass that they are counted for."""
    lengths = rows[0].get("macs_lengths")
    if name != "macs" or lengths is None or any(name in row["values"] for row in rows):
        return name
    return f"MACs ({lengths[0]} to {lengths[1]} tokens)"
