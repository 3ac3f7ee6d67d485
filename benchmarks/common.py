"""What the speed studies share: their options, and running one into JSON lines and a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from speed_studies import SpeedStudy

from ostinato.evaluation.timing import Effort
from ostinato.experiments.results import markdown, write_rows
from ostinato.experiments.timing.latency import Timer
from ostinato.experiments.timing.speed import conditions, speed_table
from ostinato.experiments.timing.spread import FEWEST_ROUNDS

QUICK = Effort(rounds=2, least=2, repeats=0)


def parser(description: str, minutes: float) -> argparse.ArgumentParser:
    """Return a parser with the options every study has."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("--out", type=Path, help="write OUT.jsonl and OUT.md")
    found.add_argument("--minutes", type=float, default=minutes, help="time for the whole study (default %(default)s)")
    found.add_argument("--rounds", type=int, help="rounds of every workload, however long they take")
    found.add_argument("--threads", type=int, help="CPU threads; default: torch's choice")
    found.add_argument("--device", default="cpu", help="auto, cpu, cuda (default %(default)s)")
    found.add_argument("--quick", action="store_true", help="tiny models and few rounds: shows that it runs")
    return found


def add_vocabulary(to: argparse.ArgumentParser) -> None:
    """Add the option of studies of whole models."""
    to.add_argument("--vocab", type=int, help="rows of the vocabulary; default: what the recipes say")


def effort(arguments: argparse.Namespace, most: int) -> Effort:
    """Return how long to measure."""
    if arguments.quick:
        return QUICK
    if arguments.rounds is not None:
        return Effort(rounds=arguments.rounds, least=arguments.rounds)
    return Effort(rounds=most, least=FEWEST_ROUNDS, seconds=60 * arguments.minutes)


def run(study: SpeedStudy, arguments: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    """Run a study, saying what is to come; return its rows and its tables in Markdown."""
    timer = Timer(arguments.device, arguments.threads)
    environment = timer.environment()
    print(
        f"{study.name} on {environment.cpu}, {environment.device}, {environment.threads} threads; {plan(study)}",
        flush=True,
    )
    rows = []
    for row in study.run(timer, lambda next_up: print(f"  {next_up}", flush=True)):
        rows.append(row)
        print(f"    {row['name']}: {1e3 * row['median_s']:.1f} ms, {row['tokens_per_s']:.1f} tokens/s", flush=True)
    return rows, tables(rows)


def plan(study: SpeedStudy) -> str:
    """Return in words how long a study should take, as far as that is known before its warm-ups."""
    n = sum(len(group.workloads) for group in study.groups)
    seconds = study.effort.seconds
    if seconds is None:
        return f"{n} workloads of {study.effort.rounds} rounds"
    return f"{n} workloads in {seconds / 60:g} minutes, unless {study.effort.least} rounds of each take longer"


def tables(rows: list[dict[str, Any]]) -> str:
    """Return what was measured on, and one table a group."""
    parts = [f"{conditions(rows[0])}\n"]
    for group in dict.fromkeys(row["group"] for row in rows):
        mine = [row for row in rows if row["group"] == group]
        parts.append(f"{group}:\n\n{markdown(*speed_table(mine))}")
    return "\n".join(parts)


def save(rows: list[dict[str, Any]], text: str, out: Path | None) -> None:
    """Print the text, and write rows and text where asked."""
    print(f"\n{text}")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(rows, out.with_suffix(".jsonl"))
        out.with_suffix(".md").write_text(text, encoding="utf-8")
