"""Positions: signals that are added to the states, and relative positions inside self-attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config, Count, Size
from ostinato.errors import Problem


class NoSignalConfig(Config):
    """No absolute position signal."""

    kind: Literal["none"] = "none"


class SinusoidalConfig(Config):
    """Sinusoids of the position, added once to the embeddings (Vaswani et al. 2017, 3.5), positions from 0."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    random_offset: Count = 0
    """In training every sentence's positions start at a number drawn from 0 .. random_offset."""
    layout: Literal["interleaved", "halves"] = "interleaved"
    """interleaved: sine and cosine of a frequency stand side by side. halves: all sines, then all cosines (Marian)."""


class CoordinatesConfig(Config):
    """Sinusoids of position and step, added before every round (Universal Transformers, 2.1), both from 1."""

    kind: Literal["coordinates"] = "coordinates"
    random_offset: Count = 0
    """In training every sentence's positions start at a number drawn from 0 .. random_offset."""


class LearnedConfig(Config):
    """A learned vector for every position, added once to the embeddings (GPT-2, BERT, BART), positions from 0.

    A sequence of more than max_length tokens is an error, wherever it comes from.
    """

    kind: Literal["learned"] = "learned"
    max_length: Size = 512
    """Positions that have a vector."""
    offset: Count = 0
    """Rows of the table before that of position 0 (BART: 2)."""

    @property
    def n_rows(self) -> int:
        """Rows of the table."""
        return self.max_length + self.offset


class NoRelativeConfig(Config):
    """No relative positions."""

    kind: Literal["none"] = "none"


class WindowConfig(Config):
    """Learned key offsets within a window, clamped beyond it (Shaw et al. 2018, as used by SUT: zero-initialised)."""

    kind: Literal["window"] = "window"
    window: Size = 16
    """W: positions on each side; the table has 2 W + 1 rows per head."""


class BucketsConfig(Config):
    """One learned bias per head and bucket of distance, shared by the stack (Raffel et al. 2020, T5)."""

    kind: Literal["buckets"] = "buckets"
    n_buckets: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    """Buckets a head, half of them for keys to the right of the query where those can be seen."""
    max_distance: Size = 128
    """Distance from which on all keys share the last bucket."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The logarithmic half of the buckets needs room beyond the exact half."""
        if self.max_distance <= self.n_buckets // 2:
            reason = f"must be larger than {path}n_buckets / 2 = {self.n_buckets // 2}"
            yield Problem(f"{path}max_distance", self.max_distance, reason)


class RotaryConfig(Config):
    """Rotations of queries and keys by position (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1)] = 10_000.0
    """Component pair i of a head turns by position * base^(-2 i / d_head)."""


SignalConfig = Annotated[
    NoSignalConfig | SinusoidalConfig | CoordinatesConfig | LearnedConfig, Field(discriminator="kind")
]
RelativeConfig = Annotated[NoRelativeConfig | WindowConfig | BucketsConfig | RotaryConfig, Field(discriminator="kind")]
