"""The cases of `shared_updates`, done by processes that hold the model by a kind of `training.parallel`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import shared_updates
import torch
from safetensors.torch import load_file, save_file

from ostinato.config.training import DdpConfig, FsdpConfig, ParallelConfig, PlainParallelConfig, TrainingConfig
from ostinato.models import Model
from ostinato.training.parallel import Ddp, Parallel, why_not_ddp
from ostinato.training.processes import Processes

N_UPDATES = 5
TOLERANCE = 1e-5
KINDS: dict[str, ParallelConfig] = {
    "none": PlainParallelConfig(),
    "ddp": DdpConfig(bucket_mib=1),
    "kept": FsdpConfig(),
    "by use": FsdpConfig(keep_shared=False),
}


def hold(kind: str, processes: Processes) -> Callable[[Model, TrainingConfig], Parallel]:
    """Return what makes processes hold a model by a kind."""
    config = KINDS[kind]

    def held(model: Model, training: TrainingConfig) -> Parallel:
        if isinstance(config, FsdpConfig):
            from ostinato.training.sharding import Sharded

            return Sharded(model, processes, training, model.device, keep_shared=config.keep_shared)
        return Ddp(model, processes, config) if isinstance(config, DdpConfig) else Parallel(model, processes)

    return held


def do_updates(
    folder: Path, processes: Processes, kind: str, names: Sequence[str] = (), n_updates: int = N_UPDATES
) -> None:
    """Do cases, those that the kind is for, and note what was said; no names: all of them."""
    report: dict[str, Any] = {}
    for name in names or list(shared_updates.CASES):
        recipe, batches = shared_updates.CASES[name](folder / f"data-{processes.rank}")
        if kind == "ddp" and why_not_ddp(shared_updates.shared_model(recipe), recipe.training):
            continue
        found, said = shared_updates.updates((recipe, batches), processes, hold(kind, processes), n_updates)
        losses = processes.gather([one.losses for one in said])
        if processes.is_main:
            save_file(found, folder / f"{kind}-{name}.safetensors")
            numbers = [{"nlls": one.nlls, "norm": one.norm, "n_labels": one.n_labels} for one in said]
            report[name] = {"losses": losses, "said": numbers}
    if processes.is_main:
        (folder / f"{kind}.json").write_text(json.dumps(report))


def assert_updates(folder: Path, kind: str, name: str, here: Path, n_updates: int = N_UPDATES) -> None:
    """Compare a case with what one process does; `here`: a folder for its data."""
    recipe, batches = shared_updates.CASES[name](here)
    found = load_file(folder / f"{kind}-{name}.safetensors")
    report = json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))[name]
    expected, said = shared_updates.updates((recipe, batches), n_updates=n_updates)
    assert recipe.training.clip_norm is not None
    assert said[0].norm > recipe.training.clip_norm  # so that it is clipped
    # A parameter without a gradient has none in several processes either.
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        torch.testing.assert_close(found[key], tensor, atol=TOLERANCE, rtol=TOLERANCE, msg=lambda m, k=key: f"{k}: {m}")
    for one, gradient in zip(report["said"], said, strict=True):
        assert one["n_labels"] == gradient.n_labels
        assert one["nlls"] == pytest.approx(gradient.nlls, rel=TOLERANCE)
    # Later norms are those of weights that differ in their last digits.
    assert report["said"][0]["norm"] == pytest.approx(said[0].norm, rel=TOLERANCE)
    for losses in report["losses"]:
        for one, gradient in zip(losses, said, strict=True):
            assert one == pytest.approx(gradient.losses, rel=TOLERANCE)
