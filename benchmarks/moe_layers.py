"""Feed-forwards of equal work a token: dense, the bare matrix products, ours, and a plain one on torch's grouped_mm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from forced_routing import Distribution, choose, inputs, load, router_matrix, shares
from layers import BOTH, FORWARD, Contestant, layer
from torch import Tensor, nn

from ostinato.config.experts import ExpertFeedForwardConfig
from ostinato.config.sub_layers import DenseFeedForwardConfig
from ostinato.kernels import Activation, BackendChoice, memory
from ostinato.kernels.devices import autocast_dtype
from ostinato.models.parts import build_sub_layer
from ostinato.nn.experts import ExpertFeedForward

_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Cell:
    """What all contestants of a comparison have in common.

    Args:
        n_tokens: in sentences of 128, of any length below that. width: hidden units that a token runs through, k times
            an expert's.
    """

    n_experts: int
    k: int
    routing: Distribution = "uniform"
    n_tokens: int = 4096
    d_model: int = 512
    width: int = 1536

    @property
    def d_ff(self) -> int:
        """Hidden width of one expert."""
        return self.width // self.k

    @property
    def d_gated(self) -> int:
        """Hidden width of one gated expert: three matrices in place of two."""
        return 2 * self.width // (3 * self.k)

    @property
    def batch(self) -> tuple[int, int]:
        """Sentences and their length."""
        length = min(_LENGTH, self.n_tokens)
        return self.n_tokens // length, length

    def key(self) -> dict[str, Any]:
        """Return it as data."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.n_experts}:{self.k}"


@dataclass(frozen=True, slots=True)
class Work:
    """The inputs of a cell.

    Args:
        x_BTD: they carry the scores. router_ED: reads them. experts_NK: what every router chooses.
    """

    cell: Cell
    x_BTD: Tensor
    router_ED: Tensor
    experts_NK: Tensor

    def load(self) -> dict[str, float]:
        """Return how the experts are used."""
        return load(self.experts_NK, self.cell.n_experts)


