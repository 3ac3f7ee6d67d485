from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from ostinato.experiments.timing.workloads import Bench
from ostinato.kernels import packing
from ostinato.nn.compiled import compiled_step
from ostinato.nn.execution import Compaction, Execution

Script = Callable[[str], ModuleType]
CPU = torch.device("cpu")
PHASES = ["encoding", "decoding, batch 1", "decoding, batch 3", "update"]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def small(script: Script, pattern: str = "half") -> Any:
    study = script("halting")
    (cell,) = study.cells(study.arguments(["--quick", "--patterns", pattern]))
    return cell


@pytest.mark.slow
def test_the_halting_study_runs_and_judges_itself_again(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, trace, out = script("halting"), tmp_path / "trace.json", tmp_path / "docs" / "halting"
    trace.write_text('{"encoder": {"histogram": [6, 2]}}')
    given = ["--quick", "--threads", "1", "--patterns", "none", "trace", "--trace", str(trace)]
    study.main([*given, "--out", str(out)])
    rows = rows_of(out.with_suffix(".jsonl"))
    timed = [row for row in rows if row["kind"] == "time"]
    assert {row["cell"]["pattern"] for row in timed} == {"none", "trace"}
    assert list(dict.fromkeys(row["phase"] for row in timed)) == PHASES
    everyone = {"full depth", "auto", "always gathered", "masked", "floor"}
    assert {row["name"] for row in timed if row["cell"]["pattern"] == "trace"} == everyone
    gates = {"ACT, nobody halts", "stick-breaking, nobody halts"}
    assert {row["name"] for row in timed if row["cell"]["pattern"] == "none"} == everyone | gates
    assert all({"median_s", "low_s", "high_s", "environment", "version"} <= row.keys() for row in timed)
    assert {row["kind"] for row in rows} == {"time", "rounds", "verdict"}
    text = out.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out

    again = tmp_path / "again"
    study.main(["--read", str(out.with_suffix(".jsonl")), "--out", str(again)])
    assert rows_of(again.with_suffix(".jsonl")) == rows
    assert again.with_suffix(".md").read_text() == text


def test_every_width_meets_every_pattern_and_a_trace_is_asked_for(script: Script) -> None:
    study = script("halting")
    found = study.cells(study.arguments([]))
    assert [(cell.d_model, cell.pattern) for cell in found] == [
        (width, pattern) for width in (256, 512) for pattern in ("half", "uniform", "early", "none")
    ]
    model = study.candidate(found[-1]).model
    assert {(s.n_steps, s.ffn.d_ff, s.self_attention.n_heads) for s in model.stacks().values()} == {(12, 2048, 8)}
    assert all(plan.is_fully_shared for plan in model.plans().values())
    with pytest.raises(SystemExit, match="the pattern trace needs --trace FILE"):
        study.cells(study.arguments(["--patterns", "trace"]))
    assert study.phases(study.arguments(["--phases", "update", "encoding"])) == ["encoding", "update"]
    with pytest.raises(SystemExit, match="--phases training: must be of encoding, decoding, batch 1, "):
        study.phases(study.arguments(["--phases", "training"]))


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("half", {6: 32, 12: 32}),
        ("early", {2: 43, 12: 21}),
        ("uniform", {1: 5, 2: 6, 3: 5, 4: 5, 5: 6, 6: 5, 7: 5, 8: 6, 9: 5, 10: 5, 11: 6, 12: 5}),
        ("none", {12: 64}),
    ],
)
def test_every_sentence_has_the_depths_of_the_pattern_in_another_order(
    script: Script, pattern: str, expected: dict[int, int]
) -> None:
    found = script("forced_depth").depths(pattern, (3, 64), 12)
    for row in found:
        assert dict(zip(*(x.tolist() for x in row.unique(return_counts=True)), strict=True)) == expected
    assert torch.equal(found, script("forced_depth").depths(pattern, (3, 64), 12))
    assert pattern == "none" or not torch.equal(found[0], found[1])


def test_depths_of_a_trace_are_its_quantiles_spread_over_the_rounds(script: Script) -> None:
    depths = script("forced_depth").depths
    shares = torch.tensor([1.0, 0.0, 2.0, 1.0])
    assert depths("trace", (1, 8), 4, shares_R=shares)[0].sort().values.tolist() == [1, 1, 3, 3, 3, 3, 4, 4]
    assert depths("trace", (1, 4), 12, shares_R=shares)[0].sort().values.tolist() == [3, 9, 9, 12]
    assert depths("trace", (1, 4), 12).tolist() == [[12] * 4]


