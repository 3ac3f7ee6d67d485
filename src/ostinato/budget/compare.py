"""Several models side by side: whether their budgets match, and where they differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ostinato.config.measures import BudgetName
from ostinato.config.model import ModelConfig
from ostinato.errors import ConfigError, Problem

_WORDS: dict[BudgetName, str] = {
    "parameters": "stored parameters",
    "macs": "multiply-accumulates",
    "bytes": "bytes",
}


@dataclass(frozen=True, slots=True)
class Match:
    """One model's figure beside the reference's.

    Args:
        difference: (figure - reference) / reference. is_within: its size is at most the tolerance.
    """

    figure: int
    difference: float
    is_within: bool


def match_figures(figures: Mapping[str, int], tolerance: float) -> dict[str, Match]:
    """Return how far every figure is from the first one, which is the reference."""
    reference = next(iter(figures.values()))
    return {
        name: Match(figure, (figure - reference) / reference, abs(figure - reference) <= tolerance * reference)
        for name, figure in figures.items()
    }


def check_match(key: str, budget: BudgetName, figures: Mapping[str, int], tolerance: float) -> None:
    """Refuse models whose budgets differ by more than the tolerance from the first one's.

    Args:
        key: of the comparison, for the message. budget: what is held equal.

    Raises:
        ConfigError: names every model with its figure and its difference.
    """
    found = match_figures(figures, tolerance)
    if all(match.is_within for match in found.values()):
        return
    reference = next(iter(found))
    described = {name: f"{m.figure:,}" + ("" if name == reference else f" ({signed(m)})") for name, m in found.items()}
    reason = (
        f"their {_WORDS[budget]} must agree within {tolerance:.1%} of {reference}'s; solve a width for it, raise the "
        "tolerance, or hold nothing equal to compare arms of different size"
    )
    raise ConfigError([Problem(key, described, reason)])


def signed(match: Match) -> str:
    """Return a difference in words: "+24.3 %"; a small one has another digit."""
    digits = 2 if 0 < abs(match.difference) < 0.001 else 1
    return f"{100 * match.difference:+.{digits}f} %"


def differing_settings(configs: Mapping[str, ModelConfig]) -> dict[str, dict[str, object]]:
    """Return the settings that are not the same in all models: dotted key -> model -> value.

    Stacks are compared as they are built. A model that has no such setting (another kind of position) is left out of
    its row; a group that a model lacks altogether (an encoder) is one row, "there" in the others, which are compared
    with each other.
    """
    # Of every setting the value; of the stacks what the model's variant makes of them.
    resolved = {
        name: config.model_dump(mode="json")
        | {stack: settings.model_dump(mode="json") for stack, settings in config.stacks().items()}
        for name, config in configs.items()
    }
    return dict(_differences("model", resolved, len(configs)))


def _differences(path: str, values: Mapping[str, Any], n_models: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield the differing settings below a path; lists are one value."""
    groups = [value for value in values.values() if isinstance(value, dict)]
    if len(groups) == n_models:
        for key in dict.fromkeys(key for group in groups for key in group):
            inner = {name: value[key] for name, value in values.items() if key in value}
            yield from _differences(f"{path}.{key}", inner, n_models)
    elif groups:
        yield path, {name: "there" if isinstance(value, dict) else value for name, value in values.items()}
        shared = {name: value for name, value in values.items() if isinstance(value, dict)}
        if len(shared) > 1:
            yield from _differences(path, shared, len(shared))
    elif len(values) < n_models or any(value != next(iter(values.values())) for value in values.values()):
        yield path, dict(values)


def differing_plans(configs: Mapping[str, ModelConfig]) -> dict[str, dict[str, str]]:
    """Return the rows of the plans that are not the same in all models: ``<stack>.<kind>`` -> model -> what runs.

    A sparse layer has a row of its own, ``<stack>.sparse_layer``, which a model without one is left out of.
    """
    rows: dict[str, dict[str, str]] = {}
    for name, config in configs.items():
        for stack, settings in config.stacks().items():
            layer = settings.sparse_layer
            # The steps as they are numbered in the settings: a sparse layer stands between two of them.
            plan = settings.model_copy(update={"sparse_layer": None}).plan(stack)
            for kind, _ in settings.sub_layers():
                rows.setdefault(f"{stack}.{kind}", {})[name] = summarise_row(plan.row(kind))
            if layer is not None:
                rows.setdefault(f"{stack}.sparse_layer", {})[name] = f"after {layer.after} of {settings.n_steps}"
    return {key: row for key, row in rows.items() if len(row) < len(configs) or len(set(row.values())) > 1}


def summarise_row(row: tuple[str | None, ...]) -> str:
    """Return a row of a plan in few words: "encoder 0-5", "both 0 x6", "- x6", "encoder 0 x2, 1 x2"."""
    banks = sorted({name.rpartition("_")[0] for name in row if name is not None})
    marks = [None if name is None else name.rpartition("_")[2] for name in row]
    if len(row) > 2 and marks == [str(i) for i in range(len(row))]:
        return f"{'/'.join(banks)} 0-{len(row) - 1}"
    runs = [(mark or "-", len(list(run))) for mark, run in groupby(marks)]
    text = ", ".join(f"{mark} x{n}" for mark, n in runs) if len(runs) < len(row) else " ".join(m for m, _ in runs)
    return f"{'/'.join(banks)} {text}".strip()
