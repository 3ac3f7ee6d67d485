"""A sweep: arms that differ from one recipe by stated settings, the seeds each is trained with, what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from pydantic import Field

from ostinato.config.base import Config, Count, Size
from ostinato.config.measures import AnyMeasure, BudgetName, as_overrides
from ostinato.errors import Problem

Name = Annotated[str, Field(min_length=1)]
_START = "training.init_from"


class EqualConfig(Config):
    """A budget that is the same in all arms, checked before anything is trained."""

    budget: BudgetName = "parameters"
    """The budget that is the same."""
    tolerance: Annotated[float, Field(ge=0)] = 0.01
    """Largest relative difference between the first arm and another."""
    source_length: Size = 16
    """Source tokens of the sentence whose MACs and bytes are counted."""
    target_length: Size = 16
    """Target tokens of the sentence whose MACs and bytes are counted."""


class ArmConfig(Config):
    """One variant: a recipe, and what is changed in it."""

    name: Name
    """Name of the arm, in tables and on the command line."""
    recipe: str | None = None
    """A recipe's name, or a file relative to the sweep's; None: the sweep's."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Changes of the recipe: dotted keys, or settings nested as in a recipe."""
    seeds: list[Count] | None = None
    """None: the sweep's."""
    seed_shift: Count = 0
    """Added to every seed that the arm is trained with; its rows keep the seed. With another arm's settings it is that
    arm from other seeds: what a measure differs by between the two is what seeds alone make of it."""
    after: str | None = None
    """Another arm, whose finished run of the same seed (or of its only one) this arm starts from: its directory
    becomes training.init_from."""

    def overrides(self) -> list[str]:
        """Return `set` as `dotted.key=value`."""
        return as_overrides(self.set)


class SweepConfig(Config):
    """Arms, seeds and measures. What every arm is trained with is its recipe, then `overrides`, then its `set`."""

    page: ClassVar[str] = "sweeps"
    """See `Config.page`."""
    name: Name
    """Name of the sweep and of the folder of its results."""
    description: str = ""
    """One line about it."""
    recipe: str | None = None
    """Recipe of every arm that names none."""
    overrides: list[str] = Field(default_factory=list)
    """Changes of every arm's recipe: `dotted.key=value`."""
    arms: list[ArmConfig]
    """The first one is what the others are compared with."""
    seeds: list[Count] = Field(default_factory=lambda: [1])
    """Seeds that every arm is trained with that names none."""
    equal: EqualConfig | None = None
    """None: arms of any size may be compared."""
    measures: list[AnyMeasure] = Field(default_factory=list)
    """What is measured of every run."""

    def seeds_of(self, arm: ArmConfig) -> list[int]:
        """Return the seeds an arm is trained with."""
        return list(self.seeds if arm.seeds is None else arm.seeds)

    def arm(self, name: str) -> ArmConfig:
        """Return the arm of a name."""
        return next(arm for arm in self.arms if arm.name == name)

    def measures_of(self, name: str) -> list[AnyMeasure]:
        """Return what is measured of an arm's runs."""
        return [measure for measure in self.measures if measure.arms is None or name in measure.arms]

    def start_seed(self, arm: ArmConfig, seed: int) -> int:
        """Return the seed of the run that a run of an arm with `after` starts from."""
        seeds = self.seeds_of(self.arm(str(arm.after)))
        return seeds[0] if len(seeds) == 1 else seed

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A name that no folder has, double names, no arms or seeds, arms without recipe, starts that do not exist."""
        if self.name in (".", ".."):
            yield Problem(f"{path}name", self.name, "is no name of a folder")
        if not self.arms:
            yield Problem(f"{path}arms", [], "needs one arm or more")
        yield from _repeated([arm.name for arm in self.arms], f"{path}arms")
        yield from _repeated([measure.name for measure in self.measures], f"{path}measures")
        names = [arm.name for arm in self.arms]
        for place, measure in enumerate(self.measures):
            for name in measure.arms or []:
                if name not in names:
                    yield Problem(f"{path}measures.{place}.arms", name, f"must be one of {', '.join(names)}")
        yield from _seeds_in(self.overrides, f"{path}overrides")
        for place, arm in enumerate(self.arms):
            key = f"{path}arms.{place}."
            yield from _seeds_in(arm.overrides(), f"{key}set.seed")
            if arm.recipe is None and self.recipe is None:
                yield Problem(f"{key}recipe", None, f"must be given for {arm.name}, because the sweep names none")
            yield from _repeated(self.seeds_of(arm), f"{path}seeds" if arm.seeds is None else f"{key}seeds")
            if not self.seeds_of(arm):
                yield Problem(f"{path}seeds" if arm.seeds is None else f"{key}seeds", [], "needs one seed or more")
            yield from self._start_problems(arm, key)

    def _start_problems(self, arm: ArmConfig, key: str) -> Iterator[Problem]:
        if arm.after is None:
            return
        others = {other.name: other for other in self.arms if other.name != arm.name}
        if arm.after not in others:
            yield Problem(f"{key}after", arm.after, f"must be another arm: {', '.join(others) or 'there is none'}")
            return
        if any(text.startswith(f"{_START}=") for text in [*self.overrides, *arm.overrides()]):
            yield Problem(f"{key}after", arm.after, f"cannot go with {_START}, which it sets")
        chain = [arm.name]
        while (last := self.arm(chain[-1]).after) in others and last not in chain:
            chain.append(str(last))
        if last == arm.name:
            yield Problem(f"{key}after", arm.after, f"is a circle: {' after '.join([*chain, arm.name])}")
        seeds = self.seeds_of(others[arm.after])
        if len(seeds) > 1 and (missing := [seed for seed in self.seeds_of(arm) if seed not in seeds]):
            yield Problem(f"{key}after", arm.after, f"has no run of seed {', '.join(map(str, missing))} to start from")


def _seeds_in(overrides: list[str], key: str) -> Iterator[Problem]:
    """Yield every seed that is set where `seeds` would win over it."""
    for text in overrides:
        name, _, seed = text.partition("=")
        if name.strip() == "seed":
            yield Problem(key, seed, f"has no effect beside seeds: write seeds: [{seed}]")


def _repeated(values: list[Any], key: str) -> Iterator[Problem]:
    for value in dict.fromkeys(value for value in values if values.count(value) > 1):
        yield Problem(key, value, "is there twice")
