"""Collectors of scores, states, attention weights, depths and routing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ostinato.analysis.arrays import Floats, Ints
from ostinato.analysis.capture import CapturedBatch, Collector
from ostinato.analysis.collapse import ClassMoments
from ostinato.analysis.maps import attention_entropy, mass_on
from ostinato.analysis.routing_measures import NOT_ROUTED
from ostinato.budget import MacCounter
from ostinato.evaluation.depth import DepthTotals, sentence_depths
from ostinato.evaluation.passes import sentence_macs
from ostinato.evaluation.routing import RoutingTotals, routing_sums
from ostinato.evaluation.scores import score_sentences
from ostinato.models.build import Model
from ostinato.nn.loops import state_that_leaves
from ostinato.nn.types import Routing

SHORT = {"self_attention": "sa", "cross_attention": "ca", "ffn": "ffn"}


class SubLayerKey(NamedTuple):
    """One sub-layer at one step of a stack."""

    stack: str
    step: int
    kind: str

    def __str__(self) -> str:
        return f"{self.step}.{SHORT[self.kind]}"


def sub_layers(model: Model) -> Iterator[tuple[SubLayerKey, int]]:
    """Yield every sub-layer of every step in the order they run, and its 0-based round."""
    for name, stack in model.stacks.items():
        for step in stack.plan.steps:
            for use in step.uses:
                yield SubLayerKey(name, step.index, use.kind), step.round


class SentenceVectors(Collector):
    """Mean over a sentence's real tokens of every sub-layer's output, before and after the residual; `[n, D]` each.

    A token that has halted is frozen: after the residual it counts with the state it halted in, before it with zero,
    which is what the sub-layer adds to it. Where a router weighs what a round makes, what its last sub-layer leaves is
    the state that leaves the round.

    Args:
        n: sentences. Memory: 8 n D bytes a sub-layer, whatever their lengths.
    """

    request = frozenset({"output", "residual", "rounds"})

    def __init__(self, n: int) -> None:
        self._n = n
        self.before: dict[SubLayerKey, Floats] = {}
        self.after: dict[SubLayerKey, Floats] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        last: dict[str, Tensor] = {}
        places = np.asarray(captured.batch.indices)
        ends = {
            SubLayerKey(name, step.index, step.uses[-1].kind)
            for name, stack in captured.model.stacks.items()
            if stack.halting.chooses_tokens
            for *_, step in stack.plan.loop.rounds()
            if step.uses
        }
        for module, round_ in sub_layers(captured.model):
            ran_BT1 = captured.ran(module.stack, round_)[..., None]
            captures = captured.output.stacks[module.stack].captures
            output, residual = (captures.get((*module, what)) for what in ("output", "residual"))
            if residual is None or output is None:  # The round did not run: all tokens have halted.
                states_BTD, added_BTD = last[module.stack], torch.zeros_like(last[module.stack])
            else:
                before_BTD = last.get(module.stack, residual)
                states_BTD = torch.where(ran_BT1, residual, before_BTD)
                added_BTD = torch.where(ran_BT1, output, 0.0)
            if module in ends and round_ < len(left := captured.output.stacks[module.stack].left):
                states_BTD = state_that_leaves(captured.model.stacks[module.stack].plan.loop, left[round_])
            last[module.stack] = states_BTD
            keep_BT = captured.keep(module.stack)
            for kept, values_BTD in ((self.before, added_BTD), (self.after, states_BTD)):
                keep_BT1 = keep_BT[..., None]
                means_BD = torch.where(keep_BT1, values_BTD, 0.0).sum(1).float() / keep_BT1.sum(1)
                if module not in kept:
                    kept[module] = np.zeros((self._n, means_BD.shape[1]), dtype=np.float32)
                kept[module][places] = means_BD.cpu().numpy()


@dataclass(slots=True)
class AttentionSums:
    """Of one sub-layer: sums over its n queries, by head; marked_H over the n_marked ones whose example has marks."""

    entropy_H: Floats
    own_H: Floats
    first_H: Floats
    last_H: Floats
    marked_H: Floats
    n: int = 0
    n_marked: int = 0


class AttentionTotals(Collector):
    """Entropy of the weights and their mass on some keys, by sub-layer and head, over all queries that took part.

    Keys: the token itself (self-attention), the first one, and the last one (the end symbol of a source); of a source
    also those that are marked, by queries whose example has marks. Where attention has experts, means over those a
    token chose.

    Args:
        marks: marked places of the encoder, by number of the example.
    """

    request = frozenset({"weights"})

    def __init__(self, marks: Mapping[int, Sequence[int]] | None = None) -> None:
        self.sums: dict[SubLayerKey, AttentionSums] = {}
        self._marks = dict(marks or {})

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for module, round_ in sub_layers(captured.model):
            weights_BHQS = captured.output.stacks[module.stack].captures.get((*module, "weights"))
            if weights_BHQS is None:
                continue
            ran_BT = captured.ran(module.stack, round_)
            looked_at = "encoder" if module.kind == "cross_attention" else module.stack
            weights_NCHS, sentence_N, column_N, last_N = _query_weights(weights_BHQS, ran_BT, captured.keep(looked_at))
            S: Ints = np.arange(weights_NCHS.shape[-1])
            marked_BS = np.zeros((captured.batch.n_sentences, len(S)), dtype=np.bool_)
            if looked_at == "encoder":
                for row, index in enumerate(captured.batch.indices):
                    marked_BS[row, list(self._marks.get(index, ()))] = True
            is_marked_NS = marked_BS[sentence_N]
            keys = (column_N[:, None, None, None] == S, S == 0, last_N[:, None, None, None] == S)
            masses = [mass_on(weights_NCHS, positions) for positions in (*keys, is_marked_NS[:, None, None])]
            sums = [values.mean(1).sum(0) for values in (attention_entropy(weights_NCHS), *masses)]
            into = self.sums.setdefault(module, AttentionSums(*np.zeros((5, weights_NCHS.shape[2]))))
            totals = (into.entropy_H, into.own_H, into.first_H, into.last_H, into.marked_H)
            for total, value in zip(totals, sums, strict=True):
                total += value
            into.n += len(weights_NCHS)
            into.n_marked += int(is_marked_NS.any(1).sum())


def _query_weights(weights_BHQS: Tensor, ran_BT: Tensor, keep_BS: Tensor) -> tuple[Floats, Ints, Ints, Ints]:
    """Return the weights of the queries that took part, `[N, C, H, S]`, their sentences, columns and last real keys."""
    B, H, _, S = weights_BHQS.shape
    weights_BTCHS = weights_BHQS.view(B, H, ran_BT.shape[1], -1, S).permute(0, 2, 3, 1, 4)
    sentence_N, column_N = ran_BT.nonzero(as_tuple=True)
    last_B = keep_BS.shape[1] - 1 - keep_BS.int().flip(1).argmax(1)
    weights_NCHS = weights_BTCHS[sentence_N, column_N].cpu().double().numpy()
    return weights_NCHS, sentence_N.cpu().numpy(), column_N.cpu().numpy(), last_B[sentence_N].cpu().numpy()


class DepthByColumn(Collector):
    """Executed rounds and expected depth of all tokens, and by the values of metadata columns and of length.

    Args:
        columns: names; "length" is added: tokens of the source (of the target where there is none) in powers of two.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self.overall = DepthTotals()
        self.by: dict[str, dict[str, DepthTotals]] = {name: {} for name in (*columns, "length")}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        rounds = captured.model.n_rounds()
        sums = sentence_depths(captured.output, captured.batch, rounds)
        lengths_B = captured.keep(next(iter(captured.output.stacks))).sum(1).tolist()
        for i in range(captured.batch.n_sentences):
            mine = {name: sums_BV[i] for name, sums_BV in sums.items()}
            self.overall.add(mine)
            values = {name: str(captured.batch.columns.get(name, [None] * (i + 1))[i]) for name in self._columns}
            for name, value in (values | {"length": interval_of(lengths_B[i])}).items():
                self.by[name].setdefault(value, DepthTotals()).add(mine)


