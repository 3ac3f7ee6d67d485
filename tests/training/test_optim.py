from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_recipe
from torch import nn

from ostinato.config.model import LanguageModelConfig
from ostinato.config.positions import WindowConfig
from ostinato.config.stack import StackConfig
from ostinato.config.training import OptimizerConfig, ScheduleConfig
from ostinato.errors import CheckpointError
from ostinato.models import build_model
from ostinato.training.optim import (
    build_optimizer,
    learning_rate,
    load_optimizer_tensors,
    optimizer_tensors,
    parameter_groups,
    set_learning_rate,
)

# lr = 0.8, W = 4 warm-up updates, U = 12 updates in all, d_model = 16; values worked out by hand.
_BY_HAND = [
    ("constant", 1, 0.2),
    ("constant", 4, 0.8),
    ("constant", 12, 0.8),
    ("inverse_sqrt", 1, 0.2),
    ("inverse_sqrt", 4, 0.8),
    ("inverse_sqrt", 9, 0.8 * 2 / 3),
    ("inverse_sqrt", 16, 0.4),
    ("inverse_sqrt_t2t", 1, 0.8 * 0.25 * 0.25 * 0.5),
    ("inverse_sqrt_t2t", 4, 0.8 * 0.25 * 0.5),
    ("inverse_sqrt_t2t", 9, 0.8 * 0.25 / 3),
    ("linear", 2, 0.4),
    ("linear", 4, 0.8),
    ("linear", 8, 0.44),
    ("linear", 12, 0.08),
    ("linear", 20, 0.08),
    ("cosine", 3, 0.6),
    ("cosine", 4, 0.8),
    ("cosine", 6, 0.08 + 0.72 * (1 + math.sqrt(0.5)) / 2),
    ("cosine", 8, 0.44),
    ("cosine", 12, 0.08),
]


@pytest.mark.parametrize(("kind", "update", "expected"), _BY_HAND)
def test_learning_rates_have_the_values_of_their_formulas(kind: str, update: int, expected: float) -> None:
    schedule = ScheduleConfig.model_validate({"kind": kind, "warmup": 4, "final_fraction": 0.1})
    found = learning_rate(OptimizerConfig(lr=0.8), schedule, update, n_updates=12, d_model=16)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_without_warm_up_the_first_update_has_nearly_the_full_rate(kind: str) -> None:
    schedule = ScheduleConfig.model_validate({"kind": kind, "warmup": 0})
    rates = [learning_rate(OptimizerConfig(lr=1.0), schedule, u, n_updates=100, d_model=16) for u in (1, 100)]
    assert rates[0] == pytest.approx(1.0, abs=0.011)
    assert rates[1] == pytest.approx(1.0 if kind == "constant" else 0.0, abs=1e-12)


def test_a_warm_up_longer_than_the_run_is_all_there_is() -> None:
    schedule = ScheduleConfig(kind="linear", warmup=10)
    rates = [learning_rate(OptimizerConfig(lr=1.0), schedule, u, n_updates=5, d_model=16) for u in (1, 5)]
    assert rates == [0.1, 0.5]


def _model(tie: str = "output") -> nn.Module:
    torch.manual_seed(0)
    stack = StackConfig.model_validate(
        {
            "n_steps": 3,
            "self_attention": {"n_heads": 2, "share": "all"},
            "ffn": {"d_ff": 12},
            "relative": WindowConfig(window=2).model_dump(),
        }
    )
    config = {"d_model": 8, "vocab_size": 7, "tie_embeddings": tie, "decoder": stack.model_dump()}
    return build_model(LanguageModelConfig.model_validate(config))


def test_norms_biases_embeddings_and_position_tables_are_exempt_from_decay() -> None:
    model = _model(tie="none")
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, exempt = ([names[id(p)] for p in group["params"]] for group in parameter_groups(model, 0.1))
    assert {name.rsplit(".", 1)[-1] for name in decayed} == {"weight", "output_weight"}
    assert all(name.startswith(("banks.self_attention", "banks.ffn", "output_weight")) for name in decayed)
    assert "target_weight" in exempt
    assert any("relative" in name for name in exempt)
    assert sum("norm" in name for name in exempt) > 0
    assert not any("norm" in name or "bias" in name for name in decayed)


