from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

Script = Callable[[str], ModuleType]


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    torch.manual_seed(0)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def macs(call: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops() // 2


@pytest.mark.slow
def test_the_feed_forward_study_runs_without_peers_and_names_them(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script("moe_peers").importlib.util, "find_spec", lambda name: None)
    out = tmp_path / "docs" / "moe"
    script("moe_ffn").main(["--quick", "--profile", "--threads", "1", "--backends", "loop", "--out", str(out)])
    rows = rows_of(out.with_suffix(".jsonl"))
    timed = [row for row in rows if row["kind"] == "time"]
    wanted = {"study", "cell", "phase", "name", "role", "median_s", "low_s", "high_s", "n", "undisturbed", "seconds"}
    assert all(wanted | {"is_disturbed", "environment", "version", "parameters"} <= row.keys() for row in timed)
    everyone = {
        "dense",
        "dense geglu",
        "limit",
        "limit of experts",
        "ours",
        "ours geglu",
        "ours loop",
        "ours new memory",
    }
    assert {row["name"] for row in timed} == everyone | {"torch grouped_mm"}
    assert {row["phase"] for row in timed} == {"forward", "forward+backward"}
    assert {row["cell"]["routing"] for row in timed} == {"uniform", "zipf"}
    absent = {row["name"]: row["reason"] for row in rows if row["kind"] == "absent"}
    assert absent["HF Mixtral eager"] == "transformers is not installed"
    assert absent["st-moe"] == "st_moe_pytorch is not installed"
    assert {row["kind"] for row in rows} == {"time", "memory", "load", "part", "absent", "verdict"}
    text = out.with_suffix(".md").read_text()
    assert text in capsys.readouterr().out
    assert "mixture-of-experts: mixture_of_experts is not installed" in text

    again = tmp_path / "again"
    script("moe_ffn").main(["--read", str(out.with_suffix(".jsonl")), "--out", str(again)])
    assert rows_of(again.with_suffix(".jsonl")) == rows
    assert again.with_suffix(".md").read_text() == text


@pytest.mark.slow
def test_the_attention_study_runs(script: Script, tmp_path: Path) -> None:
    out = tmp_path / "momha"
    script("momha").main(["--quick", "--threads", "1", "--out", str(out)])
    rows = rows_of(out.with_suffix(".jsonl"))
    names = {(row["name"], row["cell"]["window"]) for row in rows if row["kind"] == "time"}
    everyone = ("dense", "dense, equal parameters", "ours", "loop over experts")
    assert names == {(name, window) for name in everyone for window in (None, 2)} | {("torch MultiheadAttention", None)}
    assert [row["reason"] for row in rows if row["kind"] == "absent"] == ["has no relative positions"]
    assert "Multiply-accumulates of a forward pass" in out.with_suffix(".md").read_text()


def test_studies_measure_every_cell_asked_for(script: Script) -> None:
    study = script("moe_ffn")
    default = study.cells(study.arguments([]))
    assert len([cell for cell in default if cell.routing == "uniform" and cell.n_tokens == 4096]) == 9
    assert [str(cell) for cell in default if cell.routing == "zipf"] == ["8:2", "32:2", "64:2"]
    (few,) = study.cells(study.arguments(["--series", "few"]))
    assert (few.n_tokens, few.batch) == (256, (2, 128))
    some = study.cells(study.arguments(["--cells", "64:4", "--series", "zipf"]))
    assert [(cell.routing, cell.d_ff, cell.d_gated) for cell in some] == [("zipf", 384, 256)]
    assert len(script("momha").studied(script("momha").arguments([]))) == 8


def test_layers_can_be_named_or_left_out(script: Script) -> None:
    study = script("moe_ffn")

    def met(*given: str) -> list[str]:
        args = study.arguments(["--quick", *given])
        return [one.name for one in study.contestants(args, study.cells(args)[0], torch.device("cpu"))]

    assert met("--layers", "ours") == ["dense", "ours"]
    everyone = met()
    assert met("--without", "ours geglu", "HF Mixtral eager") == [
        name for name in everyone if name not in ("ours geglu", "HF Mixtral eager")
    ]


def test_forced_shares_are_uniform_or_fall_with_the_rank(script: Script) -> None:
    routing = script("forced_routing")
    assert torch.equal(routing.shares("uniform", 8, 2), torch.full((8,), 1 / 8, dtype=torch.float64))
    zipf = routing.shares("zipf", 8, 2)
    torch.testing.assert_close(zipf * torch.arange(1, 9), zipf[0].expand(8))
    assert float(zipf.sum()) == pytest.approx(1.0)
    held = routing.shares("zipf", 8, 4)
    assert float(held[0]) == 1 / 4
    torch.testing.assert_close(held[1:] * torch.arange(2, 9), (held[1] * 2).expand(7))
    assert float(held.sum()) == pytest.approx(1.0)
    assert torch.equal(routing.shares("zipf", 3, 3), torch.full((3,), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
@pytest.mark.parametrize(("n_experts", "k"), [(8, 1), (8, 4), (16, 2), (4, 4)])
def test_every_router_chooses_the_prescribed_experts(script: Script, distribution: str, n_experts: int, k: int) -> None:
    layers, routing = script("moe_layers"), script("forced_routing")
    work = layers.make_work(layers.Cell(n_experts, k, distribution, n_tokens=2048, d_model=32, width=48))
    module = layers.our_module(work)
    decision = module.route(work.x_BTD.flatten(0, 1))
    assert torch.equal(decision.experts_NK.sort(1).values, work.experts_NK)
    assert all(len(set(row)) == k for row in work.experts_NK.tolist())
    wanted = routing.shares(distribution, n_experts, k)
    realised = torch.bincount(work.experts_NK.flatten(), minlength=n_experts) / work.experts_NK.numel()
    torch.testing.assert_close(realised.double(), wanted, atol=0.02, rtol=0.0)
    assert work.load()["largest"] == pytest.approx(float(realised.max()))


def test_too_many_experts_for_the_coordinates_are_refused(script: Script) -> None:
    with pytest.raises(ValueError, match="scores of 33 experts do not fit into 32 coordinates"):
        script("forced_routing").router_matrix(33, 32)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_dense_and_sparse_feed_forwards_do_equal_work(script: Script, k: int) -> None:
    layers, contestants = script("moe_layers"), script("layers")
    cell = layers.Cell(8, k, n_tokens=256, d_model=32, width=48)
    work = layers.make_work(cell)
    expected = cell.n_tokens * 2 * cell.d_model * cell.width
    router = cell.n_tokens * cell.d_model * cell.n_experts
    for one in (layers.dense(work), layers.dense(work, "geglu"), layers.limit(work), layers.limit_of_experts(work)):
        assert macs(one.calls[contestants.FORWARD]) == expected
        # Gradients of inputs and of weights are a product each.
        assert macs(one.calls[contestants.BOTH]) == 3 * expected
    combining = cell.n_tokens * k * cell.d_model
    for activation in ("relu", "geglu"):
        one = layers.ours(work, "loop", activation)
        assert macs(one.calls[contestants.FORWARD]) == expected + router + combining


def test_the_attentions_do_the_work_they_say(script: Script) -> None:
    layers = script("attention_layers")
    cell = layers.AttentionCell(8, 2, 2, 8, 3, n_sentences=2, length=16, d_model=32)
    work = layers.attention_work(cell)
    ours = layers.our_attention(work, "loop")
    combining = 2 * 16 * 2 * 32
    assert macs(lambda: ours(work.x_BTD)) == cell.macs() + combining
    for n_heads in (cell.active_heads, cell.equal_heads):
        dense = layers.dense_attention(work, n_heads, "dense")
        assert macs(dense.calls["forward"]) == cell.dense_macs(n_heads)
    inner, width = cell.n_heads * cell.d_head, cell.equal_heads * cell.d_head
    assert 4 * 32 * width == (2 * 8 + 2) * 32 * inner


def test_the_plain_sparse_layer_on_grouped_mm_gives_what_ours_gives(script: Script) -> None:
    layers = script("moe_layers")
    work = layers.make_work(layers.Cell(4, 2, "zipf", n_tokens=64, d_model=32, width=48))
    ours, plain = layers.our_module(work), layers.GroupedFeedForward(work)
    with torch.no_grad():
        plain.up_EDF.copy_(ours.experts.up_EDF)
        plain.down_EFD.copy_(ours.experts.down_EFD)
    outputs = []
    for module, run in (
        (ours, lambda x: ours(x.flatten(0, 1), ours.route(x.flatten(0, 1))).view_as(x)),
        (plain, plain),
    ):
        x = work.x_BTD.clone().requires_grad_()
        y = run(x)
        outputs.append([y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])])
    by_size = [sorted(found, key=lambda tensor: (tensor.shape, tensor.numel())) for found in outputs]
    for mine, theirs in zip(*by_size, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 3])
