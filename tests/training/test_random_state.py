from __future__ import annotations

import json
import random

import numpy as np
import torch

from ostinato.training.rng import RandomState, preserved_randomness, seed_everything


def _draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.normal()), torch.randn(()).item()  # noqa: NPY002


def test_a_restored_state_repeats_the_draws_of_all_three_generators_through_json() -> None:
    seed_everything(3)
    _draws()
    state = RandomState.capture()
    expected = [_draws() for _ in range(3)]
    python, numpy = json.loads(json.dumps([state.python, state.numpy]))
    RandomState(python, numpy, state.torch).restore()
    assert [_draws() for _ in range(3)] == expected
    with torch.device("meta"):
        again = RandomState.from_dict(json.loads(json.dumps(state.to_dict())))
    again.restore()
    assert [_draws() for _ in range(3)] == expected


def test_equal_seeds_give_equal_draws_and_others_do_not() -> None:
    found = []
    for seed in (5, 5, 6):
        seed_everything(seed)
        found.append(_draws())
    assert found[0] == found[1]
    assert all(a != b for a, b in zip(found[0], found[2], strict=True))


def test_what_runs_inside_preserved_randomness_leaves_no_trace() -> None:
    seed_everything(1)
    expected = _draws()
    seed_everything(1)
    with preserved_randomness():
        seed_everything(99)
        _draws()
    assert _draws() == expected
