"""Columns of examples that scores are reported by: a check that they are there, and the order of their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ostinato.config.data import DataConfig
from ostinato.data.example import Example
from ostinato.errors import ConfigError, DataError, Problem

_MOST_VALUES = 1000
"""A column of more values is an identifier, and totals for each value would hold the whole split in memory."""


def with_columns(examples: Iterable[Example], by: Sequence[str], data: DataConfig, name: str) -> Iterator[Example]:
    """Yield the examples of a split, each after a check that scores can be reported by these of its columns.

    Raises:
        ConfigError: texts are packed into blocks, which do not have the columns. DataError: an example lacks one, or
            one has too many values.
    """
    known = [] if data.mixture is None else [data.mixture.column]
    are_lost = data.block_length is not None and not set(by) <= set(known)
    values: dict[str, set[str]] = {column: set() for column in by}
    for number, example in enumerate(examples, 1):
        if are_lost and not example.continues:  # what continues a source is a row of its own
            there = ", ".join(known) or "no column (data.mixture)"
            reason = f"blocks of several texts (data.block_length) have {there}"
            raise ConfigError([Problem("evaluation.by", list(by), reason)])
        for column, seen in values.items():
            if column not in example.columns:
                own = ", ".join(example.columns) or "none"
                raise DataError(f"{name}: example {number} has no column {column!r}; its columns are: {own}")
            seen.add(str(example.columns[column]))
            if len(seen) > _MOST_VALUES:
                reason = "report by a column of categories, not of identifiers"
                raise DataError(f"{name}: column {column!r} has more than {_MOST_VALUES} values: {reason}")
        yield example


def numeric_order(value: str) -> tuple[int, float, str]:
    """Return a key that sorts numbers by size, then everything else by text."""
    try:
        return (0, float(value), value)
    except ValueError:
        return (1, 0.0, value)