def test_the_loop_over_experts_gives_what_our_attention_gives(script: Script, window: int | None) -> None:
    layers = script("attention_layers")
    cell = layers.AttentionCell(4, 2, 2, 8, window, n_sentences=3, length=9, d_model=32)
    work = layers.attention_work(cell)
    ours, loop = layers.our_attention(work), layers.LoopAttention(work)
    with torch.no_grad():
        for e in range(cell.n_experts):
            loop.queries[e].weight.copy_(ours.attention.query_EDI[e].t())
            loop.outs[e].weight.copy_(ours.attention.out_EID[e].t())
        loop.kv.weight.copy_(ours.attention.kv.weight)
        if window is not None:
            ours.relation.table_HKR.normal_()
            loop.relation.table_HKR.copy_(ours.relation.table_HKR)
    found = []
    for module, router in ((ours, ours.attention.router.experts_ED), (loop, loop.router_ED)):
        x = work.x_BTD.clone().requires_grad_()
        y = module(x)
        kv = module.attention.kv if module is ours else module.kv
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, router, kv.weight])])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_live_memory_is_the_largest_sum_that_is_not_kept(script: Script) -> None:
    peak_bytes = script("live_memory").peak_bytes
    held: list[torch.Tensor] = []

    def call() -> None:
        held.append(torch.empty(1000))
        first = torch.empty(3000)
        del first
        held.append(torch.empty(2000))

    assert peak_bytes(call, list) == 4 * 4000
    held.clear()
    assert peak_bytes(call, lambda: held[:1]) == 4 * 3000


