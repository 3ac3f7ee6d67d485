"""Candidates: a recipe with other settings, its widths solved so that it costs what the budget allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import prod
from typing import Any

from ostinato.advise.limits import WORDS, Limits
from ostinato.advise.space import Combination, free_of, in_balance, name_of, settings_of
from ostinato.budget.free import free_variable, with_settings
from ostinato.budget.solver import OutOfReach, solve
from ostinato.config.data import TokenizerConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.config.measures import as_overrides
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.config.space import SpaceConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import FromData, size_model

BASE = "the recipe"
"""Name of the candidate that is the recipe itself, its widths solved for the budget."""
_MOST_TRIED = 4
"""Combinations that are looked at for every candidate that is wanted: beyond that the budget is too narrow."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model that meets the budget.

    Args:
        levels: of every axis; empty for the recipe itself. settings: of the recipe, by dotted path, solved ones too.
        model: with its vocabulary sizes. figures: its parameters, macs and bytes.
        decoding: how it searches for outputs. tokenizer: of the tokens that it predicts; None where these are no text.
    """

    name: str
    levels: Combination
    settings: dict[str, Any]
    model: ModelConfig
    figures: dict[str, float]
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    tokenizer: TokenizerConfig | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A combination that is no candidate, and why.

    Args:
        by_cost: it is a model, but not one of the budget. nearest: the least it can cost, where that is too much.
    """

    name: str
    reason: str
    by_cost: bool = False
    nearest: dict[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Candidates:
    """What is tried, and what cannot be; n_untried: combinations that were not looked at."""

    found: list[Candidate]
    left_out: list[LeftOut]
    limits: Limits
    n_untried: int


def make_candidates(
    base: str,
    overrides: Sequence[str],
    space: SpaceConfig,
    limits: Limits,
    access: DataAccess | None = None,
) -> Candidates:
    """Return the recipe and up to `space.n_candidates` combinations, each as large as the budget allows.

    Args:
        base: name or file of the recipe. overrides: `dotted.key=value`, of all candidates.
        limits: without any that is counted, the recipe's own parameters are the budget.

    Raises:
        ConfigError: a recipe that cannot be used; a budget that nothing fits: with the nearest that does; a space none
            of whose combinations is a candidate, though none costs too much: with the commonest reason.
    """
    recipe = load_recipe(base, overrides)
    known: FromData = {}
    sized = size_model(recipe, access, known=known)
    limits = limits.of_recipe(recipe)
    if not limits.counted():
        parameters = limits.figures(sized.model)["parameters"]
        limits = replace(limits, parameters=parameters)
    maker = _Maker(base, list(overrides), recipe, access, known, space, limits)
    maker.add(BASE, {})
    n_wanted = len(maker.found) + space.n_candidates
    n_all, n_tried = prod(len(axis.levels) for axis in space.axes), 0
    for combination in islice(in_balance(space), _MOST_TRIED * space.n_candidates):
        if len(maker.found) >= n_wanted:
            break
        n_tried += 1
        maker.add(name_of(space, combination), combination)
    if not maker.found:
        raise ConfigError(_nothing_fits(limits, maker.left_out))
    reasons = Counter(one.reason for one in maker.left_out if one.reason != _same_as(BASE))
    # A budget may leave nothing but the recipe; a space that does is mistyped, or made for other models.
    if reasons and [one.name for one in maker.found] == [BASE] and not any(one.by_cost for one in maker.left_out):
        ((reason, n),) = reasons.most_common(1)
        raise ConfigError(f"no candidate can be made beside {BASE}: {reason}, in {n} of {n_tried} combinations")
    return Candidates(maker.found, maker.left_out, limits, n_all - n_tried)


def _nothing_fits(limits: Limits, left_out: Sequence[LeftOut]) -> str:
    """Return that no candidate meets the budget, with the one that is nearest to it."""
    near = [(_excess(limits, one.nearest), one) for one in left_out if one.nearest is not None]
    if not near:
        return f"no candidate can be made: {left_out[0].name}: {left_out[0].reason}"
    _, one = min(near, key=lambda pair: pair[0])
    asked = {name: (one.nearest or {})[name] for name in limits.counted()}
    needs = ", ".join(f"{value:,.0f} {WORDS[name]}" for name, value in asked.items())
    return f"nothing in this space fits {limits}: the nearest needs {needs} ({one.name})"


def _excess(limits: Limits, figures: dict[str, float]) -> float:
    return max(figures[name] / limit for name, limit in limits.counted().items())


@dataclass
class _Maker:
    """Makes candidates, and keeps those that meet the budget and differ from each other."""

    base: str
    overrides: list[str]
    recipe: Recipe
    access: DataAccess | None
    known: FromData
    space: SpaceConfig
    limits: Limits

    def __post_init__(self) -> None:
        self.found: list[Candidate] = []
        self._rest: dict[str, dict[str, Any]] = {}  # of every candidate: its settings beside the model's
        self.left_out: list[LeftOut] = []
        self._nested = self.recipe.model_dump(mode="json")

    def add(self, name: str, combination: Combination) -> None:
        """Add a combination (none: the recipe itself), or the reason why there is no such candidate."""
        try:
            settings = settings_of(self.space, combination, self._nested) if combination else {}
            changed = load_recipe(self.base, [*self.overrides, *as_overrides(settings)])
            model = size_model(changed, self.access, known=self.known).model
            free = free_of(self.space, combination) if combination else self.space.free
            limits = self.limits.of_recipe(changed)  # a level may change how it is trained and decoded
        except ConfigError as error:
            self.left_out.append(LeftOut(name, _one_line(error)))
            return
        try:
            solved, values = self._solve(model, free, limits)
        except OutOfReach as error:
            figures = limits.figures(_smallest(model, free[0], limits))
            over = {n: figures[n] for n, limit in limits.counted().items() if figures[n] > limit}
            needs = ", ".join(f"{value:,.0f} {WORDS[n]}" for n, value in over.items())
            reason = f"needs {needs} even at its narrowest" if over else _one_line(error)
            self.left_out.append(LeftOut(name, reason, by_cost=bool(over), nearest=figures if over else None))
            return
        except ConfigError as error:
            self.left_out.append(LeftOut(name, _one_line(error)))
            return
        share = limits.share(solved)
        if share < 1 - self.space.tolerance:
            reason = f"comes no nearer to the budget than {100 * share:.0f} % of it"
            self.left_out.append(LeftOut(name, reason, by_cost=True))
            return
        rest = changed.model_dump(exclude={"model"})
        if (
            same := next((one for one in self.found if (one.model, self._rest[one.name]) == (solved, rest)), None)
        ) is None:
            self._rest[name] = rest
            own = settings | {f"model.{path}": value for path, value in values.items()}
            decoding, data = changed.decoding, changed.data
            tokenizer = (data.target_tokenizer or data.tokenizer) if solved.has_vocabulary_output else None
            self.found.append(Candidate(name, combination, own, solved, limits.figures(solved), decoding, tokenizer))
        elif same.name == BASE and not same.levels:  # the recipe is a combination of the space
            self.found[self.found.index(same)] = replace(same, levels=combination)
        else:
            self.left_out.append(LeftOut(name, _same_as(same.name)))

    def _solve(self, model: ModelConfig, free: Sequence[str], limits: Limits) -> tuple[ModelConfig, dict[str, int]]:
        """Return the model with its free settings solved, one after the other, and their values."""
        values: dict[str, int] = {}
        for name in free:
            solution = solve(model, 1.0, name, limits.share, "down")
            model, values = solution.config, values | solution.values
        return model, values


def _smallest(model: ModelConfig, free: str, limits: Limits) -> ModelConfig:
    """Return the model with a free setting at the smallest value it can have."""
    variable = free_variable(model, free, limits.share)
    value = variable.lead.near(0)
    while value < variable.lead.value:
        try:
            return with_settings(model, variable.at(value))
        except ConfigError:
            value += variable.lead.multiple
    return model


def _same_as(name: str) -> str:
    return f"is the same model as {name}"


def _one_line(error: ConfigError) -> str:
    return "; ".join(dict.fromkeys(str(error).splitlines()))
