from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ostinato.budget import count_macs
from ostinato.budget.compare import check_match
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
    with pytest.raises(ConfigError) as error:
        comparison.run(tmp_path / "runs")
    line = str(error.value)
    assert line.startswith("comparison.tiny.arms is {'a': '235,520', 'b': '")
    assert "%)'}: their stored parameters must agree within 1.0% of a's" in line
    assert not (tmp_path / "runs").exists()


def test_the_refusal_names_every_arm_with_its_figure_and_its_difference() -> None:
    with pytest.raises(ConfigError) as error:
        check_match("comparison.x.arms", "macs", {"a": 1000, "b": 1009, "c": 1243, "d": 800}, 0.01)
    (problem,) = error.value.problems
    assert problem.value == {"a": "1,000", "b": "1,009 (+0.9 %)", "c": "1,243 (+24.3 %)", "d": "800 (-20.0 %)"}
    check_match("comparison.x.arms", "macs", {"a": 1000, "b": 1010, "c": 990}, 0.01)


@pytest.mark.parametrize(("matched", "word"), [("macs", "multiply-accumulates"), ("bytes", "bytes")])
def test_a_comparison_says_which_budget_is_matched(tmp_path: Path, matched: Any, word: str) -> None:
    # Equal parameters, but the universal arm runs its wider block twice.
    with pytest.raises(ConfigError, match=f"their {word} must agree within 1.0% of a's"):
        replace(tiny(), matched=matched).run(tmp_path / "runs")


def test_a_comparison_that_matches_nothing_takes_arms_of_any_size(tmp_path: Path) -> None:
    comparison = replace(tiny("model.encoder.ffn.d_ff=64"), matched=None, seeds=(1,))
    small, large = comparison.run(tmp_path)
    assert small.parameters != pytest.approx(large.parameters, rel=0.1)


def test_an_arm_that_reads_pairs_as_one_sequence_is_counted_for_both_sides(tmp_path: Path) -> None:
    changes = (*TINY, "model.kind=language_model", "model.d_model=16", "model.decoder.self_attention.n_heads=2")
    comparison = replace(tiny(), arms=(Arm("a", "demo/transformer", changes),), seeds=(1,))
    (found,) = comparison.run(tmp_path)
    assert found.macs == count_macs(load_recipe(tmp_path / "a-seed-1").model, 10, 20).total
    other = replace(comparison, arms=(*comparison.arms, Arm("b", "demo/transformer", TINY)), matched="macs")
    with pytest.raises(ConfigError, match=f"'a': '{found.macs:,}'"):
        other.run(tmp_path / "runs")


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
