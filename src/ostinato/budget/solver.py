"""The value of a free variable at which a model costs what another one does.

    from ostinato.budget.solver import solve

    solve(config, count_parameters(reference).stored, free="d_ff").config

Costs grow with almost every free variable, so that the search is a bisection over the counting functions themselves;
there is no closed form that could disagree with them. Settings that must divide another one have few values, and larger
ones may cost less (longer rounds have fewer gates): there all of them are counted. Counts are matched by the nearest
integer. What is measured (latency) is noisy: there the search is coarse and stops within a tolerance.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from operator import attrgetter
from typing import Literal

from ostinato.budget.budget import Assumptions, count_budget
from ostinato.budget.free import ROOT, Measure, Setting, free_variable, with_settings
from ostinato.budget.macs import count_macs
from ostinato.budget.parameters import count_parameters
from ostinato.config.model import ModelConfig
from ostinato.errors import ConfigError, Problem, see

Rounding = Literal["nearest", "down"]
"""nearest: the value whose cost is nearest to the target. down: the largest that does not cost more."""

_SEARCHES = 3
_FURTHEST = 6
"""Doublings or halvings from the present value that are measured before a target counts as out of reach."""


class OutOfReach(ConfigError):
    """Even the smallest value of a free variable costs more than the target, or the largest less."""


@dataclass(frozen=True, slots=True)
class Solution:
    """A configuration that was solved for a target.

    Args:
        config: the configuration with the values found.
        free: the free variable as it was asked for.
        values: what was found, by path below ``model``; the leading setting first.
        achieved: what the configuration costs. target: what it should.
    """

    config: ModelConfig
    free: str
    values: dict[str, int]
    achieved: float
    target: float

    @property
    def value(self) -> int:
        """The value of the leading setting."""
        return next(iter(self.values.values()))

    @property
    def residual(self) -> float:
        """What it costs more than the target (less: negative)."""
        return self.achieved - self.target

    def is_within(self, tolerance: float) -> bool:
        """Return whether the cost is the target's within a relative tolerance."""
        return abs(self.residual) <= tolerance * self.target


def stored_parameters(config: ModelConfig) -> int:
    """Return the parameters a model has on disk, as `count_parameters` counts them."""
    return count_parameters(config).stored


def counts(assumed: Assumptions) -> dict[str, Measure]:
    """Return what can be matched by counting, by name.

    parameters, macs, bytes, cache: as `Budget.figure`, for sentences of these lengths. active: parameters that one
    generated token touches. macs_per_generated_token: one token of cached decoding at the end of such a sentence.
    """
    source_length, target_length = assumed.source_length, assumed.target_length
    return {
        "parameters": stored_parameters,
        "active": lambda config: count_parameters(config).active,
        "macs": lambda config: count_macs(config, source_length, target_length).total,
        "macs_per_generated_token": lambda config: count_macs(config, source_length, target_length).per_generated_token,
        "bytes": lambda config: count_budget(config, assumed).figure("bytes"),
        "cache": lambda config: count_budget(config, assumed).figure("cache"),
    }


def solve(
    config: ModelConfig,
    target: float,
    free: str,
    cost: Measure = stored_parameters,
    rounding: Rounding = "nearest",
) -> Solution:
    """Return the configuration whose count is nearest to a target.

    Args:
        config: with its vocabulary sizes set; everything that is not free stays as it is.
        target: what the configuration should cost.
        free: the free variable, see `ostinato.budget.free`.
        cost: a count that grows with the free variable, unless that has a few values only.
        rounding: see `Rounding`; of two equally near values the smaller is taken.

    Raises:
        OutOfReach: no value is small enough; the reason says what is left at the smallest.
        ConfigError: an unknown free variable, or one without an effect.
    """
    variable = free_variable(config, free, cost)
    lead = variable.lead
    at = cache(lambda value: cost(with_settings(config, variable.at(value))))
    if lead.choices:
        value = _best_choice(config, at, lead, target, rounding)
        values = variable.at(value)
        return Solution(with_settings(config, values), free, values, at(value), target)
    # The rest of the configuration may allow no smaller one (a cycle of three sets needs three steps).
    least, present, step = lead.near(0), lead.near(lead.value), lead.multiple
    if not _is_valid(at, least) and _is_valid(at, present):
        _, least = _bisect(least, present, step, lambda value: not _is_valid(at, value))
    best = _best(at, lead, least, target, rounding)
    if best is None:
        reason = f"even the smallest value, {least}, costs {at(least):,}, more than the {target:,} to be matched"
        reason += see("budgets")
        raise OutOfReach([Problem(ROOT + lead.path, lead.value, reason)])
    values = variable.at(best)
    return Solution(with_settings(config, values), free, values, at(best), target)


