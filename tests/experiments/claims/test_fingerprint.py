"""Fingerprints: the same whatever ran before, and others where an arm computes otherwise."""

from __future__ import annotations

import pytest
import torch

from ostinato.experiments.claims.fingerprint import fingerprint, is_alike
from ostinato.tasks.recipes import load_recipe

NAMES = ["algorithmic/reverse-universal", "relay/act", "x-moe/small/x-moe", "digits/transformer"]


@pytest.mark.sampled
@pytest.mark.parametrize("name", NAMES)
def test_a_fingerprint_does_not_depend_on_what_ran_before(name: str) -> None:
    recipe = load_recipe(name, ["model.d_model=32"])
    torch.manual_seed(7)
    first = fingerprint(recipe)
    torch.manual_seed(8)
    before = torch.get_rng_state()
    assert fingerprint(recipe) == first
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "change",
    ["model.decoder.ffn.activation=gelu", "training.optimizer.lr=1e-2", "training.label_smoothing=0.2", "seed=3"],
)
def test_what_an_arm_computes_shows_and_its_seed_does_not(change: str) -> None:
    small = ["model.d_model=32", "training.optimizer.lr=1e-3", "training.schedule.warmup=0"]
    old, new = (
        fingerprint(load_recipe("digits/transformer", small)),
        fingerprint(load_recipe("digits/transformer", [*small, change])),
    )
    assert is_alike(old, new) is change.startswith("seed")


def test_rounding_is_no_change() -> None:
    assert is_alike([1.0, 2.0], [1.0005, 2.0])
    assert not is_alike([1.0, 2.0], [1.005, 2.0])
    assert not is_alike([1.0], [1.0, 2.0])
