"""A claim of a paper as data: what is run, which numbers are taken of it, and the band in which they are expected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from ostinato.config.base import Config
from ostinato.config.measures import TableSelection
from ostinato.errors import Problem

Paper = Literal["universal-transformer", "sparse-universal-transformer", "one-wide-ffn", "x-moe", "depth"]
Term = Annotated[str, Field(pattern=r"^[^/]+/.+$")]
"""`arm/measure`."""
Band = Annotated[tuple[float | None, float | None], Field(strict=False)]
"""Lowest and highest value that agree with the claim; null: no limit."""


class MeanStatistic(Config):
    """The mean over seeds of one measure of one arm."""

    kind: Literal["mean"] = "mean"
    of: Term


class DifferenceStatistic(Config):
    """The mean over seeds of `of` - `minus`, the same seeds of both where they have them."""

    kind: Literal["difference"] = "difference"
    of: Term
    minus: Term


class RatioStatistic(Config):
    """The mean over seeds of `of` / `over`."""

    kind: Literal["ratio"] = "ratio"
    of: Term
    over: Term


class SmallestStepStatistic(Config):
    """The smallest rise from one term to the next: above 0 where the terms rise in this order."""

    kind: Literal["smallest_step"] = "smallest_step"
    along: Annotated[list[Term], Field(min_length=2)]


class SpreadStatistic(Config):
    """The largest of the terms minus the smallest: near 0 where they do not depend on what changes between them."""

    kind: Literal["spread"] = "spread"
    along: Annotated[list[Term], Field(min_length=2)]


class BestAtStatistic(Config):
    """Where the largest (or smallest) of the terms stands, as one of the numbers in `at`."""

    kind: Literal["best_at"] = "best_at"
    along: Annotated[list[Term], Field(min_length=2)]
    at: list[float]
    mode: Literal["max", "min"] = "max"

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A number for every term."""
        yield from _paired(self.at, self.along, path)


class LineStatistic(Config):
    """The least-squares line through (at, term): its slope, its R^2, or slope / value at the first place."""

    kind: Literal["line"] = "line"
    along: Annotated[list[Term], Field(min_length=3)]
    at: list[float]
    figure: Literal["slope", "r_squared", "relative_slope"] = "slope"

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A number for every term."""
        yield from _paired(self.at, self.along, path)


Statistic = Annotated[
    MeanStatistic
    | DifferenceStatistic
    | RatioStatistic
    | SmallestStepStatistic
    | SpreadStatistic
    | BestAtStatistic
    | LineStatistic,
    Field(discriminator="kind"),
]


class ExpectationConfig(Config):
    """One number and its band. A claim holds where all of its expectations do."""

    what: str
    statistic: Statistic
    band: Band

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A band that holds something and leaves something out."""
        low, high = self.band
        if low is None and high is None:
            yield Problem(f"{path}band", self.band, "must have a limit on one side at least")
        if low is not None and high is not None and low > high:
            yield Problem(f"{path}band", self.band, "the lowest value must not be above the highest")


class TimedArm(Config):
    """A model that is timed or counted: a recipe, and what is changed in it by dotted keys."""

    name: str
    recipe: str
    overrides: list[str] = Field(default_factory=list)


class TimedWork(Config):
    """One workload (see `ostinato.experiments.timing.workloads`); its name is the measure's."""

    name: str
    kind: Literal["update", "forward", "decoding"]
    batch_size: Annotated[int, Field(ge=1)] = 1
    source_length: Annotated[int, Field(ge=0)] = 32
    target_length: Annotated[int, Field(ge=1)] = 32
    beam: Annotated[int, Field(ge=1)] = 1


class ComparedConfig(Config):
    """A measure of several runs together, by an analysis that compares runs with the first of them.

    Args:
        arm: whose row gets the number; its runs come first. others: arms beside it. over: `each`: one number a seed,
            of the arms' runs of that seed; `all`: one number, of all seeds' runs of all these arms.
    """

    name: str
    study: str
    arm: str
    others: list[str] = Field(default_factory=list)
    over: Literal["each", "all"] = "each"
    table: TableSelection
    split: str | None = None
    max_examples: Annotated[int, Field(ge=1)] = 1000


class SweepSource(Config):
    """Runs of a sweep: its arms, seeds and measures are the terms. `sweep` is a sweep's settings, or its name."""

    kind: Literal["sweep"] = "sweep"
    sweep: dict[str, Any] | str
    compared: list[ComparedConfig] = Field(default_factory=list)
    """Measures that look at several runs at once."""
    overrides: list[str] = Field(default_factory=list)
    """Changes of every arm, after its own: `dotted.key=value`."""
    seeds: list[int] | None = None
    """None: the sweep's."""


class TimingSource(Config):
    """Seconds of random models in the same rounds; every round is what a seed is elsewhere."""

    kind: Literal["timing"] = "timing"
    arms: Annotated[list[TimedArm], Field(min_length=2)]
    work: Annotated[list[TimedWork], Field(min_length=1)]
    vocabulary: Annotated[int, Field(ge=8)] | None = None
    rounds: Annotated[int, Field(ge=6)] = 10
    n_threads: Annotated[int, Field(ge=1)] | None = 2
    device: str = "auto"


class CountSource(Config):
    """What models store and compute, from their settings alone: measures parameters, active, macs."""

    kind: Literal["count"] = "count"
    arms: Annotated[list[TimedArm], Field(min_length=1)]
    source_length: Annotated[int, Field(ge=1)] = 32
    target_length: Annotated[int, Field(ge=1)] = 32
    vocabulary: Annotated[int, Field(ge=8)] | None = None


Source = Annotated[SweepSource | TimingSource | CountSource, Field(discriminator="kind")]


class ClaimConfig(Config):
    """A claim file.

    Args:
        paper, where: which paper, and which table, figure or section of it.
        statement: what the paper says, in our words.
        inputs: files that the user names (`--input NAME=PATH`), with what they should be; "input:NAME" anywhere in the
            source stands for the path.
        minutes: of two CPU cores, from nothing.
        expect: numbers and their bands; written before the first run.
        limits: what this scale cannot show.
        gpu: the same claim for one hour of a large GPU: settings that replace those above, by dotted keys.
    """

    name: str
    paper: Paper
    where: str
    statement: str
    source: Source
    inputs: dict[str, str] = Field(default_factory=dict)
    minutes: Annotated[float, Field(gt=0)]
    expect: Annotated[list[ExpectationConfig], Field(min_length=1)]
    limits: str = ""
    gpu: dict[str, Any] | None = None


def _paired(at: list[float], along: list[Any], path: str) -> Iterator[Problem]:
    if len(at) != len(along):
        yield Problem(f"{path}at", at, f"must have a number for each of the {len(along)} terms in along")
