from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any

import pytest

from ostinato.advise.candidates import BASE, make_candidates
from ostinato.advise.limits import Limits
from ostinato.advise.pace import LEAST_UPDATES
from ostinato.advise.space import load_space
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.tasks.recipes import find_recipe

LENGTH = 400
PUBLISHED = Path(__file__).parents[2].parent / "shared" / "data" / "upstream"


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
    assert found["default"] == 1.0
    assert found["shared"] == pytest.approx(21 / 24)
    assert 0.2 < found["random"] < 0.45
    assert found["compute"] < 0.105
    assert found["covered"]
    assert found["worse"] == pytest.approx(-2.4), "the default Transformer is worse by that"
    assert (found["covered in last stage"], found["last stage"]) == (4, 4)


def test_on_a_grid_that_turns_round_all_is_lost_and_said(script: Callable[[str], ModuleType]) -> None:
    study = script("advise")
    found = study.replay(rows(order_changes=True))
    assert found["regret"] == 1.0
    assert not found["covered"]
    assert found["worse"] == pytest.approx(2.4)
    assert found["half interval"] == pytest.approx((found["expected"][1] - found["expected"][0]) / 2)
    assert found["within"] is False
    lines = study.table([found]).splitlines()
    assert "medians: regret 1.000, random 0." in lines[4]
    assert [line.split(":")[0] for line in lines[5:10]] == ["missed", "met", "missed", "missed", "missed"]
    assert lines[6].startswith("met: a tenth of the compute")


def test_goals_are_judged_over_all_tasks_together(script: Callable[[str], ModuleType]) -> None:
    study = script("advise")
    found = study.replay(rows())
    assert all(line.startswith("met: ") for line in study.goals([found] * 6))
    assert [line.split(":")[0] for line in study.goals([found] * 5)] == ["missed", "met", "met", "met", "met"]
    turned = study.replay(rows(order_changes=True))
    held = turned["covered in last stage"]
    assert held < 4
    *_, within, last = study.goals([found] * 5 + [turned])
    assert within.endswith("half of the 90 % interval: 5 of 6 are not")
    assert last.endswith(f": {20 + held} of 24 of the last stages, 5 of 6 of those advised")


@pytest.mark.parametrize("n_draws", [1, 2, 3, 25])
def test_random_search_is_the_mean_over_all_draws(script: Callable[[str], ModuleType], n_draws: int) -> None:
    regrets = [((7 * i) % 25 / 24) ** 2 for i in range(25)]
    all_draws = combinations(regrets, n_draws)
    assert script("advise").random_regret(regrets, n_draws) == pytest.approx(fmean(map(min, all_draws)))


def test_two_and_a_half_draws_are_the_mean_of_two_and_three(script: Callable[[str], ModuleType]) -> None:
    best_of = script("advise").random_regret
    regrets = [i / 24 for i in range(25)]
    assert best_of(regrets, 2.5) == pytest.approx((best_of(regrets, 2) + best_of(regrets, 3)) / 2)
    assert best_of(regrets, 0.4) == pytest.approx(0.5), "one at least"


def test_compute_is_counted_in_multiply_accumulates(script: Callable[[str], ModuleType]) -> None:
    """The last candidate, which is in every stage, costs as much as all others together."""
    study = script("advise")
    costly = [row | {"macs": 24.0 if row["candidate"] == "c23" else 1.0} for row in rows()]
    found = study.replay(costly)
    assert found["compute"] > study.replay(rows())["compute"] + 0.05
    assert any("compute is in updates" in note for note in study.replay(rows())["notes"])
    assert not any("compute is in updates" in note for note in found["notes"])


def test_rows_of_several_versions_are_said_to_be(script: Callable[[str], ModuleType]) -> None:
    study = script("advise")
    one = {"macs": 1.0, "version": "0.1", "commit": "a" * 40}
    whole = [row | one for row in rows()]
    assert study.replay(whole)["notes"] == []
    mixed = [row | ({"commit": "b" * 40} if row["updates"] == 10 else {}) for row in whole]
    assert study.notes(mixed) == ["rows are 75 of 0.1 at aaaaaaaa, 25 of 0.1 at bbbbbbbb"]
    old = [*rows()[:4], *whole[4:]]
    assert study.notes(old)[0] == "rows are 96 of 0.1 at aaaaaaaa, 4 of no version that they name"
    assert "made up: rows are 96 of" in study.table([study.replay(old)])


def test_a_candidate_that_failed_is_as_bad_as_the_worst(script: Callable[[str], ModuleType]) -> None:
    study = script("advise")
    failed = [
        row | ({"score": None} if row["candidate"] == "c1" and row["updates"] == LENGTH else {}) for row in rows()
    ]
    found = study.long_trainings(failed)
    assert study.regrets_of(found, "min")["c1"] == 1.0
    assert study.replay(failed)["advised"] == "c23"


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


def test_the_tasks_have_recipes_and_stages_as_long_as_those_of_a_search(script: Callable[[str], ModuleType]) -> None:
    study = script("advise")
    assert len(study.TASKS) >= 6
    assert all(find_recipe(recipe).is_file() for recipe, *_ in study.TASKS.values())
    assert all(study.stage_sizes(length)[0] >= LEAST_UPDATES for _, length, _ in study.TASKS.values())


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reversal", "relay", "logical-inference", "cogs-vf", "parity", "listops"])
def test_every_grid_has_a_default_transformer_and_24_others(
    script: Callable[[str], ModuleType], task: str, tmp_path: Path
) -> None:
    study = script("advise")
    if task in ("logical-inference", "cogs-vf") and not PUBLISHED.is_dir():
        pytest.skip("no published files here")
    base, _, own = study.TASKS[task]
    access = DataAccess(tmp_path, str(PUBLISHED))
    found = make_candidates(base, own, load_space("default"), Limits(), access).found
    assert len(found) == 25
    (default,) = (one.model for one in found if one.name == study.DEFAULT)
    stacks = [stack for name in ("encoder", "decoder") if (stack := getattr(default, name, None)) is not None]
    for stack in stacks:
        assert (stack.halting.kind, stack.segments, stack.ffn.kind) == ("none", [], "dense")
        assert {stack.self_attention.share, stack.ffn.share} == {"individual"}
