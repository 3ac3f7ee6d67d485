"""The sweep looped/novels-converted from end to end, tiny: a dense model is trained, converted in every way, healed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ostinato.data.disk import read_json_object
from ostinato.experiments.sweep.files import load_sweep, read_sweep_settings
from ostinato.experiments.sweep.runs import plan_runs
from ostinato.experiments.sweep.schedule import run_sweep

NAME = "looped/novels-converted"
TINY = ["model.d_model=16", "model.decoder.self_attention.n_heads=2", "data.block_length=16",
        "data.tokenizer={kind: words}", "data.tokens_per_batch=256", "evaluation.max_examples=4",
        "training.selection.max_examples=4"]  # fmt: skip


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, str]:
    rng = random.Random(1)
    text = "\n".join(" ".join(rng.choice("abcdefgh") for _ in range(12)) for _ in range(120))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    return dict.fromkeys(("text", "held_out", "test"), str(tmp_path / "text.txt"))


def tiny(settings: Any) -> Any:
    """Return settings with feed-forwards of width 16 and updates that are fewer."""
    fewer = {"d_ff": 16, "delta_rank": 2, "evaluate_every": 2, "save_every": 2}
    if isinstance(settings, dict):
        changed = {key: fewer.get(key, tiny(value)) for key, value in settings.items()}
        n_updates = min(2, settings.get("n_updates", 0))
        return changed | {"n_updates": n_updates, "schedule": {"warmup": 1}} if "n_updates" in settings else changed
    return [tiny(one) for one in settings] if isinstance(settings, list) else settings


@pytest.mark.slow
def test_the_dense_runs_are_those_of_the_study_of_novels(inputs: dict[str, str], tmp_path: Path) -> None:
    keys = []
    for name in (NAME, "looped/novels"):
        runs = plan_runs(load_sweep(name, inputs), tmp_path / "store")
        keys.append({run.seed: run.key for run in runs if run.arm == "dense, equal parameters"})
    assert keys[0] == keys[1]
    assert len(keys[0]) == 3


@pytest.mark.slow
def test_every_arm_is_trained_and_measured(inputs: dict[str, str], tmp_path: Path) -> None:
    settings = tiny(read_sweep_settings(NAME))
    settings |= {"seeds": [1], "overrides": [*settings["overrides"], *TINY]}
    for arm in settings["arms"]:
        if "n_updates" not in arm["set"]["training"]:
            arm["set"]["training"] |= {"n_updates": 6, "schedule": {"warmup": 1}, "evaluate_every": 6, "save_every": 6}
    sweep = load_sweep(settings, inputs)
    store = tmp_path / "store"
    rows = {row["arm"]: row for row in run_sweep(sweep, store)}
    assert len(rows) == len(settings["arms"])
    assert all(row["values"]["bits_per_byte"] > 0 for row in rows.values())
    sizes = {arm: row["values"]["parameters"] for arm, row in rows.items()}
    for way in ("average", "stepwise", "average and deltas", "feed-forwards", "scratch of 60 updates"):
        assert (
            sizes[f"{way}, 1 set"]
            < sizes[f"{way}, 2 sets"]
            < sizes[f"{way}, 3 sets"]
            < sizes["dense, equal parameters"]
        )
    cost = {arm: row["values"]["macs"] for arm, row in rows.items()}
    assert cost["average, 1 set"] == cost["stepwise, 3 sets"] == cost["dense, equal parameters"]
    for run in plan_runs(sweep, store):
        if run.start is not None:
            initial = read_json_object(run.directory / "initial.json")
            assert bool(initial["made"]) == (run.arm != "dense, 60 updates more")
            assert not initial["fresh"]
            assert Path(initial["checkpoint"]).parent.parent == run.start.directory.absolute()
