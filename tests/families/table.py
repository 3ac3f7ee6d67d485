"""The table of families and checks: what ran at which numbers of rounds, what failed, and why something was skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

_MARKS = {"skipped": "-", "passed": "ok", "failed": "FAIL", "error": "FAIL"}
"""By outcome of a test, from the weakest to what stands where tests of one cell differ."""


def lines(stats: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the lines of the table of the reports of a run by outcome, reasons of what was skipped below it."""
    found: dict[str, dict[str, dict[int, str]]] = {}
    reasons: Counter[str] = Counter()
    for outcome, mark in _MARKS.items():
        for report in stats.get(outcome, []):
            noted = dict(getattr(report, "user_properties", ()))
            if "family" in noted and "check" in noted:
                cell = found.setdefault(noted["family"], {}).setdefault(noted["check"], {})
                cell[noted.get("rounds", 0)] = mark
                if outcome == "skipped":
                    reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
    if not found:
        return []
    checks = list(dict.fromkeys(check for row in found.values() for check in row))
    rows = [
        ["", *checks],
        *([name, *(_text(row.get(check, {})) for check in checks)] for name, row in sorted(found.items())),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows),
        *(f"skipped {n}: {reason}" for reason, n in reasons.items()),
    ]


def _text(cell: Mapping[int, str]) -> str:
    """Return what failed, else what passed, by the number of rounds where there are several."""
    for mark in ("FAIL", "ok"):
        if numbers := sorted(rounds for rounds, one in cell.items() if one == mark):
            named = " ".join(str(rounds) for rounds in numbers if rounds)
            return " ".join([mark, named]).strip() if mark == "FAIL" else named or mark
    return "-"
