"""Rows drawn in the plane, and how well classes hold together where they are.

PCA     the two directions of the greatest variance: linear, and so a shadow of what is there
UMAP    McInnes et al. 2018, as X-MoE's figure 2 has it: 100 neighbours, min_dist 1, hyperbolic output, here drawn
        in the Poincare disk: a point (x, y) of the hyperboloid goes to (x, y) / (1 + sqrt(1 + x^2 + y^2))
purity  mean share of a row's k nearest neighbours (Euclidean) that are of its own class; rows that know nothing of
        their classes reach sum_c p_c (n p_c - 1) / (n - 1), p_c the share of the rows of a class
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, matrix, same_rows
from ostinato.errors import ConfigError, DataError

HOW_TO_GET_UMAP = "UMAP needs umap-learn: pip install 'ostinato[umap]'"
_NEIGHBOURS, _MIN_DIST = 100, 1.0


def can_umap() -> bool:
    """Return whether umap-learn is installed."""
    return find_spec("umap") is not None


def pca_plane(rows_ND: ArrayLike) -> Floats:
    """Return the two principal components of rows, `[N, 2]`; of one column the second is 0.

    The sign of a component is such that its greatest part in absolute value is positive.
    """
    rows = matrix("rows", rows_ND, min_rows=2)
    centred = rows - rows.mean(0)
    _, _, directions_KD = np.linalg.svd(centred, full_matrices=False)
    found = np.zeros((len(rows), 2))
    for i, direction_D in enumerate(directions_KD[:2]):
        found[:, i] = centred @ direction_D * np.sign(direction_D[np.abs(direction_D).argmax()])
    return found


def umap_plane(rows_ND: ArrayLike, seed: int = 0) -> Floats:
    """Return rows in the Poincare disk, `[N, 2]`, all within radius 1; the same seed gives the same picture.

    Raises:
        ConfigError: umap-learn is not installed. DataError: fewer than 4 rows.
    """
    import warnings

    try:
        from umap import UMAP
    except ImportError as error:
        raise ConfigError(HOW_TO_GET_UMAP) from error
    rows = matrix("rows", rows_ND, min_rows=4)
    with warnings.catch_warnings():  # UMAP warns that a seed means one thread, and about its input
        warnings.simplefilter("ignore")
        reducer = UMAP(
            n_neighbors=min(_NEIGHBOURS, len(rows) - 1),
            min_dist=_MIN_DIST,
            output_metric="hyperboloid",
            random_state=seed,
        )
        found = reducer.fit_transform(rows.astype(np.float32))
    return poincare_disk(found)


def poincare_disk(points_N2: ArrayLike) -> Floats:
    """Return points of the hyperboloid z^2 = 1 + x^2 + y^2, given by x and y, in the Poincare disk, `[N, 2]`."""
    points = matrix("points", points_N2)
    found: Floats = points / (1.0 + np.sqrt(1.0 + (points**2).sum(1, keepdims=True)))
    return found


def class_purity(rows_ND: ArrayLike, classes_N: ArrayLike, k: int = 10) -> tuple[float, float]:
    """Return the purity of classes, and what rows reach that know nothing of them.

    Raises:
        DataError: not as many classes as rows, or k not in [1, rows).
    """
    rows, classes = matrix("rows", rows_ND, min_rows=2), np.asarray(classes_N)
    same_rows(rows=rows, classes=classes)
    n = len(rows)
    if not 1 <= k < n:
        raise DataError(f"k={k} neighbours of {n} rows: must lie in [1, {n - 1}]")
    squares = (rows**2).sum(1)
    distances_NN = squares[:, None] + squares[None] - 2 * rows @ rows.T
    np.fill_diagonal(distances_NN, np.inf)
    nearest_NK = np.argpartition(distances_NN, k - 1, axis=1)[:, :k]
    _, counts = np.unique(classes, return_counts=True)
    chance = float((counts * (counts - 1)).sum() / (n * (n - 1)))
    return float((classes[nearest_NK] == classes[:, None]).mean()), chance
