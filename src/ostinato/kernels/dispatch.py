"""Rows sorted by expert, computed once for a routing decision and used by all of its projections.

A row n with chosen experts e_1 .. e_K has the slots n K .. n K + K - 1. Slots that take part are sorted by expert,
stably, so that the rows of one expert stand side by side: expert e has the sorted slots ends[e - 1] .. ends[e] - 1.
Slots of rows without weight (padding, halted tokens) are left out: they cost nothing. How many they are depends on
values of tensors: where reading these means to wait for a device (`ostinato.kernels.devices`), such slots stand behind
those of all experts instead, and products give 0 for them.

    gather:   sorted[m] = x[row of m]
    combine:  out[n] = sum_k gate[n, k] * sorted[place of slot (n, k)]

In a pass that is traced once for all data every expert has a place for every row, and of these only those are combined
whose expert the row chose (`DenseDispatch`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ostinato.kernels.devices import runs_ahead


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Where every chosen row goes.

    Args:
        slots_M: slot n K + k of every sorted place. rows_M: its row n. experts_M: its expert.
        ends_E: int32, sorted places up to and with each expert's last.
        n_rows, n_chosen: N and K.
        kept_M1: True at places that have an expert, where others stand behind them (with the number of the last one in
            `experts_M`); None: all have.
    """

    slots_M: Tensor
    rows_M: Tensor
    experts_M: Tensor
    ends_E: Tensor
    n_rows: int
    n_chosen: int
    kept_M1: Tensor | None = None
    _bounds: list[tuple[int, int]] = field(default_factory=list, repr=False, compare=False)
    _places: list[Tensor] = field(default_factory=list, repr=False, compare=False)
    _firsts: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    @property
    def n_experts(self) -> int:
        """Number of experts, empty ones included."""
        return self.ends_E.shape[0]

    @property
    def is_complete(self) -> bool:
        """True where every slot has a place."""
        return self.slots_M.shape[0] == self.n_rows * self.n_chosen

    def bounds(self) -> list[tuple[int, int]]:
        """Return first and last place (exclusive) of every expert, on the host; waits for an accelerator, once."""
        if not self._bounds:
            ends = self.ends_E.tolist()
            self._bounds.extend(zip([0, *ends[:-1]], ends, strict=True))
        return self._bounds

    def places(self, experts: slice | None) -> slice:
        """Return the places of some experts, which stand side by side; None: all, also those without an expert."""
        if experts is None:
            return slice(0, self.slots_M.shape[0])
        bounds = self.bounds()[experts]
        return slice(bounds[0][0], bounds[-1][1])

    def bags(self) -> tuple[Tensor, Tensor]:
        """Return the places `[M]` in the order of their slots, and where those of every row begin among them, `[N]`."""
        if not self._firsts:
            counts_N = torch.bincount(self.rows_M, minlength=self.n_rows)
            self._firsts.append(counts_N.cumsum(0) - counts_N)
        return self.by_slots(), self._firsts[0]

    def by_slots(self) -> Tensor:
        """Return the places `[M]` in the order of their slots."""
        if not self._places:
            if self.is_complete:  # slots are a permutation, and this is its inverse: no need to sort
                numbers_M = torch.arange(self.slots_M.shape[0], device=self.slots_M.device)
                self._places.append(torch.empty_like(self.slots_M).scatter_(0, self.slots_M, numbers_M))
            else:
                self._places.append(torch.argsort(self.slots_M))
        return self._places[0]

    def n_kept(self) -> int:
        """Return how many places have an expert; waits for an accelerator where some have none."""
        return self.slots_M.shape[0] if self.kept_M1 is None else self.bounds()[-1][1]


