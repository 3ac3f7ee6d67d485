from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from ostinato.advise.candidates import make_candidates
from ostinato.advise.journal import Journal
from ostinato.advise.latency import Latencies
from ostinato.advise.limits import LatencyLimit, Limits
from ostinato.config.space import AxisConfig, LevelConfig, SpaceConfig
from ostinato.experiments.timing.workloads import Workload

LEVELS = [
    LevelConfig(name="one round", set={"decoding.cached_rounds": 1}),
    LevelConfig(name="wide", set={"decoding.beam": 8}),
]
SPACE = SpaceConfig(name="x", axes=[AxisConfig(name="search", levels=LEVELS)])


def test_a_search_keeps_as_many_rounds_and_hypotheses_as_the_candidate_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Workload] = []

    def measure(timer: object, models: object, workloads: list[Workload], effort: object) -> list[SimpleNamespace]:
        seen.extend(workloads)
        return [SimpleNamespace(median_s=1.0)]

    monkeypatch.setattr("ostinato.advise.latency.Timer.measure", measure)
    limits = Limits(latency=LatencyLimit(1.0, 3), source_length=5, target_length=7)
    settings = ["model.vocab_size=100", "decoding.cached_rounds=2", "decoding.strategy=beam", "decoding.beam=4"]
    found = make_candidates("looped/novels", settings, SPACE, limits)
    clock = Latencies(Journal(tmp_path, {}), found.found, found.limits, 1, "cpu")
    assert [clock.seconds_of(one.name) for one in found.found] == [1.0, 1.0, 1.0]
    kept = [(4, 2), (4, 1), (8, 2)]
    assert seen == [Workload("decoding", 3, 0, 7, beam, cached_rounds=rounds) for beam, rounds in kept]


def test_a_latency_that_an_earlier_version_kept_of_a_greedy_search_is_not_that_of_a_beam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.advise.latency.Timer.measure", lambda *given: [SimpleNamespace(median_s=2.0)])
    limits = Limits(latency=LatencyLimit(1.0, 3), source_length=5, target_length=7)
    settings = ["model.vocab_size=100", "decoding.strategy=beam", "decoding.beam=4"]
    found = make_candidates("looped/novels", settings, SPACE, limits)
    journal, first = Journal(tmp_path, {}), found.found[0].name
    journal.decide(f"latency of {first}", lambda: 0.5)
    clock = Latencies(journal, found.found, found.limits, 1, "cpu")
    assert first not in clock.known()
    assert clock.seconds_of(first) == clock.known()[first] == 2.0


def test_what_was_measured_with_other_threads_is_measured_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Latencies, "_measure", lambda clock, name: 4.0 / clock._n_threads)
    found = make_candidates("looped/novels", ["model.vocab_size=100"], SPACE, Limits(latency=LatencyLimit(1.5)))
    first, journal = found.found[0].name, Journal(tmp_path, {})
    one, four = (Latencies(journal, found.found, found.limits, n, "cpu") for n in (1, 4))
    assert [clock.seconds_of(first) for clock in (one, four, one)] == [4.0, 1.0, 4.0]
    assert (one.too_slow(), four.too_slow()) == ({first}, set())
