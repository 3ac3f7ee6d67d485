from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from tiny_sweeps import tiny

from ostinato.experiments.sweep.runs import PlannedRun, plan_runs
from ostinato.experiments.sweep.watch import Event, EventReporter, LinesWatcher, RichWatcher, Watcher, make_watcher


@pytest.fixture
def runs(tmp_path: Path) -> list[PlannedRun]:
    return plan_runs(tiny(seeds=[1]), tmp_path)


def play(watcher: Watcher, runs: list[PlannedRun]) -> None:
    first, second = runs
    watcher.on_plan(runs, 3)
    watcher.on_event(Event(first.name, "start", 0, "a start"))
    for update in (1, 2):
        watcher.on_event(Event(first.name, "update", update, "a loss"))
    watcher.on_event(Event(first.name, "warning", 2, "a warning"))
    watcher.on_event(Event(first.name, "evaluation", 2, "a score"))
    watcher.on_result(first, "done", "")
    watcher.on_result(second, "failed", "a reason")
    watcher.close()


def test_lines_name_the_run_count_what_has_ended_and_say_updates_at_most_once_a_minute(runs: list[PlannedRun]) -> None:
    lines: list[str] = []
    play(LinesWatcher(lines.append), runs)
    assert lines == [
        "2 runs to do, 3 there",
        "base, seed 1: a start",
        "base, seed 1: a warning",
        "base, seed 1: a score",
        f"[1/2] base, seed 1: done, {runs[0].directory}",
        "[2/2] slow, seed 1: failed: a reason",
    ]


def test_an_update_is_said_again_after_a_minute(runs: list[PlannedRun], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 130.0, 161.0])
    monkeypatch.setattr("ostinato.experiments.sweep.watch.time.monotonic", lambda: next(clock))
    lines: list[str] = []
    watcher = LinesWatcher(lines.append)
    for update in (1, 2, 3):
        watcher.on_event(Event("a", "update", update, "a loss"))
    assert lines == ["a: update 1  a loss", "a: update 3  a loss"]


def test_bars_go_and_what_is_worth_keeping_stays(runs: list[PlannedRun]) -> None:
    out = io.StringIO()
    watcher = make_watcher(Console(file=out, force_terminal=True, width=120), lambda line: None)
    assert isinstance(watcher, RichWatcher)
    play(watcher, runs)
    text = out.getvalue()
    assert "2 runs to do, 3 there" in text
    assert "base, seed 1: a warning" in text
    assert "[1/2] base, seed 1: done" in text
    assert "[2/2] slow, seed 1: failed: a reason" in text
    assert "sweep" in text
    play(watcher, runs)  # of a control, say, whose runs have the same names
    assert "[3/4] base, seed 1: done" in out.getvalue()
    assert "[4/4] slow, seed 1: failed: a reason" in out.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_note_is_said_once_however_many_runs_of_a_sweep_have_it(is_terminal: bool, runs: list[PlannedRun]) -> None:
    out = io.StringIO()
    watcher = make_watcher(
        Console(file=out, force_terminal=is_terminal, width=120), lambda line: out.write(f"{line}\n")
    )
    for _ in range(2):  # another sweep says it again
        watcher.on_plan(runs, 0)
        for run in runs:
            reporter = EventReporter(run.name, watcher.on_event)
            reporter.on_note(0, "a note")
            reporter.on_note(1, f"of {run.name}")
        watcher.close()
    text = out.getvalue()
    notes = ("base, seed 1: a note", "slow, seed 1: a note", "base, seed 1: of base", "slow, seed 1: of slow")
    assert [text.count(note) for note in notes] == [2, 0, 2, 2]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_where_nobody_looks_the_sweep_goes_on(is_terminal: bool, runs: list[PlannedRun]) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    gone = Gone()
    play(make_watcher(Console(file=gone, force_terminal=is_terminal), gone.write), runs)


def test_another_stream_gets_lines_and_nobody_gets_nothing(
    runs: list[PlannedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(make_watcher(Console(file=io.StringIO()), lambda line: None), LinesWatcher)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_watcher(Console(file=io.StringIO(), force_terminal=True), lambda line: None), LinesWatcher)
    silent = make_watcher(None, lambda line: None)
    assert isinstance(silent, Watcher)
    play(silent, runs)
