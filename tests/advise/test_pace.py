from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tables import Formula

from ostinato.advise.halving import Halving
from ostinato.advise.journal import FILE, Journal
from ostinato.advise.pace import LEAST_CANDIDATES, LEAST_UPDATES, Pace
from ostinato.advise.trials import Trial, TrialOutcome
from ostinato.errors import ConfigError, DataError

COSTS = {f"c{number}": 1.0 + number % 3 for number in range(24)}
RATES = (0.3, 1.0, 3.0)


def pace(folder: Path, hours: float, most: int = 100_000, question: str = "x") -> Pace:
    """Return the pace of trainings of 2 s and 0.1 s an update for the first candidate."""
    journal = Journal(folder, {"question": question})
    made = Pace(journal, COSTS, Halving(RATES, "min", "c0", length=most), 1, time.monotonic() + 3600 * hours)
    made.probe(Formula(lambda trial: 1.0))
    return made


def test_one_search_is_at_work_in_a_folder_at_a_time(tmp_path: Path) -> None:
    first = Journal(tmp_path, {"question": "x"})
    with pytest.raises(ConfigError, match="another process is at work on a search in this folder"):
        Journal(tmp_path, {"question": "x"})
    first.close()
    Journal(tmp_path, {"question": "y"}).close()  # nothing was decided
    (tmp_path / FILE).write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="is damaged"):
        Journal(tmp_path, {"question": "x"})
    (tmp_path / FILE).unlink()
    Journal(tmp_path, {"question": "x"}).close()


def going_on(names: list[str], updates: int, seconds: float) -> list[TrialOutcome]:
    return [TrialOutcome(Trial(name, 1.0, 1, updates), 1.0, seconds=seconds) for name in names]


def test_the_stages_fill_the_time(tmp_path: Path) -> None:
    ours = pace(tmp_path, 3.0)
    names, rates = ours.shorten(RATES)
    assert (len(names), rates) == (24, RATES)
    first = ours.size_of(0, [], names, rates)
    left = sum(2 + 0.1 * COSTS[name] * first for name in names) * 3
    assert first >= LEAST_UPDATES
    assert 0.15 * 10800 < left < 0.5 * 10800
    second = ours.size_of(1, going_on(names[:9], first, 2 + 0.1 * first), names, rates)
    assert second > 2 * first


def test_with_less_time_fewer_are_tried(tmp_path: Path) -> None:
    names, _ = pace(tmp_path, 0.3).shorten(RATES)
    assert LEAST_CANDIDATES <= len(names) < 24
    assert names[0] == "c0", "the recipe is always there"


def test_too_little_time_is_one_line_with_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        pace(tmp_path, 0.05).shorten(RATES)
    assert str(caught.value).startswith("--hours is too short: the smallest search (6 candidates, one learning rate)")
    assert "\n" not in str(caught.value)


def test_no_training_is_longer_than_the_recipes_own(tmp_path: Path) -> None:
    ours = pace(tmp_path, 100.0, most=900)
    names, rates = ours.shorten(RATES)
    assert ours.size_of(0, [], names, rates) == 100
    assert ours.size_of(1, going_on(names[:9], 100, 12.0), names, rates) == 300
    assert ours.size_of(2, going_on(names[:4], 300, 32.0), names, rates) == 900


def test_what_was_decided_is_kept(tmp_path: Path) -> None:
    ours = pace(tmp_path, 3.0)
    first = ours.size_of(0, [], *ours.shorten(RATES))
    ours.journal.close()
    again = pace(tmp_path, 0.1)
    assert again.size_of(0, [], *again.shorten(RATES)) == first


def test_seeds_that_there_is_no_time_for_are_not_begun(tmp_path: Path) -> None:
    ours = pace(tmp_path, 3.0)
    assert ours.has_time([Trial("c0", 1.0, 2, 100)])
    assert not ours.has_time([Trial("c0", 1.0, 2, 1_000_000)])


def test_another_question_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    pace(tmp_path, 3.0)
    assert (tmp_path / FILE).is_file()
    with pytest.raises(ConfigError, match="name another folder with --out"):
        pace(tmp_path, 3.0, question="y")


def test_a_recipe_that_cannot_be_trained_is_an_error(tmp_path: Path) -> None:
    journal = Journal(tmp_path, {})
    ours = Pace(journal, COSTS, Halving(RATES, "min", length=100), 1, time.monotonic() + 100)
    with pytest.raises(ConfigError, match="c0 cannot be trained: update 3: the loss is nan"):
        ours.probe(Formula(lambda trial: None))


def test_of_a_recipe_that_fails_with_a_traceback_the_last_line_is_told(tmp_path: Path) -> None:
    class Failing:
        def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
            lines = ["failed: Traceback (most recent call last):", *["  File"] * 40, "ValueError: shapes"]
            return [TrialOutcome(trial, None, reason="\n".join(lines)) for trial in trials]

    ours = Pace(Journal(tmp_path, {}), COSTS, Halving(RATES, "min", length=100), 1, time.monotonic() + 100)
    with pytest.raises(ConfigError, match=r"c0 cannot be trained: failed: Traceback .*\n  \.\.\.\nValueError: shapes$"):
        ours.probe(Failing())


@pytest.mark.parametrize(("n_workers", "as_many"), [(2, 2), (3, 2), (4, 4), (8, 4), (16, 4)])
def test_a_last_stage_is_sized_for_seeds_that_are_trained_one_after_the_other(
    tmp_path: Path, n_workers: int, as_many: int
) -> None:
    def last_stage(n_workers: int) -> int:
        journal = Journal(tmp_path / str(n_workers), {"question": "x"})
        halving = Halving(RATES, "min", "c0", length=100_000)
        made = Pace(journal, COSTS, halving, n_workers, time.monotonic() + 3600)
        made.probe(Formula(lambda trial: 1.0))
        return made.size_of(2, going_on(["c0", "c1", "c2", "c3"], 100, 12.0), list(COSTS), RATES)

    assert last_stage(n_workers) == pytest.approx(last_stage(as_many), rel=0.01)


def test_where_there_is_no_time_for_all_rates_the_one_nearest_the_recipes_is_taken(tmp_path: Path) -> None:
    trainer, grid = Formula(lambda trial: 1.0), (0.02, 0.05, 0.1)
    journal = Journal(tmp_path, {"question": "x"})
    halving = Halving(grid, "min", "c0", length=100_000)
    ours = Pace(journal, COSTS, halving, 1, time.monotonic() + 0.25 * 3600)
    ours.probe(trainer)
    assert {trial.rate for trial in trainer.trained} == {0.1}
    assert ours.shorten(grid)[1] == (0.1,)
