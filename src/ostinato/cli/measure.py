"""`ostinato plan --measure`: what recipes take, beside what they are counted to cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ostinato.experiments.compare.plans import PlannedRecipe

MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Time updates, passes and decoding too, on random weights and random ids.")
]
BatchSizesOption = Annotated[str, typer.Option("--batch-sizes", metavar="N,N", help="Sentences of a timed call.")]
BeamsOption = Annotated[str, typer.Option("--beams", metavar="N,N", help="Beams of timed decoding; 1 is greedy.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Timed calls of each kind; recipes take turns.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of timed calls.", show_default=False)
]

MeasuredLinesOption = Annotated[
    Path | None,
    typer.Option("--jsonl", help="Write what was measured to this file, a row a line.", show_default=False),
]


@dataclass(frozen=True, slots=True)
class Timing:
    """What is to be timed, as the options say."""

    batch_sizes: list[int]
    beams: list[int]
    rounds: int
    threads: int | None
    device: str

    @classmethod
    def of(cls, batch_sizes: str, beams: str, rounds: int, threads: int | None, device: str) -> Timing:
        """Read the options.

        Raises:
            typer.BadParameter: not a list of positive numbers.
        """
        return cls(_numbers(batch_sizes, "--batch-sizes"), _numbers(beams, "--beams"), rounds, threads, device)

    @classmethod
    def options_given(cls, context: typer.Context) -> list[str]:
        """Return the options of timing that the command line gives."""
        names = [*(field.name for field in fields(cls)), "jsonl"]
        given = [name for name in names if (at := context.get_parameter_source(name)) and at.name == "COMMANDLINE"]
        return ["--" + name.replace("_", "-") for name in given]


@dataclass(frozen=True, slots=True)
class Measured:
    """One recipe's timings: a row a workload, see `experiments.timing.speed.row`; the same workloads for all."""

    name: str
    environment: dict[str, Any]
    rows: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"environment": self.environment, "workloads": self.rows}


def measure_recipes(
    planned: Sequence[PlannedRecipe], timing: Timing, source_length: int, target_length: int, jsonl: Path | None = None
) -> list[Measured]:
    """Time recipes in turns; say on standard error what is to come. Rows go to `jsonl` as well."""
    from dataclasses import asdict

    from ostinato.cli.output import complain
    from ostinato.evaluation.timing import Effort
    from ostinato.experiments.timing.latency import Timer as Laboratory
    from ostinato.experiments.timing.latency import workloads
    from ostinato.experiments.timing.speed import measure_models
    from ostinato.experiments.timing.workloads import Candidate

    laboratory = Laboratory(timing.device, timing.threads)
    candidates = [Candidate(one.name, one.model, one.training) for one in planned]
    work = workloads(timing.batch_sizes, timing.beams, source_length, target_length)
    found = measure_models(laboratory, candidates, work, Effort(rounds=timing.rounds), lambda plan: complain(str(plan)))
    environment = asdict(laboratory.environment())
    measured = [Measured(name, environment, rows) for name, rows in found.items()]
    if jsonl is not None:
        _write(measured, jsonl)
    return measured


def with_measured(plans: Sequence[dict[str, Any]], measured: Sequence[Measured] | None) -> list[dict[str, Any]]:
    """Return the recipes as JSON with what was measured of each, where something was."""
    if measured is None:
        return list(plans)
    return [plan | {"measured": found.as_dict()} for plan, found in zip(plans, measured, strict=True)]


def _write(measured: Sequence[Measured], path: Path) -> None:
    """Write the rows of all recipes as JSON lines, which `ostinato table` shows again."""
    from ostinato.experiments.results import write_rows

    write_rows([row | {"environment": one.environment} for one in measured for row in one.rows], path)


def print_measured(measured: Sequence[Measured]) -> None:
    """Write a block a workload: milliseconds, their quartiles, tokens a second, and the speed against the first."""
    from ostinato.cli.output import print_wide, say
    from ostinato.experiments.compare.plans import short_names
    from ostinato.experiments.timing.speed import conditions, work_name

    rows: list[list[str]] = []
    for found in zip(*(one.rows for one in measured), strict=True):
        rows.append([f"{work_name(found[0])}: ms", *(f"{1e3 * row['median_s']:.1f}" for row in found)])
        rows.append(["  quartiles", *(f"{1e3 * row['low_s']:.1f}-{1e3 * row['high_s']:.1f}" for row in found)])
        rows.append(["  tokens/s", *(f"{row['tokens_per_s']:,.0f}" for row in found)])
        if len(found) > 1:
            rows.append(["  times as fast as the first", "", *(_speed(row) for row in found[1:])])
        if any(row["disturbed"] for row in found):
            rows.append(["  disturbed calls", *(f"{row['disturbed']} of {row['n']}" for row in found)])
    print_wide(["measured", *short_names([one.name for one in measured])], rows, right=True)
    say(conditions({**measured[0].rows[0], "environment": measured[0].environment}))


def _speed(row: dict[str, Any]) -> str:
    speed = row["speed"]
    return f"{speed['value']:.2f} ({speed['low']:.2f}-{speed['high']:.2f})"


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list of positive numbers such as 1,64", param_hint=option)
    return [int(part) for part in parts]
