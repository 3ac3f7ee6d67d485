"""Balance losses of one batch: one per router, over all the steps and stacks that share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ostinato.config.training import BalanceConfig
from ostinato.models.output import ByRouter
from ostinato.nn import balance
from ostinato.nn.balance import Rows
from ostinato.nn.types import Routing

LOSSES = ("switch", "hypersphere", "mutual_information", "z", "importance")


def raw_loss(name: str, routings: Sequence[Routing] | Rows, temperature: float) -> Tensor:
    """Return one loss of one router; `temperature` is tau_0 of X-MoE's."""
    if name == "hypersphere":
        return balance.hypersphere(routings, temperature)
    loss: Callable[[Sequence[Routing] | Rows], Tensor] = getattr(balance, name)
    return loss(routings)


def loss_weights(config: BalanceConfig) -> dict[str, float]:
    """Return the losses that have a weight."""
    return {name: weight for name in LOSSES if (weight := getattr(config, name))}


def balance_loss(routings: ByRouter, config: BalanceConfig, temperatures: Mapping[str, float]) -> Tensor | None:
    """Return the weighted sum over routers and losses; None where no loss has a weight, or nothing is routed.

    Args:
        temperatures: tau_0 by router, where the configuration names none.
    """
    weights = loss_weights(config)
    total: Tensor | None = None
    for router, mine in routings.items() if weights else ():
        rows, tau_0 = Rows.of(mine), config.temperature or temperatures[router]
        for name, weight in weights.items():
            loss = weight * raw_loss(name, rows, tau_0)
            total = loss if total is None else total + loss
    return total
