"""Collectors of scores, states, attention weights and depths; of routing: `routing_collectors`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ostinato.analysis.arrays import Bools, Floats, Ints
from ostinato.analysis.capture import CapturedBatch
from ostinato.analysis.maps import attention_entropy, mass_on
from ostinato.budget import MacCounter
from ostinato.evaluation.depth import DepthTotals, real_tokens, sentence_depths
from ostinato.evaluation.scores import score_sentences
from ostinato.models.build import Model

NO_CAPTURES: frozenset[str] = frozenset()
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
        self.before: dict[SubLayerKey, Floats] = {}
        self.after: dict[SubLayerKey, Floats] = {}

    def add(self, captured: CapturedBatch) -> None:
        """Take in one batch."""
        last: dict[str, Tensor] = {}
        places = np.asarray(captured.batch.indices)
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
            keys = [column_N[:, None, None, None] == S, S == 0, last_N[:, None, None, None] == S]
            marked_BS = self._marked_keys(captured, looked_at, weights_NCHS.shape[-1])
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

    def _marked_keys(self, captured: CapturedBatch, looked_at: str, n_keys: int) -> Bools:
        """Return which keys of every sentence are marked, `[B, S]`; only keys of the encoder are."""
        marked_BS = np.zeros((captured.batch.n_sentences, n_keys), dtype=np.bool_)
        if looked_at == "encoder":
            for row, index in enumerate(captured.batch.indices):
                marked_BS[row, list(self._marks.get(index, ()))] = True
        return marked_BS


def _query_weights(weights_BHQS: Tensor, ran_BT: Tensor, keep_BS: Tensor) -> tuple[Floats, Ints, Ints, Ints]:
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

    request = NO_CAPTURES

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


class OneExample:
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
                weights[module] = weights_HTCS.mean(2)[:, kept_T][..., keys_S].double().cpu().numpy()
            self.stacks[name] = StackExample(captured.ids(name)[i][kept_T].tolist(), maps[0], maps[1], weights)


class Outcomes:
    """Scores of every example.

    Args:
        n: examples. Memory: 48 n bytes.

    Attributes: nll_N in nats, right_N and labels_N: labels; lengths_N: real tokens of the source (of the target where
    there is none); targets_N: of the target; macs_N2: at full depth, and realised; zeros where the stacks run another
    number of rounds than their configuration says. depths: of all tokens.
    """

    request = NO_CAPTURES

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
        return float((self.right_N == self.labels_N).mean())

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
        if rounds == {name: plan.n_rounds for name, plan in config.plans().items()}:
            self._counter = self._counter or MacCounter(config)
            counts = {name: sums_BV[:, :-1].long().tolist() for name, sums_BV in sums.items()}
            for name in config.recurrences():
                counts[name] = real_tokens(name, batch).sum(1, keepdim=True).tolist()
            for i, place in enumerate(places):
                self.macs_N2[place] = self._counter.count({name: found[i] for name, found in counts.items()})
