"""The table of families and checks, printed behind a run."""

from __future__ import annotations

import pytest
from table import lines


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "check(name): column of the table of families")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if found := lines(terminalreporter.stats):
        terminalreporter.section("families and what was checked against their references, at which numbers of rounds")
        for line in found:
            terminalreporter.write_line(line)
