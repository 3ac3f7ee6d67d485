"""Sweeps whose runs take a part of a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ostinato.config.sweep import SweepConfig
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.runs import PlannedRun
from ostinato.experiments.sweep.watch import Event, Watcher

SMALL = [
    *("task.n_train=60", "task.n_eval=12", "training.device=cpu", "training.log_every=1"),
    *("training.n_updates=3", "training.evaluate_every=3", "training.save_every=3", "decoding.max_length=4"),
    *("model.d_model=16", "model.encoder.n_steps=1", "model.decoder.n_steps=1"),
    *("model.encoder.self_attention.n_heads=2", "model.decoder.self_attention.n_heads=2"),
    *("model.decoder.cross_attention.n_heads=2", "model.encoder.ffn.d_ff=16", "model.decoder.ffn.d_ff=16"),
]
SEEN = {"name": "seen", "kind": "result", "split": "test", "path": "exact_match"}
LOSS = {"name": "loss", "kind": "result", "split": "test", "path": "loss"}
TIME = {"name": "time", "kind": "result", "path": "training_seconds"}
LONGER = {"name": "longer", "kind": "evaluate", "split": "long", "path": "token_accuracy_free", "max_examples": 4}


def settings(**changes: Any) -> dict[str, Any]:
    """Return the settings of a sweep of two arms and two seeds."""
    return {
        "name": "tiny",
        "recipe": "digits/transformer",
        "overrides": SMALL,
        "seeds": [1, 2],
        "arms": [{"name": "base"}, {"name": "slow", "set": {"training.optimizer.lr": 1e-4}}],
        "measures": [LOSS],
    } | changes


def tiny(**changes: Any) -> SweepConfig:
    return load_sweep(settings(**changes))


def stamps(store: Path) -> dict[Path, int]:
    """Return when every file of the runs' checkpoints was written."""
    return {path: path.stat().st_mtime_ns for path in store.glob("*/checkpoints/**/*")}


class Recorder(Watcher):
    """Remembers how every run ended, and what happened meanwhile."""

    def __init__(self) -> None:
        self.results: list[tuple[str, str]] = []
        self.reasons: list[str] = []
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def on_result(self, run: PlannedRun, status: str, reason: str) -> None:
        self.results.append((run.name, status))
        self.reasons.append(reason)
