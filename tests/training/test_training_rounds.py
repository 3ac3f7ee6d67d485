"""Rounds in training: how many are drawn, where the gradient begins, and of which rounds the loss is."""

from __future__ import annotations

import math
import shlex
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from routed_models import gradients, tiny_batches, tiny_model
from safetensors.torch import load_file
from scipy.stats import spearmanr
from tiny_runs import StopAt, last_checkpoint, tiny_recipe, weights

from architectures import Sentence, right_padded
from ostinato.config.files import parse_overrides
from ostinato.config.load import check_recipe
from ostinato.config.model import EncoderConfig, LanguageModelConfig
from ostinato.config.recipe import Recipe
from ostinato.config.training import (
    DepthCostConfig,
    LogNormalPoissonRoundsConfig,
    PlannedRoundsConfig,
    PoissonRoundsConfig,
    RoundLossConfig,
    TrainingConfig,
    UniformRoundsConfig,
)
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError, Inert
from ostinato.models import LanguageModel, build_model
from ostinato.models.losses import label_smoothed_loss, loss_of_rounds
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.training.checks import check_training, learning_notes
from ostinato.training.optim import build_optimizer
from ostinato.training.processes import Processes
from ostinato.training.rounds import draw_round_of_loss, draw_rounds, draw_shorter, rounds_of_stacks
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


def test_every_seed_and_everything_that_is_drawn_has_draws_of_its_own(tmp_path: Path) -> None:
    rounds, loss, updates = LogNormalPoissonRoundsConfig(rate=8.0), RoundLossConfig(kind="drawn"), range(1, 51)
    model = updater_of(looped(tmp_path)).model
    of_seeds = [
        (
            [draw_rounds(rounds, seed, update) for update in updates],
            [draw_round_of_loss(loss, seed, update) for update in updates],
            [draw_shorter(model, {"decoder": 8}, seed, update)["decoder"] for update in updates],
        )
        for seed in (1, 2, 3, 5, 1 + 2**32)
    ]
    for one, other in combinations(of_seeds, 2):
        assert all(a != b for a, b in zip(one, other, strict=True))
    # How deep an update is says nothing of which round its loss is of.
    deep = [draw_rounds(rounds, 1, update) for update in range(1, 2001)]
    far = [abs(draw_round_of_loss(loss, 1, update) - 0.5) for update in range(1, 2001)]
    assert abs(spearmanr(deep, far).statistic) < 0.1


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


@pytest.mark.parametrize("drawn", [1, 5])
def test_what_routers_did_is_noted_by_the_rounds_that_ran(tmp_path: Path, drawn: int) -> None:
    stored = looped(tmp_path).model_dump(mode="json")
    experts = {"kind": "experts", "share": "all", "n_experts": 2, "top_k": 1, "d_ff": 8}
    segments = [{"n_steps": 1}, *LOOP["segments"], {"n_steps": 1}]
    stored["model"]["decoder"] |= {"n_steps": 3, "segments": segments, "ffn": experts}
    updater = updater_of(check_recipe(stored), rounds=UniformRoundsConfig(least=drawn, most=drawn))
    found = updater.accumulate(two_batches()[:1], 1, observed=True).routing
    assert found is not None
    (router,) = found.values()
    assert [one["round"] for one in router["rounds"]] == list(range(drawn))


