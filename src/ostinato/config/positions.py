"""Positions: signals that are added to the states, and relative positions inside self-attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config, NumberOrZero, Positive, Size, SizeOrZero
from ostinato.errors import Problem


class NoSignalConfig(Config):
    """No absolute position signal."""

    kind: Literal["none"] = "none"


class SinusoidalConfig(Config):
    """Sinusoids of the position, added once to the embeddings (Vaswani et al. 2017, 3.5), positions from 0."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    random_offset: SizeOrZero = 0
    """In training every sentence's positions start at a number drawn from 0 .. random_offset."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """interleaved: sine and cosine of a frequency stand side by side. halves: all sines, then all cosines (Marian)."""


class CoordinatesConfig(Config):
    """Sinusoids of position and step, added before every round (Universal Transformers, 2.1), both from 1."""

    kind: Literal["coordinates"] = "coordinates"
    random_offset: SizeOrZero = 0
    """In training every sentence's positions start at a number drawn from 0 .. random_offset."""


class LearnedConfig(Config):
    """A learned vector for every position, added once to the embeddings (GPT-2, BERT, BART), positions from 0.

    A sequence of more than max_length tokens is an error, wherever it comes from.
    """

    kind: Literal["learned"] = "learned"
    max_length: Size = 512
    """Positions that have a vector."""
    offset: SizeOrZero = 0
    """Rows of the table before that of position 0 (BART: 2)."""

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return self.max_length + self.offset


class _Within(Config):
    """What all relative positions have: how far a query sees."""

    reach: Size | None = None
    """Positions that a query sees on either side of its own, in a causal stack behind it (sliding window attention);
    None: all. Mistral's window of 4096 is 4095, ModernBERT's of 128 is 64."""


class NoRelativeConfig(_Within):
    """No relative positions."""

    kind: Literal["none"] = "none"


class WindowConfig(_Within):
    """Learned key offsets within a window, clamped beyond it (Shaw et al. 2018, as used by SUT: zero-initialised)."""

    kind: Literal["window"] = "window"
    window: Size = 16
    """W: positions on each side; the table has 2 W + 1 rows per head."""


class BucketsConfig(_Within):
    """One learned bias per head and bucket of distance, shared by the stack (Raffel et al. 2020, T5)."""

    kind: Literal["buckets"] = "buckets"
    n_buckets: Annotated[int, Field(ge=4, le=2**31 - 1, multiple_of=2)] = 32
    """Buckets a head, half of them for keys to the right of the query where those can be seen."""
    max_distance: Size = 128
    """Distance from which on all keys share the last bucket."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The logarithmic half of the buckets needs room beyond the exact half."""
        if self.max_distance <= self.n_buckets // 2:
            reason = f"must be larger than {path}n_buckets / 2 = {self.n_buckets // 2}"
            yield Problem(f"{path}max_distance", self.max_distance, reason)


class AlibiConfig(_Within):
    """A penalty for distance, -slope * distance, with a fixed slope for every head (Press et al. 2021, ALiBi)."""

    kind: Literal["alibi"] = "alibi"


class NoScalingConfig(Config):
    """Frequencies as the base gives them."""

    kind: Literal["none"] = "none"


class LinearScalingConfig(Config):
    """All frequencies divided by a factor: positions lie closer together (Chen et al. 2023)."""

    kind: Literal["linear"] = "linear"
    factor: Positive = 2.0
    """What they are divided by."""


class Llama3ScalingConfig(Config):
    """Low frequencies divided by a factor, high ones kept, those between mixed (Llama 3.1).

    With w = 2 pi / frequency, kept where w < original_length / high, divided where w > original_length / low.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Positive = 8.0
    """What low frequencies are divided by."""
    low: Positive = 1.0
    """Turns within the original length up to which a frequency is low."""
    high: Positive = 4.0
    """Turns within the original length from which on a frequency is high."""
    original_length: Size = 8192
    """Positions that the model was first trained on."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Frequencies that would be low and high."""
        if self.high <= self.low:
            yield Problem(f"{path}high", self.high, f"must be larger than {path}low = {self.low:g}")


ScalingConfig = Annotated[NoScalingConfig | LinearScalingConfig | Llama3ScalingConfig, Field(discriminator="kind")]


class RotaryConfig(_Within):
    """Rotations of queries and keys by position (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1)] = 10_000.0
    """Component pair i of a head turns by position * base^(-2 i / R), R = fraction * d_head."""
    layout: Literal["half", "interleaved"] = "half"
    """The pairs: half: (i, i + R / 2), as in Llama's public weights. interleaved: (2 i, 2 i + 1)."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Part of a head's components that are turned: the first ones."""
    scaling: ScalingConfig = NoScalingConfig()
    """Frequencies for longer texts."""

    def n_turned(self, d_head: int) -> int | None:
        """Return R, the components of a head that are turned; None where that is no even number."""
        turned = self.fraction * d_head
        n = round(turned)
        return n if n >= 2 and n % 2 == 0 and abs(n - turned) < 1e-6 else None


OneRelativeConfig = Annotated[
    NoRelativeConfig | BucketsConfig | RotaryConfig | AlibiConfig, Field(discriminator="kind")
]


class ByStepConfig(Config):
    """Relative positions that differ from step to step, such as windows in most steps and all tokens in some."""

    kind: Literal["by_step"] = "by_step"
    settings: Annotated[list[OneRelativeConfig], Field(min_length=1)]
    """What there is to choose from; a step without any is `{kind: none}`."""
    pattern: Annotated[list[NumberOrZero], Field(min_length=1)]
    """For every step, in order, the number of its settings, from 0; a shorter list is repeated."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Numbers of settings that are not there, and settings that no number names."""
        n = len(self.settings)
        if any(number >= n for number in self.pattern):
            yield Problem(f"{path}pattern", self.pattern, f"{path}settings has {n}: numbers must be below that")
        elif unused := sorted(set(range(n)) - set(self.pattern)):
            yield Problem(
                f"{path}pattern", self.pattern, f"no step has settings {unused} of {path}settings: remove them"
            )


SignalConfig = Annotated[
    NoSignalConfig | SinusoidalConfig | CoordinatesConfig | LearnedConfig, Field(discriminator="kind")
]
RelativeConfig = Annotated[
    NoRelativeConfig | WindowConfig | BucketsConfig | RotaryConfig | AlibiConfig | ByStepConfig,
    Field(discriminator="kind"),
]
