"""The highest numbers of many: what a search continues with."""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.kernels import native


def highest(x_NM: Tensor, n: int, *, width: int = 64, least: int = 2**15) -> tuple[Tensor, Tensor]:
    """Return the n highest numbers of every row, best first, and where they are. Plain twin: `torch.topk`.

    A CPU with compiled kernels looks at every number once. Elsewhere a row is divided into blocks of `width` numbers.
    The n highest numbers lie in the n blocks with the highest maxima, so only those blocks are ranked, which is faster
    from rows of about `least` numbers on. Of equal numbers any is returned.
    """
    N, M = x_NM.shape
    if 0 < n <= M and native.takes(x_NM) and x_NM.is_contiguous() and not x_NM.requires_grad:
        return native.highest(x_NM, n)
    if n == 1:
        return x_NM.max(dim=1, keepdim=True)
    n_blocks = M // width
    if least > M or n_blocks < 4 * n:
        return x_NM.topk(n, dim=1)
    within = n_blocks * width
    blocks_NBW = x_NM[:, :within].view(N, n_blocks, width)
    best_NH = blocks_NBW.amax(2).topk(n, dim=1).indices
    places_NC = (best_NH[:, :, None] * width + torch.arange(width, device=x_NM.device)).flatten(1)
    if within < M:
        rest = torch.arange(within, M, device=x_NM.device).expand(N, -1)
        places_NC = torch.cat([places_NC, rest], dim=1)
    values_NH, chosen_NH = x_NM.gather(1, places_NC).topk(n, dim=1)
    return values_NH, places_NC.gather(1, chosen_NH)
