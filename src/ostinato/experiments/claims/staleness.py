"""Whether an outcome still says something about its claim and about today's code.

It is stale where the claim, the settings of its arms, or what they compute has changed since. What is computed is
compared, not files: of trained arms fingerprints (`ostinato.experiments.claims.fingerprint`) and tiny scores
(`ostinato.experiments.claims.tiny_scores`), of counts the counts. What an outcome did not record is not compared;
scores may be recorded later, while the losses are still those of its runs. Speed is no function of what is computed: an
outcome of a timing is stale once the source of what it timed has changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel

from ostinato.config.claim import CountSource, SweepSource, TimingSource
from ostinato.config.measures import EvaluateMeasure
from ostinato.config.recipe import Recipe
from ostinato.config.sweep import SweepConfig
from ostinato.data.disk import hash_of
from ostinato.experiments.claims.counts import counted_rows
from ostinato.experiments.claims.design import named_by, named_part, source_sweep
from ostinato.experiments.claims.files import Claim, Outcome, State
from ostinato.experiments.claims.fingerprint import fingerprint, is_alike, is_near
from ostinato.experiments.claims.tiny_scores import Scores, tiny_scores
from ostinato.experiments.sweep.files import first_recipe
from ostinato.experiments.sweep.run_key import key_settings
from ostinato.tasks.recipes import load_recipe
from ostinato.training.rundir import versions
from ostinato.version import LEARNING, source_hash

_TIMED = (
    *("plan.py", "config", "kernels", "nn", "data", "models", "decoding", "training"),
    *("evaluation/timing.py", "experiments/timing"),
)
"""The parts of the package that a timing measures."""
_LATER = {"exit": None, "exit_scope": "token", "oracle": None}
"""Settings of measures, at their defaults, that came when there were outcomes already."""
_fingerprints: dict[str, list[float]] = {}
_scores: dict[str, Scores | None] = {}
"""Of this process, by settings: claims share arms."""


def state(claim: Claim, outcome: Outcome | None) -> State:
    """Return the verdict where an outcome is still of that claim and that code."""
    return state_of(outcome, None if outcome is None else why_stale(claim, outcome))


def state_of(outcome: Outcome | None, why: str | None) -> State:
    """Return the verdict of an outcome, given why it is stale, where it is."""
    if outcome is None:
        return "not run"
    return "stale" if why else outcome.verdict


def why_stale(claim: Claim, outcome: Outcome) -> str | None:
    """Say what has changed since the claim was run; None where nothing has."""
    head = outcome.head
    if head["registered"] != claim.registered:
        return "the claim has changed since"
    if head["settings"] != settings_hash(claim):
        return "the settings of its arms have changed since"
    if head.get("measures") not in (None, measures_hash(claim)):
        return "the measures of its sweep have changed since"
    match claim.config.source:
        case TimingSource():
            return None if head["timed"] == source_hash(_TIMED) else "what it times has changed since"
        case CountSource() as source:
            counts = [row["values"] for row in counted_rows(source, None)]
            return None if counts == [row["values"] for row in outcome.rows] else "its models count otherwise now"
        case SweepSource():
            if head["fingerprints"] is None:
                return "some of its runs were trained by earlier code (another --store has them trained anew)"
            if head["versions"]["source"] == source_hash(LEARNING):
                return None
            now = arm_fingerprints(claim)
            moved = [arm for arm, old in head["fingerprints"].items() if not is_alike(old, now[arm])]
            if moved:
                return f"{', '.join(moved)} compute otherwise now"
            found = _moved_scores(head["scores"], arm_scores(claim)) if head.get("scores") else {}
            said = [f"{arm} ({', '.join(names)})" for arm, names in found.items()]
            return f"{', '.join(said)} score otherwise now" if said else None


def _moved_scores(old: Mapping[str, Scores | None], new: Mapping[str, Scores | None]) -> dict[str, list[str]]:
    """Return by arm which scores are others than before; one that is not found any more is another."""
    found = {}
    for arm, scores in old.items():
        own = new.get(arm) or {}
        names = [name for name, value in (scores or {}).items() if name not in own or not is_near(value, own[name])]
        if names:
            found[arm] = names
    return found


def with_scores(claim: Claim, outcome: Outcome) -> Outcome:
    """Return an outcome with the tiny scores of its arms where it has none, and a note of the commit they are of.

    Of an outcome that is stale, whose arms may score otherwise than its runs did, none are recorded; nor of counts and
    timings, which score nothing.
    """
    is_swept = isinstance(claim.config.source, SweepSource)
    if not is_swept or outcome.head.get("scores") or why_stale(claim, outcome):
        return outcome
    later = {"commit": versions()["commit"], "date": datetime.now(UTC).date().isoformat()}
    return Outcome({**outcome.head, "scores": arm_scores(claim), "scores_recorded": later}, outcome.rows)


def scores_said(claim: Claim, outcome: Outcome) -> str | None:
    """Say whether an outcome has the tiny scores of its arms, and since when; None where nothing is scored."""
    if not isinstance(claim.config.source, SweepSource):
        return None
    if not outcome.head.get("scores"):
        return "not recorded"
    later = outcome.head.get("scores_recorded")
    if later is None:
        return "recorded with its runs"
    return f"recorded later ({later['date']}, {(later['commit'] or 'no commit')[:9]})"


def content_of(claim: Claim) -> dict[str, Any]:
    """Return what the first line of an outcome says of what it was made with."""
    if isinstance(claim.config.source, TimingSource):
        return {"settings": settings_hash(claim), "timed": source_hash(_TIMED)}
    if isinstance(claim.config.source, SweepSource):
        content = {"settings": settings_hash(claim), "measures": measures_hash(claim)}
        return content | {"fingerprints": arm_fingerprints(claim), "scores": arm_scores(claim)}
    return {"settings": settings_hash(claim)}


def settings_hash(claim: Claim) -> str:
    """Return SHA-256 of the resolved settings of every arm that the claim names."""
    content = {name: key_settings(recipe, first_names=True) for name, recipe in claim_recipes(claim).items()}
    return hash_of(content)


def measures_hash(claim: Claim) -> str | None:
    """Return SHA-256 of the measures that the claim names, of its sweep and of several runs; None where it has none."""
    source = claim.config.source
    if not isinstance(source, SweepSource):
        return None
    named = named_by([*claim.config.expect, *claim.config.controls])
    sweep, compared = named_part(source_sweep(source, None), source, named)
    # A measure that names no checkpoint is of those that its arms score.
    scored = ", ".join(sorted({recipe.evaluation.checkpoint for recipe in claim_recipes(claim).values()}))
    content = [_stated(one, scored) for one in (*sweep.measures, *compared)]
    return hash_of(content)


def _stated(measure: BaseModel, scored: str) -> dict[str, Any]:
    """Return the settings of a measure, or of a measure of several runs; of those in `_LATER` the ones that are set."""
    settings = measure.model_dump(mode="json", exclude={"arms"})
    if isinstance(measure, EvaluateMeasure) and measure.checkpoint is None:
        settings["checkpoint"] = scored
    return {name: value for name, value in settings.items() if _LATER.get(name, ...) != value}


def arm_fingerprints(claim: Claim) -> dict[str, list[float]]:
    """Return the fingerprint of every arm that the claim names."""
    found = {}
    for name, recipe in claim_recipes(claim).items():
        # What it reads and how it is scored has no part in it: another arm may have the same. `arm_scores` has.
        key = json.dumps([recipe.model.model_dump(mode="json"), recipe.training.model_dump(mode="json")])
        if key not in _fingerprints:
            _fingerprints[key] = fingerprint(recipe)
        found[name] = list(_fingerprints[key])
    return found


def arm_scores(claim: Claim) -> dict[str, Scores | None]:
    """Return the tiny scores of every arm that the claim names, with the metrics of the measures that it names."""
    found = {}
    source = claim.config.source
    assert isinstance(source, SweepSource)
    sweep = _sweep(claim, source)
    for arm in sweep.arms:
        recipe = first_recipe(sweep, arm)
        evaluated = [one for one in sweep.measures_of(arm.name) if isinstance(one, EvaluateMeasure)]
        metrics = [metric for measure in evaluated for metric in measure.metrics or []]
        content = recipe.model_dump(
            mode="json", include={"model", "training", "data", "decoding", "evaluation", "task"}
        )
        key = json.dumps([content, metrics], sort_keys=True)
        if key not in _scores:
            _scores[key] = tiny_scores(recipe, metrics)
        found[arm.name] = deepcopy(_scores[key])
    return found


def _sweep(claim: Claim, source: SweepSource) -> SweepConfig:
    """Return the part of a claim's sweep that it names, without inputs, and without the own runs of controls."""
    named = named_by([*claim.config.expect, *(one for one in claim.config.controls if not one.overrides)])
    return named_part(source_sweep(source, None), source, named)[0]


def claim_recipes(claim: Claim) -> dict[str, Recipe]:
    """Return the recipes that are trained, timed or counted, by arm; without inputs, and of one seed."""
    source = claim.config.source
    if not isinstance(source, SweepSource):
        return {arm.name: load_recipe(arm.recipe, arm.overrides) for arm in source.arms}
    sweep = _sweep(claim, source)
    return {arm.name: first_recipe(sweep, arm) for arm in sweep.arms}
