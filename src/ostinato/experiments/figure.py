"""One figure of a comparison: every seed a dot, every arm's mean a bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.analysis.canvas import COLOURS, new_figure, save_figure
from ostinato.experiments.comparison import Row, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(rows: Sequence[Row], path: Path, title: str) -> tuple[Path, Path]:
    """Draw accuracy by measure and arm; write and return `path`.svg and `path`.png.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = new_figure(7.0, 3.6)
    axes = figure.subplots()
    _bars(axes, rows)
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", fontsize=8, frameon=False)
    return save_figure(figure, path)


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    arms = summary(rows)
    titles = list(rows[0].metrics)
    width = 0.8 / len(arms)
    for i, (name, spread) in enumerate(arms):
        mine = [row for row in rows if row.arm == name]
        left = [k - 0.4 + (i + 0.5) * width for k in range(len(titles))]
        means = [100 * spread[title][0] for title in titles]
        colour = COLOURS[i % len(COLOURS)]
        label = f"{name}: {mine[0].parameters:,} parameters, {mine[0].macs / 1e6:.1f} M MACs"
        axes.bar(left, means, width * 0.92, color=colour, alpha=0.55, label=label)
        for x, title in zip(left, titles, strict=True):
            dots = [100 * row.metrics[title] for row in mine]
            axes.plot([x] * len(dots), dots, "o", color=colour, markersize=5, markeredgecolor="black")
    axes.set_xticks(range(len(titles)), titles)
    axes.set_ylim(0, 105)
    axes.set_ylabel("accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
