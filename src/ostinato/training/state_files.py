"""The files of a training state beside its model: optimiser, progress, random states of every process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ostinato.errors import CheckpointError
from ostinato.models import Model
from ostinato.training.optim import optimizer_tensors
from ostinato.training.rng import RandomState
from ostinato.training.state import Progress
from ostinato.version import __version__

FORMAT_VERSION = 1
_TENSORS, _STATE = "state.safetensors", "state.json"
_OPTIMIZER, _RANDOM = "optimizer/", "random/"


def write_state(
    folder: Path,
    model: Model,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    randoms: Sequence[RandomState] | None,
) -> None:
    """Write what a training state is beside its model to a folder.

    Args:
        randoms: random states of every process of the run; None: this one is alone.
    """
    tensors = {f"{_OPTIMIZER}{name}": value for name, value in optimizer_tensors(model, optimizer).items()}
    states = [RandomState.capture()] if randoms is None else randoms
    for rank, state in enumerate(states):
        tensors |= {f"{_random_prefix(rank)}{name}": value for name, value in state.torch.items()}
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, folder / _TENSORS)
    first, *others = ({"python": state.python, "numpy": state.numpy} for state in states)
    content = {
        "format_version": FORMAT_VERSION,
        "ostinato": __version__,
        "progress": progress.to_dict(),
        "processes": len(states),
        "random": first,
    }
    content |= {"random_of_others": others} if others else {}
    (folder / _STATE).write_text(json.dumps(content) + "\n", encoding="utf-8")


def _random_prefix(rank: int) -> str:
    return _RANDOM if not rank else f"{_RANDOM.removesuffix('/')}-{rank}/"


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def read_state(folder: Path) -> tuple[Progress, list[RandomState], dict[str, Tensor]]:
    """Return progress, every process's random states, and the optimiser's tensors.

    Raises:
        CheckpointError: a file is damaged, or of another format version.
    """
    path = folder / _STATE
    progress, content = read_progress(folder), read_json(path)
    tensors = _read_tensors(folder / _TENSORS)
    try:
        found = [content["random"], *content.get("random_of_others", ())]
        randoms = [
            RandomState(one["python"], one["numpy"], _below(_random_prefix(rank), tensors))
            for rank, one in enumerate(found)
        ]
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: not a training state: {error!r}") from error
    return progress, randoms, _below(_OPTIMIZER, tensors)


def read_progress(folder: Path) -> Progress:
    """Return the progress alone.

    Raises:
        CheckpointError: the file is damaged, or of another format version.
    """
    path = folder / _STATE
    version = read_json(path, "format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path}: format version {version!r}, this ostinato {__version__} reads {FORMAT_VERSION}")
    try:
        return Progress.from_dict(read_json(path, "progress"))
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: not a training state: {error!r}") from error


def read_json(path: Path, key: str | None = None) -> Any:
    """Return the content of a file, or what it has under a key.

    Raises:
        CheckpointError: it cannot be read, or has no such key.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return content if key is None else content[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error!r}") from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
