from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
import torch
from tiny_candidates import language_model, seq2seq
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ostinato.budget import count_macs, count_parameters
from ostinato.evaluation.timing import Effort, Lap, Stopwatch
from ostinato.experiments.timing.latency import Measurement, Timer
from ostinato.experiments.timing.speed import conditions, measure_models, row, speed_table, workload_macs
from ostinato.experiments.timing.workloads import Bench, TimedModel, Workload

CPU = torch.device("cpu")
TEXTS = [language_model("a"), language_model("b")]


class _Clock:
    """A clock on which every call takes as many seconds as were called before it."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        call = self.readings // 2
        return call * (call + 1) / 2


def _timer() -> Timer:
    return Timer("cpu", stopwatch=Stopwatch(CPU, _Clock(), dict))


@pytest.mark.sampled
@pytest.mark.parametrize(
    "candidate", [seq2seq(), language_model(), language_model("p", "prefix")], ids=lambda c: c.name
)
@pytest.mark.parametrize("kind", ["forward", "decoding"])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_work_of_a_call_is_what_torchs_counter_sees(
    candidate: TimedModel, kind: Any, beam: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("has_packed_products", "library"):  # the counter does not know them
        monkeypatch.setattr(f"ostinato.kernels.packed.{name}", lambda: None)
    workload = Workload(kind, batch_size=3, source_length=5, target_length=8, beam=beam)
    call = Bench(candidate, CPU).call(workload)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        call()
    assert workload_macs(candidate.model, workload)["call"] == pytest.approx(counter.get_total_flops() / 2, rel=0.01)


def test_an_update_costs_three_passes() -> None:
    model = seq2seq().model
    macs = workload_macs(model, Workload("update", 3, 5, 8))
    assert macs["call"] == 3 * 3 * count_macs(model, 5, 8).total
    assert macs["per_source_token"] == count_macs(model, 5, 8).per_source_token


def test_a_row_holds_size_cost_and_speed_against_the_same_rounds() -> None:
    candidate = seq2seq()
    workload = Workload("decoding", 2, 3, 4, beam=2)
    slow = Measurement("slow", workload, tuple(Lap(s) for s in (2.0, 4.0, 6.0)))
    fast = Measurement("fast", workload, tuple(Lap(s) for s in (1.0, 2.0, 2.0)))
    found = json.loads(json.dumps(row(fast, candidate.model, slow)))
    assert found["parameters"] == count_parameters(candidate.model).stored
    assert found["stacks"] == {"encoder": {"n_steps": 1, "d_ff": 12}, "decoder": {"n_steps": 1, "d_ff": 12}}
    assert found["speed"] == {
        "baseline": "slow",
        "value": 2.0,
        "low": 2.0,
        "high": 3.0,
        "n": 3,
        "verdict": "no difference shown",
    }
    assert "speed" not in row(fast, candidate.model)


def test_the_table_shows_speed_beside_its_baseline_and_says_what_it_was_measured_on() -> None:
    timer = _timer()
    environment = asdict(timer.environment())
    rows = [
        row | {"group": group, "environment": environment}
        for group, candidates in {"pairs": [seq2seq("a"), seq2seq("b"), seq2seq("c")], "texts": TEXTS}.items()
        for found in measure_models(timer, candidates, [Workload("decoding", 1, 3, 4, 2)], Effort(rounds=2)).values()
        for row in found
    ]
    columns, lines = speed_table(rows)
    assert [line[0] for line in lines] == ["pairs"] * 3 + ["texts"] * 2
    assert speed_table(rows[:3])[0] == columns[1:]
    shown = [dict(zip(columns, line, strict=True)) for line in lines]
    assert [line["model"] for line in shown] == [r["name"] for r in rows]
    assert shown[0]["speed / baseline"] is None
    assert shown[1]["speed / baseline"] == rows[1]["speed"]["value"]
    assert shown[0]["ms"] == round(1e3 * rows[0]["median_s"])
    assert shown[0]["work"] == "decoding, batch 1, beam 2"
    assert conditions(rows[0]).startswith("3 source and 4 target tokens a sentence; ")
    assert f"torch {torch.__version__}" in conditions(rows[0])


def test_models_side_by_side_are_compared_with_the_first_workload_by_workload() -> None:
    bf16 = TimedModel("b", seq2seq().model, seq2seq().training.model_copy(update={"precision": "bfloat16"}))
    work = [Workload("decoding", 1, 3, 4), Workload("update", 2, 3, 4)]
    found = measure_models(_timer(), [seq2seq("a"), bf16], work, Effort(rounds=1))
    assert list(found) == ["a", "b"]
    assert [r["workload"]["kind"] for r in found["b"]] == ["decoding", "update"]
    assert [r["precision"] for r in found["b"]] == ["float32", "bfloat16"]
    assert [r["speed"]["baseline"] for rows in found.values() for r in rows] == ["a"] * 4
    # Calls 3 and 4, after two for warming up; then 7 and 8.
    assert [r["speed"]["value"] for r in found["b"]] == pytest.approx([3 / 4, 7 / 8])
