from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from tiny_candidates import language_model, seq2seq
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from ostinato.budget import count_macs, count_parameters
from ostinato.errors import DataError
from ostinato.evaluation.timing import Effort, Lap, Stopwatch
from ostinato.experiments.latency import Laboratory, Measurement
from ostinato.experiments.speed import Arm, Group, Study, conditions, measure_models, row, speed_table, workload_macs
from ostinato.experiments.studies import Size, decoding_study, depth_line, depth_study, line_text
from ostinato.experiments.workloads import Bench, Candidate, Workload
from ostinato.tasks.recipes import load_recipe

CPU = torch.device("cpu")
TINY = Size(d_model=16, n_heads=2, d_ff=24, n_steps=2)


class _Clock:
    """A clock on which every call takes as many seconds as were called before it."""

    def __init__(self) -> None:
        self.readings = 0

    def __call__(self) -> float:
        self.readings += 1
        call = self.readings // 2
        return call * (call + 1) / 2


def _laboratory() -> Laboratory:
    return Laboratory("cpu", stopwatch=Stopwatch(CPU, _Clock(), dict))


@pytest.mark.parametrize(
    "candidate", [seq2seq(), language_model(), language_model("p", "prefix")], ids=lambda c: c.name
)
@pytest.mark.parametrize("kind", ["forward", "decoding"])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_work_of_a_call_is_what_torchs_counter_sees(
    candidate: Candidate, kind: Any, beam: int, monkeypatch: pytest.MonkeyPatch
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


def test_a_study_times_its_groups_one_after_the_other_and_compares_with_the_first_arm() -> None:
    study = decoding_study([1, 2], 2, 3, 4, vocabulary=30, effort=Effort(rounds=2), size=TINY)
    plans: list[str] = []
    rows = [json.loads(json.dumps(r)) for r in study.run(_laboratory(), lambda plan: plans.append(str(plan)))]
    variants = ["baseline", "no-enc", "no-dec", "shared-enc-no-dec", "one-wide"]
    assert [(r["group"], r["workload"]["batch_size"], r["name"]) for r in rows] == [
        *[("encoder-decoder", batch, name) for batch in (1, 2) for name in variants],
        *[("decoder-only", batch, name) for batch in (1, 2) for name in ("baseline", "wide shared-dec")],
    ]
    assert len(plans) == 4
    assert {r["speed"]["baseline"] for r in rows} == {"baseline"}
    one_wide = rows[4]
    assert one_wide["recipe"] == "one-wide-ffn/base/one-wide"
    assert one_wide["stacks"] == {"encoder": {"n_steps": 2, "d_ff": 4 * 24}, "decoder": {"n_steps": 2, "d_ff": None}}
    assert rows[11]["stacks"] == {"decoder": {"n_steps": 2, "d_ff": 2 * 24}}
    assert rows[0]["macs"]["per_generated_token"] > rows[2]["macs"]["per_generated_token"]
    assert one_wide["macs"]["per_source_token"] > rows[0]["macs"]["per_source_token"]
    ratio = [b / a for a, b in zip(one_wide["seconds"], rows[0]["seconds"], strict=True)]
    assert one_wide["speed"]["value"] == pytest.approx(sum(ratio) / 2)
    again = load_recipe(one_wide["recipe"], one_wide["overrides"])
    assert again.model.d_model == 16


def test_a_study_in_the_papers_own_size_is_transformer_base() -> None:
    study = decoding_study([1], 5, 20, 20)
    models = {
        (group.name, arm.name): load_recipe(arm.recipe, arm.overrides).model
        for group in study.groups
        for arm in group.arms
    }
    assert models["encoder-decoder", "baseline"] == load_recipe("one-wide-ffn/base/baseline").model
    wide = models["decoder-only", "wide shared-dec"]
    assert wide.d_model == 512
    (stack,) = wide.stacks().values()
    assert (stack.n_steps, stack.ffn.d_ff, stack.self_attention.n_heads) == (12, 12 * 2048, 8)


def test_the_time_of_a_study_is_shared_by_the_workloads_that_are_left() -> None:
    # A real clock: with no time at all every workload still gets its fewest rounds, and nothing more.
    work = tuple(Workload("forward", b, 3, 4) for b in (1, 2))
    arms = (Arm("a", "demo/transformer"), Arm("b", "demo/universal"))
    none = Study("s", (Group("g", arms, work),), 30, Effort(rounds=9, least=2, seconds=0.0))
    assert [r["n"] for r in none.run(Laboratory("cpu"))] == [2, 2, 2, 2]


def test_update_times_of_a_family_lie_on_a_line_against_depth() -> None:
    study = depth_study(
        "lm/transformer",
        [1, 2, 3, 4, 50],
        batch_size=2,
        length=6,
        vocabulary=30,
        effort=Effort(rounds=2),
        overrides=TINY.overrides(("decoder",)),
    )
    (group,) = study.groups
    assert [arm.name.split(",")[0] for arm in group.arms] == ["n_steps 1", "n_steps 2", "n_steps 3"]
    rows = list(study.run(_laboratory()))
    line = depth_line(rows)
    # Calls 4, 6, 5 and 8, 7, 9: the rounds begin with the first and the second arm.
    assert [r["seconds"] for r in rows] == [[4.0, 8.0], [6.0, 7.0], [5.0, 9.0]]
    assert (line.slope, line.intercept) == pytest.approx((0.5, 5.5))
    largest = max(r["parameters"] for r in rows)
    assert largest - min(r["parameters"] for r in rows) < 0.01 * largest
    text = line_text(line, rows)
    assert text.startswith("update time = 5500.0 ms + 500.00 ms per step")
    assert "from 1 to 3 steps the time is 1.17 times" in text


def test_a_line_needs_two_depths_and_rows_of_its_study() -> None:
    with pytest.raises(DataError, match="1 arms of these depths"):
        depth_study("lm/transformer", [2], 2, 6, vocabulary=30, overrides=TINY.overrides(("decoder",)))
    with pytest.raises(DataError, match="not all of the study update_time_vs_depth"):
        depth_line([{"study": "decoding_speed"}])


def test_the_table_shows_speed_beside_its_baseline_and_says_what_it_was_measured_on() -> None:
    study = decoding_study([1], 2, 3, 4, vocabulary=30, effort=Effort(rounds=2), size=TINY)
    rows = list(study.run(_laboratory()))
    columns, lines = speed_table(rows)
    assert [line[0] for line in lines] == ["encoder-decoder"] * 5 + ["decoder-only"] * 2
    assert speed_table(rows[:5])[0] == columns[1:]
    shown = [dict(zip(columns, line, strict=True)) for line in lines]
    assert [line["model"] for line in shown] == [r["name"] for r in rows]
    assert shown[0]["speed / baseline"] is None
    assert shown[1]["speed / baseline"] == rows[1]["speed"]["value"]
    assert shown[0]["ms"] == round(1e3 * rows[0]["median_s"])
    assert shown[0]["work"] == "decoding, batch 1, beam 2"
    assert conditions(rows[0]).startswith("3 source and 4 target tokens a sentence; ")
    assert f"torch {torch.__version__}" in conditions(rows[0])


def test_models_side_by_side_are_compared_with_the_first_workload_by_workload() -> None:
    bf16 = Candidate("b", seq2seq().model, seq2seq().training.model_copy(update={"precision": "bfloat16"}))
    work = [Workload("decoding", 1, 3, 4), Workload("update", 2, 3, 4)]
    found = measure_models(_laboratory(), [seq2seq("a"), bf16], work, Effort(rounds=1))
    assert list(found) == ["a", "b"]
    assert [r["workload"]["kind"] for r in found["b"]] == ["decoding", "update"]
    assert [r["precision"] for r in found["b"]] == ["float32", "bfloat16"]
    assert [r["speed"]["baseline"] for rows in found.values() for r in rows] == ["a"] * 4
    # Calls 3 and 4, after two for warming up; then 7 and 8.
    assert [r["speed"]["value"] for r in found["b"]] == pytest.approx([3 / 4, 7 / 8])
