"""One figure of a comparison: every seed a dot, every arm's mean a bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.errors import ConfigError
from ostinato.experiments.comparison import Row, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: told apart by all common kinds of colour vision.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")


def draw(rows: Sequence[Row], path: Path, title: str) -> tuple[Path, Path]:
    """Draw accuracy by measure and arm; write and return `path`.svg and `path`.png.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("figures need matplotlib: pip install 'matplotlib>=3.8'") from error
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots()
    _bars(axes, rows)
    axes.set_title(title, fontsize=10)
    figure.legend(loc="outside lower center", fontsize=8, frameon=False)
    written = path.with_suffix(".svg"), path.with_suffix(".png")
    for file in written:
        figure.savefig(file, dpi=150)
    return written


def _bars(axes: Axes, rows: Sequence[Row]) -> None:
    arms = summary(rows)
    titles = list(rows[0].metrics)
    width = 0.8 / len(arms)
    for i, (name, spread) in enumerate(arms):
        mine = [row for row in rows if row.arm == name]
        left = [k - 0.4 + (i + 0.5) * width for k in range(len(titles))]
        means = [100 * spread[title][0] for title in titles]
        colour = _COLOURS[i % len(_COLOURS)]
        label = f"{name}: {mine[0].parameters:,} parameters, {mine[0].macs / 1e6:.1f} M MACs"
        axes.bar(left, means, width * 0.92, color=colour, alpha=0.55, label=label)
        for x, title in zip(left, titles, strict=True):
            dots = [100 * row.metrics[title] for row in mine]
            axes.plot([x] * len(dots), dots, "o", color=colour, markersize=5, markeredgecolor="black")
    axes.set_xticks(range(len(titles)), titles)
    axes.set_ylim(0, 105)
    axes.set_ylabel("accuracy, %")
    axes.spines[["top", "right"]].set_visible(False)
