from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_candidates import language_model, seq2seq

from ostinato.errors import ConfigError
from ostinato.evaluation.timing import Effort, Lap, Stopwatch
from ostinato.experiments.timing.environment import cpu_name, versions_of
from ostinato.experiments.timing.latency import Measurement, Timer, TimingPlan, workloads
from ostinato.experiments.timing.workloads import Workload
from ostinato.version import source_commit

DECODING = Workload("decoding", batch_size=2, source_length=3, target_length=10, beam=2)


class _Ticks:
    """A clock on which the calls take 1, 2, 3, ... seconds."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        call = self.readings // 2
        return call * (call + 1) / 2


def test_medians_quartiles_and_speed_are_those_of_the_rounds() -> None:
    laps = tuple(Lap(s, w) for s, w in [(4.0, 0.0), (1.0, 0.0), (2.0, 1.0), (8.0, 0.0), (3.0, 3.0)])
    found = Measurement("a", DECODING, laps)
    assert found.median_s == 3.0
    assert found.quartiles_s == (2.0, 4.0)
    assert (found.n, found.disturbed) == (5, 2)
    assert found.tokens_per_s == pytest.approx(20 / 3.0)
    assert Measurement("a", DECODING, laps[:1]).quartiles_s == (4.0, 4.0)
    row = json.loads(json.dumps(found.row()))
    assert row["workload"] == {
        "kind": "decoding",
        "batch_size": 2,
        "source_length": 3,
        "target_length": 10,
        "beam": 2,
        "cached_rounds": None,
    }
    assert row["seconds"] == [4.0, 1.0, 2.0, 8.0, 3.0]
    assert (row["median_s"], row["low_s"], row["high_s"]) == (3.0, 2.0, 4.0)


def test_models_are_timed_in_turns_workload_by_workload() -> None:
    timer = Timer("cpu", stopwatch=Stopwatch(torch.device("cpu"), _Ticks(), dict))
    passes = Workload("forward", 1, 2, 3)
    plans: list[TimingPlan] = []
    found = list(
        timer.measure([seq2seq(), language_model()], [DECODING, passes], Effort(rounds=2, warmup=1), plans.append)
    )
    assert [(m.name, m.workload.kind, m.seconds) for m in found] == [
        # Calls 1 and 2 warm up; round 1 is calls 3 and 4; round 2 begins with the other model.
        ("seq2seq", "decoding", [3.0, 6.0]),
        ("causal", "decoding", [4.0, 5.0]),
        ("seq2seq", "forward", [9.0, 12.0]),
        ("causal", "forward", [10.0, 11.0]),
    ]
    assert [(plan.workload, plan.rounds, plan.seconds) for plan in plans] == [(DECODING, 2, 6.0), (passes, 2, 30.0)]
    assert str(plans[0]) == "decoding, batch 2, beam 2: 2 rounds, about 6 s"


def test_measuring_uses_its_own_threads_and_leaves_them_and_random_states_as_they_were() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    inside: list[int] = []

    def now() -> float:
        inside.append(torch.get_num_threads())
        return float(len(inside))

    timer = Timer("cpu", threads=1, stopwatch=Stopwatch(torch.device("cpu"), now, dict))
    (found,) = timer.measure([seq2seq()], [Workload("update", 2, 3, 4)], Effort(rounds=1))
    assert found.seconds == [1.0]
    assert inside == [1] * 4
    assert Timer("cpu", threads=threads + 1).environment().threads == threads + 1
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_costs_its_median_for_a_solver() -> None:
    timer = Timer("cpu", stopwatch=Stopwatch(torch.device("cpu"), _Ticks(), dict))
    cost = timer.seconds_of(DECODING, Effort(rounds=3))
    assert cost(seq2seq().model) == 3.0


def test_two_candidates_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="a name of its own"):
        list(Timer("cpu").measure([seq2seq("a"), seq2seq("a")], [DECODING]))


def test_the_environment_names_hardware_and_versions_and_no_machine() -> None:
    environment = Timer("cpu", threads=1).environment()
    assert environment.device == "cpu"
    assert environment.cpu
    assert environment.cores >= 1
    assert environment.threads == 1
    assert environment.torch == torch.__version__
    assert environment.python.startswith("3.")
    assert environment.commit == source_commit()


@pytest.mark.parametrize(
    ("commit", "said"),
    [
        ({"commit": "9d5425dc" * 5}, " at 9d5425dc"),
        ({"commit": "9d5425dc" * 5 + "-dirty"}, " at 9d5425dc, changed"),
        *[({"commit": None}, ""), ({}, "")],
    ],
)
def test_what_was_measured_is_said_by_version_and_commit_where_that_is_known(
    commit: dict[str, str | None], said: str
) -> None:
    software = {"torch": "2.13.0", "python": "3.11.7", "ostinato": "0.2.0"}
    assert versions_of(software | commit) == f"torch 2.13.0, Python 3.11.7, ostinato 0.2.0{said}"


def test_the_processors_name_is_the_systems(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz: x\nprocessor\t: 1\n")
    assert cpu_name(info) == "Some CPU @ 2.0GHz: x"
    assert cpu_name(tmp_path / "none")


def test_updates_come_last_because_they_change_the_weights() -> None:
    found = [str(workload) for workload in workloads([1, 64], [1, 5], 8, 9)]
    assert found == [
        "decoding, batch 1, beam 1",
        "decoding, batch 1, beam 5",
        "decoding, batch 64, beam 1",
        "decoding, batch 64, beam 5",
        "forward, batch 1",
        "forward, batch 64",
        "update, batch 1",
        "update, batch 64",
    ]
