"""Printing scores: one row a split, then one table for each column they are broken down by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ostinato.cli.output import flat, print_table, say

_NOT_SCORES = ("by", "macro", "name", "decoding", "n_steps")


def print_splits(results: Mapping[str, dict[str, Any]]) -> None:
    """Print the results of several splits, by split name."""
    _score_table("split", results.items())
    for split, scores in results.items():
        for column, values in (scores.get("by") or {}).items():
            rows = dict(values)
            if macro := (scores.get("macro") or {}).get(column):
                rows["mean of the above"] = macro
            _score_table(f"{split} by {column}", rows.items())


def print_results(results: dict[str, Any]) -> None:
    """Print what `train` returns: what is not a split first, then the splits."""
    for key, value in flat(results, skip=("splits", "recipe")):
        say(f"{key}: {value}")
    print_splits(results.get("splits") or {})


def _score_table(label: str, rows: Iterable[tuple[str, dict[str, Any]]]) -> None:
    """Print one row a split or value and one column a score; signatures and other texts go below."""
    scored = [(name, dict(flat(scores, skip=_NOT_SCORES))) for name, scores in rows]
    if not scored:
        return
    cells = [(key, value) for _, scores in scored for key, value in scores.items()]
    names = list(dict.fromkeys(key for key, value in cells if not isinstance(value, str)))
    print_table([label, *names], [[name, *(scores.get(key) for key in names)] for name, scores in scored])
    for key, value in dict.fromkeys(cell for cell in cells if isinstance(cell[1], str)):
        say(f"{key}: {value}")
