"""The last record of a run that patience ends: of the updates since the record before, once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import last_checkpoint, records, tiny_recipe

from ostinato.config.recipe import Recipe
from ostinato.evaluation import evaluate
from ostinato.training import Reporter, session, train


def _recipe(folder: Path, patience: int = 2, log_every: int = 50) -> Recipe:
    """Return a recipe that soon gets worse, and that evaluates and saves between its records."""
    return tiny_recipe(
        folder,
        n_updates=40,
        log_every=log_every,
        evaluate_every=3,
        optimizer={"lr": 0.9},
        schedule={"kind": "constant", "warmup": 40},
        selection={"patience": patience},
    )


class _Crash(Reporter):
    """Ends a run, as a crash would, at an event of an update."""

    def __init__(self, event: str, update: int) -> None:
        self.event, self.update, self.seen = event, update, list[str]()

    def _at(self, event: str, update: int) -> None:
        self.seen.append(f"{event} {update}")
        if (event, update) == (self.event, self.update):
            raise KeyboardInterrupt

    def on_update(self, record: dict[str, Any]) -> None:
        self._at("update", record["update"])

    def on_save(self, update: int, directory: Path) -> None:
        self._at("save", update)


def _metrics(run: Path) -> bytes:
    return (run / "metrics.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, list[str]]:
    """A run that was not interrupted, its last update, and what it told."""
    folder, listener = tmp_path_factory.mktemp("whole"), _Crash("none", 0)
    results = train(_recipe(folder), folder / "run", reporter=listener)
    assert results["stopped"] == "no better loss in 2 evaluations"
    return folder / "run", results["n_updates"], listener.seen


def test_the_updates_since_the_last_record_are_recorded_where_patience_ends_a_run(
    tmp_path: Path, whole: tuple[Path, int, list[str]]
) -> None:
    run, last, seen = whole
    (record,) = records(run, "training")
    assert seen.count(f"update {last}") == 1
    train(_recipe(tmp_path, log_every=1), tmp_path / "each")
    each = records(tmp_path / "each", "training")
    assert {key: record[key] for key in ("update", "lr", "grad_norm")} == {
        key: each[-1][key] for key in ("update", "lr", "grad_norm")
    }
    assert record["n_labels"] == sum(one["n_labels"] for one in each)
    for name in ("loss", "nll"):
        assert record[name] * record["n_labels"] == pytest.approx(sum(one[name] * one["n_labels"] for one in each))


def test_a_run_that_patience_ended_is_resumed_without_a_second_record(tmp_path: Path) -> None:
    results = train(_recipe(tmp_path), tmp_path / "run")
    logs = [(tmp_path / "run" / name).read_bytes() for name in ("metrics.jsonl", "timings.jsonl")]
    listener = _Crash("none", 0)
    assert train(_recipe(tmp_path), tmp_path / "run", resume=True, reporter=listener) == results
    assert [(tmp_path / "run" / name).read_bytes() for name in ("metrics.jsonl", "timings.jsonl")] == logs
    assert listener.seen == []


@pytest.mark.parametrize("event", ["save", "update"])
def test_a_crash_before_or_after_that_record_leaves_one_of_it(
    tmp_path: Path, whole: tuple[Path, int, list[str]], event: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(_recipe(tmp_path), tmp_path / "run", reporter=_Crash(event, whole[1]))
    train(_recipe(tmp_path), tmp_path / "run", resume=True)
    assert _metrics(tmp_path / "run") == _metrics(whole[0])


def test_it_is_written_where_the_last_evaluation_is_done_by_a_resumed_run(
    tmp_path: Path, whole: tuple[Path, int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_evaluations = whole[1] // 3
    calls: list[int] = []

    def interrupted(*args: Any, **kwargs: Any) -> dict[str, Any]:
        calls.append(1)
        if len(calls) == n_evaluations:
            raise KeyboardInterrupt
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(session, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(_recipe(tmp_path), tmp_path / "run")
    assert records(tmp_path / "run", "training") == []
    train(_recipe(tmp_path), tmp_path / "run", resume=True)
    assert _metrics(tmp_path / "run") == _metrics(whole[0])


def test_it_is_written_where_less_patience_ends_a_resumed_run(
    tmp_path: Path, whole: tuple[Path, int, list[str]]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(_recipe(tmp_path, patience=3), tmp_path / "run", reporter=_Crash("save", whole[1]))
    train(_recipe(tmp_path), tmp_path / "run", resume=True)
    assert _metrics(tmp_path / "run") == _metrics(whole[0])


def test_more_patience_counts_no_update_twice(tmp_path: Path) -> None:
    train(_recipe(tmp_path), tmp_path / "run")
    train(_recipe(tmp_path, patience=3), tmp_path / "run", resume=True)
    train(_recipe(tmp_path, patience=3), tmp_path / "whole")
    first, second = records(tmp_path / "run", "training")
    (whole,) = records(tmp_path / "whole", "training")
    assert first["n_labels"] + second["n_labels"] == whole["n_labels"]
    assert (second["update"], second["grad_norm"]) == (whole["update"], whole["grad_norm"])


def test_a_run_that_an_earlier_version_ended_stays_as_it_is(tmp_path: Path, whole: tuple[Path, int, list[str]]) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(_recipe(tmp_path), tmp_path / "run", reporter=_Crash("save", whole[1]))
    path = last_checkpoint(tmp_path / "run") / "state.json"
    state = json.loads(path.read_text(encoding="utf-8"))
    window = state["progress"]["window"]
    assert window["n_labels"] > 0
    del state["content_sha256"], window["lr"], window["grad_norm"]  # which were not kept
    path.write_text(json.dumps(state), encoding="utf-8")
    before = _metrics(tmp_path / "run")
    train(_recipe(tmp_path), tmp_path / "run", resume=True)
    assert _metrics(tmp_path / "run") == before
