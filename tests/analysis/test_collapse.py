from __future__ import annotations

import numpy as np
import pytest

from ostinato.analysis import ClassMoments, effective_rank, representation_collapse
from ostinato.errors import DataError


def clusters(spread: float, n: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three clusters of states in five dimensions."""
    generator = np.random.default_rng(seed)
    classes = np.arange(n) % 3
    return 4 * np.eye(5)[classes] + spread * generator.normal(size=(n, 5)), classes


def by_covariances(states: np.ndarray, classes: np.ndarray) -> float:
    present = sorted(set(classes.tolist()))
    means = {c: states[classes == c].mean(0) for c in present}
    within, between = np.zeros((2, states.shape[1], states.shape[1]))
    for h, c in zip(states, classes.tolist(), strict=True):
        within += np.outer(h - means[c], h - means[c]) / len(states)
    for mean in means.values():
        between += np.outer(mean - states.mean(0), mean - states.mean(0)) / len(present)
    return float(np.trace(within @ np.linalg.pinv(between, rcond=1e-12)))


def test_a_case_by_hand() -> None:
    # Class means -1 and 1, global mean 0: S_B = 1. Within: distances 1 everywhere: S_W = 1.
    assert representation_collapse([[-2.0], [0.0], [0.0], [2.0]], [0, 0, 1, 1]) == pytest.approx(1.0)


@pytest.mark.parametrize("spread", [0.1, 1.0])
def test_it_is_the_trace_of_within_times_inverse_between(spread: float) -> None:
    states, classes = clusters(spread)
    classes[:7] = 2  # classes of different sizes, whose means do not average to the global one
    assert representation_collapse(states, classes) == pytest.approx(by_covariances(states, classes), rel=1e-9)


def test_planted_clusters_are_collapsed_and_mixed_ones_are_not() -> None:
    tight, loose = (representation_collapse(*clusters(spread)) for spread in (0.01, 1.0))
    states, classes = clusters(1.0)
    mixed = representation_collapse(states, np.random.default_rng(1).permutation(classes))
    assert tight < 1e-3 < loose < mixed
    exact = 4.0 * np.eye(3)[[0, 1, 2, 0]]
    assert representation_collapse(exact, [0, 1, 2, 0]) == pytest.approx(0.0, abs=1e-12)


def test_turning_moving_and_scaling_change_nothing() -> None:
    states, classes = clusters(0.5)
    turn, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(5, 5)))
    value = representation_collapse(states, classes)
    assert representation_collapse(-7 * states @ turn + 11, classes) == pytest.approx(value, rel=1e-9)


def test_batches_give_the_exact_value_of_all_states() -> None:
    states, classes = clusters(0.5)
    moments = ClassMoments(8)  # five experts nobody goes to
    for start in range(0, 60, 7):
        moments.add(states[start : start + 7] + 1e5, classes[start : start + 7])
    assert moments.n == 60
    assert moments.collapse() == pytest.approx(by_covariances(states, classes), rel=1e-5)
    centred = states - states.mean(0)
    assert moments.effective_rank() == pytest.approx(effective_rank(np.linalg.svd(centred)[1]), rel=1e-6)


def test_one_class_and_equal_means_have_none() -> None:
    assert np.isnan(representation_collapse([[1.0], [2.0]], [0, 0]))
    assert np.isnan(representation_collapse([[-1.0], [1.0], [-1.0], [1.0]], [0, 0, 1, 1]))
    assert np.isnan(ClassMoments(3).collapse())
    assert np.isnan(ClassMoments(3).effective_rank())


def test_a_class_that_is_none_is_named() -> None:
    with pytest.raises(DataError, match=r"from 0 to 3: must lie in \[0, 3\)"):
        ClassMoments(3).add([[1.0], [2.0]], [0, 3])