@dataclass(frozen=True, slots=True)
class DenseDispatch(Dispatch):
    """Every row at every expert: place e N + n is row n at expert e. Slots have no place of their own.

    Args:
        experts_NK: the chosen ones, which differ. keep_N: rows that take part; None: all.
    """

    experts_NK: Tensor = field(kw_only=True)
    keep_N: Tensor | None = field(kw_only=True)

    def gather(self, x_ND: Tensor) -> Tensor:
        """See `gather`."""
        return x_ND.repeat(self.n_experts, 1)

    def combine(self, y_MD: Tensor, gates_NK: Tensor) -> Tensor:
        """See `combine`."""
        # Of the chosen ones only: what overflows in another expert would be NaN, also times 0.
        y_NKD = self.to_slots(y_MD).view(self.n_rows, self.n_chosen, y_MD.shape[1])
        return torch.bmm(self._kept(gates_NK).to(y_MD.dtype)[:, None], y_NKD).squeeze(1)

    def to_slots(self, y_MD: Tensor) -> Tensor:
        """See `reorder`."""
        y_NED = y_MD.view(self.n_experts, self.n_rows, y_MD.shape[1]).transpose(0, 1)
        index_NKD = self.experts_NK[..., None].expand(-1, -1, y_MD.shape[1])
        return self._kept(y_NED.gather(1, index_NKD)).flatten(0, 1)

    def from_slots(self, x_SD: Tensor) -> Tensor:
        """See `reorder`."""
        x_NKD = x_SD.view(self.n_rows, self.n_chosen, x_SD.shape[1])
        x_NED = x_NKD.new_zeros(self.n_rows, self.n_experts, x_SD.shape[1])
        x_NED = x_NED.scatter(1, self.experts_NK[..., None].expand_as(x_NKD), x_NKD)
        return x_NED.transpose(0, 1).flatten(0, 1)

    def _kept(self, values: Tensor) -> Tensor:
        """Return values `[N, ...]`, 0 of rows that take no part."""
        if self.keep_N is None:
            return values
        return values.masked_fill(~self.keep_N.view(-1, *(1 for _ in values.shape[1:])), 0.0)


def dense_dispatch(experts_NK: Tensor, n_experts: int, weight_N: Tensor | None = None) -> DenseDispatch:
    """Send every row to all experts. Args: see `dispatch`."""
    n_rows, n_chosen = experts_NK.shape
    rows_M = torch.arange(n_rows, device=experts_NK.device).repeat(n_experts)
    experts_E = torch.arange(n_experts, device=experts_NK.device)
    experts_M = experts_E[:, None].expand(-1, n_rows).flatten()
    ends_E = ((experts_E + 1) * n_rows).to(torch.int32)
    keep_N = None if weight_N is None else weight_N > 0
    places = rows_M, rows_M, experts_M, ends_E
    return DenseDispatch(*places, n_rows, n_chosen, experts_NK=experts_NK, keep_N=keep_N)


