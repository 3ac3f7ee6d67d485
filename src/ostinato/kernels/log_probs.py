"""What a search asks of the logits of a large vocabulary: log-probabilities, and which are the highest.

Letters: N rows of P parts, V numbers each, M = P V.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ostinato.kernels import native


def log_probs(logits_NV: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return x and c, `[N]`, with x - c = log softmax(z) of every row's logits z; c None: 0.

    Compiled kernels read a row once, x = z and c = log sum_v e^z_v; to write x - c would take longer than that. Plain
    twin: x = log softmax(z).
    """
    if _is_ours(logits_NV):
        return logits_NV, native.log_sums(logits_NV)
    return torch.log_softmax(logits_NV, dim=-1), None


def highest(
    x_NM: Tensor, n: int, added_NP: Tensor | None = None, *, width: int = 64, least: int = 2**15
) -> tuple[Tensor, Tensor]:
    """Return the n highest numbers of every row, best first, and where they are. Plain twin: `torch.topk`.

    A CPU with compiled kernels looks at every number once. Elsewhere a row is divided into blocks of `width` numbers.
    The n highest numbers lie in the n blocks with the highest maxima, so only those blocks are ranked, which is faster
    from rows of about `least` numbers on. Of equal numbers any is returned.

    Args:
        x_NM: may be overwritten where something is added.
        added_NP: added first to all numbers of every part of a row.
    """
    N, M = x_NM.shape
    if 0 < n <= M and _is_ours(x_NM) and (added_NP is None or _is_ours(added_NP)):
        return native.highest(x_NM.view(N, 1 if added_NP is None else added_NP.shape[1], -1), n, added_NP)
    if added_NP is not None:
        x_NM = x_NM.view(*added_NP.shape, -1).add_(added_NP[:, :, None]).view(N, M)
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


def _is_ours(x: Tensor) -> bool:
    return native.takes(x) and x.is_contiguous() and not x.requires_grad
