"""What a search asks of the logits of a large vocabulary: log-probabilities, and which are the highest.

Letters: N rows of P parts, V numbers each, n of them wanted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.kernels import native

_BLOCK = 64
"""Numbers."""
_LEAST_IN_BLOCKS = 2**15
"""Numbers of a row from which on it is faster to look at blocks first, about."""


def log_probs(logits_NV: Tensor, added_N: Tensor, never: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
    """Return x, `[N, V]`, and c, like `added`, with x + c = added + log softmax(z) of every row's logits z, which are
    overwritten; then x = -inf in the columns `never`: they count in the softmax, but cannot be chosen.

    Compiled kernels read a row once, x = z and c = added - log sum_v e^z_v; to write x + c would take longer than that.
    Plain twin: x = log softmax(z), c = added.

    Args:
        added_N: one number a row, in as many dimensions as it has. never: the columns.
    """
    if _are_ours(logits_NV, added_N):
        return logits_NV, native.log_probs(logits_NV, added_N.contiguous(), never)
    x_NV = torch.log_softmax(logits_NV, dim=-1)
    for column in never:
        x_NV.select(1, column).fill_(-torch.inf)
    return x_NV, added_N


def highest(x_NPV: Tensor, n: int, added_NP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the n highest of all x + a of every row, best first, and in which part and column they are, `[N, n]`.

    A CPU with compiled kernels looks at every number once. Elsewhere a long row is divided into blocks. The n highest
    numbers lie in the n blocks with the highest maxima, so only those blocks are ranked. Of equal numbers any is
    returned. Plain twin: `torch.topk`.

    Args:
        x_NPV: may be overwritten.
        added_NP: a, the same for all numbers of a part. To a single part it is added when its numbers have been ranked:
            sums may be equal where numbers are not.
    """
    N, P, V = x_NPV.shape
    if 0 < n <= P * V and _are_ours(x_NPV, added_NP):
        return native.highest(x_NPV, n, added_NP.contiguous())
    if P == 1:
        values_Nn, columns_Nn = _ranked(x_NPV[:, 0], n)
        return values_Nn + added_NP, torch.zeros_like(columns_Nn), columns_Nn
    values_Nn, places_Nn = _ranked(x_NPV.add_(added_NP[:, :, None]).view(N, P * V), n)
    return values_Nn, places_Nn // V, places_Nn % V


def _ranked(x_NM: Tensor, n: int) -> tuple[Tensor, Tensor]:
    M, width = x_NM.shape[1], _BLOCK
    if n == 1:
        return x_NM.max(dim=1, keepdim=True)
    n_blocks = M // width
    if _LEAST_IN_BLOCKS > M or n_blocks < 4 * n:
        return x_NM.topk(n, dim=1)
    within = n_blocks * width
    blocks_NBW = x_NM[:, :within].view(-1, n_blocks, width)
    best_Nn = blocks_NBW.amax(2).topk(n, dim=1).indices
    places_NC = (best_Nn[:, :, None] * width + torch.arange(width, device=x_NM.device)).flatten(1)
    if within < M:
        rest = torch.arange(within, M, device=x_NM.device).expand(len(x_NM), -1)
        places_NC = torch.cat([places_NC, rest], dim=1)
    values_Nn, chosen_Nn = x_NM.gather(1, places_NC).topk(n, dim=1)
    return values_Nn, places_NC.gather(1, chosen_Nn)


def _are_ours(x: Tensor, added: Tensor) -> bool:
    return native.takes(x, added) and x.is_contiguous() and not (x.requires_grad or added.requires_grad)
