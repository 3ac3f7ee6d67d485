"""What the trials say: the best candidate, what cannot be told from it, the Pareto front, and what mattered.

Candidates of the last stage are compared with the best one seed by seed, by the tests of claims
(`ostinato.experiments.inference`), corrected by Holm for the number of all pairs, since which one is the best is
known by the same scores only. Those that no test tells from the best are its equals here: of them the best mean is
advised, and the cheapest is named beside it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, stdev
from typing import Any

import numpy as np

from ostinato.advise.candidates import BASE, Candidate
from ostinato.advise.comparison import adjusted_means, compare, n_pairs, scores_by_seed
from ostinato.advise.curves import Expected
from ostinato.advise.halving import N_STAGES, Found, drift_of, expect
from ostinato.advise.limits import Limits
from ostinato.advise.runs import best_of, range_of
from ostinato.advise.trials import Trial, TrialOutcome, best_by_candidate, sign_of
from ostinato.config.space import SpaceConfig
from ostinato.config.training import Mode
from ostinato.experiments.inference import ALPHA, judge, seeds_needed

RATE = "learning rate"
"""Name of the learning rate among the axes."""
LATENCY = "latency"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a candidate stands.

    Args:
        stage: the last one it was in, from 0. updates, rate: of its trainings there. scores: by seed. mean: of them.
        low, high: 95 % interval of the mean, None of a single seed. expected: after the recipe's own updates.
        figures: parameters, macs, bytes, and latency (seconds) where it was measured. failed: why it, or one of its
            seeds, has no score there or in the next stage. n_failed: of its seeds.
        is_equal: not told apart from the best, and could be advised (`is_eligible`); None: no test compares them.
        difference: by how much it is worse than the best, seed by seed, with its 95 % interval.
    """

    name: str
    levels: dict[str, str]
    stage: int
    updates: int
    rate: float
    scores: dict[int, float]
    mean: float | None
    low: float | None
    high: float | None
    expected: Expected | None
    figures: dict[str, float]
    failed: str = ""
    is_equal: bool | None = None
    difference: tuple[float, float | None, float | None] | None = None
    is_on_front: bool = False
    n_failed: int = 0


