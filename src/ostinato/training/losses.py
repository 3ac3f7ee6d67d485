"""The training objective: label-smoothed cross entropy over the labels that count, summed in float32.

    loss = sum over counted labels of  (1 - eps) * (-log p(label)) + eps * mean over the V ids of -log p(id)

The smoothing mass eps is spread uniformly over the WHOLE vocabulary, the label included (Szegedy et al. 2016, section
7, with a uniform prior), so that the label has 1 - eps + eps / V. fairseq (since 0.10) and tensor2tensor leave the
label exactly 1 - eps and spread eps over the other V - 1 ids: their eps is ours at eps * V / (V - 1). tensor2tensor
also subtracts a constant, the entropy of that target, from the loss it reports.

Letters: B sentences, T target columns, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ostinato.data.batch import Batch

_IGNORED = -100


@dataclass(frozen=True, slots=True)
class LossSums:
    """Sums over the counted labels of one batch, in nats: the smoothed loss with its gradient, and the plain one."""

    loss: Tensor
    nll: Tensor


def label_smoothed_loss(logits_BTV: Tensor, labels_BT: Tensor, counts_BT: Tensor, smoothing: float) -> LossSums:
    """Return the summed loss of the labels where `counts_BT` is True.

    The sum is over all columns with the others ignored: gathering the counted rows first would copy the logits.

    Args:
        smoothing: eps in [0, 1).
    """
    logits = logits_BTV.float()
    labels_BT = labels_BT.masked_fill(~counts_BT, _IGNORED)
    loss = F.cross_entropy(
        logits.flatten(0, 1), labels_BT.flatten(), ignore_index=_IGNORED, reduction="sum", label_smoothing=smoothing
    )
    if not smoothing:
        return LossSums(loss, loss.detach())
    # With lse = log sum exp: loss = lse - (1 - eps) * gold - eps * mean, nll = lse - gold. The plain loss therefore
    # needs one more sum over the logits and no second softmax.
    logits = logits.detach()
    gold_BT = logits.gather(-1, labels_BT.clamp(min=0)[..., None])[..., 0]
    excess_BT = (logits.mean(-1) - gold_BT).masked_fill(~counts_BT, 0.0)
    return LossSums(loss, loss.detach() + smoothing * excess_BT.sum())


def count_labels(batches: Sequence[Batch]) -> int:
    """Return the number of labels that count in all batches of one update.

    Dividing every batch's summed loss by this number makes the accumulated gradient that of one large batch.
    """
    return sum(batch.n_labels for batch in batches)
