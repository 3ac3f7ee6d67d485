"""Training passes are one graph, the same for all lengths; where tokens halt, one for every stretch between rounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from plans import HALTING, PLANS

slow = pytest.mark.slow
MOST_ANEW = 3
"""Times that an epoch of real batches may be compiled anew after the first."""
ONE_GRAPH = [name for name in PLANS if name not in HALTING]


def _said(what: str, plan: str = "") -> Any:
    command = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("compiled_passes.py")), what, plan]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@slow
@pytest.mark.parametrize("name", PLANS)
def test_a_pass_is_compiled_once_for_all_lengths_and_gives_what_is_not_compiled(name: str) -> None:
    said = _said("epoch", name)
    graphs = said["graphs"]
    if name in HALTING:
        assert graphs[-1] <= graphs[3] + MOST_ANEW, graphs  # stretches, nearly none of them once lengths have varied
    else:
        assert graphs[-1] <= 1 + MOST_ANEW, graphs
    assert said["apart"] <= (0.05 if name == "experts" else 1e-5)  # experts run in bfloat16


@slow
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_an_epoch_of_training_is_compiled_at_most_three_times_anew_and_learns_the_same(name: str) -> None:
    said = _said("training", name)
    assert said["n_shapes"] > 10
    assert said["graphs"][-1] <= 1 + MOST_ANEW, said["graphs"]
    compiled, plain = said["losses"]
    assert compiled == pytest.approx(plain, rel=0.01 if name == "experts" else 1e-4)
    assert sum(plain[-5:]) < 0.95 * sum(plain[:5])


@slow
@pytest.mark.parametrize("name", ONE_GRAPH)
def test_nothing_of_a_pass_is_left_to_python(name: str) -> None:
    breaks, *graphs = _said("explain", name)
    assert (breaks, graphs) == (0, [1, 1, 1])  # whatever the number of rounds


@slow
@pytest.mark.parametrize("name", HALTING)
def test_where_tokens_halt_every_round_is_as_many_graphs_as_any_other(name: str) -> None:
    breaks, *graphs = _said("explain", name)
    assert breaks == graphs[0] - 1
    third, fourth = graphs[1] - graphs[0], graphs[2] - graphs[1]
    assert third > 0
    # By stick-breaking all tokens have halted before the fourth round, by ACT none.
    assert fourth == (0 if name == "stick_breaking" else third)


@slow
def test_every_recipe_of_toy_size_without_experts_and_halting_is_one_graph() -> None:
    said = _said("recipes", "toy")
    assert len(said) > 10
    assert {name: n_breaks for name, (n_breaks, *_) in said.items() if n_breaks} == {}
    for name, (_, compiled, plain) in said.items():
        assert compiled == pytest.approx(plain, rel=1e-5), name


@pytest.mark.parametrize(
    "name",
    [
        "looped/mor-toy",
        *(pytest.param(f"looped/{name}-toy", marks=slow) for name in ("length", "mor-token", "ouro")),
    ],
)
def test_recipes_by_whose_rules_tokens_stop_are_compiled_in_parts(name: str) -> None:
    ((_, compiled, plain),) = _said("recipes", name).values()
    assert compiled == pytest.approx(plain, rel=1e-5)


@slow
@pytest.mark.parametrize("name", ["dense", "shared"])
def test_the_gradient_of_a_compiled_pass_is_that_of_one_that_is_not(name: str) -> None:
    assert _said("gradients", name) < 1e-5


@slow
@pytest.mark.parametrize("name", ["dense", "shared"])
def test_losses_of_several_rounds_are_one_graph_too(name: str) -> None:
    said = _said("round_losses", name)
    assert set(said) == {"window", "weights", "drawn"}
    for kind, (compiled, plain) in said.items():
        assert compiled == pytest.approx(plain, rel=1e-5), kind
    assert len({plain for _, plain in said.values()}) == 3