def interval_of(length: int) -> str:
    """Return the powers of two that a length lies between: "5-8"."""
    top = 1 << (length - 1).bit_length()
    return f"{top // 2 + 1}-{top}" if top > 2 else str(top)


@dataclass(slots=True)
class StackExample:
    """One example in one stack: ids, mass left before a round, whether it ran, attention weights by sub-layer."""

    ids_T: list[int]
    remaining_TR: Floats | None
    executed_TR: Floats | None
    weights: dict[SubLayerKey, Floats]


class OneExample(Collector):
    """Ids, halting and attention weights of one example.

    Args:
        index: its number among the examples.
    """

    request = frozenset({"weights"})

    def __init__(self, index: int) -> None:
        self._index = index
        self.stacks: dict[str, StackExample] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        if self._index not in captured.batch.indices:
            return
        i = captured.batch.indices.index(self._index)
        for name, stack in captured.output.stacks.items():
            kept_T = captured.keep(name)[i]
            maps: list[Floats | None] = [None, None]
            if (trace := stack.halting) is not None:
                maps = [values_BTR[i][kept_T].cpu().numpy() for values_BTR in (trace.remaining_BTR, trace.executed_BTR)]
            weights = {}
            for key, weights_BHQS in stack.captures.items():
                if key[3] != "weights":
                    continue
                module = SubLayerKey(*key[:3])
                keys_S = captured.keep("encoder" if module.kind == "cross_attention" else name)[i]
                weights_HTCS = weights_BHQS[i].view(weights_BHQS.shape[1], len(kept_T), -1, weights_BHQS.shape[3])
                weights[module] = weights_HTCS.mean(2)[:, kept_T][..., keys_S].cpu().double().numpy()
            self.stacks[name] = StackExample(captured.ids(name)[i][kept_T].tolist(), maps[0], maps[1], weights)


