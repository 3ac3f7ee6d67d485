"""Made-up rows and costs of the demonstration."""

from __future__ import annotations

from typing import Any

from ostinato.experiments.demonstration import LINES, Cost

RULES = ("8 rounds", "48 rounds", "own rounds 0.9", "own rounds 0.9999", "own rounds of tokens 0.9")
ACCURACIES = (0.3, 0.9, 0.5, 0.895, 0.88)


def rows_of(seed: int, right: float = 0.5) -> list[dict[str, Any]]:
    """Return rows as the sweep gives them, the arms a tenth apart."""
    names = list(dict.fromkeys(line.arm for line in LINES))
    rows = []
    for place, arm in enumerate(names):
        found = {line.measure(n): right - place / 10 for line in LINES if line.arm == arm for n in (12, 16, 24, 32)}
        found |= {f"bits.{n}": right - place / 10 for n in (12, 16, 24, 32)}
        rows.append({"sweep": "parity", "arm": arm, "seed": seed, "parameters": 1000, "values": found})
    return rows


def some_costs() -> list[Cost]:
    return [
        Cost(rule, right, 1e6 * i, 1e-3 * i) for i, (rule, right) in enumerate(zip(RULES, ACCURACIES, strict=True), 1)
    ]
