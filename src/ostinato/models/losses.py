"""The training objective: label-smoothed cross entropy, balance losses of the routers, and the cost of depth.

Label-smoothed cross entropy over the labels that count, summed in float32 (float64 of a model in float64):

    loss = sum over counted labels of  (1 - eps) * (-log p(label)) + eps * mean over the V ids of -log p(id)

The smoothing mass eps is spread uniformly over the WHOLE vocabulary, the label included (Szegedy et al. 2016, section
7, with a uniform prior), so that the label has 1 - eps + eps / V. fairseq (since 0.10) and tensor2tensor leave the
label exactly 1 - eps and spread eps over the other V - 1 ids: their eps is ours at eps * V / (V - 1). tensor2tensor
also subtracts a constant, the entropy of that target, from the loss it reports.

Where rounds count one by one (`training.round_loss`), the loss is their sum with weights that are given (a mean over
some of them, one that is drawn), or with the distribution of a learned exit, or that of the exit's gate, which learns
by how much rounds lower the loss.

Balance losses: one per router, over all the steps and stacks that share it (`ostinato.nn.balance`). The cost of depth:
the sum of the stacks' means over their real tokens. Where the rows of a batch are spread over processes, both are those
of all rows.

Letters: B sentences, T target columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ostinato.config.training import BALANCE_LOSSES, BalanceConfig, RoundLossConfig
from ostinato.data.batch import Batch
from ostinato.errors import Problem
from ostinato.kernels import IGNORED, cross_entropy_sums, mean_where
from ostinato.models.output import ByRouter, ModelOutput
from ostinato.nn import balance
from ostinato.nn.balance import JoinedRoutings, Sum, no_reduction
from ostinato.nn.exits import Exit
from ostinato.nn.halting import NoHalting
from ostinato.nn.layers import at_least_float32
from ostinato.nn.types import Routing

if TYPE_CHECKING:
    from ostinato.models.base import TokenModel


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the counted labels of one batch, in nats: the smoothed loss with its gradient, and the plain one."""

    loss: Tensor
    nll: Tensor


class SecondPass(NamedTuple):
    """Losses of a pass with fewer rounds: of its labels, summed, and the distance of its states, see `states_apart`."""

    loss: Tensor
    states: Tensor


def label_smoothed_loss(logits_BTV: Tensor, labels_BT: Tensor, counts_BT: Tensor, smoothing: float) -> LossSums:
    """Return the summed loss of the labels where `counts_BT` is True.

    The sum is over all columns with the others ignored: gathering the counted rows first would copy the logits.

    Args:
        smoothing: eps in [0, 1).
    """
    labels_BT = labels_BT.masked_fill(~counts_BT, IGNORED)
    logits_NV = at_least_float32(logits_BTV).flatten(0, 1)
    return LossSums(*cross_entropy_sums(logits_NV, labels_BT.flatten(), smoothing))


def requested(config: RoundLossConfig) -> tuple[str, ...]:
    """Return what a pass must give beside its logits for a loss of rounds."""
    return () if config.kind == "last" else ("rounds",)


def round_loss_problems(
    model: TokenModel, config: RoundLossConfig, most_rounds: int | None, key: str
) -> Iterator[Problem]:
    """Yield why a model has no such loss of its rounds.

    Args:
        most_rounds: that its last stack runs; None: any number. key: what the settings are called.
    """
    kind = config.kind
    if kind == "last":
        return
    if not model.stacks:
        yield Problem(f"{key}.kind", kind, "this model has no rounds")
        return
    name, stack = list(model.stacks.items())[-1]
    has_exit, reads = isinstance(stack.halting, Exit), model.config.reads
    if kind in ("exit", "improvement") and not has_exit:
        yield Problem(f"{key}.kind", kind, f"needs a learned exit: model.{name}.halting.kind=exit")
    if kind in ("exit", "improvement") and reads in ("classification", "span"):
        reason = f"a label of a model for {reads} is of no single token, and exits are by token"
        yield Problem(f"{key}.kind", kind, reason)
    if kind in ("window", "weights", "drawn") and not (has_exit or isinstance(stack.halting, NoHalting)):
        reason = f"needs model.{name}.halting.kind none or exit: other rules mix the states of rounds"
        yield Problem(f"{key}.kind", kind, reason)
    if kind in ("drawn", "improvement") and most_rounds == 1:
        yield Problem(f"{key}.kind", kind, f"needs more than one round, and the {name} has one")
    if config.weights and most_rounds is not None and len(config.weights) > most_rounds:
        yield Problem(f"{key}.weights", config.weights, f"the {name} runs at most {most_rounds} rounds")