def test_a_trace_is_read_from_a_run_from_json_and_from_npz(script: Script, tmp_path: Path) -> None:
    read = script("forced_depth").read_trace
    files = {
        "results.json": {"splits": {"dev": {"n": 3}, "test": {"halting": {"encoder": {"histogram": [1, 0, 2]}}}}},
        "depths.json": {"encoder": {"depths": [[3, 1], [3]]}},
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    np.savez(tmp_path / "depths.npz", encoder=np.array([[3, 1, 0], [3, 0, 0]]))
    for name in (*files, "depths.npz"):
        found = read(tmp_path / name)
        assert found.keys() == {"encoder"}
        assert found["encoder"].tolist() == [1, 0, 2]
    (tmp_path / "other.json").write_text('{"splits": {"test": {"n": 3}}}')
    with pytest.raises(SystemExit, match=r"other.json: no depths: expected results.json"):
        read(tmp_path / "other.json")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("pattern", ["half", "uniform", "early"])
def test_gathering_computes_the_rounds_that_are_needed_and_masking_all(
    script: Script, phase: str, pattern: str
) -> None:
    study, cell = script("halting"), small(script, pattern)
    present = list(study.contestants([phase], {}, cell, CPU))
    (row,) = study.more({}, cell, present)
    assert row["computed"] == {"auto": row["needed"], "always gathered": row["needed"], "masked": row["full"]}
    stacks, (n,) = 2 if phase == "update" else 1, {cell.phases[phase]}
    assert row["full"] == stacks * n * cell.length * cell.n_rounds
    assert row["needed"] < row["full"]


def whole_pass(
    bench: Bench, stack: Any, name: str, inputs: dict[str, torch.Tensor], mode: Compaction = "auto"
) -> list[torch.Tensor]:
    """Outputs of a stack over whole sentences, and the gradients of inputs and parameters."""
    leaves = {key: x.clone().requires_grad_() for key, x in inputs.items()}
    memory = leaves["memory"] if name == "decoder" else None
    output = stack(leaves["states"], memory_BSD=memory, execution=Execution(compaction=mode)).states_BTD
    wanted = [leaves["states"], *([] if memory is None else [memory]), *bench.model.banks.parameters()]
    return [output, *torch.autograd.grad(output.square().sum(), wanted, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("name", ["encoder", "decoder"])
@pytest.mark.parametrize("mode", ["always", "never"])
def test_the_floor_computes_what_the_stack_does_of_tokens_in_the_order_of_their_depths(
    script: Script, name: str, mode: Compaction
) -> None:
    study, cell = script("halting"), small(script, "uniform")
    bench = Bench(study.candidate(cell), CPU)
    stack = bench.model.stacks[name]
    generator = torch.Generator().manual_seed(2)
    inputs = {key: torch.randn(3, 8, cell.d_model, generator=generator) for key in ("states", "memory")}
    depths = torch.tensor([4, 4, 3, 3, 2, 2, 1, 1]).expand(3, 8)
    stack.halting = script("forced_depth").ForcedDepths(depths)
    expected = whole_pass(bench, stack, name, inputs, mode)
    found = whole_pass(bench, script("depth_floor").DepthFloor(stack, depths), name, inputs)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    stack.halting = script("forced_depth").ForcedDepths(torch.full((3, 8), 4))
    assert not torch.allclose(whole_pass(bench, stack, name, inputs)[0], found[0], atol=1e-3)


@pytest.mark.parametrize("by_kernels", [False, True])
def test_decoding_at_the_floor_gives_what_the_stack_gives_of_sentences_in_the_order_of_their_depths(
    script: Script, by_kernels: bool
) -> None:
    study, cell = script("halting"), small(script, "uniform")
    bench = Bench(study.candidate(cell), CPU)
    stack = bench.model.stacks["decoder"]
    # Columns of four, two and no sentences that go on; the deepest sentence first.
    depths = torch.tensor([[4, 3, 1, 4], [4, 2, 1, 3], [4, 1, 1, 1]])
    states = torch.randn(4, 3, 1, cell.d_model, generator=torch.Generator().manual_seed(3))
    memory = torch.randn(3, 5, cell.d_model, generator=torch.Generator().manual_seed(4))
    outputs = []
    stack.halting = script("forced_depth").ForcedDepths(depths)
    for runner in (stack, script("depth_floor").DepthFloor(stack, depths)):
        cache = study.Cache(memory_BSD=memory, execution=Execution(compaction="always"))
        with torch.no_grad(), packing(by_kernels):
            outputs.append(torch.stack([compiled_step(runner, column, cache).states_BTD for column in states]))
    torch.testing.assert_close(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


def test_prescribed_depths_freeze_a_token_after_its_rounds(script: Script) -> None:
    study, cell = script("halting"), small(script, "uniform")
    stack = Bench(study.candidate(cell), CPU).model.stacks["encoder"]
    states = torch.randn(1, 1, cell.d_model, generator=torch.Generator().manual_seed(2))
    for rounds in range(1, cell.n_rounds + 1):
        stack.halting = study.NoHalting()
        expected = stack(states, n_rounds=rounds).states_BTD
        stack.halting = script("forced_depth").ForcedDepths(torch.tensor([[rounds]]))
        torch.testing.assert_close(stack(states).states_BTD, expected)


def test_a_stack_of_several_layers_has_no_floor(script: Script) -> None:
    study, cell = script("halting"), small(script)
    config = study.candidate(cell).model
    encoder = config.encoder.model_copy(
        update={"ffn": config.encoder.ffn.model_copy(update={"share": "sequence", "n_unique": 2})}
    )
    candidate = study.TimedModel("several", config.model_copy(update={"encoder": encoder}))
    with pytest.raises(ValueError, match="the same weights once every round"):
        script("depth_floor").DepthFloor(Bench(candidate, CPU).model.stacks["encoder"], torch.ones(1, 1))


def timed(name: str, phase: str, cell: dict[str, Any], seconds: float) -> dict[str, Any]:
    head = {"kind": "time", "phase": phase, "name": name, "cell": cell}
    return head | {"seconds": [seconds] * 6, "is_disturbed": [False] * 6}


def test_targets_are_judged_against_full_depth_and_decoding_against_the_floor(script: Script) -> None:
    study, verdicts = script("halting"), script("halting_report").verdicts
    half, none = (study.Cell(512, pattern).key() for pattern in ("half", "none"))
    rows = [
        timed("full depth", phase, cell, 1.0) for phase in ("encoding", "decoding, batch 32") for cell in (half, none)
    ]
    rows += [timed("auto", "encoding", half, 0.78), timed("auto", "encoding", none, 1.03)]
    rows += [
        timed("auto", "decoding, batch 32", half, 0.9),
        timed("floor", "decoding, batch 32", half, 0.86),
    ]
    found = {verdict.target: verdict for verdict in verdicts([rows])}
    assert found["width 512, half at half depth, encoding: auto / full depth"].word == "holds"
    assert found["width 512, half at half depth, update: auto / full depth"].word == "not measured"
    above = found["width 512, half at half depth, decoding, batch 32: (auto - floor) / full depth"]
    assert (above.measured, above.word) == (pytest.approx(0.04), "holds")
    assert found["width 512, nobody halts, encoding: auto / full depth"].word == "missed"


def test_depth_batching_is_judged_by_the_rounds_that_are_needed(script: Script) -> None:
    study, verdicts = script("halting"), script("halting_report").verdicts
    args = study.arguments(["--widths", "512", "--patterns", "uniform", "--decoded", "1", "8", "64"])
    phases = [f"decoding, batch {n}" for n in (1, 8, 64)]
    assert study.phases(args) == phases
    (cell,) = (one.key() for one in study.cells(args))
    rows = [timed("full depth", phase, cell, 1.0) for phase in phases[:2]]
    rows += [{"kind": "rounds", "phase": phase, "cell": cell, "needed": 54, "full": 100} for phase in phases[:2]]
    rows += [timed("auto", phases[0], cell, 0.67), timed("auto", phases[1], cell, 0.68)]
    found = [verdict for verdict in verdicts([rows]) if "uniform depths" in verdict.target]
    assert [(one.bound, one.word) for one in found] == [(0.54 / 0.8, "holds"), (0.54 / 0.8, "missed")]


def test_runs_of_some_decodings_are_judged_with_those_of_more(script: Script) -> None:
    study, verdicts = script("halting"), script("halting_report").verdicts
    runs = []
    for decoded, seconds in ((("1", "8"), 0.6), (("8",), 0.7), (("8",), 0.8)):
        args = study.arguments(["--widths", "512", "--patterns", "uniform", "--decoded", *decoded])
        (cell,) = (one.key() for one in study.cells(args))
        phases = [f"decoding, batch {n}" for n in decoded]
        run = [timed("full depth", phase, cell, 1.0) for phase in phases]
        run += [timed("auto", phase, cell, seconds) for phase in phases]
        runs.append([*run, *({"kind": "rounds", "phase": p, "cell": cell, "needed": 54, "full": 100} for p in phases)])
    found = [verdict for verdict in verdicts(study.together(runs)) if "uniform depths" in verdict.target]
    assert [one.measured for one in found] == [pytest.approx(0.6), pytest.approx(0.7)]
