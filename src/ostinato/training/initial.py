"""Start a run from a trained model: for fine-tuning, or to add a halting rule to a model that has been trained.

By default every weight of the trained model must have a parameter of the same name and shape in the new one; gates of
a stack that halts by another rule there are left, and those of the new rule begin as in any new model. Settings name
what else may differ: `training.init_except` leaves parameters out (an exchanged head), `training.extend_vocabulary`
gives embeddings rows for new symbols, `training.init_shared` makes weights that steps share of those of every step.
Where every parameter comes from is written to initial.json in the new run's directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ostinato.config.model import ModelConfig
from ostinato.config.training import TrainingConfig
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.loading import find_checkpoint
from ostinato.interop.recursive import Shared, gates_of_other_rules, to_recursive
from ostinato.models import Encoder, Model, build_model
from ostinato.models.checkpoint import load_model, weights_hash
from ostinato.tasks.start import check_is_run
from ostinato.training.freeze import check_patterns, matches

_KEY, _EXCEPT = "training.init_from", "training.init_except"
_BY_ID = ("source_weight", "target_weight", "output_weight", "output_bias")
_VALUES = ".table_VJ"
"""Parameters with a row for every id of a vocabulary; of what tokens add to values, the end of their names."""


@dataclass(frozen=True, slots=True)
class InitialReport:
    """Where the parameters of a model that starts from a run come from, by name.

    Args:
        checkpoint: the folder the run's weights are in. weights: their SHA-256; None of earlier versions.
        taken: copied. fresh: initialised as in any new model, because the run has none, a pattern leaves them out, or
            they are gates of another halting rule.
        made: of several of the run's (`init_shared`). resized: rows in the run and in this model; the run's are copied.
        left: of the run, not used.
    """

    checkpoint: str
    weights: str | None
    taken: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    resized: dict[str, tuple[int, int]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)


def check_start(config: ModelConfig, training: TrainingConfig) -> None:
    """Raise what `start_from` raises of a model of this configuration, before its run has a directory."""
    with torch.device("meta"):  # names and shapes decide
        model = build_model(config)
    donor = load_model(_checkpoint(training))
    if training.init_shared is not None:
        to_recursive(donor.to(model.device), model, training.init_shared)
    else:
        _taken(donor, model, training)


def start_from(model: Model, config: TrainingConfig) -> InitialReport:
    """Give a new model the weights of a checkpoint of the run that `init_from` names.

    Raises:
        ConfigError: weights the model has no place for, or of another shape, that no setting allows; patterns that
            match no parameter of either model; no run is named, or none is there.
        CheckpointError: the run has no checkpoint, or one that cannot be read.
    """
    folder = _checkpoint(config)
    weights = weights_hash(folder)
    if config.init_shared is not None:
        return _start_converted(model, load_model(folder, model.device), config.init_shared, folder, weights)
    donor = load_model(folder)
    trained, own = donor.state_dict(), model.state_dict()
    taken, grows = _taken(donor, model, config)
    with torch.no_grad():
        for name, found in taken.items():
            if name not in grows:
                own[name].copy_(found)
            elif isinstance(model, Encoder):  # The mask symbol's row is the last one, also of a larger vocabulary.
                own[name][: len(found) - 1].copy_(found[:-1])
                own[name][-1].copy_(found[-1])
            else:
                own[name][: len(found)].copy_(found)
    return InitialReport(
        checkpoint=str(folder),
        weights=weights,
        taken=[name for name in taken if name not in grows],
        fresh=[name for name in own if name not in taken],
        resized={name: (len(taken[name]), len(own[name])) for name in taken if name in grows},
        left=[name for name in trained if name not in taken],
    )


def _checkpoint(config: TrainingConfig) -> Path:
    """Return the folder of the checkpoint to start from."""
    path = str(config.init_from)
    check_is_run(path)
    return find_checkpoint(Path(path), config.init_checkpoint)


def _taken(donor: Model, model: Model, config: TrainingConfig) -> tuple[dict[str, Tensor], set[str]]:
    """Return the weights that a model takes of a trained one, and the names of those that get more rows in it.

    Raises:
        ConfigError: see `start_from`.
    """
    trained, own = donor.state_dict(), model.state_dict()
    check_patterns(_EXCEPT, config.init_except, [*trained, *own], lambda _: " of either model")
    gates = gates_of_other_rules(donor, model)
    taken = {
        name: found
        for name, found in trained.items()
        if not matches(name, config.init_except) and not name.startswith(gates)
    }
    # Matrices with more rows here and otherwise the same shape.
    grows = {
        name
        for name in taken
        if config.extend_vocabulary
        and (name in _BY_ID or name.endswith(_VALUES))
        and name in own
        and taken[name].shape[1:] == own[name].shape[1:]
        and len(taken[name]) < len(own[name])
    }
    wrong = [f"{name} is not in this model" for name in taken if name not in own]
    wrong += [
        f"{name} is {list(found.shape)} there and {list(own[name].shape)} here"
        for name, found in taken.items()
        if name in own and own[name].shape != found.shape and name not in grows
    ]
    if wrong:
        wrong.append(f"{_EXCEPT} names what is not to be taken")
        raise ConfigError([Problem(_KEY, str(config.init_from), "its weights do not fit: " + "; ".join(wrong))])
    return taken, grows


def _start_converted(model: Model, donor: Model, shared: Shared, folder: Path, weights: str | None) -> InitialReport:
    """Make the weights of a model whose steps share them of those of a run whose steps do not."""
    theirs, own = donor.state_dict(), model.state_dict()
    versions = {name: x._version for name, x in own.items()}  # torch counts how often a tensor is written to
    to_recursive(donor, model, shared)
    taken = [name for name in own if name in theirs and torch.equal(theirs[name], own[name])]
    fresh = [name for name, x in own.items() if x._version == versions[name] and name not in taken]
    made = [name for name in own if name not in {*taken, *fresh}]
    left = [name for name in theirs if name not in own or name in fresh]
    return InitialReport(str(folder), weights, taken=taken, fresh=fresh, made=made, left=left)
