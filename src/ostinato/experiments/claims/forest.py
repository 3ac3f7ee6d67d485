"""A forest plot of a paper's claims: every number with its interval, beside the smallest effect of interest.

Numbers have units of their own, so each is drawn in multiples of its band's limit (a ratio by its logarithm):

    a band with one limit      0 is no effect, 1 the limit
    a band with two limits     0 is their middle, -1 and 1 are the limits
    a spread                   0 is none, -1 and 1 are the largest one: its interval is that of a difference

The part of the axis that agrees with the claim is shaded. Numbers that are stale or of a void claim, from which nothing
follows, are hollow and grey.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from ostinato.analysis.drawing import COLOURS, FONT, WIDE, new_figure
from ostinato.config.claim import ExpectationConfig, RatioStatistic, SpreadStatistic
from ostinato.data.output_files import write_new_text
from ostinato.experiments.claims.files import Claim, Outcome
from ostinato.experiments.claims.staleness import state
from ostinato.experiments.inference import Limits

_ROW = 0.24
"""Inches."""
_LONGEST = 72
"""Characters of a label."""
_FARTHEST = 4.0
"""What lies beyond is drawn at the edge, as an arrow."""
_HOLLOW = "#999999"
_LOOKS = {"supported": COLOURS[2], "contradicted": COLOURS[4], "inconclusive": COLOURS[0]}


@dataclass(frozen=True, slots=True)
class Drawn:
    """A number that has an interval: its claim's name, its expectation, what was found, and whether it still counts."""

    claim: str
    expectation: ExpectationConfig
    number: Mapping[str, Any]
    counts: bool


def drawn(claims: Sequence[tuple[Claim, Outcome | None]]) -> list[Drawn]:
    """Return the numbers that have an interval, of claims that are still what was run."""
    found = []
    for claim, outcome in claims:
        if numbers := with_interval(claim, outcome):
            counts = state(claim, outcome) not in ("stale", "void")
            found += [Drawn(claim.config.name, expectation, number, counts) for expectation, number in numbers]
    return found


def with_interval(claim: Claim, outcome: Outcome | None) -> list[tuple[ExpectationConfig, Mapping[str, Any]]]:
    """Return the numbers of a claim that have an interval, where it is still what was run."""
    if outcome is None or outcome.head["registered"] != claim.registered:
        return []
    pairs = zip(claim.config.expect, outcome.head["numbers"], strict=True)
    return [(expectation, number) for expectation, number in pairs if number["low"] is not None]


def draw_forest(claims: Sequence[tuple[Claim, Outcome | None]], path: Path) -> Path | None:
    """Write the plot as SVG in place of an earlier one; None where no claim has an interval.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    import matplotlib

    rows = drawn(claims)
    if not rows:
        return None
    figure = new_figure(WIDE, 0.7 + _ROW * len(rows))
    axes = figure.add_subplot()
    for place, row in enumerate(reversed(rows)):
        expectation, number = row.expectation, row.number
        value, low, high = (scaled(number[key], expectation) for key in ("value", "low", "high"))
        left, right = agreeing(expectation)
        axes.fill_betweenx([place - 0.45, place + 0.45], left, right, color="#e8f0e8", linewidth=0)
        colour = _LOOKS[number["verdict"]] if row.counts else _HOLLOW
        ends = [max(-_FARTHEST, min(_FARTHEST, end)) for end in (low, high)]
        axes.plot(ends, [place, place], color=colour, linewidth=1.4)
        inside = max(-_FARTHEST, min(_FARTHEST, value))
        marker = "o" if inside == value else ">" if value > 0 else "<"
        axes.plot(
            [inside], [place], marker, color=colour, markersize=4.5, markerfacecolor=colour if row.counts else "white"
        )
    labels = [f"{row.claim}: {row.expectation.what}" for row in reversed(rows)]
    short = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in labels]
    axes.set_yticks(range(len(rows)), short, fontsize=FONT)
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_xlim(-_FARTHEST - 0.2, _FARTHEST + 0.2)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.tick_params(labelsize=FONT)
    hollow = "" if all(row.counts for row in rows) else "; hollow: stale or void"
    axes.set_xlabel(
        f"effect in multiples of the smallest one of interest; 95 % interval; shaded: agrees{hollow}", fontsize=FONT
    )
    # The same numbers give the same file.
    with matplotlib.rc_context({"svg.hashsalt": path.stem}):
        text = StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    write_new_text(path, text.getvalue(), overwrite=True)
    return path


def scaled(value: float, expectation: ExpectationConfig) -> float:
    """Return a number in multiples of its band's limit."""
    low, high = _limits(expectation)
    if isinstance(expectation.statistic, RatioStatistic):
        value = math.log(value)
        low, high = (None if limit is None else math.log(limit) for limit in (low, high))
    if low is not None and high is not None:
        return (value - (low + high) / 2) / ((high - low) / 2 or 1.0)  # a band may be one number
    limit = low if low is not None else high
    assert limit is not None  # a band has one
    return value / limit if limit else value


def agreeing(expectation: ExpectationConfig) -> tuple[float, float]:
    """Return the part of the axis that agrees with the claim."""
    low, high = _limits(expectation)
    if low is not None and high is not None:
        return -1.0, 1.0
    nothing = 1.0 if isinstance(expectation.statistic, RatioStatistic) else 0.0
    # `scaled` divides by the limit: where that lies below no effect the axis is mirrored, and 1 is still the limit.
    is_right = low > nothing if low is not None else high is not None and high < nothing
    return (1.0, _FARTHEST + 0.2) if is_right else (-_FARTHEST - 0.2, 1.0)


def _limits(expectation: ExpectationConfig) -> Limits:
    """Return the band; of a spread that of the differences which it is judged by, of either sign."""
    low, high = expectation.band
    if isinstance(expectation.statistic, SpreadStatistic) and high is not None:
        low = -high
    return low, high
