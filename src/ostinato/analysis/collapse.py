"""Representation collapse: whether states fall together with the expert they are sent to.

    mu_c = mean of the states of class c (routed to expert c),  mu = mean of all,  C classes that are not empty
    S_W  = 1/S sum_t (h_t - mu_c(t)) (h_t - mu_c(t))^T,         S_B = 1/C sum_c (mu_c - mu) (mu_c - mu)^T
    RC   = Tr(S_W S_B+)                                         X-MoE, figure 2c

Smaller = more collapsed: 0 where every state is its class mean. (NC1 of Zhu et al. 2021, not divided by C.) S_B has
rank C - 1 at most, so only the variance inside the span of the class means counts. Turning, moving and scaling all
states changes nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, matrix, same_rows
from ostinato.analysis.spectrum import effective_rank
from ostinato.errors import DataError

CUT_OFF = 1e-10
"""Singular values of the class means below this part of the greatest count as 0; the result depends on it."""


class ClassMoments:
    """Sums over states by class: collapse and effective rank of all of them exactly, in O(D^2 + C D) memory.

    Args:
        n_classes: E; classes are numbered from 0.
    """

    def __init__(self, n_classes: int) -> None:
        self.counts_C: Floats = np.zeros(n_classes)
        self._shift: Floats | None = None
        self._sums_CD: Floats = np.zeros((n_classes, 0))
        self._products_DD: Floats = np.zeros((0, 0))

    def add(self, states_ND: ArrayLike, classes_N: ArrayLike) -> None:
        """Count states and the class each belongs to.

        Raises:
            DataError: not as many of both, or a class outside [0, n_classes).
        """
        states, classes = matrix("states", states_ND, min_rows=0), np.asarray(classes_N, dtype=np.int64)
        same_rows(states=states, classes=classes)
        if not len(states):
            return
        n_classes = len(self.counts_C)
        if classes.min() < 0 or classes.max() >= n_classes:
            raise DataError(f"classes run from {classes.min()} to {classes.max()}: must lie in [0, {n_classes})")
        if self._shift is None:
            self._shift, D = states.mean(0), states.shape[1]
            self._sums_CD, self._products_DD = np.zeros((n_classes, D)), np.zeros((D, D))
        states = states - self._shift
        self.counts_C += np.bincount(classes, minlength=n_classes)
        self._sums_CD += (classes == np.arange(n_classes)[:, None]).astype(np.float64) @ states
        self._products_DD += states.T @ states

    @property
    def n(self) -> int:
        """States counted."""
        return int(self.counts_C.sum())

    def collapse(self) -> float:
        """Return RC; NaN below two classes, or where all class means are the same."""
        used = self.counts_C > 0
        if used.sum() < 2:
            return float("nan")
        counts, means_CD = self.counts_C[used], self._sums_CD[used] / self.counts_C[used, None]
        mean_D = self._sums_CD.sum(0) / self.n
        within_DD = (self._products_DD - (means_CD * counts[:, None]).T @ means_CD) / self.n
        _, values, directions = np.linalg.svd(means_CD - mean_D, full_matrices=False)
        kept = values > CUT_OFF * values[0]
        # The means may all be the same up to rounding.
        if values[0] <= np.finfo(np.float64).eps * np.sqrt(np.trace(self._products_DD) / self.n):
            return float("nan")
        # With class means less their mean = U diag(values) V^T, S_B+ = C V diag(values^-2) V^T on the kept directions.
        along = np.einsum("kd,de,ke->k", directions[kept], within_DD, directions[kept])
        return float((len(counts) * along.clip(0) / values[kept] ** 2).sum())

    def effective_rank(self) -> float:
        """Return the effective rank of the centred states, see `ostinato.analysis.spectrum`; NaN where none differ."""
        if not self.n:
            return float("nan")
        mean_D = self._sums_CD.sum(0) / self.n
        eigenvalues = np.linalg.eigvalsh(self._products_DD / self.n - np.outer(mean_D, mean_D)).clip(0)
        return effective_rank(np.sqrt(eigenvalues)) if eigenvalues.sum() > 0 else float("nan")


def representation_collapse(states_ND: ArrayLike, classes_N: ArrayLike) -> float:
    """Return RC of states, `[N, D]`, and the expert each is routed to, `[N]`; NaN where there is one class only.

    Raises:
        DataError: not as many of both, or a class below 0.
    """
    classes = np.asarray(classes_N, dtype=np.int64)
    moments = ClassMoments(int(classes.max(initial=0)) + 1)
    moments.add(states_ND, classes)
    return moments.collapse()
