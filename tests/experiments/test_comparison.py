from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.errors import CheckpointError, ConfigError
from ostinato.experiments.comparison import Arm, Comparison, Measure, Row, summary
from ostinato.experiments.demo import DEMO
from ostinato.experiments.figure import draw
from ostinato.tasks.recipes import load_recipe

TINY = (
    "task.n_train=60",
    "task.n_eval=12",
    "training.n_updates=3",
    "training.evaluate_every=3",
    "training.save_every=3",
    "training.n_threads=1",
)


def tiny(*extra: str) -> Comparison:
    return Comparison(
        name="tiny",
        arms=(Arm("a", "demo/transformer", TINY), Arm("b", "demo/universal", (*TINY, *extra))),
        seeds=(1, 2),
        measures=(Measure("seen", "test", "exact_match"), Measure("longer", "long", "token_accuracy_free")),
        macs_lengths=(10, 10),
    )


def test_every_arm_and_seed_gives_one_row_and_finished_runs_are_read_not_repeated(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    rows = tiny().run(tmp_path, on_row=lambda row: seen.append((row.arm, row.seed)))
    assert seen == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    written = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(line["arm"], line["metrics"]) for line in written] == [(row.arm, row.metrics) for row in rows]
    results = json.loads((tmp_path / "b-seed-2" / "results.json").read_text())
    assert rows[3].metrics["longer"] == results["splits"]["long"]["token_accuracy_free"]
    assert rows[3].parameters == results["parameters"]
    weights = tmp_path / "a-seed-1" / "checkpoints"
    before = {path: path.stat().st_mtime_ns for path in weights.rglob("*")}
    assert tiny().run(tmp_path) == rows
    assert {path: path.stat().st_mtime_ns for path in weights.rglob("*")} == before


def test_a_finished_run_of_another_recipe_is_refused_and_not_reported_as_this_one(tmp_path: Path) -> None:
    tiny().run(tmp_path)
    changed = Comparison("tiny", tiny("training.n_updates=4").arms, (1,), tiny().measures, (10, 10))
    with pytest.raises(CheckpointError, match=r"training\.n_updates: 3 in the run, 4 now"):
        changed.run(tmp_path)


def test_arms_of_different_size_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    comparison = tiny("model.encoder.ffn.d_ff=1024")
    with pytest.raises(ConfigError, match=r"comparison.tiny.arms is .*'a': 235520.*must agree within 1.0%"):
        comparison.run(tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def row(arm: str, seed: int, value: float) -> Row:
    return Row(arm, f"demo/{arm}", seed, 100, 2_000_000, (10, 10), {"score": value}, 1.0)


def test_summary_gives_mean_and_sample_standard_deviation_by_arm() -> None:
    rows = [row("a", 1, 0.5), row("b", 1, 0.25), row("a", 2, 0.7), row("a", 3, 0.9)]
    assert summary(rows) == [
        ("a", {"score": (pytest.approx(0.7), pytest.approx(0.2))}),
        ("b", {"score": (0.25, 0.0)}),
    ]


def test_the_figure_is_written_as_svg_and_png_and_names_its_arms(tmp_path: Path) -> None:
    svg, png = draw([row("alpha", 1, 0.5), row("beta", 1, 0.25)], tmp_path / "figure", title="A title")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in svg.read_text()


def test_the_demonstration_compares_arms_that_differ_in_depth_sharing_only() -> None:
    first, second = (load_recipe(arm.recipe) for arm in DEMO.arms)
    assert (first.task, first.training, first.data) == (second.task, second.training, second.data)
    assert set(second.model.plans()["encoder"].row("ffn")) == {"encoder_0"}
    assert len(DEMO.seeds) == 3
