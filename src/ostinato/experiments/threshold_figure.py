"""The figure of a sweep of the halting threshold: what is skipped and what it costs (SUT, figures 5-7, bottom)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.experiments.canvas import COLOURS, new_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ostinato.experiments.thresholds import Tuning

_SCORE, _CHOSEN = "black", "#D55E00"


def draw_curve(tuning: Tuning, path: Path) -> tuple[Path, Path]:
    """Draw the score against skipped share and against the threshold; write and return `path`.svg and `path`.png.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure = new_figure(9.0, 3.6)
    by_share, by_threshold = figure.subplots(1, 2)
    _against_share(by_share, tuning)
    _against_threshold(by_threshold, tuning)
    figure.suptitle(f"{tuning.checkpoint}, {tuning.split}: {tuning.n:,} examples", fontsize=10)
    return save_figure(figure, path)


def _against_share(axes: Axes, tuning: Tuning) -> None:
    """Draw a line a stack; the chosen point is a ring, the trained one a square."""
    for i, stack in enumerate(tuning.trained.skipped):
        points = sorted(tuning.points, key=lambda point: point.skipped[stack])
        shares = [100 * point.skipped[stack] for point in points]
        axes.plot(shares, [point.score for point in points], ".-", color=COLOURS[i % len(COLOURS)], label=stack)
        for marker, point in (("s", tuning.trained), ("o", tuning.chosen)):
            colour = _SCORE if marker == "s" else _CHOSEN
            axes.plot(100 * point.skipped[stack], point.score, marker, markersize=9, fillstyle="none", color=colour)
    axes.set_xlabel("token-rounds skipped, %")
    axes.set_ylabel(tuning.metric)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _against_threshold(axes: Axes, tuning: Tuning) -> None:
    """Draw the score on the left axis, skipped shares and realised MACs on the right one."""
    swept = {point.threshold: point for point in tuning.points if point.threshold is not None}
    at = sorted(swept)
    points = [swept[threshold] for threshold in at]
    axes.plot(at, [point.score for point in points], ".-", color=_SCORE, label=tuning.metric)
    axes.axhline(tuning.trained.score, color=_SCORE, linestyle=":", linewidth=1, label="at the trained threshold")
    if tuning.chosen.threshold is not None:
        axes.axvline(tuning.chosen.threshold, color=_CHOSEN, linestyle="--", linewidth=1, label="chosen")
    axes.set_xlabel("threshold")
    axes.set_ylabel(tuning.metric)
    shares = axes.twinx()
    for i, stack in enumerate(tuning.trained.skipped):
        values = [100 * point.skipped[stack] for point in points]
        shares.plot(at, values, ".--", color=COLOURS[i % len(COLOURS)], linewidth=1, label=f"{stack} skipped")
    macs = [100 * point.macs["realised"] / point.macs["full"] for point in points]
    shares.plot(at, macs, ".-.", color="gray", linewidth=1, label="MACs, % of full depth")
    shares.set_ylim(0, 105)
    shares.set_ylabel("%")
    handles = [*axes.get_legend_handles_labels()[0], *shares.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, fontsize=7, frameon=False)
    for one in (axes, shares):
        one.spines["top"].set_visible(False)
