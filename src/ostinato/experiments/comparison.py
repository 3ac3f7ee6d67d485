"""Arms of one comparison: equal budgets checked before anything is trained, every seed's result kept as a row."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

from ostinato.budget import Assumptions, BudgetName, count_budget, count_macs, count_parameters
from ostinato.budget.compare import check_match
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.data.registry import DataAccess
from ostinato.experiments.results import pass_lengths
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model
from ostinato.training.loop import train
from ostinato.training.reporter import Reporter
from ostinato.version import __version__


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant of a comparison: a recipe, and what is changed in it."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measure:
    """What is compared: a metric on a split, with the heading it gets in tables."""

    title: str
    split: str
    metric: str


@dataclass(frozen=True, slots=True)
class Row:
    """One arm, one seed.

    Args:
        macs: of one teacher-forced pass over a sentence of `macs_lengths` source and target tokens.
        metrics: by the measures' titles. seconds: of training and final evaluation.
    """

    arm: str
    recipe: str
    seed: int
    parameters: int
    macs: int
    macs_lengths: tuple[int, int]
    metrics: dict[str, float]
    seconds: float
    version: str = __version__


@dataclass(frozen=True, slots=True)
class Comparison:
    """Arms, seeds and measures.

    Args:
        macs_lengths: source and target tokens of the sentence whose pass is counted.
        matched: the budget that is the same in all arms (`ostinato.budget.BudgetName`; bytes and MACs at
            `macs_lengths`). None: none is, and arms of any size may be compared.
        tolerance: largest relative difference of that budget between the first arm and another.
    """

    name: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    measures: tuple[Measure, ...]
    macs_lengths: tuple[int, int]
    matched: BudgetName | None = "parameters"
    tolerance: float = 0.01

    def run(
        self,
        directory: Path,
        *,
        access: DataAccess | None = None,
        reporter: Reporter | None = None,
        on_row: Callable[[Row], None] = lambda row: None,
    ) -> list[Row]:
        """Train and evaluate every arm with every seed; write `results.jsonl`.

        Runs already finished in `directory` are read, not repeated.

        Raises:
            ConfigError: the arms' matched budgets differ by more than the tolerance.
            CheckpointError: a run in `directory` is of another recipe or of other data.
        """
        recipes = {arm.name: load_recipe(arm.recipe, arm.overrides) for arm in self.arms}
        models = {name: size_model(recipe, access).model for name, recipe in recipes.items()}
        self._check_budgets(recipes, models)
        directory.mkdir(parents=True, exist_ok=True)
        rows: list[Row] = []
        for seed in self.seeds:
            for arm in self.arms:
                row = self._row(arm, models[arm.name], seed, directory, access, reporter)
                rows.append(row)
                on_row(row)
        lines = [json.dumps(asdict(row)) + "\n" for row in rows]
        (directory / "results.jsonl").write_text("".join(lines), encoding="utf-8")
        return rows

    def _check_budgets(self, recipes: dict[str, Recipe], models: dict[str, ModelConfig]) -> None:
        if self.matched is None:
            return
        lengths = {name: Assumptions(*pass_lengths(recipe, self.macs_lengths)) for name, recipe in recipes.items()}
        figures = {name: count_budget(model, lengths[name]).figure(self.matched) for name, model in models.items()}
        check_match(f"comparison.{self.name}.arms", self.matched, figures, self.tolerance)

    def _row(
        self,
        arm: Arm,
        model: ModelConfig,
        seed: int,
        directory: Path,
        access: DataAccess | None,
        reporter: Reporter | None,
    ) -> Row:
        run = directory / f"{arm.name}-seed-{seed}"
        recipe = load_recipe(arm.recipe, [*arm.overrides, f"seed={seed}"])
        # A finished run is not trained again, but one of another recipe or of other data is refused.
        results = train(recipe, run, resume=True, access=access, reporter=reporter)
        return Row(
            arm=arm.name,
            recipe=arm.recipe,
            seed=seed,
            parameters=count_parameters(model).stored,
            macs=count_macs(model, *pass_lengths(recipe, self.macs_lengths)).total,
            macs_lengths=self.macs_lengths,
            metrics={m.title: float(results["splits"][m.split][m.metric]) for m in self.measures},
            seconds=float(results["seconds"]),
        )


def summary(rows: Sequence[Row]) -> list[tuple[str, dict[str, tuple[float, float]]]]:
    """Return for every arm the mean and standard deviation (over seeds, n - 1) of every metric."""
    arms: list[tuple[str, dict[str, tuple[float, float]]]] = []
    for name in dict.fromkeys(row.arm for row in rows):
        mine = [row for row in rows if row.arm == name]
        spread = {
            title: (mean(values), stdev(values) if len(values) > 1 else 0.0)
            for title in mine[0].metrics
            for values in [[row.metrics[title] for row in mine]]
        }
        arms.append((name, spread))
    return arms
