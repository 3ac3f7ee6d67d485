"""A learning curve continued, with an uncertainty.

Of points (u_i, y_i), i = 1 .. n, with the model

    y(u) = c + a (u / u_n)^-b + e,    e ~ N(0, s^2),    b of a grid

(the power law of Hestness et al. 2017) c and a of every b are those of least squares, with a prior a ~ N(0, t^2) whose
t is ten times the range of the points, so that a line in log u is about as likely as a curve that is flat already. What
the curve comes to is the mean of the predictions of all b, weighted by exp(-RSS_b / (2 s^2)); its variance is that of
the parameters, and of b, and s^2. s is at least `_LEAST_NOISE` of the range of the points, and at least the spread
between seeds where that is known.

Where the best value y* of the metric is known, all this is of log |y - y*|, so that no curve goes beyond it; some b are
then negative: with b = -1 what is left falls exponentially.

A power law knows nothing of a model that has not begun to learn, and of what is left to gain any part may be gained. So
the variance has the term (d log(u / u_n))^2 besides, d being the root mean square of what the same continuation missed
where later points are known (`missed`): curves that fell suddenly once may do so again. Where y* is known d is at least
`_SUDDEN`, which was chosen by one task (digits reversed, docs/advise.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ostinato.advise.trials import Point

_EXPONENTS = np.concatenate([[0.05], np.linspace(0.1, 2.0, 20)])
_OF_LOGS = np.concatenate([np.linspace(-1.0, -0.25, 4), _EXPONENTS])
_LEAST_NOISE = 0.05
_PRIOR = 10.0
_SUDDEN = 0.6
_LEAST_LEFT = 1e-3
_MOST_LOG = 700.0
"""Beyond it exp overflows."""
_HALF = 1.645
"""Standard deviations on either side of a 90 % interval."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What a curve comes to at an update, with a 90 % interval."""

    update: int
    mean: float
    low: float
    high: float

    def within(self, least: float, most: float) -> Expected:
        """Return it for a metric that cannot be beyond these values."""
        mean, low, high = (min(max(value, least), most) for value in (self.mean, self.low, self.high))
        return Expected(self.update, mean, low, high)


def continue_curve(
    points: Sequence[Point], update: int, noise: float = 0.0, best: float | None = None, drift: float = 0.0
) -> Expected:
    """Return what a curve comes to at a later update.

    Args:
        points: one or more, by update. noise: standard deviation between seeds, 0 where it is not known. best: the
            best value of the metric; None: there is none, or the curve is continued as it is. drift: d, see above.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("a curve needs a point")
    last, end = points[-1]
    further = math.log(max(update, last) / last)
    if best is None or end == best:
        mean, sd = _continued(points, update, noise)
        if best is None:  # else d is of logarithms, and nothing is left to gain
            sd = math.hypot(sd, drift * further)
        return Expected(update, mean, mean - _HALF * sd, mean + _HALF * sd)
    logs = [(u, _log_left(y, best)) for u, y in points]
    mean, sd = _continued(logs, update, noise / max(abs(end - best), _LEAST_LEFT), _OF_LOGS)
    sd = math.hypot(sd, max(drift, _SUDDEN) * further)
    middle, *ends = (
        best + math.copysign(math.exp(min(mean + z * sd, _MOST_LOG)), end - best) for z in (0.0, -_HALF, _HALF)
    )
    return Expected(update, middle, min(ends), max(ends))


def missed(points: Sequence[Point], later: Point, best: float | None = None) -> float:
    """Return what the continuation of a curve misses a later point by, a unit of log u.

    Of log |y - y*| where the best value is known, so that it means the same wherever a curve is.
    """
    update, y = later
    mean = continue_curve(points, update, best=best).mean
    miss = y - mean if best is None else _log_left(y, best) - _log_left(mean, best)
    return miss / math.log(update / points[-1][0])


def _log_left(y: float, best: float) -> float:
    return math.log(max(abs(y - best), _LEAST_LEFT))


def _continued(
    points: Sequence[Point], update: int, noise: float, exponents: np.ndarray = _EXPONENTS
) -> tuple[float, float]:
    """Return mean and standard deviation of what a curve comes to by power laws."""
    u = np.array([point[0] for point in points], dtype=np.float64)
    y = np.array([point[1] for point in points], dtype=np.float64)
    spread = float(np.ptp(y))
    # A single point, or none that differs: what more updates bring is not known; they may bring as much as noise does.
    if len(y) < 2 or spread == 0:
        return float(y[-1]), noise
    ratio = max(update, int(u[-1])) / u[-1]
    least = max(noise, _LEAST_NOISE * spread)
    means, variances, misfits = [], [], []
    for b in exponents:
        design = np.stack([np.ones_like(u), (u / u[-1]) ** -b], axis=1)
        precision = design.T @ design / least**2 + np.diag([0.0, (_PRIOR * spread) ** -2])
        covariance = np.linalg.inv(precision)
        weights = covariance @ (design.T @ y) / least**2
        row = np.array([1.0, ratio**-b])
        means.append(float(row @ weights))
        variances.append(float(row @ covariance @ row))
        prior = least**2 * float(weights[1] / (_PRIOR * spread)) ** 2
        misfits.append(float(((y - design @ weights) ** 2).sum()) + prior)
    loss = np.array(misfits) / (2 * least**2)
    likely = np.exp(loss.min() - loss)
    likely /= likely.sum()
    mean = float(likely @ np.array(means))
    between = float(likely @ (np.array(means) - mean) ** 2)
    residual = max(float(likely @ np.array(misfits)) / len(y), least**2)
    return mean, math.sqrt(float(likely @ np.array(variances)) + between + residual)
