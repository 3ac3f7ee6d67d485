"""The table that is printed behind the tests of families."""

from __future__ import annotations

from types import SimpleNamespace

from table import lines


def report(family: str, check: str, rounds: int | None = None, why: str = "") -> SimpleNamespace:
    """Return what a test leaves behind, as pytest gives it to its summary."""
    noted = [("family", family), ("check", check), *([] if rounds is None else [("rounds", rounds)])]
    return SimpleNamespace(user_properties=noted, longrepr=("test.py", 1, f"Skipped: {why}"))


def test_what_was_skipped_is_counted_with_its_reason_below_the_table() -> None:
    stats = {
        "passed": [report("ouro", "float64", 2), report("ouro", "float64", 1), report("t5 (class)", "float64")],
        "failed": [report("ouro", "cached", 4)],
        "skipped": [
            report("t5 (class)", "all gradients", why="could not import 'transformers'"),
            report("t5 (class)", "float32", 4, why="could not import 'transformers'"),
            report("bert (class)", "cached", why="writes nothing"),
        ],
    }
    assert lines(stats) == [
        "              all gradients  float32  float64  cached",
        "bert (class)  -              -        -        -",
        "ouro          -              -        1 2      FAIL 4",
        "t5 (class)    -              -        ok       -",
        "skipped 2: could not import 'transformers'",
        "skipped 1: writes nothing",
    ]


def test_a_run_without_families_has_no_table() -> None:
    assert lines({"passed": [SimpleNamespace(user_properties=[])]}) == []
