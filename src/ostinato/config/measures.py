"""What is measured of a finished run: a number it wrote, a number counted from it, or a new evaluation of it.

A measure has a name, under which tables show it, and settings, which are all that its value depends on beside the run:
two measures of equal settings and different names are measured once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from ostinato.config.base import Config, Size
from ostinato.config.data import tokenizer_problems
from ostinato.config.recipe import Recipe
from ostinato.config.schema import free_groups, leaves
from ostinato.errors import Problem

BudgetName = Literal["parameters", "macs", "bytes"]
"""A budget in which models can be compared. parameters: stored. macs: one teacher-forced pass over one sentence. bytes:
weights, activations of a training pass and decoding cache together."""
FigureName = (
    BudgetName
    | Literal["active", "executed", "macs_without_attention", "macs_per_generated_token"]
    | Literal["weights", "activations", "cache"]
)
"""Figures of a budget. parameters: stored. active, executed: see `ostinato.budget.ParameterCount`. weights,
activations, cache: bytes of each."""
_TIMES = ("seconds", "per_second")
_CHANGEABLE = ("decoding.", "data.", "task.")
_FREE_GROUPS = frozenset(free_groups(Recipe))


class Measure(Config):
    """Base of all measures."""

    name: Annotated[str, Field(min_length=1)]
    """Name of the column in tables."""
    arms: list[str] | None = None
    """Arms of a sweep that it is taken of; None: all."""

    @property
    def picks(self) -> str | None:
        """The dotted path of the number in what is found; None: what is found is the number, or numbers by name."""
        return getattr(self, "path", None)

    @property
    def is_timing(self) -> bool:
        """True for seconds, and for what is counted by the second: these differ from run to run, and are kept apart."""
        return (self.picks or "").endswith(_TIMES)

    def settings(self) -> dict[str, Any]:
        """Return all settings that the value depends on."""
        return self.model_dump(mode="json", exclude={"name", "arms", "path"})


class ResultMeasure(Measure):
    """A number that training wrote to results.json."""

    kind: Literal["result"]
    path: str
    """Dotted, below the split: exact_match, by.bin.7.exact_match, halting.encoder.mean. A part that is `*` stands for
    all names there: by.bin.*.exact_match gives a number for every bin."""
    split: str | None = None
    """One of the recipe's evaluation.splits; None: the path begins at the top of the results (training_seconds)."""


class BudgetMeasure(Measure):
    """A number counted from the run's model configuration, as `ostinato plan` counts it."""

    kind: Literal["budget"]
    figure: FigureName = "parameters"
    """Which of the budget's figures."""
    source_length: Size = 16
    """Source tokens of the sentence whose pass is counted."""
    target_length: Size = 16
    """Target tokens of the sentence whose pass is counted."""


class EvaluateMeasure(Measure):
    """A number of a new evaluation of the trained model."""

    kind: Literal["evaluate"]
    path: str
    """Dotted, in what `ostinato evaluate` finds, as for `result`."""
    split: str = "test"
    """Split of the task that is evaluated."""
    checkpoint: str | None = None
    """best, last, a mean (best:5), or a name such as update-000500; None: the one that the recipe scores."""
    metrics: list[str] | None = None
    """None: the recipe's. An empty list: what teacher forcing gives, and no decoding."""
    by: list[str] | None = None
    """Columns to report by; None: the recipe's."""
    n_steps: Size | None = None
    """Rounds of depth, for models whose rounds share all weights; None: the trained number."""
    halting_threshold: float | None = None
    """None: as in training, whatever `ostinato tune-threshold` chose for the run."""
    exit: str | None = None
    """Criterion by which tokens stop at the halting_threshold, in place of the model's own rules (docs/halting.md)."""
    exit_scope: Literal["token", "sequence"] = "token"
    """token: every token by its own confidence. sequence: all tokens of a sentence by their mean one."""
    oracle: Literal["token", "sequence"] | None = None
    """Every label, or every sentence, is read from the first round that has it right: a yardstick for rules that stop
    (docs/halting.md); nothing is decoded."""
    max_examples: Size | None = None
    """Spread evenly over the split; None: what the recipe says."""
    set: dict[str, Any] = Field(default_factory=dict)
    """Settings of the recipe to evaluate with: decoding.max_length: 40, task.max_length: 40."""

    def overrides(self) -> list[str]:
        """Return `set` as `dotted.key=value`."""
        return as_overrides(self.set)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """What a model is, what its ids stand for and how it was trained cannot be changed any more."""
        yield from tokenizer_problems(self.overrides(), f"{path}set.")
        for text in self.overrides():
            if not text.startswith(_CHANGEABLE):
                key, _, value = text.partition("=")
                yield Problem(f"{path}set.{key}", value, f"must be one of {', '.join(f'{c}*' for c in _CHANGEABLE)}")


class TableSelection(Config):
    """One number of an analysis' table: one column of the rows where the named columns have these values."""

    where: dict[str, str | int | float] = Field(default_factory=dict)
    """Columns and the values they have in the rows that count; empty: all rows."""
    column: str
    """Column that the number is in."""
    take: Literal["mean", "first", "last", "min", "max"] = "mean"
    """Of the column's values in these rows, in the table's order."""

    def missing(self, columns: Sequence[str]) -> list[str]:
        """Return the columns that it names and a table does not have."""
        return [column for column in (*self.where, self.column) if column not in columns]


class AnalysisMeasure(Measure):
    """A number of the table that an analysis (`ostinato analyze --only STUDY`) shows of the run."""

    kind: Literal["analysis"]
    study: str
    """Name of the analysis."""
    table: TableSelection
    """Which number of its table."""
    split: str | None = None
    """None: the first of the recipe's evaluation.splits."""
    max_examples: Size = 1000
    """Spread evenly over the split."""

    @property
    def is_timing(self) -> bool:
        """True for milliseconds, by the heading of the column."""
        return self.table.column.startswith("ms ")


AnyMeasure = Annotated[ResultMeasure | BudgetMeasure | EvaluateMeasure | AnalysisMeasure, Field(discriminator="kind")]


def as_overrides(settings: dict[str, Any]) -> list[str]:
    """Return settings of a recipe, dotted or nested, as `dotted.key=value` with the value in JSON, which is YAML.

    A group of names of the user's own is one value where a name has a dot in it, which leads to no setting.
    """
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in leaves(settings, free=_FREE_GROUPS)]
