"""Halting in training: what depth costs, the start at full depth, records, and warnings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from routed_models import gradients, tiny_batches, tiny_model
from tiny_runs import HALTING, ROUNDS, records, tiny_recipe, weights

from ostinato.config.halting import (
    ActConfig,
    ByLengthConfig,
    ExitConfig,
    HaltingConfig,
    NoHaltingConfig,
    SelectConfig,
    StickBreakingConfig,
    TokenChoiceConfig,
)
from ostinato.config.recipe import Recipe
from ostinato.config.training import DepthCostConfig, RoundLossConfig, SelectionConfig
from ostinato.evaluation.depth import real_tokens
from ostinato.evaluation.loading import load
from ostinato.models.losses import depth_cost
from ostinato.training import Reporter, train, update
from ostinato.training.depth import DepthWatch
from ostinato.training.optim import build_optimizer
from ostinato.training.state import Best, Progress
from ostinato.training.update import Updater
from running import run_as


def updater_of(recipe: Recipe, **settings: Any) -> Updater:
    """Return the updater of a model without dropout."""
    config, model = recipe.training.model_copy(update=settings), tiny_model(recipe).eval()
    return Updater(model, build_optimizer(model, config.optimizer), config)


def test_the_weight_is_nothing_at_full_depth_and_then_grows_to_what_it_stays() -> None:
    config = DepthCostConfig(weight=0.2, off_updates=3, warmup=4)
    assert [config.weight_at(u) for u in range(1, 10)] == pytest.approx([0, 0, 0, 0.05, 0.1, 0.15, 0.2, 0.2, 0.2])
    assert config.settled == 7
    assert DepthCostConfig(weight=0.2).weight_at(1) == 0.2
    assert DepthCostConfig(weight=0.2, off_updates=1).weight_at(2) == 0.2


def test_routers_come_to_leave_out_all_that_they_will_along_half_a_cosine() -> None:
    config = DepthCostConfig(off_updates=2, capacity_warmup=4)
    half = [0.5 - math.cos(math.pi / 4) / 2, 0.5, 0.5 + math.cos(math.pi / 4) / 2]
    assert [config.left_out_at(u) for u in range(1, 9)] == pytest.approx([0, 0, *half, 1, 1, 1])
    assert config.settled == 6
    assert DepthCostConfig().left_out_at(1) == 1


def test_the_cost_is_the_sum_of_the_stacks_and_batches_count_by_their_labels(tmp_path: Path) -> None:
    recipe, batches = tiny_recipe(tmp_path, halting=True), tiny_batches()
    found = []
    for weight in (0.3, 0.0):
        updater = updater_of(recipe, halting=DepthCostConfig(weight=weight))
        found.append((updater.accumulate(batches), gradients(updater.model)))
    (with_losses, with_cost), (without_losses, without) = found
    # What is reported as the loss is the likelihood alone.
    assert with_losses.losses == without_losses.losses
    model = updater_of(recipe).model
    for batch in batches:
        output = model(batch)
        cost = depth_cost(output)
        assert cost is not None
        costs = [float(stack.depth_cost.detach()) for stack in output.stacks.values()]
        assert float(cost.detach()) == pytest.approx(sum(costs))
        (0.3 * cost * batch.n_labels / sum(one.n_labels for one in batches)).backward()
    for name, grad in gradients(model).items():
        torch.testing.assert_close(with_cost[name] - without[name], grad, atol=1e-6, rtol=1e-3)
        if name.startswith("banks.halting") and "hidden" not in name:  # the layer behind it starts at zero
            assert bool(grad.any()), name


def test_first_updates_run_every_round_and_do_not_ask_gates(tmp_path: Path) -> None:
    recipe, batches = tiny_recipe(tmp_path, halting=True), tiny_batches()
    full = recipe.model.model_copy(
        update={
            name: stack.model_copy(update={"halting": NoHaltingConfig()})
            for name, stack in recipe.model.stacks().items()
        }
    )
    updater, plain = updater_of(recipe), updater_of(recipe.model_copy(update={"model": full}))
    own = updater.model.state_dict()
    plain.model.load_state_dict({name: tensor for name, tensor in own.items() if "halting" not in name})
    assert HALTING["off_updates"] == 3
    off, expected = updater.accumulate(batches, 3, observed=True), plain.accumulate(batches, 3)
    assert off.losses == expected.losses
    assert off.depth is None
    assert all(p.grad is None for p in updater.model.banks.halting.parameters())
    found, wanted = gradients(updater.model), gradients(plain.model)
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    # Everything outside of these updates is as it will be when the model is loaded.
    assert all(stack.halting is not None for stack in updater.model(batches[0]).stacks.values())
    on = updater.accumulate(batches, 4, observed=True)
    assert on.losses != off.losses
    assert on.depth is not None
    assert on.depth["encoder"]["weighted"] == pytest.approx(0.05 / 4 * on.depth["encoder"]["cost"])


def test_an_error_in_a_first_update_leaves_the_rules_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updater = updater_of(tiny_recipe(tmp_path, halting=True))

    def fail(*_: Any) -> Any:
        assert not updater.model.current_execution.halting
        raise RuntimeError("out of memory")

    monkeypatch.setattr(update, "loss_of_rounds", fail)
    with pytest.raises(RuntimeError, match="out of memory"):
        updater.accumulate(tiny_batches(), 1)
    assert updater.model.current_execution.halting


@pytest.mark.parametrize("settings", [{}, {"precision": "bfloat16"}])
def test_a_record_holds_the_depths_of_the_last_batch_by_stack(tmp_path: Path, settings: dict[str, Any]) -> None:
    updater, batches = updater_of(tiny_recipe(tmp_path, halting=True), **settings), tiny_batches()
    assert updater.accumulate(batches).depth is None
    found = updater.accumulate(batches, observed=True).depth
    assert found is not None
    assert list(found) == ["encoder", "decoder"]
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(settings)):
        output = updater.model(batches[-1])
    for name, stack in output.stacks.items():
        trace, keep_BT = stack.halting, real_tokens(name, batches[-1])
        executed = trace.executed_BTR.sum(-1)[keep_BT].tolist()
        assert found[name]["histogram"] == [executed.count(r) for r in range(1, ROUNDS[name] + 1)]
        assert found[name]["mean"] == pytest.approx(sum(executed) / len(executed))
        rounds_R = torch.arange(1, trace.weights_BTR.shape[-1] + 1)
        expected = (trace.weights_BTR * rounds_R).sum(-1)[keep_BT].mean()
        assert found[name]["expected"] == pytest.approx(float(expected.detach()), rel=1e-5)
        assert found[name]["cost"] == pytest.approx(float(stack.depth_cost.detach()), rel=1e-6)
        assert found[name]["weighted"] == 0.05 * found[name]["cost"]
    # With stick-breaking the two are the same by definition.
    assert found["decoder"]["cost"] == pytest.approx(found["decoder"]["expected"], rel=1e-5)


def test_recomputed_activations_change_no_gradient(tmp_path: Path) -> None:
    recipe, found = tiny_recipe(tmp_path, halting=True, experts=True), []
    for is_checkpointing in (False, True):
        updater = updater_of(recipe)
        run_as(updater.model, recompute=is_checkpointing)
        updater.model.train()
        torch.manual_seed(5)
        gradient = updater.accumulate(tiny_batches(), observed=True)
        found.append((gradient.losses, gradient.depth, gradient.routing, gradients(updater.model)))
    (*plain, expected), (*recomputed, grads) = found
    assert plain == recomputed
    for name, grad in grads.items():
        torch.testing.assert_close(grad, expected[name], atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_depths_are_recorded_in_logged_updates_once_tokens_halt(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, halting=True, n_updates=6, log_every=2)
    train(recipe, tmp_path / "seldom")
    found = records(tmp_path / "seldom", "training")
    assert ["depth" in record for record in found] == [False, True, True]
    assert all(sum(record["depth"]["encoder"]["histogram"]) > 0 for record in found[1:])
    train(
        recipe.model_copy(update={"training": recipe.training.model_copy(update={"log_every": 1})}), tmp_path / "often"
    )
    assert weights(tmp_path / "often") == weights(tmp_path / "seldom")
    assert records(tmp_path / "often", "training")[-1]["depth"] == found[-1]["depth"]
    results = json.loads((tmp_path / "seldom" / "results.json").read_text(encoding="utf-8"))
    by_n = results["splits"]["test"]["by"]["n"]
    assert all(set(scores["halting"]) == {"encoder", "decoder"} for scores in by_n.values())
    run = load(tmp_path / "seldom", device="cpu")
    run_as(run.model, halting_threshold=0.0)
    assert run.evaluate("test")["depth"] == {"encoder": 1.0, "decoder": 1.0}


def test_what_is_evaluated_and_saved_in_first_updates_is_the_model_as_it_is_loaded(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, halting=True, n_updates=2, evaluate_every=2)
    train(recipe, tmp_path / "run")
    [record] = records(tmp_path / "run", "evaluation")
    found = load(tmp_path / "run", device="cpu").evaluate("dev", metrics=[])
    assert found["loss"] == record["scores"]["loss"]
    assert found["depth"]["encoder"] < ROUNDS["encoder"]


def test_evaluations_of_first_updates_use_up_no_patience() -> None:
    progress, selection = Progress(update=1, ranking=[Best(1, 0.5)]), SelectionConfig(patience=2)
    for _ in range(3):
        assert not progress.judge(0.6, selection, begins=10)
    assert (progress.n_waiting, progress.stopped) == (0, None)
    assert progress.judge(0.4, selection, begins=10)
    for _ in range(2):
        progress.judge(0.6, selection)
    assert progress.stopped is not None


def test_evaluations_before_gates_are_asked_are_ranked_only_until_there_is_a_later_one() -> None:
    progress, selection = Progress(), SelectionConfig()
    found = []
    for progress.update, value in ((2, 0.1), (4, 0.2), (6, 0.5), (8, 0.4), (10, 0.6)):
        found.append((progress.judge(value, selection, keep=3, begins=4), [one.update for one in progress.ranking]))
    assert found == [(True, [2]), (False, [2, 4]), (True, [6]), (True, [8, 6]), (False, [8, 6, 10])]


def _depth(*histogram: int) -> dict[str, Any]:
    return {"histogram": list(histogram)}


GO_DEEPER = "a smaller training.halting.weight, or training.halting.off_updates, lets them go deeper"
HALT_BY_EPSILON = "a larger training.halting.weight or halting.epsilon lets them halt"
HALT_BY_THRESHOLD = "a larger training.halting.weight or a lower halting.threshold lets them halt"
SPREAD = "a larger training.halting.weight spreads them over the rounds"


@pytest.mark.parametrize(
    ("rule", "if_shallow", "if_deep"),
    [
        (ActConfig(), GO_DEEPER, HALT_BY_EPSILON),
        (StickBreakingConfig(), GO_DEEPER, HALT_BY_THRESHOLD),
        (TokenChoiceConfig(), SPREAD, SPREAD),
    ],
)
def test_what_is_advised_has_an_effect_on_the_rule(rule: HaltingConfig, if_shallow: str, if_deep: str) -> None:
    assert rule.advice is not None
    watch = DepthWatch(warmup=0, advice={"encoder": rule.advice, "decoder": rule.advice})
    assert list(watch.warnings(1, {"encoder": _depth(96, 3, 1), "decoder": _depth(2, 1, 97)})) == [
        f"the encoder halts 96 % of its tokens after one of 3 rounds; {if_shallow}",
        f"the decoder runs 97 % of its tokens through all 3 rounds; {if_deep}",
    ]


def test_a_stack_whose_tokens_all_have_one_depth_is_named_once_after_the_warm_up() -> None:
    advice = dict.fromkeys(("encoder", "decoder"), ("deeper", "halt"))
    watch = DepthWatch(warmup=10, advice=advice)
    shallow, deep, fine = _depth(96, 3, 1), _depth(2, 1, 97), _depth(5, 0, 95)
    assert list(watch.warnings(10, {"encoder": shallow})) == []
    assert list(watch.warnings(11, {"encoder": fine, "decoder": _depth(95, 5, 0)})) == []
    [line] = watch.warnings(12, {"encoder": shallow, "decoder": fine})
    assert line == "the encoder halts 96 % of its tokens after one of 3 rounds; deeper"
    assert list(watch.warnings(13, {"encoder": deep})) == []
    [line] = watch.warnings(14, {"decoder": deep})
    assert line == "the decoder runs 97 % of its tokens through all 3 rounds; halt"
    # Where there is one round, there is nothing to choose.
    assert list(DepthWatch(0, advice).warnings(1, {"encoder": _depth(7), "decoder": _depth(0, 0)})) == []


def test_no_stack_is_warned_of_whose_depth_in_training_is_given_by_its_rule() -> None:
    rules: list[HaltingConfig] = [NoHaltingConfig(), ByLengthConfig(), ExitConfig(), SelectConfig()]
    assert [rule.advice for rule in rules] == [None] * 4
    watch = DepthWatch(warmup=0, advice={"encoder": ("deeper", "halt")})
    [line] = watch.warnings(1, {"encoder": _depth(0, 0, 9), "decoder": _depth(0, 0, 9)})
    assert line == "the encoder runs 100 % of its tokens through all 3 rounds; halt"
    assert list(watch.warnings(2, {"decoder": _depth(9, 0, 0)})) == []


class _Warned(Reporter):
    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def on_warning(self, update: int, message: str) -> None:
        self.lines.append((update, message))


@pytest.mark.slow
def test_a_run_tells_its_reporter_of_tokens_that_all_halt_at_once(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, halting=True, n_updates=9, log_every=1)
    rule = recipe.model.stacks()["encoder"].halting.model_copy(update={"initial_bias": 20.0})
    encoder = recipe.model.stacks()["encoder"].model_copy(update={"halting": rule})
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"encoder": encoder})})
    listener = _Warned()
    train(recipe, tmp_path / "run", reporter=listener)
    # The first update after those at full depth, and those in which the weight grows.
    [(update, line)] = [found for found in listener.lines if "encoder" in found[1]]
    assert update == HALTING["off_updates"] + HALTING["warmup"] + 1
    assert line == f"the encoder halts 100 % of its tokens after one of 3 rounds; {GO_DEEPER}"


@pytest.mark.slow
def test_a_learned_exit_whose_training_runs_all_rounds_is_not_warned_of(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, halting=True, n_updates=9, log_every=1)
    decoder = recipe.model.stacks()["decoder"].model_copy(update={"halting": ExitConfig()})
    learns = recipe.training.model_copy(update={"round_loss": RoundLossConfig(kind="exit")})
    model = recipe.model.model_copy(update={"decoder": decoder})
    listener = _Warned()
    train(recipe.model_copy(update={"model": model, "training": learns}), tmp_path / "run", reporter=listener)
    learned = [record for record in records(tmp_path / "run", "training") if "depth" in record]
    depths = [record["depth"]["decoder"]["histogram"] for record in learned]
    assert depths
    assert all(sum(histogram[:-1]) == 0 < histogram[-1] for histogram in depths)
    assert [line for _, line in listener.lines if "decoder" in line] == []
