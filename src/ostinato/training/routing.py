"""What routers did in one batch, as a record: balance losses, load and entropies, of every router and round.

    {router: {"k": experts a token,
              "losses": {name: value}, "weighted": {name: weight times value, where it has a weight},
              "load": [fraction of the choices, an expert each], "load_entropy": nats, "row_entropy": nats, "n_dead": n,
              "temperature": what scores were divided by, of routers that have one (hypersphere),
              "rounds": [{"stack": name, "round": 0-based, and the same numbers of its routings alone}, ...]}}

A round holds all routings of one router in one round of one stack. All losses are means over their rows, but the loss
of a router is not the mean of the losses of its rounds: one round may make up for the imbalance of another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ostinato.config.training import BALANCE_LOSSES, BalanceConfig
from ostinato.models.base import TokenModel
from ostinato.models.losses import balance_weights, raw_balance_loss
from ostinato.models.output import ByRouter
from ostinato.nn import balance
from ostinato.nn.balance import Sum
from ostinato.nn.types import Routing

COLLAPSED = 0.1
"""A router whose load is less even than this has collapsed, see `evenness`."""
DEAD_RECORDS = 5
"""Records in a row without a token after which an expert counts as dead."""

Rounds = Mapping[tuple[str, int], int]
Round = tuple[str, int]


@dataclass(frozen=True, slots=True)
class RoutingObservation:
    """Routings of one batch: numbers that are still on the device, and what each of them is.

    Args:
        values_V: float32, of all groups one after the other.
        groups: router, round (None: all of them), experts in all and a token, in the order of the values.
        weights: by router, of the losses that have one.
    """

    values_V: Tensor
    groups: list[tuple[str, Round | None, int, int]]
    weights: dict[str, dict[str, float]]

    def record(self, values: Sequence[float]) -> dict[str, Any]:
        """Return the record of these values, now on the host; routers and rounds that no row reached are left out."""
        left, found = iter(values), dict[str, Any]()
        for router, where, n_experts, top_k in self.groups:
            total, temperature, *rest = islice(left, 2 + len(BALANCE_LOSSES) + 2 + n_experts)
            if not total:
                continue
            numbers = _describe(rest, self.weights[router])
            if where is None:
                has_one = {} if math.isnan(temperature) else {"temperature": temperature}
                found[router] = {"k": top_k, **numbers, **has_one, "rounds": []}
            else:
                found[router]["rounds"].append({"stack": where[0], "round": where[1], **numbers})
        return found


def rounds_of(model: TokenModel) -> Rounds:
    """Return the 0-based round of every (stack, step) of a model that runs as many rounds as it does now."""
    n_rounds = model.n_rounds()
    plans = {name: stack.plan.with_rounds(n_rounds[name]) for name, stack in model.stacks.items()}
    return {(name, step.index): step.round for name, plan in plans.items() for step in plan.steps}


@torch.no_grad()
def observe_routing(
    routings: ByRouter,
    config: BalanceConfig,
    temperatures: Mapping[str, float],
    rounds: Rounds,
    now: Mapping[str, Tensor],
    all_reduce: Sum = balance.no_reduction,
) -> RoutingObservation | None:
    """Return what the routers did in one batch, None where there are none. This does not wait for the device.

    Args:
        temperatures: tau_0 by router, where the configuration names none. now: the temperatures that scores were
            divided by, of routers that have one.
        all_reduce: adds up over the processes what their rows sum to.
    """
    groups: list[tuple[str, Round | None, int, int]] = []
    values: list[Tensor] = []
    for router, mine in routings.items():
        n_experts, top_k = mine[0].probs_NE.shape[1], mine[0].experts_NK.shape[1]
        tau_0 = config.temperature or temperatures[router]
        by_round: dict[Round | None, list[Routing]] = {None: mine}
        for routing in mine:
            by_round.setdefault((routing.stack, rounds[routing.stack, routing.step]), []).append(routing)
        for where, group in by_round.items():
            rows = balance.JoinedRoutings.of(group, all_reduce, uniform=config.token_weights == "uniform")
            load = balance.load(rows)
            losses = [raw_balance_loss(name, rows, tau_0) for name in BALANCE_LOSSES]
            temperature = now.get(router, torch.full_like(load.total, math.nan)).to(load.total)
            scalars = torch.stack([load.total, temperature, *losses, load.entropy, load.row_entropy])
            groups.append((router, where, n_experts, top_k))
            values.append(torch.cat([scalars, load.fraction_E]).float())
    weights = {router: balance_weights(config, router) for router in routings}
    return RoutingObservation(torch.cat(values), groups, weights) if values else None


def _describe(values: list[float], weights: dict[str, float]) -> dict[str, Any]:
    losses = dict(zip(BALANCE_LOSSES, values, strict=False))
    load_entropy, row_entropy, *load = values[len(BALANCE_LOSSES) :]
    return {
        "losses": losses,
        "weighted": {name: weight * losses[name] for name, weight in weights.items()},
        "load": [round(fraction, 6) for fraction in load],
        "load_entropy": load_entropy,
        "row_entropy": row_entropy,
        "n_dead": load.count(0.0),
    }


def evenness(load_entropy: float, n_experts: int, top_k: int) -> float:
    """Return (H - log k) / (log E - log k), k = top_k: 1 for experts used alike, 0 where all tokens go to the same k.

    Where every token gets every expert (E = k) there is nothing to choose, and the load is even.
    """
    if n_experts <= top_k:
        return 1.0
    return (load_entropy - math.log(top_k)) / (math.log(n_experts) - math.log(top_k))


class Watch(ABC):
    """Warns of routers or stacks, from the records of updates, once each.

    Args:
        warmup: updates to wait.
    """

    def __init__(self, warmup: int) -> None:
        self._warmup = warmup
        self._warned: set[str] = set()

    def warnings(self, update: int, records: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for every router or stack that is warned of now, given its part of a training record by name."""
        if update <= self._warmup:
            return
        for name, found in records.items():
            message = self._message(name, found)
            if message and name not in self._warned:
                self._warned.add(name)
                yield message

    @abstractmethod
    def _message(self, name: str, found: Mapping[str, Any]) -> str | None:
        """Return a warning; it is given every record, also after it has warned."""


