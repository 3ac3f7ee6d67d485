"""The small recursive models on the puzzles that there are: every recipe trains, and is scored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ostinato.data.registry import DataAccess
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

FEW = ["task.n_train=20", "task.n_eval=4"]
RECIPES = {
    "looped/trm-sudoku": [*FEW, "task.augmentations=1", "task.size=4"],
    "looped/hrm-sudoku": [*FEW, "task.augmentations=1", "task.size=4"],
    "looped/trm-maze": [*FEW, "task.size=3", "task.larger_sizes=[4]", "task.least_path=5"],
    "looped/hrm-maze": [*FEW, "task.size=3", "task.larger_sizes=[4]", "task.least_path=5"],
    "looped/length": [*FEW],
}
FAST = ("looped/hrm-sudoku", "looped/trm-maze")
SHORT = [
    "training.schedule.warmup=1",
    "training.evaluate_every=2",
    "training.device=cpu",
    "data.tokens_per_batch=128",
    "evaluation.max_examples=4",
    "training.selection.max_examples=4",
]


def assert_trains(name: str, settings: Sequence[str], folder: Path, access: DataAccess | None = None) -> None:
    """Train two updates and none, and compare: first states of puzzle models stay as drawn, nothing else does."""
    found = {}
    for n_updates in (0, 2):
        recipe = load_recipe(name, [*SHORT, *settings, f"training.n_updates={n_updates}"])
        results = train(recipe, folder / str(n_updates), access=access)["splits"]["test"]
        assert 0 <= results["tag_accuracy"] <= 1
        found[n_updates] = dict(load(folder / str(n_updates)).model.named_parameters())
    same = {key for key, x in found[2].items() if torch.equal(x, found[0][key])}
    assert same == {key for key in found[0] if key.startswith("banks.start.")}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in RECIPES]
)
def test_a_recipe_trains_and_is_scored(name: str, tmp_path: Path) -> None:
    assert_trains(name, RECIPES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["looped/trm-arc", "looped/hrm-arc"])
def test_a_recipe_of_arc_trains_on_the_published_grids(name: str, access: DataAccess, tmp_path: Path) -> None:
    assert_trains(name, ["task.max_words=300"], tmp_path, access)


def test_the_recipes_of_sudoku_run_as_many_layers_of_other_numbers_of_weights() -> None:
    plans = {name: load_recipe(f"looped/{name}").model.plans()["encoder"] for name in ("trm-sudoku", "hrm-sudoku")}
    executed = {name: sum(len(steps) for steps in plan.loop.rounds()) for name, plan in plans.items()}
    assert executed == {"trm-sudoku": 24, "hrm-sudoku": 24}
    own = {name: len({use.weights for use in plan.uses() if use.kind == "ffn"}) for name, plan in plans.items()}
    assert own == {"trm-sudoku": 2, "hrm-sudoku": 8}
