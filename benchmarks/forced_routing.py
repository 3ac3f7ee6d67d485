"""Inputs that send every token to prescribed experts, through any router that is a linear map.

The first E coordinates of a token are its scores, and the router's matrix reads them out: E rows of the unit matrix.
The router does all its work, and every contestant's router comes to the same choice.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Distribution = Literal["uniform", "zipf"]
DISTRIBUTIONS = ("uniform", "zipf")
_CHOSEN, _NOISE = 2.0, 0.1


def shares(distribution: Distribution, n_experts: int, k: int) -> Tensor:
    """Return every expert's part of all choices, `[E]` in float64, summing to 1.

    uniform: 1 / E. zipf: proportional to 1 / rank; no expert can have more than 1 / k, for it is chosen at most once a
    token: what is above goes to the others.
    """
    ranks = torch.arange(1, n_experts + 1, dtype=torch.float64)
    parts = torch.ones_like(ranks) if distribution == "uniform" else 1 / ranks
    parts = parts / parts.sum()
    full = 0
    while full < n_experts and parts[full] > 1 / k:
        full += 1
        parts[:full] = 1 / k
        parts[full:] *= (1 - full / k) / parts[full:].sum()
    return parts


def choose(shares_E: Tensor, k: int, n_tokens: int, generator: torch.Generator) -> Tensor:
    """Return k different experts for every token, `[T, K]`, by systematic sampling.

    Expert e is chosen with probability k shares[e] exactly; tokens are independent.
    """
    ends_E = (k * shares_E).cumsum(0)
    start_T1 = torch.rand(n_tokens, 1, dtype=torch.float64, generator=generator)
    points_TK = start_T1 + torch.arange(k, dtype=torch.float64)
    return torch.searchsorted(ends_E, points_TK, right=True).clamp_max(len(shares_E) - 1)


def inputs(experts_TK: Tensor, n_experts: int, d_model: int, generator: torch.Generator) -> Tensor:
    """Return tokens, `[T, D]`, whose scores are near 2 for their experts and near 0 for the others."""
    n_tokens = experts_TK.shape[0]
    x_TD = torch.randn(n_tokens, d_model, generator=generator)
    scores_TE = _NOISE * torch.randn(n_tokens, n_experts, generator=generator)
    x_TD[:, :n_experts] = scores_TE.scatter_add(1, experts_TK, torch.full(experts_TK.shape, _CHOSEN))
    return x_TD


def router_matrix(n_experts: int, d_model: int) -> Tensor:
    """Return the matrix that reads the scores out, `[E, D]`.

    Raises:
        ValueError: more experts than coordinates.
    """
    if n_experts > d_model:
        raise ValueError(f"scores of {n_experts} experts do not fit into {d_model} coordinates")
    return torch.eye(n_experts, d_model)


def load(experts_TK: Tensor, n_experts: int) -> dict[str, float]:
    """Return the realised load: largest and smallest part of all choices, and the largest over the mean."""
    parts = torch.bincount(experts_TK.flatten(), minlength=n_experts).double() / experts_TK.numel()
    largest = float(parts.max())
    return {"largest": largest, "smallest": float(parts.min()), "largest_over_mean": largest * n_experts}
