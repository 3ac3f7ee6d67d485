"""The demonstration: what its arms differ in, its table, its figure, and what stopping by itself costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from demonstration_rows import rows_of, some_costs
from ostinato.budget import count_budget, count_macs
from ostinato.experiments import demonstration as demo
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.runs import arm_recipe, plan_runs
from ostinato.experiments.sweep.schedule import run_sweep

TINY = [
    *("task.n_train=60", "task.n_eval=4", "training.n_updates=2", "training.evaluate_every=2", "training.save_every=2"),
    *("training.device=cpu", "model.d_model=16", "model.encoder.self_attention.n_heads=2", "model.encoder.ffn.d_ff=16"),
]


def test_the_arms_have_equal_updates_and_data_and_the_budgets_that_they_say() -> None:
    sweep = load_sweep(demo.SWEEP)
    looped, fixed, small, deep = (arm_recipe(sweep, arm, 1) for arm in sweep.arms)
    for other in (fixed, small, deep):
        assert (other.task, other.data, other.evaluation) == (looped.task, looped.data, looped.evaluation)
        same = {"n_updates", "schedule", "round_loss", "evaluate_every"}
        assert other.training.model_dump(include=same) == looped.training.model_dump(include=same)
    models = [one.model.model_copy(update={"vocab_size": 6, "n_labels": 2}) for one in (looped, fixed, small, deep)]
    parameters = [count_budget(model).figure("parameters") for model in models[:3]]
    assert parameters == pytest.approx([parameters[0]] * 3, rel=0.01)
    macs = [count_macs(models[place], 16, 16).total for place in (0, 1, 3)]
    assert macs == pytest.approx([macs[0]] * 3, rel=0.01)
    measured = {measure.name for measure in sweep.measures}
    stars = {line.measure(n).replace(f".{n}", "") for line in demo.LINES for n in (12, 16, 24, 32)}
    assert stars <= measured


def test_the_committed_rows_are_those_of_the_sweep() -> None:
    rows, sweep = demo.committed_rows(), load_sweep(demo.SWEEP)
    assert [(row["arm"], row["seed"]) for row in rows] == [(arm.name, n) for arm in sweep.arms for n in sweep.seeds]
    for line in demo.LINES:
        for bits in demo.lengths(rows):
            assert len(demo.values(rows, line, bits)) == 3


def test_a_cell_gives_this_run_beside_the_committed_seeds() -> None:
    assert demo.cell([0.5], []) == "50.0"
    assert demo.cell([0.5], [0.4, 0.6]) == "50.0 (50.0 ± 14.1)"


def test_the_figure_is_drawn_with_and_without_committed_rows(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for committed in ([], [*rows_of(1), *rows_of(2, 0.6)]):
        files = demo.draw(rows_of(1), committed, some_costs(), tmp_path / "demo")
        text = files[0].read_text(encoding="utf-8")
        assert ("range of 2 seeds" in text) is bool(committed)
        assert all(file.stat().st_size > 10_000 for file in files)


@pytest.mark.slow
def test_costs_are_measured_on_a_run_that_the_sweep_trained(tmp_path: Path) -> None:
    whole = load_sweep(demo.SWEEP)
    sweep = whole.model_copy(update={"seeds": [1], "arms": whole.arms[:1], "overrides": TINY})
    (row,) = run_sweep(sweep, tmp_path)
    (planned,) = plan_runs(sweep, tmp_path)
    found = demo.costs(sweep, row, planned.directory)
    thresholds = {stops: [one.threshold for one in found if one.stops == stops] for stops in ("sequence", "token")}
    assert thresholds["sequence"] == ["0.9", "0.99", "0.999", "0.9999"]
    assert thresholds["token"] == ["0.999", "0.9999", "0.99999", "0.999999"]
    always = [one for one in found if one.stops == "none"]
    assert [one.macs for one in always] == sorted(one.macs for one in always)
    assert all(one.seconds > 0 and 0 <= one.accuracy <= 1 for one in found)
