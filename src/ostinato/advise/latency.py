"""How long a candidate takes for a search, or a pass, on this machine: measured for the few that are left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from ostinato.advise.candidates import Candidate
from ostinato.advise.journal import Journal
from ostinato.advise.limits import Limits
from ostinato.errors import OstinatoError
from ostinato.evaluation.timing import Effort
from ostinato.experiments.timing.latency import Timer
from ostinato.experiments.timing.workloads import Workload

LATENCY_EFFORT = Effort(rounds=5, least=3, seconds=5.0)


class Latencies:
    """Measured latencies of candidates that are asked for; each is measured once, and kept.

    Args:
        journal: keeps them. limits: of the budget, its sentence's lengths among them. n_threads, device: of the search.
    """

    def __init__(
        self, journal: Journal, candidates: Sequence[Candidate], limits: Limits, n_threads: int, device: str
    ) -> None:
        self._journal, self._limits, self._n_threads, self._device = journal, limits, n_threads, device
        self._candidates = {one.name: one for one in candidates}

    def known(self) -> dict[str, float]:
        """Return the seconds of those that were measured."""
        found = {name: self._journal.kept(self._place(one)) for name, one in self._candidates.items()}
        return {name: float(seconds) for name, seconds in found.items() if seconds is not None}

    def too_slow(self) -> set[str]:
        """Return which of those that were measured are not as fast as the budget asks."""
        limit = self._limits.latency
        return set() if limit is None else {name for name, seconds in self.known().items() if seconds > limit.seconds}

    def seconds_of(self, name: str) -> float:
        """Return the seconds of one candidate."""
        return float(self._journal.decide(self._place(self._candidates[name]), lambda: self._measure(name)))

    def is_met(self, name: str) -> bool:
        """Return whether a candidate is as fast as the budget asks; True where it asks nothing."""
        return self._limits.latency is None or self.seconds_of(name) <= self._limits.latency.seconds

    def measure(self, names: Iterable[str], deadline: float, say: Callable[[str], None]) -> None:
        """Measure candidates while there is time; what was not asked for may fail."""
        for name in names:
            if time.monotonic() >= deadline:
                return
            try:
                self.seconds_of(name)
            except OstinatoError as error:
                if self._limits.latency is not None:
                    raise
                say(f"{name}: no latency: {error}")

    def _measure(self, name: str) -> float:
        one, limits = self._candidates[name], self._limits
        model, lengths = one.model, (limits.source_length, limits.target_length)
        batch_size = limits.latency.batch_size if limits.latency else 1
        if model.generates:
            kept = one.decoding.cached_rounds
            workload = Workload("decoding", batch_size, *lengths, one.decoding.beam, cached_rounds=kept)
        else:
            workload = Workload("forward", batch_size, *lengths)
        return Timer(self._device, self._n_threads).seconds_of(workload, LATENCY_EFFORT)(model)

    def _place(self, one: Candidate) -> str:
        """Return under which name a candidate's latency is kept.

        Earlier versions kept that of greedy searches, and that of any number of threads, under the name alone.
        """
        beam = one.decoding.beam
        searched = f", beam {beam}" if one.model.generates and beam > 1 else ""
        return f"latency of {one.name}{searched}" + (f", {self._n_threads} threads" if self._n_threads > 1 else "")
