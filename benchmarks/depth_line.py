"""Update time against depth: the line through the medians with an interval of its slope, in words and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import correlation, linear_regression, median
from typing import Any

from ostinato.analysis.drawing import new_figure, save_figure
from ostinato.errors import DataError
from ostinato.experiments.timing.spread import bootstrap_interval

_TIME, _WORK = "#0072B2", "#D55E00"


@dataclass(frozen=True, slots=True)
class Line:
    """The least-squares line y = intercept + slope x through the medians, and how well it fits them.

    Args:
        r_squared: 1 - (squares left) / (squares about the mean); 1 where y does not vary.
        slope_low, slope_high: hold 95 % of the bootstrap's slopes.
    """

    slope: float
    intercept: float
    r_squared: float
    slope_low: float
    slope_high: float

    def at(self, x: float) -> float:
        """Return the line's value."""
        return self.intercept + self.slope * x


def fit_line(x: Sequence[float], rounds_y: Sequence[Sequence[float]], seed: int = 1) -> Line:
    """Fit a line through the medians of repeated measurements.

    Args:
        x: one value a point, at least two different ones.
        rounds_y: for every x its measurements, the same number of rounds for each.

    Raises:
        DataError: fewer than two different x, or points without the same number of rounds.
    """
    if len(set(x)) < 2:
        raise DataError("a line needs points at two different places or more")
    numbers = {len(y) for y in rounds_y}
    if len(x) != len(rounds_y) or len(numbers) != 1 or 0 in numbers:
        raise DataError(f"a line needs the same rounds at all {len(x)} points; there are {sorted(numbers)}")
    middles = [median(y) for y in rounds_y]
    slope, intercept = linear_regression(x, middles)
    r_squared = correlation(x, middles) ** 2 if len(set(middles)) > 1 else 1.0

    def slope_of(rounds: Sequence[int]) -> float:
        return linear_regression(x, [median(y[r] for r in rounds) for y in rounds_y]).slope

    low, high = bootstrap_interval(slope_of, numbers.pop(), seed)
    return Line(slope, intercept, r_squared, low, high)


def depth_line(rows: Sequence[dict[str, Any]]) -> Line:
    """Return the line through a depth study's median seconds against its n_steps.

    Raises:
        DataError: rows of fewer than two depths, or of another study.
    """
    if any(row.get("study") != "update_time_vs_depth" for row in rows):
        raise DataError("the rows are not all of the study update_time_vs_depth")
    return fit_line([depth_of(row) for row in rows], [row["seconds"] for row in rows])


def depth_of(row: dict[str, Any]) -> int:
    """Return the n_steps of a row's deepest stack."""
    return max(int(stack["n_steps"]) for stack in row["stacks"].values())


def line_text(line: Line, rows: Sequence[dict[str, Any]]) -> str:
    """Return a fitted line, and how much the counted work grows beside it, in words."""
    by_depth = sorted(rows, key=depth_of)
    first, last = by_depth[0], by_depth[-1]
    macs, time = (last["macs"]["call"] / first["macs"]["call"], last["median_s"] / first["median_s"])
    return (
        f"update time = {1e3 * line.intercept:.1f} ms + {1e3 * line.slope:.2f} ms per step "
        f"(95 % interval of the slope {1e3 * line.slope_low:.2f} to {1e3 * line.slope_high:.2f}), "
        f"R^2 = {line.r_squared:.4f}; from {depth_of(first)} to {depth_of(last)} steps the time is "
        f"{time:.2f} times, the multiply-accumulates are {macs:.3f} times as much"
    )


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
