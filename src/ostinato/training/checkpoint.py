"""Training states on disk, in our own format: safetensors and JSON, nothing is ever pickled.

    checkpoints/
      update-000500/   model.safetensors, model.json    the model (`ostinato.models.checkpoint`)
                       state.safetensors                the optimiser's tensors, torch's random states; with
                                                        training.ema_decay, whose mean is the model, the weights that
                                                        are trained
                       optimizer/                       where every process holds a part of the optimiser's tensors
                                                        (training.parallel.kind: fsdp): a file of each
                                                        (`ostinato.training.shards`)
                       state.json                       format version, progress, Python's and numpy's random states,
                                                        and those of the run's other processes; the SHA-256 of the
                                                        other files, and of all else that it holds
      last.json        {"directory": "update-000500", "update": 500}    to resume from
      best.json        the same, for the best one
      average-best-5/  model.safetensors, model.json, average.json: a mean of others (`ostinato.evaluation.averaging`)

Order of a save: the folder is written under a temporary name, flushed, renamed; then last.json is replaced, then
best.json, then old folders are deleted. A crash at any point leaves a last.json that names a whole folder. What a crash
leaves behind it (half a folder, a whole one that no pointer names yet, a best.json that is one save late) is put right
by `Checkpoints.recover`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ostinato.data.disk import (
    check_plain,
    read_json_object,
    reading,
    remove_folder,
    remove_leftovers,
    sha256_of,
    write_json,
    write_text,
)
from ostinato.errors import CheckpointError
from ostinato.models import Model, load_model
from ostinato.models.checkpoint import checkpoint_folders, newest_updates
from ostinato.nn.execution import Execution
from ostinato.system_errors import naming
from ostinato.training.optim import OPTIMIZER, OPTIMIZER_PARTS, load_optimizer_tensors
from ostinato.training.parallel import Parallel
from ostinato.training.rng import RandomState, preserved_randomness
from ostinato.training.state import Progress
from ostinato.version import __version__

FORMAT_VERSION = 1
_TENSORS, _STATE = "state.safetensors", "state.json"
_TRAINED = "trained/"
"""What names of weights begin with where the model beside them is a mean over updates."""


@dataclass(frozen=True, slots=True)
class SavedState:
    """A training state read from disk.

    Args:
        randoms: random states of every process of the run, by rank. optimizer: by the names of `optimizer_tensors`.
        trained: the weights to go on from, by name, where `model` is a mean over updates; else none.
    """

    model: Model
    progress: Progress
    randoms: list[RandomState]
    optimizer: dict[str, Tensor]
    trained: dict[str, Tensor]

    def restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Give a new optimiser of `model` the saved state."""
        load_optimizer_tensors(self.model, optimizer, self.optimizer)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        root: the folder that holds them.
        keep_last: how many of the newest stay; those that the progress ranks as the best stay too.
        save_every: of the run, see `newest_updates`.
    """

    def __init__(self, root: Path, keep_last: int, save_every: int = 1) -> None:
        self.root = root
        self.keep_last = keep_last
        self.save_every = save_every

    def directory(self, update: int) -> Path:
        """Return the folder of an update's checkpoint."""
        return self.root / f"update-{update:06d}"

    def save(
        self,
        parallel: Parallel,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        randoms: Sequence[RandomState],
        trained: Mapping[str, Tensor],
    ) -> Path:
        """Write a checkpoint of the present update and make it the last one; return its folder.

        Args:
            parallel: the model, and how processes hold it; where one alone does not have it all, every one calls this.
            randoms: random states of every process of the run, which rank 0 has.
            trained: the weights that are trained, where the model shows a mean of them (`MovingAverage.shown`).
        """
        directory = self.directory(progress.update)
        _write(directory, parallel, optimizer, progress, randoms, trained)
        if parallel.processes.is_main:
            self.write_pointer("last", progress.update)
            self._after_save(progress)
        return directory

    def save_progress(self, progress: Progress) -> None:
        """Replace the progress in the last checkpoint, where nothing else has changed since it was saved."""
        path = self.directory(progress.update) / _STATE
        write_text(path, _sealed(read_json_object(path) | {"progress": progress.to_dict()}))
        self._after_save(progress)

    def _after_save(self, progress: Progress) -> None:
        if progress.best is not None:
            self.write_pointer("best", progress.best.update)
        self._prune(progress)

    def save_failed(
        self,
        parallel: Parallel,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        randoms: Sequence[RandomState],
        trained: Mapping[str, Tensor],
        report: dict[str, Any],
    ) -> Path:
        """Write the state before an update that failed, and a report, to `failed-update-N`.

        Model and optimiser are as they were before the update; random states and place in the data are past its
        batches. Args: see `save`.
        """
        directory = self.root / f"failed-update-{progress.update + 1}"
        _write(directory, parallel, optimizer, progress, randoms, trained, report)
        return directory

    def last_update(self) -> int | None:
        """Return the update of the last checkpoint, None where there is none yet."""
        return self._read_pointer("last")

    def progress(self) -> Progress:
        """Return the progress at the last checkpoint; that of a run that has not begun where there is none.

        Raises:
            CheckpointError: it is damaged.
        """
        last = self.last_update()
        return Progress() if last is None else _read_progress(self.directory(last))

    def n_kept(self) -> int:
        """Return how many checkpoints there are."""
        return len(self._updates())

    def load(self, device: torch.device, execution: Execution | None = None, update: int | None = None) -> SavedState:
        """Read a checkpoint.

        Args:
            execution: how its model runs, see `ostinato.nn.execution`.
            update: after which it was saved; None: the last.

        Raises:
            CheckpointError: there is none, or it is damaged or of another format version.
        """
        update = self.last_update() if update is None else update
        if update is None:
            raise CheckpointError(f"{self.root} holds no checkpoint to go on from")
        directory = self.directory(update)
        progress, randoms = read_state(directory)
        check_hashes(directory)
        model, optimizer = load_model(directory, device, execution), _read_optimizer(directory)
        trained = _strip_prefix(_TRAINED, _read_tensors(directory / _TENSORS, _TRAINED))
        return SavedState(model, progress, randoms, optimizer, trained)

    def recover(self) -> None:
        """Clear away what an interrupted save left behind, so that the last checkpoint is the newest there is."""
        if not self.root.is_dir():
            return
        remove_leftovers(self.root, but="average-")  # which other processes make
        last = self.last_update()
        for update in self._updates():
            if last is None or update > last:
                remove_folder(self.directory(update))
        if last is None:
            (self.root / "best.json").unlink(missing_ok=True)
            return
        progress = _read_progress(self.directory(last))
        if progress.best is not None and self._read_pointer("best") != progress.best.update:
            self.write_pointer("best", progress.best.update)
        self._prune(progress)

    def _prune(self, progress: Progress) -> None:
        updates = self._updates()
        newest = newest_updates(updates, self.save_every, progress.update, self.keep_last)
        kept = {*newest, progress.update, *(one.update for one in progress.ranking)}
        for update in updates:
            if update not in kept:
                remove_folder(self.directory(update))

    def _updates(self) -> list[int]:
        return list(checkpoint_folders(self.root))

    def write_pointer(self, role: str, update: int) -> None:
        """Say which checkpoint is the "last" or "best" one."""
        write_json(self.root / f"{role}.json", {"directory": self.directory(update).name, "update": update})

    def _read_pointer(self, role: str) -> int | None:
        path = self.root / f"{role}.json"
        if not path.is_file():
            return None
        with reading(path):
            return int(read_json_object(path)["update"])


