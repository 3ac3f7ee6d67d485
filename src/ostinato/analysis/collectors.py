"""What is kept of a run's states and weights of attention, batch by batch; of its routes: `routing_collectors`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ostinato.analysis.arrays import Bools, Floats, Ints
from ostinato.analysis.attention import attention_entropy, mass_on
from ostinato.analysis.capture import Seen
from ostinato.evaluation.depth import DepthTotals, sentence_depths
from ostinato.models.build import Model

NONE: frozenset[str] = frozenset()
SHORT = {"self_attention": "sa", "cross_attention": "ca", "ffn": "ffn"}


class Module(NamedTuple):
    """One sub-layer at one step of a stack."""

    stack: str
    step: int
    kind: str

    def __str__(self) -> str:
        return f"{self.step}.{SHORT[self.kind]}"


def modules(model: Model) -> Iterator[tuple[Module, int]]:
    """Yield every sub-layer of every step in the order they run, and its 0-based round."""
    for name, stack in model.stacks.items():
        for step in stack.plan.steps:
            for use in step.uses:
                yield Module(name, step.index, use.kind), step.round


class SentenceVectors:
    """Mean over a sentence's real tokens of every sub-layer's output, before and after the residual; `[n, D]` each.

    A token that has halted is frozen: after the residual it counts with the state it halted in, before it with zero,
    which is what the sub-layer adds to it.

    Args:
        n: sentences. Memory: 8 n D bytes a sub-layer, whatever their lengths.
    """

    request = frozenset({"output", "residual"})

    def __init__(self, n: int) -> None:
        self._n = n
        self.before: dict[Module, Floats] = {}
        self.after: dict[Module, Floats] = {}

    def add(self, seen: Seen) -> None:
        """Take in one batch."""
        last: dict[str, Tensor] = {}
        places = np.asarray(seen.batch.indices)
        for module, round_ in modules(seen.model):
            ran_BT1 = seen.ran(module.stack, round_)[..., None]
            captures = seen.output.stacks[module.stack].captures
            output, residual = (captures.get((*module, what)) for what in ("output", "residual"))
            if residual is None or output is None:  # the round did not run: all have halted
                states_BTD, added_BTD = last[module.stack], torch.zeros_like(last[module.stack])
            else:
                before_BTD = last.get(module.stack, residual)
                states_BTD = torch.where(ran_BT1, residual, before_BTD)
                added_BTD = torch.where(ran_BT1, output, 0.0)
            last[module.stack] = states_BTD
            keep_BT = seen.keep(module.stack)
            for kept, values_BTD in ((self.before, added_BTD), (self.after, states_BTD)):
                means_BD = _means(values_BTD, keep_BT)
                if module not in kept:
                    kept[module] = np.zeros((self._n, means_BD.shape[1]), dtype=np.float32)
                kept[module][places] = means_BD.cpu().numpy()


def _means(values_BTD: Tensor, keep_BT: Tensor) -> Tensor:
    keep_BT1 = keep_BT[..., None]
    return torch.where(keep_BT1, values_BTD, 0.0).sum(1).float() / keep_BT1.sum(1)


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


class AttentionTotals:
    """Entropy of the weights and their mass on some keys, by sub-layer and head, over all queries that took part.

    Keys: the token itself (self-attention), the first one, and the last one (the end symbol of a source); of a source
    also those that are marked, by queries whose example has marks. Where attention has experts, means over those a
    token chose.

    Args:
        marks: marked places of the encoder, by number of the example.
    """

    request = frozenset({"weights"})

    def __init__(self, marks: Mapping[int, Sequence[int]] | None = None) -> None:
        self.sums: dict[Module, AttentionSums] = {}
        self._marks = dict(marks or {})

    def add(self, seen: Seen) -> None:
        """Take in one batch."""
        for module, round_ in modules(seen.model):
            weights_BHQS = seen.output.stacks[module.stack].captures.get((*module, "weights"))
            if weights_BHQS is None:
                continue
            ran_BT = seen.ran(module.stack, round_)
            looked_at = "encoder" if module.kind == "cross_attention" else module.stack
            weights_NCHS, sentence_N, column_N, last_N = _of_queries(weights_BHQS, ran_BT, seen.keep(looked_at))
            S: Ints = np.arange(weights_NCHS.shape[-1])
            keys = [column_N[:, None, None, None] == S, S == 0, last_N[:, None, None, None] == S]
            marked_BS = self._marked(seen, looked_at, weights_NCHS.shape[-1])
            keys.append(marked_BS[sentence_N, None, None])
            found = [attention_entropy(weights_NCHS), *(mass_on(weights_NCHS, positions) for positions in keys)]
            sums = [values.mean(1).sum(0) for values in found]
            if module not in self.sums:
                self.sums[module] = AttentionSums(*(np.zeros_like(value) for value in sums))
            into = self.sums[module]
            totals = (into.entropy_H, into.own_H, into.first_H, into.last_H, into.marked_H)
            for total, value in zip(totals, sums, strict=True):
                total += value
            into.n += len(weights_NCHS)
            into.n_marked += int(marked_BS[sentence_N].any(1).sum())

    def _marked(self, seen: Seen, looked_at: str, n_keys: int) -> Bools:
        """Return which keys of every sentence are marked, `[B, S]`; none of any stack's but the encoder's."""
        marked_BS = np.zeros((seen.batch.n_sentences, n_keys), dtype=np.bool_)
        if looked_at == "encoder":
            for row, index in enumerate(seen.batch.indices):
                marked_BS[row, list(self._marks.get(index, ()))] = True
        return marked_BS


def _of_queries(weights_BHQS: Tensor, ran_BT: Tensor, keep_BS: Tensor) -> tuple[Floats, Ints, Ints, Ints]:
    """Return the weights of the queries that took part, `[N, C, H, S]`, their sentences, columns and last real keys."""
    B, H, _, S = weights_BHQS.shape
    weights_BTCHS = weights_BHQS.view(B, H, ran_BT.shape[1], -1, S).permute(0, 2, 3, 1, 4)
    sentence_N, column_N = ran_BT.nonzero(as_tuple=True)
    last_B = keep_BS.shape[1] - 1 - keep_BS.int().flip(1).argmax(1)
    weights_NCHS = weights_BTCHS[sentence_N, column_N].double().cpu().numpy()
    return weights_NCHS, sentence_N.cpu().numpy(), column_N.cpu().numpy(), last_B[sentence_N].cpu().numpy()


class DepthByColumn:
    """Executed rounds and expected depth of all tokens, and by the values of metadata columns and of length.

    Args:
        columns: names; "length" is added: tokens of the source (of the target where there is none) in powers of two.
    """

    request = NONE

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self.overall = DepthTotals()
        self.by: dict[str, dict[str, DepthTotals]] = {name: {} for name in (*columns, "length")}

    def add(self, seen: Seen) -> None:
        """Take in one batch."""
        rounds = seen.model.n_rounds()
        sums = sentence_depths(seen.output, seen.batch, rounds)
        lengths_B = seen.keep(next(iter(seen.output.stacks))).sum(1).tolist()
        for i in range(seen.batch.n_sentences):
            mine = {name: sums_BV[i] for name, sums_BV in sums.items()}
            self.overall.add(mine)
            values = {name: str(seen.batch.columns.get(name, [None] * (i + 1))[i]) for name in self._columns}
            for name, value in (values | {"length": interval_of(lengths_B[i])}).items():
                self.by[name].setdefault(value, DepthTotals()).add(mine)


def interval_of(length: int) -> str:
    """Return the powers of two that a length lies between: "5-8"."""
    top = 1 << (length - 1).bit_length()
    return f"{top // 2 + 1}-{top}" if top > 2 else str(top)


@dataclass(slots=True)
class StackExample:
    """One example as a stack saw it: ids, mass before and part in every round, weights of attention by sub-layer."""

    ids_T: list[int]
    remaining_TR: Floats | None
    executed_TR: Floats | None
    weights: dict[Module, Floats]


class OneExample:
    """Everything about one example, to be looked at.

    Args:
        index: its number among the examples.
    """

    request = frozenset({"weights"})

    def __init__(self, index: int) -> None:
        self._index = index
        self.stacks: dict[str, StackExample] = {}

    def add(self, seen: Seen) -> None:
        """Take in one batch."""
        if self._index not in seen.batch.indices:
            return
        i = seen.batch.indices.index(self._index)
        for name, stack in seen.output.stacks.items():
            kept_T = seen.keep(name)[i]
            maps: list[Floats | None] = [None, None]
            if (trace := stack.halting) is not None:
                maps = [values_BTR[i][kept_T].cpu().numpy() for values_BTR in (trace.remaining_BTR, trace.executed_BTR)]
            weights = {}
            for key, weights_BHQS in stack.captures.items():
                if key[3] != "weights":
                    continue
                module = Module(*key[:3])
                keys_S = seen.keep("encoder" if module.kind == "cross_attention" else name)[i]
                weights_HTCS = weights_BHQS[i].view(weights_BHQS.shape[1], len(kept_T), -1, weights_BHQS.shape[3])
                weights[module] = weights_HTCS.mean(2)[:, kept_T][..., keys_S].double().cpu().numpy()
            self.stacks[name] = StackExample(seen.ids(name)[i][kept_T].tolist(), maps[0], maps[1], weights)
