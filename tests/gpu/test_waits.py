"""What a GPU would punish, counted on a CPU: how often an update, and a token of a search, make the host wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from plans import HALTING, PLANS, ROUNDS, VOCABULARY, batch_of, model_of, ragged_batch
from torch import Tensor

from ostinato.config.decoding import DecodingConfig
from ostinato.config.training import TrainingConfig
from ostinato.decoding.search import inference, search
from ostinato.models import build_model
from ostinato.nn.halting import NoHalting
from ostinato.nn.stack import Stack
from ostinato.tasks.recipes import list_recipes, load_recipe
from ostinato.training import gradients, processes
from ostinato.training.optim import build_optimizer
from ostinato.training.parallel import Parallel
from ostinato.training.processes import Processes
from ostinato.training.update import Updater
from pretended import DEVICE, PretendedDevice, pretend_model, pretended_device

LAUNCHES_OF_AN_UPDATE = {"dense": 480, "shared": 470, "experts": 830, "act": 810, "stick_breaking": 820}
"""Forward, backward, norm; attention in its parts, where CUDA has one kernel. A few per cent above what was counted."""
LAUNCHES_OF_A_TOKEN = {"dense": 84, "shared": 87, "experts": 129, "act": 116, "stick_breaking": 114}
PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
TITLES = {"stick_breaking": "stick-breaking", "act": "ACT"}


def _waits_of_an_update(name: str) -> int:
    """Return how often an update waits at most: two stacks, each with a look at who is left in every round."""
    return 1 + (2 * ROUNDS if name in HALTING else 0)


def _waits_of_a_token(name: str) -> int:
    """Return how often a token of a search of fixed length waits at most."""
    return ROUNDS if name in HALTING else 0


@pytest.mark.skipif(not PAGE.is_file(), reason="documents are not part of this distribution")
def test_the_page_has_these_budgets() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in PLANS:
        update = f"{_waits_of_an_update(name)} | {LAUNCHES_OF_AN_UPDATE[name]}"
        token = f"{_waits_of_a_token(name)} | {LAUNCHES_OF_A_TOKEN[name]}"
        assert f"| {TITLES.get(name, name)} | {update} | {token} |" in page


def _described(device: PretendedDevice) -> str:
    return "; ".join(f"{n} {wait.operation} at {wait.line}" for wait, n in Counter(device.waits).items())


@pytest.mark.sampled
@pytest.mark.parametrize("name", PLANS)
def test_an_update_waits_once_and_where_tokens_halt_once_more_in_every_round(name: str) -> None:
    model = model_of(name, dropout=0.1).train()
    pretend_model(model)
    config = TrainingConfig(n_updates=10)
    updater = Updater(model, build_optimizer(model, config.optimizer), config)
    with pretended_device() as device:
        updater.apply(updater.accumulate([ragged_batch(seed=1)], 1), 1)  # tables and trials are made once
        device.forget()
        gradient = updater.accumulate([ragged_batch()], 2)
        launches = device.n_launches
        updater.apply(gradient, 2)
    assert gradient.is_finite
    assert 1 <= len(device.waits) <= _waits_of_an_update(name), _described(device)
    assert launches <= LAUNCHES_OF_AN_UPDATE[name], device.launches


@pytest.mark.parametrize("name", ["experts", "act"])
def test_an_update_that_is_logged_waits_no_more_than_others(name: str) -> None:
    model = model_of(name, dropout=0.1).train()
    pretend_model(model)
    config = TrainingConfig.model_validate({"n_updates": 10, "balance": {"switch": 0.01} if name == "experts" else {}})
    updater = Updater(model, build_optimizer(model, config.optimizer), config)
    with pretended_device() as device:
        updater.apply(updater.accumulate([ragged_batch(seed=1)], 1, observed=True), 1)
        device.forget()
        gradient = updater.accumulate([ragged_batch()], 2, observed=True)
    assert (gradient.routing is not None) is (name == "experts")
    assert (gradient.depth is not None) is (name == "act")
    assert 1 <= len(device.waits) <= _waits_of_an_update(name), _described(device)


def test_an_update_of_several_processes_waits_once_more_for_which_parameters_have_a_gradient() -> None:
    model = model_of("dense").train()
    pretend_model(model)
    config, parallel = TrainingConfig(n_updates=10), Parallel(model, Processes(0, 2))
    updater = Updater(model, build_optimizer(model, config.optimizer), config, parallel=parallel)
    with pretended_device() as device, patch.object(gradients, "all_reduce"), patch.object(processes, "all_reduce"):
        updater.accumulate([ragged_batch(seed=1)], 1)
        device.forget()
        updater.accumulate([ragged_batch()], 2)
    assert len(device.waits) == 1 + _waits_of_an_update("dense"), _described(device)


@pytest.mark.sampled
@pytest.mark.parametrize("name", [one.name for one in list_recipes() if "toy" in one.name])
def test_an_update_of_a_toy_recipe_waits_once_and_once_a_round_where_some_take_no_part(name: str) -> None:
    recipe = load_recipe(name)
    model = build_model(recipe.model.model_copy(update=recipe.model.vocabulary_sizes(VOCABULARY, VOCABULARY))).train()
    pretend_model(model)
    config = recipe.training
    updater, last = Updater(model, build_optimizer(model, config.optimizer), config), config.n_updates - 1
    n_rounds, run = 0, Stack._round

    def counted(*given: Any) -> Any:
        nonlocal n_rounds
        n_rounds += 1
        return run(*given)

    with pretended_device() as device:
        updater.apply(updater.accumulate([batch_of(recipe.model)], last), last)
        device.forget()
        with patch.object(Stack, "_round", counted):
            updater.accumulate([batch_of(recipe.model)], last)
    all_take_part = all(isinstance(stack.halting, NoHalting) for stack in model.stacks.values())
    # A look that finds nobody left ends a stack: no round follows it.
    most = 1 if all_take_part and config.rounds.per == "update" else 1 + n_rounds + len(model.stacks)
    assert 1 <= len(device.waits) <= most, _described(device)


class _Searched:
    """A search of a number of tokens that was counted; `between`: its waits after the second token and before the last;
    `after`: those since. `change` makes other logits of those of a step, given its number and the end symbol.

    What comes once is not among those: tables, trials and the prompt's padding before, reading the outputs after.
    """

    def __init__(
        self, name: str, n_tokens: int, change: Callable[[Tensor, int, int], Tensor] | None = None, **settings: object
    ) -> None:
        model = model_of(name).eval()
        pretend_model(model)
        config = DecodingConfig.model_validate({"max_length": n_tokens, "max_length_ratio": 0.0} | settings)
        compute, n_waits = model.step, list[int]()  # before every step

        def step(*given: Any) -> Any:
            n_waits.append(len(device.waits))
            logits_RV = compute(*given)
            return logits_RV if change is None else change(logits_RV.clone(), len(n_waits), model.special_ids.eos)

        with pretended_device() as device, inference(model), patch.object(model, "step", step):
            self.found = search(model, ragged_batch(3).to(DEVICE), config)
        assert len(n_waits) == n_tokens  # it did not stop before
        self.device, self.between, self.after = (
            device,
            device.waits[n_waits[1] : n_waits[-1]],
            device.waits[n_waits[-1] :],
        )


BEAM, SAMPLE = {"strategy": "beam", "beam": 3}, {"strategy": "sample"}
SEARCHES = [
    pytest.param(name, settings, id=f"{name} {settings.get('strategy', 'greedy')}", marks=marks)
    for name in ("dense", "shared", "experts")
    for settings in ({}, BEAM, SAMPLE)
    for marks in [() if (name, settings) in (("dense", {}), ("experts", BEAM)) else pytest.mark.slow]
]


@pytest.mark.parametrize(("name", "settings"), SEARCHES)
def test_a_token_of_a_search_of_fixed_length_never_waits(name: str, settings: dict[str, object]) -> None:
    _Searched(name, 2, min_length=2, **settings)
    short, long = (_Searched(name, n, min_length=n, **settings).device for n in (3, 6))
    assert len(short.waits) == len(long.waits), _described(long)
    if not settings:
        assert (long.n_launches - short.n_launches) / 3 <= LAUNCHES_OF_A_TOKEN[name], long.launches


@pytest.mark.parametrize("relative", ["rotary", "alibi", "window", "buckets"])
def test_relative_positions_never_wait(relative: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLANS, "dense", {"positions": {"kind": "none"}, "relative": {"kind": relative}})
    short, long = (_Searched("dense", n, min_length=n).device for n in (3, 5))
    assert len(short.waits) == len(long.waits), _described(long)
    model = model_of("dense").train()
    pretend_model(model)
    config = TrainingConfig(n_updates=10)
    updater = Updater(model, build_optimizer(model, config.optimizer), config)
    with pretended_device() as device:
        updater.apply(updater.accumulate([ragged_batch(seed=1)], 1), 1)
        device.forget()
        updater.apply(updater.accumulate([ragged_batch()], 2), 2)
    assert len(device.waits) == 1, _described(device)


@pytest.mark.parametrize(("name", "settings"), SEARCHES)
def test_a_search_waits_at_most_once_in_eight_tokens(name: str, settings: dict[str, object]) -> None:
    searched = _Searched(name, 16, **settings)
    (look,) = searched.between  # after the eighth token, who has stopped
    assert "stopped_S" in look.line, _described(searched.device)


def test_sentences_that_leave_early_cost_a_search_five_copies_when_it_is_over() -> None:
    def one_ends_at_its_third_token(logits_RV: Tensor, number: int, eos: int) -> Tensor:
        logits_RV[:, eos] = -1e4
        if number == 3:
            logits_RV[0, eos] = 1e4
        return logits_RV

    searched = _Searched("dense", 26, one_ends_at_its_third_token)
    assert [len(one.ids) for one in searched.found] == [2, 26, 26]
    assert ["stopped_S" in look.line for look in searched.between] == [True] * 3, _described(searched.device)
    n_looks_at_which_some_had_left = 2  # the first of them, and the end
    assert len(searched.after) == 5 * n_looks_at_which_some_had_left, _described(searched.device)


def test_grouped_products_which_wait_in_float32_are_as_many_as_the_page_says() -> None:
    model = model_of("experts").train()
    pretend_model(model)
    config = TrainingConfig(n_updates=10)
    updater = Updater(model, build_optimizer(model, config.optimizer), config)
    with pretended_device() as device:
        updater.apply(updater.accumulate([ragged_batch(seed=1)], 1), 1)
        device.forget()
        updater.accumulate([ragged_batch()], 2)
    assert device.launches["_grouped_mm"] == 2 * ROUNDS * (2 + 4)  # feed-forwards of two stacks, forwards and backwards
    short, long = (_Searched("experts", n, min_length=n).device for n in (3, 5))
    assert long.launches["_grouped_mm"] - short.launches["_grouped_mm"] == 2 * ROUNDS * 2  # two tokens


@pytest.mark.parametrize("name", ["act", pytest.param("stick_breaking", marks=pytest.mark.slow)])
def test_where_tokens_halt_a_token_of_a_search_waits_at_most_once_a_round(name: str) -> None:
    short, long = (_Searched(name, n, min_length=n).device for n in (2, 4))
    assert len(long.waits) - len(short.waits) <= 2 * _waits_of_a_token(name), _described(long)
    assert (long.n_launches - short.n_launches) / 2 <= LAUNCHES_OF_A_TOKEN[name], long.launches


def test_what_makes_the_host_wait_is_counted() -> None:
    with pretended_device() as device:
        x = torch.arange(6.0, device=DEVICE)
        device.forget()
        mask = x > 2
        waits = [
            lambda: float(x[0]),
            lambda: bool(mask.any()),
            lambda: x.tolist(),
            lambda: x.cpu(),
            lambda: mask.nonzero(),
            lambda: x[mask],
            lambda: x.masked_select(mask),
            lambda: x.unique(),
            lambda: x.repeat_interleave(x.long()),
            lambda: torch.bincount(x.long()),
            lambda: torch.tensor([1.0], device=DEVICE),
            lambda: torch.ones(2).to(DEVICE),
        ]
        for number, one in enumerate(waits, 1):
            one()
            assert len(device.waits) == number, device.waits
        device.forget()
        (
            x.repeat_interleave(x.long(), output_size=15),
            torch.ones(2).to(DEVICE, non_blocking=True),
            x.index_select(0, torch.zeros(2, dtype=torch.long, device=DEVICE)),
        )
        torch.nonzero_static(mask, size=3), torch.where(mask, x, 0.0), x.sum()
    assert not device.waits
    assert device.launches["where"] == device.launches["sum"] == 1


def test_a_tensor_on_the_wrong_device_is_an_error() -> None:
    with pretended_device(), pytest.raises(RuntimeError, match="a tensor on the CPU beside one on the device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)