def _write(
    directory: Path,
    parallel: Parallel,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
    randoms: Sequence[RandomState],
    trained: Mapping[str, Tensor],
    report: dict[str, Any] | None = None,
) -> None:
    """Write a new folder with a model, the rest of its training state and the report of a failure."""
    with parallel.new_folder(directory) as folder:
        tensors = {f"{OPTIMIZER}{name}": value for name, value in parallel.save(folder, optimizer).items()}
        tensors |= {f"{_TRAINED}{name}": value for name, value in trained.items()}
        if parallel.processes.is_main:
            _write_state(folder, tensors, progress, randoms, report)


def _write_state(
    folder: Path,
    tensors: dict[str, Tensor],
    progress: Progress,
    randoms: Sequence[RandomState],
    report: dict[str, Any] | None,
) -> None:
    """Write all of a training state that is not there yet; tensors: what is left of the optimiser's."""
    for rank, state in enumerate(randoms):
        tensors |= {f"{_random_prefix(rank)}{name}": value for name, value in state.torch.items()}
    first, *others = ({"python": state.python, "numpy": state.numpy} for state in randoms)
    content = {
        "format_version": FORMAT_VERSION,
        "ostinato": __version__,
        "progress": progress.to_dict(),
        "processes": len(randoms),
        "random": first,
    }
    content |= {"random_of_others": others} if others else {}
    with naming(folder / _TENSORS):
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, folder / _TENSORS)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    content["sha256"] = {file.relative_to(folder).as_posix(): sha256_of(file) for file in files}
    with naming(folder / _STATE):
        (folder / _STATE).write_text(_sealed(content), encoding="utf-8")
    if report is not None:
        write_json(folder / "failed.json", report)


