"""Relative positions: what attention knows of the distance between query and key.

Distances are key position minus query position. A table may be shared by the steps of a stack or belong to one
parameter set of attention; the plan says which.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from ostinato.kernels import float64
from ostinato.nn.shapes import Float, Int, Tensor


class Turns(NamedTuple):
    """Cosines and sines of the angles by which the pairs of dimensions are turned at every position."""

    cos_BHTP: Float[Tensor, "#B 1 T P"]
    sin_BHTP: Float[Tensor, "#B 1 T P"]


class RelativePositions(nn.Module):
    """A relation between positions; this base knows none.

    `needs_bias` says whether `bias` returns something; `depends_on_queries` whether it must be computed anew at every
    step. `rotate` acts on queries and on new keys before they are cached, where `rotates` says so, by the `turns` of
    their positions. In `bias`, `is_causal` says that no query of the stack ever sees a later key; a prefix language
    model's do. `reach` is how many positions away a key may be to be seen (sliding window attention); None: any number.
    """

    needs_bias = False
    depends_on_queries = False
    rotates = False
    reach: int | None = None

    def turns(self, positions_BT: Int[Tensor, "#B T"], dtype: torch.dtype) -> Turns:
        """Return the turns of positions, for queries and keys of a type."""
        raise NotImplementedError(f"{type(self).__name__} does not rotate")

    def rotate(self, x_BHTK: Float[Tensor, "B H T K"], turns: Turns) -> Float[Tensor, "B H T K"]:
        """Return queries or keys as they enter the product."""
        return x_BHTK

    def bias(
        self, q_BHTK: Float[Tensor, "B H T K"], distance_BTS: Int[Tensor, "#B T S"], scale: float, is_causal: bool
    ) -> Tensor:
        """Return what is added to the scaled scores, `[B or 1, H, T, S]`."""
        raise NotImplementedError(f"{type(self).__name__} has no bias")


class RelativeWindow(RelativePositions):
    """Learned key offsets within a window (Shaw et al. 2018, eq. 4; keys only, clamped, zero-initialised as in SUT).

        bias[h, t, s] = scale * q[h, t] . r[h, :, clamp(s - t, -W, W) + W]

    Args:
        n_heads, d_head: sizes of the attention. window: W.
    """

    needs_bias = True
    depends_on_queries = True

    def __init__(self, n_heads: int, d_head: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.table_HKR = nn.Parameter(torch.zeros(n_heads, d_head, 2 * window + 1))

    def bias(
        self, q_BHTK: Float[Tensor, "B H T K"], distance_BTS: Int[Tensor, "#B T S"], scale: float, is_causal: bool
    ) -> Tensor:
        """Return q . r, gathered by distance."""
        scores_BHTR = (q_BHTK * scale) @ self.table_HKR.to(q_BHTK.dtype)
        B, H = scores_BHTR.shape[:2]
        index = (distance_BTS.clamp(-self.window, self.window) + self.window)[:, None]
        return scores_BHTR.gather(-1, index.expand(B, H, -1, -1))


class Buckets(RelativePositions):
    """One learned bias per head and bucket of distance (Raffel et al. 2020, section 2.1).

        bucket(l) = l                                                              l < m = n // 2
        bucket(l) = min(n - 1, m + floor((n - m) log(l / m) / log(max_distance / m)))  from m on

    A causal stack has n buckets for its keys to the left, l positions away; a bidirectional one has n = half of
    them for either side. All keys beyond max_distance share the last bucket.

    Args:
        n_heads: of the attention. n_buckets: of both sides together. max_distance: in positions.
    """

    needs_bias = True

    def __init__(self, n_heads: int, n_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.n_buckets = n_buckets
        self.max_distance = max_distance
        self.table_RH = nn.Parameter(torch.zeros(n_buckets, n_heads))

    def bucket(self, distance: Int[Tensor, "*N"], is_causal: bool) -> Int[Tensor, "*N"]:
        """Return the bucket of every distance."""
        if is_causal:
            n, base, length = self.n_buckets, torch.zeros_like(distance), (-distance).clamp_min(0)
        else:
            n = self.n_buckets // 2
            base, length = (distance > 0).long() * n, distance.abs()
        exact = n // 2
        growth = (length.clamp_min(1).to(float64(length.device)) / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (growth * (n - exact)).long()).clamp(max=n - 1)
        return base + torch.where(length < exact, length, far)

    def bias(
        self, q_BHTK: Float[Tensor, "B H T K"], distance_BTS: Int[Tensor, "#B T S"], scale: float, is_causal: bool
    ) -> Tensor:
        """Return the table's entries, gathered by distance."""
        return self.table_RH[self.bucket(distance_BTS, is_causal)].permute(0, 3, 1, 2)


