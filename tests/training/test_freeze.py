from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from routed_models import tiny_batches, tiny_model
from safetensors.torch import load_file
from tiny_runs import BALANCE, last_checkpoint, tiny_recipe, weights
from torch import Tensor

from ostinato.config.training import BalanceConfig, TrainingConfig
from ostinato.errors import ConfigError
from ostinato.models import Model
from ostinato.models.losses import balance_loss
from ostinato.training import train
from ostinato.training.freeze import freeze
from ostinato.training.optim import build_optimizer
from ostinato.training.trainable import check_trainable
from ostinato.training.update import Updater

PATTERNS = ["*.router.*", "*.experts.*", "*.norm_*"]


def is_frozen(name: str) -> bool:
    return any(part in name for part in (".router.", ".experts.", ".norm_"))


def updated(model: Model, config: TrainingConfig, n: int = 3) -> dict[str, Tensor]:
    """Do some updates; return the weights from before them."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    updater = Updater(model.train(), build_optimizer(model, config.optimizer), config)
    for update in range(1, n + 1):
        updater.apply(updater.accumulate(tiny_batches(), update), update)
    return before


def test_frozen_parameters_stay_as_they_are_bit_for_bit_and_all_others_train(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, experts=True, optimizer={"lr": 0.1, "weight_decay": 0.5})
    model = tiny_model(recipe)
    # Lengths that the hypersphere router would bring back to 0.1 if it were trained.
    router_embeddings = model.get_parameter("banks.self_attention.encoder_0.router.experts_EC")
    with torch.no_grad():
        router_embeddings.mul_(1.7)
    frozen = set(freeze(model, PATTERNS))
    assert frozen == {n for n, _ in model.named_parameters() if is_frozen(n)}
    assert "banks.ffn.encoder_sparse.norm_weights.0" in frozen
    chosen = {
        id(p) for group in build_optimizer(model, recipe.training.optimizer).param_groups for p in group["params"]
    }
    assert chosen == {id(p) for n, p in model.named_parameters() if n not in frozen}
    before = updated(model, recipe.training)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name]) == (name in frozen), name


def test_trained_expert_embeddings_are_held_at_their_length(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, experts=True, optimizer={"lr": 0.1, "weight_decay": 0.5})
    model = tiny_model(recipe)
    name = "banks.self_attention.encoder_0.router.experts_EC"
    before = updated(model, recipe.training)
    after = model.get_parameter(name)
    assert not torch.equal(after, before[name])
    torch.testing.assert_close(after.norm(dim=1), torch.full((3,), 0.1))


def test_the_balance_loss_of_frozen_routers_reaches_the_states_below(tmp_path: Path) -> None:
    model = tiny_model(tiny_recipe(tmp_path, experts=True))
    freeze(model, PATTERNS)
    loss = balance_loss(model(tiny_batches()[0]).by_router(), BalanceConfig(**BALANCE), model.balance_temperatures())
    assert loss is not None
    loss.backward()
    for name in ("source_weight", "target_weight", "banks.norm.self_attention_encoder_0.weight"):
        grad = model.get_parameter(name).grad
        assert grad is not None
        assert bool(grad.any()), name
    assert all(p.grad is None for n, p in model.named_parameters() if is_frozen(n))


def test_a_pattern_that_matches_nothing_is_an_error_that_names_some_that_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        train(tiny_recipe(tmp_path / "data", experts=True, freeze=["*.routers.*", "router"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("training.freeze is '*.routers.*': matches no parameter of the model; others do: ")
    assert "*.router.*" in lines[0]
    with pytest.raises(ConfigError, match="nothing is left to train"):
        freeze(tiny_model(tiny_recipe(tmp_path / "data")), ["*"])


def test_an_exception_from_nothing_that_is_frozen_is_an_error(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data", freeze=["banks.ffn.*"], freeze_except=["banks.self_attention.*"])
    with pytest.raises(ConfigError) as error:
        train(recipe, tmp_path / "run")
    reason = "matches no parameter that training.freeze names: remove it"
    assert str(error.value) == f"training.freeze_except is 'banks.self_attention.*': {reason}"
    with pytest.raises(ConfigError, match=reason):
        check_trainable(recipe)  # plans of runs and sweeps say it, too


def test_updates_that_ask_no_halting_rule_are_refused_where_nothing_else_is_trained(tmp_path: Path) -> None:
    given: dict[str, Any] = {"freeze": ["*"], "freeze_except": ["banks.halting.*"]}
    recipe = tiny_recipe(tmp_path / "data", halting=True, n_updates=1, **given)
    with pytest.raises(ConfigError, match=r"^training.halting.off_updates is 3: only halting rules are trained"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    asked = recipe.training.halting.model_copy(update={"off_updates": 0})
    training = recipe.training.model_copy(update={"halting": asked})
    train(recipe.model_copy(update={"training": training}), tmp_path / "run")


@pytest.mark.slow
def test_a_run_with_frozen_parameters_is_resumed_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe(tmp_path, experts=True, freeze=PATTERNS, n_updates=6)
    train(recipe, tmp_path / "once")
    original = Updater.apply

    def interrupted(self: Updater, gradient: object, update: int) -> float:
        if update == 5:
            raise KeyboardInterrupt
        return original(self, gradient, update)  # type: ignore[arg-type]

    monkeypatch.setattr(Updater, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "twice")
    monkeypatch.undo()
    train(recipe, tmp_path / "twice", resume=True)
    assert weights(tmp_path / "twice") == weights(tmp_path / "once")
    assert (tmp_path / "twice" / "metrics.jsonl").read_bytes() == (tmp_path / "once" / "metrics.jsonl").read_bytes()
    state = load_file(last_checkpoint(tmp_path / "once") / "state.safetensors")
    assert [name for name in state if name.startswith("optimizer/")]
    assert not [name for name in state if is_frozen(name)]