class Outcomes(Collector):
    """Scores of every example.

    Args:
        n: examples. Memory: 48 n bytes.

    Attributes: nll_N in nats, right_N and labels_N: labels; lengths_N: real tokens of the source (of the target where
    there is none); targets_N: of the target; macs_N2: at the full depth of the rounds that stacks run, and realised.
    depths: of all tokens.
    """

    def __init__(self, n: int) -> None:
        self.nll_N: Floats = np.zeros(n)
        self.right_N: Ints = np.zeros(n, dtype=np.int64)
        self.labels_N, self.lengths_N, self.targets_N = (np.zeros(n, dtype=np.int64) for _ in range(3))
        self.macs_N2: Floats = np.zeros((n, 2))
        self.depths = DepthTotals()
        self._counter: MacCounter | None = None

    @property
    def token_accuracy(self) -> float:
        """Share of the labels that are right."""
        return float(self.right_N.sum() / max(self.labels_N.sum(), 1))

    @property
    def sequence_accuracy(self) -> float:
        """Share of the examples with every label right."""
        return float(((self.right_N == self.labels_N) & (self.labels_N > 0)).mean())

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        batch, places = captured.batch, list(captured.batch.indices)
        scores = score_sentences(captured.output.logits_BTV, batch.labels_BT, batch.loss_mask_BT)
        self.nll_N[places] = [one.nll for one in scores]
        self.right_N[places] = [one.n_right for one in scores]
        self.labels_N[places] = [one.n_labels for one in scores]
        tokens = batch.target if batch.source is None else batch.source
        self.lengths_N[places] = tokens.keep_BT.sum(1).cpu().numpy()
        self.targets_N[places] = batch.target.keep_BT.sum(1).cpu().numpy()
        rounds = captured.model.n_rounds()
        sums = sentence_depths(captured.output, batch, rounds)
        for i in range(batch.n_sentences):
            self.depths.add({name: sums_BV[i] for name, sums_BV in sums.items()})
        config = captured.model.config
        self._counter = self._counter or MacCounter(config, n_steps=rounds, exits=captured.model.exits())
        self.macs_N2[places] = sentence_macs(self._counter, config, sums, batch)


class RouterStep(NamedTuple):
    """A router at one step of a stack."""

    router: str
    stack: str
    step: int

    def __str__(self) -> str:
        return f"{self.router} in step {self.step} of the {self.stack}"


def _routings(captured: CapturedBatch) -> Iterator[tuple[RouterStep, Routing, Tensor]]:
    """Yield every routing of a batch, with its step and which of its rows count."""
    for stack in captured.output.stacks.values():
        for routing in stack.routings:
            yield RouterStep(routing.router, routing.stack, routing.step), routing, routing.weight_N > 0


def _routed_states(captured: CapturedBatch) -> Iterator[tuple[RouterStep, int, Tensor, Ints]]:
    """Yield of every routing its step, its number of experts, and the states that count, each with its first expert.

    Where every head chooses among experts of its own it is that of the first head: a state is in one class.
    """
    for at, routing, counted_N in _routings(captured):
        kind, _, *which = at.router.split(".")
        states_BTD = captured.output.stacks[at.stack].captures[at.stack, at.step, kind, "_".join([*which, "input"])]
        states_ND = states_BTD.flatten(0, 1)[routing.rows_N[counted_N]]
        yield at, routing.probs_NE.shape[1], states_ND, routing.experts_NK[counted_N, 0].cpu().numpy()