def test_draws_by_sentence_are_those_of_its_place_in_the_update() -> None:
    config = PoissonRoundsConfig(rate=8.0, per="sentence")
    drawn = draw_rounds(config, 1, 7, 4000)
    assert isinstance(drawn, tuple)
    assert draw_rounds(config, 1, 7, 100) == drawn[:100]
    assert draw_rounds(config, 1, 8, 100) != drawn[:100] != draw_rounds(config, 2, 7, 100)
    found = torch.tensor(drawn, dtype=torch.float64)
    assert abs(float(found.mean()) - 8.0 - math.exp(-8.0)) < 4 * float(found.std()) / 4000**0.5
    assert drawn[0] == draw_rounds(PoissonRoundsConfig(rate=8.0), 1, 7)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_an_update_runs_every_sentence_for_its_own_rounds_whatever_process_has_it(
    tmp_path: Path, world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes one after the other: what they add up to is what single sentences do."""
    recipe, batches = looped(tmp_path), two_batches()
    config = UniformRoundsConfig(least=1, most=6, per="sentence", gradient_rounds=2)
    drawn = draw_rounds(config, 1, 3, 5)
    assert isinstance(drawn, tuple)
    assert len(set(drawn)) > 2
    found: dict[str, torch.Tensor] = {}
    # Gradients are summed here, not by messages.
    monkeypatch.setattr("ostinato.training.parallel.all_reduce_gradients", lambda parameters, numbers_V: numbers_V)
    monkeypatch.setattr(Processes, "with_all_reduced", lambda self, compute: compute(lambda x: x))
    for rank in range(world_size):
        updater = updater_of(recipe, rounds=config)
        updater.processes = Processes(rank, world_size)
        updater.accumulate(batches, 3)
        for name, gradient in gradients(updater.model).items():
            found[name] = found.get(name, torch.zeros(())) + gradient
    updater = updater_of(recipe)
    rows = [(batch, row) for batch in batches for row in range(batch.n_sentences)]
    for (batch, row), n in zip(rows, drawn, strict=True):
        alone = batch.rows(slice(row, row + 1))
        with updater.model.execution(rounds={"decoder": n}, gradient_rounds=2):
            (updater.model.loss(alone, label_smoothing=0.1) * alone.n_labels).backward()
    total = sum(batch.n_labels for batch in batches)
    assert updater.config.label_smoothing == 0.1
    for name, gradient in gradients(updater.model).items():
        torch.testing.assert_close(found[name], gradient / total, rtol=1e-4, atol=1e-6)


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


@pytest.mark.parametrize("weights", [[0.2, 0.0, 0.5], [1.0, 3.0], [4.0]])
def test_the_loss_of_weights_is_a_plain_sum_over_the_last_rounds_in_value_and_gradients(
    tmp_path: Path, weights: list[float]
) -> None:
    updater, batches = updater_of(looped(tmp_path)), two_batches()
    model, config = updater.model, RoundLossConfig(kind="weights", weights=weights)
    n_labels = sum(batch.n_labels for batch in batches)

    def plain(batch: Batch) -> torch.Tensor:
        losses = [
            label_smoothed_loss(model(batch, n_steps=r).logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1).loss
            for r in (1, 2, 3)
        ]
        padded = [0.0] * (3 - len(weights)) + weights
        return sum(w * loss for w, loss in zip(padded, losses, strict=True)) / sum(weights)  # type: ignore[no-any-return]

    torch.stack([plain(batch) for batch in batches]).sum().div(n_labels).backward()
    expected = gradients(model)
    for batch in batches:
        found = model.loss(batch, label_smoothing=0.1, round_loss=config)
        torch.testing.assert_close(found * batch.n_labels, plain(batch), rtol=1e-5, atol=1e-6)
    updater = updater_of(looped(tmp_path), round_loss=config, label_smoothing=0.1)
    losses = updater.accumulate(batches, 1).losses
    assert sum(losses) == pytest.approx(sum(plain(batch).item() for batch in batches), rel=1e-5)
    for name, grad in gradients(updater.model).items():
        torch.testing.assert_close(grad, expected[name], rtol=1e-4, atol=1e-6)


def test_an_update_of_fewer_rounds_has_the_last_weights(tmp_path: Path) -> None:
    model, batch = updater_of(looped(tmp_path)).model, two_batches()[0]
    config = RoundLossConfig(kind="weights", weights=[5.0, 1.0, 3.0])
    losses = [
        label_smoothed_loss(model(batch, n_steps=r).logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1)
        for r in (1, 2)
    ]
    for n, expected in ((1, losses[0].loss), (2, (losses[0].loss + 3 * losses[1].loss) / 4)):
        found = loss_of_rounds(model.read, model(batch, n_steps=n, request=["rounds"]), batch, config, 0.1)
        torch.testing.assert_close(found.loss, expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.nll, losses[n - 1].nll, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"kind": "weights"}, "weights is None: training.round_loss.kind=weights needs a number for each of the last"),
        ({"weights": [1.0, 0.0]}, r"weights is \[1.0, 0.0\]: the last one, of the last round, must be positive"),
        (
            {"weights": [-1.0, 1.0]},
            r"weights is \[-1.0, 1.0\]: must be a list \(a number of at least 0 in each place\)",
        ),
        ({"weights": []}, r"weights is \[\]: must be a list"),
        ({"weights": [1.0] * 4}, r"weights is \[1.0, 1.0, 1.0, 1.0\]: the decoder runs at most 3 rounds"),
        ({"weights": [1.0] * 4, "most": 3}, "the decoder runs at most 3 rounds"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path: Path, given: dict[str, Any], reason: str) -> None:
    most = given.pop("most", None)
    rounds = {} if most is None else {"rounds": {"kind": "uniform", "most": most}}
    with pytest.raises(ConfigError, match=reason):
        check_training(looped(tmp_path, round_loss={"kind": "weights"} | given, **rounds), torch.device("cpu"))


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


@pytest.mark.parametrize("draw", [0.0, 0.49, 0.51, 0.999])
def test_the_loss_of_a_drawn_round_is_a_mean_of_the_last_and_another(tmp_path: Path, draw: float) -> None:
    model, batch = updater_of(looped(tmp_path)).model, two_batches()[0]
    config = RoundLossConfig(kind="drawn", weight=0.3)
    found = loss_of_rounds(model.read, model(batch, request=["rounds"]), batch, config, 0.1, draw)
    losses = [
        label_smoothed_loss(model(batch, n_steps=r).logits_BTV, batch.labels_BT, batch.loss_mask_BT, 0.1)
        for r in (1, 2, 3)
    ]
    expected = 0.7 * losses[2].loss + 0.3 * losses[int(2 * draw)].loss
    torch.testing.assert_close(found.loss, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found.nll, losses[2].nll, rtol=1e-5, atol=1e-6)
    one = loss_of_rounds(model.read, model(batch, n_steps=1, request=["rounds"]), batch, config, 0.1, draw)
    torch.testing.assert_close(one.loss, losses[0].loss, rtol=1e-5, atol=1e-6)


def test_the_drawn_round_depends_on_seed_and_update_only_and_any_of_them_is_drawn_alike(tmp_path: Path) -> None:
    config, n = RoundLossConfig(kind="drawn"), 3000
    drawn = [draw_round_of_loss(config, 1, update) for update in range(1, n + 1)]
    assert drawn == [draw_round_of_loss(config, 1, update) for update in range(1, n + 1)]
    assert drawn != [draw_round_of_loss(config, 2, update) for update in range(1, n + 1)]
    assert 0 <= min(drawn) < 0.01
    assert 0.99 < max(drawn) < 1
    assert sum(drawn) / n == pytest.approx(0.5, abs=4 * (1 / 12 / n) ** 0.5)
    assert draw_round_of_loss(RoundLossConfig(), 1, 1) == 0.0
    # An update has the loss that its draw says, the same for all of its batches.
    updater, batches = updater_of(looped(tmp_path), round_loss=config), two_batches()
    found = updater.accumulate(batches, 7)
    for loss, batch in zip(found.losses, batches, strict=True):
        output = updater.model(batch, request=["rounds"])
        own = loss_of_rounds(updater.model.read, output, batch, config, updater.config.label_smoothing, drawn[6])
        assert loss == pytest.approx(own.loss.item(), rel=1e-5)


def test_the_loss_of_a_gate_compares_what_it_says_with_what_rounds_gain(tmp_path: Path) -> None:
    model, batch = updater_of(looped(tmp_path, halting="exit")).model, two_batches()[0]
    model.banks.halting.train()
    config = RoundLossConfig(kind="improvement", slope=20.0, margin=0.01)
    found = model.loss(batch, label_smoothing=0.1, round_loss=config)
    nlls = []
    for r in (1, 2, 3):
        logs = torch.log_softmax(model(batch, n_steps=r).logits_BTV, -1)
        nlls.append(-logs.gather(-1, batch.labels_BT[..., None])[..., 0].detach())
    total = torch.zeros(())
    for t in (1, 2):
        gain = (nlls[t - 1] - nlls[t]).clamp_min(0)
        goes_on = torch.sigmoid(20.0 * (gain - 0.01))
        stops = torch.sigmoid(model.banks.halting["decoder"].map(states_of_rounds(model, batch)[t]))[..., 0]
        entropy = torch.nn.functional.binary_cross_entropy(1 - stops, goes_on, reduction="none")
        total = total + entropy[batch.loss_mask_BT].sum()
    assert any(bool((one > two).any()) for one, two in pairwise(nlls)), "some round gains"
    torch.testing.assert_close(found, total / 2 / batch.n_labels, rtol=1e-4, atol=1e-6)


def test_losses_that_a_model_has_not_are_refused_without_a_recipe_too(tmp_path: Path) -> None:
    model, batch = updater_of(looped(tmp_path)).model, two_batches()[0]
    for config, reason in (
        (RoundLossConfig(kind="exit"), r"round_loss\.kind is 'exit': needs a learned exit"),
        (RoundLossConfig(kind="weights", weights=[1.0] * 9), r"round_loss\.weights .* runs at most 3 rounds"),
    ):
        with pytest.raises(ConfigError, match=f"^{reason}"):
            model.loss(batch, round_loss=config)
    halting = updater_of(looped(tmp_path, halting="act")).model
    with pytest.raises(ConfigError, match=r"needs model\.decoder\.halting\.kind none or exit"):
        halting.loss(batch, round_loss=RoundLossConfig(kind="window"))
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    spans = build_model(
        EncoderConfig.model_validate({"d_model": 8, "vocab_size": 9, "encoder": stack, "head": {"kind": "span"}})
    )
    with pytest.raises(ConfigError, match=r"label_smoothing is 0\.1: most places of a span are impossible"):
        spans.loss(batch, label_smoothing=0.1)


def test_a_gate_is_trained_alone_on_a_model_that_stays_as_it_is(tmp_path: Path) -> None:
    quick = {"n_updates": 4, "save_every": 4, "evaluate_every": 4}
    train(looped(tmp_path / "data", halting="exit", round_loss={"kind": "exit"}, **quick), tmp_path / "first")
    settings = quick | {
        "init_from": str(tmp_path / "first"),
        "init_checkpoint": "last",
        "freeze": ["*"],
        "freeze_except": ["banks.halting.*"],
        "round_loss": {"kind": "improvement"},
        "label_smoothing": 0.0,
    }
    train(looped(tmp_path / "data", halting="exit", **settings), tmp_path / "second")
    before, after = (load_file(last_checkpoint(tmp_path / name) / "model.safetensors") for name in ("first", "second"))
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert changed == {"banks.halting.decoder.map.weight", "banks.halting.decoder.map.bias"}


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


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["last", "window", "weights", "exit", "drawn", "improvement"])
def test_a_run_with_drawn_rounds_is_the_same_resumed(tmp_path: Path, loss: str) -> None:
    settings: dict[str, Any] = {
        "rounds": {"kind": "lognormal_poisson", "rate": 3.0, "gradient_rounds": 2},
        "round_loss": {"kind": loss} | ({"weights": [1.0, 2.0]} if loss == "weights" else {}),
        "n_updates": 6,
        "save_every": 3,
        "log_every": 1,
        "evaluate_every": 6,
    }
    halting = "exit" if loss in ("exit", "improvement") else "none"
    if loss == "improvement":
        settings["label_smoothing"] = 0.0
    recipe = looped(tmp_path / "data", halting=halting, **settings)
    train(recipe, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "cut", reporter=StopAt(4))
    train(recipe, tmp_path / "cut", resume=True)
    assert weights(tmp_path / "cut") == weights(tmp_path / "whole")
    for name in ("metrics.jsonl", "recipe.yaml"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.parametrize("loss", ["drawn", "improvement"])
def test_losses_of_several_rounds_need_several(tmp_path: Path, loss: str) -> None:
    recipe = looped(tmp_path / "data", halting="exit", round_loss={"kind": loss}, label_smoothing=0.0)
    stored = recipe.model_dump(mode="json")
    stored["model"]["decoder"]["segments"][0]["repeats"] = 1
    with pytest.raises(ConfigError, match="needs more than one round, and the decoder has one"):
        train(check_recipe(stored), tmp_path / "run")


def test_a_gate_that_learns_alone_is_asked_from_the_first_update() -> None:
    settings = {"round_loss": {"kind": "improvement"}, "halting": {"off_updates": 3}, "label_smoothing": 0.1}
    config = TrainingConfig.model_validate(settings, context={"defer_checks": True})
    first, second = config.problems("training.")
    assert (first.key, second.key) == ("training.halting.off_updates", "training.label_smoothing")
    assert "only the gate learns, which would not be asked" in first.reason
    assert isinstance(second, Inert)


@pytest.mark.parametrize(
    ("setting", "kind"), [("weight", "last"), ("slope", "drawn"), ("margin", "exit"), ("n_rounds", "drawn")]
)
def test_settings_of_other_losses_of_rounds_are_told_to_have_no_effect(tmp_path: Path, setting: str, kind: str) -> None:
    given = {"kind": kind, setting: 3 if setting == "n_rounds" else 0.3}
    (problem,) = RoundLossConfig.model_validate(given).problems("training.round_loss.")
    assert isinstance(problem, Inert)
    assert (problem.key, problem.reason) == (
        f"training.round_loss.{setting}",
        f"has no effect with training.round_loss.kind={kind}: remove it",
    )


@pytest.mark.parametrize(
    ("halting", "training", "reason"),
    [
        ("none", {"round_loss": {"kind": "exit"}}, "needs a learned exit"),
        ("none", {"round_loss": {"kind": "improvement"}, "label_smoothing": 0.0}, "needs a learned exit"),
        ("act", {"round_loss": {"kind": "window"}}, "other rules mix the states"),
        ("act", {"round_loss": {"kind": "drawn"}}, "other rules mix the states"),
        ("act", {"round_loss": {"kind": "weights", "weights": [1.0]}}, "other rules mix the states"),
        ("exit", {"freeze_except": ["*"]}, "training.freeze_except is .*: needs training.freeze"),
        ("exit", {"freeze": ["*"], "freeze_except": ["*.halt.*"]}, "matches no parameter of the model"),
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


def beside_a_loop(folder: Path, n_steps: int, rounds: dict[str, Any], **stack: Any) -> Recipe:
    """Return the recipe of layers with weights of their own, that is an encoder, and of a loop that reads it."""
    stored = tiny_recipe(folder, rounds=rounds).model_dump(mode="json")
    stored["model"]["encoder"] |= {"n_steps": n_steps} | stack
    stored["model"]["decoder"] |= LOOP | {"segments": [{"repeats": 4, "inject": {"kind": "add"}}]}
    return check_recipe(stored)


def test_the_layers_of_a_stack_whose_rounds_differ_learn_beside_a_loop_whose_first_rounds_are_cut(
    tmp_path: Path,
) -> None:
    recipe = beside_a_loop(tmp_path, 4, {"kind": "poisson", "rate": 4.0, "gradient_rounds": 2})
    check_training(recipe, torch.device("cpu"))
    assert learning_notes(recipe) == []
    found = []
    for n in (2, None):
        rounds = UniformRoundsConfig(least=4, most=4, gradient_rounds=n)
        model, config = tiny_model(recipe).eval(), recipe.training.model_copy(update={"rounds": rounds})
        Updater(model, build_optimizer(model, config.optimizer), config).accumulate(tiny_batches(), 1)
        assert all(parameter.grad is not None for parameter in model.parameters())
        found.append(gradients(model))
    cut, whole = found
    assert all(not torch.allclose(cut[name], whole[name]) for name in cut if "ffn.decoder_0" in name)


def test_layers_whose_tokens_halt_are_no_reason_to_refuse_the_last_rounds_of_a_loop(tmp_path: Path) -> None:
    rounds = {"kind": "plan", "gradient_rounds": 2}
    check_training(beside_a_loop(tmp_path, 3, rounds, halting={"kind": "act"}), torch.device("cpu"))
    check_training(beside_a_loop(tmp_path, 1, rounds, halting={"kind": "act"}), torch.device("cpu"))


def test_a_stack_of_one_step_is_a_layer_beside_a_loop(tmp_path: Path) -> None:
    recipe = beside_a_loop(tmp_path, 1, {"kind": "uniform", "least": 7, "most": 7})
    model = tiny_model(recipe)
    assert rounds_of_stacks(model, 7) == {"decoder": 7}
    stored = recipe.model_dump(mode="json")
    stored["model"]["decoder"] |= {"segments": []}
    alone = check_recipe(stored)  # of which draws are, where nothing else has rounds
    assert rounds_of_stacks(tiny_model(alone), 7) == {"encoder": 7, "decoder": 7}
    stored["model"]["encoder"] |= LOOP
    stored["training"]["round_loss"] = {"kind": "drawn"}
    with pytest.raises(ConfigError, match="needs more than one round, and the decoder has one"):
        check_training(check_recipe(stored), torch.device("cpu"))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"halting": {"kind": "act"}}, "the tokens of the decoder halt by a rule of their own: must be update"),
        ({"positions": {"kind": "coordinates"}}, "the signal of the decoder tells rounds apart"),
        ({"ffn": {"kind": "experts", "n_experts": 2}}, "of each of which routers keep records: must be update"),
    ],
)
def test_rounds_by_sentence_need_rounds_that_are_alike(tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    stored = looped(tmp_path, rounds={"kind": "poisson", "per": "sentence"}).model_dump(mode="json")
    stored["model"]["decoder"] |= changes
    with pytest.raises(ConfigError) as caught:
        check_training(check_recipe(stored), torch.device("cpu"))
    assert "training.rounds.per is 'sentence'" in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("segment", "halting", "loss", "reason"),
    [
        ({"keys": "first"}, "none", "last", "keys and values of the decoder are those of its first round"),
        ({"norms": "by_round"}, "none", "last", "what the first rounds of the decoder have of their own"),
        ({"delta_rank": 2}, "none", "last", "what the first rounds of the decoder have of their own"),
        ({}, "exit", "exit", "the gate of the decoder says nothing of its last round"),
    ],
)
def test_what_the_last_rounds_do_not_use_would_not_learn(
    tmp_path: Path, segment: dict[str, Any], halting: str, loss: str, reason: str
) -> None:
    drawn = {"kind": "uniform", "least": 1, "most": 3, "gradient_rounds": 1}  # one round has a gradient at times
    plans = [({"kind": "plan", "gradient_rounds": n}, n == 1) for n in (1, 3)]
    for rounds, is_refused in [*plans, *([(drawn, False)] if halting == "none" else [])]:
        stored = looped(tmp_path, halting=halting, rounds=rounds, round_loss={"kind": loss}).model_dump(mode="json")
        stored["model"]["decoder"]["segments"][0] |= segment
        recipe = check_recipe(stored)
        if is_refused:
            with pytest.raises(ConfigError, match=reason):
                check_training(recipe, torch.device("cpu"))
        else:
            check_training(recipe, torch.device("cpu"))


@pytest.mark.parametrize("inject", ["none", "add"])
def test_a_prelude_learns_through_what_every_round_is_given(tmp_path: Path, inject: str) -> None:
    drawn = {"kind": "uniform", "least": 3, "most": 3}
    often_fewer = [(drawn | changes, False) for changes in ({"least": 1}, {"ramp": 4})]
    for rounds, is_cut in [({"kind": "plan"}, True), (drawn, True), *often_fewer]:
        stored = looped(tmp_path, rounds=rounds | {"gradient_rounds": 2}).model_dump(mode="json")
        loop = {"n_steps": 1, "repeats": 3, "inject": {"kind": inject}}
        stored["model"]["decoder"] |= {"n_steps": 2, "segments": [{"n_steps": 1}, loop]}
        recipe = check_recipe(stored)
        notes = learning_notes(recipe)
        if is_cut and inject == "none":
            assert notes[0].startswith(
                "steps before the loop of the decoder have no gradient: with training.rounds.grad"
            )
            # Weights that the loop has, too, learn there.
            stored["model"]["decoder"] |= {
                name: stored["model"]["decoder"][name] | {"share": "all"} for name in ("self_attention", "ffn")
            }
            notes = learning_notes(check_recipe(stored))
        assert notes == []
        updater = updater_of(recipe)
        with updater.model.execution(gradient_rounds=2):
            updater.model(two_batches()[0]).logits_BTV.square().sum().backward()
        learns = all(one.grad is not None for one in updater.model.banks.ffn["decoder_0"].parameters())
        assert learns == (inject == "add")


def test_gates_that_would_not_learn_are_named(tmp_path: Path) -> None:
    def notes(halting: str = "exit", **training: Any) -> list[str]:
        return learning_notes(looped(tmp_path, halting=halting, **training))

    assert notes("none") == notes("act") == notes(round_loss={"kind": "exit"}) == []
    assert notes() == ["the gate of the exits of the decoder has no gradient with training.round_loss.kind=last"]
    recipe = looped(tmp_path, halting="exit")
    costly = recipe.training.model_copy(update={"halting": DepthCostConfig(weight=0.1)})
    (by_entropy,) = learning_notes(recipe.model_copy(update={"training": costly}))
    assert by_entropy == (
        "with training.round_loss.kind=last the gate of the exits of the decoder learns by its entropy alone, whose "
        "gradient reaches the layers, too: set training.halting.weight to 0"
    )
    updated = [updater_of(recipe, halting=DepthCostConfig(weight=weight)) for weight in (0.0, 0.1)]
    for one in updated:
        one.accumulate(two_batches(), 1)
    without, entropy = (gradients(one.model) for one in updated)
    assert not any(grad.any() for name, grad in without.items() if ".halting." in name)
    assert all(not torch.equal(entropy[n], without[n]) for n in without if ".halting." in n or ".ffn." in n)
    recipe = looped(tmp_path, halting="act")
    late = recipe.training.model_copy(update={"halting": DepthCostConfig(off_updates=12)})
    (line,) = learning_notes(recipe.model_copy(update={"training": late}))
    assert line.startswith(
        "tokens may halt after update 12 (training.halting.off_updates), and there are 12: gates stay"
    )
    improving = {"round_loss": {"kind": "improvement"}, "label_smoothing": 0.0}
    (all_learn,) = notes(**improving)
    (first_is_best,) = notes(**improving, freeze=["*"], freeze_except=["*.halting.*"])
    assert "nothing is frozen" in all_learn
    words = shlex.split(all_learn.partition("(")[2].removesuffix(")"))
    assert parse_overrides(words)["training"] == {"freeze": ["*"], "freeze_except": ["*.halting.*"]}
    assert "evaluation.checkpoint=last" in first_is_best
    recipe = load_recipe("looped/ouro-toy-gate", ["data.train=a.txt", "data.dev=b.txt", "training.init_from=runs/x"])
    assert learning_notes(recipe) == []


@pytest.mark.parametrize("halting", ["act", "stick_breaking", "token_choice", "exit", "select", "none"])
def test_the_last_rounds_alone_teach_only_where_training_runs_them(tmp_path: Path, halting: str) -> None:
    recipe = looped(tmp_path, halting=halting, rounds={"kind": "plan", "gradient_rounds": 1})
    if halting in ("act", "stick_breaking", "token_choice"):
        with pytest.raises(ConfigError, match="gradient_rounds is 1: tokens of the decoder may stop before"):
            check_training(recipe, torch.device("cpu"))
        return
    check_training(recipe, torch.device("cpu"))
    updater = updater_of(recipe)
    updater.model.train()
    for batch in two_batches():
        with updater.model.execution(gradient_rounds=1):
            output = updater.model(batch)
        output.logits_BTV.square().sum().backward()
        trace = output.stacks["decoder"].halting
        assert trace is None or trace.executed_BTR.shape[-1] == 3
    assert all(parameter.grad is not None for parameter in updater.model.banks.ffn.parameters())


@pytest.mark.slow
def test_rounds_by_sentence_are_neither_compiled_nor_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda run: run)  # whether it works here is another question
    settings = {"rounds": {"kind": "poisson", "per": "sentence"}, "round_loss": {"kind": "window"}, "compile": True}
    with pytest.raises(ConfigError) as caught:
        check_training(looped(tmp_path, **settings), torch.device("cpu"))
    assert "training.round_loss.kind=window reads them: must be update" in str(caught.value)
    assert "cannot be compiled" in str(caught.value)
    drawn = looped(tmp_path, rounds={"kind": "poisson"}, compile=True)
    with pytest.raises(ConfigError, match=r"drawn numbers of rounds .* would each be compiled anew"):
        check_training(drawn, torch.device("cpu"))


def test_every_seed_draws_rounds() -> None:
    config = UniformRoundsConfig(least=1, most=9)
    for seed in (0, 2**33, 2**63 - 1):
        assert draw_rounds(config, seed, 7, 4) == draw_rounds(config, seed, 7, 4)


@pytest.mark.parametrize(
    "config",
    [UniformRoundsConfig(least=1, most=9), PoissonRoundsConfig(rate=4.0), LogNormalPoissonRoundsConfig(rate=4.0)],
)
def test_rounds_are_drawn_alike_whatever_the_default_device_is(config: Any) -> None:
    stack = {**LOOP, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    model = build_model(LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": stack}))

    def drawn() -> tuple[Any, ...]:
        of_loss = draw_round_of_loss(RoundLossConfig(kind="drawn"), 1, 7)
        return draw_rounds(config, 1, 7), of_loss, draw_shorter(model, {"decoder": 6}, 1, 7)

    expected = drawn()
    with torch.device("meta"):
        assert drawn() == expected
