"""`train`: a recipe becomes a run directory with a trained and evaluated model."""

from __future__ import annotations

import gc
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ostinato.config.recipe import Recipe
from ostinato.data.disk import write_json
from ostinato.data.registry import DataAccess
from ostinato.evaluation import evaluate
from ostinato.evaluation.averaging import read_members
from ostinato.evaluation.loading import find_checkpoint
from ostinato.kernels import keep_freed_memory
from ostinato.models import load_model
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.checks import check_training
from ostinato.training.loggers import check_loggers, with_loggers
from ostinato.training.prepare import Prepared, prepare
from ostinato.training.processes import Processes
from ostinato.training.records import Records
from ostinato.training.reporter import Reporter
from ostinato.training.rundir import RunDirectory
from ostinato.training.session import Session
from ostinato.training.threads import cpu_threads
from ostinato.training.update import execution_of
from ostinato.version import __version__


def train(
    recipe: Recipe,
    directory: str | Path,
    *,
    resume: bool = False,
    access: DataAccess | None = None,
    reporter: Reporter | None = None,
) -> dict[str, Any]:
    """Train a model, evaluate it on the recipe's splits, and return what results.json holds.

    On a CPU the same recipe gives the same weights and the same metrics.jsonl, byte for byte, whether or not the run
    was interrupted and resumed. The process's global random generators are seeded, and it keeps memory it has released
    (`ostinato.kernels.keep_freed_memory`).

    In a run of several processes, every process calls this with the same arguments, and returns the same
    (`ostinato.training.processes`).

    Args:
        directory: of the run, see `ostinato.training.rundir`; it must not hold a run yet. Of several processes that of
            rank 0 is used, which all of them must be able to read.
        resume: resume the run in `directory` from its last checkpoint; start it where there is none; return the
            results where it has finished. What the recipe changes of the run's own is recorded, or refused: see
            `ostinato.training.changes`.
        access: where published data comes from; None: the default cache and mirror.
        reporter: called at every event, by rank 0; None: no reports.

    Raises:
        ConfigError: settings that do not fit together, the task or this machine.
        DataError: data that cannot be had or used.
        CheckpointError: a directory that holds a run already or that another process is at work on, or (resume) one of
            another recipe or other data.
        TrainingError: a loss or gradient that is not finite; other processes that have ended.
    """
    processes = Processes.from_environment()
    if processes.is_main:
        check_loggers(recipe.training.loggers)
    reporter = reporter if reporter and processes.is_main else Reporter()
    reporter = with_loggers(reporter, recipe.training.loggers if processes.is_main else ())
    device = processes.device(recipe.training.device)
    check_training(recipe, device)
    keep_freed_memory()
    run = RunDirectory(Path(processes.broadcast(lambda: str(directory))))
    with closing(reporter), closing(run), cpu_threads(recipe.training.n_threads):
        with processes.main_process_first():
            # The others load what rank 0 has prepared, as a resumed run does, and stop where they find other data.
            is_resumed = run.open(resume) if processes.is_main else True
            prepared = prepare(recipe, run, is_resumed, access, reporter.on_packing)
        results = processes.broadcast(lambda: run.results() if is_resumed else None)
        if results is None:
            results = _train(prepared, run, reporter, device, processes, resume)
        else:
            for note in prepared.notes:
                reporter.on_note(results["n_updates"], note)
        reporter.on_end(results)
        return results


def _train(
    prepared: Prepared, run: RunDirectory, reporter: Reporter, device: torch.device, processes: Processes, resume: bool
) -> dict[str, Any]:
    recipe = prepared.recipe
    checkpoints = Checkpoints(run.checkpoints, recipe.training.keep_last, recipe.training.save_every)
    session = Session(prepared, checkpoints, Records(run.path), reporter, device, processes)
    info = {
        "directory": str(run.path),
        "device": str(device),
        "processes": processes.world_size,
        "parameters": session.model.n_parameters(),
        "n_examples": len(prepared.batches.rows),
        "update": session.progress.update,
        "new_parameters": [] if session.initial is None else session.initial.fresh,
    }
    if session.initial is not None and processes.is_main:
        write_json(run.path / "initial.json", asdict(session.initial))
    reporter.on_start(recipe, info)
    if resume and checkpoints.last_update() is None:
        reporter.on_note(0, f"nothing to resume: {run.path} holds no checkpoint, so training begins anew")
    for note in prepared.notes:
        reporter.on_note(session.progress.update, note)
    if prepared.changes:
        changed = (f"{key} from {old} to {new}" for key, (old, new) in prepared.changes.items())
        reporter.on_note(session.progress.update, f"changed: {', '.join(changed)}")
    progress = session.run()
    # As if all sessions had followed each other: `seconds` of the results is the time of all of them.
    began = time.perf_counter() - session.seconds
    # The evaluation loads a model of its own, for which a GPU may have no room beside the trained one and Adam's state.
    del session
    gc.collect()  # modules and optimisers are in reference cycles
    torch.cuda.empty_cache()

    def finish() -> dict[str, Any]:
        checkpoint = find_checkpoint(run.path, recipe.evaluation.checkpoint)
        splits = _evaluate(prepared, checkpoint, device)
        selection, best = recipe.training.selection, progress.best
        results = {
            "name": recipe.name,
            "task": recipe.task.kind,
            "seed": recipe.seed,
            "version": __version__,
            **{name: info[name] for name in ("parameters", "device", "processes")},
            "n_updates": progress.update,
            "training_seconds": progress.seconds,
            "stopped": progress.stopped,
            "best_update": best.update if best else None,
            "checkpoint": checkpoint.name,
            **({"mean_of": members} if (members := read_members(checkpoint)) else {}),
            "selection": {
                **{name: getattr(selection, name) for name in ("split", "metric", "mode")},
                "value": best.value if best else None,
            },
            "data_sha256": run.data_hashes(),
            "seconds": time.perf_counter() - began,
            "splits": splits,
        }
        run.finish(results)
        return results

    return processes.broadcast(finish)


def _evaluate(prepared: Prepared, checkpoint: Path, device: torch.device) -> dict[str, Any]:
    recipe = prepared.recipe
    model = load_model(checkpoint, device, execution_of(recipe.training))
    return {
        split: evaluate(
            model,
            prepared.examples(split),
            prepared.tokenizers,
            data=recipe.data,
            decoding=recipe.decoding,
            metrics=prepared.metrics,
            by=prepared.by(split),
            max_examples=recipe.evaluation.max_examples,
            name=split,
            contrast=prepared.task.contrast_of(split),
        )
        for split in recipe.evaluation.splits or []
    }
