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

from torch import Tensor

from ostinato.data.batch import Batch
from ostinato.kernels import IGNORED, cross_entropy_sums


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
    labels_BT = labels_BT.masked_fill(~counts_BT, IGNORED)
    logits_NV = logits_BTV.float().flatten(0, 1)
    return LossSums(*cross_entropy_sums(logits_NV, labels_BT.flatten(), smoothing))


def count_labels(batches: Sequence[Batch]) -> int:
    """Return the number of labels that count in all batches of one update.

    Dividing every batch's summed loss by this number makes the accumulated gradient that of one large batch.
    """
    return sum(batch.n_labels for batch in batches)
