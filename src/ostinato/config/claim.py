"""A claim of a paper as data: what is run, which numbers are taken of it, and the band in which they are expected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Config, Count, Positive, Size, SizeOrZero
from ostinato.config.files import INPUT, parse_overrides, texts_of
from ostinato.config.measures import TableSelection
from ostinato.config.sweep import EqualConfig
from ostinato.errors import ConfigError, Problem

Paper = Literal["universal-transformer", "sparse-universal-transformer", "one-wide-ffn", "x-moe", "depth"]
Measured = Annotated[str, Field(pattern=r"^[^/]+/.+$")]
"""`arm/measure`."""
Band = Annotated[tuple[float | None, float | None], Field(strict=False)]
"""Lowest and highest value that agree with the claim; null: no limit. A limit is the smallest effect of interest, or
the margin within which nothing is lost."""


class ChangeTerm(Config):
    """A measure beside another of the same seed: what training changed (over or minus the untrained arm), or a gap."""

    of: Measured
    """The measure."""
    minus: Measured | None = None
    """What is subtracted from it."""
    over: Measured | None = None
    """What it is divided by."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """One of the two."""
        if (self.minus is None) == (self.over is None):
            yield Problem(f"{path}minus", self.minus, "give one of minus and over")

    def __str__(self) -> str:
        return f"{self.of} - {self.minus}" if self.over is None else f"{self.of} / {self.over}"


Term = Measured | ChangeTerm
"""`arm/measure`, or a change of one."""


class MeanStatistic(Config):
    """The mean over seeds of one measure of one arm."""

    kind: Literal["mean"] = "mean"
    of: Term
    """The measure."""


class DifferenceStatistic(Config):
    """The mean over seeds of `of` - `minus`, the same seeds of both where they have them."""

    kind: Literal["difference"] = "difference"
    of: Term
    """What is subtracted from."""
    minus: Term
    """What is subtracted."""


class RatioStatistic(Config):
    """The geometric mean over seeds of `of` / `over`; of rounds the exponential of the median logarithm."""

    kind: Literal["ratio"] = "ratio"
    of: Term
    """The numerator."""
    over: Term
    """The denominator."""


class SmallestStepStatistic(Config):
    """The smallest rise from one term to the next: above 0 where the terms rise in this order."""

    kind: Literal["smallest_step"] = "smallest_step"
    along: Annotated[list[Term], Field(min_length=2)]
    """The terms, in the order in which they should rise."""


class SpreadStatistic(Config):
    """The largest of the terms minus the smallest: near 0 where they do not depend on what changes between them."""

    kind: Literal["spread"] = "spread"
    along: Annotated[list[Term], Field(min_length=2)]
    """The terms."""


class PairedStatistic(Config):
    """What the statistics of numbered terms share."""

    along: Annotated[list[Term], Field(min_length=2)]
    """The terms."""
    at: list[float]
    """The number that stands for each term."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A number for every term."""
        if len(self.at) != len(self.along):
            reason = f"must have a number for each of the {len(self.along)} terms in along"
            yield Problem(f"{path}at", self.at, reason)
        elif len(set(self.at)) < len(self.at):
            yield Problem(f"{path}at", self.at, "must be different numbers")


class BestAtStatistic(PairedStatistic):
    """Where the largest (or smallest) of the terms stands, as one of the numbers in `at`."""

    kind: Literal["best_at"] = "best_at"
    mode: Literal["max", "min"] = "max"
    """Whether the largest or the smallest term is looked for."""


class LineStatistic(PairedStatistic):
    """The least-squares line through (at, term): its slope, its R^2, or slope / value at the first place."""

    kind: Literal["line"] = "line"
    along: Annotated[list[Term], Field(min_length=3)]
    """The terms: y of the line."""
    figure: Literal["slope", "r_squared", "relative_slope"] = "slope"
    """What is taken of the line."""


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
    """One number and its band. A claim is supported where all of its numbers are shown to lie in their bands."""

    what: str
    """The number in words, for tables."""
    statistic: Statistic
    """How it is computed from the measures."""
    unit: str
    """What it is counted in: nats a token, share of the sequences, percent, ..."""
    band: Band
    """Where it has to lie."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A band that holds something and leaves something out, of what the statistic can be."""
        low, high = self.band
        match self.statistic:
            case RatioStatistic() if any(limit is not None and limit <= 0 for limit in self.band):
                yield Problem(f"{path}band", self.band, "the limits of a ratio must be positive")
            case BestAtStatistic(at=at):
                inside = {(low is None or place >= low) and (high is None or place <= high) for place in at}
                if len(inside) == 1:
                    reason = "must hold some of the places in at, and leave some of them out"
                    yield Problem(f"{path}band", self.band, reason)
        if low is None and high is None:
            yield Problem(f"{path}band", self.band, "must have a limit on one side at least")
        if low is not None and high is not None and low > high:
            yield Problem(f"{path}band", self.band, "the lowest value must not be above the highest")


