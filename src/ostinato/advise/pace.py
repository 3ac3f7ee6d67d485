"""How many updates a stage can have in the time there is.

    seconds of a training = a + b_c u,    u: updates, c: candidate

a (building, evaluating) and b of the recipe itself come from two short trainings, b_c of the others first from their
multiply-accumulates, later from their own trainings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ostinato.advise.halving import ETA, N_STAGES, Halving
from ostinato.advise.journal import Journal
from ostinato.advise.trials import Trainer, Trial, TrialOutcome
from ostinato.errors import ConfigError, without_middle_lines

LEAST_UPDATES = 30
"""Of a training in the first stage: after fewer the warm-up is all there was."""
LEAST_CANDIDATES = 6
PROBES = (10, 40)
"""Updates of the two trainings that are timed."""
_STAGE_SECONDS = 15.0
"""That a stage takes beside its trainings: its plan, and processes that start."""


@dataclass(slots=True)
class Pace:
    """Sizes of stages.

    Args:
        costs: multiply-accumulates of every candidate, in the order in which they are to be tried, the recipe first.
        n_workers: trainings at once. deadline: `time.monotonic()` of the end.
    """

    journal: Journal
    costs: Mapping[str, float]
    halving: Halving
    n_workers: int
    deadline: float
    _fixed: float = 0.0
    _slopes: dict[str, float] = field(default_factory=dict)
    _decided: list[int] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The learning rate that is probed, and the only one where there is no time for more: nearest the recipe's."""
        return min(self.halving.rates, key=lambda rate: abs(math.log(rate)))

    @property
    def base(self) -> str:
        """The candidate that is probed: the first."""
        return next(iter(self.costs))

    def probe(self, trainer: Trainer) -> None:
        """Time two short trainings of the recipe; its cost is that of the others, by their multiply-accumulates."""

        def measured() -> list[float]:
            short, long = trainer.train("probe", [Trial(self.base, self.rate, 1, updates) for updates in PROBES])
            for one in (short, long):
                if one.score is None:
                    raise ConfigError(f"{self.base} cannot be trained: {without_middle_lines(one.reason)}")
            slope = (long.seconds - short.seconds) / (PROBES[1] - PROBES[0])
            if slope <= 0:  # disturbed
                slope = long.seconds / PROBES[1]
            return [max(0.0, long.seconds - slope * PROBES[1]), slope]

        self._fixed, slope = self.journal.decide("probe", measured)
        self._slopes = {name: slope * cost / self.costs[self.base] for name, cost in self.costs.items()}

    def shorten(self, rates: Sequence[float]) -> tuple[list[str], tuple[float, ...]]:
        """Return the candidates and rates that there is time for, all of them where it is enough.

        Raises:
            ConfigError: there is not even time for `LEAST_CANDIDATES` at one rate.
        """

        def chosen() -> dict[str, object]:
            names, grid = list(self.costs), list(rates)
            while self._first_size(names, grid) < LEAST_UPDATES:
                if len(names) > LEAST_CANDIDATES:
                    names = names[: max(LEAST_CANDIDATES, 2 * len(names) // 3)]
                elif len(grid) > 1:
                    grid = [self.rate]
                else:
                    hours = (
                        self._whole(names, grid, LEAST_UPDATES) / self.n_workers + N_STAGES * _STAGE_SECONDS
                    ) / 3600
                    raise ConfigError(
                        f"--hours is too short: the smallest search ({len(names)} candidates, one learning rate) takes "
                        f"about {hours:.2g} hours here, beside what it has taken so far. Smaller batches "
                        "(data.tokens_per_batch) or models make updates faster"
                    )
            return {"names": names, "rates": grid}

        found = self.journal.decide("trials", chosen)
        return list(found["names"]), tuple(found["rates"])

    def size_of(
        self, stage: int, going_on: Sequence[TrialOutcome], names: Sequence[str], rates: Sequence[float]
    ) -> int:
        """Return the updates of a stage."""
        for one in going_on:
            own = max(1e-9, one.seconds - self._fixed) / one.trial.updates
            self._slopes[one.trial.candidate] = own
        before = self._decided[-1] if self._decided else 1

        def decided() -> int:
            if not going_on:
                return min(self._first_size(names, rates), self._most_of(0))
            return max(before, min(self._later_size(stage, going_on), self._most_of(stage)))

        updates = int(self.journal.decide(f"updates of stage {stage}", decided))
        self._decided.append(updates)
        return updates

    def has_time(self, trials: Sequence[Trial]) -> bool:
        """Return whether there is time for these trials, too."""
        return self._seconds(trials) <= self._left() * self.n_workers

    def seconds_of(self, trial: Trial) -> float:
        """Return about how long a trial takes."""
        return self._fixed + self._slopes[trial.candidate] * trial.updates

    def _seconds(self, trials: Sequence[Trial]) -> float:
        """Return about how long some trials take all workers together; no trial is divided."""
        lengths = [self.seconds_of(trial) for trial in trials]
        return max(sum(lengths), max(lengths) * self.n_workers) + _STAGE_SECONDS * self.n_workers

    def _most_of(self, stage: int) -> int:
        """Return the updates beyond which a stage needs none: the recipe's in the last one, a third before it."""
        return max(1, self.halving.length // int(ETA ** (N_STAGES - 1 - stage)))

    def _left(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def _whole(self, names: Sequence[str], rates: Sequence[float], updates: int) -> float:
        """Return the seconds of the whole search of some candidates, its first stage with so many updates."""
        fixed, slope = self._coefficients(names, rates)
        return fixed + slope * updates

    def _coefficients(self, names: Sequence[str], rates: Sequence[float]) -> tuple[float, float]:
        slopes = [self._slopes[name] for name in names]
        mean = sum(slopes) / len(slopes)
        n_second = max(self.halving.n_final, -(-len(names) // ETA)) + 1
        n_last = self._last_stage(self.halving.n_final + 1)
        n_trainings = len(rates) * len(names) + n_second + n_last
        slope = len(rates) * sum(slopes) + mean * (n_second * ETA + n_last * int(ETA ** (N_STAGES - 1)))
        return n_trainings * self._fixed, slope

    def _last_stage(self, n_candidates: int) -> int:
        """Return how many trainings the last stage takes the time of: seeds are trained one after the other, so that
        workers beyond the candidates wait."""
        return self.halving.n_seeds * self.n_workers * -(-n_candidates // self.n_workers)

    def _first_size(self, names: Sequence[str], rates: Sequence[float]) -> int:
        fixed, slope = self._coefficients(names, rates)
        left = (self._left() - N_STAGES * _STAGE_SECONDS) * self.n_workers
        return int((left - fixed) / slope)

    def _later_size(self, stage: int, going_on: Sequence[TrialOutcome]) -> int:
        """Return the updates for which the rest of the search takes the time that is left."""
        slopes = [self._slopes[one.trial.candidate] for one in going_on]
        is_last = stage + 1 == N_STAGES
        n_last = self._last_stage(len(slopes) if is_last else self.halving.n_final + 1)
        mean = sum(slopes) / len(slopes)
        slope = mean * n_last if is_last else sum(slopes) + mean * n_last * ETA
        n_trainings = n_last if is_last else len(slopes) + n_last
        left = (self._left() - (N_STAGES - stage) * _STAGE_SECONDS) * self.n_workers
        return int((left - n_trainings * self._fixed) / slope)
