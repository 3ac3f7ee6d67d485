"""Printing scores: a row for each score and a column for each split; then halting, routers, and scores by column."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ostinato.cli.output import print_line, print_table

if TYPE_CHECKING:
    from ostinato.config.recipe import ReferenceRow
    from ostinato.evaluation.loading import LoadedRun
    from ostinato.tasks.base import TaskConfig

_NOT_SCORES = (
    *("by", "macro", "name", "decoding", "halting", "halting_threshold", "halting_threshold_from"),
    *("exit", "oracle", "data_note"),
    *("routing", "n_steps", "ranking"),
)
_FORCED = ("loss", "token_accuracy")

TUNED = "tuned after training (--halting-threshold trained: as trained)"
"""Describes a halting threshold that `ostinato tune-threshold` chose."""

Scores = dict[str, Any]


def describe_threshold(run: LoadedRun) -> str:
    """Return the line that says at which threshold tokens halt, where that was tuned after training; else nothing."""
    if run.halting_threshold_from != "tuned":
        return ""
    execution = run.model.current_execution
    by = "" if execution.exit is None else f" of {execution.exit}"
    return f"halting threshold{by} {execution.halting_threshold:g}, {TUNED}"


def scored_splits(run: LoadedRun, asked: Sequence[str] | None) -> Sequence[str]:
    """Return the splits that are asked for, else those of the run's recipe.

    Raises:
        BadParameter: there are none.
    """
    if found := asked or run.recipe.evaluation.splits:
        return found
    raise typer.BadParameter("the run's recipe names no split: choose one", param_hint="--split")


def print_splits(results: Mapping[str, Scores], forced: Sequence[str] = ()) -> None:
    """Print the results of several splits, by split name; texts such as signatures go below the numbers.

    Args:
        forced: teacher-forced scores that the task is reported by, for the tables by column.
    """
    from ostinato.config.schema import leaves
    from ostinato.metrics import decoded_scores

    if not results:
        return
    scores = {
        split: {
            name: value
            for name, value in leaves({key: value for key, value in result.items() if key not in _NOT_SCORES})
            if not isinstance(value, dict | list)
        }
        for split, result in results.items()
    }
    names = dict.fromkeys(name for found in scores.values() for name in found)
    texts = [name for name in names if any(isinstance(found.get(name), str) for found in scores.values())]
    rows = [[name, *(found.get(name) for found in scores.values())] for name in names if name not in texts]
    print_table(["score", *scores], rows)
    for line in dict.fromkeys(f"{name}: {found[name]}" for name in texts for found in scores.values() if name in found):
        print_line(line)
    for split, result in results.items():
        _print_halting(split, result)
        _print_routing(split, result.get("routing") or {})
        _print_ranking(split, result.get("ranking") or {})
        for column, values in (result.get("by") or {}).items():
            macro = (result.get("macro") or {}).get(column)
            shown = dict.fromkeys((*_FORCED, *forced, *decoded_scores(result)))
            _print_groups(f"{split} by {column}", values, macro, list(shown))


def print_published(rows: Sequence[ReferenceRow], task: TaskConfig, results: Mapping[str, Scores]) -> None:
    """Print the published numbers of this task and the splits that were scored, with ours beside those we measured."""
    lines = []
    settings = task.model_dump()
    for row in rows:
        if row.split in results and row.task.items() <= settings.items():
            of = ", ".join(f"{column} {value}" for column, value in (row.by or {}).items())
            ours, score = results[row.split], row.metric
            if isinstance(ours.get(score), Mapping):  # Ranking has groups of its own.
                ours, score = ours[score], "accuracy"
            if row.by is not None:  # Results list the examples of one column and value, not of several.
                ((column, value), *more) = row.by.items()
                ours = {} if more else ((ours.get("by") or {}).get(column) or {}).get(str(value)) or {}
            lines.append([row.source, row.split, of or "all", row.metric, row.value, ours.get(score)])
    if lines:
        print_table(["published", "split", "examples", "score", "theirs", "ours"], lines)


def _print_halting(split: str, result: Scores) -> None:
    """Print how deep the tokens of every stack went; the histograms are in --json and results.json."""
    found = result.get("halting") or {}
    if not found:
        return
    thresholds = result.get("halting_threshold") or {}
    percents = dict.fromkeys(percent for numbers in found.values() for percent in numbers["percentiles"])
    rows: list[list[object]] = []
    for stack, n in found.items():
        depths = n["mean"], n["expected"], *map(n["percentiles"].get, percents)
        rows.append([stack, len(n["histogram"]), thresholds.get(stack), *depths])
    names = ["rounds", "threshold", "mean depth", "expected depth", *(f"{percent} %" for percent in percents)]
    print_table([f"{split}: stack", *names], rows)
    if (oracle := result.get("oracle")) is not None:
        who = "sentence" if oracle["scope"] == "sequence" else "label"
        print_line(f"{split}: every {who} in the first round of the {oracle['stack']} that has it right")
    if (origin := result.get("halting_threshold_from")) is not None:
        print_line(f"{split}: halting threshold {TUNED if origin == 'tuned' else origin}{_by_criterion(result)}")


def _by_criterion(result: Scores) -> str:
    """Say by which criterion tokens stopped, where there was one."""
    found = result.get("exit")
    if found is None:
        return ""
    who = "sentences" if found["scope"] == "sequence" else "tokens"
    return f"; {who} of the {' and '.join(found['needs_predictions'])} stop by {found['criterion']}"


def _print_routing(split: str, routing: Mapping[str, Scores]) -> None:
    """Print how every router used its experts; the load of each expert is in --json and results.json."""
    if not routing:
        return
    columns = [f"{split}: router", "experts", "a token", "load entropy / log E", "row entropy", "dead"]
    rows: list[list[object]] = []
    for router, found in routing.items():
        n = len(found["load"])
        evenness = found["load_entropy"] / math.log(n)
        rows.append([router, n, found["experts_per_token"], evenness, found["row_entropy"], found["n_dead"]])
    print_table(columns, rows)


def _print_ranking(split: str, ranking: Scores) -> None:
    """Print how often the right target was preferred, by column."""
    if not ranking:
        return
    rows = [["all", ranking["n"], ranking["accuracy"]]]
    for column, values in ranking["by"].items():
        rows += [[f"{column} {value}", found["n"], found["accuracy"]] for value, found in values.items()]
        rows.append([f"{column}: their mean", None, ranking["macro"][column]["accuracy"]])
    print_table([f"{split}: ranking", "n", "accuracy"], rows)


def _print_groups(title: str, values: Mapping[str, Scores], macro: Scores | None, wanted: list[str]) -> None:
    """Print a row for each value of a column; the rest of its scores are in --json and results.json."""
    names = ["n", *(name for name in wanted if any(name in scores for scores in values.values()))]
    stacks = dict.fromkeys(stack for scores in values.values() for stack in scores.get("halting") or {})
    has_macs = bool(stacks) and all("macs" in scores for scores in values.values())
    rows = []
    for value, scores in values.items():
        macs = [scores["macs"]["realised"] / 1e6] if has_macs else []
        halting = scores.get("halting") or {}
        depths = [(halting.get(stack) or {}).get("mean") for stack in stacks]
        rows.append([value, *(scores.get(name) for name in names), *depths, *macs])
    if macro and len(rows) > 1:
        rows.append(["their mean", *(macro.get(name) for name in names), *([None] * (len(stacks) + has_macs))])
    print_table([title, *names, *(f"{stack} depth" for stack in stacks), *(["M MACs"] if has_macs else [])], rows)
