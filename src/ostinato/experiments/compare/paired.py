"""Finished systems on the same references: scores with bootstrap intervals, differences to the first system, costs.

Metrics of outputs are compared, or teacher-forced scores of runs (`ostinato.experiments.compare.forced`), such as the
loss of language models of texts, which write nothing. A difference is claimed only where its interval excludes 0
(`ostinato.metrics.bootstrap`). Nothing is asked of the systems but that they were to write the same texts: what each of
them stores, costs and was trained for is reported beside its scores, and whether that is a fair comparison is for the
reader to see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ostinato.data.disk import reading
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.evaluation.scores import check_metrics
from ostinato.evaluation.stored import Outputs
from ostinato.experiments.compare.forced import forced_bootstrap, is_forced, why_not
from ostinato.experiments.compare.systems import Choices, System, decoding_costs, open_systems, same_references
from ostinato.experiments.results import first_row, read_rows
from ostinato.metrics import make_metric
from ostinato.metrics.bootstrap import LEVEL, paired_bootstrap
from ostinato.tasks.registry import build_task
from ostinato.version import __version__

_HALTING = ("halting_threshold", "halting_threshold_from", "exit")
"""Of an evaluation: at which thresholds tokens halted, and by which criterion; rows of earlier versions lack them."""


def compare(
    paths: Sequence[Path], choices: Choices | None = None, on_line: Callable[[str], None] = lambda line: None
) -> list[dict[str, Any]]:
    """Return one JSON-able row for every split and system.

    Args:
        paths: run directories and files of predictions, the reference first; or only files of rows that an earlier
            comparison wrote, which are read. on_line: called with a line for people whenever outputs are there.

    Returns:
        split, system, reference (the first system), n, metrics: name -> {value, low, high, signature, difference:
        {value, low, high}, verdict}, the last two None for the reference; halting_threshold (by stack),
        halting_threshold_from, exit: as of an evaluation, None where there is none; bootstrap: {n_samples, seed,
        level}; recipe, task, seed, parameters (stored), macs: see `System.macs`, n_updates, training_seconds,
        training_tokens_per_second (target tokens, median over the run), checkpoint; decoding: {seconds,
        tokens_per_second (of the outputs, end symbols included), n_generated, n_unfinished, device, n_threads,
        settings, is_new (decoded for this comparison)}; version. What is not known of a file is None.

    Raises:
        ConfigError: an unknown metric, split or setting, a directory that is no run. CheckpointError: no checkpoint.
        DataError: systems with different references, a file that cannot be used, or too few sentences.
    """
    choices = choices or Choices()
    if are_rows(paths):
        return read_rows(paths[0]) if len(paths) == 1 else _rows_of(paths)
    systems = open_systems(paths)
    metrics, splits = _metrics(systems, choices), _splits(systems, choices)
    # All references first: systems that cannot be compared are refused before anything is decoded.
    references = [same_references(systems, split, choices) for split in splits]
    kinds = {"decodes": not all(map(is_forced, metrics)), "counts": any(map(is_forced, metrics))}
    outputs: list[list[Outputs]] = [[] for _ in splits]
    for system in systems:  # system by system: a model is in memory only while its own outputs are decoded
        written_by = zip(splits, references, outputs, system.outputs(splits, choices, **kinds), strict=True)
        for split, wanted, of_split, own in written_by:
            if kinds["decodes"] and own.references != wanted:
                where = f"{system.path}{f': {split}' if split else ''}"
                raise DataError(f"{where}: was changed while systems were compared; the same command begins anew")
            of_split.append(own)
            on_line(f"{system.name}{f', {split}' if split else ''}: {_origin(own)}")
            if own.data_note is not None:
                on_line(own.data_note)
        if line := outputs[0][-1].mean_line:
            on_line(f"{system.path}: {line}")
    costs = [system.costs(own.checkpoint) for system, own in zip(systems, outputs[0], strict=True)]
    vocabularies = [system.vocabulary() for system in systems] if kinds["counts"] else []
    rows: list[dict[str, Any]] = []
    for split, wanted, written in zip(splits, references, outputs, strict=True):
        predictions = [outputs.predictions for outputs in written]
        # Of a file of outputs, unlike a run, only some lines may have them.
        most = max((one.sources for one in written), key=lambda texts: sum(map(bool, texts)))
        sources = most if any(most) else None
        scores: dict[str, list[dict[str, Any]]] = {}
        drawn: dict[str, Any] = {"n_samples": choices.n_samples, "seed": choices.seed}
        has_unknown = kinds["counts"] and any(system.tokenizer().lacks(wanted) for system in systems)
        for name in metrics:
            metric = None if is_forced(name) else make_metric(name)
            if metric is not None:
                compared = paired_bootstrap(metric, predictions, wanted, sources, **drawn)
            elif choices.metrics is None and why_not(name, written, vocabularies, has_unknown=has_unknown) is not None:
                continue  # the task's own scores, of which these runs do not have all
            else:
                compared = forced_bootstrap(name, written, vocabularies, has_unknown=has_unknown, **drawn)
            scores[name] = [
                {
                    **found.score.as_dict(),
                    "signature": None if metric is None else metric.signature(),
                    "difference": None if found is compared[0] else found.difference.as_dict(),
                    "verdict": None if found is compared[0] else found.verdict,
                }
                for found in compared
            ]
        if not scores:
            reason = f"the first {why_not(metrics[0], written, vocabularies, has_unknown=has_unknown)}"
            raise ConfigError([Problem("metrics", list(metrics), reason)])
        for i, system in enumerate(systems):
            rows.append(
                {
                    "split": split,
                    "system": system.name,
                    "reference": systems[0].name,
                    "n": len(wanted),
                    "metrics": {name: found[i] for name, found in scores.items()},
                    **{name: (written[i].evaluation or {}).get(name) for name in _HALTING},
                    "bootstrap": {"n_samples": choices.n_samples, "seed": choices.seed, "level": LEVEL},
                    **costs[i],
                    "macs": system.macs(written[i], choices.lengths),
                    "decoding": decoding_costs(written[i]),
                    "version": __version__,
                }
            )
    return rows


def are_rows(paths: Sequence[Path]) -> bool:
    """Return whether all of these are files of rows that an earlier comparison wrote."""
    return all(path.is_file() and "bootstrap" in (first_row(path) or {}) for path in paths)


def _rows_of(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the rows of files, each system once; a DataError where they cannot stand in one table."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    made, lengths = set[str](), set[tuple[int, int]]()
    for path in paths:
        with reading(path, DataError):
            for row in read_rows(path):
                made.add(json.dumps([row["reference"], row["bootstrap"]], sort_keys=True))
                if row["macs"]:
                    lengths.add((row["macs"]["source_length"], row["macs"]["target_length"]))
                where = (row["split"], row["system"])
                same = found.get(where, row)
                _check_same(row, same, path)
                for other in (one for one in found.values() if one["split"] == row["split"] and one["n"] != row["n"]):
                    of = f" of {row['split']}" if row["split"] else ""
                    said = f"{row['system']} has {row['n']} examples{of}, and {other['system']} {other['n']}"
                    raise DataError(f"{path}: {said}: show them one by one")
                metrics = same["metrics"]
                if any(
                    repr(metrics[name]["value"]) != repr(row["metrics"][name]["value"])
                    for name in metrics.keys() & row["metrics"].keys()
                ):
                    raise DataError(f"{path}: {row['system']} has other scores in another file: show them one by one")
                # Nothing is decoded for teacher-forced scores: what another file knows of it is kept.
                decoding = same["decoding"] or row["decoding"]
                halting = {name: row[name] for name in _HALTING if name in row}  # of earlier versions it is not known
                found[where] = same | halting | {"metrics": row["metrics"] | metrics, "decoding": decoding}
    if len(made) > 1 or len(lengths) > 1:
        names = " and ".join(map(str, paths))
        raise DataError(f"{names} have other references, samples or counted lengths: show them one by one")
    return list(found.values())


def _check_same(row: Mapping[str, Any], other: Mapping[str, Any], path: Path) -> None:
    """Raise a DataError where two rows of one split and system are of something else: their scores are not of one run.

    How outputs were decoded, and by which rule tokens halted, is compared where both say it.
    """
    names = ("n", "checkpoint", "seed", "parameters", *(name for name in _HALTING if name in row and name in other))
    pairs = {name: (row.get(name), other.get(name)) for name in names}
    if row["decoding"] and other["decoding"]:
        of_row, of_other = (one["decoding"]["settings"] for one in (row, other))
        # What one lacks, an earlier version did not have; others say how it is computed, and not what.
        shared = (of_row.keys() & of_other.keys()) - {"pack_weights", "static_cache"}
        pairs |= {f"decoding.{name}": (of_row[name], of_other[name]) for name in sorted(shared)}
    if differing := [f"{name}: {a!r} and {b!r}" for name, (a, b) in pairs.items() if a != b]:
        where = f"{row['system']} on {row['split']}" if row["split"] else row["system"]
        said = f"is another system in another file ({', '.join(differing)})"
        raise DataError(f"{path}: {where} {said}: show them one by one")


def _metrics(systems: Sequence[System], choices: Choices) -> Sequence[str]:
    found: Sequence[str] | None = choices.metrics
    recipe = next((system.recipe for system in systems if system.recipe is not None), None)
    if found is None and recipe is not None:
        own = recipe.evaluation.metrics
        task = build_task(recipe.task, recipe.data, choices.access, trains=False)
        has_model = all(system.recipe is not None for system in systems)
        forced = list(filter(is_forced, task.forced if has_model else ()))
        found = [*task.metrics, *forced] if own is None else own or forced
    if not found:
        reason = "name what to compare by, for example exact_match, or of runs loss"
        raise ConfigError([Problem("metrics", list(found or []), reason)])
    check_metrics([name for name in found if not is_forced(name)])
    for system in systems:
        if system.recipe is None and any(map(is_forced, found)):
            reason = f"is teacher-forced, which needs a model: {system.path} is a file of outputs"
            raise ConfigError([Problem("metrics", next(filter(is_forced, found)), reason)])
    return found


def _splits(systems: Sequence[System], choices: Choices) -> Sequence[str | None]:
    recipes = [system.recipe for system in systems if system.recipe is not None]
    splits = list(dict.fromkeys(choices.splits or (recipes[0].evaluation.splits if recipes else None) or []))
    if len(recipes) < len(systems) and len(splits) > 1:
        raise ConfigError([Problem("splits", splits, "a file of predictions is of one split: choose that one")])
    if recipes and not splits:
        raise ConfigError([Problem("splits", splits, "the first run's recipe names no split: choose one")])
    return splits or [None]


def _origin(outputs: Outputs) -> str:
    n = len(outputs.predictions)
    if outputs.evaluation is None:
        return f"{n:,} predictions read"
    tuned = outputs.evaluation.get("halting_threshold_from") == "tuned"
    how = ", at the halting threshold that was tuned for the run" if tuned else ""
    if not n:
        return f"{outputs.evaluation['n']:,} examples scored in {outputs.evaluation['seconds']:.1f} s{how}"
    if outputs.is_new:
        seconds = outputs.evaluation.get("decoding_seconds", outputs.evaluation["seconds"])
        return f"{n:,} outputs decoded in {seconds:.1f} s{how}"
    return f"{n:,} outputs kept from before in {outputs.file}{how}"
