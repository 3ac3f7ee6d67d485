"""Routing over the checkpoints of runs, from before training."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from halting_runs import TINY
from ostinato.analysis import analyze as logic
from ostinato.analysis.collectors import RouterStep
from ostinato.analysis.studies import Finding, Subject, routing_stability
from ostinato.analysis.studies.base import OnProgress, untrained
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

FFN = "model.encoder.ffn={kind: experts, n_experts: 4, top_k: 1, d_ff: 16, share: all, gate: {kind: softmax}, router: "
STILL = [
    "training.optimizer.lr=1.0e-12",
    "training.keep_last=3",
    "training.save_every=1",
    "training.n_updates=3",
    "training.log_every=1",
]
N = 24


def finding(subjects: list[Subject]) -> Finding:
    ((_, (found,)),) = logic.survey(subjects, only=["routing-over-time"]).found
    return found


def lines(found: Finding, run: str) -> list[dict[str, object]]:
    rows = [dict(zip(found.columns, row, strict=True)) for row in found.rows]
    return [row for row in rows if row["run"] == run]


@pytest.mark.slow
def test_curves_begin_before_training_and_hold_what_single_checkpoints_hold(given: list[Subject]) -> None:
    found = finding(given)
    (_, (alone,)), (_, (fluctuation,)), (_, (consistency,)) = (
        logic.survey(given[:1], only=["collapse", "fluctuation", "consistency"]).found
        + logic.survey(given, only=["consistency"]).found
    )
    mine = [row for row in lines(found, "first") if row["router"] == "ffn.encoder_0"]
    assert [row["update"] for row in mine] == [0, 1, 2, 3]
    steps = [row[alone.columns.index("RC")] for row in alone.rows if row[0] == "ffn.encoder_0"]
    known = [value for value in steps if not math.isnan(value)]
    assert mine[2]["RF against the next"] == fluctuation.rows[-1][3]
    assert mine[-1]["RF against the next"] is None
    ic = {row[0]: row[2] for row in consistency.rows}
    best = int(given[0].run.checkpoint.name.removeprefix("update-"))
    at_best = next(row for row in mine if row["update"] == best)
    assert at_best["RC"] == pytest.approx(sum(known) / len(known))
    if given[1].run.checkpoint.name == given[0].run.checkpoint.name:
        assert at_best["IC"] == pytest.approx(ic["ffn.encoder_0"])
    assert all(row["IC"] is not None for row in mine)


def test_a_router_that_no_token_reached_at_a_checkpoint_has_no_numbers_of_it(
    given: list[Subject], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = [RouterStep(f"ffn.encoder_{i}", "encoder", i) for i in range(2)]
    load, first = np.array([0.25, 0.75]), np.array([0, 1, 1, 1])

    def moments(subject: Subject, on_progress: OnProgress) -> Iterator[routing_stability._Moment]:
        for update in (0, 5):
            reached = at[: 1 if update and subject is given[0] else 2]
            loads = {step.router: load for step in reached}
            yield routing_stability._Moment(update, {}, dict.fromkeys(reached, first), loads)

    monkeypatch.setattr(routing_stability, "_moments", moments)
    monkeypatch.setattr(routing_stability, "_common_routers", lambda subjects: {step.router for step in at})
    found = finding(given)
    mine = lines(found, "first")
    changes = [row["RF against the last"] for row in mine]
    assert changes == [0.0, None, pytest.approx(math.nan, nan_ok=True), None]
    assert [row["IC"] for row in mine] == [pytest.approx(1.0)] * 3 + [None]
    assert [row["IC"] for row in lines(found, "second")] == [pytest.approx(1.0)] * 3 + [None]
    assert found.draw(False).axes


@pytest.mark.slow
def test_a_run_that_learns_nothing_stays_where_its_seed_put_it(tmp_path: Path) -> None:
    train(
        load_recipe(
            "digits/universal", [*TINY, FFN + "{kind: hypersphere}}", *STILL, "training.log_every=1", "seed=5"]
        ),
        tmp_path / "still",
    )
    (subject,) = logic.subjects([load(tmp_path / "still", device="cpu")], None, N)
    before = untrained(subject.model, subject.run.recipe.seed)
    for one, other in zip(before.parameters(), subject.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=0)
    found = finding([subject])
    mine = lines(found, "still")
    assert [row["update"] for row in mine] == [0, 1, 2, 3]
    assert [row["RF against the last"] for row in mine] == [0.0, 0.0, 0.0, None]
    assert len({round(float(str(row["RC"])), 3) for row in mine}) == 1
    assert "IC" not in found.columns
    assert found.data["temperature"]["still"]["ffn.encoder_0"] == [[update, pytest.approx(0.3)] for update in (1, 2, 3)]