def loss_of_rounds(
    read: Callable[[Tensor, Batch], Tensor],
    output: ModelOutput,
    batch: Batch,
    config: RoundLossConfig,
    smoothing: float,
    draw: float = 0.0,
) -> LossSums:
    """Return the sums of the losses of the rounds that count; the plain one is of the model's output.

    Args:
        read: from the output of the last stack to logits. output: of a pass with what is `requested`.
        draw: in [0, 1), which round is drawn, for the loss that draws one.
    """
    last = label_smoothed_loss(output.logits_BTV, batch.labels_BT, batch.loss_mask_BT, smoothing)
    if config.kind == "last":
        return last
    stack = list(output.stacks.values())[-1]
    if config.kind not in ("exit", "improvement"):
        *weights, of_last = config.of_rounds(len(stack.rounds), draw)
        total = of_last * last.loss
        for weight, one in zip(weights, stack.rounds[:-1], strict=True):
            if weight:
                logits_BTV = read(one(), batch)
                sums = label_smoothed_loss(logits_BTV, batch.labels_BT, batch.loss_mask_BT, smoothing)
                total = total + weight * sums.loss
        return LossSums(total, last.nll)
    if stack.halting is None:  # gates are not asked in the first updates (`training.halting.off_updates`)
        return last

    def losses_BT(one: Callable[[], Tensor], smoothing: float) -> Tensor:
        logits_NV = at_least_float32(read(one(), batch)).flatten(0, 1)
        loss_N = F.cross_entropy(logits_NV, batch.labels_BT.flatten(), reduction="none", label_smoothing=smoothing)
        return loss_N.view_as(batch.labels_BT)

    total = torch.zeros_like(last.loss)
    if config.kind == "exit":
        weights_BTR = _of_labels(stack.halting.weights_BTR, batch)
        for one, weight_BT in zip(stack.rounds, weights_BTR.unbind(-1), strict=True):
            total = total + torch.where(batch.loss_mask_BT, losses_BT(one, smoothing) * weight_BT, 0.0).sum()
        return LossSums(total, last.nll)
    # improvement (`RoundLossConfig`; Ouro, stage II): the gate of round t = 2, 3, ... learns to go on where the round
    # has lowered the label's loss by more than the margin. The losses are targets alone, and have no gradient.
    probs_BTR = _of_labels(stack.halting.probs_BTR, batch)
    with torch.no_grad():
        losses_RBT = torch.stack([losses_BT(one, 0.0) for one in stack.rounds])
        gains_BTR = (losses_RBT[:-1] - losses_RBT[1:]).clamp_min(0).movedim(0, -1)
        goes_on_BTR = torch.sigmoid(config.slope * (gains_BTR - config.margin))
    stops_BTR = probs_BTR[..., 1:]
    entropy_BTR = -(goes_on_BTR * _log(1 - stops_BTR) + (1 - goes_on_BTR) * _log(stops_BTR))
    total = torch.where(batch.loss_mask_BT[..., None], entropy_BTR, 0.0).sum() / max(len(stack.rounds) - 1, 1)
    return LossSums(total, last.nll)


def states_apart(first: ModelOutput, second: ModelOutput, keep_BT: Tensor) -> Tensor:
    """Return the mean over real tokens and components of (stop(x) - x')^2, x what leaves the last stack."""
    x_BTD, other_BTD = (list(output.stacks.values())[-1].states_BTD for output in (first, second))
    return mean_where((x_BTD.detach() - other_BTD).square(), keep_BT)


def _of_labels(values_BTR: Tensor, batch: Batch) -> Tensor:
    """Return the values of the tokens that have labels."""
    if batch.places_BL is None:
        return values_BTR
    return values_BTR.gather(1, batch.places_BL[..., None].expand(-1, -1, values_BTR.shape[-1]))


def _log(probs: Tensor) -> Tensor:
    return probs.clamp_min(torch.finfo(probs.dtype).tiny).log()


def raw_balance_loss(name: str, routings: Sequence[Routing] | JoinedRoutings, temperature: float) -> Tensor:
    """Return one balance loss of one router, without its weight; `temperature` is tau_0 of X-MoE's."""
    if name == "hypersphere":
        return balance.hypersphere(routings, temperature)
    loss: Callable[[Sequence[Routing] | JoinedRoutings], Tensor] = getattr(balance, name)
    return loss(routings)


def balance_weights(config: BalanceConfig, router: str = "") -> dict[str, float]:
    """Return the weights of the balance losses that have one, for a router."""
    factor = config.attention_factor if "attention" in router.partition(".")[0] else 1.0
    return {name: factor * weight for name in BALANCE_LOSSES if (weight := getattr(config, name))}


def balance_loss(
    routings: ByRouter, config: BalanceConfig, temperatures: Mapping[str, float], all_reduce: Sum = no_reduction
) -> Tensor | None:
    """Return the weighted sum over routers and losses; None where no loss has a weight, or nothing is routed.

    Args:
        temperatures: tau_0 by router, where the configuration names none.
        all_reduce: adds up over the processes what their rows sum to.
    """
    if not balance_weights(config):
        return None
    total: Tensor | None = None
    for router, mine in routings.items():
        rows = JoinedRoutings.of(mine, all_reduce, uniform=config.token_weights == "uniform")
        tau_0 = config.temperature or temperatures[router]
        for name, weight in balance_weights(config, router).items():
            loss = weight * raw_balance_loss(name, rows, tau_0)
            total = loss if total is None else total + loss
    return total


TokenShares = Mapping[str, float]
"""By stack, a process's share of a batch's real tokens."""


def depth_cost(output: ModelOutput, shares: TokenShares | None = None) -> Tensor | None:
    """Return the sum of the stacks' mean costs of depth; None where no token halts.

    Args:
        shares: of several processes, by which their costs add up to the mean over all tokens; None: one process.
    """
    costs = [
        stack.depth_cost if shares is None else shares[name] * stack.depth_cost
        for name, stack in output.stacks.items()
        if stack.depth_cost is not None
    ]
    return torch.stack(costs).sum() if costs else None


def add_auxiliary(
    loss: Tensor, balance: Tensor | None, depth: Tensor | None, depth_weight: float, share: float = 1.0
) -> Tensor:
    """Return a batch's part of the mean loss over an update's labels with its balance losses and its cost of depth.

    Args:
        loss: of its labels. balance: see `balance_loss`. depth: see `depth_cost`. share: of the update's labels; the
            other two are means over the batch, so that each batch counts by it.
    """
    if balance is not None:
        loss = loss + balance * share
    if depth_weight and depth is not None:
        loss = loss + depth * (depth_weight * share)
    return loss
