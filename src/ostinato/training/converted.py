"""A run made of another one whose steps all have weights of their own: shared over depth, one wide set, experts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ostinato.errors import ConfigError
from ostinato.evaluation.averaging import parse_average
from ostinato.evaluation.loading import LoadedRun
from ostinato.interop.pretrained import Pretrained
from ostinato.interop.recursive import Shared, to_recursive
from ostinato.models import build_model
from ostinato.models.checkpoint import WEIGHTS
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.start import keep_tokenizers
from ostinato.training.imported import write_run
from ostinato.training.rundir import RunDirectory

_NO_START = (
    *("training.init_from=null", "training.init_checkpoint=best", "training.init_except=[]"),
    *("training.init_shared=null", "training.extend_vocabulary=false"),
)
"""The weights are those of the run that is converted, whatever that one began from."""


def convert_run(
    run: LoadedRun, overrides: Sequence[str], run_dir: str | Path, shared: Shared = "average", noise: float = 0.0
) -> Pretrained:
    """Write a run directory with the model that the overrides make of a run's, and the weights nearest to its own.

    `training.init_from` of the new run's folder trains it on.

    Args:
        overrides: `dotted.key=value` changes to the run's recipe, of the model above all.
        shared, noise: see `ostinato.interop.to_recursive`; the recipe's seed is that of the noise and of new routers.

    Raises:
        CheckpointError: the run directory holds something already.
        ConfigError: settings that are not valid, another tokenizer, or a model that cannot be made of the run's.
    """
    target = RunDirectory(Path(run_dir))
    target.check_empty()
    overrides = [*overrides, *_NO_START]
    recipe = load_recipe(run.directory, overrides)
    if average := parse_average(recipe.evaluation.checkpoint):  # the new run has one checkpoint
        recipe = load_recipe(run.directory, [*overrides, f"evaluation.checkpoint={average[0]}"])
    _, problems = keep_tokenizers(recipe, run.directory)
    if problems:
        raise ConfigError(problems)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = build_model(recipe.model).eval()
    to_recursive(run.model, model, shared, noise=noise, seed=recipe.seed)
    found = Pretrained(recipe, model, run.tokenizers)
    write_run(found, target, {run.checkpoint / WEIGHTS: run.hashes[1]})
    return found
