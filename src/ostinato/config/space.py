"""A space of candidates for `ostinato advise`: axes, each with levels, each level a list of settings over a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ostinato.config.base import Config, Count, Number, Positive
from ostinato.config.schema import leaves
from ostinato.errors import Problem

Name = Annotated[str, Field(min_length=1)]
SEARCHED = (
    "seed",
    *(
        f"training.{name}"
        for name in ("optimizer.lr", "n_updates", "evaluate_every", "save_every", "log_every", "selection")
    ),
)
"""Settings that the search itself decides on, of every training."""
ASKED = ("task", "data.train", "data.dev")
"""What candidates are for: scores of other examples cannot be compared."""


class LevelConfig(Config):
    """One value of an axis."""

    name: Name
    """Name of the level, in the names of candidates and in tables."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of the recipe, by dotted path. A part `*` stands for every group there in which the rest of the path is
    found: `model.*.n_steps` is the depth of every stack. The value `$NAME` is a number of another level."""
    numbers: dict[str, Count] = Field(default_factory=dict)
    """Numbers that settings of other axes name as `$NAME`."""
    free: list[Name] | None = None
    """Settings that are solved for the budget, one after the other, in place of the space's."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings that the search decides on, and those that are the same for all candidates."""
        for key, value in leaves(self.set):
            if _is_in(key, SEARCHED):
                yield Problem(f"{path}set.{key}", value, "is decided by the search: name learning rates by `rates`")
            if _is_in(key, ASKED):
                reason = "gives candidates other examples: change it for all of them, by KEY=VALUE"
                yield Problem(f"{path}set.{key}", value, reason)


class AxisConfig(Config):
    """What is varied, with the levels it has."""

    name: Name
    """Name of the axis, in tables."""
    levels: list[LevelConfig]
    """A candidate has one of them."""

    def level(self, name: str) -> LevelConfig:
        """Return the level of a name."""
        return next(level for level in self.levels if level.name == name)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """No levels, or two of one name."""
        yield from _problems([level.name for level in self.levels], f"{path}levels")


class SpaceConfig(Config):
    """Candidates are combinations of levels, one of every axis; the recipe itself is a candidate besides."""

    page: ClassVar[str] = "advise"
    """See `Config.page`."""
    name: Name
    """Name of the space."""
    description: str = ""
    """One line about it."""
    axes: list[AxisConfig]
    """Of two axes that change one setting the later one wins."""
    free: list[Name] = Field(default_factory=lambda: ["d_ff"])
    """Settings that are solved for the budget, one after the other (`ostinato solve --free`)."""
    n_candidates: Number = 24
    """Most combinations that are tried: so many of all, each level and each pair of levels about equally often."""
    rates: list[Positive] = Field(default_factory=lambda: [0.33, 1.0, 3.0])
    """Learning rates of every candidate, times the recipe's."""
    tolerance: Annotated[float, Field(gt=0, lt=1)] = 0.02
    """A candidate that costs less than the budget by more than this share is left out."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """No axes or rates, or two of one name."""
        yield from _problems([axis.name for axis in self.axes], f"{path}axes")
        yield from _problems(self.rates, f"{path}rates")
        yield from _problems(self.free, f"{path}free")


def _is_in(key: str, names: tuple[str, ...]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)


def _problems(values: list[Any], key: str) -> Iterator[Problem]:
    if not values:
        yield Problem(key, [], "needs one or more")
    for value in dict.fromkeys(value for value in values if values.count(value) > 1):
        yield Problem(key, value, "is there twice")