def dispatch(experts_NK: Tensor, n_experts: int, weight_N: Tensor | None = None) -> Dispatch:
    """Sort the slots of chosen experts.

    Args:
        experts_NK: int64 indices of the chosen experts.
        n_experts: E.
        weight_N: rows of weight 0 are left out; None: all take part.
    """
    n_rows, n_chosen = experts_NK.shape
    flat = experts_NK.reshape(-1)
    numbers_E = torch.arange(n_experts, device=flat.device)
    kept_M1 = None
    if weight_N is None:
        experts_M, slots_M = torch.sort(flat, stable=True)
    elif runs_ahead(flat.device):
        flat = torch.where(weight_N[:, None] > 0, experts_NK, n_experts).reshape(-1)
        experts_M, slots_M = torch.sort(flat, stable=True)
        kept_M1 = (experts_M < n_experts)[:, None]
    else:
        slots = (weight_N > 0).repeat_interleave(n_chosen).nonzero().squeeze(1)
        experts_M, order = torch.sort(flat[slots], stable=True)
        slots_M = slots[order]
    ends_E = torch.searchsorted(experts_M, numbers_E, right=True, out_int32=True)
    experts_M = experts_M if kept_M1 is None else experts_M.clamp_max(n_experts - 1)
    return Dispatch(slots_M, slots_M // n_chosen, experts_M, ends_E, n_rows, n_chosen, kept_M1)


def gather(x_ND: Tensor, to: Dispatch) -> Tensor:
    """Return the rows sorted by expert, `[M, D]`; the gradient of a row is the sum over its places."""
    if isinstance(to, DenseDispatch):
        return to.gather(x_ND)
    if torch.compiler.is_compiling():  # here and below it makes a backward pass of its own
        return x_ND.index_select(0, to.rows_M)
    return _Gather.apply(x_ND, to)  # type: ignore[no-any-return, no-untyped-call]


def combine(y_MD: Tensor, gates_NK: Tensor, to: Dispatch) -> Tensor:
    """Return for every row the sum of its sorted places, weighted by their gates, `[N, D]`; 0 where none took part.

    Gates of slots that were left out are not read, and get a gradient of 0.
    """
    if isinstance(to, DenseDispatch):
        return to.combine(y_MD, gates_NK)
    if torch.compiler.is_compiling():
        return _combined(zero_behind(y_MD, to), gates_NK, to)
    return _Combine.apply(y_MD, gates_NK, to)  # type: ignore[no-any-return, no-untyped-call]


def reorder(x: Tensor, to: Dispatch, *, to_slots: bool) -> Tensor:
    """Return places `[M, D]` as slots `[N K, D]`, 0 where a slot was left out; or slots as places."""
    if isinstance(to, DenseDispatch):
        return to.to_slots(x) if to_slots else to.from_slots(x)
    if torch.compiler.is_compiling():
        return _reordered(x, to, to_slots)
    return _Reorder.apply(x, to, to_slots)  # type: ignore[no-any-return, no-untyped-call]


def by_slot(y_MD: Tensor, to: Dispatch) -> Tensor:
    """Return sorted places in the order of their slots, `[N, K, D]`, zeros where a slot was left out."""
    if to.is_complete:
        slots = y_MD.index_select(0, to.by_slots())
    else:
        slots = y_MD.new_zeros(to.n_rows * to.n_chosen, y_MD.shape[1]).index_copy_(0, to.slots_M, y_MD)
    return slots.view(to.n_rows, to.n_chosen, y_MD.shape[1])


def gates_of_places(gates_NK: Tensor, to: Dispatch, dtype: torch.dtype) -> Tensor:
    """Return the gate of every place, `[M]`; 0 at places without an expert."""
    gates_M = gates_NK.reshape(-1).index_select(0, to.slots_M).to(dtype)
    return gates_M if to.kept_M1 is None else torch.where(to.kept_M1[:, 0], gates_M, 0.0)


def zero_behind(x_MD: Tensor, to: Dispatch) -> Tensor:
    """Return rows by place with 0 at places without an expert; their gradient is 0, too."""
    return x_MD if to.kept_M1 is None else torch.where(to.kept_M1, x_MD, 0.0)


def gates_gradient(grad_M: Tensor | None, gates_NK: Tensor, to: Dispatch) -> Tensor | None:
    """Return gradients of places as those of gates; 0 where a slot was left out."""
    if grad_M is None:
        return None
    flat = gates_NK.new_zeros(gates_NK.numel())
    return flat.index_copy_(0, to.slots_M, grad_M.to(flat.dtype)).view(gates_NK.shape)


def _reordered(x: Tensor, to: Dispatch, to_slots: bool) -> Tensor:
    return by_slot(x, to).flatten(0, 1) if to_slots else x.index_select(0, to.slots_M)


def _combined(y_MD: Tensor, gates_NK: Tensor, to: Dispatch) -> Tensor:
    """Return the sums of places that have an expert; gates of other slots count 0, whatever they hold."""
    gates = gates_NK.to(y_MD.dtype)
    if to.kept_M1 is not None:
        kept = torch.empty_like(to.kept_M1[:, 0]).index_copy_(0, to.slots_M, to.kept_M1[:, 0])
        gates = gates.masked_fill(~kept.view_as(gates), 0.0)
    elif not to.is_complete:
        kept = torch.zeros(gates.numel(), dtype=torch.bool, device=gates.device)
        kept[to.slots_M] = True
        gates = gates.masked_fill(~kept.view_as(gates), 0.0)
    return torch.bmm(gates[:, None], by_slot(y_MD, to)).squeeze(1)


class _Gather(torch.autograd.Function):
    """index_select whose backward is a copy and a sum over K in place of an addition row by row."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, to: Dispatch) -> Tensor:
        ctx.to = to
        return x_ND.index_select(0, to.rows_M)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_MD: Tensor) -> tuple[Tensor, None]:
        grad_NKD = by_slot(grad_MD, ctx.to)
        return grad_NKD.squeeze(1) if ctx.to.n_chosen == 1 else grad_NKD.sum(1), None


class _Reorder(torch.autograd.Function):
    """A copy row by row, from places to slots or back, whose backward is the opposite copy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, to: Dispatch, to_slots: bool) -> Tensor:
        ctx.to, ctx.to_slots = to, to_slots
        return _reordered(x, to, to_slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        to: Dispatch = ctx.to
        return (grad.index_select(0, to.slots_M) if ctx.to_slots else by_slot(grad, to).flatten(0, 1)), None, None


class _Combine(torch.autograd.Function):
    """Weighted scatter."""

    @staticmethod
    def forward(ctx: Any, y_MD: Tensor, gates_NK: Tensor, to: Dispatch) -> Tensor:
        ctx.to = to
        # Rows without weight may hold anything, and NaN times 0 is NaN.
        y_MD = zero_behind(y_MD, to)
        ctx.save_for_backward(y_MD, gates_NK)
        return _combined(y_MD, gates_NK, to)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_ND: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        to: Dispatch = ctx.to
        y_MD, gates_NK = ctx.saved_tensors
        at_places = grad_ND.index_select(0, to.rows_M)
        of_places = (at_places * y_MD).sum(1) if ctx.needs_input_grad[1] else None
        grad_y = None
        if ctx.needs_input_grad[0]:
            grad_y = at_places.mul_(gates_of_places(gates_NK, to, at_places.dtype)[:, None])
        return grad_y, gates_gradient(of_places, gates_NK, to), None
