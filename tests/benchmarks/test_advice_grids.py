"""Grids of `benchmarks/advise.py` are trained once, whatever is interrupted or lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ostinato.advise.candidates import BASE, Candidates, make_candidates
from ostinato.advise.limits import Limits
from ostinato.advise.trials import TimeUp, Trial, TrialOutcome
from ostinato.config.space import AxisConfig, LevelConfig, SpaceConfig
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.experiments.results import read_rows

Script = Callable[[str], ModuleType]
ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT.parent / "shared" / "data" / "upstream"
OTHER_CANDIDATES = {"parity"}
"""Shipped grids whose candidates are not those of today: docs/advise.md says which, and why."""
LENGTH = 40
TINY = ("task.n_train=200", "task.n_eval=40", "task.max_length=4", "task.long_max_length=5", "model.d_model=16")
LEVELS = [
    LevelConfig(name="shared", set={"model.*.*.share": "all"}),
    LevelConfig(name="deep", set={"model.*.n_steps": 3}),
]
SPACE = SpaceConfig(name="tiny", axes=[AxisConfig(name="plan", levels=LEVELS)])


class Store:
    """Trainings that are done, and a trainer of them; after `most` time is up, and those in `broken` fail."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.kept: list[Trial] = []
        self.broken: set[tuple[str, int]] = set()

    def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        for trial in trials:
            if len(self.kept) >= self.most:
                raise TimeUp
            assert trial not in self.kept
            self.kept.append(trial)
        return self.done(stage, trials)

    def done(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        return [self.outcome(trial) for trial in trials if trial in self.kept]

    def outcome(self, trial: Trial) -> TrialOutcome:
        if (trial.candidate, trial.updates) in self.broken:
            return TrialOutcome(trial, None, reason="the worker has died")
        origin = {"key": f"{trial.candidate} {trial.updates}", "version": "0.1", "commit": "abc"}
        return TrialOutcome(trial, 1.0, 1.0, ((trial.updates, 1.0),), 1.0, origin=origin)


@pytest.fixture(scope="module")
def candidates() -> Candidates:
    return make_candidates("digits/transformer", TINY, SPACE, Limits())


@pytest.fixture
def study(script: Script, candidates: Candidates, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = script("advise")
    monkeypatch.setattr(found, "make_candidates", lambda *_: candidates)
    monkeypatch.setattr(found, "TASKS", {"tiny": ("digits/transformer", LENGTH, TINY)})
    monkeypatch.setattr(found, "CHUNK", 2)
    return found


def grid(study: ModuleType, folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, *changes: str) -> bool:
    """Train the tiny grid as far as the store's time goes."""
    monkeypatch.setattr(study, "SweepTrainer", lambda *_, **__: store)
    return study.train_grid("tiny", folder / "grids" / "tiny.jsonl", folder / "store", 1.0, 1, changes)  # type: ignore[no-any-return]


def trials_of(folder: Path) -> list[tuple[str, int]]:
    return [(row["candidate"], row["updates"]) for row in read_rows(folder / "grids" / "tiny.jsonl")]


def test_an_interrupted_grid_goes_on_and_a_lost_store_loses_no_rows(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(most=4)
    assert not grid(study, tmp_path, store, monkeypatch)
    first = trials_of(tmp_path)
    assert first == [(trial.candidate, trial.updates) for trial in store.kept]
    assert first == [(BASE, 1), ("shared", 1), ("deep", 1), (BASE, 3)]
    rows = read_rows(tmp_path / "grids" / "tiny.jsonl")

    new = Store()  # the old one is lost
    assert grid(study, tmp_path, new, monkeypatch)
    assert read_rows(tmp_path / "grids" / "tiny.jsonl")[:4] == rows, "what was there stays"
    assert trials_of(tmp_path) == [(name, n) for n in (1, 3, 10, LENGTH) for name in (BASE, "shared", "deep")]
    assert len(new.kept) == 12 - 4, "nothing is trained twice"
    again = Store(most=0)
    assert grid(study, tmp_path, again, monkeypatch), "a whole grid needs no time"


def test_rows_say_what_was_trained(study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid(study, tmp_path, Store(most=2), monkeypatch)
    base, shared = read_rows(tmp_path / "grids" / "tiny.jsonl")
    assert (shared["recipe"], shared["overrides"]) == ("digits/transformer", [*TINY, f"training.n_updates={LENGTH}"])
    assert shared["settings"]["model.encoder.ffn.share"] == "all"
    assert shared["settings"]["model.encoder.ffn.d_ff"] > base["settings"]["model.encoder.ffn.d_ff"]
    assert (shared["seed"], shared["key"], shared["version"], shared["commit"]) == (1, "shared 1", "0.1", "abc")
    assert 0.98 * base["parameters"] < shared["parameters"] <= base["parameters"]
    assert shared["macs"] > 0


def test_a_training_that_failed_is_kept_with_the_reason_and_done_again(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    store.broken = {("shared", 3)}
    assert grid(study, tmp_path, store, monkeypatch)
    assert [row["reason"] for row in read_rows(tmp_path / "grids" / "tiny.jsonl") if row["score"] is None] == [
        "the worker has died"
    ]
    again = Store()
    assert grid(study, tmp_path, again, monkeypatch)
    assert [(trial.candidate, trial.updates) for trial in again.kept] == [("shared", 3)]
    assert all(row["score"] is not None for row in read_rows(tmp_path / "grids" / "tiny.jsonl"))


def test_rows_of_another_grid_are_refused_in_one_line(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid(study, tmp_path, Store(most=2), monkeypatch)
    path = tmp_path / "grids" / "tiny.jsonl"
    _, row = read_rows(path)  # of the recipe itself no settings mean the same
    changes: list[dict[str, Any]] = [{"length": 400}, {"settings": {}}, {"candidate": "wide"}]
    for change in changes:
        path.write_text(json.dumps(row | change) + "\n")
        with pytest.raises(DataError, match="is of another grid than tiny, 40 updates, or of other settings: name ano"):
            grid(study, tmp_path, Store(), monkeypatch)


def test_rows_that_lack_a_setting_which_the_recipe_has_anyway_are_those_of_the_grid(
    study: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid(study, tmp_path, Store(most=1), monkeypatch)
    path = tmp_path / "grids" / "tiny.jsonl"
    (row,) = read_rows(path)
    more = {"model.encoder.segments": []}
    path.write_text(json.dumps(row | {"settings": row["settings"] | more}) + "\n")
    again = Store()
    assert grid(study, tmp_path, again, monkeypatch)
    assert read_rows(path)[0]["settings"] == row["settings"] | more, "what was there stays"
    assert (BASE, 1) not in [(trial.candidate, trial.updates) for trial in again.kept]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["reversal", "relay", "logical-inference", "cogs-vf", "parity", "listops"])
def test_a_shipped_grid_is_that_of_todays_space_or_known_to_be_another(
    script: Script, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if task in ("logical-inference", "cogs-vf") and not PUBLISHED.is_dir():
        pytest.skip("no published files here")
    study, access = script("advise"), DataAccess(tmp_path / "data", str(PUBLISHED))
    monkeypatch.setattr(study, "make_candidates", lambda *given: make_candidates(*given, access))
    monkeypatch.setattr(study, "SweepTrainer", lambda *_, **__: Store(most=0))
    shipped = ROOT / "docs" / "results" / f"advise-{task}.jsonl"
    copy = Path(shutil.copy(shipped, tmp_path))
    is_other = pytest.raises(DataError, match="is of another grid than ")
    with is_other if task in OTHER_CANDIDATES else nullcontext():
        assert study.train_grid(task, copy, tmp_path / "store", 1.0, 1, []), "a whole grid needs no time"
    assert copy.read_bytes() == shipped.read_bytes()
