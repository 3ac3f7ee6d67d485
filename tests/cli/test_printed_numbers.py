from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from ostinato.cli.output import number, print_columns, print_json, print_line, print_stderr, print_table
from ostinato.config.files import say_once
from ostinato.data.disk import as_json
from ostinato.experiments.sweep.watch import RichWatcher
from ostinato.training.reporter import LinesReporter, RichReporter


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.1235"),
        (29_999 / 30_000, "0.99997"),
        (1.0, "1"),
        (999.94, "999.9"),
        (1234.56, "1,234.6"),
        (-1234.56, "-1,234.6"),
        (4.7802e80, "4.78e+80"),
        (-1e15, "-1e+15"),
        (1_388_544, "1,388,544"),
        (10**16, "10,000,000,000,000,000"),
        (True, "True"),
        (None, ""),
        (float("inf"), "inf"),
    ],
)
def test_numbers_are_short_enough_to_read(value: object, text: str) -> None:
    assert number(value) == text


HOSTILE = "x\x1b]0;pwned\x07\x9b2J\r"
ESCAPED = r"x\x1b]0;pwned\x07\x9b2J\r"


@pytest.mark.parametrize(
    "written",
    [
        lambda: print_table([HOSTILE], [["b"]], title=HOSTILE),
        lambda: print_table(["a"], [[HOSTILE]]),
        lambda: print_table(["a"], [[[HOSTILE]]], markdown=True),
        lambda: print_table(["a"], [[HOSTILE]], markdown=True),
        lambda: print_columns([[HOSTILE, "b"]]),
        lambda: print_line(HOSTILE),
        lambda: print_stderr(HOSTILE),
        lambda: LinesReporter(sys.stdout).on_note(1, HOSTILE),
        lambda: RichReporter(Console(width=200)).on_note(1, HOSTILE),
        lambda: RichWatcher(Console(width=200)).on_kept(Path(HOSTILE)),
    ],
)
def test_what_a_terminal_obeys_is_escaped_in_tables_and_lines(
    written: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    written()
    found = "".join(capsys.readouterr())
    assert ESCAPED.replace("\\", "") in found.replace("\\", "")
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", found)


def test_so_it_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    say_once(HOSTILE)
    assert caplog.messages == [ESCAPED]


def test_other_texts_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    text = "é 語\u3000\u200d\u00a0\ta\nb"
    print_line(text)
    print_columns([[text]])
    print_table([text], [[text]], markdown=True)
    assert capsys.readouterr().out == f"{text}\n{text}\n| {text} |\n|---|\n| {text} |\n"
    print_table(["a"], [["é 語\u200d\u00a0x\nb"]])
    assert [line.strip() for line in capsys.readouterr().out.splitlines()][-2:] == ["b", ""]
    print_json({"a": "\x1b\x7f"})
    assert capsys.readouterr().out == '{\n  "a": "\\u001b\x7f"\n}\n'


def test_a_line_of_json_has_no_number_that_json_has_not() -> None:
    assert as_json({"weight": float("nan"), "kept": [1.5, float("inf")]}) == '{"weight": null, "kept": [1.5, null]}'
