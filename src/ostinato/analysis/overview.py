"""The head of a report: what was trained, what it costs, how it scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.analysis.outcomes import Outcomes
from ostinato.analysis.studies.base import Subject
from ostinato.budget import count_parameters
from ostinato.metrics import METRICS

Table = tuple[tuple[str, ...], list[list[object]]]
_SCORES = ("n", "loss", "perplexity", "bits_per_byte", "token_accuracy", "sequence_accuracy_forced")


def facts(subjects: Sequence[Subject]) -> Table:
    """Return recipe and budget of the runs, a column each."""
    found = [_of_run(subject) for subject in subjects]
    names = dict.fromkeys(name for one in found for name in one)
    rows = [[name, *(one.get(name, "") for one in found)] for name in names]
    return ("", *(subject.name for subject in subjects)), rows


def results(subjects: Sequence[Subject]) -> Table | None:
    """Return the scores in the runs' results.json, a column a split; None where there are none."""
    scores = {
        f"{subject.name}, {split}" if len(subjects) > 1 else split: _scores(one)
        for subject in subjects
        for split, one in (subject.stored_results().get("splits") or {}).items()
    }
    names = dict.fromkeys(name for one in scores.values() for name in one)
    rows = [[name, *(one.get(name) for one in scores.values())] for name in names]
    return (("score", *scores), rows) if rows else None


def _of_run(subject: Subject) -> dict[str, object]:
    recipe, model, stored = subject.run.recipe, subject.model, subject.stored_results()
    parameters = count_parameters(model.config)
    found: dict[str, object] = {
        "recipe": recipe.name,
        "task": recipe.task.kind,
        "seed": recipe.seed,
        "updates": f"{recipe.training.n_updates:,}",
        "checkpoint": subject.run.checkpoint.name,
        "width of states": model.config.d_model,
        "rounds": ", ".join(f"{name} {stack.plan.n_rounds}" for name, stack in model.stacks.items()),
        "parameters stored": f"{parameters.stored:,}",
        "parameters a token touches": f"{parameters.active:,}",
        "parameters executed, a use each": f"{parameters.executed:,}",
        "examples shown here": f"{len(subject.examples):,} of {subject.split}",
    }
    if seconds := stored.get("training_seconds"):
        found["hours of training"] = f"{seconds / 3600:.2f} on {stored.get('device')}"
    if thresholds := model.halting_thresholds():
        told = ", ".join(f"{name} {value:g}" for name, value in thresholds.items())
        found["halting threshold"] = f"{told} ({subject.run.halting_threshold_from})"
    return found | _of_examples(subject)


def _of_examples(subject: Subject) -> dict[str, object]:
    """Return what a pass over an example costs, where that was collected."""
    outcomes = subject.collected.get(Outcomes)
    if not isinstance(outcomes, Outcomes) or not outcomes.macs_N2.any():
        return {}
    full, realised = outcomes.macs_N2.mean(0).tolist()
    found: dict[str, object] = {"M MACs an example": f"{realised / 1e6:.4g}"}
    if subject.model.halting_thresholds():
        found["M MACs an example, full depth"] = f"{full / 1e6:.4g}"
    return found


def _scores(result: Mapping[str, Any]) -> dict[str, object]:
    """Return the scores of one split that fit a table."""
    found = {name: result[name] for name in (*_SCORES, *METRICS) if isinstance(result.get(name), int | float)}
    depth = {f"{stack}: mean rounds": numbers["mean"] for stack, numbers in (result.get("halting") or {}).items()}
    return found | depth
