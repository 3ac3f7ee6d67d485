"""Successive halving: many candidates for a few updates, the best of them for more, a few with several seeds.

    stage 0     all candidates, at every rate of the grid                                u_0 updates
    stage k     the best 1 / `ETA` of them (the last stage: `Halving.n_final`), each at its best rate     u_k updates

(Jamieson and Talwalkar 2016.) Every training begins anew with a schedule of its own length: a schedule that ends, such
as a cosine, cannot be continued, and what a candidate reaches at its end is what decides. That costs half as much again
as going on would where it can be done.

The recipe itself is in every stage. The last place of a stage goes to a candidate that is behind but whose continued
curve (`ostinato.advise.curves`) may end before that of the one whose place it takes, where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from ostinato.advise.curves import Expected, continue_curve, missed
from ostinato.advise.trials import Point, TimeUp, Trainer, Trial, TrialOutcome, best_by_candidate, sign_of
from ostinato.config.training import Mode

ETA = 3
"""Of so many candidates one goes on to the next stage."""
N_STAGES = 3
HasTime = Callable[[Sequence[Trial]], bool]
"""Whether there is time for so many more trials."""
SizeOf = Callable[[int, Sequence[TrialOutcome]], int]
"""From the number of a stage, and the outcomes that go on to it (none: the first), to its updates."""


@dataclass(frozen=True, slots=True)
class Halving:
    """How the search goes.

    Args:
        rates: of the first stage. mode: whether a smaller score is better. always: a candidate that is in every stage.
        n_final: how many are in the last stage, besides `always`. n_seeds: that all of them get, time permitting;
            most_seeds: that those get which are not told apart. length: updates that curves are continued to.
        best: value that scores come ever nearer to, None where there is none; bounds: the least and the largest one.
    """

    rates: tuple[float, ...]
    mode: Mode
    always: str | None = None
    n_final: int = 3
    n_seeds: int = 3
    most_seeds: int = 5
    length: int = 0
    best: float | None = None
    bounds: tuple[float, float] = (-math.inf, math.inf)


@dataclass(slots=True)
class Found:
    """What the search found.

    Args:
        stages: outcomes of every stage. is_complete: False where time was up before the last stage had a seed of all.
    """

    stages: list[list[TrialOutcome]] = field(default_factory=list)
    is_complete: bool = False

    @property
    def outcomes(self) -> list[TrialOutcome]:
        """All outcomes."""
        return [one for stage in self.stages for one in stage]


def search(
    names: Sequence[str],
    trainer: Trainer,
    halving: Halving,
    size_of: SizeOf,
    *,
    is_open: Callable[[str], bool] = lambda name: True,
    has_time: HasTime = lambda trials: True,
    are_apart: Callable[[Sequence[TrialOutcome], str], bool] = lambda outcomes, name: False,
) -> Found:
    """Search the candidates of these names; what was done when time is up is returned.

    Args:
        size_of: updates of a stage. is_open: whether a candidate may go on to the last stage (latency, say); asked of
            the best first, until enough may.
        has_time: before each further seed. are_apart: whether a candidate of the last stage is told apart from the
            best one, and needs no more seeds.
    """
    found = Found()
    updates = size_of(0, [])
    trials = [Trial(name, rate, 1, updates) for name in names for rate in halving.rates]
    for stage in range(N_STAGES):
        label = f"stage {stage}"
        try:
            outcomes = trainer.train(label, trials)
        except TimeUp:
            if done := trainer.done(label, trials):
                found.stages.append(done)
            return found
        found.stages.append(outcomes)
        if stage + 1 == N_STAGES:
            break
        going_on = promote(found, halving, is_last=stage + 2 == N_STAGES, is_open=is_open)
        if not going_on:
            return found
        updates = size_of(stage + 1, going_on)
        trials = [Trial(one.trial.candidate, one.trial.rate, 1, updates) for one in going_on]
    found.is_complete = True
    _add_seeds(found, trainer, halving, trials, has_time, are_apart)
    return found


def promote(
    found: Found, halving: Halving, *, is_last: bool, is_open: Callable[[str], bool] = lambda name: True
) -> list[TrialOutcome]:
    """Return the best outcomes of the candidates that go on from the last stage that was done."""
    ranked = best_by_candidate(found.stages[-1], halving.mode)
    n_places = halving.n_final if is_last else max(halving.n_final, -(-len(ranked) // ETA))
    chosen: list[TrialOutcome] = []
    for one in _with_late_one(found, ranked, n_places, halving):
        if len(chosen) < n_places and (not is_last or is_open(one.trial.candidate)):
            chosen.append(one)
    names = {one.trial.candidate for one in chosen}
    return [*chosen, *(one for one in ranked if one.trial.candidate == halving.always and halving.always not in names)]


def _with_late_one(found: Found, ranked: list[TrialOutcome], n_places: int, halving: Halving) -> list[TrialOutcome]:
    """Return the ranking, its last place given to the most promising candidate behind it, where that may end better.

    "May end": the better end of the interval of its continued curve (`expect`), against that of who has the place.
    """
    if n_places < 2 or len(ranked) <= n_places or not halving.length:
        return ranked
    sign = sign_of(halving.mode)
    drift = drift_of(found, halving.best)

    def hoped(one: TrialOutcome) -> float:
        expected = expect(found, one, halving.length, best=halving.best, drift=drift).within(*halving.bounds)
        return min(sign * expected.low, sign * expected.high)

    last, behind = ranked[n_places - 1], ranked[n_places:]
    best = min(behind, key=hoped)
    if hoped(best) >= hoped(last):
        return ranked
    return [*ranked[: n_places - 1], best, last, *(one for one in behind if one is not best)]


def expect(
    found: Found,
    outcome: TrialOutcome,
    length: int,
    noise: float = 0.0,
    best: float | None = None,
    drift: float = 0.0,
) -> Expected:
    """Return what a candidate comes to after `length` updates.

    Continued are the ends of its trainings, each of which has a whole schedule, at one rate; where there is one such
    end only, the curve of that training.
    """
    ends = _ends(found).get((outcome.trial.candidate, outcome.trial.rate), [])
    points = ends if len(ends) > 1 else list(outcome.curve) or ends
    return continue_curve(points, max(length, outcome.trial.updates), noise, best, drift)


def drift_of(found: Found, best: float | None = None) -> float:
    """Return what later stages were missed by, had they been told from the stages before (`ostinato.advise.curves`).

    The root mean square over the candidates of all stages but the first; 0 where there is one stage only.
    """
    curves = {
        (one.trial.candidate, one.trial.rate): list(one.curve)
        for one in (found.stages[0] if found.stages else [])
        if one.curve
    }
    misses = []
    for trained, ends in _ends(found).items():
        for n in range(1, len(ends)):
            points = ends[:n] if n > 1 else curves.get(trained, ends[:1])
            misses.append(missed(points, ends[n], best))
    return math.sqrt(fmean(miss**2 for miss in misses)) if misses else 0.0


def _ends(found: Found) -> dict[tuple[str, float], list[Point]]:
    """Return, by candidate and rate, what its trainings came to by their updates, a mean over seeds."""
    scores: dict[tuple[str, float], dict[int, list[float]]] = {}
    for one in found.outcomes:
        if one.score is not None:
            by_updates = scores.setdefault((one.trial.candidate, one.trial.rate), {})
            by_updates.setdefault(one.trial.updates, []).append(one.score)
    return {key: [(u, fmean(values)) for u, values in sorted(own.items())] for key, own in scores.items()}


def _add_seeds(
    found: Found,
    trainer: Trainer,
    halving: Halving,
    trials: Sequence[Trial],
    has_time: HasTime,
    are_apart: Callable[[Sequence[TrialOutcome], str], bool],
) -> None:
    """Train the last stage with more seeds: all up to `n_seeds`, then those that are not told apart from the best."""
    final = found.stages[-1]
    rated = [trial for trial in trials if any(o.trial == trial and o.score is not None for o in final)]
    for seed in range(2, halving.most_seeds + 1):
        close = [t for t in rated if seed <= halving.n_seeds or not are_apart(final, t.candidate)]
        more = [Trial(trial.candidate, trial.rate, seed, trial.updates) for trial in close]
        if len(more) < 2:
            return
        label = f"stage {N_STAGES - 1}, seed {seed}"
        done = trainer.done(label, more)
        if len(done) < len(more) and not has_time(more):
            final += done
            return
        try:
            final += trainer.train(label, more)
        except TimeUp:
            final += trainer.done(label, more)
            return
