"""Feed-forwards of experts: every backend against the maps of single rows written out, outputs and all gradients."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from ostinato.errors import ConfigError
from ostinato.kernels import Activation, Backend, Dispatch, ExpertWeights, Kept, dispatch, expert_feed_forward
from ostinato.kernels.choose import choose_backend
from ostinato.kernels.feedforward import feed_forward_by, try_feed_forward
from reference.equations import ACTIVATIONS as OF

pytestmark = pytest.mark.device

BACKENDS: list[Backend] = ["loop", "segments", "padded", "grouped"]
ACTIVATIONS: list[Activation] = ["relu", "relu2", "gelu", "geglu", "swiglu"]


@pytest.fixture(autouse=True)
def _fixed_numbers() -> None:
    torch.manual_seed(0)


class Case:
    """Random rows, weights, gates and a dispatch that leaves rows out."""

    def __init__(
        self,
        activation: Activation,
        *,
        n: int = 7,
        k: int = 2,
        e: int = 4,
        d: int = 4,
        f: int = 8,
        has_bias: bool = True,
        experts: torch.Tensor | None = None,
        left_out: tuple[int, ...] = (),
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        make = torch.Generator().manual_seed(seed)

        def numbers(*shape: int) -> torch.Tensor:
            scale = shape[1] ** -0.5 if len(shape) == 3 else 1.0
            return (scale * torch.randn(*shape, generator=make, dtype=dtype)).requires_grad_()

        hidden = 2 * f if OF[activation][1] else f
        self.activation, self.f = activation, f
        self.x, self.gates = numbers(n, d), numbers(n, k)
        self.weights = ExpertWeights(
            numbers(e, d, hidden),
            numbers(e, hidden) if has_bias else None,
            numbers(e, f, d),
            numbers(e, d) if has_bias else None,
        )
        if experts is None:  # the last expert stays empty
            experts = torch.stack([torch.randperm(e - 1, generator=make)[:k] for _ in range(n)])
        self.experts = experts
        self.weight_N = torch.ones(n)
        self.weight_N[torch.tensor(left_out, dtype=torch.long)] = 0.0
        self.to: Dispatch = dispatch(self.experts, e, self.weight_N)

    @property
    def leaves(self) -> list[torch.Tensor]:
        return [leaf for leaf in (self.x, *self.weights, self.gates) if leaf is not None]

    def by(self, backend: Backend, dropped: torch.Tensor | None = None, dropout: float = 0.0) -> torch.Tensor:
        kept = None if dropped is None else kept_of(dropped, dropout)
        return feed_forward_by(backend, self.x, self.weights, self.gates, self.to, self.activation, kept)

    def by_single_rows(self, dropped: torch.Tensor | None = None, dropout: float = 0.0) -> torch.Tensor:
        """Return the formula, one place at a time, with the functions of torch.nn only."""
        up, up_bias, down, down_bias = self.weights
        out = [torch.zeros(down.shape[2], dtype=self.x.dtype) for _ in range(self.x.shape[0])]
        for place, slot in enumerate(self.to.slots_M.tolist()):
            n, k = divmod(slot, self.gates.shape[1])
            if self.weight_N[n] == 0:  # where the host runs ahead, such rows stand behind all experts, and give nothing
                continue
            e = int(self.experts[n, k])
            before = self.x[n] @ up[e] + (0 if up_bias is None else up_bias[e])
            act, is_gated = OF[self.activation]
            hidden = act(before[: self.f])
            if is_gated:
                hidden = hidden * before[self.f :]
            if dropped is not None:
                hidden = torch.where(dropped[place], 0.0, hidden / (1 - dropout))
            out[n] = out[n] + self.gates[n, k] * (hidden @ down[e] + (0 if down_bias is None else down_bias[e]))
        return torch.stack(out)


def kept_of(dropped: torch.Tensor, p: float) -> Kept:
    return Kept((~dropped).view(torch.uint8), 1 / (1 - p))


def assert_same(found: torch.Tensor, expected: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    torch.testing.assert_close(found, expected)
    seed = torch.randn_like(expected)
    mine = torch.autograd.grad(found, leaves, seed, allow_unused=True, materialize_grads=True)
    theirs = torch.autograd.grad(expected, leaves, seed, allow_unused=True, materialize_grads=True)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


def dtype_of(backend: Backend) -> torch.dtype:
    """torch's grouped product has no float64."""
    return torch.float32 if backend == "grouped" else torch.float64


