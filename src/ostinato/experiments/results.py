"""What all experiments share: finished runs as rows of data, rows as JSON lines, and rows as a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ostinato.budget import Assumptions, count_macs
from ostinato.config.files import UNFINISHED_RUN
from ostinato.config.recipe import Recipe
from ostinato.data.disk import finite, read_json_object
from ostinato.data.lines import read_lines
from ostinato.data.sources import parse_object
from ostinato.errors import CheckpointError, DataError
from ostinato.system_errors import kind_of
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task, task_config

LENGTHS = (16, 16)
"""Source and target tokens of the sentence whose forward pass is counted for a table."""
_NEEDED: dict[str, Any] = {"name": str, "seed": int, "parameters": int, "seconds": int | float}
"""What results.json holds that tables read."""
_NAMES: dict[Any, str] = {str: "a text", int: "an integer", int | float: "a number"}
_NO_SCORES = ("seconds", "decoding_seconds", "perplexity", "sequence_accuracy_forced")


def pass_lengths(recipe: Recipe, lengths: tuple[int, int]) -> tuple[int, int]:
    """Return the lengths to count a recipe's model for, so that it reads `lengths` source and target tokens.

    A decoder-only model of pairs reads both sides as one sequence, which the counts know as its target.
    """
    source, target = lengths
    joins = recipe.model.joins_pairs and task_config(recipe.task).has_sources
    return (source, source + target) if joins else lengths


def timed_lengths(recipe: Recipe, lengths: tuple[int, int]) -> tuple[int, int]:
    """Return the source and target tokens that a recipe's model is timed with: texts have no source."""
    source, target = lengths
    reads_source = task_config(recipe.task).has_sources or not recipe.model.joins_pairs
    return source if reads_source else 0, target


def assumptions_of(recipe: Recipe, given: Assumptions) -> Assumptions:
    """Return what a recipe's model is counted for: lengths, batch and beam as given, the rest as it trains and decodes.

    Both sides of pairs that are read as one sequence are its target, as of `pass_lengths`.
    """
    source, target = pass_lengths(recipe, (given.source_length, given.target_length))
    return replace(
        given,
        source_length=source,
        target_length=target,
        precision=recipe.training.precision,
        checkpoint_activations=recipe.training.checkpoint_activations,
        cached_rounds=recipe.decoding.cached_rounds,
        round_loss=recipe.training.round_loss,
    )


def read_results(run: Path) -> dict[str, Any]:
    """Return results.json of a finished run.

    Raises:
        CheckpointError: the run is not finished, or the file is damaged.
    """
    if not run.is_dir():
        kind = "a file, no run directory" if run.is_file() else kind_of(run)
        raise CheckpointError(f"{run}: {'no such file or run directory' if kind is None else f'is {kind}'}")
    path = run / "results.json"
    if not path.is_file():
        raise CheckpointError(f"{run}: no results.json: {UNFINISHED_RUN}")
    results = read_json_object(path)
    _check_splits(results, path)
    return results


def run_row(run: Path, lengths: tuple[int, int] = LENGTHS) -> dict[str, Any]:
    """Return everything a finished run found as one JSON-able row.

    Args:
        run: the run directory. lengths: source and target tokens of the sentence whose forward pass is counted.

    Returns:
        The run's results, with `macs`: {source_length, target_length, total}, `task` with all its settings, `forced`:
        the teacher-forced scores that the task is reported by, and `directory`: the run's as it was given.

    Raises:
        CheckpointError: the run is not finished.
    """
    results = read_results(run)
    _check_numbers(results, run / "results.json")
    recipe = load_recipe(str(run / "recipe.yaml"))
    total = count_macs(recipe.model, *pass_lengths(recipe, lengths)).total
    macs = {"source_length": lengths[0], "target_length": lengths[1], "total": total}
    forced = list(build_task(recipe.task, recipe.data, trains=False).forced)
    return {**results, "directory": str(run), "task": recipe.task.settings(), "forced": forced, "macs": macs}


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return names to tell paths apart by: the last part of each, or all of it where two of them end alike."""
    names = [path.stem if path.is_file() else path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def check_run_row(row: dict[str, Any], where: Path | str) -> None:
    """Raise a CheckpointError where a row of a file lacks what `run_row` gives and tables read.

    Args:
        where: names the row in the error.
    """
    _check_splits(row, where)
    _check_numbers(row, where)
    macs = row.get("macs")
    if not isinstance(macs, dict) or not isinstance(macs.get("total"), int | float):
        raise CheckpointError(f"{where}: is damaged: needs 'macs.total', a number")
    if not isinstance(row.get("forced", []), list):
        raise CheckpointError(f"{where}: is damaged: needs 'forced', a list")


def _check_splits(results: dict[str, Any], where: Path | str) -> None:
    splits = results.get("splits")
    if not isinstance(splits, dict) or not all(isinstance(found, dict) for found in splits.values()):
        raise CheckpointError(f"{where}: is damaged: needs 'splits', an object of objects")


def _check_numbers(results: dict[str, Any], where: Path | str) -> None:
    for key, kind in _NEEDED.items():
        if not isinstance(results.get(key), kind):
            raise CheckpointError(f"{where}: is damaged: needs {key!r}, {_NAMES[kind]}")
    for split, found in results["splits"].items():
        if not isinstance(found.get("n"), int):
            raise CheckpointError(f"{where}: is damaged: needs 'splits.{split}.n', an integer")


def write_rows(rows: Iterable[dict[str, Any]], path: Path) -> None:
    """Write rows as JSON lines; infinities and NaN, which JSON does not have, become null."""
    lines = (json.dumps(finite(row), ensure_ascii=False, allow_nan=False) for row in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines; empty lines are none.

    Raises:
        DataError: a line is no JSON object; names the file, the line and the reason.
    """
    return [parse_object(line, path, number) for number, line in read_lines(path) if line.strip()]


