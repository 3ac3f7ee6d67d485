"""The figure of a sweep of the halting threshold: what is skipped and what it costs (SUT, figures 5-7, bottom)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.analysis.drawing import COLOURS, FONT, name_axes, panels, without_math
from ostinato.metrics.base import unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ostinato.evaluation.threshold import Point, Tuning

_SCORE, _CHOSEN = "black", "#D55E00"
_LEAST_SPAN = 0.1
"""In parts of a perfect score (`ostinato.metrics.base.unit_of`)."""


def figure_of(tuning: Tuning, narrow: bool = False) -> Figure:
    """Return the score against skipped share and against the threshold.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    figure, (by_share, by_threshold) = panels(2, narrow, height=3.8)
    _against_share(by_share, tuning)
    _against_threshold(by_threshold, tuning)
    figure.suptitle(without_math(f"{tuning.checkpoint}, {tuning.split}: {tuning.n:,} examples"), fontsize=10)
    return figure


def _against_share(axes: Axes, tuning: Tuning) -> None:
    """Draw a line a stack, from the trained threshold, a square, to the chosen one, a ring, and beyond.

    A star is the oracle.
    """
    for i, stack in enumerate(tuning.trained.skipped):
        points = sorted(tuning.points, key=lambda point: point.skipped[stack])
        shares = [100 * point.skipped[stack] for point in points]
        axes.plot(shares, [point.score for point in points], ".-", color=COLOURS[i % len(COLOURS)], label=stack)
        for name, point, look in (("trained", tuning.trained, "s"), ("chosen", tuning.chosen, "o")):
            at, label = 100 * point.skipped[stack], None if i else name
            colour = _SCORE if look == "s" else _CHOSEN
            axes.plot(at, point.score, look, color=colour, markersize=9, fillstyle="none", label=label)
        if (oracle := _oracle(tuning)) is not None:
            label = None if i else "oracle"
            axes.plot(
                100 * oracle.skipped[stack],
                oracle.score,
                "*",
                color=COLOURS[i % len(COLOURS)],
                markersize=9,
                label=label,
            )
    axes.set_ylim(*_limits(tuning))
    name_axes(axes, "token-rounds skipped, %", tuning.metric)
    axes.legend(fontsize=FONT, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes.spines[["top", "right"]].set_visible(False)


def _limits(tuning: Tuning) -> tuple[float, float]:
    """Return limits of the score far enough apart that differences between a few sentences look small."""
    scores = [point.score for point in (*tuning.points, _oracle(tuning)) if point is not None]
    middle = (max(scores) + min(scores)) / 2
    half = max(0.6 * (max(scores) - min(scores)), _LEAST_SPAN * unit_of(tuning.perfect) / 2)
    return middle - half, middle + half


def _oracle(tuning: Tuning) -> Point | None:
    """Return the oracle where it has the score that is drawn."""
    return tuning.oracle if tuning.oracle_metric == tuning.metric else None


def _against_threshold(axes: Axes, tuning: Tuning) -> None:
    """Draw the score on the left axis, skipped shares and realised MACs on the right one."""
    swept = {point.threshold: point for point in tuning.points if point.threshold is not None}
    # Of a criterion the trained model has no threshold.
    if tuning.exit is None and len(trained := set(tuning.trained.thresholds.values())) == 1:
        swept[trained.pop()] = tuning.trained
    at = sorted(swept)
    points = [swept[threshold] for threshold in at]
    axes.plot(at, [point.score for point in points], ".-", color=_SCORE, label=tuning.metric)
    axes.axhline(tuning.trained.score, color=_SCORE, linestyle=":", linewidth=1, label="at the trained threshold")
    if tuning.chosen.threshold is not None:
        axes.axvline(tuning.chosen.threshold, color=_CHOSEN, linestyle="--", linewidth=1, label="chosen")
    axes.set_ylim(*_limits(tuning))
    name_axes(axes, tuning.heading, tuning.metric)
    shares = axes.twinx()
    for i, stack in enumerate(tuning.trained.skipped):
        values = [100 * point.skipped[stack] for point in points]
        shares.plot(at, values, ".--", color=COLOURS[i % len(COLOURS)], linewidth=1, label=f"{stack} skipped")
    macs = [100 * point.macs["realised"] / point.macs["full"] for point in points]
    shares.plot(at, macs, ".-.", color="gray", linewidth=1, label="MACs, % of full depth")
    shares.set_ylim(0, 105)
    name_axes(shares, "", "%")
    handles = [*axes.get_legend_handles_labels()[0], *shares.get_legend_handles_labels()[0]]
    axes.legend(handles=handles, fontsize=FONT, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    for one in (axes, shares):
        one.spines["top"].set_visible(False)
