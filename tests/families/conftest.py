"""The table of families and checks, printed behind a run."""

from __future__ import annotations

import pytest

_MARKS = {"skipped": "-", "passed": "ok", "failed": "FAIL", "error": "FAIL"}
"""By outcome of a test, from the weakest to what stands where tests of one cell differ."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "check(name): column of the table of families")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found: dict[str, dict[str, dict[int, str]]] = {}
    for outcome, mark in _MARKS.items():
        for report in terminalreporter.stats.get(outcome, []):
            noted = dict(getattr(report, "user_properties", ()))
            if "family" in noted and "check" in noted:
                cell = found.setdefault(noted["family"], {}).setdefault(noted["check"], {})
                cell[noted.get("rounds", 0)] = mark
    if not found:
        return
    checks = list(dict.fromkeys(check for row in found.values() for check in row))
    lines = [
        ["", *checks],
        *([name, *(text(row.get(check, {})) for check in checks)] for name, row in sorted(found.items())),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    terminalreporter.section("families and what was checked against their references, at which numbers of rounds")
    for line in lines:
        terminalreporter.write_line(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        )


def text(cell: dict[int, str]) -> str:
    """Return what failed, else what passed, by the number of rounds where there are several."""
    for mark in ("FAIL", "ok", "-"):
        if numbers := sorted(rounds for rounds, one in cell.items() if one == mark):
            named = " ".join(str(rounds) for rounds in numbers if rounds)
            return " ".join([mark, named]).strip() if mark == "FAIL" else named or mark
    return "-"
