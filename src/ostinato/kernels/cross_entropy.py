"""Cross entropy of a large vocabulary whose gradient is written in the place of the log-probabilities.

    nll = sum_n -log p_n[label n]
    loss = (1 - eps) nll + eps sum_n mean_v -log p_n[v]        d loss / d logits_n = p_n - (1 - eps) onehot_n - eps / V

Autograd's own backward pass makes the gradient of the log-probabilities, zeros but for one number a row, and from that
the one of the logits: three arrays of V numbers a row at once, with smoothing more, at the moment at which an update
holds all its activations. Here there is one. It can be gone through backwards once: autograd refuses a second time.

The plain twin is `torch.nn.functional.cross_entropy`.

Letters: N rows, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
"""The label of rows that do not count."""


def cross_entropy_sums(logits_NV: Tensor, labels_N: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """Return the smoothed loss with its gradient, and the plain one without, each summed over the rows that count.

    Args:
        labels_N: ids, or `IGNORED`.
        smoothing: eps in [0, 1), the mass that is spread over all V ids.
    """
    return _CrossEntropy.apply(logits_NV, labels_N, smoothing)  # type: ignore[no-any-return, no-untyped-call]


class _CrossEntropy(torch.autograd.Function):
    """Two sums forward; backward the log-probabilities, which nobody else reads, become the gradient."""

    @staticmethod
    def forward(ctx: Any, logits_NV: Tensor, labels_N: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
        log_probs_NV = F.log_softmax(logits_NV, dim=-1)
        nll = F.nll_loss(log_probs_NV, labels_N, ignore_index=IGNORED, reduction="sum")
        loss = (1.0 - smoothing) * nll
        if smoothing:
            loss = loss - smoothing * log_probs_NV.mean(-1).masked_fill(labels_N == IGNORED, 0.0).sum()
        ctx.save_for_backward(log_probs_NV, labels_N)
        ctx.smoothing = smoothing
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        log_probs_NV, labels_N = ctx.saved_tensors
        smoothing: float = ctx.smoothing
        grad_NV = log_probs_NV.exp_()
        if smoothing:
            grad_NV.sub_(smoothing / grad_NV.shape[1])
        rows_N = torch.arange(grad_NV.shape[0], device=grad_NV.device)
        grad_NV[rows_N, labels_N.clamp(min=0)] -= 1.0 - smoothing
        # Not a product with 0 and 1: an infinite gradient is nothing to rows that do not count.
        grad_N = grad.expand(labels_N.shape).masked_fill(labels_N == IGNORED, 0.0)
        return grad_NV.mul_(grad_N[:, None]), None, None