def first_row(path: Path) -> dict[str, Any] | None:
    """Return the first row of a file of JSON lines, None where its first line is no JSON object."""
    with path.open("rb") as file:
        line = file.readline()
    try:
        row = json.loads(line)
    except (RecursionError, ValueError):
        return None
    return row if isinstance(row, dict) else None


def table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return headings and one line per run and split: sizes, seconds, and a column for every score that one has.

    Of perplexity and `sequence_accuracy_forced` there is a column where a run's task is reported by it. Scores in
    [0, 1] stay fractions, of `ranking` the accuracy is shown; a score a split does not have is None. A run is called
    what its recipe is, or, where two recipes are called alike, what its directory is.

    Raises:
        DataError: rows whose multiply-accumulates are of passes of other lengths.
    """
    pairs = ((row["macs"].get("source_length"), row["macs"].get("target_length")) for row in rows)
    passes = dict.fromkeys(f" ({source} to {target} tokens)" if source is not None else "" for source, target in pairs)
    if len(passes) > 1:
        texts = ", ".join(one.strip(" ()") or "unknown lengths" for one in passes)
        raise DataError(f"the MACs of the rows are of passes of {texts}: show them one by one")
    scores: list[str] = []
    for row in rows:
        reported = row.get("forced", [])  # a row that an earlier version wrote does not say it
        hidden = [name for name in _NO_SCORES if name not in reported]
        for found in row["splits"].values():
            own = [k for k, v in _with_ranking(found).items() if isinstance(v, float) and k not in hidden]
            scores += [k for k in own if k not in scores]
    columns = ["run", "seed", "parameters", f"M MACs{next(iter(passes), '')}", "seconds", "split", "n", *scores]
    lines: list[list[object]] = [
        [
            name,
            row["seed"],
            row["parameters"],
            round(row["macs"]["total"] / 1e6, 1),
            round(row["seconds"]),
            split,
            found["n"],
            *(_with_ranking(found).get(score) for score in scores),
        ]
        for name, row in zip(_names(rows), rows, strict=True)
        for split, found in row["splits"].items()
    ]
    return columns, lines


def _with_ranking(found: dict[str, Any]) -> dict[str, Any]:
    """Return what was found of a split, of its `ranking` the accuracy."""
    ranking = found.get("ranking")
    return found | {"ranking": ranking.get("accuracy")} if isinstance(ranking, dict) else found


def _names(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what rows are called; one of a file that an earlier version wrote has no directory."""
    names = [row["name"] for row in rows]
    if len(set(names)) == len(names):
        return names
    placed = [row.get("directory") for row in rows]
    directories = iter(short_names([Path(place) for place in placed if isinstance(place, str)]))
    return [
        next(directories) if isinstance(place, str) else row["name"] for place, row in zip(placed, rows, strict=True)
    ]


def four_digits(value: float) -> str:
    """Return a number with four digits; one just below 1 with as many as tell it from 1: 0.1235, 0.99997."""
    texts = (f"{value:.{digits}g}" for digits in range(4, 18))
    return next(text for text in texts if text != "1" or value >= 1)


def markdown(columns: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown, numbers with four digits, from 1,000 on to a tenth as on a terminal."""

    def text(value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, float):
            return f"{value:,.1f}" if 1000 <= abs(value) < 1e15 else four_digits(value)
        return f"{value:,}" if isinstance(value, int) else str(value).replace("|", r"\|")

    head, *body = (f"| {' | '.join(map(text, line))} |\n" for line in (columns, *lines))
    return "".join([head, "|---" * len(columns) + "|\n", *body])
