"""The figure of an update-time study: medians, quartiles and the fitted line, the counted work below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ostinato.analysis.drawing import new_figure, save_figure
from ostinato.experiments.spread import Line
from ostinato.experiments.studies import depth_of

_TIME, _WORK = "#0072B2", "#D55E00"


def draw_update_times(rows: Sequence[dict[str, Any]], line: Line, path: Path) -> tuple[Path, Path]:
    """Draw update time and multiply-accumulates against depth; write and return `path`.svg and `path`.png.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    rows = sorted(rows, key=depth_of)
    depths = [depth_of(row) for row in rows]
    medians = [1e3 * row["median_s"] for row in rows]
    spread = [
        [1e3 * (row["median_s"] - row["low_s"]) for row in rows],
        [1e3 * (row["high_s"] - row["median_s"]) for row in rows],
    ]
    figure = new_figure(6.0, 4.6)
    time, work = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    time.errorbar(depths, medians, yerr=spread, fmt="o", color=_TIME, capsize=3, label="median, quartiles")
    label = f"{1e3 * line.intercept:.0f} ms + {1e3 * line.slope:.1f} ms per step, R² = {line.r_squared:.3f}"
    time.plot(depths, [1e3 * line.at(n) for n in depths], "-", color="black", linewidth=1, label=label)
    time.set_ylabel("update, ms")
    time.legend(fontsize=8, frameon=False)
    work.plot(depths, [row["macs"]["call"] / 1e9 for row in rows], "s-", color=_WORK)
    work.set_ylabel("G MACs")
    work.set_xlabel("steps")
    for axes in (time, work):
        axes.set_ylim(bottom=0)
        axes.spines[["top", "right"]].set_visible(False)
    return save_figure(figure, path)