def _bisect(low: int, high: int, step: int, is_low: Callable[[int], bool]) -> tuple[int, int]:
    """Return two values one step apart, `is_low` of the first and not of the second, as it is of the two given."""
    while high - low > step:
        middle = low + (high - low) // (2 * step) * step
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low, high


def _is_valid(at: Callable[[int], float], value: int) -> bool:
    try:
        at(value)
    except ConfigError:
        return False
    return True


def _best(at: Callable[[int], float], lead: Setting, least: int, target: float, rounding: Rounding) -> int | None:
    """Return the best value, or None where the smallest one costs too much.

    Rounded to the nearest, the smallest value still is the best one where it costs at most half a step too much.
    """
    step = lead.multiple
    if at(least) > target:
        if rounding == "down" or not _is_valid(at, least + step):
            return None
        return least if 2 * (at(least) - target) <= at(least + step) - at(least) else None
    # Double the value until it costs more than the target, or until something forbids it; every setting has a bound.
    low, high = least, max(least + step, lead.near(lead.value))
    while _is_valid(at, high) and at(high) <= target:
        low, high = high, 2 * high
    if not _is_valid(at, high):
        # The largest that is allowed (no more sets than steps, for example) may still cost less than the target.
        high, _ = _bisect(low, high, step, lambda value: _is_valid(at, value))
        if at(high) <= target:
            # It is the best one, unless one more would be nearer (rounded down: would not be too much).
            largest, cost = high, at(high)
            one_more = cost - at(largest - step) if largest > least else 0
            if target - cost <= (one_more / 2 if rounding == "nearest" else one_more):
                return largest
            reason = f"the largest value, {largest}, costs {cost:,}, not {target:,}{see('budgets')}"
            problems = [Problem(ROOT + lead.path, lead.value, reason)]
            try:
                at(largest + step)
            except ConfigError as error:
                problems += error.problems  # what forbids a larger one
            raise OutOfReach(problems)
    low, high = _bisect(low, high, step, lambda value: at(value) <= target)
    return high if rounding == "nearest" and at(high) - target < target - at(low) else low


def _best_choice(
    config: ModelConfig, at: Callable[[int], float], lead: Setting, target: float, rounding: Rounding
) -> int:
    """Return the best of a few values, the smaller of two equally good ones.

    As elsewhere the cheapest and the dearest are the best ones up to half a step beyond them (rounded down: the dearest
    up to a step).

    Raises:
        OutOfReach: the target is further beyond them.
    """
    costs = {value: at(value) for value in lead.choices if _is_valid(at, value)}
    if not costs:
        at(lead.near(lead.value))  # says why
    levels = sorted(set(costs.values()))
    least, most = levels[0], levels[-1]
    below = (levels[1] - least) / 2 if len(levels) > 1 and rounding == "nearest" else 0
    beyond = (most - levels[-2]) / (2 if rounding == "nearest" else 1) if len(levels) > 1 else 0
    if not least - below <= target <= most + beyond:
        is_low = target < least
        value = next(value for value, cost in costs.items() if cost == (least if is_low else most))
        shown = ", ".join(map(str, costs))
        present = attrgetter(lead.divides)(config)
        reason = (
            f"of the values it may have ({shown}, which divide {ROOT}{lead.divides} = {present}) {value} costs the "
        )
        reason += f"least, {least:,}, more than the {target:,}" if is_low else f"most, {most:,}, not {target:,}"
        raise OutOfReach([Problem(ROOT + lead.path, lead.value, reason + see("budgets"))])
    if rounding == "down":
        costs = {value: cost for value, cost in costs.items() if cost <= target}
    return min(costs, key=lambda value: (abs(costs[value] - target), value))


