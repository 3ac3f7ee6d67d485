"""Tables of what recipes cost, alone or side by side."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ostinato.cli.output import compact, print_wide, say

if TYPE_CHECKING:
    from ostinato.budget import Budget
    from ostinato.experiments.compare.plans import PlannedRecipe


def print_budgets(planned: Sequence[PlannedRecipe]) -> None:
    """Write parameters, multiply-accumulates and bytes, one column a recipe."""
    from ostinato.experiments.compare.plans import short_names

    names, budgets = short_names([one.name for one in planned]), [one.budget for one in planned]
    # A decoder-only model of pairs is counted for both lengths together: the others say what they are.
    a = next((b for b in budgets if b.has_two_sides), budgets[0]).assumptions
    print_wide(["parameters", *names], _parameters(budgets), right=True)
    both = f"MACs ({a.source_length} source, {a.target_length} target tokens)"
    title = f"MACs ({a.target_length} tokens)" if not any(b.has_two_sides for b in budgets) else both
    print_wide([title, *names], _macs(budgets), right=True)
    sentences = "1 sentence" if a.batch_size == 1 else f"{a.batch_size} sentences"
    print_wide([f"bytes ({sentences}, beam {a.beam}, {a.precision})", *names], _bytes(budgets), right=True)


def print_differences(planned: Sequence[PlannedRecipe], tolerance: float) -> None:
    """Write the settings and plans that differ, and whether budgets match the first recipe's."""
    from ostinato.budget.compare import differing_plans, differing_settings, signed
    from ostinato.experiments.compare.plans import budget_matches, short_names

    full = [one.name for one in planned]
    names, models = short_names(full), {one.name: one.model for one in planned}
    for title, found in (("settings", differing_settings(models)), ("plans", differing_plans(models))):
        if found:
            rows = [[key, *(_setting(row, name) for name in full)] for key, row in found.items()]
            print_wide([f"{title} that differ", *names], rows)
        else:
            say(f"{title} that differ: none")
    rows, matches = [], budget_matches(planned, tolerance)
    for name, short in zip(full, names, strict=True):
        row = [short]
        for budget, by_name in matches.items():
            found_match = by_name[name]
            verdict = f"{'yes' if found_match.is_within else 'no'} ({signed(found_match)})"
            base = 1024 if budget == "bytes" else 1000
            row += [compact(found_match.figure, base), "reference" if name == full[0] else verdict]
        rows.append(row)
    within = f"within {tolerance:.3g}" if tolerance < 0.001 else f"within {100 * tolerance:g} %"
    print_wide(["recipe", "parameters", within, "MACs", within, "bytes", within], rows)


def _setting(row: Mapping[str, object], name: str) -> str:
    """Return a value as it is written in YAML; nothing where the recipe has no such setting."""
    if name not in row:
        return ""
    value = row[name]
    return json.dumps(value) if value is None or isinstance(value, bool | list) else str(value)


def _parameters(budgets: Sequence[Budget]) -> list[list[str]]:
    rows = [_row("stored", budgets, lambda b: b.parameters.stored)]
    rows += _parts([b.parameters.by_part for b in budgets])
    rows.append(_row("active", budgets, lambda b: b.parameters.active))
    rows.append(_row("executed", budgets, lambda b: b.parameters.executed))
    return rows


def _macs(budgets: Sequence[Budget]) -> list[list[str]]:
    rows = [_row("total", budgets, lambda b: b.macs.total)]
    rows += _parts([b.macs.by_part for b in budgets])
    if not any(b.has_two_sides for b in budgets):
        rows.append(_row("per token", budgets, lambda b: b.macs.per_token))
    else:
        rows.append(_row("per source token", budgets, lambda b: b.macs.per_source_token))
        rows.append(_row("per target token", budgets, lambda b: b.macs.per_target_token))
    rows.append(_row("per generated token", budgets, lambda b: b.macs.per_generated_token))
    return rows


def _bytes(budgets: Sequence[Budget]) -> list[list[str]]:
    rows = [_row("weights", budgets, lambda b: b.bytes.weights, 1024)]
    for title, kind in (("activations in training", "activations"), ("cache in decoding", "cache")):
        rows.append([title, *(compact(sum(b.bytes.by_part[kind].values()), 1024) for b in budgets)])
        rows += _parts([b.bytes.by_part[kind] for b in budgets], 1024)
    return rows


def _row(title: str, budgets: Sequence[Budget], figure: Callable[[Budget], int], base: int = 1000) -> list[str]:
    return [title, *(compact(figure(budget), base) for budget in budgets)]


def _parts(by_part: Sequence[Mapping[str, int]], base: int = 1000) -> list[list[str]]:
    """Return one row a part, with nothing where a recipe does not have it."""
    parts = dict.fromkeys(part for one in by_part for part in one)
    return [[f"  {part}", *(compact(one[part], base) if part in one else "" for one in by_part)] for part in parts]
