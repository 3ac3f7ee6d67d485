"""`ostinato plan --measure`: what recipes take, beside what they are counted to cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ostinato.config.model import ModelConfig
    from ostinato.config.training import TrainingConfig

MeasureOption = Annotated[
    bool, typer.Option("--measure", help="Time updates, passes and decoding too, on random weights and random ids.")
]
BatchSizesOption = Annotated[str, typer.Option("--batch-sizes", metavar="N,N", help="Sentences of a timed call.")]
BeamsOption = Annotated[str, typer.Option("--beams", metavar="N,N", help="Beams of timed decoding; 1 is greedy.")]
RoundsOption = Annotated[int, typer.Option("--rounds", min=1, help="Timed calls of each kind, recipes taking turns.")]
ThreadsOption = Annotated[
    int | None, typer.Option("--threads", min=1, help="CPU threads of timed calls.", show_default=False)
]


@dataclass(frozen=True, slots=True)
class Timing:
    """What is to be timed, as the options say."""

    batch_sizes: list[int]
    beams: list[int]
    rounds: int
    threads: int | None
    device: str = "auto"

    @classmethod
    def of(cls, batch_sizes: str, beams: str, rounds: int, threads: int | None, device: str = "auto") -> Timing:
        """Read the options.

        Raises:
            typer.BadParameter: not a list of positive numbers.
        """
        return cls(_numbers(batch_sizes, "--batch-sizes"), _numbers(beams, "--beams"), rounds, threads, device)


def measure(
    models: Sequence[tuple[str, ModelConfig, TrainingConfig]], timing: Timing, source_length: int, target_length: int
) -> dict[str, Any]:
    """Time models in turns; tell on standard error what is to come.

    Returns:
        environment; by_name: name -> one row a workload, see `ostinato.experiments.speed.row`.
    """
    from dataclasses import asdict

    from ostinato.experiments.latency import Announcement, Laboratory, workloads
    from ostinato.experiments.speed import measure_models
    from ostinato.experiments.timing import Effort
    from ostinato.experiments.workloads import Candidate

    def announce(plan: Announcement) -> None:
        typer.echo(str(plan), err=True)

    laboratory = Laboratory(timing.device, timing.threads)
    candidates = [Candidate(*model) for model in models]
    work = workloads(timing.batch_sizes, timing.beams, source_length, target_length)
    by_name = measure_models(laboratory, candidates, work, Effort(rounds=timing.rounds), announce)
    return {"environment": asdict(laboratory.environment()), "by_name": by_name}


def print_measured(measured: dict[str, Any]) -> None:
    """Print a block a workload: milliseconds, their quartiles, tokens a second, and the speed against the first."""
    from ostinato.cli.output import print_table, say
    from ostinato.experiments.speed import conditions, work_name

    columns = list(measured["by_name"])
    by_workload = list(zip(*measured["by_name"].values(), strict=True))
    rows: list[list[object]] = []
    for found in by_workload:
        rows.append([f"{work_name(found[0])}: ms", *(f"{1e3 * row['median_s']:.1f}" for row in found)])
        rows.append(["  quartiles", *(f"{1e3 * row['low_s']:.1f}-{1e3 * row['high_s']:.1f}" for row in found)])
        rows.append(["  tokens/s", *(f"{row['tokens_per_s']:,.0f}" for row in found)])
        if len(found) > 1:
            rows.append(["  speed / first", *(_speed(row) for row in found)])
        if any(row["disturbed"] for row in found):
            rows.append(["  disturbed", *(f"{row['disturbed']} of {row['n']}" for row in found)])
    print_table(["measured", *columns], rows)
    say(conditions({**by_workload[0][0], "environment": measured["environment"]}))


def _speed(row: dict[str, Any]) -> str:
    speed = row["speed"]
    if speed["baseline"] == row["name"]:
        return ""
    return f"{speed['value']:.2f} ({speed['low']:.2f}-{speed['high']:.2f})"


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list of positive numbers such as 1,64", param_hint=option)
    return [int(part) for part in parts]
