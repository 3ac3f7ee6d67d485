"""Balance losses of one batch: one per router, over all the steps and stacks that share it.

Where the rows of a batch are spread over processes, they are losses of all rows; every process must then know the same
routers, also those that none of its rows got to (`complete`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ostinato.config.training import BalanceConfig
from ostinato.models.base import ByRouter, TokenModel
from ostinato.nn import balance
from ostinato.nn.balance import JoinedRoutings, Sum, all_here
from ostinato.nn.types import Routing

LOSSES = ("switch", "hypersphere", "mutual_information", "z", "importance")


def raw_loss(name: str, routings: Sequence[Routing] | JoinedRoutings, temperature: float) -> Tensor:
    """Return one loss of one router; `temperature` is tau_0 of X-MoE's."""
    if name == "hypersphere":
        return balance.hypersphere(routings, temperature)
    loss: Callable[[Sequence[Routing] | JoinedRoutings], Tensor] = getattr(balance, name)
    return loss(routings)


def loss_weights(config: BalanceConfig) -> dict[str, float]:
    """Return the losses that have a weight."""
    return {name: weight for name in LOSSES if (weight := getattr(config, name))}


def complete(routings: ByRouter, model: TokenModel) -> ByRouter:
    """Return the routings behind one without rows for every use of a router, in the order of the model's plans."""
    found: ByRouter = {}
    for nothing in model.no_routings():
        found.setdefault(nothing.router, []).append(nothing)
    return {router: [*mine, *routings.get(router, ())] for router, mine in found.items()}


def balance_loss(
    routings: ByRouter, config: BalanceConfig, temperatures: Mapping[str, float], everywhere: Sum = all_here
) -> Tensor | None:
    """Return the weighted sum over routers and losses; None where no loss has a weight, or nothing is routed.

    Args:
        temperatures: tau_0 by router, where the configuration names none.
        everywhere: adds up what the rows of all processes sum to.
    """
    weights = loss_weights(config)
    total: Tensor | None = None
    for router, mine in routings.items() if weights else ():
        rows, tau_0 = JoinedRoutings.of(mine, everywhere), config.temperature or temperatures[router]
        for name, weight in weights.items():
            loss = weight * raw_loss(name, rows, tau_0)
            total = loss if total is None else total + loss
    return total
