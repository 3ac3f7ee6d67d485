"""How deep tokens went in one batch, as a record, and warnings where all of them go equally deep.

    {stack: {"mean": executed rounds, "expected": sum_r w_r r, "percentiles": {percent: rounds},
             "histogram": [tokens that executed 1, 2, ... rounds],
             "cost": depth cost, "weighted": weight of this update times it}}

All over real tokens (`ostinato.evaluation.depth`). Stacks in which no token can halt, or not yet in this update, are
left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ostinato.data.batch import Batch
from ostinato.evaluation.depth import depth_sums, describe, real_tokens
from ostinato.models.base import TokenModel
from ostinato.models.losses import TokenShares
from ostinato.models.output import ModelOutput
from ostinato.training.routing import Watch

STUCK = 0.95
"""A warning is given where more than this share of a stack's tokens have the least depth, or the greatest."""


@dataclass(frozen=True, slots=True)
class DepthObservation:
    """Depths of one batch: numbers that are still on the device, and what each of them is.

    Args:
        values_V: float32; of every stack its `depth_sums` and its cost, one after the other.
        rounds: of the stacks in which tokens halt, in the order of the values.
        weight: of the cost in this update.
    """

    values_V: Tensor
    rounds: dict[str, int]
    weight: float

    def record(self, values: Sequence[float]) -> dict[str, Any]:
        """Return the record that the values, now on the host, make."""
        left, found = iter(values), dict[str, Any]()
        for stack, n_rounds in self.rounds.items():
            *sums, cost = islice(left, n_rounds + 2)
            found[stack] = describe(sums) | {"cost": cost, "weighted": self.weight * cost}
        return found


@torch.no_grad()
def observe_depth(
    model: TokenModel, output: ModelOutput, batch: Batch, weight: float, shares: TokenShares | None = None
) -> DepthObservation | None:
    """Return the depths of one batch, None where no token halts. This does not wait for the device.

    Args:
        weight: of the cost in this update.
        shares: see `depth_cost`; the values of several processes add up to those of all their tokens.
    """
    values, rounds = [], {}
    for name in model.stacks:
        if not model.current_execution.halting or name not in model.banks.halting:
            continue
        rounds[name] = n_rounds = model.n_rounds()[name]
        found, share = output.stacks.get(name), 1.0 if shares is None else shares[name]
        if found is None or found.depth_cost is None:  # this process has no tokens
            values.append(torch.zeros(n_rounds + 2, device=model.device))
            continue
        sums_BV = depth_sums(found.halting, real_tokens(name, batch), n_rounds)
        values += [sums_BV.sum(0), share * found.depth_cost[None].float()]
    return DepthObservation(torch.cat(values), rounds, weight) if values else None


class DepthWatch(Watch):
    """Warns of stacks whose tokens nearly all have one depth.

    Args:
        advice: of stacks, see `HaltingRuleConfig`; of others there is no warning.
    """

    def __init__(self, warmup: int, advice: Mapping[str, tuple[str, str]]) -> None:
        super().__init__(warmup)
        self._advice = advice

    def _message(self, name: str, found: Mapping[str, Any]) -> str | None:
        histogram: Sequence[int] = found["histogram"]
        n, rounds = sum(histogram), len(histogram)
        if rounds == 1 or not n or name not in self._advice:
            return None
        first, last = histogram[0] / n, histogram[-1] / n
        if_shallow, if_deep = self._advice[name]
        if first > STUCK:
            return f"the {name} halts {100 * first:.0f} % of its tokens after one of {rounds} rounds; {if_shallow}"
        if last > STUCK:
            return f"the {name} runs {100 * last:.0f} % of its tokens through all {rounds} rounds; {if_deep}"
        return None
