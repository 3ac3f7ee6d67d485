"""The mean of several checkpoints of a run, as a checkpoint of its own.

    checkpoints/average-best-5/   model.safetensors, model.json    the mean (`ostinato.models.checkpoint`)
                                  average.json                     its members: name, value of the selection, SHA-256

`best` are the best by the run's selection among the checkpoints that it kept; `last` the newest one, and before it
those that were saved every training.save_every updates. A stored average is used again as long as its members are the
same files.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from ostinato.config.files import say_once
from ostinato.config.training import TrainingConfig
from ostinato.data.disk import check_plain, new_folder, read_json_object, sha256_of, write_json
from ostinato.errors import CheckpointError
from ostinato.models.checkpoint import WEIGHTS, checkpoint_folders, newest_updates, save_average
from ostinato.tasks.recipes import load_recipe

_CHECKPOINTS, _METRICS, _NOTE = "checkpoints", "metrics.jsonl", "average.json"
_LOCK, _RESULTS = ".average.lock", "results.json"
_NAME = re.compile(r"(best|last):(.*)")

Role = Literal["best", "last"]
Member = dict[str, Any]
"""A checkpoint of an average: checkpoint (its name), value (None where it was not evaluated), sha256."""


def parse_average(name: str) -> tuple[Role, int] | None:
    """Return role and number of names such as `best:5` and `last:5`, None for any other name.

    Raises:
        CheckpointError: what follows the colon is no number of at least 1.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    if not re.fullmatch(r"[1-9]\d*", found[2]):
        raise CheckpointError(f"checkpoint is {name!r}: after '{found[1]}:' comes how many to average, at least 1")
    return "best" if found[1] == "best" else "last", int(found[2])


def average_checkpoints(directory: Path, role: Role, n: int) -> Path:
    """Return the folder of the mean of a run's n best or newest checkpoints; compute and write it where necessary.

    Raises:
        CheckpointError: the run keeps fewer, or one of them cannot be read.
    """
    root = directory / _CHECKPOINTS
    target = root / f"average-{role}-{n}"
    members = _members(directory, role, n, target)
    if not _is_mean(target, members):
        with FileLock(root / _LOCK):
            if not _is_mean(target, members):  # another process may have made it meanwhile
                with new_folder(target) as folder:
                    save_average([root / member["checkpoint"] for member in members], folder)
                    write_json(folder / _NOTE, {"role": role, "of": members})
    return target


def _is_mean(average: Path, members: list[Member]) -> bool:
    return (average / WEIGHTS).is_file() and read_members(average) == members


def read_members(average: Path) -> list[Member] | None:
    """Return the members of an average, None where its average.json cannot be read."""
    try:
        members: list[Member] = read_json_object(average / _NOTE)["of"]
    except (CheckpointError, KeyError):
        return None
    return members


def describe_mean(checkpoint: str, members: Sequence[Member] | None) -> str:
    """Return the line that names the checkpoints a mean is of, with the values they were selected by; '' of no mean."""
    values = [(one["checkpoint"], one["value"]) for one in members or ()]
    texts = [name if value is None else f"{name} ({value:.6g})" for name, value in values]
    return f"{checkpoint}: the mean of {', '.join(texts)}" if texts else ""


def _members(directory: Path, role: Role, n: int, target: Path) -> list[Member]:
    """Return the n best or newest of the stored checkpoints, in that order; say which better ones are not there.

    Args:
        target: their mean, which the error for too few names where it was made before.
    """
    training = load_recipe(directory).training
    saved = checkpoint_folders(directory / _CHECKPOINTS)
    folders = {update: path for update, path in saved.items() if (path / "model.json").is_file()}
    values = _values(directory / _METRICS, training)
    updates = newest_updates(folders, training.save_every, max(folders, default=0), n)[::-1]
    lost: list[int] = []
    if role == "best":
        sign, begins = -1.0 if training.selection.mode == "max" else 1.0, training.halting.off_updates
        if any(u > begins for u in values):  # as in training: before that gates are untrained
            values = {u: value for u, value in values.items() if u > begins}
        ranked = sorted(values, key=lambda u: (sign * values[u], u))
        updates, lost = [u for u in ranked if u in folders], [u for u in ranked[:n] if u not in folders]
    if len(updates) < n:
        noun = "checkpoint" if len(updates) == 1 else "checkpoints"
        which = f"{noun} with a score of its selection" if role == "best" else noun
        names = ", ".join(folders[u].name for u in updates) or "none"
        reason = "the run has not saved more so far"
        if (kept := training.keep_best if role == "best" else training.keep_last) < n:
            reason = f"training.keep_{role} is {kept}; train with training.keep_{role}={n} to keep more"
        elif (directory / _RESULTS).is_file():
            key, every = ("evaluate", training.evaluate_every) if role == "best" else ("save", training.save_every)
            reason = f"the run is finished; train with a smaller training.{key}_every ({every}) to save more"
        if (target / WEIGHTS).is_file() and read_members(target):
            reason = f"their mean was made when there were {n}, and is kept: --checkpoint {target.name} reads it"
        raise CheckpointError(f"{directory} has {len(updates)} {which} ({names}), not {n}: {reason}")
    if lost:
        better = ", ".join(f"update {update}" for update in sorted(lost))
        say_once(f"{directory}: best:{n} is the mean of the best that were kept; better ones were not: {better}")
    try:
        return [
            {"checkpoint": folders[u].name, "value": values.get(u), "sha256": sha256_of(folders[u] / WEIGHTS)}
            for u in updates[:n]
        ]
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read: {error.strerror}") from error


def _values(path: Path, training: TrainingConfig) -> dict[int, float]:
    """Return by update the values of the selection's metric that are finite numbers."""
    values: dict[int, float] = {}
    check_plain(path)
    if not path.exists():
        return values
    try:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                if record["kind"] == "evaluation":
                    value = record["scores"].get(training.selection.metric)
                    if value is not None and math.isfinite(value):
                        values[int(record["update"])] = float(value)
    except (OSError, RecursionError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error!r}") from error
    return values