class CollapseWatch(Watch):
    """Warns of routers that have collapsed, from the records of updates, once each.

    A router has collapsed where its load's `evenness` is below 0.1 after the warm-up of the learning rate, or where an
    expert got no token in five records in a row after it.
    """

    def __init__(self, warmup: int) -> None:
        super().__init__(warmup)
        self._n_dead_records: dict[str, list[int]] = {}

    def _message(self, name: str, found: Mapping[str, Any]) -> str | None:
        reason = self._collapse(found) or self._dead_experts(name, found["load"])
        return f"router {name} {reason}; the weights of training.balance keep experts in use" if reason else None

    @staticmethod
    def _collapse(found: Mapping[str, Any]) -> str | None:
        n_experts, top_k, entropy = len(found["load"]), found["k"], found["load_entropy"]
        if evenness(entropy, n_experts, top_k) >= COLLAPSED:
            return None
        used = f"in effect it uses {math.exp(entropy):.1f} of {n_experts} experts, and a token gets {top_k}"
        return f"has collapsed: {used} (entropy of its load: {entropy:.2f} nats)"

    def _dead_experts(self, router: str, load: Sequence[float]) -> str | None:
        n_dead_records = self._n_dead_records.setdefault(router, [0] * len(load))
        n_dead_records[:] = [0 if fraction else n + 1 for fraction, n in zip(load, n_dead_records, strict=True)]
        dead = [expert for expert, n in enumerate(n_dead_records) if n >= DEAD_RECORDS]
        if not dead:
            return None
        names = ", ".join(map(str, dead[:8])) + (", ..." if len(dead) > 8 else "")
        return f"has {len(dead)} dead of {len(load)} experts ({names}): no token of {DEAD_RECORDS} records chose them"
