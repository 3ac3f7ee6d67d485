"""Start from a trained model: pre-training then fine-tuning, or a rule that joins a model that has learned."""

from __future__ import annotations

from pathlib import Path

import torch

from ostinato.data.tokenizer import Tokenizers
from ostinato.errors import ConfigError, Problem
from ostinato.models import Model
from ostinato.models.checkpoint import load_model
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.rundir import RunDirectory

_KEY = "training.init_from"


def tokenizers_of(path: str) -> Tokenizers:
    """Return the tokenizers of the run to start from: ids mean to a trained model what they meant when it learned.

    Raises:
        ConfigError: there is no run.
    """
    run = RunDirectory(Path(path))
    if not run.exists:
        raise ConfigError([Problem(_KEY, path, "holds no run: name a run directory, whose best checkpoint is taken")])
    return Tokenizers.load(run.tokenizers)


def start_from(model: Model, path: str) -> list[str]:
    """Give a new model the weights of a run's best checkpoint.

    Returns:
        Parameters that the run's model does not have: they start as they would without it.

    Raises:
        ConfigError: weights the model has no place for, or of another shape.
        CheckpointError: the run has no checkpoint, or one that cannot be read.
    """
    trained = load_model(Checkpoints(RunDirectory(Path(path)).checkpoints, keep_last=1).best_directory()).state_dict()
    own = model.state_dict()
    wrong = [f"{name} is not in this model" for name in trained if name not in own]
    wrong += [
        f"{name} is {list(found.shape)} there and {list(own[name].shape)} here"
        for name, found in trained.items()
        if name in own and own[name].shape != found.shape
    ]
    if wrong:
        raise ConfigError([Problem(_KEY, path, "its weights do not fit: " + "; ".join(wrong))])
    with torch.no_grad():
        for name, found in trained.items():
            own[name].copy_(found)
    return [name for name in own if name not in trained]
