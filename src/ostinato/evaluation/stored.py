"""Outputs of a system for a split: read from a file, or decoded once and stored in the run's directory.

A run's outputs are stored as predictions/<split>-<key>.jsonl, and the evaluation that decoded them beside it as
<split>-<key>.json. The key is a hash of everything that decides the outputs: the weights, tokenizers, data and decoding
settings, the examples themselves, the kind of device and this package's version.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from ostinato.data.disk import hash_of, hash_of_hashes, make_folder, read_json_object, sha256_of_all, write_json
from ostinato.data.example import Fingerprint, fingerprint, take_evenly
from ostinato.data.lines import read_lines
from ostinato.data.registry import DataAccess
from ostinato.data.sources import parse_object
from ostinato.errors import CheckpointError, ConfigError, DataError, Problem
from ostinato.evaluation.changed_data import change_of_data
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.predictions import PredictionWriter, are_predictions
from ostinato.evaluation.scores import ForcedCounts
from ostinato.tasks.registry import build_task
from ostinato.version import __version__

_FOLDER = "predictions"
_FIELDS = {"index": int, "prediction": str, "reference": str}


@dataclass(frozen=True, slots=True)
class Outputs:
    """The outputs of a system for a split and their references, in the split's order.

    Args:
        sources: what the system was given; "" where the file does not say.
        file: that holds them. evaluation: the evaluation that decoded them (`ostinato.evaluation.evaluate`, with
            `device` and `n_threads`); None for a file of unknown origin. is_new: decoded by this call.
        data_note: says that the split is not what it was when the run was trained.
        counts: teacher-forced ones of every example, where they were asked for (`run_counts`).
        checkpoint, mean_line: of a run, which weights wrote them (`LoadedRun`).
    """

    predictions: list[str]
    references: list[str]
    sources: list[str]
    file: Path
    evaluation: dict[str, Any] | None = None
    is_new: bool = False
    data_note: str | None = None
    counts: list[ForcedCounts] | None = None
    checkpoint: str | None = None
    mean_line: str = ""

    def take(self, n: int | None) -> Outputs:
        """Return n of them, spread evenly, or all for None; n of them have no `evaluation`, which is of all."""
        if n is None or n >= len(self.predictions):
            return self
        held = (self.predictions, self.references, self.sources)
        predictions, references, sources = (list(take_evenly(texts, n)) for texts in held)
        return replace(self, predictions=predictions, references=references, sources=sources, evaluation=None)


def read_outputs(path: Path) -> Outputs:
    """Read a file of predictions as `PredictionWriter` writes it: JSON lines in any order, `index` from 0.

    Raises:
        DataError: naming file, line and reason; rows that are missing or there twice.
    """
    rows: dict[int, tuple[str, str, str]] = {}
    for number, line in read_lines(path):
        record: dict[str, Any] = parse_object(line, path, number)
        for field, kind in _FIELDS.items():
            if not isinstance(record.get(field), kind):
                raise DataError(f"{path}, line {number}: needs {field!r}, of type {kind.__name__}")
        if record["index"] in rows:
            raise DataError(f"{path}, line {number}: index {record['index']} is there twice")
        rows[record["index"]] = record["prediction"], record["reference"], str(record.get("source") or "")
    missing = next((index for index in range(len(rows)) if index not in rows), None)
    if missing is not None:
        raise DataError(f"{path}: there is no prediction of index {missing}")
    if not rows:
        raise DataError(f"{path}: there are no predictions")
    predictions, references, sources = map(list, zip(*(rows[index] for index in range(len(rows))), strict=True))
    return Outputs(predictions, references, sources, path)


def run_outputs(
    run: LoadedRun,
    split: str,
    *,
    max_examples: int | None = None,
    access: DataAccess | None = None,
    fresh: bool = False,
    **decoding: Any,
) -> Outputs:
    """Return a run's outputs for a split: those stored in its directory, or, where there are none, new ones.

    Args:
        max_examples: spread evenly; None: what the recipe says, else all. access: where data files are found.
        fresh: decode again, whatever is stored. decoding: settings to use instead of the recipe's.

    Raises:
        ConfigError: no such split, an impossible setting, a language model. DataError: data that cannot be used.
    """
    n = run.recipe.evaluation.max_examples if max_examples is None else max_examples
    task = build_task(run.recipe.task, run.recipe.data, access, trains=False)
    read = Fingerprint()
    # Held, to be decoded: read again, a file that is written meanwhile may give others than those of the key.
    examples = list(read.of(task.examples(split)))
    settings: dict[str, Any] = {
        "version": __version__,
        "split": split,
        "examples": fingerprint(take_evenly(examples, n)),
        "weights": hash_of_hashes(run.hashes),
        "tokenizers": sha256_of_all(sorted((run.directory / "tokenizers").iterdir())),
        "data": run.recipe.data.model_dump(mode="json"),
        "decoding": run.decoding(**decoding).model_dump(mode="json"),
        "device": run.model.device.type,
    }
    changed = change_of_data(run.directory, run.recipe, split, read)
    of_run: dict[str, Any] = {"data_note": changed, "checkpoint": run.checkpoint.name, "mean_line": run.mean_line}
    if thresholds := run.model.halting_thresholds():  # They may differ from the configuration's.
        settings["halting_threshold"] = thresholds
    execution = run.model.current_execution
    if run.model.exits():
        settings["exit"] = [execution.exit, execution.exit_scope]
    if execution.paths or execution.cached_rounds is not None:
        settings["rounds"] = [execution.paths, execution.cached_rounds]
    note = run.directory / _FOLDER / f"{split}-{hash_of(settings)[:16]}.json"
    if not fresh and (stored := _read_stored(note)) is not None:
        return replace(stored, **of_run)
    make_folder(note.parent)
    with FileLock(note.with_name(f".lock-{note.stem}")):
        if not fresh and (stored := _read_stored(note)) is not None:  # another process has made them meanwhile
            return replace(stored, **of_run)
        file = note.with_suffix(".jsonl")
        if file.is_symlink() or (file.is_file() and not are_predictions(file)):
            file.unlink()
        # What was kept stays until it is replaced; after a kill between the two files the note has another hash.
        with PredictionWriter(file, overwrite=True) as writer:
            given: dict[str, Any] = {"max_examples": max_examples, "access": access, "examples": examples}
            result = run.evaluate(split, metrics=[], by=[], predictions=writer, **given, **decoding)
        result |= {"device": str(run.model.device), "n_threads": torch.get_num_threads()}
        write_json(note, {"settings": settings, "sha256": sha256_of_all([file]), "evaluation": result})
        return replace(read_outputs(file), evaluation=result, is_new=True, **of_run)


def run_counts(
    run: LoadedRun, split: str, *, max_examples: int | None = None, access: DataAccess | None = None
) -> Outputs:
    """Return the teacher-forced counts of a run for every example of a split; nothing is decoded or stored.

    Args:
        max_examples, access: as of `run_outputs`.

    Raises:
        ConfigError: no such split; texts are packed into blocks. DataError: data that cannot be used.
    """
    if run.recipe.data.block_length is not None:
        reason = "packs texts into blocks, so that there are no scores by text to draw from; `ostinato table` shows "
        raise ConfigError([Problem("data.block_length", run.recipe.data.block_length, f"{reason}the runs' scores")])
    found: dict[int, ForcedCounts] = {}
    result = run.evaluate(split, metrics=[], by=[], max_examples=max_examples, access=access, each=found.__setitem__)
    result |= {"device": str(run.model.device), "n_threads": torch.get_num_threads()}
    counts = [found[index] for index in range(len(found))]
    of_run: dict[str, Any] = {"data_note": result.get("data_note"), "checkpoint": run.checkpoint.name}
    of_run["mean_line"] = run.mean_line
    return Outputs([], [], [], run.directory, result, is_new=True, counts=counts, **of_run)


def _read_stored(note: Path) -> Outputs | None:
    """Return stored outputs, None where there are none or their file has been changed."""
    file = note.with_suffix(".jsonl")
    try:
        content = read_json_object(note)
        if content.get("sha256") != sha256_of_all([file]):
            return None
    except (CheckpointError, FileNotFoundError):
        return None
    return replace(read_outputs(file), evaluation=content["evaluation"])
