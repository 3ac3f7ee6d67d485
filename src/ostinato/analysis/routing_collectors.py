"""Collectors of routing: loads, tokens by expert, states by expert, first experts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from ostinato.analysis.arrays import Floats, Ints
from ostinato.analysis.capture import CapturedBatch
from ostinato.analysis.collapse import ClassMoments
from ostinato.analysis.collectors import NO_CAPTURES
from ostinato.analysis.routing_measures import NOT_ROUTED
from ostinato.evaluation.routing import RoutingTotals
from ostinato.models.base import ModelOutput
from ostinato.nn.types import Routing, StackOutput


class RouterStep(NamedTuple):
    """A router at one step of a stack."""

    router: str
    stack: str
    step: int

    def __str__(self) -> str:
        return f"{self.router} in step {self.step} of the {self.stack}"


def _routings(captured: CapturedBatch) -> list[tuple[RouterStep, Routing]]:
    found = [routing for stack in captured.output.stacks.values() for routing in stack.routings]
    return [(RouterStep(routing.router, routing.stack, routing.step), routing) for routing in found]


class ExpertTotals:
    """How experts are used, by router and step (`RoutingTotals`), and which tokens go to them, by router and stack.

    Memory: 8 V E bytes a router. A choice counts once, whatever its gate; the totals by step count it by the mass that
    remains.
    """

    request = NO_CAPTURES

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self._vocabulary = vocabulary
        self.totals: dict[RouterStep, RoutingTotals] = {}
        self.tokens: dict[tuple[str, str], Floats] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for at, routing in _routings(captured):
            stack = StackOutput(captured.output.stacks[at.stack].states_BTD, routings=(routing,))
            self.totals.setdefault(at, RoutingTotals()).add(ModelOutput(captured.output.logits_BTV, {at.stack: stack}))
            E, V = routing.probs_NE.shape[1], self._vocabulary[at.stack]
            counts_VE = self.tokens.setdefault((at.router, at.stack), np.zeros((V, E)))
            counted_N = routing.weight_N > 0
            ids_BT = captured.ids(at.stack)
            if ids_BT.ndim == 3:  # A fact is counted under its first token.
                ids_BT = ids_BT[..., 0]
            ids_NK = ids_BT.flatten()[routing.rows_N[counted_N]][:, None]
            cells = (ids_NK * E + routing.experts_NK[counted_N]).flatten()
            counts_VE += torch.bincount(cells, minlength=V * E).view(V, E).cpu().numpy()

    def loads(self) -> dict[str, Floats]:
        """Return by router the choices of every expert, over all stacks and steps, `[E]`."""
        found: dict[str, Floats] = {}
        for (router, _), counts_VE in self.tokens.items():
            found[router] = found.get(router, 0.0) + counts_VE.sum(0)
        return found


class ExpertStates:
    """Sums over the states that enter a router by the first expert they are sent to: exact collapse of all of them.

    Memory: 8 (D^2 + E D) bytes a router and step.
    """

    request = frozenset({"input"})

    def __init__(self) -> None:
        self.moments: dict[RouterStep, ClassMoments] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for at, routing in _routings(captured):
            kind = at.router.split(".", 1)[0]
            states_BTD = captured.output.stacks[at.stack].captures[at.stack, at.step, kind, "input"]
            counted_N = routing.weight_N > 0
            states_ND = states_BTD.flatten(0, 1)[routing.rows_N[counted_N]]
            moments = self.moments.setdefault(at, ClassMoments(routing.probs_NE.shape[1]))
            moments.add(states_ND.double().cpu().numpy(), routing.experts_NK[counted_N, 0].cpu().numpy())


class FirstExperts:
    """The first expert of every real token, by router and step; the same tokens in the same places for every model.

    Memory: 2 bytes a token, router and step.
    """

    request = NO_CAPTURES

    def __init__(self) -> None:
        self._parts: dict[RouterStep, list[Ints]] = {}
        self._missing: dict[str, list[Ints]] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for name in captured.output.stacks:
            n = int(captured.keep(name).sum())
            self._missing.setdefault(name, []).append(np.full(n, NOT_ROUTED, dtype=np.int16))
        for at, routing in _routings(captured):
            keep_BT, counted_N = captured.keep(at.stack), routing.weight_N > 0
            first_M = torch.full((keep_BT.numel(),), NOT_ROUTED, dtype=torch.int16, device=keep_BT.device)
            first_M[routing.rows_N[counted_N]] = routing.experts_NK[counted_N, 0].to(torch.int16)
            # Rounds that did not run in a batch routed no token of it.
            parts = self._parts.setdefault(at, list(self._missing[at.stack][:-1]))
            parts.append(first_M[keep_BT.flatten()].cpu().numpy())
        for at, parts in self._parts.items():
            if len(parts) < len(self._missing[at.stack]):
                parts.append(self._missing[at.stack][-1])

    def experts(self) -> dict[RouterStep, Ints]:
        """Return the numbers of the experts, `NOT_ROUTED` where a token had halted."""
        return {at: np.concatenate(parts) for at, parts in self._parts.items()}


class Sample(NamedTuple):
    """States that entered a router, the first expert of each, and the step it happened in."""

    states_ND: np.ndarray
    experts_N: np.ndarray
    steps_N: np.ndarray


class RoutedSample:
    """A sample of the states that enter a router, by router and stack, with the expert each is first sent to.

    Every routed state of every step has the same chance; the draws are seeded, and the same for the same batches.

    Args:
        n: states kept. Memory: 4 n D bytes a router, and as much again where it projects them.
    """

    request = frozenset({"input"})

    def __init__(self, n: int = 1500, seed: int = 0) -> None:
        self._n, self._rng = n, np.random.default_rng(seed)
        self._keys: dict[tuple[str, str], Floats] = {}
        self._kept: dict[tuple[str, str], Sample] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for at, routing in _routings(captured):
            kind = at.router.split(".", 1)[0]
            states_BTD = captured.output.stacks[at.stack].captures[at.stack, at.step, kind, "input"]
            counted_N = routing.weight_N > 0
            states_ND = states_BTD.flatten(0, 1)[routing.rows_N[counted_N]].float().cpu().numpy()
            experts_N = routing.experts_NK[counted_N, 0].cpu().numpy()
            steps_N = np.full(len(experts_N), at.step)
            self._keep((at.router, at.stack), Sample(states_ND, experts_N, steps_N))

    def _keep(self, key: tuple[str, str], new: Sample) -> None:
        """Keep the rows that drew the smallest numbers: of all that ever came an even sample."""
        draws_N = self._rng.random(len(new[0]))
        if key in self._kept:
            draws_N = np.concatenate([self._keys[key], draws_N])
            old = self._kept[key]
            new = Sample(*(np.concatenate(pair) for pair in zip(old, new, strict=True)))
        order = np.argsort(draws_N, kind="stable")[: self._n]
        self._keys[key] = draws_N[order]
        self._kept[key] = Sample(*(values[order] for values in new))

    def samples(self) -> dict[tuple[str, str], Sample]:
        """Return what was kept, by router and stack."""
        return dict(self._kept)