class Alibi(RelativePositions):
    """A fixed penalty for distance (Press et al. 2021, section 3, ALiBi).

        bias[h, t, s] = -m_h |s - t|

    With H a power of two, m_h = 2^(-8 h / H), h = 1 .. H. Else as the authors' code does: the slopes of the largest
    power of two below H, then every other one of twice as many heads.
    """

    needs_bias = True

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        whole = 2 ** int(math.log2(n_heads))
        between = _slopes(2 * whole)[0::2][: n_heads - whole]
        self.slopes = (*_slopes(whole), *between)

    def bias(
        self, q_BHTK: Float[Tensor, "B H T K"], distance_BTS: Int[Tensor, "#B T S"], scale: float, is_causal: bool
    ) -> Tensor:
        """Return the penalties, in the type of the queries."""
        # A list copied to a GPU would wait for it, and may not be part of a recorded step: numbers are filled in there.
        slopes_H = torch.stack([q_BHTK.new_full((), slope) for slope in self.slopes])
        return -slopes_H[:, None, None] * distance_BTS[:, None].abs().to(q_BHTK.dtype)


def _slopes(n_heads: int) -> list[float]:
    return [2.0 ** (-8.0 * h / n_heads) for h in range(1, n_heads + 1)]


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Frequencies divided by a factor (Chen et al. 2023)."""

    factor: float

    def __call__(self, frequencies: Tensor) -> Tensor:
        """Return the scaled frequencies."""
        return frequencies / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Low frequencies f divided by a factor, high ones kept, those between mixed (Llama 3.1, public code).

        f' = (1 - s) f / factor + s f,   s = clamp((L f / (2 pi) - low) / (high - low), 0, 1)

    L is the original length, and L f / (2 pi) the turns within it.
    """

    factor: float
    low: float
    high: float
    original_length: int

    def __call__(self, frequencies: Tensor) -> Tensor:
        """Return the scaled frequencies."""
        turns = self.original_length * frequencies / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
        return (1 - kept) * frequencies / self.factor + kept * frequencies


class Rotary(RelativePositions):
    """Rotations of pairs of dimensions by an angle that grows with the position (Su et al. 2021, eq. 34).

    Of the first R components of a head, (x_j, x_{j + R/2}), or interleaved (x_{2 j}, x_{2 j + 1}), is turned by
    i * base^(-2j / R), j = 0 .. R/2 - 1: the scores depend on distances only.

    Args:
        d_head: K. base: of the frequencies. n_turned: R; None: K. is_interleaved: which pairs.
        scaling: from frequencies to other ones.
    """

    rotates = True

    def __init__(
        self,
        d_head: int,
        base: float,
        *,
        n_turned: int | None = None,
        is_interleaved: bool = False,
        scaling: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.base, self.is_interleaved, self.scaling = base, is_interleaved, scaling
        self.d_head = d_head
        self.n_turned = d_head if n_turned is None else n_turned

    def turns(self, positions_BT: Int[Tensor, "#B T"], dtype: torch.dtype) -> Turns:
        """Return cosines and sines of the angles of positions."""
        exact = float64(positions_BT.device)
        pairs = torch.arange(self.n_turned // 2, device=positions_BT.device, dtype=exact)
        frequencies = self.base ** (-2.0 * pairs / self.n_turned)
        if self.scaling is not None:
            frequencies = self.scaling(frequencies)
        angles = positions_BT[:, None, :, None].to(exact) * frequencies
        return Turns(angles.cos().to(dtype), angles.sin().to(dtype))

    def rotate(self, x_BHTK: Float[Tensor, "B H T K"], turns: Turns) -> Float[Tensor, "B H T K"]:
        """Turn queries or keys."""
        (cos, sin), R, half = turns, self.n_turned, self.n_turned // 2
        if self.is_interleaved:
            first, second = x_BHTK[..., 0:R:2], x_BHTK[..., 1:R:2]
            pairs_BHTP2 = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1)
            turned = [pairs_BHTP2.flatten(-2)]
        else:
            first, second = x_BHTK[..., :half], x_BHTK[..., half:R]
            turned = [first * cos - second * sin, second * cos + first * sin]
        if self.d_head > R:
            turned.append(x_BHTK[..., R:])
        return turned[0] if len(turned) == 1 else torch.cat(turned, dim=-1)


def repeat_for_choices(values: Tensor, n: int) -> Tensor:
    """Return positions `[B, T]` or distances `[B, T, S]` of the queries, n of which belong to one token."""
    return values if n == 1 else values.repeat_interleave(n, dim=1)


def bias_of_queries(bias: Tensor, columns_BA: Tensor | None) -> Tensor:
    """Return the rows of a bias, `[B or 1, H, T, S]`, that belong to these columns, `[B, H, A, S]`."""
    if columns_BA is None:
        return bias
    if bias.shape[0] == 1:
        rows = bias[0].index_select(1, columns_BA.flatten())
        return rows.view(bias.shape[1], *columns_BA.shape, -1).transpose(0, 1)
    index = columns_BA[:, None, :, None].expand(-1, bias.shape[1], -1, bias.shape[3])
    return bias.gather(2, index)