def _sealed(content: dict[str, Any]) -> str:
    """Return the text of a state.json, which holds the SHA-256 of its own content: it can be replaced by itself."""
    return json.dumps(content | {"content_sha256": _content_hash(content)}) + "\n"


def _content_hash(content: dict[str, Any]) -> str:
    """Return the SHA-256 of all else in a state.json; JSON gives numbers back exactly, and in order."""
    others = {key: value for key, value in content.items() if key != "content_sha256"}
    return hashlib.sha256(json.dumps(others).encode()).hexdigest()


def check_hashes(folder: Path) -> None:
    """Refuse files of a training state that are not those that were written; earlier versions noted no hashes.

    Raises:
        CheckpointError: naming the file.
    """
    with reading(folder / _STATE):
        content = read_json_object(folder / _STATE)
        hashes = dict(content.get("sha256", {}))
        damaged = [
            name
            for name, digest in hashes.items()
            if not (folder / name).is_file() or sha256_of(folder / name) != digest
        ]
        if "content_sha256" in content and content["content_sha256"] != _content_hash(content):
            damaged.insert(0, _STATE)
    if damaged:
        raise CheckpointError(
            f"{folder / damaged[0]}: not the file that was written: its SHA-256 differs. Delete {folder} and name an "
            "earlier checkpoint in last.json to go on from there"
        )


def read_state(folder: Path) -> tuple[Progress, list[RandomState]]:
    """Return progress and every process's random states.

    Raises:
        CheckpointError: they cannot be read.
    """
    path = folder / _STATE
    progress, content = _read_progress(folder), read_json_object(path)
    tensors = _read_tensors(folder / _TENSORS, "random")
    try:
        found = [content["random"], *content.get("random_of_others", ())]
        randoms = [
            RandomState(one["python"], one["numpy"], _strip_prefix(_random_prefix(rank), tensors))
            for rank, one in enumerate(found)
        ]
        with preserved_randomness():
            for state in randoms:
                state.restore()
    except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a training state: {error!r}") from error
    return progress, randoms


def _read_optimizer(folder: Path) -> dict[str, Tensor]:
    """Return the optimiser's whole tensors, whatever processes wrote them."""
    tensors = _read_tensors(folder / _TENSORS, OPTIMIZER)
    if (parts := folder / OPTIMIZER_PARTS).is_dir():
        from ostinato.training.shards import read_whole  # takes seconds to import

        tensors |= read_whole(parts)
    return _strip_prefix(OPTIMIZER, tensors)


def _read_tensors(path: Path, prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a file whose names begin with something."""
    check_plain(path)
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name.startswith(prefix)}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def _read_progress(folder: Path) -> Progress:
    path = folder / _STATE
    content = read_json_object(path)
    version = content.get("format_version")
    if version != FORMAT_VERSION:
        raise CheckpointError(f"{path}: format version {version!r}, this ostinato {__version__} reads {FORMAT_VERSION}")
    with reading(path):
        progress = Progress.from_dict(content["progress"])
        if progress.update != int(folder.name.removeprefix("update-")):
            raise CheckpointError(
                f"{path}: is of update {progress.update}, and its folder of another one. Delete {folder} and name an "
                "earlier checkpoint in last.json to go on from there"
            )
    return progress


def _random_prefix(rank: int) -> str:
    """Return what the names of a process's random states begin with in state.safetensors; rank 0 has no number."""
    return f"random-{rank}/" if rank else "random/"


def _strip_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
