"""Recipes before they are built: their plans and budgets, alone or beside each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from ostinato.budget import (
    Assumptions,
    Budget,
    BudgetName,
    RankBytes,
    count_budget,
    count_bytes,
    count_rank_bytes,
    set_uses,
    stacks_with_depth,
)
from ostinato.budget.compare import Match, match_figures
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.config.training import FsdpConfig, TrainingConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError
from ostinato.experiments.results import assumptions_of, timed_lengths
from ostinato.plan import Kind
from ostinato.tasks.checks import split_problems
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task
from ostinato.tasks.vocabulary import FromData, SizedModel, size_model


@dataclass(frozen=True, slots=True)
class PlannedRecipe:
    """One recipe: its model with vocabulary sizes, how that is trained, and what it costs.

    Args:
        name: as it was asked for; a recipe that was asked for twice is numbered.
        timed_lengths: source and target tokens that it is timed with.
    """

    name: str
    sized: SizedModel
    training: TrainingConfig
    budget: Budget
    timed_lengths: tuple[int, int]

    @property
    def model(self) -> ModelConfig:
        """The model's configuration."""
        return self.sized.model

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        vocabulary = {"source": self.sized.source, "target": self.sized.target, "from": self.sized.origin}
        plans = {
            stack: [{"step": s.index, "round": s.round, "uses": [asdict(use) for use in s.uses]} for s in plan.steps]
            for stack, plan in self.model.plans().items()
        }
        return {"recipe": self.name, "vocabulary": vocabulary, "plans": plans, **self.budget.as_dict()}


def plan_recipes(
    names: Sequence[str],
    overrides: Sequence[str] = (),
    *,
    assumptions: Assumptions | None = None,
    access: DataAccess | None = None,
    source_vocab: int | None = None,
    target_vocab: int | None = None,
) -> list[PlannedRecipe]:
    """Load recipes, size their vocabularies and count what they cost.

    Args:
        names: recipes, YAML files, run directories. overrides: settings to change in all of them.
        assumptions: what to count for; precision, whether activations are recomputed, and how many rounds decoding
            caches, is each recipe's to say, a decoder-only model of pairs is counted for one sequence of both lengths,
            and an expected depth is for the recipes in whose stack of that name tokens halt.
        source_vocab, target_vocab: rows of the vocabularies; None: as the recipe or its data says.

    Raises:
        ConfigError: a recipe that cannot be used or trained, whose vocabulary is not known, or an expected depth that
            is not possible, or not in any of the recipes. DataError: columns that the data at hand do not have.
    """
    recipes = [load_recipe(name, overrides) for name in names]
    for name, recipe in zip(names, recipes, strict=True):
        # A shipped recipe names a run that is yet to be trained.
        is_given = Path(name).is_file() or any(one.startswith("training.init_from") for one in overrides)
        _check_trainable(recipe, access, with_start=is_given)
    given = assumptions or Assumptions()
    halting = {stack for recipe in recipes for stack in stacks_with_depth(recipe.model)}
    found, seen = [], Counter[str]()
    known: FromData = {}
    for name, recipe in zip(names, recipes, strict=True):
        sized = size_model(recipe, access, source=source_vocab, target=target_vocab, known=known)
        own = stacks_with_depth(sized.model)
        # What fits none of the recipes is left to fail.
        depths = {stack: d for stack, d in (given.expected_depth or {}).items() if stack in own or stack not in halting}
        assumed = assumptions_of(recipe, given)
        budget = count_budget(sized.model, replace(assumed, expected_depth=depths or None))
        seen[name] += 1
        unique = name if seen[name] == 1 else f"{name} ({seen[name]})"
        lengths = given.source_length, given.target_length
        if not sized.model.sees_prefix:  # which is timed with one
            lengths = timed_lengths(recipe, lengths)
        found.append(PlannedRecipe(unique, sized, recipe.training, budget, lengths))
    return found


