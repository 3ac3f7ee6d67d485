"""Balance losses of one update: one per router, over all the steps and stacks that share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ostinato.config.training import BalanceConfig
from ostinato.models import ModelOutput
from ostinato.nn import balance
from ostinato.nn.types import Routing

ByRouter = dict[str, list[Routing]]
LOSSES = ("switch", "hypersphere", "mutual_information", "z", "importance")


def by_router(output: ModelOutput) -> ByRouter:
    """Return the routings of a pass by router, in the order they happened."""
    found: ByRouter = {}
    for stack in output.stacks.values():
        for routing in stack.routings:
            found.setdefault(routing.router, []).append(routing)
    return found


def raw_loss(name: str, routings: Sequence[Routing], temperature: float) -> Tensor:
    """Return one loss of one router; `temperature` is tau_0 of X-MoE's."""
    if name == "hypersphere":
        return balance.hypersphere(routings, temperature)
    loss: Callable[[Sequence[Routing]], Tensor] = getattr(balance, name)
    return loss(routings)


def balance_loss(routings: ByRouter, config: BalanceConfig, temperatures: Mapping[str, float]) -> Tensor | None:
    """Return the weighted sum over routers and losses; None where no loss has a weight, or nothing is routed.

    Args:
        temperatures: tau_0 by router, where the configuration names none.
    """
    total: Tensor | None = None
    for router, mine in routings.items():
        tau_0 = config.temperature or temperatures[router]
        for name in LOSSES:
            if weight := getattr(config, name):
                loss = weight * raw_loss(name, mine, tau_0)
                total = loss if total is None else total + loss
    return total