def test_gradients_of_parameters_do_not_count_as_memory_of_a_pass(script: Script) -> None:
    layers, study, moe = script("layers"), script("layer_study"), script("moe_layers")
    work = moe.make_work(moe.Cell(4, 1, n_tokens=16, d_model=32, width=512))
    one = moe.dense(work)
    memory = study._memory(one)
    assert memory["gradient_bytes"] == 2 * 4 * 32 * 512
    hidden, states = 4 * 16 * 512, 4 * 16 * 32
    assert 2 * hidden <= memory["live_bytes"] <= 4 * hidden + 4 * states
    assert all(parameter.grad is None for parameter in one.parameters)
    assert layers.BOTH in one.calls


def timed(name: str, seconds: list[float], role: str, disturbed: int = 0) -> dict[str, Any]:
    flags = [place < disturbed for place in range(len(seconds))]
    head = {"kind": "time", "phase": "forward+backward", "name": name, "role": role}
    return head | {"seconds": seconds, "is_disturbed": flags}


def test_verdicts_are_medians_over_runs_against_the_best_peer(script: Script) -> None:
    cell = script("moe_layers").Cell(8, 2).key()
    runs = []
    for ours in (1.0, 1.3, 1.1):
        rows = [
            timed("dense", [1.0] * 6, "dense"),
            timed("ours", [ours] * 6, "ours"),
            timed("slow", [3.0] * 6, "peer"),
            timed("fast", [1.0] * 6, "peer"),
            timed("careless", [0.5] * 6, "peer") | {"note": "gated; drops tokens"},
        ]
        runs.append([row | {"cell": cell} for row in rows])
    found = {verdict.target: verdict for verdict in script("moe_report").verdicts(runs)}
    target = found["8:2, forward+backward: ours / dense"]
    assert (target.measured, target.spread, target.word) == (pytest.approx(1.1), "1.00-1.30", "holds")
    (peer,) = [verdict for name, verdict in found.items() if name.endswith("8:2, forward+backward: ours / best peer")]
    assert (peer.measured, peer.note, peer.word) == (pytest.approx(1.1), "fast", "missed")
    less = next(
        one for name, one in found.items() if name.endswith("8:2, forward+backward: ours / best peer that drops tokens")
    )
    assert (less.measured, less.note) == (pytest.approx(2.2), "careless")
    assert found["32:2, forward+backward: ours / dense"].word == "not measured"


def test_ratios_leave_disturbed_rounds_out_and_say_when_few_are_left(script: Script) -> None:
    tables = script("layer_tables")
    dense = timed("dense", [1.0] * 6, "dense")
    found = tables.times(timed("ours", [9.0, 2.0, 2.0, 2.0, 2.0, 2.0], "ours", disturbed=1), dense)
    assert (found.value, str(found)) == (2.0, "2.00")
    found = tables.times(timed("ours", [9.0, 9.0, 2.0, 2.0, 2.0, 2.0], "ours", disturbed=2), dense)
    assert (found.value, str(found)) == (2.0, "2.00*")


def test_a_contestant_that_fails_is_absent_with_what_it_said(script: Script) -> None:
    layers = script("layers")

    def fail() -> None:
        raise RuntimeError("no such kernel\nat line 3")

    work, absent = layers.trial([layers.Contestant("broken", "peer", {"forward": fail})])
    assert work == []
    assert [(one.name, one.reason) for one in absent] == [("broken", "RuntimeError: no such kernel at line 3")]


def test_time_that_a_part_leaves_is_the_later_ones(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = script("layers")
    clock = iter([0.0, 0.0, 2.0])
    monkeypatch.setattr(layers, "monotonic", lambda: next(clock))
    share = layers.Share(script("common").effort(argparse.Namespace(quick=False, rounds=None, minutes=0.2), 9), 2)
    assert [share.next().seconds for _ in range(2)] == [6.0, 10.0]


def test_the_threads_of_other_processes_are_seen_to_wait(script: Script) -> None:
    waits_of_all = script("layer_study").waits_of_all
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        found = waits_of_all()
        assert str(os.getpid()) in found
        assert f"{other.pid}/{other.pid}" in found
        other.communicate(b"\n")
