"""Realised depth: how many rounds a token took part in, over the real tokens of all examples.

    executed rounds of a token: those before it halts; all of them where no token halts
    expected depth of a token:  sum_r w_r r / sum_r w_r, rounds counted from 1, with w_r the weight of round r. Weights
                                add up to one but for ACT that does not force the remainder (the listing of UT). Of
                                ACT that interpolates they are those of the mix at that time, of which later rounds
                                take their share: the output comes from somewhat later rounds

The expected depth says which rounds the output comes from. The two differ: stick-breaking with a threshold near one
runs many rounds that add little. Executed rounds are compute where halted tokens are frozen; ACT that does not freeze
them computes every token until the last one of its batch has halted, which MACs count (`ostinato.budget.macs`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ostinato.data.batch import Batch
from ostinato.models.output import ModelOutput
from ostinato.nn.shapes import Bool, Float, Int
from ostinato.nn.types import HaltingTrace

PERCENTILES = (50, 90, 99)


def real_tokens(stack: str, batch: Batch) -> Bool[Tensor, "B T"]:
    """Return the keep mask of a stack's tokens."""
    tokens = batch.source if stack == "encoder" and batch.source is not None else batch.target
    return tokens.keep_BT


def token_depths(trace: HaltingTrace) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T"]]:
    """Return the rounds that every token executed, and its expected depth."""
    executed_BT, weights_BTR = trace.executed_BTR.sum(-1), trace.weights_BTR.detach().float()
    rounds_R = torch.arange(1, weights_BTR.shape[-1] + 1, device=weights_BTR.device)
    total_BT = weights_BTR.sum(-1)
    depth_BT = (weights_BTR * rounds_R).sum(-1) / torch.where(total_BT > 0, total_BT, 1.0)
    return executed_BT, torch.where(total_BT > 0, depth_BT, executed_BT)  # no weight anywhere: the rounds that it ran


def depth_sums(trace: HaltingTrace | None, keep_BT: Bool[Tensor, "B T"], n_rounds: int) -> Float[Tensor, "B V"]:
    """Return of every sentence how many real tokens executed 1, 2, ..., n_rounds rounds, then their summed depths.

    `[B, n_rounds + 1]`, float32, on the device of the mask and without waiting for it. Depths are expected ones.

    Args:
        trace: None: every token ran all rounds. keep_BT: True for real tokens.
    """
    if trace is None:
        sums_BV = keep_BT.new_zeros(len(keep_BT), n_rounds + 1, dtype=torch.float32)
        sums_BV[:, -2] = keep_BT.sum(1)
        sums_BV[:, -1] = sums_BV[:, -2] * n_rounds
        return sums_BV
    executed_BT, depth_BT = token_depths(trace)
    rounds_R = torch.arange(1, n_rounds + 1, device=keep_BT.device)
    counts_BR = (torch.where(keep_BT, executed_BT, 0)[..., None] == rounds_R).sum(1).float()
    return torch.cat([counts_BR, torch.where(keep_BT, depth_BT, 0.0).sum(1, keepdim=True)], 1)


def describe(sums: Sequence[float]) -> dict[str, Any]:
    """Return statistics of sums over tokens, as of `depth_sums`.

    Returns:
        mean: executed rounds a token. expected: depth. percentiles: by percent, the executed rounds that so many of the
        tokens at most have. histogram: tokens that executed 1, 2, ... rounds.
    """
    histogram, total = [round(count) for count in sums[:-1]], sums[-1]
    n = sum(histogram)
    if not n:
        return {"mean": 0.0, "expected": 0.0, "percentiles": {}, "histogram": histogram}
    mean, so_far = sum(rounds * count for rounds, count in enumerate(histogram, 1)) / n, list(accumulate(histogram))
    percentiles = {str(percent): bisect_left(so_far, math.ceil(percent * n / 100)) + 1 for percent in PERCENTILES}
    return {"mean": mean, "expected": total / n, "percentiles": percentiles, "histogram": histogram}


def sentence_depths(output: ModelOutput, batch: Batch, rounds: Mapping[str, int]) -> dict[str, Float[Tensor, "B V"]]:
    """Return `depth_sums` of every sentence of a pass, by stack: `[B, rounds + 1]`, on the host, in float64.

    Args:
        rounds: of every stack; where no token can halt, every token runs all of them.
    """
    if not output.stacks:
        return {}
    sums = [depth_sums(stack.halting, real_tokens(name, batch), rounds[name]) for name, stack in output.stacks.items()]
    # One copy to the host per pass; float64, so that totals do not depend on the batch size.
    parts = torch.split(torch.cat(sums, 1).cpu().double(), [rounds[name] + 1 for name in output.stacks], 1)
    return dict(zip(output.stacks, parts, strict=True))


class DepthTotals:
    """Depths in every stack of one group of examples; memory does not grow with their number."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Float[Tensor, "V"]]) -> None:
        """Count the sums of one or more sentences."""
        for name, sums_V in sums.items():
            self._sums[name] = self._sums[name] + sums_V if name in self._sums else sums_V

    def compute(self) -> dict[str, dict[str, Any]]:
        """Return `describe` of every stack that saw a token."""
        found = {name: describe(sums_V.tolist()) for name, sums_V in self._sums.items()}
        return {name: numbers for name, numbers in found.items() if sum(numbers["histogram"])}