def solve_measured(
    config: ModelConfig,
    target: float,
    free: str,
    measure: Measure,
    *,
    tolerance: float = 0.05,
) -> Solution:
    """Return a configuration whose measured cost is within a tolerance of a target, or as near as measuring came.

    The search starts at the configuration's own value, doubles or halves it until the target lies between two
    measured values, and bisects between them; of a setting with a few choices it measures all. It ends as soon as a
    value lies within `tolerance` of the target. Where neighbouring values are within `tolerance` of each other and none
    is near enough, noise has misled a comparison: the search starts again, up to `_SEARCHES` times, and measures every
    value once more. A value costs the median of all its measurements (of an even number the lower: disturbances only
    make a call slower). The answer is the nearest of all values.

    Args:
        config, target, free: as for `solve`.
        measure: seconds (or the like) of a configuration; grows with the free variable, up to noise.
        tolerance: relative.

    Raises:
        OutOfReach: `_FURTHEST` doublings or halvings do not reach the target.
        ConfigError: an unknown free variable, or one that changes no multiply-accumulates.
    """
    variable = free_variable(config, free, lambda c: count_macs(c, 8, 8).total)
    readings: dict[int, list[float]] = {}

    def distance(value: int) -> float:
        return abs(statistics.median_low(readings[value]) - target)

    value = variable.lead.near(variable.lead.value)
    for search in range(1, _SEARCHES + 1):

        def at(value: int, n_readings: int = search) -> float:
            candidate = with_settings(config, variable.at(value))
            seen = readings.setdefault(value, [])
            while len(seen) < n_readings:
                seen.append(measure(candidate))
            return statistics.median_low(seen)

        value = _search(at, variable.lead, value, target, tolerance)
        if distance(value) <= tolerance * target:
            break
    value = min(readings, key=distance)
    values = variable.at(value)
    return Solution(with_settings(config, values), free, values, statistics.median_low(readings[value]), target)


def _search(at: Callable[[int], float], lead: Setting, start: int, target: float, tolerance: float) -> int:
    """Return the first value within the tolerance of the target, else the nearer end of the last interval; of a few
    choices the start, else the nearest of all."""

    def is_met(value: int) -> bool:
        return abs(at(value) - target) <= tolerance * target

    def out_of_reach(value: int) -> OutOfReach:
        reason = f"costs {at(value):.4g} at {value}, and {target:.4g} is to be matched: out of reach by this setting"
        return OutOfReach([Problem(ROOT + lead.path, lead.value, reason + see("budgets"))])

    if is_met(start):
        return start
    if lead.choices:  # few, and a larger one may cost less
        known = [value for value in lead.choices if _is_valid(at, value)]
        nearest = min(known, key=lambda value: abs(at(value) - target))
        costs = [at(value) for value in known]
        if not is_met(nearest) and not min(costs) <= target <= max(costs):
            raise out_of_reach(nearest)
        return nearest
    value, goes_up = start, at(start) <= target
    for left in range(_FURTHEST, -1, -1):
        if is_met(value):
            return value
        following = lead.above(value) if goes_up else lead.below(value)
        if not left or following == value:
            raise out_of_reach(value)
        if (at(following) > target) == goes_up:
            break
        value = following
    low, high, step = min(value, following), max(value, following), lead.multiple
    while not (is_met(low) or is_met(high)) and high - low > max(step, tolerance * low):
        middle = low + (high - low) // (2 * step) * step
        low, high = (middle, high) if at(middle) <= target else (low, middle)
    return min(low, high, key=lambda value: abs(at(value) - target))