def make_work(cell: Cell, seed: int = 1, device: torch.device | None = None) -> Work:
    """Draw the inputs of a cell; the same ones for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    E, k = cell.n_experts, cell.k
    experts_NK = choose(shares(cell.routing, E, k), k, cell.n_tokens, generator)
    x_ND = inputs(experts_NK, E, cell.d_model, generator)
    router_ED = router_matrix(E, cell.d_model)
    return Work(cell, x_ND.view(*cell.batch, -1).to(device), router_ED.to(device), experts_NK)


def dense(work: Work, activation: Activation = "relu", *, is_compiled: bool = False) -> Contestant:
    """Our dense feed-forward whose work a token equals that of k experts."""
    name, width = ("dense", work.cell.width) if activation == "relu" else (f"dense {activation}", _gated(work.cell))
    settings = DenseFeedForwardConfig(d_ff=width, activation=activation, bias=False)
    return layer(name, "dense", _built(settings, work), work.x_BTD, is_compiled=is_compiled)


def _gated(cell: Cell) -> int:
    return 2 * cell.width // 3


def ours(
    work: Work, backend: BackendChoice = "auto", activation: Activation = "relu", *, is_compiled: bool = False
) -> Contestant:
    """Our mixture: router, sorting, gathering and combining included."""
    cell = work.cell
    module = our_module(work, activation)
    name = " ".join(
        ["ours", *([] if activation == "relu" else [activation]), *([] if backend == "auto" else [backend])]
    )

    def run(x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        return module(x_ND, module.route(x_ND, backend=backend)).view_as(x_BTD)

    return layer(name, "ours", module, work.x_BTD, run=run, note=str(cell.d_ff), is_compiled=is_compiled)


def ours_in_new_memory(work: Work) -> Contestant:
    """Ours without the memory of earlier gradients: the twin of `kernels.memory.room_for_gradient`."""
    one = ours(work)

    def both() -> None:
        before, memory.LEAST_BYTES = memory.LEAST_BYTES, sys.maxsize
        try:
            one.calls[BOTH]()
        finally:
            memory.LEAST_BYTES = before

    return replace(one, name="ours new memory", calls=dict(one.calls) | {BOTH: both})


def our_module(work: Work, activation: Activation = "relu") -> ExpertFeedForward:
    """Return our layer, whose router reads the prescribed scores."""
    cell = work.cell
    d_ff = cell.d_gated if activation == "geglu" else cell.d_ff
    settings = ExpertFeedForwardConfig(
        n_experts=cell.n_experts, top_k=cell.k, d_ff=d_ff, activation=activation, bias=False
    )
    module = _built(settings, work)
    _set(module.router.experts_ED, work.router_ED)
    return module


def _built(settings: DenseFeedForwardConfig | ExpertFeedForwardConfig, work: Work) -> Any:
    module = build_sub_layer(settings, work.cell.d_model, "xavier", n_steps=1, eps=1e-5)
    return module.to(work.x_BTD.device)


def _set(parameter: nn.Parameter, value: Tensor) -> None:
    with torch.no_grad():
        parameter.copy_(value)


def grouped_mm(work: Work, *, is_compiled: bool = False) -> Contestant:
    """The plainest sparse layer torch offers: sort, grouped product, ReLU, grouped product, index_add."""
    note = "sorts, torch.nn.functional.grouped_mm"
    module = GroupedFeedForward(work)
    return layer("torch grouped_mm", "reference", module, work.x_BTD, note=note, is_compiled=is_compiled)


class GroupedFeedForward(nn.Module):
    def __init__(self, work: Work) -> None:
        super().__init__()
        cell = work.cell
        device = work.x_BTD.device
        self.k, self.n_experts = cell.k, cell.n_experts
        self.router_ED = nn.Parameter(work.router_ED.clone())
        std = cell.d_model**-0.5
        self.up_EDF = nn.Parameter(std * torch.randn(cell.n_experts, cell.d_model, cell.d_ff, device=device))
        self.down_EFD = nn.Parameter(std * torch.randn(cell.n_experts, cell.d_ff, cell.d_model, device=device))

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, 1)
        gates_NK, experts_NK = torch.softmax(F.linear(x_ND, self.router_ED), 1).topk(self.k, dim=1)
        if self.k > 1:
            gates_NK = gates_NK / gates_NK.sum(1, keepdim=True)
        experts_M, order_M = experts_NK.flatten().sort(stable=True)
        rows_M = order_M // self.k
        ends_E = torch.bincount(experts_M, minlength=self.n_experts).cumsum(0).int()
        # Autocast leaves grouped products in the type they are given.
        dtype = autocast_dtype(x_ND.device) or x_ND.dtype
        x_MD, up_EDF, down_EFD = (x.to(dtype) for x in (x_ND[rows_M], self.up_EDF, self.down_EFD))
        y_MD = F.grouped_mm(torch.relu(F.grouped_mm(x_MD, up_EDF, offs=ends_E)), down_EFD, offs=ends_E)
        weighted_MD = (y_MD * gates_NK.flatten()[order_M, None]).to(x_ND.dtype)
        return torch.zeros_like(x_ND).index_add(0, rows_M, weighted_MD).view_as(x_BTD)


def limit(work: Work) -> Contestant:
    """The matrix products of the dense layer and nothing else, into memory that is there already."""
    cell = work.cell
    return _products("limit", work, [cell.n_tokens], cell.width, "torch.mm(out=)")


def limit_of_experts(work: Work) -> Contestant:
    """The matrix products of presorted experts of equal load, and nothing else."""
    cell = work.cell
    places = cell.n_tokens * cell.k
    ends = [places * e // cell.n_experts for e in range(cell.n_experts + 1)]
    sizes = [end - start for start, end in pairwise(ends)]
    return _products("limit of experts", work, sizes, cell.d_ff, "torch.mm(out=), balanced, presorted")


def _products(name: str, work: Work, sizes: Sequence[int], width: int, note: str) -> Contestant:
    """Return the products of y = (x U) V, and of its gradients, for rows in groups of these sizes."""
    M, D, n_groups = sum(sizes), work.cell.d_model, len(sizes)
    device = work.x_BTD.device
    x, y, dx, dy = (torch.randn(M, D, device=device) for _ in range(4))
    h, dh = (torch.randn(M, width, device=device) for _ in range(2))
    up, d_up = (torch.randn(n_groups, D, width, device=device) for _ in range(2))
    down, d_down = (torch.randn(n_groups, width, D, device=device) for _ in range(2))

    def over_groups(product: Callable[[int, slice], None]) -> None:
        start = 0
        for group, size in enumerate(sizes):
            product(group, slice(start, start + size))
            start += size

    def forward() -> None:
        over_groups(lambda g, rows: torch.mm(x[rows], up[g], out=h[rows]))
        over_groups(lambda g, rows: torch.mm(h[rows], down[g], out=y[rows]))

    def backward() -> None:
        over_groups(lambda g, rows: torch.mm(dy[rows], down[g].t(), out=dh[rows]))
        over_groups(lambda g, rows: torch.mm(h[rows].t(), dy[rows], out=d_down[g]))
        over_groups(lambda g, rows: torch.mm(dh[rows], up[g].t(), out=dx[rows]))
        over_groups(lambda g, rows: torch.mm(x[rows].t(), dh[rows], out=d_up[g]))

    def both() -> None:
        forward()
        backward()

    return Contestant(name, "limit", {FORWARD: forward, BOTH: both}, note=note)
