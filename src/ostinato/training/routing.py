"""What routers did in one batch, as a record: balance losses, load and entropies, of every router and round.

    {router: {"k": experts a token,
              "losses": {name: value}, "weighted": {name: weight times value, where it has a weight},
              "load": [fraction of the choices, an expert each], "load_entropy": nats, "row_entropy": nats, "n_dead": n,
              "rounds": [{"stack": name, "round": 0-based, and the same numbers of its routings alone}, ...]}}

A round holds all routings of one router between two ticks of one stack. All losses are means over their rows, but the
loss of a router is not the mean of its rounds': of several rounds it sees how they balance each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ostinato.config.training import BalanceConfig
from ostinato.models.base import ByRouter, TokenModel
from ostinato.nn import balance
from ostinato.nn.balance import Sum
from ostinato.nn.types import Routing
from ostinato.training.balance import LOSSES, loss_weights, raw_loss

COLLAPSED = 0.1
"""A router whose load is less even than this has collapsed, see `evenness`."""
STAYS_DEAD = 5
"""Records in a row in which no token chose an expert."""

Rounds = Mapping[tuple[str, int], int]
Round = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Observation:
    """Numbers that are still on the device, and what they are.

    Args:
        values_V: float32, of all groups one after the other.
        groups: router, round (None: all of them), experts in all and a token, in the order of the values.
        weights: of the losses that have one.
    """

    values_V: Tensor
    groups: list[tuple[str, Round | None, int, int]]
    weights: dict[str, float]

    def record(self, values: Sequence[float]) -> dict[str, Any]:
        """Return the record that the values, now on the host, make; what no row got to is not in it."""
        left, found = iter(values), dict[str, Any]()
        for router, where, n_experts, k in self.groups:
            total, *rest = islice(left, 1 + len(LOSSES) + 2 + n_experts)
            if not total:
                continue
            numbers = _describe(rest, self.weights)
            if where is None:
                found[router] = {"k": k, **numbers, "rounds": []}
            else:
                found[router]["rounds"].append({"stack": where[0], "round": where[1], **numbers})
        return found


def rounds_of(model: TokenModel) -> Rounds:
    """Return the 0-based round of every (stack, step) of a model that runs its plans as they are."""
    return {(name, step.index): step.round for name, stack in model.stacks.items() for step in stack.plan.steps}


@torch.no_grad()
def observe(
    routings: ByRouter,
    config: BalanceConfig,
    temperatures: Mapping[str, float],
    rounds: Rounds,
    everywhere: Sum = balance.all_here,
) -> Observation | None:
    """Look at the routings of one batch; None where there are none. Nothing waits for the device.

    Args:
        temperatures: tau_0 by router, where the configuration names none.
        everywhere: adds up what the rows of all processes sum to.
    """
    groups: list[tuple[str, Round | None, int, int]] = []
    values: list[Tensor] = []
    for router, mine in routings.items():
        n_experts, k = mine[0].probs_NE.shape[1], mine[0].experts_NK.shape[1]
        for where, group in _groups(mine, rounds):
            groups.append((router, where, n_experts, k))
            values.append(_numbers(group, config.temperature or temperatures[router], everywhere))
    return Observation(torch.cat(values), groups, loss_weights(config)) if values else None


def _groups(routings: list[Routing], rounds: Rounds) -> Iterator[tuple[Round | None, list[Routing]]]:
    """Yield all routings of a router, then those of every round."""
    yield None, routings
    found: dict[Round, list[Routing]] = {}
    for routing in routings:
        found.setdefault((routing.stack, rounds[routing.stack, routing.step]), []).append(routing)
    yield from found.items()


def _numbers(routings: list[Routing], temperature: float, everywhere: Sum) -> Tensor:
    """Return the weight of all rows, losses, entropies and load."""
    rows = balance.JoinedRoutings.of(routings, everywhere)
    load = balance.load(rows)
    losses = [raw_loss(name, rows, temperature) for name in LOSSES]
    return torch.cat([torch.stack([load.total, *losses, load.entropy, load.row_entropy]), load.fraction_E]).float()


def _describe(values: list[float], weights: dict[str, float]) -> dict[str, Any]:
    losses = dict(zip(LOSSES, values, strict=False))
    load_entropy, row_entropy, *load = values[len(LOSSES) :]
    return {
        "losses": losses,
        "weighted": {name: weight * losses[name] for name, weight in weights.items()},
        "load": [round(fraction, 6) for fraction in load],
        "load_entropy": load_entropy,
        "row_entropy": row_entropy,
        "n_dead": load.count(0.0),
    }


def evenness(load_entropy: float, n_experts: int, k: int) -> float:
    """Return (H - log k) / (log E - log k): 1 where experts are used alike, 0 where all tokens go to the same k.

    Where every token gets every expert (E = k) there is nothing to choose, and the load is even.
    """
    if n_experts <= k:
        return 1.0
    return (load_entropy - math.log(k)) / (math.log(n_experts) - math.log(k))


class CollapseWatch:
    """Finds routers that have collapsed, from the records of updates; each is named once.

    A router has collapsed where its load's `evenness` is below 0.1 after the warm-up of the learning rate, or where an
    expert got no token in five records in a row after it.

    Args:
        warmup: updates to wait.
    """

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._named: set[str] = set()
        self._dead: dict[str, list[int]] = {}

    def warnings(self, update: int, routing: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for every router that is found now, given the `routing` of a training record."""
        if update <= self._warmup:
            return
        for router, found in routing.items():
            reason = self._collapse(found) or self._stays_dead(router, found["load"])
            if reason and router not in self._named:
                self._named.add(router)
                yield f"router {router} {reason}; the weights of training.balance keep experts in use"

    @staticmethod
    def _collapse(found: Mapping[str, Any]) -> str | None:
        n_experts, k, entropy = len(found["load"]), found["k"], found["load_entropy"]
        if evenness(entropy, n_experts, k) >= COLLAPSED:
            return None
        used = f"in effect it uses {math.exp(entropy):.1f} of {n_experts} experts, and a token gets {k}"
        return f"has collapsed: {used} (entropy of its load: {entropy:.2f} nats)"

    def _stays_dead(self, router: str, load: Sequence[float]) -> str | None:
        times = self._dead.setdefault(router, [0] * len(load))
        times[:] = [0 if fraction else n + 1 for fraction, n in zip(load, times, strict=True)]
        dead = [expert for expert, n in enumerate(times) if n >= STAYS_DEAD]
        if not dead:
            return None
        names = ", ".join(map(str, dead[:8])) + (", ..." if len(dead) > 8 else "")
        return f"has {len(dead)} dead of {len(load)} experts ({names}): no token of {STAYS_DEAD} records chose them"
