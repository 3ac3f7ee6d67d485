from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tiny_runs import tiny_recipe

from ostinato.cli.output import console as command_console
from ostinato.data.packs.make import Progress
from ostinato.training.reporter import LinesReporter, Reporter, RichReporter, duration, make_reporter


def _tell(reporter: Reporter, tmp_path: Path) -> None:
    info: dict[str, Any] = {"device": "cpu", "parameters": 12345, "n_examples": 60, "update": 0}
    update = {
        "update": 4,
        "loss": 2.5,
        "nll": 2.25,
        "lr": 1e-3,
        "grad_norm": 0.5,
        "n_labels": 90,
        "seconds": 0.1,
        "labels_per_second": 900.0,
    }
    evaluation = {"update": 6, "split": "dev", "scores": {"n": 10, "loss": 1.5}, "is_best": True, "seconds": 0.1}
    reporter.on_packing(Progress(1_500_000, 6_000_000, 65.0))
    reporter.on_start(tiny_recipe(tmp_path), info)
    reporter.on_update(update)
    reporter.on_evaluation(evaluation)
    reporter.on_save(6, tmp_path)
    reporter.on_end({"n_updates": 12, "seconds": 65.0, "stopped": None, "best_update": 6})
    reporter.close()


def test_a_stream_that_is_no_terminal_gets_one_plain_line_per_event(tmp_path: Path) -> None:
    stream = io.StringIO()
    reporter = make_reporter(Console(file=stream, force_terminal=False))
    assert isinstance(reporter, LinesReporter)
    _tell(reporter, tmp_path)
    first, *lines = stream.getvalue().splitlines()
    assert first == "tokenised 25 % of 6 MB, 1:05 left"
    assert lines[0] == "letters: 12,345 parameters, 60 examples, cpu, seed 1, 12 updates"
    assert lines[1].startswith("update 4/12  loss 2.2500  norm 0.50  lr 1.00e-03  900 tokens/s  0:0")
    assert lines[2] == "update 6  dev: loss 1.5000  (best)"
    assert lines[3] == "12 updates in 1:05; best: update 6"
    assert len(lines) == 4


def test_a_terminal_gets_a_progress_bar_with_loss_speed_and_time_left(tmp_path: Path) -> None:
    stream = io.StringIO()
    reporter = make_reporter(Console(file=stream, force_terminal=True, width=120, color_system=None))
    assert isinstance(reporter, RichReporter)
    _tell(reporter, tmp_path)
    text = stream.getvalue()
    assert "loss 2.2500" in text
    assert "900 tokens/s" in text
    assert "4/12" in text
    assert "update 6  dev: loss 1.5000  (best)" in text
    assert text.rstrip().endswith("12 updates in 1:05; best: update 6")


def test_a_dumb_terminal_gets_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = io.StringIO()
    reporter = make_reporter(Console(file=stream, force_terminal=True))
    _tell(reporter, tmp_path)
    assert "update 4/12  loss 2.2500" in stream.getvalue()


def test_colours_that_are_forced_into_a_pipe_bring_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    found = command_console()
    assert found.is_terminal, "as rich sees it: tables have colours"
    assert isinstance(make_reporter(found), LinesReporter)


def test_a_bar_tells_the_time_left_of_a_run_whose_records_come_rarely(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), [0.0]
    reporter = make_reporter(
        Console(file=stream, force_terminal=True, width=120, color_system=None, get_time=lambda: clock[0])
    )
    reporter.on_start(tiny_recipe(tmp_path), {"device": "cpu", "parameters": 1, "n_examples": 60, "update": 0})
    for update in (2, 4):
        clock[0] += 3600.0
        reporter.on_update({"update": update, "nll": 2.25, "lr": 1e-3, "grad_norm": 0.5})
    reporter.on_note(4, "drawn again")
    reporter.close()
    assert "4:00:00" in stream.getvalue()


def test_without_a_console_nothing_is_said(tmp_path: Path, capsys: Any) -> None:
    reporter = make_reporter(None)
    assert isinstance(reporter, Reporter)
    _tell(reporter, tmp_path)
    assert capsys.readouterr() == ("", "")


def test_durations_are_written_as_clocks_write_them() -> None:
    assert [duration(s) for s in (0.4, 65, 3600 + 62)] == ["0:00", "1:05", "1:01:02"]


def test_a_reader_that_went_away_does_not_stop_the_run_nor_fill_the_screen(tmp_path: Path, capsys: Any) -> None:
    class _Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    for is_terminal in (False, True):  # or its window was closed
        _tell(make_reporter(Console(file=_Gone(), force_terminal=is_terminal)), tmp_path)
    assert capsys.readouterr() == ("", "")
