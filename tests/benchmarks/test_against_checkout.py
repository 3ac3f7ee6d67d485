"""The comparison of two checkouts runs, of this one with itself, and does the work that it names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ostinato.models import build_model

Script = Callable[[str], ModuleType]
CHECKOUT = Path(__file__).parents[2]


def compare_with_itself(script: Script, out: Path, *options: str) -> dict[str, dict[str, Any]]:
    script("against_checkout").main(
        [str(CHECKOUT), "--quick", "--rounds", "2", "--sessions", "1", "--out", str(out), *options]
    )
    rows = [json.loads(line) for line in out.with_suffix(".jsonl").read_text(encoding="utf-8").splitlines()]
    for row in rows:
        assert row["difference"] == 0
        assert row["ratio"]["n"] == row["cpu_ratio"]["n"] == 2
        assert len(row["laps"]["old"]) == len(row["laps"]["new"]) == 2
        assert row["old"] == row["new"]
        assert set(row["old"]) == {"version", "torch", "commit"}
    return {row["name"]: row for row in rows}


@pytest.mark.slow
def test_a_checkout_finds_the_same_numbers_as_itself(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["forward, language model", "decoding 1:5"]
    assert set(compare_with_itself(script, tmp_path / "found", "--only", *names)) == set(names)
    assert "largest difference of the numbers that both found: 0.0e+00" in capsys.readouterr().out


@pytest.mark.slow
def test_every_workload_runs(script: Script, tmp_path: Path) -> None:
    against = script("against_checkout")
    assert set(compare_with_itself(script, tmp_path / "found")) == set(against.workloads(against.quick_sizes()))


def test_what_is_no_checkout_is_named(script: Script, tmp_path: Path) -> None:
    against = script("against_checkout")
    with pytest.raises(SystemExit, match="is no checkout of this project: it has no src/ostinato"):
        against.main([str(tmp_path), "--quick"])
    with pytest.raises(SystemExit, match="2"):
        against.main([str(CHECKOUT), "--quick", "--rounds", "2", "--sessions", "3"])
    with pytest.raises(SystemExit, match="--only decoding: must be of update, dense"):
        against.main([str(CHECKOUT), "--quick", "--only", "decoding"])


def test_a_process_that_fails_ends_the_comparison(script: Script, tmp_path: Path) -> None:
    package = tmp_path / "src" / "ostinato"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('broken')", encoding="utf-8")
    with pytest.raises(SystemExit, match="ended with 1"):
        script("against_checkout").main([str(tmp_path), "--quick", "--new", str(tmp_path)])


def test_differences_are_parts_of_large_numbers(script: Script) -> None:
    difference = script("against_checkout").difference
    assert difference([1.0, 100.0], [1.0, 100.0]) == 0
    assert difference([0.5, 100.0], [0.25, 99.0]) == 0.25
    assert difference([200.0], [100.0]) == 0.5
    assert difference([1.0], [1.0, 2.0]) == float("inf")
    nan, inf = float("nan"), float("inf")
    assert difference([1.0, nan, inf], [1.0, nan, inf]) == 0
    for broken in (nan, inf, -inf):  # wherever it stands
        assert difference([1.0, 2.0], [1.0, broken]) == difference([1.0, 2.0], [broken, 2.0]) == inf
        assert difference([broken, 2.0], [1.0, 2.0]) == inf


@torch.no_grad()
def test_half_of_the_rounds_are_run_where_tokens_halt(script: Script) -> None:
    against = script("against_checkout")
    sizes = against.full_sizes()
    recipe = against.load(against.seq2seq(sizes, share="all", halts=True))
    torch.manual_seed(1)
    output = build_model(recipe.model)(against.random_batch(recipe, sizes["sentences"], sizes["length"]))
    for stack in output.stacks.values():
        depths_BT = stack.halting.executed_BTR.sum(-1)
        assert depths_BT.float().mean() / sizes["n_steps"] == pytest.approx(0.5, abs=0.06)
        assert len(depths_BT.unique()) >= 3