class ExpertTotals(Collector):
    """How experts are used, by router and step (`RoutingTotals`), and which tokens go to them, by router and stack.

    Memory: 8 V E bytes a router. A choice counts once, whatever its gate; the totals by step count it by the mass that
    remains.
    """

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self._vocabulary = vocabulary
        self.totals: dict[RouterStep, RoutingTotals] = {}
        self.tokens: dict[tuple[str, str], Floats] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for at, routing, counted_N in _routings(captured):
            self.totals.setdefault(at, RoutingTotals()).add(routing_sums({at.router: [routing]}))
            E, V = routing.probs_NE.shape[1], self._vocabulary[at.stack]
            counts_VE = self.tokens.setdefault((at.router, at.stack), np.zeros((V, E)))
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


class ExpertStates(Collector):
    """Sums over the states that enter a router by the first expert they are sent to: exact collapse of all of them.

    Memory: 8 (D^2 + E D) bytes a router and step.
    """

    request = frozenset({"input"})

    def __init__(self) -> None:
        self.moments: dict[RouterStep, ClassMoments] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for at, n_experts, states_ND, experts_N in _routed_states(captured):
            moments = self.moments.setdefault(at, ClassMoments(n_experts))
            moments.add(states_ND.cpu().double().numpy(), experts_N)


class FirstExperts(Collector):
    """The first expert of every real token, by router and step; the same tokens in the same places for every model.

    Where every head chooses among experts of its own a token has one of each, head by head.

    Memory: 2 bytes a token, head, router and step.
    """

    def __init__(self) -> None:
        self._parts: dict[RouterStep, list[Ints]] = {}
        self._n_heads: dict[RouterStep, int] = {}
        self._n_tokens: dict[str, list[int]] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for name in captured.output.stacks:
            self._n_tokens.setdefault(name, []).append(int(captured.keep(name).sum()))
        for at, routing, counted_N in _routings(captured):
            keep_BT = captured.keep(at.stack)
            H = self._n_heads[at] = routing.n_heads
            first_MH = torch.full((keep_BT.numel(), H), NOT_ROUTED, dtype=torch.int16, device=keep_BT.device)
            first_NH = routing.experts_NK.view(len(routing.experts_NK), H, -1)[:, :, 0]
            first_MH[routing.rows_N[counted_N]] = first_NH[counted_N].to(torch.int16)
            # Rounds that did not run in a batch routed no token of it.
            parts = self._parts.setdefault(at, [_not_routed(n * H) for n in self._n_tokens[at.stack][:-1]])
            parts.append(first_MH[keep_BT.flatten()].flatten().cpu().numpy())
        for at, parts in self._parts.items():
            if len(parts) < len(self._n_tokens[at.stack]):
                parts.append(_not_routed(self._n_tokens[at.stack][-1] * self._n_heads[at]))

    def experts(self) -> dict[RouterStep, Ints]:
        """Return the numbers of the experts, `NOT_ROUTED` where a token had halted."""
        return {at: np.concatenate(parts) for at, parts in self._parts.items()}


def _not_routed(n: int) -> Ints:
    return np.full(n, NOT_ROUTED, dtype=np.int16)


class Sample(NamedTuple):
    """States that entered a router, the first expert of each, and the step it happened in."""

    states_ND: np.ndarray
    experts_N: np.ndarray
    steps_N: np.ndarray


class RoutedSample(Collector):
    """A sample of the states that enter a router, by router and stack, with the expert each is first sent to.

    Every routed state of every step has the same chance; the draws are seeded, and the same for the same batches.

    Args:
        n: states kept. Memory: 4 n D bytes a router, and as much again where it projects them.

    Attributes: samples: what was kept, by router and stack.
    """

    request = frozenset({"input"})

    def __init__(self, n: int = 1500, seed: int = 0) -> None:
        self._n, self._rng = n, np.random.default_rng(seed)
        self._draws: dict[tuple[str, str], Floats] = {}
        self.samples: dict[tuple[str, str], Sample] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        for at, _, states_ND, experts_N in _routed_states(captured):
            key = at.router, at.stack
            draws_N = self._rng.random(len(experts_N))
            new = Sample(states_ND.float().cpu().numpy(), experts_N, np.full(len(experts_N), at.step))
            if key in self.samples:
                draws_N = np.concatenate([self._draws[key], draws_N])
                new = Sample(*(np.concatenate(pair) for pair in zip(self.samples[key], new, strict=True)))
            # The rows that drew the smallest numbers of all that ever came are an even sample.
            order = np.argsort(draws_N, kind="stable")[: self._n]
            self._draws[key] = draws_N[order]
            self.samples[key] = Sample(*(values[order] for values in new))
