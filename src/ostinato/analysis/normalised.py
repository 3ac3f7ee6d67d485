"""Similarity in units of another seed: what a raw number between two models means.

Two runs of one model from different seeds are not alike either. So the similarity of a variant to the baseline is
divided, module by module, by the mean similarity of other seeds to the baseline, and the ratios are averaged:

    s_m = sim(variant_m, baseline_m) / mean_b sim(seed_b,m, baseline_m),        S = mean_m s_m

1 = as alike as another seed; single runs may exceed it. (One Wide FFN, table 5. Its numbers do not follow from the raw
ones of table 9 by one division: modules are normalised first.) The untrained model, treated the same way, is the
lower bound: what the architecture and the tokens alone give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ostinato.analysis.arrays import Floats, matrix
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class Normalised:
    """Similarity of a variant to a baseline, in units of another seed.

    Args:
        by_module_M: ratios. mean: of them. lower: the untrained model's mean ratio, None where none was given.
    """

    by_module_M: Floats
    mean: float
    lower: float | None


def normalise(
    variant_M: Sequence[float], seeds_SM: ArrayLike, untrained_M: Sequence[float] | None = None
) -> Normalised:
    """Return similarities to the baseline in units of another seed's.

    Args:
        variant_M: of the variant's modules to the baseline's. seeds_SM: of those of every other seed.
        untrained_M: of those of an untrained model.

    Raises:
        DataError: other numbers of modules, or a module in which the seeds have nothing in common.
    """
    benchmark_M = matrix("the similarities of other seeds", seeds_SM).mean(0)
    if not (benchmark_M > 0).all():
        raise DataError("other seeds have a module that is not like the baseline's at all: nothing to compare with")
    ratios = [_ratio(values, benchmark_M) for values in (variant_M, untrained_M) if values is not None]
    lower = float(ratios[1].mean()) if len(ratios) > 1 else None
    return Normalised(ratios[0], float(ratios[0].mean()), lower)


def _ratio(values_M: Sequence[float], benchmark_M: Floats) -> Floats:
    values = np.asarray(values_M, dtype=np.float64)
    if values.shape != benchmark_M.shape:
        raise DataError(f"{values.size} modules, but the other seeds have {benchmark_M.size}")
    found: Floats = values / benchmark_M
    return found
