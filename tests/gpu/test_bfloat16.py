"""bfloat16 learns as float32 does: routers, what is left of tokens, and losses stay in float32."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
import torch
from plans import PLANS, model_of, ragged_batch

from ostinato.config.model import LanguageModelConfig
from ostinato.config.training import TrainingConfig
from ostinato.models import build_model
from ostinato.training.optim import build_optimizer
from ostinato.training.update import Updater

N_UPDATES = 120


def _curve(name: str, precision: str) -> list[float]:
    """Return the mean loss a label of every tenth of the updates."""
    settings = {"precision": precision, "n_updates": N_UPDATES, "optimizer": {"lr": 5e-3}}
    config = TrainingConfig.model_validate(settings | {"schedule": {"kind": "constant", "warmup": 10}})
    model = model_of(name).train()
    updater = Updater(model, build_optimizer(model, config.optimizer), config)
    losses = []
    for update in range(1, N_UPDATES + 1):
        gradient = updater.accumulate([ragged_batch(16, seed=update % 20)], update)
        updater.apply(gradient, update)
        losses.append(sum(gradient.nlls) / gradient.n_labels)
    size = N_UPDATES // 10
    return [sum(losses[first : first + size]) / size for first in range(0, N_UPDATES, size)]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_the_curve_in_bfloat16_is_within_one_percent_of_that_in_float32(name: str) -> None:
    expected, found = _curve(name, "float32"), _curve(name, "bfloat16")
    assert expected[-1] < 0.9 * expected[0]  # something is learned
    assert found == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("name", ["experts", "act", "stick_breaking", "select", "token_choice"])
def test_routers_masses_and_logits_stay_in_float32(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in PLANS:
        monkeypatch.setitem(PLANS, name, PLANS["act"] | {"halting": {"kind": name}})
    with torch.autocast("cpu", torch.bfloat16):
        output = model_of(name).train()(ragged_batch())
    assert output.logits_BTV.dtype == torch.float32
    for stack in output.stacks.values():
        for routing in stack.routings:
            assert {routing.logits_NE.dtype, routing.probs_NE.dtype, routing.gates_NK.dtype} == {torch.float32}
        assert (stack.halting is None) == (name == "experts")
        if stack.halting is not None:
            masses = [getattr(stack.halting, one.name) for one in fields(stack.halting)]
            assert {x.dtype for x in masses if x.is_floating_point()} == {torch.float32}


def test_rounds_without_a_gradient_leave_it_to_the_others() -> None:
    """Copies of weights in bfloat16 are made in the first rounds, and used in the last ones, too."""
    loop = {"n_steps": 1, "repeats": 4, "inject": {"kind": "linear"}}
    stack = {"n_steps": 2, "segments": [{"n_steps": 1}, loop], "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 16}}
    config = LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 19, "decoder": stack})
    found, batch = [], replace(ragged_batch(), source=None)
    for precision in ("float32", "bfloat16"):
        torch.manual_seed(0)
        model = build_model(config).train()
        rounds = {"kind": "plan", "gradient_rounds": 2}
        settings = TrainingConfig.model_validate({"precision": precision, "rounds": rounds})
        Updater(model, build_optimizer(model, settings.optimizer), settings).accumulate([batch], 1)
        found.append({name for name, one in model.named_parameters() if one.grad is not None and one.grad.any()})
    assert found[0] == found[1] == {name for name, _ in model.named_parameters()}
