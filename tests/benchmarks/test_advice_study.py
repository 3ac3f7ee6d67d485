from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from ostinato.advise.candidates import BASE
from ostinato.errors import DataError
from ostinato.tasks.recipes import find_recipe

LENGTH = 400


def rows(order_changes: bool = False) -> list[dict[str, Any]]:
    """Return a grid of 25 candidates of which later ones are better; or better at first only."""
    found = []
    for place, name in enumerate([BASE, *(f"c{number}" for number in range(24))]):
        for updates in (10, 31, 100, LENGTH):
            sign = -1 if order_changes and updates == LENGTH else 1
            score = 3.0 - sign * 0.1 * place + 4 / updates
            found.append(
                {
                    "task": "made up",
                    "length": LENGTH,
                    "metric": "loss",
                    "candidate": name,
                    "levels": {"plan": "shared" if place == 3 else "individual", "experts": "no experts"}
                    | {"halting": "no halting"},
                    "updates": updates,
                    "score": score,
                    "loss": score,
                    "curve": [[updates, score]],
                    "seconds": 1.0,
                }
            )
    return found


def test_on_a_grid_that_early_scores_predict_nothing_is_lost(script: Callable[[str], ModuleType]) -> None:
    found = script("advise").replay(rows())
    assert (found["advised"], found["best"], found["regret"]) == ("c23", "c23", 0.0)
    assert found["recipe"] == 1.0
    assert found["shared"] == pytest.approx(21 / 24)
    assert 0.2 < found["random"] < 0.45
    assert found["compute"] < 0.105
    assert found["covered"]


def test_on_a_grid_that_turns_round_all_is_lost_and_said(script: Callable[[str], ModuleType]) -> None:
    study = script("advise")
    found = study.replay(rows(order_changes=True))
    assert found["regret"] == 1.0
    assert not found["covered"]
    assert study.table([found]).endswith("0 of 1 covered\n")


def test_a_grid_that_is_not_whole_is_refused(script: Callable[[str], ModuleType]) -> None:
    with pytest.raises(DataError, match="made up: 1 of 25 long trainings are missing"):
        script("advise").replay(rows()[:-1])
    with pytest.raises(DataError, match="no candidate of this grid has a long training"):
        script("advise").replay([])


def test_of_a_grid_that_is_not_whole_the_candidates_that_are_can_be_replayed(
    script: Callable[[str], ModuleType],
) -> None:
    study = script("advise")
    found = study.replay(study.whole_part(rows()[:-5]))
    assert (found["candidates"], found["best"], found["advised"]) == (23, "c21", "c21")


def test_a_shorter_training_can_be_the_long_one(script: Callable[[str], ModuleType]) -> None:
    study = script("advise")
    shorter = study.up_to(rows(), 100)
    assert study.stages_of(shorter) == [10, 31, 31]
    found = study.replay(shorter)
    assert found["regret"] == 0.0
    assert found["compute"] == pytest.approx((25 * 10 + 10 * 31) / 2500)


def test_the_tasks_have_recipes(script: Callable[[str], ModuleType]) -> None:
    tasks = script("advise").TASKS
    assert len(tasks) >= 6
    assert all(find_recipe(recipe).is_file() for recipe, *_ in tasks.values())
