from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ostinato.cli import main
from ostinato.cli.advise import _folder_of
from ostinato.errors import ConfigError

PAIRS = "".join(f'{{"source": "a b {n}", "target": "{n}"}}\n' for n in range(60))


def fails(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """Return the one line that a call ends with."""
    with pytest.raises(SystemExit) as end:
        main(["advise", *arguments])
    assert end.value.code == 2
    written = capsys.readouterr()
    assert written.out == ""
    (line,) = written.err.splitlines()
    return line


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--params", "5X"], "--params is '5X': must be a count such as 500K, 5M or 1.5G"),
        (["--memory", "lots"], "--memory is 'lots': must be a size such as 200MB or 1.5GiB"),
        (["--latency", "20"], "--latency is '20': must be a time such as 20ms@batch1 or 0.5s@batch8"),
        (["--space", "all.yaml"], "--space is 'all.yaml': there is no such file"),
    ],
)
def test_a_wrong_budget_or_space_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fails(capsys, ["digits/transformer", *arguments]) == line


def test_a_missing_file_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fails(capsys, ["nowhere.jsonl"]) == "data.train is 'nowhere.jsonl': there is no such file"
    assert list(tmp_path.iterdir()) == []


def test_an_empty_split_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_text(PAIRS, encoding="utf-8")
    (tmp_path / "dev.jsonl").write_text("", encoding="utf-8")
    assert fails(capsys, ["mine.jsonl", "data.dev=dev.jsonl"]).startswith("the split 'train' has 60 examples")
    (tmp_path / "mine.jsonl").write_text(2 * PAIRS, encoding="utf-8")
    assert fails(capsys, ["mine.jsonl", "data.dev=dev.jsonl"]) == "dev.jsonl: no examples (docs/own-data.md)"


def test_a_budget_that_nothing_fits_names_the_nearest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space = "axes:\n- {name: plan, levels: [{name: shared, set: {'model.*.*.share': all}}]}\n"
    (tmp_path / "mine.yaml").write_text(space, encoding="utf-8")
    given = ["digits/transformer", "task.n_train=100", "--space", "mine.yaml", "--params", "500"]
    assert fails(capsys, given).startswith("nothing in this space fits 500 parameters: the nearest needs ")


def test_the_search_goes_on_where_nobody_hears_its_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*given: Any, say: Callable[[str], None], **how: Any) -> None:
        say("stage 1")
        raise ConfigError("the search went on")

    def closed(line: str) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("ostinato.advise.advise.advise", search)
    monkeypatch.setattr("ostinato.cli.advise.print_line", closed)
    assert fails(capsys, ["digits/transformer"]) == "the search went on"


@pytest.mark.parametrize(
    ("name", "folder"),
    [("digits/transformer", "digits-transformer"), ("lm/transformer", "lm-transformer"), ("mine.jsonl", "mine")],
)
def test_every_question_has_a_folder_of_its_own(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").touch()
    assert _folder_of(name) == folder
