"""Rounds in training: how many are drawn, where the gradient begins, and of which rounds the loss is."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from test_training_depth import gradients
from tiny_runs import tiny_recipe, weights

from architectures import Sentence, right_padded
from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.config.training import (
    DepthCostConfig,
    LogNormalPoissonRoundsConfig,
    PlannedRoundsConfig,
    PoissonRoundsConfig,
    RoundLossConfig,
    UniformRoundsConfig,
)
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError
from ostinato.models import LanguageModel
from ostinato.models.losses import label_smoothed_loss
from ostinato.training import Reporter, train
from ostinato.training.optim import build_optimizer
from ostinato.training.rounds import draw_rounds
from ostinato.training.update import Updater

LOOP: dict[str, Any] = {
    "n_steps": 1,
    "segments": [{"repeats": 3, "inject": {"kind": "linear"}, "state": {"kind": "zeros"}}],
    "norm": {"kind": "rms", "placement": "pre"},
}


def looped(folder: Path, *, halting: str = "none", **training: Any) -> Recipe:
    """Return the recipe of a language model that is one loop."""
    recipe = tiny_recipe(folder, kind="language_model", **training)
    stored = recipe.model_dump(mode="json")
    stored["model"]["decoder"] |= LOOP | {"halting": {"kind": halting}}
    return check_recipe(stored)


def updater_of(recipe: Recipe, **settings: Any) -> Updater:
    """Return the updater of a model without dropout."""
    torch.manual_seed(0)
    model = LanguageModel(recipe.model.model_copy(update={"vocab_size": 9})).eval()  # type: ignore[arg-type]
    config = recipe.training.model_copy(update=settings)
    return Updater(model, build_optimizer(model, config.optimizer), config)


def two_batches() -> list[Batch]:
    """Return two batches of different sizes, with padding."""
    texts = [[[1, 6, 5, 4], [1, 7], [1, 4, 8]], [[1, 4, 8, 7, 5, 5], [1, 8, 6]]]
    return [right_padded([Sentence(None, ids) for ids in batch]) for batch in texts]


def test_draws_have_the_published_means_and_depend_on_seed_and_update_only() -> None:
    n = 4000
    for config, mean, least in (
        (UniformRoundsConfig(least=2, most=8), 5.0, 2),
        (PoissonRoundsConfig(rate=8.0), 8.0 + math.exp(-8.0), 1),
        (LogNormalPoissonRoundsConfig(rate=32.0), 33.0, 1),
    ):
        drawn = [draw_rounds(config, 1, update) or 0 for update in range(1, n + 1)]
        assert drawn == [draw_rounds(config, 1, update) for update in range(1, n + 1)]
        assert drawn != [draw_rounds(config, 2, update) for update in range(1, n + 1)]
        found = torch.tensor(drawn, dtype=torch.float64)
        assert abs(float(found.mean()) - mean) < 4 * float(found.std()) / n**0.5
        assert min(drawn) >= least
    # Huginn: 1 + Poisson of a log-normal rate: variance of the rate, and of the draw around it.
    spread = 32.0**2 * (math.exp(0.25) - 1) + 32.0
    assert float(found.var()) == pytest.approx(spread, rel=0.15)
    assert max(draw_rounds(LogNormalPoissonRoundsConfig(most=20), 1, update) or 0 for update in range(200)) == 20
    assert draw_rounds(PlannedRoundsConfig(), 1, 1) is None


def test_the_number_of_rounds_grows_over_the_first_updates() -> None:
    config = UniformRoundsConfig(least=8, most=8, ramp=16)
    assert [draw_rounds(config, 1, update) for update in (1, 2, 3, 8, 15, 16, 100)] == [1, 1, 2, 4, 8, 8, 8]
    poisson = PoissonRoundsConfig(rate=16.0, ramp=400)
    early = [draw_rounds(poisson, 1, update) or 0 for update in range(1, 101)]
    assert sum(early) / 100 < 4


def test_an_update_runs_what_was_drawn_and_the_model_its_plan_afterwards(tmp_path: Path) -> None:
    recipe, batches = looped(tmp_path), two_batches()
    config = UniformRoundsConfig(least=5, most=5)
    updater = updater_of(recipe, rounds=config)
    found = updater.accumulate(batches, 1)
    drawn = gradients(updater.model)
    updater = updater_of(recipe)
    with updater.model.execution(rounds={"decoder": 5}):
        smoothing = updater.config.label_smoothing
        loss = torch.stack([updater.model.loss(b, label_smoothing=smoothing) * b.n_labels for b in batches]).sum()
        loss.backward()
    total = sum(batch.n_labels for batch in batches)
    assert sum(found.losses) == pytest.approx(loss.item(), rel=1e-5)
    for name, grad in gradients(updater.model).items():
        torch.testing.assert_close(drawn[name], grad / total, rtol=1e-4, atol=1e-6)
    assert updater.model.n_rounds() == {"decoder": 3}


@pytest.mark.parametrize("n", [1, 2, None])
def test_the_loss_of_a_window_is_the_mean_over_its_rounds(tmp_path: Path, n: int | None) -> None:
    recipe = looped(tmp_path)
    model, batches = updater_of(recipe).model, two_batches()
    for batch in batches:
        expected = [
            label_smoothed_loss(model(batch, n_steps=r).logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1).loss
            for r in range(4 - (n or 3), 4)
        ]
        found = model.loss(batch, label_smoothing=0.1, round_loss=RoundLossConfig(kind="window", n_rounds=n))
        torch.testing.assert_close(found * batch.n_labels, sum(expected) / len(expected), rtol=1e-5, atol=1e-6)


def test_the_loss_of_an_exit_is_expected_under_its_distribution_less_its_entropy(tmp_path: Path) -> None:
    recipe = looped(tmp_path, halting="exit")
    model, batches = updater_of(recipe).model, two_batches()
    model.banks.halting.train()  # all rounds run; the rest stays as it is, without dropout
    batch = batches[0]
    cost = DepthCostConfig(weight=0.3)
    found = model.loss(batch, halting=cost, round_loss=RoundLossConfig(kind="exit"))
    output = model(batch, request=["rounds"])
    trace, real = output.stacks["decoder"].halting, batch.target.keep_BT
    probs = torch.sigmoid(
        torch.stack([model.banks.halting["decoder"].map(h) for h in states_of_rounds(model, batch)], -1)
    )
    p1, p2 = probs[..., 0, 0], probs[..., 0, 1]
    weights_BTR = torch.stack([p1, (1 - p1) * p2, (1 - p1) * (1 - p2)], -1)
    torch.testing.assert_close(trace.weights_BTR[real], weights_BTR[real], rtol=1e-4, atol=1e-5)
    total = torch.zeros(())
    for r in range(3):
        logs = torch.log_softmax(model(batch, n_steps=r + 1).logits_BTV, -1)
        nll = -logs.gather(-1, batch.labels_BT[..., None])[..., 0]
        total = total + (nll * weights_BTR[..., r])[batch.loss_mask_BT].sum()
    entropy = -(weights_BTR * weights_BTR.log()).sum(-1)[real].mean()
    torch.testing.assert_close(found, total / batch.n_labels - 0.3 * entropy, rtol=1e-4, atol=1e-5)


def test_while_no_token_halts_the_loss_of_an_exit_is_that_of_the_last_round(tmp_path: Path) -> None:
    model, batch = updater_of(looped(tmp_path, halting="exit")).model, two_batches()[0]
    cost, exit_loss = DepthCostConfig(weight=0.3, off_updates=5), RoundLossConfig(kind="exit")
    found = model.loss(batch, halting=cost, round_loss=exit_loss, update=5)
    with model.execution(halting=False):
        torch.testing.assert_close(found, model.loss(batch, halting=cost, update=5), rtol=0, atol=0)
    assert not torch.equal(found, model.loss(batch, halting=cost, round_loss=exit_loss, update=6))


def states_of_rounds(model: Any, batch: Any) -> list[torch.Tensor]:
    """Return what leaves every round, before the final norm: the state that the gate reads."""
    norm, model.stacks["decoder"].has_final_norm = model.stacks["decoder"].has_final_norm, False
    try:
        return [states() for states in model(batch, request=["rounds"]).stacks["decoder"].rounds]
    finally:
        model.stacks["decoder"].has_final_norm = norm


@pytest.mark.parametrize("loss", ["last", "window", "exit"])
def test_a_run_with_drawn_rounds_is_the_same_resumed(tmp_path: Path, loss: str) -> None:
    settings: dict[str, Any] = {
        "rounds": {"kind": "lognormal_poisson", "rate": 3.0, "gradient_rounds": 2},
        "round_loss": {"kind": loss},
        "n_updates": 6,
        "save_every": 3,
        "log_every": 1,
        "evaluate_every": 6,
    }
    halting = "exit" if loss == "exit" else "none"
    recipe = looped(tmp_path / "data", halting=halting, **settings)
    train(recipe, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "cut", reporter=StopAt(4))
    train(recipe, tmp_path / "cut", resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    for name in ("metrics.jsonl", "recipe.yaml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


class StopAt(Reporter):
    """Ends a run, as a crash would, at its record of an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, record: dict[str, Any]) -> None:
        if record["update"] == self.update:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("halting", "training", "reason"),
    [
        ("none", {"round_loss": {"kind": "exit"}}, "needs a learned exit"),
        ("act", {"round_loss": {"kind": "window"}}, "other rules mix the states"),
    ],
)
def test_losses_that_a_model_cannot_have_are_refused(
    tmp_path: Path, halting: str, training: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        train(looped(tmp_path / "data", halting=halting, **training), tmp_path / "run")


def test_rounds_are_drawn_of_loops_only(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data", rounds={"kind": "poisson"})
    stored = recipe.model_dump(mode="json")
    stored["model"]["encoder"]["n_steps"] = stored["model"]["decoder"]["n_steps"] = 2
    with pytest.raises(ConfigError, match="no stack of this model has rounds that share all weights"):
        train(check_recipe(stored), tmp_path / "run")
