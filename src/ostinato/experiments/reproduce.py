"""Running a claim: what is missing is run, every number is compared with its band, the outcome is a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ostinato.budget import Assumptions, count_budget
from ostinato.config.claim import CountSource, SweepSource, TimedArm, TimingSource
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.data.registry import DataAccess
from ostinato.experiments.claims import Claim, Outcome
from ostinato.experiments.results import pass_lengths
from ostinato.experiments.statistics import Centre, Found, evaluate
from ostinato.experiments.swept import Means, Rows, swept_rows
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model
from ostinato.training.rundir import versions


def reproduce(claim: Claim, means: Means) -> Outcome:
    """Run what is missing, and return the outcome.

    Raises:
        ConfigError: inputs that are missing, or arms that cannot be built. DataError: an expectation of a number that
            was not measured. TrainingError: runs that failed, by arm and seed.
    """
    began = time.monotonic()
    source = claim.config.source
    rows = swept_rows(source, means) if isinstance(source, SweepSource) else rows_of(source, means)
    centre: Centre = "median" if isinstance(source, TimingSource) else "mean"
    found = [evaluate(expectation, rows, centre) for expectation in claim.config.expect]
    return Outcome(_head(claim, found, time.monotonic() - began), rows)


def rows_of(source: TimingSource | CountSource, means: Means) -> Rows:
    """Return what random models take or cost: a row an arm, and round of a timing."""
    return (
        timed_rows(source, means.on_event) if isinstance(source, TimingSource) else counted_rows(source, means.access)
    )


def timed_rows(source: TimingSource, on_event: Callable[[str], None]) -> Rows:
    """Return seconds of every round, by workload; all arms take turns in each."""
    from ostinato.evaluation.timing import Effort
    from ostinato.experiments.latency import Laboratory
    from ostinato.experiments.workloads import Candidate, Workload

    laboratory = Laboratory(source.device, source.n_threads)
    candidates = [
        Candidate(arm.name, model, recipe.training)
        for arm in source.arms
        for recipe, model in [_sized(arm, None, source.vocabulary)]
    ]
    work = [Workload(one.kind, one.batch_size, one.source_length, one.target_length, one.beam) for one in source.work]
    effort = Effort(rounds=source.rounds, least=source.rounds)
    found = list(laboratory.measure(candidates, work, effort, lambda plan: on_event(str(plan))))
    environment = asdict(laboratory.environment())
    rows: Rows = []
    for place, arm in enumerate(source.arms):
        mine = found[place :: len(candidates)]
        for number in range(source.rounds):
            values = {one.name: mine[i].seconds[number] for i, one in enumerate(source.work)}
            rows.append({"arm": arm.name, "seed": number + 1, "values": values, "environment": environment})
    return rows


def counted_rows(source: CountSource, access: DataAccess | None) -> Rows:
    """Return parameters, active parameters and MACs of every arm."""
    rows: Rows = []
    for arm in source.arms:
        recipe, model = _sized(arm, access, source.vocabulary)
        lengths = pass_lengths(recipe, (source.source_length, source.target_length))
        budget = count_budget(model, Assumptions(*lengths))
        values = {
            "parameters": budget.parameters.stored,
            "active": budget.parameters.active,
            "macs": budget.macs.total,
        }
        rows.append({"arm": arm.name, "seed": None, "values": values})
    return rows


def _sized(arm: TimedArm, access: DataAccess | None, vocabulary: int | None) -> tuple[Recipe, ModelConfig]:
    recipe = load_recipe(arm.recipe, arm.overrides)
    return recipe, size_model(recipe, access, source=vocabulary, target=vocabulary).model


def _head(claim: Claim, found: Sequence[Found], seconds: float) -> dict[str, Any]:
    """Return an outcome's first line."""
    return {
        "name": claim.name,
        "claim": claim.address,
        "holds": all(one.holds for one in found),
        "expectations": [one.as_dict() for one in found],
        "date": datetime.now(UTC).date().isoformat(),
        "command": command(claim),
        "seconds": round(seconds, 1),
        "versions": versions(),
    }


def command(claim: Claim) -> str:
    """Return the command that runs a claim again; files are the user's own, and are named only."""
    inputs = "".join(f" --input {name}=..." for name in claim.config.inputs)
    chosen = "" if claim.variant is None else f" --variant {claim.variant}"
    return f"ostinato reproduce {claim.name.removesuffix(f'-{claim.variant}')}{chosen}{inputs}"


def checks(found: Mapping[str, Any]) -> Iterator[tuple[str, str, str, bool]]:
    """Yield for every expectation of an outcome: what, expected, found, whether it holds."""
    for one in found["expectations"]:
        spread = f" (sd {one['sd']:.3g}, n = {len(one['by_seed'])})" if one["sd"] is not None else ""
        yield one["what"], band_text(one["band"]), f"{one['value']:.4g}{spread}", bool(one["holds"])


def band_text(band: Sequence[float | None]) -> str:
    """Return a band in words."""
    low, high = band
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
