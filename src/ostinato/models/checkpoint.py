"""Weights on disk: `model.safetensors` and `model.json` (format version, package version, configuration, SHA-256).

A shared parameter set is one tensor with one name, so it is stored once and needs no re-tying. Nothing is pickled. The
SHA-256 of the weights is checked when they are read (files of earlier versions have none), and that they are numbers of
the model's kind and finite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ostinato.config.files import say_once
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.config.renamed import with_new_names
from ostinato.data.disk import PARTIAL, check_plain, give_mode, read_json_object, sha256_of, sync
from ostinato.errors import CheckpointError, on_one_line, printable
from ostinato.models.base import TokenModel
from ostinato.models.build import Model, build_model
from ostinato.nn.execution import Execution
from ostinato.system_errors import naming
from ostinato.version import __version__

FORMAT_VERSION = 1
WEIGHTS, _DESCRIPTION = "model.safetensors", "model.json"
_FOLDER = re.compile(r"update-\d{6,18}", re.ASCII)


def save_model(model: Model, directory: str | Path) -> None:
    """Write weights and configuration, special ids included, into a directory, which is made where there is none.

    `load_model` reads them. What was there under the same names is replaced when all is written: a save that ends
    before leaves it. The two files get their names one behind the other: a kill between leaves new weights beside the
    earlier model.json, whose SHA-256 they have not, and `load_model` refuses them.

    Raises:
        CheckpointError: it is no model of this library, but what wraps one; the directory cannot be made.
    """
    directory = Path(directory)
    if not isinstance(model, TokenModel):
        raise CheckpointError(f"{type(model).__name__} is no model of this library: save what it wraps")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f"{directory}: cannot be made: {error.strerror}") from error
    weights = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    _save(weights, model.config, directory)


def write_description(model: Model, directory: Path) -> None:
    """Write model.json beside the weights that a directory holds already."""
    _replace(directory, model.config, directory / WEIGHTS)


def load_model(
    directory: str | Path,
    device: torch.device | str = "cpu",
    execution: Execution | None = None,
    *,
    verify: bool = True,
) -> Model:
    """Return the model that `save_model` wrote, in evaluation mode; a checkpoint of a run is such a directory.

    Its numbers are float32, or float64 where all that are stored are; half precision is widened.

    Args:
        execution: how it runs where a call does not say otherwise, see `ostinato.nn.execution`.
        verify: compare the SHA-256 of the weights with the one that was written beside them, and refuse numbers that
            are not finite.

    Raises:
        CheckpointError: it is a run; a file is missing, damaged, of a newer format, or its weights are not the model's.
        ConfigError: an execution that the model does not know.
    """
    directory = Path(directory)
    if (directory / "recipe.yaml").is_file():
        raise CheckpointError(f"{directory} is a run, with tokenizers: ostinato.load reads it")
    description = _read_description(directory / _DESCRIPTION)
    path = directory / WEIGHTS
    weights = _read_weights(path, description if verify else {})
    model = build_model(description["config"], execution).to(device)
    if all(x.dtype == torch.float64 for x in weights.values() if x.is_floating_point()):
        model = model.double()
    _check_names(path, weights, model.state_dict())
    if verify and (broken := [name for name, x in weights.items() if not bool(x.isfinite().all())]):
        raise CheckpointError(f"{path}: {', '.join(broken[:3])} hold numbers that are not finite")
    model.load_state_dict(weights)
    return model.eval()


def checkpoint_folders(root: Path) -> dict[int, Path]:
    """Return the folders of a run's checkpoints by their update, in order.

    Whatever else lies there (a copy, a folder of the user's) is left alone, and named in the log, once a process.
    """
    found = {}
    for path in sorted(root.glob("update-*")):
        if _FOLDER.fullmatch(path.name) and path.is_dir():
            found[int(path.name.removeprefix("update-"))] = path
        else:
            say_once(f"{printable(str(path))} is no checkpoint of the run: it is ignored")
    return dict(sorted(found.items()))


def newest_updates(updates: Iterable[int], save_every: int, last: int, n: int) -> list[int]:
    """Return, in order, the n newest of a run's checkpoints: multiples of save_every, and `last`.

    What was saved at other updates, for an interrupt, at an earlier end, or as one of the best, counts only as long as
    there are fewer of these: the newest are the same wherever the run was interrupted, and however many of the best it
    keeps.
    """
    by_worth = sorted(updates, key=lambda update: (update % save_every == 0 or update == last, update))
    return sorted(by_worth[-n:])


def save_average(members: Sequence[Path], directory: Path) -> None:
    """Write the mean of the weights of several checkpoints of one model into an existing directory.

    Every parameter is summed in float64, divided, and rounded once to its own type. A shared parameter set is one
    tensor and so is averaged once. Tensors that are not floating point must be the same in all.

    Raises:
        CheckpointError: a checkpoint that cannot be read, or is of another model.
    """
    first, *others = members
    description = _read_description(first / _DESCRIPTION)
    means = _read_weights(first / WEIGHTS, description)
    found = []
    for member in others:
        other = _read_description(member / _DESCRIPTION)
        if other["config"] != description["config"]:
            raise CheckpointError(f"{member} is another model than {first}: they have no mean")
        found.append(_read_weights(member / WEIGHTS, other))
        _check_names(member / WEIGHTS, found[-1], means)
    for name, tensor in means.items():  # one after the other: the members are mapped files, and take no memory
        if tensor.is_floating_point():
            total = tensor.to(torch.float64, copy=True)
            for weights in found:
                total += weights[name].double()
            means[name] = total.div_(len(members)).to(tensor.dtype)
        for member, weights in zip(others, found, strict=True):
            if not tensor.is_floating_point() and not torch.equal(weights[name], tensor):
                raise CheckpointError(f"{member / WEIGHTS}: {name} differs from {first}'s and has no mean")
    _save(means, description["config"], directory)


def _read_weights(path: Path, description: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, whose SHA-256 is that of the description, where it has one.

    They are the mapped file, whose bytes are read once from the disk, to be hashed, and are then in the system's cache:
    no device has to hold them beside the model that they are copied to.
    """
    check_plain(path)
    expected = description.get("sha256", {}).get(WEIGHTS)
    try:
        if expected is not None and sha256_of(path) != expected:
            raise CheckpointError(
                f"{path}: not the file that was written: its SHA-256 is not that of {_DESCRIPTION} beside it "
                "(--no-verify, in Python verify=False, loads it all the same; no mean is made of it)"
            )
        weights: dict[str, torch.Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read as weights: {error}") from error
    return weights


def _save(weights: dict[str, torch.Tensor], config: ModelConfig, directory: Path) -> None:
    partial = directory / f"{PARTIAL}{WEIGHTS}"
    with naming(directory / WEIGHTS, partial):
        try:
            save_file(weights, partial)
            sync(partial)
            _replace(directory, config, partial)
        finally:
            partial.unlink(missing_ok=True)


def weights_hash(directory: Path) -> str | None:
    """Return the SHA-256 of a checkpoint's weights, as it was written with them; None of earlier versions."""
    found = _read_description(directory / _DESCRIPTION).get("sha256", {}).get(WEIGHTS)
    return None if found is None else str(found)


def _replace(directory: Path, config: ModelConfig, weights: Path) -> None:
    """Write the model.json of a file of weights in the directory, and give both their names."""
    path, partial = directory / _DESCRIPTION, directory / f"{PARTIAL}{_DESCRIPTION}"
    hashes = {WEIGHTS: sha256_of(weights)}
    settings = config.model_dump(mode="json")
    description = {"format_version": FORMAT_VERSION, "ostinato": __version__, "config": settings, "sha256": hashes}
    with naming(path, partial):
        try:
            partial.write_text(json.dumps(description, indent=1) + "\n", encoding="utf-8")
            give_mode(weights, partial)
            sync(partial)
            weights.replace(directory / WEIGHTS)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    sync(directory)


def _read_description(path: Path) -> dict[str, Any]:
    description = read_json_object(path)
    version = description.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path}: format version {version!r}, this ostinato {__version__} reads {FORMAT_VERSION}")
    if not isinstance(description.get("config"), dict):
        raise CheckpointError(f"{path}: not a model configuration: it has no 'config'")
    if not isinstance(description.setdefault("sha256", {}), dict):
        raise CheckpointError(f"{path}: is damaged: its 'sha256' names no files")
    settings = with_new_names({"model": description["config"]}, Recipe)["model"]
    try:  # with what later versions have added
        config = TypeAdapter[ModelConfig](ModelConfig).validate_python(settings)
    except ValidationError as error:
        raise CheckpointError(f"{path}: not a model configuration: {on_one_line(error)}") from error
    return description | {"config": config}


def _check_names(path: Path, found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    problems = [f"missing {name}" for name in wanted if name not in found]
    problems += [f"unexpected {name}" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, the model's is {tuple(wanted[name].shape)}"
        for name in wanted
        if name in found and found[name].shape != wanted[name].shape
    ]
    problems += [
        f"{name} is of {found[name].dtype}, the model's of {wanted[name].dtype}"
        for name in wanted
        if name in found and _kind(found[name]) != _kind(wanted[name])
    ]
    if problems:
        raise CheckpointError(f"{path}: " + "; ".join(problems))


def _kind(tensor: torch.Tensor) -> object:
    """Return what a tensor may not change into when it is loaded; floating-point numbers may change their width."""
    return torch.float32 if tensor.is_floating_point() else tensor.dtype
