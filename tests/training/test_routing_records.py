"""What training records say about routers, and who is told when one has collapsed."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from routed_models import tiny_batches, tiny_model
from tiny_runs import BALANCE, ROUTERS, records, tiny_recipe, weights

from ostinato.config.experts import HypersphereRouterConfig
from ostinato.config.model import Seq2SeqConfig
from ostinato.config.training import BALANCE_LOSSES
from ostinato.models.losses import raw_balance_loss
from ostinato.nn import balance
from ostinato.nn.routing import HypersphereRouter
from ostinato.training import Reporter, train, update
from ostinato.training.optim import build_optimizer
from ostinato.training.records import Records
from ostinato.training.reporter import make_reporter
from ostinato.training.routing import CollapseWatch, evenness
from ostinato.training.update import Updater


def test_a_record_holds_losses_load_and_entropies_of_the_last_batch_by_router_and_round(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, experts=True)
    model, batches = tiny_model(recipe).eval(), tiny_batches()
    updater = Updater(model, build_optimizer(model, recipe.training.optimizer), recipe.training)
    assert updater.accumulate(batches).routing is None
    found = updater.accumulate(batches, observed=True).routing
    assert found is not None
    assert list(found) == list(model(batches[-1]).by_router())
    for router, mine in model(batches[-1]).by_router().items():
        tau_0 = model.balance_temperatures()[router]
        rounds = found[router]["rounds"]
        assert [(r["stack"], r["round"]) for r in rounds] == [(m.stack, i) for i, m in enumerate(mine)]
        assert found[router]["k"] == mine[0].experts_NK.shape[1]
        for numbers, routings in [(found[router], mine), *zip(rounds, ([m] for m in mine), strict=True)]:
            for name in BALANCE_LOSSES:
                expected = float(raw_balance_loss(name, routings, tau_0).detach())
                assert numbers["losses"][name] == pytest.approx(expected, rel=1e-5, abs=1e-6)
                assert numbers["weighted"][name] == BALANCE[name] * numbers["losses"][name]
            assert list(numbers["weighted"]) == list(BALANCE)
            load = balance.load(routings)
            assert numbers["load"] == pytest.approx(load.fraction_E.tolist(), abs=1e-6)
            assert numbers["n_dead"] == int((load.fraction_E == 0).sum())
            assert numbers["load_entropy"] == pytest.approx(float(load.entropy), rel=1e-5)
            assert numbers["row_entropy"] == pytest.approx(float(load.row_entropy), rel=1e-5)


def test_a_record_holds_the_temperatures_of_hypersphere_routers_alone(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, experts=True)
    assert isinstance(recipe.model, Seq2SeqConfig)
    stacks = recipe.model.stacks()
    ffn = stacks["encoder"].ffn.model_copy(update={"router": HypersphereRouterConfig(), "top_k": 1})
    encoder = stacks["encoder"].model_copy(update={"ffn": ffn})
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"encoder": encoder})})
    model = tiny_model(recipe)
    router = model.banks.ffn["encoder_0"].router
    with torch.no_grad():
        router.tau.fill_(-1.0)
    updater = Updater(model, build_optimizer(model, recipe.training.optimizer), recipe.training)
    found = updater.accumulate(tiny_batches(), observed=True).routing
    assert found is not None
    assert found["ffn.encoder_0"]["temperature"] == pytest.approx(router.floor)
    assert len(found) > 2
    for name, record in found.items():
        kind, _, bank = name.partition(".")
        one = getattr(model.banks, kind)[bank].router
        assert ("temperature" in record) is isinstance(one, HypersphereRouter), name
    assert all("temperature" not in one for one in found["ffn.encoder_0"]["rounds"])


def test_only_losses_with_a_weight_are_weighted_and_layers_of_one_round_are_one_entry(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, experts=True, balance={"z": 0.5})
    stack = recipe.model.stacks()["encoder"].model_copy(update={"steps_per_round": 2})
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"encoder": stack})})
    model = tiny_model(recipe)
    updater = Updater(model, build_optimizer(model, recipe.training.optimizer), recipe.training)
    found = updater.accumulate(tiny_batches(), observed=True).routing
    assert found is not None
    assert [(r["stack"], r["round"]) for r in found["ffn.encoder_0"]["rounds"]] == [("encoder", 0)]
    assert found["ffn.encoder_0"]["rounds"][0]["losses"] == found["ffn.encoder_0"]["losses"]
    assert list(found["ffn.encoder_0"]["losses"]) == list(BALANCE_LOSSES)
    assert found["ffn.encoder_0"]["weighted"] == {"z": 0.5 * found["ffn.encoder_0"]["losses"]["z"]}


@pytest.mark.slow
def test_routers_are_looked_at_in_recorded_updates_only_and_that_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    original = update.observe_routing

    def observe(*args: Any) -> Any:
        calls.append(1)
        return original(*args)

    monkeypatch.setattr(update, "observe_routing", observe)
    train(tiny_recipe(tmp_path, experts=True, n_updates=6, log_every=4), tmp_path / "seldom")
    found = records(tmp_path / "seldom", "training")
    assert [record["update"] for record in found] == [4, 6]
    assert len(calls) == 2
    assert all(sorted(record["routing"]) == sorted(ROUTERS) for record in found)
    train(tiny_recipe(tmp_path, experts=True, n_updates=6, log_every=1), tmp_path / "often")
    assert weights(tmp_path / "often") == weights(tmp_path / "seldom")
    assert records(tmp_path / "often", "training")[-1]["routing"] == found[-1]["routing"]


def test_a_loss_that_is_not_finite_is_null_in_the_log_also_inside_a_list(tmp_path: Path) -> None:
    rounds = [{"losses": {"z": math.inf}, "load": [0.5, math.nan]}]
    Records(tmp_path).add({"kind": "training", "update": 1, "routing": {"r": {"rounds": rounds}}}, {})
    [record] = records(tmp_path, "training")
    assert record["routing"]["r"]["rounds"] == [{"losses": {"z": None}, "load": [0.5, None]}]


def _routing(load: list[float], k: int = 1) -> dict[str, Any]:
    entropy = -sum(p * math.log(p) for p in load if p)
    return {"k": k, "load": load, "load_entropy": entropy}


def test_evenness_is_one_for_even_load_and_zero_where_all_tokens_go_to_the_same_experts() -> None:
    assert evenness(math.log(8), 8, 2) == pytest.approx(1.0)
    assert evenness(math.log(2), 8, 2) == pytest.approx(0.0)
    assert evenness(math.log(4), 4, 4) == 1.0


def test_a_collapsed_router_is_named_once_after_the_warm_up() -> None:
    watch = CollapseWatch(warmup=10)
    even, collapsed = _routing([0.25] * 4), _routing([0.98, 0.02, 0.0, 0.0])
    assert list(watch.warnings(10, {"ffn.a": collapsed})) == []
    assert list(watch.warnings(11, {"ffn.a": even})) == []
    [line] = watch.warnings(12, {"ffn.a": collapsed, "ffn.b": even})
    assert line.startswith("router ffn.a has collapsed: in effect it uses 1.1 of 4 experts, and a token gets 1")
    assert list(watch.warnings(13, {"ffn.a": collapsed})) == []
    [line] = watch.warnings(14, {"ffn.b": _routing([0.5, 0.49, 0.01, 0.0], k=2)})
    assert "router ffn.b has collapsed" in line


def test_experts_that_stay_dead_are_named_and_those_that_come_back_are_not() -> None:
    watch = CollapseWatch(warmup=0)
    dead, alive = _routing([0.5, 0.3, 0.2, 0.0]), _routing([0.4, 0.3, 0.2, 0.1])
    for number in range(1, 5):
        assert list(watch.warnings(number, {"a": dead, "b": dead})) == []
    assert list(watch.warnings(5, {"b": alive})) == []
    [line] = watch.warnings(6, {"a": dead, "b": dead})
    assert line.startswith("router a has 1 dead of 4 experts (3): no token of 5 records chose them")


class _Warned(Reporter):
    def __init__(self) -> None:
        self.lines: list[tuple[int, str]] = []

    def on_warning(self, update: int, message: str) -> None:
        self.lines.append((update, message))


@pytest.mark.slow
def test_a_run_tells_its_reporter_of_a_router_that_collapses(tmp_path: Path) -> None:
    # Pushed the wrong way by nothing but a rate that sends every score far off.
    recipe = tiny_recipe(
        tmp_path, experts=True, n_updates=12, log_every=1, optimizer={"lr": 1.0}, balance={}, evaluate_every=12
    )
    listener = _Warned()
    train(recipe, tmp_path / "run", reporter=listener)
    named = [message.split()[1] for _, message in listener.lines]
    assert named
    assert len(named) == len(set(named))
    assert all(update > 4 for update, _ in listener.lines)
    by_update = {record["update"]: record["routing"] for record in records(tmp_path / "run", "training")}
    for number, message in listener.lines:
        found = by_update[number][message.split()[1]]
        uneven = evenness(found["load_entropy"], len(found["load"]), found["k"])
        assert uneven < 0.1 or found["n_dead"]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_warnings_are_lines_of_their_own(is_terminal: bool, tmp_path: Path) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=is_terminal, width=120, color_system=None)
    reporter = make_reporter(console)
    info = {"device": "cpu", "parameters": 1, "n_examples": 1, "update": 0}
    reporter.on_start(tiny_recipe(tmp_path), info)
    reporter.on_warning(500, "router ffn.encoder_0 has collapsed: [2 of 8]")
    reporter.close()
    assert "update 500  warning: router ffn.encoder_0 has collapsed: [2 of 8]" in stream.getvalue()