@pytest.mark.sampled
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_backend_equals_the_formula_in_outputs_and_all_gradients(
    backend: Backend, activation: Activation
) -> None:
    for seed, (has_bias, left_out, dropout) in enumerate(itertools.product((True, False), ((), (0, 3)), (0.0, 0.4))):
        case = Case(activation, has_bias=has_bias, left_out=left_out, dtype=dtype_of(backend), seed=seed)
        dropped = torch.rand(case.to.slots_M.shape[0], case.f) < dropout if dropout else None
        assert_same(case.by(backend, dropped, dropout), case.by_single_rows(dropped, dropout), case.leaves)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_token_all_to_one_expert_and_odd_sizes(backend: Backend) -> None:
    widths = {"d": 4, "f": 8} if backend == "grouped" else {"d": 3, "f": 5}
    for n in (1, 9):
        case = Case("gelu", n=n, k=1, experts=torch.full((n, 1), 2), dtype=dtype_of(backend), **widths)
        assert_same(case.by(backend), case.by_single_rows(), case.leaves)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_row_at_all_gives_zeros_and_no_gradient(backend: Backend) -> None:
    case = Case("relu", n=3, left_out=(0, 1, 2), dtype=dtype_of(backend))
    out = case.by(backend)
    assert out.shape == (3, 4)
    assert not out.any()
    grads = torch.autograd.grad(out.sum(), case.leaves, allow_unused=True)
    assert all(grad is None or not grad.any() for grad in grads)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_rows_that_take_no_part_may_hold_nan(backend: Backend, activation: Activation) -> None:
    case = Case(activation, left_out=(1, 4), dtype=dtype_of(backend))
    with torch.no_grad():
        case.x[1::3] = float("nan")  # the second and the fifth
        case.gates[1::3] = float("nan")
    out = case.by(backend)
    assert out.isfinite().all()
    assert not out[1::3].any()
    grads = torch.autograd.grad(out.square().sum(), case.leaves)
    assert all(grad.isfinite().all() for grad in grads)
    assert not grads[0][1::3].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("is_sorted", [True, False])