def rank_bytes(planned: PlannedRecipe, n_ranks: int) -> RankBytes:
    """Return the bytes that one of several processes holds, each with a shard of every parameter (FSDP).

    By the recipe's `training.parallel` where that is of kind fsdp, else by the defaults of that kind. The batch of the
    assumptions is that of all processes together: each has its share of the sentences, rounded up.
    """
    from ostinato.models.build import parameter_shapes  # needs torch
    from ostinato.training.freeze import matches

    config, a = planned.training, planned.budget.assumptions
    names = parameter_shapes(planned.model)
    bytes_of_rank = count_bytes(
        planned.model,
        a.source_length,
        a.target_length,
        batch_size=-(-a.batch_size // n_ranks),
        precision=a.precision,
        n_steps=a.n_steps,
        checkpoint_activations=a.checkpoint_activations,
        n_predictions=planned.budget.n_predictions,
    )
    return count_rank_bytes(
        names,
        set_uses(planned.model.plans().values(), is_drawn=config.draws_rounds),
        config.parallel if config.parallel.kind == "fsdp" else FsdpConfig(),
        n_ranks,
        activations=bytes_of_rank.activations,
        frozen={name for name in names if matches(name, config.freeze) and not matches(name, config.freeze_except)},
        has_mean=config.ema_decay is not None,
    )


def _check_trainable(recipe: Recipe, access: DataAccess | None, *, with_start: bool) -> None:
    """Refuse what training would refuse later; torch is imported only where there is something to check with it."""
    try:
        problems = list(split_problems(recipe, build_task(recipe.task, recipe.data)))
    except ConfigError:  # files of the user's own that are not here yet: a recipe can be counted without them
        problems = []
    if problems:
        raise ConfigError(problems)
    training = recipe.training
    settings = training.freeze, training.optimizer.lr_scales, training.init_from, recipe.data.mixture
    of_rounds = training.rounds.gradient_rounds, training.consistency.is_there
    if any((*settings, *of_rounds)) or recipe.evaluation.by:
        from ostinato.training.trainable import check_trainable

        check_trainable(recipe, access, with_start=with_start)


def budget_matches(planned: Sequence[PlannedRecipe], tolerance: float) -> dict[BudgetName, dict[str, Match]]:
    """Return for every budget how far each recipe is from the first one."""
    budgets: tuple[BudgetName, ...] = get_args(BudgetName)
    return {name: match_figures({p.name: p.budget.figure(name) for p in planned}, tolerance) for name in budgets}


def as_dicts(planned: Sequence[PlannedRecipe], tolerance: float) -> list[dict[str, Any]]:
    """Return the recipes as plain data; of several, each says under `matches` how far it is from the first."""
    found = [one.as_dict() for one in planned]
    if len(planned) == 1:
        return found
    matches = budget_matches(planned, tolerance)
    for one, data in zip(planned, found, strict=True):
        data["matches"] = {"reference": planned[0].name, "tolerance": tolerance}
        data["matches"] |= {budget: asdict(by_name[one.name]) for budget, by_name in matches.items()}
    return found


def short_names(names: Sequence[str]) -> list[str]:
    """Return names without the folders that all of them begin with."""
    folders = [name.split("/")[:-1] for name in names]
    n_common = 0
    if len(names) > 1:
        while all(len(f) > n_common and f[n_common] == folders[0][n_common] for f in folders):
            n_common += 1
    return ["/".join(name.split("/")[n_common:]) for name in names]


def shared_banks(model: ModelConfig) -> list[tuple[Kind, str, list[str]]]:
    """Return the banks whose sets serve more than one stack: kind, bank, stacks."""
    users: dict[tuple[Kind, str], dict[str, None]] = {}
    for stack, plan in model.plans().items():
        for use in plan.uses():
            users.setdefault((use.kind, use.weights), {})[stack] = None
    found: dict[tuple[Kind, str], dict[str, None]] = {}
    for (kind, weights), stacks in users.items():
        if len(stacks) > 1:
            found.setdefault((kind, weights.rpartition("_")[0]), {}).update(stacks)
    return [(kind, bank, list(stacks)) for (kind, bank), stacks in found.items()]