@dataclass(frozen=True, slots=True)
class Importance:
    """Share of the spread of the first stage's ranks that an axis explains, and its level of the best mean rank."""

    axis: str
    share: float
    best: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is advised.

    Args:
        standings: all candidates that were trained, the best first. importance: the axes, the most important first.
        is_complete: whether the search came to its end. one_more_hour: what it would decide, in words.
        warnings: what to beware of, in words.
    """

    metric: str
    mode: Mode
    limits: Limits
    standings: list[Standing]
    importance: list[Importance]
    is_complete: bool
    one_more_hour: str
    warnings: list[str]

    @property
    def best(self) -> Standing:
        """The candidate that is advised."""
        return self.standings[0]

    @property
    def equals(self) -> list[Standing]:
        """Those that could not be told apart from it."""
        return [one for one in self.standings[1:] if one.is_equal]

    @property
    def base(self) -> Standing | None:
        """The recipe itself, where it was tried."""
        return next((one for one in self.standings if one.name == BASE), None)

    def cheapest_equal(self) -> Standing:
        """Return the one of the best and its equals that costs least."""
        return min([self.best, *self.equals], key=lambda one: one.figures["macs"])

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "metric": self.metric,
            "mode": self.mode,
            "budget": str(self.limits),
            "recommended": self.best.name,
            "equal": [one.name for one in self.equals],
            "front": [one.name for one in self.standings if one.is_on_front],
            "importance": [asdict(one) for one in self.importance],
            "is_complete": self.is_complete,
            "one_more_hour": self.one_more_hour,
            "warnings": self.warnings,
            "candidates": [asdict(one) for one in self.standings],
        }


def decisive(found: Found, mode: Mode, too_slow: Collection[str] = ()) -> Found:
    """Return what can be ranked: without a last stage that has no score, or that was stopped before its leader ran.

    Of trainings that were stopped those that were done first are the cheap ones, not the good ones.

    Args:
        too_slow: candidates that could not go on to it.
    """
    stages = list(found.stages)
    while len(stages) > 1 and not _decides(stages[-1], stages[-2], mode, too_slow, found.is_complete):
        stages.pop()
    return Found(stages, found.is_complete and len(stages) == len(found.stages))


def _decides(
    stage: Sequence[TrialOutcome],
    before: Sequence[TrialOutcome],
    mode: Mode,
    too_slow: Collection[str],
    is_complete: bool,
) -> bool:
    ranked = [one.trial.candidate for one in best_by_candidate(before, mode) if one.trial.candidate not in too_slow]
    leader_ran = is_complete or not ranked or any(one.trial.candidate == ranked[0] for one in stage)
    return leader_ran and any(one.score is not None for one in stage)


def make_answer(
    found: Found,
    candidates: Sequence[Candidate],
    space: SpaceConfig,
    metric: str,
    mode: Mode,
    limits: Limits,
    *,
    latencies: Mapping[str, float],
    length: int,
    trainings_an_hour: Mapping[str, float],
    n_untried: int,
    most_seeds: int,
    without: tuple[str, float] | None = None,
) -> Answer:
    """Return what the outcomes say.

    Args:
        found: what can be ranked, see `decisive`.
        latencies: seconds, of candidates for which it was measured. length: updates of the whole recipe.
        trainings_an_hour: of the last stage's size, by candidate. n_untried: candidates that there was no time for.
        most_seeds: that a search trains of one.
        without: the best score without a model, with its name.
    """
    by_name = {one.name: one for one in candidates}
    standings = _standings(found, metric, by_name, mode, limits, latencies, length)
    standings = _compared(standings, mode, limits)
    standings = _with_front(standings, mode, limits, space.tolerance)
    return Answer(
        metric,
        mode,
        limits,
        standings,
        importance(found.stages[0] if found.stages else [], by_name, space, mode),
        found.is_complete,
        _one_more_hour(found, standings, mode, limits, trainings_an_hour, n_untried, length, most_seeds),
        _warnings(found, standings, mode, space, without),
    )


def _warnings(
    found: Found, standings: Sequence[Standing], mode: Mode, space: SpaceConfig, without: tuple[str, float] | None
) -> list[str]:
    """Return what to beware of: a rate that was not searched, or is at the edge of its grid, seeds that failed, and a
    first stage in which little was learned."""
    if not standings or not found.stages:
        return []
    warnings, best = [], standings[0]
    rates = sorted({one.trial.rate for one in found.stages[0]})
    if len(rates) < len(space.rates):
        tried = f"learning rate{'s' if len(rates) > 1 else ''} {' and '.join(f'x {rate:g}' for rate in rates)}"
        warnings.append(f"there was time for the {tried} only: candidates may differ by what rate suits them")
    if len(rates) > 1 and best.rate in (rates[0], rates[-1]):
        further = "larger" if best.rate == rates[-1] else "smaller"
        warnings.append(
            f"x {best.rate:g} is the edge of the learning rates that were tried: a {further} one may be better"
        )
    for one in standings:
        if one.n_failed and _same_size(one, best):
            n = one.n_failed + len(one.scores)
            warnings.append(f"{one.n_failed} of {n} seeds of {one.name} failed, so that it stands behind: {one.failed}")
        elif one.failed and one.mean is not None and not one.n_failed:
            warnings.append(f"{one.name} failed in stage {one.stage + 2}: {one.failed}")
    first = best_by_candidate(found.stages[0], mode)
    if without is not None:
        sign = sign_of(mode)
        name, score = without
        n = sum(one.score is not None and sign * one.score >= sign * score for one in first)
        if n:
            warnings.append(
                f"{n} of {len(first)} candidates were no better in the first stage than without a model ({name}, "
                f"{score:.4g}): it told nothing of them, more hours would"
            )
    return warnings


def _standings(
    found: Found,
    metric: str,
    candidates: Mapping[str, Candidate],
    mode: Mode,
    limits: Limits,
    latencies: Mapping[str, float],
    length: int,
) -> list[Standing]:
    """Return how all candidates stand, those of the last stage first, within a stage the best mean first."""
    noise = _seed_noise(found.stages[-1]) if found.stages else 0.0
    goal = best_of(metric)
    drift = drift_of(found, goal)
    made: dict[str, Standing] = {}
    for stage in reversed(range(len(found.stages))):
        for first in best_by_candidate(found.stages[stage], mode):
            name = first.trial.candidate
            if name in made:
                continue
            own = [o for o in found.stages[stage] if _is_same_model(o.trial, first.trial)]
            scores = {o.trial.seed: float(o.score) for o in own if o.score is not None}
            failures = [o for o in own if o.score is None]
            later = [o for one in found.stages[stage + 1 :] for o in one if o.trial.candidate == name]  # all failed
            judged = judge(list(scores.values()), (0.0, None))
            figures = dict(candidates[name].figures)
            if name in latencies:
                figures[LATENCY] = latencies[name]
            made[name] = Standing(
                name,
                dict(candidates[name].levels),
                stage,
                first.trial.updates,
                first.trial.rate,
                scores,
                fmean(scores.values()),
                judged.low,
                judged.high,
                expect(found, first, length, noise, goal, drift).within(*range_of(metric)),
                figures,
                _reason([*later, *failures][0]) if later or failures else "",
                n_failed=len(failures),
            )
    failed = [o for o in found.outcomes if o.score is None and o.trial.candidate not in made]
    for one in failed:
        name = one.trial.candidate
        made.setdefault(
            name,
            Standing(
                name, dict(candidates[name].levels), 0, one.trial.updates, one.trial.rate, {}, None, None, None, None,
                dict(candidates[name].figures), failed=_reason(one),
            ),
        )  # fmt: skip
    sign = sign_of(mode)
    ranks = {
        name: sign * mean
        for stage in {one.stage for one in made.values()}
        for name, mean in adjusted_means({s.name: s.scores for s in made.values() if s.stage == stage}).items()
    }
    return sorted(
        made.values(),
        key=lambda s: (s.mean is None, is_too_slow(s, limits), -s.stage, s.n_failed > 0, ranks.get(s.name, 0.0)),
    )


def _reason(one: TrialOutcome) -> str:
    return one.reason.splitlines()[-1] if one.reason else "it was not finished in the time"


def is_too_slow(standing: Standing, limits: Limits) -> bool:
    """Return whether a candidate was measured to be slower than the budget allows."""
    return limits.latency is not None and standing.figures.get(LATENCY, 0.0) > limits.latency.seconds


def is_eligible(standing: Standing, limits: Limits) -> bool:
    """Return whether a candidate could be advised: it has a score for every seed, and was not measured too slow."""
    return standing.mean is not None and not standing.n_failed and not is_too_slow(standing, limits)


def _is_same_model(a: Trial, b: Trial) -> bool:
    return (a.candidate, a.rate, a.updates) == (b.candidate, b.rate, b.updates)


def _seed_noise(outcomes: Sequence[TrialOutcome]) -> float:
    """Return the standard deviation between seeds, pooled over candidates; 0 where none has two seeds."""
    spreads = [stdev(by_seed.values()) ** 2 for by_seed in scores_by_seed(outcomes).values() if len(by_seed) > 1]
    return float(fmean(spreads) ** 0.5) if spreads else 0.0


def worse_by(standing: Standing, best: Standing, mode: Mode) -> list[float]:
    """Return by how much a candidate is worse than the best, for every seed that both have."""
    sign = sign_of(mode)
    return [sign * (standing.scores[seed] - best.scores[seed]) for seed in best.scores if seed in standing.scores]


def _compared(standings: Sequence[Standing], mode: Mode, limits: Limits) -> list[Standing]:
    """Return the standings with what the tests say of those in the best one's stage."""
    if not standings or standings[0].mean is None:
        return list(standings)
    best = standings[0]
    pool = {one.name: one.scores for one in standings if one.mean is not None and _same_size(one, best)}
    compared = compare(pool, best.name, mode)
    return [
        replace(
            one,
            is_equal=None if found.is_constant else found.p > ALPHA and is_eligible(one, limits),
            difference=(found.value, found.low, found.high),
        )
        if (found := compared.get(one.name)) is not None
        else one
        for one in standings
    ]


