"""A recipe refuses settings of training that its model gives nothing to act on."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.config.load import load_recipe_config
from ostinato.config.recipe import Recipe
from ostinato.config.training import SelectionConfig, TrainingConfig
from ostinato.errors import ConfigError
from ostinato.training.state import Progress

BALANCE = {"balance": {"hypersphere": 0.01, "z": 0.0, "temperature": 0.3}}
HALTING = {"halting": {"weight": 0.01, "off_updates": 100, "warmup": 0}}
ROUTED = [
    {"ffn": {"kind": "experts", "n_experts": 4}},
    {"self_attention": {"kind": "experts", "n_experts": 4}},
    {"cross_attention": {"kind": "experts", "n_experts": 4}},
    {"sparse_layer": {"n_experts": 4, "gate": {"kind": "sigmoid"}}},
]


def refused(model: dict[str, Any], training: dict[str, Any]) -> list[str]:
    """The lines of the error that loading these settings gives."""
    with pytest.raises(ConfigError) as caught:
        load_recipe_config({"model": model, "training": training})
    return str(caught.value).splitlines()


@pytest.mark.parametrize("decoder", ROUTED, ids=["ffn", "self_attention", "cross_attention", "sparse_layer"])
def test_balance_weights_are_taken_where_some_sub_layer_has_a_router(decoder: dict[str, Any]) -> None:
    recipe = load_recipe_config({"model": {"decoder": decoder}, "training": BALANCE})
    assert recipe.training.balance.hypersphere == 0.01


@pytest.mark.parametrize(
    "decoder",
    [
        {},
        {"ffn": {"kind": "experts", "n_experts": 1, "top_k": 1}},
        {"ffn": {"kind": "experts", "share": "none"}},
        {"ffn": {"kind": "experts", "share": [None] * 6}},
    ],
    ids=["dense", "one expert", "no feed-forwards", "no feed-forward at any step"],
)
def test_balance_weights_of_a_model_without_routers_are_refused(decoder: dict[str, Any]) -> None:
    reason = (
        "has no effect, because no sub-layer of this model chooses between experts: remove it, or give "
        "self_attention, cross_attention or ffn the kind experts, or a stack a sparse_layer, with n_experts above 1"
    )
    assert refused({"decoder": decoder}, BALANCE) == [
        f"training.balance.hypersphere is 0.01: {reason}",
        f"training.balance.temperature is 0.3: {reason}",
    ]


def test_how_tokens_count_in_balance_losses_is_refused_without_routers_unless_it_is_the_default() -> None:
    assert load_recipe_config({"training": {"balance": {"token_weights": "remaining"}}}) == Recipe()
    [line] = refused({}, {"balance": {"token_weights": "uniform"}})
    assert line.startswith("training.balance.token_weights is 'uniform': has no effect")


def test_feed_forwards_of_experts_that_a_variant_drops_are_no_routers() -> None:
    dropped = {"ffn_variant": "no-dec", "decoder": {"ffn": {"kind": "experts"}}}
    assert [line.partition(" is ")[0] for line in refused(dropped, BALANCE)] == [
        "training.balance.hypersphere",
        "training.balance.temperature",
        "model.decoder.ffn.kind",
    ]


@pytest.mark.parametrize("rule", ["act", "stick_breaking"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_cost_of_depth_is_taken_where_tokens_of_some_stack_may_halt(stack: str, rule: str) -> None:
    recipe = load_recipe_config({"model": {stack: {"halting": {"kind": rule}}}, "training": HALTING})
    assert recipe.training.halting.off_updates == 100


def test_a_cost_of_depth_where_nothing_halts_is_refused() -> None:
    reason = "has no effect, because nothing halts in this model: remove it, or set {}"
    both = reason.format("model.encoder.halting.kind or model.decoder.halting.kind")
    assert refused({}, HALTING) == [
        f"training.halting.weight is 0.01: {both}",
        f"training.halting.off_updates is 100: {both}",
    ]
    one = reason.format("model.decoder.halting.kind")
    assert refused({"kind": "language_model"}, {"halting": {"weight": 1.0}}) == [
        f"training.halting.weight is 1.0: {one}"
    ]


def test_capacities_warm_up_where_a_router_chooses_the_tokens_of_rounds() -> None:
    warm = {"halting": {"capacity_warmup": 50}}
    chosen = {"kind": "language_model", "decoder": {"halting": {"kind": "select"}}}
    assert load_recipe_config({"model": chosen, "training": warm}).training.halting.settled == 50
    rule = {"kind": "language_model", "decoder": {"halting": {"kind": "token_choice"}}}
    lines = ["training.halting.capacity_warmup is 50: has no effect without halting.kind=select: remove it"]
    assert refused(rule, warm) == lines
    [line] = refused(chosen, warm | {"compile": True})
    assert "would compile every one of these updates anew" in line


def test_a_faulty_kind_is_reported_without_what_follows_from_its_default() -> None:
    halting = refused({"encoder": {"halting": {"kind": "ponder"}}}, HALTING)
    assert [line.partition(":")[0] for line in halting] == ["model.encoder.halting.kind is 'ponder'"]
    routed = refused({"encoder": {"ffn": {"kind": "mixture"}}}, BALANCE)
    assert [line.partition(":")[0] for line in routed] == ["model.encoder.ffn.kind is 'mixture'"]


def test_weights_of_zero_suit_every_model() -> None:
    zero = {"balance": {"switch": 0.0, "temperature": None}, "halting": {"weight": 0.0, "off_updates": 0}}
    assert load_recipe_config({"training": zero}) == Recipe()


@pytest.mark.parametrize(
    ("checkpoint", "training", "reason"),
    [
        ("best:5", {}, "the run keeps 1: set training.keep_best to 5"),
        ("last:2", {}, "the run keeps 1: set training.keep_last to 2"),
        (
            "best:5",
            {"keep_best": 5, "n_updates": 100, "evaluate_every": 30},
            "the run has 4 or more: training.n_updates is 100, training.evaluate_every 30; use best",
        ),
        (
            "best:3",
            {"keep_best": 3, "selection": {"patience": 1}},
            "the run has 2 or more: training.n_updates is 2000, training.evaluate_every 500, and may stop early "
            "(training.selection.patience); use best",
        ),
        (
            "last:3",
            {"keep_last": 3, "n_updates": 9000, "selection": {"patience": 1}},
            "the run has 2 or more: training.n_updates is 9000, training.save_every 500, and may stop early "
            "(training.selection.patience); use last",
        ),
    ],
)
def test_a_mean_of_more_checkpoints_than_there_will_be_is_refused(
    checkpoint: str, training: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe_config({"evaluation": {"checkpoint": checkpoint}, "training": training})
    assert str(caught.value) == f"evaluation.checkpoint is {checkpoint!r}: {reason}"


@pytest.mark.parametrize(
    ("evaluate_every", "save_every", "patience", "saved"),
    [
        (4, 4, 2, [4, 8, 12]),
        (4, 5, 2, [5, 10, 12]),
        (4, 3, 2, [3, 6, 9, 12]),
        (4, 12, 2, [12]),
        (4, 20, 2, [12]),
        (7, 10, 1, [10, 14]),
        (7, 10, 9, [10, 20, 30]),  # which is never out of patience
    ],
)
def test_a_run_that_stops_early_has_as_many_of_the_newest_as_were_due_until_then(
    evaluate_every: int, save_every: int, patience: int, saved: list[int]
) -> None:
    n_updates, progress = 30, Progress()
    selection, found = SelectionConfig(patience=patience), list[int]()
    while progress.update < n_updates and not progress.stopped:  # as `Session`, of a loss that only grows
        progress.update += 1
        is_last = progress.update == n_updates
        if is_last or progress.update % evaluate_every == 0:
            progress.judge(float(progress.update), selection)
        if is_last or progress.stopped or progress.update % save_every == 0:
            found.append(progress.update)
    assert found == saved
    config = TrainingConfig(
        n_updates=n_updates, evaluate_every=evaluate_every, save_every=save_every, keep_last=9, selection=selection
    )
    recipe = Recipe(training=config)
    assert not list(recipe.too_few_to_average(f"last:{len(saved)}", "key"))
    (problem,) = recipe.too_few_to_average(f"last:{len(saved) + 1}", "key")
    assert problem.reason.startswith(f"the run has {len(saved)} or more")


@pytest.mark.parametrize(("off_updates", "certain"), [(0, 5), (5, 3), (6, 2), (9, 1), (10, 5)])
def test_evaluations_before_gates_are_asked_are_in_no_mean(off_updates: int, certain: int) -> None:
    recipe = Recipe(training=TrainingConfig(n_updates=10, evaluate_every=2, keep_best=9))
    assert not list(recipe.too_few_to_average(f"best:{certain}", "key", first=off_updates))
    (problem,) = recipe.too_few_to_average(f"best:{certain + 1}", "key", first=off_updates)
    assert problem.reason.startswith(f"the run has {certain} or more")
    assert (f"training.halting.off_updates {off_updates}" in problem.reason) == (certain < 5)


def test_the_checkpoint_that_is_scored_is_a_role_or_a_mean() -> None:
    kept = {"keep_best": 4, "n_updates": 2000, "evaluate_every": 500}
    assert (
        load_recipe_config({"evaluation": {"checkpoint": "best:4"}, "training": kept}).evaluation.checkpoint == "best:4"
    )
    for wrong in ("best:0", "bset", "update-000500"):
        with pytest.raises(ConfigError, match=r"evaluation\.checkpoint is "):
            load_recipe_config({"evaluation": {"checkpoint": wrong}})