class ControlConfig(ExpectationConfig):
    """A number that has to lie in its band for the claim to mean anything; it is not tested, its value counts.

    For example the claim's own number of untrained models, which must show nothing, or a baseline's score, which must
    be off floor and ceiling.
    """

    overrides: list[str] = Field(default_factory=list)
    """Changes of every arm, for runs of the control's own: `dotted.key=value`. Of a sweep only."""


class TimedArm(Config):
    """A model that is timed or counted: a recipe, and what is changed in it by dotted keys."""

    name: str
    """Name of the arm, in terms and tables."""
    recipe: str
    """A recipe's name or file."""
    overrides: list[str] = Field(default_factory=list)
    """Changes of the recipe: `dotted.key=value`."""


class TimedWork(Config):
    """One workload on random token ids."""

    name: str
    """Name of the measure, which is in seconds."""
    kind: Literal["update", "forward", "decoding"]
    """update: forward, backward and the optimiser's step. forward: a teacher-forced pass without gradients. decoding: a
    search for outputs of target_length tokens."""
    batch_size: Size = 1
    """Sentences."""
    source_length: SizeOrZero = 32
    """Source tokens of every sentence."""
    target_length: Size = 32
    """Target tokens of every sentence."""
    beam: Size = 1
    """Width of the search; 1: greedy."""


class ComparedConfig(Config):
    """A measure of several runs together, by an analysis that compares runs with the first of them."""

    name: str
    """Name of the measure."""
    study: str
    """Name of the analysis."""
    arm: str
    """Arm whose row gets the number; its runs come first."""
    others: list[str] = Field(default_factory=list)
    """Arms whose runs are compared with it."""
    over: Literal["each", "all"] = "each"
    """each: one number a seed, of the arms' runs of that seed. all: one number, of the arms' runs of all seeds."""
    table: TableSelection
    """Which number of the analysis' table."""
    split: str | None = None
    """None: the first of the recipe's evaluation.splits."""
    max_examples: Size = 1000
    """Spread evenly over the split."""


class SweepSource(Config):
    """Runs of a sweep: its arms, seeds and measures are the terms."""

    kind: Literal["sweep"] = "sweep"
    sweep: dict[str, Any] | str
    """A sweep's settings, or its name."""
    compared: list[ComparedConfig] = Field(default_factory=list)
    """Measures of several runs together."""
    overrides: list[str] = Field(default_factory=list)
    """Changes of every arm, after its own: `dotted.key=value`. A setting that one arm sets otherwise than another is
    refused: untrained arms stay untrained."""
    seeds: list[Count] | None = None
    """None: the sweep's."""


class TimingSource(Config):
    """Seconds of random models in the same rounds; every round is what a seed is elsewhere."""

    kind: Literal["timing"] = "timing"
    arms: Annotated[list[TimedArm], Field(min_length=2)]
    """The models that are timed in turns."""
    work: Annotated[list[TimedWork], Field(min_length=1)]
    """What each of them does in every round."""
    vocabulary: Annotated[int, Field(ge=8)] | None = None
    """Rows of every vocabulary; None: those of the recipes' own data."""
    rounds: Annotated[int, Field(ge=6)] = 10
    """How often every model does all the work."""
    n_threads: Size | None = 2
    """CPU threads; None: torch's choice."""
    device: str = "auto"
    """auto: a CUDA GPU if there is one, else cpu; or a name: cpu, cuda, mps."""


class CountSource(Config):
    """What models store and compute, from their settings alone: measures parameters, active, macs."""

    kind: Literal["count"] = "count"
    arms: Annotated[list[TimedArm], Field(min_length=1)]
    """The models that are counted."""
    source_length: Size = 32
    """Source tokens of the sentence whose MACs are counted."""
    target_length: Size = 32
    """Target tokens of the sentence whose MACs are counted."""
    vocabulary: Annotated[int, Field(ge=8)] | None = None
    """Rows of every vocabulary; None: those of the recipes' own data."""


Source = Annotated[SweepSource | TimingSource | CountSource, Field(discriminator="kind")]