def test_transposed_rows_and_gradients_of_stride_zero_are_taken(backend: Backend, is_sorted: bool) -> None:
    case = Case("gelu", dtype=dtype_of(backend))
    M = case.to.slots_M.shape[0]
    rows = torch.randn(4, M if is_sorted else 7, dtype=case.x.dtype).t().requires_grad_()
    gates = None if is_sorted else case.gates
    results = []
    for name in (backend, "loop"):
        y = feed_forward_by(name, rows, case.weights, gates, case.to, "gelu")  # type: ignore[arg-type]
        results.append([y, *torch.autograd.grad(y.sum(), [rows, case.weights.up_EDF, case.weights.down_EFD])])
        turned = torch.randn(4, y.shape[0], dtype=y.dtype, generator=torch.Generator().manual_seed(3)).t()
        y = feed_forward_by(name, rows, case.weights, gates, case.to, "gelu")  # type: ignore[arg-type]
        results[-1] += torch.autograd.grad(y, [rows, case.weights.up_EDF], turned)
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_are_the_numerical_ones(activation: Activation) -> None:
    case = Case(activation, n=4, d=3, f=4, left_out=(2,))
    dropped = torch.rand(case.to.slots_M.shape[0], case.f, generator=torch.Generator().manual_seed(1)) < 0.3

    def run(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        *weights, gates = rest
        return feed_forward_by(
            "segments", x, ExpertWeights(*weights), gates, case.to, activation, kept_of(dropped, 0.3)
        )

    assert torch.autograd.gradcheck(run, tuple(case.leaves))


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_experts_still_hand_gradients_to_rows_and_gates(backend: Backend) -> None:
    case = Case("relu", dtype=dtype_of(backend))
    expected = torch.autograd.grad(case.by_single_rows().square().sum(), [case.x, case.gates])
    case.weights = ExpertWeights(*(None if weight is None else weight.detach() for weight in case.weights))  # type: ignore[arg-type]
    for mine, theirs in zip(
        torch.autograd.grad(case.by(backend).square().sum(), [case.x, case.gates]), expected, strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.device(False)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_autocast_multiplies_in_its_type_and_gradients_come_back_in_float32(
    backend: Backend, activation: Activation
) -> None:
    case = Case(activation, d=8, dtype=torch.float32)
    expected = case.by("loop")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = expert_feed_forward(case.x, case.weights, case.gates, case.to, activation, backend=backend)
        inside = torch.autograd.grad(found.float().sum(), case.leaves, retain_graph=True)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.02 * expected.norm()
    grads = torch.autograd.grad(found.float().sum(), case.leaves)
    for one, other, exact in zip(grads, inside, torch.autograd.grad(expected.sum(), case.leaves), strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert (one - exact).norm() < 0.03 * exact.norm()
        assert (other - exact).norm() < 0.03 * exact.norm()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dropout_draws_the_same_units_for_every_backend_and_seed(activation: Activation) -> None:
    case = Case(activation, n=64, f=64)
    outs = []
    for backend in ("loop", "segments", "padded", "segments"):
        torch.manual_seed(5)
        out = expert_feed_forward(case.x, case.weights, case.gates, case.to, activation, dropout=0.25, backend=backend)  # type: ignore[arg-type]
        outs.append([out, *torch.autograd.grad(out.square().sum(), case.leaves)])
    for other in outs[1:]:
        for mine, theirs in zip(other, outs[0], strict=True):
            torch.testing.assert_close(mine, theirs)
    assert all(torch.equal(a, b) for a, b in zip(outs[1], outs[3], strict=True))
    torch.manual_seed(6)
    again = expert_feed_forward(case.x, case.weights, case.gates, case.to, activation, dropout=0.25)
    assert not torch.allclose(again, outs[0][0])


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    case = Case("relu", n=256, k=1, e=2, d=32, f=32, experts=torch.zeros(256, 1).long(), has_bias=False)
    eye = torch.eye(32, dtype=torch.float64).expand(2, 32, 32)
    weights = ExpertWeights(eye, None, eye, None)
    ones = torch.ones(256, 32, dtype=torch.float64)
    torch.manual_seed(0)
    out = expert_feed_forward(ones, weights, ones[:, :1], case.to, "relu", dropout=0.25, backend="segments")
    assert set(out.unique().tolist()) == {0.0, 1 / 0.75}
    assert out.mean().item() == pytest.approx(1.0, abs=0.02)


def test_checkpointing_gives_the_same_gradients_with_dropout() -> None:
    case = Case("gelu", n=16)

    def run(x: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
        return expert_feed_forward(x, case.weights, gates, case.to, "gelu", dropout=0.3, backend="segments")

    results = []
    for is_checkpointed in (False, True):
        torch.manual_seed(2)
        y = checkpoint(run, case.x, case.gates, use_reentrant=False) if is_checkpointed else run(case.x, case.gates)
        results.append([y, *torch.autograd.grad(y.square().sum(), case.leaves)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_without_gradients_the_numbers_are_the_same_and_no_hidden_layer_of_all_places_stands(
    activation: Activation,
) -> None:
    case = Case(activation, n=64, f=32)
    expected = case.by("segments").detach()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode, _Allocations() as seen:
            torch.testing.assert_close(case.by("segments"), expected, rtol=0, atol=0)
        assert max(seen.counts) < case.to.slots_M.shape[0] * case.weights.up_EDF.shape[2]


def test_the_backward_of_many_experts_allocates_each_weight_gradient_once() -> None:
    """Indexing stacked weights under autograd would make a zero tensor of all experts for each of them."""
    E = 64
    case = Case("relu", n=96, e=E, d=16, f=16)
    out = case.by("segments").sum()
    with _Allocations() as seen:
        torch.autograd.grad(out, case.leaves)
    # Both weight gradients, and the few tensors of the rows; E of them would be E * E * 16 * 16.
    assert sum(seen.counts) < 6 * E * 16 * 16
    assert sum(count == E * 16 * 16 for count in seen.counts) == 2


@pytest.mark.device(False)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_rounding_in_a_short_type_refuses_no_backend(activation: Activation) -> None:
    cpu = torch.device("cpu")
    assert choose_backend("segments", cpu, torch.bfloat16, try_feed_forward, 32, 8, activation) == "segments"


@pytest.mark.device(False)
def test_a_backend_that_does_not_work_here_is_a_named_error() -> None:
    case = Case("relu", d=3, f=5, dtype=torch.float32)
    with pytest.raises(ConfigError, match=r"backend is 'grouped': does not work on cpu with torch\.float32"):
        expert_feed_forward(case.x, case.weights, case.gates, case.to, "relu", backend="grouped")
    with pytest.raises(ConfigError, match="must be auto or one of loop, segments, padded, grouped"):
        expert_feed_forward(case.x, case.weights, case.gates, case.to, "relu", backend="triton")  # type: ignore[arg-type]


class _Allocations(TorchDispatchMode):
    """Counts the elements of every new tensor; views, writes in place and into given tensors are none."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        makes = not any(returned.alias_info is not None for returned in func._schema.returns)
        if makes and isinstance(result, torch.Tensor):
            self.counts.append(result.numel())
        return result
