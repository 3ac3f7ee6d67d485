"""Which steps of a run are alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from halting_runs import TINY
from ostinato.analysis import analyze as logic
from ostinato.analysis.alike import shared_by_likeness, similarities_of_neighbours, stretches
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train


@pytest.mark.parametrize(
    ("n", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (3, [0, 1, 2, 2]), (4, [0, 1, 2, 3])]
)
def test_a_stack_is_cut_where_neighbours_are_least_alike(n: int, expected: list[int]) -> None:
    assert stretches([0.5, 0.2, 0.9], n) == expected


@pytest.mark.slow
def test_a_step_that_changes_nothing_is_like_the_one_before_it(tmp_path: Path) -> None:
    train(load_recipe("digits/transformer", [*TINY, "model.encoder.n_steps=3"]), tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    (subject,) = logic.subjects([run], None, 24)
    stack = run.model.stacks["encoder"]
    with torch.no_grad():
        for use in stack.plan.steps[1].uses:
            module = getattr(run.model.banks, use.kind)[use.weights]
            for name, parameter in module.named_parameters():
                if name.startswith(("out", "down")):
                    parameter.zero_()
    first, second = similarities_of_neighbours(subject)["encoder"]
    assert first == pytest.approx(1.0)
    assert second < 0.99
    settings, _ = shared_by_likeness(subject, 2)
    assert "model.encoder.ffn.share=[0, 0, 1]" in settings
    with pytest.raises(ConfigError, match="must be from 1 to"):
        shared_by_likeness(subject, 99)
    (few,) = logic.subjects([run], None, 5)
    with pytest.raises(ConfigError, match="5 examples are too few"):
        shared_by_likeness(few, 1)