def test_maps_of_an_injection_by_decay_and_of_the_end_of_a_loop_do_not_decay() -> None:
    core = {"n_steps": 2, "repeats": 2, "inject": {"kind": "decay"}, "end_map": True}
    stack = {"n_steps": 2, "segments": [core], "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    model = build_model(LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 7, "decoder": stack}))
    names = {id(p): name for name, p in model.named_parameters()}
    decayed, _ = ({names[id(p)] for p in group["params"]} for group in parameter_groups(model, 0.1))
    assert decayed
    assert not any(name.startswith(("banks.injection", "banks.end_map")) for name in decayed)


def test_with_experts_only_matrices_decay(tmp_path: Path) -> None:
    config = tiny_recipe(tmp_path, experts=True).model.model_copy(
        update={"source_vocab_size": 7, "target_vocab_size": 7, "tie_embeddings": "none"}
    )
    model = build_model(config)
    names = {id(p): name.removeprefix("banks.") for name, p in model.named_parameters()}
    decayed, exempt = ({names[id(p)] for p in group["params"]} for group in parameter_groups(model, 0.1))
    assert not decayed & exempt
    assert decayed | exempt == set(names.values())
    attention = "self_attention.encoder_0"
    assert {name for name in decayed if not name.startswith(("cross_attention", "self_attention.decoder"))} == {
        "output_weight",
        *(f"{attention}.{name}" for name in ("query_EDI", "out_EID", "kv.weight", "router.projection.weight")),
        *(f"ffn.{name}.experts.{weight}" for name in ("encoder_0", "decoder_0") for weight in ("up_EDF", "down_EFD")),
        *(f"ffn.encoder_sparse.experts.{i}.{weight}" for i in (0, 1) for weight in ("up_EDF", "down_EFD")),
        *(f"ffn.{name}.router.experts_ED" for name in ("encoder_0", "encoder_sparse")),
        *(f"ffn.decoder_0.router.{name}.weight" for name in ("hidden", "scores")),
    }
    stacked = {"query_bias_EI", "out_bias_ED", "router.experts_EC"}
    assert {f"{attention}.{name}" for name in stacked} <= exempt
    assert {f"ffn.encoder_sparse.{name}.1" for name in ("norm_weights", "norm_biases")} <= exempt
    assert {"ffn.encoder_0.experts.up_bias_EF", "ffn.encoder_sparse.experts.0.down_bias_ED"} <= exempt


def test_a_parameter_shared_over_depth_is_optimised_once() -> None:
    model = _model()
    chosen = [id(p) for group in parameter_groups(model, 0.1) for p in group["params"]]
    assert len(chosen) == len(set(chosen))
    assert set(chosen) == {id(p) for p in model.parameters()}


def _one_update(kind: str, decay: float, start: float, gradient: float) -> float:
    module = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        module.weight.fill_(start)
    config = OptimizerConfig.model_validate({"kind": kind, "lr": 0.1, "weight_decay": decay, "eps": 1e-12})
    optimizer = build_optimizer(module, config)
    module.weight.grad = torch.full_like(module.weight, gradient)
    optimizer.step()
    return module.weight.item()


def test_adamw_shrinks_the_weight_and_adam_adds_decay_to_the_gradient() -> None:
    # The first Adam update moves by lr * sign(gradient), whatever its size.
    assert _one_update("adamw", 0.5, 2.0, 1.0) == pytest.approx(2.0 - 0.1 * 0.5 * 2.0 - 0.1, rel=1e-6)
    assert _one_update("adam", 0.5, 2.0, -0.5) == pytest.approx(2.0 - 0.1, rel=1e-6)
    assert _one_update("adam", 0.0, 2.0, -0.5) == pytest.approx(2.0 + 0.1, rel=1e-6)


def test_the_learning_rate_is_set_for_every_group() -> None:
    optimizer = build_optimizer(_model(), OptimizerConfig())
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 0.25]


def test_an_optimiser_restored_from_its_tensors_goes_on_with_the_same_bits() -> None:
    models = [_model(), _model()]
    optimizers = [build_optimizer(model, OptimizerConfig(lr=0.1)) for model in models]

    def update(place: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for p in models[place].parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        optimizers[place].step()

    for seed in range(3):
        update(0, seed)
    models[1].load_state_dict(models[0].state_dict())
    stored = {name: tensor.clone() for name, tensor in optimizer_tensors(models[0], optimizers[0]).items()}
    load_optimizer_tensors(models[1], optimizers[1], stored)
    for place in (0, 1):
        update(place, 7)
    for left, right in zip(models[0].parameters(), models[1].parameters(), strict=True):
        assert torch.equal(left, right)


def test_a_parameter_that_no_update_has_reached_needs_no_state() -> None:
    model = _model()
    optimizers = [build_optimizer(model, OptimizerConfig()) for _ in range(2)]
    (name, first), *others = model.named_parameters()
    for _, p in others:
        p.grad = torch.ones_like(p)
    optimizers[0].step()
    stored = optimizer_tensors(model, optimizers[0])
    assert f"exp_avg/{name}" not in stored
    load_optimizer_tensors(model, optimizers[1], stored)
    assert optimizers[1].state.keys() == {p for _, p in others}
    first.grad = torch.ones_like(first)
    optimizers[1].step()
    assert optimizers[1].state[first]["step"] == 1


def test_an_optimiser_state_of_another_model_is_refused_by_name() -> None:
    model = _model()
    optimizer = build_optimizer(model, OptimizerConfig())
    with pytest.raises(CheckpointError, match="exp_avg/no_such"):
        load_optimizer_tensors(model, optimizer, {"exp_avg/no_such": torch.zeros(2)})
    with pytest.raises(CheckpointError, match="exp_avg/target_weight"):
        load_optimizer_tensors(model, optimizer, {"exp_avg/target_weight": torch.zeros(2, 2)})


def test_the_state_of_a_fused_optimiser_is_where_its_parameters_are() -> None:
    # Its kernel reads the number of updates beside them; a checkpoint is read on the CPU.
    model = _model()
    optimizer = build_optimizer(model, OptimizerConfig())
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    stored = optimizer_tensors(model, optimizer)
    elsewhere = _model().to("meta")
    for is_fused, device in ((True, "meta"), (False, "cpu")):
        restored = build_optimizer(elsewhere, OptimizerConfig())
        for group in restored.param_groups:
            group["fused"] = is_fused
        load_optimizer_tensors(elsewhere, restored, stored)
        state = restored.state[next(elsewhere.parameters())]
        assert {name: value.device.type for name, value in state.items()} == {
            "step": device,
            "exp_avg": "meta",
            "exp_avg_sq": "meta",
        }