class TuningConfig(Config):
    """The settings that every arm chooses for itself, from the same grid, before its seeds are trained."""

    key: str
    """Dotted key of the setting, such as training.optimizer.lr."""
    values: Annotated[list[Any], Field(min_length=2)]
    """What every arm is tried with."""
    measure: str
    """A measure of the sweep, taken on a split that the claim does not report."""
    mode: Literal["max", "min"] = "min"
    """Whether the largest or the smallest mean over the seeds is chosen."""
    seeds: Annotated[list[Count], Field(min_length=1)]
    """Seeds of the trials; none of them is one of the claim's."""


class DesignConfig(Config):
    """What makes arms comparable; checked against the resolved recipes before anything is trained."""

    differ_in: Annotated[list[str], Field(min_length=1)]
    """Dotted keys, or beginnings of them: the one thing that differs between the arms. All else is equal."""
    equal: EqualConfig | None = None
    """The budget that is the same in all arms; None: none is, and limits says why that is fair."""
    tuning: TuningConfig | None = None
    """None: all arms train with the recipe's settings, which limits says where they came from."""
    pilot_seeds: list[Count] = Field(default_factory=list)
    """Seeds on which settings or bands were chosen; none of them is one of the claim's."""


class ClaimConfig(Config):
    """A claim file."""

    page: ClassVar[str] = "claims"
    """See `Config.page`."""
    name: str
    """Name of the claim, without its paper."""
    paper: Paper
    """The paper that makes it."""
    where: str
    """Table, figure or section of the paper."""
    statement: str
    """What the paper says, in our words."""
    source: Source
    """What is run, timed or counted. Of a sweep only the arms that the numbers name are trained."""
    design: DesignConfig | None = None
    """What the arms differ in, and what is equal. A sweep needs one."""
    inputs: dict[str, str] = Field(default_factory=dict)
    """Files that the user names (`--input NAME=PATH`), with what they should be; "input:NAME" in the source's
    sweep stands for the path."""
    minutes: Positive
    """Duration on two CPU cores when nothing has been trained yet."""
    expect: Annotated[list[ExpectationConfig], Field(min_length=1)]
    """Numbers and their bands, committed before the first run. No limit of a difference is 0, and none of a ratio 1:
    that is no effect at all."""
    controls: list[ControlConfig] = Field(default_factory=list)
    """What must be so for the numbers to say anything; else the outcome is void."""
    limits: str = ""
    """What a run of this size cannot show."""
    gpu: dict[str, Any] | None = None
    """The same claim for one hour of a large GPU: settings that replace those above, by dotted keys."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Limits that are no effect; trained models without design or control; inputs outside the sweep."""
        for place, one in enumerate(self.expect):
            low, high = one.band
            if isinstance(one.statistic, SpreadStatistic) and (low not in (None, 0.0) or high is None or high <= 0):
                reason = "a spread is at least 0: name its highest value alone, above 0"
                yield Problem(f"{path}expect.{place}.band", one.band, reason)
            none = 1.0 if isinstance(one.statistic, RatioStatistic) else 0.0
            # A mean, or the place of the best, is on a scale of its own.
            if none in one.band and not isinstance(one.statistic, MeanStatistic | BestAtStatistic):
                reason = (
                    f"{none:g} is no effect: name the smallest of interest, or the margin within which all is equal"
                )
                yield Problem(f"{path}expect.{place}.band", one.band, reason)
        texts = [control.what for control in self.controls]
        if twice := sorted({text for text in texts if texts.count(text) > 1}):
            yield Problem(f"{path}controls", twice, "each control needs words of its own, by which it is named")
        if not isinstance(self.source, SweepSource):
            return
        of_controls = {f"controls.{place}": control.overrides for place, control in enumerate(self.controls)}
        for name, overrides in {"source": self.source.overrides, **of_controls}.items():
            try:
                values = [value for _, value in texts_of(parse_overrides(overrides))]
            except ConfigError:  # the check of overrides says what is wrong with them
                values = []
            if any(value.startswith(INPUT) for value in values):
                reason = f"{INPUT}NAME stands for a file in source.sweep only: write it there, under an arm's set"
                yield Problem(f"{path}{name}.overrides", overrides, reason)
        if self.design is None:
            yield Problem(f"{path}design", None, "must say what the arms differ in: models are trained")
        if not self.controls:
            reason = "needs one or more: untrained models, shuffled labels, a baseline off floor and ceiling"
            yield Problem(f"{path}controls", [], reason)