def _same_size(a: Standing, b: Standing) -> bool:
    return (a.stage, a.updates) == (b.stage, b.updates)


def _with_front(standings: Sequence[Standing], mode: Mode, limits: Limits, tolerance: float) -> list[Standing]:
    """Return the standings with those marked, among those of the best one's stage that are fast enough, that no other
    is better than in all ways.

    Costs that differ by no more than the tolerance, to which the budget is met, are one.
    """
    if not standings:
        return []
    sign = sign_of(mode)
    pool = [
        one
        for one in standings
        if one.mean is not None and _same_size(one, standings[0]) and not is_too_slow(one, limits)
    ]
    axes = [name for name in (*pool[0].figures, LATENCY) if all(name in one.figures for one in pool)] if pool else []
    points = {one.name: (sign * float(one.mean or 0.0), [one.figures[axis] for axis in axes]) for one in pool}

    def is_beaten(name: str) -> bool:
        score, costs = points[name]
        return any(
            other <= score
            and all(a <= b * (1 + tolerance) for a, b in zip(theirs, costs, strict=True))
            and (other < score or any(a < b * (1 - tolerance) for a, b in zip(theirs, costs, strict=True)))
            for key, (other, theirs) in points.items()
            if key != name
        )

    return [replace(one, is_on_front=not is_beaten(one.name)) if one.name in points else one for one in standings]


