"""A mean of the weights over updates: its formula, what uses it, and that runs which are resumed have the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import launched
import parallel_worker
import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import last_checkpoint, records, tiny_recipe, weights
from torch import Tensor

from ostinato.config.model import LanguageModelConfig
from ostinato.config.recipe import Recipe
from ostinato.errors import CheckpointError, ConfigError
from ostinato.evaluation.loading import load
from ostinato.models import build_model
from ostinato.training import train
from ostinato.training.freeze import freeze
from ostinato.training.moving_average import MovingAverage

DECAY = 0.8
TRAINED = "trained/"


def recipe(folder: Path, **training: Any) -> Recipe:
    return tiny_recipe(folder / "data", **{"ema_decay": DECAY, "n_updates": 5} | training)


def trained(checkpoint: Path) -> dict[str, Tensor]:
    """Return the weights that were trained, of a checkpoint whose model is their mean."""
    found = load_file(checkpoint / "state.safetensors")
    return {name.removeprefix(TRAINED): value for name, value in found.items() if name.startswith(TRAINED)}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_checkpoints_hold_the_mean_by_its_formula_and_the_weights_beside_it(tmp_path: Path, precision: str) -> None:
    settings = {"precision": precision, "save_every": 1, "keep_last": 5}
    train(recipe(tmp_path, n_updates=0, ema_decay=None), tmp_path / "start")
    start = load_file(last_checkpoint(tmp_path / "start") / "model.safetensors")
    mean = {name: one.double() for name, one in start.items()}
    train(recipe(tmp_path, **settings), tmp_path / "run")
    for update in range(1, 6):
        checkpoint = tmp_path / "run" / "checkpoints" / f"update-{update:06d}"
        after, shown = trained(checkpoint), load_file(checkpoint / "model.safetensors")
        assert after.keys() == shown.keys() == mean.keys()
        mean = {name: DECAY * one + (1 - DECAY) * after[name].double() for name, one in mean.items()}
        for name, expected in mean.items():
            assert shown[name].dtype == torch.float32
            torch.testing.assert_close(shown[name].double(), expected, atol=1e-6, rtol=1e-5)
    assert any(not torch.equal(after[name], shown[name]) for name in after)


def test_training_itself_is_what_it_is_without_a_mean(tmp_path: Path) -> None:
    for name, decay in (("with", DECAY), ("without", None)):
        train(recipe(tmp_path, ema_decay=decay), tmp_path / name)
    plain = load_file(last_checkpoint(tmp_path / "without") / "model.safetensors")
    found = trained(last_checkpoint(tmp_path / "with"))
    assert all(torch.equal(found[name], value) for name, value in plain.items())
    assert trained(last_checkpoint(tmp_path / "without")) == {}
    losses = [[one["loss"] for one in records(tmp_path / name, "training")] for name in ("with", "without")]
    assert losses[0] == losses[1]


def test_evaluations_and_the_choice_of_the_best_are_of_the_mean(tmp_path: Path) -> None:
    train(recipe(tmp_path), tmp_path / "run")
    [record] = records(tmp_path / "run", "evaluation")
    run = load(tmp_path / "run")
    assert run.evaluate("dev")["loss"] == pytest.approx(record["scores"]["loss"], rel=1e-6)
    run.model.load_state_dict(trained(last_checkpoint(tmp_path / "run")))
    assert run.evaluate("dev")["loss"] != pytest.approx(record["scores"]["loss"], rel=1e-4)


def test_a_resumed_run_has_the_same_weights_mean_and_state_bit_for_bit(tmp_path: Path) -> None:
    train(recipe(tmp_path, n_updates=3), tmp_path / "run")
    train(recipe(tmp_path, n_updates=6), tmp_path / "run", resume=True)
    train(recipe(tmp_path, n_updates=6), tmp_path / "long")
    assert weights(tmp_path / "run") == weights(tmp_path / "long")
    states = [(last_checkpoint(tmp_path / name) / "state.safetensors").read_bytes() for name in ("run", "long")]
    assert states[0] == states[1]
    with pytest.raises(CheckpointError, match=r"cannot change training\.ema_decay: 0\.8 in the run, 0\.9 now"):
        train(recipe(tmp_path, n_updates=7, ema_decay=0.9), tmp_path / "run", resume=True)


def test_weights_that_are_not_the_models_are_named_where_a_run_is_resumed() -> None:
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    model = build_model(LanguageModelConfig.model_validate({"d_model": 4, "vocab_size": 9, "decoder": stack}))
    found = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    name = next(iter(found))
    with pytest.raises(CheckpointError, match=name):
        MovingAverage(model, DECAY).resume({key: value for key, value in found.items() if key != name})


def test_a_shared_set_has_one_mean_and_what_is_frozen_has_none() -> None:
    stack = {"n_steps": 3, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    model = build_model(LanguageModelConfig.model_validate({"d_model": 4, "vocab_size": 9, "decoder": stack}))
    freeze(model, ["*norm*"])
    average = MovingAverage(model, 0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    average.update()
    with average.shown() as kept:
        shown = {name: value.clone() for name, value in model.state_dict().items()}
    assert set(kept) == {name for name, one in model.named_parameters() if one.requires_grad}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name] + 1.0)  # as it was before the block
        expected = before[name] + 0.5 if name in kept else value
        torch.testing.assert_close(shown[name], expected)


def test_processes_that_hold_parts_of_a_model_have_no_mean(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.ema_decay is 0\.8: .*parallel\.kind=ddp or none"):
        recipe(tmp_path, parallel={"kind": "fsdp"})
    with pytest.raises(ConfigError, match=r"training\.ema_decay"):
        recipe(tmp_path, ema_decay=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["none", "ddp"])
def test_several_processes_have_the_mean_of_one(tmp_path: Path, kind: str) -> None:
    worker = Path(parallel_worker.__file__)
    for code, said in launched.launch(worker, str(tmp_path), "train", "mean", kind, "5", str(DECAY), n=2):
        assert code == 0, said
    train(parallel_worker.run_recipe(tmp_path, kind, 5, DECAY), tmp_path / "alone")  # one process needs no kind
    one, other = (load_file(last_checkpoint(tmp_path / name) / "model.safetensors") for name in ("mean", "alone"))
    for name, value in other.items():
        torch.testing.assert_close(one[name], value, atol=1e-5, rtol=1e-5)
