"""The runs of a sweep before they are there: recipe, content address and directory of every arm and seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ostinato.budget import Assumptions, Budget, count_budget
from ostinato.budget.compare import check_match
from ostinato.config.model import EncoderConfig
from ostinato.config.recipe import Recipe
from ostinato.config.sweep import EqualConfig, SweepConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import CheckpointError, ConfigError, Problem
from ostinato.experiments.results import assumptions_of
from ostinato.experiments.sweep.files import arm_recipe
from ostinato.experiments.sweep.run_key import DataHashes, key_of_run, run_key
from ostinato.tasks.start import with_tokenizers_of
from ostinato.tasks.vocabulary import FromData, SizedModel, size_model
from ostinato.training.rundir import RunDirectory

_NAME_LENGTH = 16
"""Characters of a key that name a run's directory."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """One arm with one seed.

    Args:
        seed: of its row; the recipe's is larger by the arm's seed_shift.
        recipe: resolved, the splits of its evaluation named. start: the run it starts from.
    """

    arm: str
    seed: int
    key: str
    recipe: Recipe
    directory: Path
    start: PlannedRun | None = None

    @property
    def name(self) -> str:
        """What the run is called in lines for people."""
        return f"{self.arm}, seed {self.seed}"

    @property
    def is_finished(self) -> bool:
        """True where the run has been trained to its end, and says so in a file that can be read."""
        try:
            return RunDirectory(self.directory).results() is not None
        except CheckpointError:  # whoever works on the run says why
            return False


def plan_runs(sweep: SweepConfig, store: Path, access: DataAccess | None = None) -> list[PlannedRun]:
    """Return the runs of a sweep, arm by arm in its order, seed by seed.

    Reads the data for its hash, once for each way it is read; the hashes are kept in the store.

    Raises:
        ConfigError: a recipe that cannot be used, or does not fit its task; one that starts from a run that is not at
            its end. DataError: data that cannot be read.
    """
    hashes = DataHashes(store if store.is_dir() else None, access)
    found: dict[tuple[str, int], PlannedRun] = {}

    def plan(name: str, seed: int) -> PlannedRun:
        if (name, seed) not in found:
            arm = sweep.arm(name)
            start = None if arm.after is None else plan(arm.after, sweep.start_seed(arm, seed))
            recipe = arm_recipe(
                sweep, arm, seed + arm.seed_shift, None if start is None else str(start.directory.absolute())
            )
            recipe, data = hashes.resolve(recipe)
            start_key, origin = None, recipe.training.init_from
            if start is not None:
                start_key = start.key
                recipe, _ = with_tokenizers_of(recipe, start.recipe.data)  # as training does
            elif origin is not None:
                start_key = key_of_run(Path(origin))
            key = run_key(recipe, data, start=start_key)
            directory = store / key[:_NAME_LENGTH]
            if start is None and origin is not None and not RunDirectory(directory).exists:
                _check_origin(origin, recipe.training.init_checkpoint)
            found[name, seed] = PlannedRun(name, seed, key, recipe, directory, start)
        return found[name, seed]

    return [plan(arm.name, seed) for arm in sweep.arms for seed in sweep.seeds_of(arm)]


def _check_origin(origin: str, checkpoint: str) -> None:
    """Refuse a run whose checkpoint will be another while it trains on: arms would begin from different weights."""
    run, is_named = RunDirectory(Path(origin)), (Path(origin) / "checkpoints" / checkpoint).is_dir()
    if run.exists and not is_named and run.data_hashes() and run.results() is None:  # imported runs have read no data
        reason = f"is not at its end, and its checkpoint {checkpoint!r} may become another: end it (--resume)"
        raise ConfigError([Problem("training.init_from", origin, f"{reason}, or name one in training.init_checkpoint")])


def arm_budgets(sweep: SweepConfig, runs: Sequence[PlannedRun], access: DataAccess | None = None) -> dict[str, Budget]:
    """Return what every arm costs, at the lengths the sweep names.

    Raises:
        ConfigError: a vocabulary size that is not known yet.
    """
    equal = sweep.equal or EqualConfig()
    found: dict[str, Budget] = {}
    known: FromData = {}
    for run in runs:
        if run.arm not in found:
            model = _sized(run, access, known).model
            assumed = Assumptions(equal.source_length, equal.target_length)
            found[run.arm] = count_budget(model, assumptions_of(run.recipe, assumed))
    return found


def _sized(run: PlannedRun, access: DataAccess | None, known: FromData) -> SizedModel:
    """Return a run's model with its vocabulary sizes: of a run that starts from another, that one's."""
    if run.start is None or run.recipe.training.extend_vocabulary:
        return size_model(run.recipe, access, known=known)
    start = _sized(run.start, access, known)
    if isinstance(run.recipe.model, EncoderConfig):
        # The text's ids are the start's, without the mask symbol's row; labels are the arm's own.
        return size_model(run.recipe, access, source=start.target - 1, known=known)
    return size_model(run.recipe, access, source=start.source, target=start.target)


def check_equal(sweep: SweepConfig, budgets: Mapping[str, Budget]) -> None:
    """Refuse arms whose budgets differ, where the sweep says that they are equal.

    Raises:
        ConfigError: names every arm with its figure and its difference.
    """
    if sweep.equal is not None:
        figures = {name: budget.figure(sweep.equal.budget) for name, budget in budgets.items()}
        check_match(f"{sweep.name}: equal.budget", sweep.equal.budget, figures, sweep.equal.tolerance)
