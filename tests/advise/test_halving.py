from __future__ import annotations

import pytest
from tables import Formula

from ostinato.advise.halving import Found, Halving, drift_of, expect, search
from ostinato.advise.trials import Trial

SIZES = [10, 30, 90]
NAMES = ["base", *(f"c{number}" for number in range(11))]


def quality(trial: Trial) -> float:
    """A loss that is lower for later names, and for the rate 1."""
    place = NAMES.index(trial.candidate)
    return 2.0 - 0.1 * place + (0.05 if trial.rate != 1.0 else 0.0) + 0.001 * trial.seed + 1 / trial.updates


def test_the_best_come_through_at_their_best_rate_with_the_recipe_beside_them() -> None:
    trainer = Formula(quality)
    halving = Halving((0.3, 1.0, 3.0), "min", "base", n_final=3, n_seeds=2, most_seeds=2)
    found = search(NAMES, trainer, halving, lambda stage, _: SIZES[stage])
    assert found.is_complete
    assert len(found.stages[0]) == 36
    assert [one.trial.candidate for one in found.stages[1]] == ["c10", "c9", "c8", "c7", "base"]
    assert [one.trial.candidate for one in found.stages[2]] == [*("c10", "c9", "c8", "base")] * 2
    assert {one.trial.rate for stage in found.stages[1:] for one in stage} == {1.0}
    assert [one.trial.seed for one in found.stages[2]] == [1] * 4 + [2] * 4


def test_a_larger_score_may_be_the_better_one() -> None:
    trainer = Formula(lambda trial: -quality(trial))
    found = search(NAMES, trainer, Halving((1.0,), "max", n_seeds=1, most_seeds=1), lambda stage, _: SIZES[stage])
    assert found.stages[2][0].trial.candidate == "c10"


@pytest.mark.parametrize(("most", "sizes"), [(0, []), (5, [5]), (12, [12]), (14, [12, 2]), (18, [12, 5, 1])])
def test_what_is_done_when_time_is_up_is_returned(most: int, sizes: list[int]) -> None:
    halving = Halving((1.0,), "min", "base", n_seeds=1, most_seeds=1)
    found = search(NAMES, Formula(quality, most), halving, lambda stage, _: SIZES[stage])
    assert not found.is_complete
    assert [len(stage) for stage in found.stages] == sizes


def test_a_candidate_that_diverges_goes_no_further() -> None:
    trainer = Formula(lambda trial: None if trial.candidate == "c10" else quality(trial))
    found = search(NAMES, trainer, Halving((1.0,), "min", n_seeds=1, most_seeds=1), lambda stage, _: SIZES[stage])
    assert "c10" not in {one.trial.candidate for one in found.stages[1]}


def test_where_all_diverge_the_search_ends() -> None:
    found = search(NAMES, Formula(lambda trial: None), Halving((1.0,), "min"), lambda stage, _: SIZES[stage])
    assert len(found.stages) == 1


def test_one_that_is_closed_leaves_its_place_to_the_next() -> None:
    halving = Halving((1.0,), "min", n_final=2, n_seeds=1, most_seeds=1)
    found = search(
        NAMES, Formula(quality), halving, lambda stage, _: SIZES[stage], is_open=lambda name: name not in ("c10", "c9")
    )
    assert [one.trial.candidate for one in found.stages[2]] == ["c8", "c7"]


def test_more_seeds_are_for_those_that_are_not_told_apart() -> None:
    halving = Halving((1.0,), "min", n_final=3, n_seeds=2, most_seeds=4)
    found = search(
        NAMES, Formula(quality), halving, lambda stage, _: SIZES[stage], are_apart=lambda outcomes, name: name == "c8"
    )
    seeds = {name: [o.trial.seed for o in found.stages[2] if o.trial.candidate == name] for name in ("c10", "c9", "c8")}
    assert seeds == {"c10": [1, 2, 3, 4], "c9": [1, 2, 3, 4], "c8": [1, 2]}


def test_seeds_end_with_the_time() -> None:
    halving = Halving((1.0,), "min", n_final=3, n_seeds=3)
    found = search(NAMES, Formula(quality), halving, lambda stage, _: SIZES[stage], has_time=lambda trials: False)
    assert found.is_complete
    assert {one.trial.seed for one in found.stages[2]} == {1}


def test_seeds_that_are_there_count_also_without_time() -> None:
    halving, trainer = Halving((1.0,), "min", n_final=3, n_seeds=2, most_seeds=2), Formula(quality)
    whole = search(NAMES, trainer, halving, lambda stage, _: SIZES[stage])
    again = search(NAMES, trainer, halving, lambda stage, _: SIZES[stage], has_time=lambda trials: False)
    assert again.stages == whole.stages


def test_intervals_are_as_wide_as_the_stages_before_missed_the_later_ones() -> None:
    halving = Halving((1.0,), "min", n_seeds=1, most_seeds=1)
    falling = search(NAMES, Formula(lambda trial: 10.0 / trial.updates**2), halving, lambda stage, _: SIZES[stage])
    flat = search(NAMES, Formula(lambda trial: 1.0), halving, lambda stage, _: SIZES[stage])
    assert drift_of(flat) == drift_of(flat, best=0.0) == drift_of(Found()) == drift_of(Found(flat.stages[:1])) == 0.0
    # From one point nothing is expected: the stage after it has a ninth, which is missed by 2 a unit of log u.
    early = Found(falling.stages[:2])
    assert drift_of(early, best=0.0) == pytest.approx(2.0)
    one = early.stages[-1][0]
    narrow, wide = (expect(early, one, 90, best=0.0, drift=drift) for drift in (0.0, drift_of(early, best=0.0)))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_a_late_one_gets_the_last_place() -> None:
    names = [f"c{number}" for number in range(9)]

    class Curves(Formula):
        """c0 is behind, and falls steeply; all others are flat."""

        def outcome(self, trial: Trial) -> object:
            own = super().outcome(trial)
            end = own.score or 0.0
            slope = 1.0 if trial.candidate == "c0" else 0.0
            points = tuple(
                (u, end + slope * (trial.updates - u) / trial.updates) for u in range(2, trial.updates + 1, 2)
            )
            return type(own)(trial, own.score, own.loss, points, own.seconds)

    trainer = Curves(lambda trial: 2.0 - 0.1 * names.index(trial.candidate))
    halving = Halving((1.0,), "min", n_final=3, n_seeds=1, most_seeds=1, length=900)
    found = search(names, trainer, halving, lambda stage, _: SIZES[stage])
    assert [one.trial.candidate for one in found.stages[1]] == ["c8", "c7", "c0"]