def importance(
    outcomes: Sequence[TrialOutcome], candidates: Mapping[str, Candidate], space: SpaceConfig, mode: Mode
) -> list[Importance]:
    """Return how much of the spread of ranks each axis explains, the learning rate among them.

    Of the ranks r of the trials (failed ones last) and the levels of an axis, with k levels and n trials:

        share = max(0, SS_between - (k - 1) SS_within / (n - k)) / SS_total    (epsilon squared, Kelley 1935)

    which is 0 on average for an axis that does nothing. Trials of the recipe itself count for the learning rate only.
    """
    from scipy import stats

    if len(outcomes) < 3:
        return []
    sign = sign_of(mode)
    scores = np.array([np.inf if one.score is None else sign * one.score for one in outcomes])
    ranks = stats.rankdata(scores)
    found = []
    for axis in [*(axis.name for axis in space.axes), RATE]:
        levels = [
            f"x {one.trial.rate:g}" if axis == RATE else candidates[one.trial.candidate].levels.get(axis)
            for one in outcomes
        ]
        groups: dict[str, list[float]] = {}
        for level, rank in zip(levels, ranks, strict=True):
            if level is not None:
                groups.setdefault(level, []).append(float(rank))
        n, k = sum(map(len, groups.values())), len(groups)
        if k < 2 or n < 2 * k:
            continue
        mean = fmean(rank for group in groups.values() for rank in group)
        total = sum((rank - mean) ** 2 for group in groups.values() for rank in group)
        within = sum((rank - fmean(group)) ** 2 for group in groups.values() for rank in group)
        share = max(0.0, total - within - (k - 1) * within / (n - k)) / total if total else 0.0
        found.append(Importance(axis, share, min(groups, key=lambda name: fmean(groups[name]))))
    return sorted(found, key=lambda one: -one.share)


def _one_more_hour(
    found: Found,
    standings: Sequence[Standing],
    mode: Mode,
    limits: Limits,
    trainings_an_hour: Mapping[str, float],
    n_untried: int,
    length: int,
    most_seeds: int,
) -> str:
    """Return in words what one more hour would decide."""
    if not standings or standings[0].mean is None:
        return ""
    best, parts = standings[0], []
    rivals = [one for one in standings[1:] if one.difference is not None and is_eligible(one, limits)]
    close = [one for one in rivals if one.is_equal]
    n_tests = n_pairs(sum(one.difference is not None for one in standings))
    if not found.is_complete or best.stage + 1 < N_STAGES:
        parts.append("the last stage was not finished: it would go on there")
    elif close:
        rival = min(close, key=lambda one: one.difference[0] if one.difference else 0.0)
        parts.append(_seeds_in_words(best, rival, mode, trainings_an_hour, n_tests, most_seeds))
    elif not rivals:
        parts.append(f"nothing about {best.name}: no other of the last stage could be advised")
    elif all(one.is_equal is False for one in rivals):
        parts.append(f"nothing about {best.name}: it is told apart from all others of the last stage")
    else:
        parts.append(f"little about {best.name}: the others of the last stage differ from it by as much at every seed")
    if (rival_later := _overtaker(standings, mode, limits)) is not None:
        parts.append(
            f"whether {rival_later.name} overtakes it in longer training: its curve, continued to {length:,} updates, "
            "ends before"
        )
    if n_untried:
        parts.append(f"{n_untried} candidates were not tried for lack of time: with more --hours and another --out")
    return "; ".join(parts)


def _seeds_in_words(
    best: Standing,
    rival: Standing,
    mode: Mode,
    trainings_an_hour: Mapping[str, float],
    n_tests: int,
    most_seeds: int,
) -> str:
    sample, names = worse_by(rival, best, mode), f"{best.name} and {rival.name}"
    needed = seeds_needed(sample, (0.0, None), n_tests) if len(sample) > 1 else None
    each = min(trainings_an_hour.get(best.name, 0.0), trainings_an_hour.get(rival.name, 0.0)) / 2
    if needed is None or not each:
        return f"not which of {names} is better: by the seeds there are that takes more than can be said"
    more = max(0, needed - len(sample))
    if more <= each:
        beyond = f", beyond the {most_seeds} of a search" if needed > most_seeds else ""
        return f"which of {names} is better, were their difference what it is now: {more} more seeds of each{beyond}"
    return f"not which of {names} is better: that takes about {needed} seeds, {more / each:.1f} hours"


def _overtaker(standings: Sequence[Standing], mode: Mode, limits: Limits) -> Standing | None:
    """Return the candidate of the best one's stage whose curve, continued beyond that stage, ends before the best
    one's; None: there is none, or nothing beyond."""
    sign, best = sign_of(mode), standings[0]
    if best.expected is None or best.expected.update <= best.updates:
        return None
    able = [one for one in standings if one is best or (_same_size(one, best) and is_eligible(one, limits))]
    first = min(able, key=lambda one: sign * one.expected.mean if one.expected else math.inf)
    return None if first is best else first
