"""The table of families and checks, printed behind a run."""

from __future__ import annotations

import pytest

_MARKS = {"passed": "ok", "failed": "FAIL", "skipped": "-", "error": "FAIL"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "check(name): column of the table of families")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found: dict[str, dict[str, str]] = {}
    for outcome, mark in _MARKS.items():
        for report in terminalreporter.stats.get(outcome, []):
            noted = dict(getattr(report, "user_properties", ()))
            if "family" in noted and "check" in noted:
                row = found.setdefault(noted["family"], {})
                row[noted["check"]] = mark if row.get(noted["check"]) != "FAIL" else "FAIL"
    if not found:
        return
    checks = list(dict.fromkeys(check for row in found.values() for check in row))
    width = max(map(len, found))
    terminalreporter.section("families and what was checked against their references")
    terminalreporter.write_line(" " * width + "  " + "  ".join(checks))
    for family, row in sorted(found.items()):
        cells = [row.get(check, "-").ljust(len(check)) for check in checks]
        terminalreporter.write_line(f"{family.ljust(width)}  {'  '.join(cells)}")
