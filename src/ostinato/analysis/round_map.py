"""What a loop does with its states, round by round, and how far the map of a round stretches them.

With h_t the states that leave round t of a loop and f_t the map of that round, h_t = f_t(h_{t-1}):

    norm       mean over tokens of ||h_t||
    change     mean over tokens of ||h_t - h_{t-1}|| / ||h_t||, from round 2; 0: a fixed point
    cosine     mean over the pairs of a sentence's tokens of cos(h_t,i, h_t,j); 1: all tokens have become the same
    radius     largest |eigenvalue| of the Jacobian J of f_t at h_{t-1}: below 1 small differences of the states die out

A radius is that of all states of a sentence together, by Arnoldi's iteration with the products w -> J^T w, which
backward passes give: J^T has J's eigenvalues, and no matrix is made. It is exact after as many products as there are
numbers in the states, and comes close to the largest eigenvalue long before, also where it is one of a complex pair.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ostinato.nn.shapes import Bool, Float, Tensor

N_PRODUCTS = 16
"""Of a radius."""


@dataclass(slots=True)
class RoundSums:
    """Sums over tokens and sentences of what leaves one round.

    Args:
        n_tokens, n_pairs: what `norm` and `change`, and `cosine`, are sums over.
    """

    norm: float = 0.0
    change: float = 0.0
    cosine: float = 0.0
    n_tokens: int = 0
    n_pairs: int = 0

    def add(
        self,
        left_BTD: Float[Tensor, "B T D"],
        before_BTD: Float[Tensor, "B T D"] | None,
        keep_BT: Bool[Tensor, "B T"],
    ) -> None:
        """Count the real tokens of some sentences, given the states before the round (None: not known)."""
        left_BTD, keep_BT = left_BTD.cpu().double(), keep_BT.cpu()  # there: not every device has float64
        norms_BT = left_BTD.norm(dim=-1)
        self.n_tokens += int(keep_BT.sum())
        self.norm += float(norms_BT[keep_BT].sum())
        if before_BTD is not None:
            change_BT = (left_BTD - before_BTD.cpu().double()).norm(dim=-1) / norms_BT.clamp_min(1e-12)
            self.change += float(change_BT[keep_BT].sum())
        units_BTD = torch.where(keep_BT[..., None], left_BTD / norms_BT.clamp_min(1e-12)[..., None], 0.0)
        lengths_B = keep_BT.sum(1)
        # All pairs of different tokens: the square of the sum less that of every token with itself.
        of_self_B = units_BTD.square().sum((1, 2))
        self.cosine += float((units_BTD.sum(1).square().sum(-1) - of_self_B).sum())
        self.n_pairs += int((lengths_B * (lengths_B - 1)).sum())

    def means(self) -> tuple[float, float, float]:
        """Return norm, change and cosine; NaN of what there was none of."""
        pairs = self.cosine / self.n_pairs if self.n_pairs else float("nan")
        return self.norm / max(self.n_tokens, 1), self.change / max(self.n_tokens, 1), pairs


def spectral_radius(
    function: Callable[[Tensor], Tensor], at: Tensor, *, n_products: int = N_PRODUCTS, seed: int = 0
) -> float:
    """Return the largest |eigenvalue| of a map's Jacobian, as far as so many products find it; NaN: it is not finite.

    Args:
        function: from states to states of the same shape, differentiable. at: where. seed: of the first vector.
    """
    with torch.enable_grad():
        at = at.detach().clone().requires_grad_()
        result = function(at)

        def product(vector_N: np.ndarray[tuple[int], np.dtype[np.float64]]) -> Tensor:
            given = torch.from_numpy(vector_N).to(result).view_as(result)
            (found,) = torch.autograd.grad(result, at, given, retain_graph=True)
            return found.detach().cpu().double().flatten()

        n = at.numel()
        draws = torch.Generator().manual_seed(seed)
        start_N = torch.randn(n, generator=draws, dtype=torch.float64, device="cpu").numpy()
        basis = [start_N / np.linalg.norm(start_N)]
        projected = np.zeros((n_products + 1, n_products))
        for k in range(min(n_products, n)):
            vector_N = product(basis[k]).numpy()
            if not np.isfinite(vector_N).all():
                return float("nan")
            size = np.linalg.norm(vector_N)
            # Twice, because rounding leaves a part of what is taken away.
            for _ in range(2):
                for i, known_N in enumerate(basis):
                    part = known_N @ vector_N
                    projected[i, k] += part
                    vector_N = vector_N - part * known_N
            rest = np.linalg.norm(vector_N)
            projected[k + 1, k] = rest
            # Where nothing is left, the vectors so far span an invariant subspace: eigenvalues in it are J's own.
            if rest <= 1e-10 * size or k + 1 == min(n_products, n):
                break
            basis.append(vector_N / rest)
        m = k + 1
        return float(np.abs(np.linalg.eigvals(projected[:m, :m])).max())
