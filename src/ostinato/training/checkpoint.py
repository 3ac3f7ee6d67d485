"""Training states on disk, in our own format: safetensors and JSON, nothing is ever pickled.

    checkpoints/
      update-000500/   model.safetensors, model.json    the model (`ostinato.models.checkpoint`)
                       state.safetensors                the optimiser's tensors, torch's random states
                       state.json                       format version, progress, Python's and numpy's random states,
                                                        and those of the run's other processes
      last.json        {"directory": "update-000500", "update": 500}    where to go on
      best.json        the same, for the best one
      average-best-5/  model.safetensors, model.json, average.json: a mean of others (`ostinato.evaluation.averaging`)

Order of a save: the folder is written under a temporary name, flushed, renamed; then last.json is replaced, then
best.json, then old folders are deleted. A crash at any point leaves a last.json that names a whole folder. What a crash
leaves behind it (half a folder, a whole one that no pointer names yet, a best.json that is one save late) is put right
by `Checkpoints.recover`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ostinato.data.disk import new_folder, remove_folder, remove_leftovers, write_json
from ostinato.errors import CheckpointError
from ostinato.models import Model, load_model, save_model
from ostinato.nn.execution import Execution
from ostinato.training.optim import load_optimizer_tensors
from ostinato.training.rng import RandomState
from ostinato.training.state import Progress
from ostinato.training.state_files import read_json, read_progress, read_state, write_state


@dataclass(frozen=True, slots=True)
class SavedState:
    """A training state read from disk.

    Args:
        randoms: random states of every process of the run, by rank. optimizer: by the names of `optimizer_tensors`.
    """

    model: Model
    progress: Progress
    randoms: list[RandomState]
    optimizer: dict[str, Tensor]

    def restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the optimiser of `model` where it was."""
        load_optimizer_tensors(self.model, optimizer, self.optimizer)


class Checkpoints:
    """The checkpoints of one run.

    Args:
        root: the folder that holds them.
        keep_last: how many of the newest stay; those that the progress ranks as the best stay too.
    """

    def __init__(self, root: Path, keep_last: int) -> None:
        self.root = root
        self.keep_last = keep_last

    def directory(self, update: int) -> Path:
        """Return the folder of an update's checkpoint."""
        return self.root / f"update-{update:06d}"

    def save(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        randoms: Sequence[RandomState] | None = None,
    ) -> Path:
        """Write a checkpoint of the present update and make it the last one; return its folder.

        Args:
            randoms: random states of every process of the run; None: this one is alone.
        """
        directory = self.directory(progress.update)
        with new_folder(directory) as folder:
            save_model(model, folder)
            write_state(folder, model, optimizer, progress, randoms)
        self._point("last", progress.update)
        if progress.best is not None:
            self._point("best", progress.best.update)
        self._prune(progress)
        return directory

    def save_failed(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        progress: Progress,
        report: dict[str, Any],
        randoms: Sequence[RandomState] | None = None,
    ) -> Path:
        """Write the state before an update that failed, and a report, to `failed-update-N`.

        Model and optimiser are as they were before the update; random states and place in the data are past its
        batches.
        """
        directory = self.root / f"failed-update-{progress.update + 1}"
        with new_folder(directory) as folder:
            save_model(model, folder)
            write_state(folder, model, optimizer, progress, randoms)
            write_json(folder / "failed.json", report)
        return directory

    def last_update(self) -> int | None:
        """Return the update of the last checkpoint, None where there is none yet."""
        return self._read_pointer("last")

    def load(self, device: torch.device, execution: Execution | None = None) -> SavedState:
        """Read the last checkpoint.

        Args:
            execution: how its model runs, see `ostinato.nn.execution`.

        Raises:
            CheckpointError: there is none, or it is damaged or of another format version.
        """
        update = self.last_update()
        if update is None:
            raise CheckpointError(f"{self.root} holds no checkpoint to go on from")
        directory = self.directory(update)
        progress, randoms, optimizer = read_state(directory)
        return SavedState(load_model(directory, device, execution), progress, randoms, optimizer)

    def best_directory(self) -> Path:
        """Return the folder of the best checkpoint.

        Raises:
            CheckpointError: there is none.
        """
        update = self._read_pointer("best")
        if update is None:
            raise CheckpointError(f"{self.root} holds no best checkpoint: nothing has been evaluated yet")
        return self.directory(update)

    def recover(self) -> None:
        """Clear away what an interrupted save left behind, so that the last checkpoint is the newest there is."""
        if not self.root.is_dir():
            return
        remove_leftovers(self.root)
        last = self.last_update()
        for update in self._updates():
            if last is None or update > last:
                remove_folder(self.directory(update))
        if last is None:
            (self.root / "best.json").unlink(missing_ok=True)
            return
        progress = read_progress(self.directory(last))
        if progress.best is not None and self._read_pointer("best") != progress.best.update:
            self._point("best", progress.best.update)
        self._prune(progress)

    def _prune(self, progress: Progress) -> None:
        updates = self._updates()
        kept = {*updates[-self.keep_last :], progress.update, *(one.update for one in progress.ranking)}
        for update in updates:
            if update not in kept:
                remove_folder(self.directory(update))

    def _updates(self) -> list[int]:
        return sorted(int(path.name.removeprefix("update-")) for path in self.root.glob("update-[0-9]*"))

    def _point(self, role: str, update: int) -> None:
        write_json(self.root / f"{role}.json", {"directory": self.directory(update).name, "update": update})

    def _read_pointer(self, role: str) -> int | None:
        path = self.root / f"{role}.json"
        if not path.is_file():
            return None
        return int(read_json(path, "update"))
