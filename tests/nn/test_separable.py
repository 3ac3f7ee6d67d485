"""The separable convolution against its formula, column by column, beside padding, and among halted tokens."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from ostinato.nn.bank import Banks
from ostinato.nn.cache import ColumnWindow
from ostinato.nn.context import Pass
from ostinato.nn.halting import NoHalting, Visible, WholePass
from ostinato.nn.layers import build_norm
from ostinato.nn.positions import PositionSignal
from ostinato.nn.rows import Rows
from ostinato.nn.separable import SeparableConv, padding
from ostinato.nn.stack import Stack
from ostinato.plan import SubLayerPlan, build_plan
from reference.equations import depth_wise, relu
from reference.weights import read_affine

B, T, D, F = 3, 6, 4, 5


def _module(kernel_in: int = 3, kernel_out: int = 5, *, bias: bool = True) -> SeparableConv:
    torch.manual_seed(0)
    module = SeparableConv(D, F, kernel_in, kernel_out, bias=bias, dropout=0.0).double()
    for parameter in module.parameters():  # larger than at the beginning of training, so that the ReLU lets some pass
        nn.init.normal_(parameter)
    return module


def _plain(module: SeparableConv, x_TD: Tensor, is_causal: bool) -> Tensor:
    """Run the formula over the tokens of one sentence without padding."""
    up, down = read_affine(module.up), read_affine(module.down)
    tokens = list(x_TD)
    hidden = [relu(up(depth_wise(tokens, module.taps_in_KD, t, is_causal))) for t in range(len(tokens))]
    return torch.stack([down(depth_wise(hidden, module.taps_out_KF, t, is_causal)) for t in range(len(tokens))])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kernels", [(3, 5), (1, 1), (2, 4), (9, 2)])
def test_outputs_and_gradients_equal_the_formula_beside_padding(
    is_causal: bool, bias: bool, kernels: tuple[int, int]
) -> None:
    module = _module(*kernels, bias=bias)
    x_BTD = torch.randn(B, T, D).double().requires_grad_()
    keep_BT = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1]], dtype=torch.bool)
    found = module(x_BTD, is_causal=is_causal, keep_BT=keep_BT)[keep_BT]
    expected = torch.cat([_plain(module, x[keep], is_causal) for x, keep in zip(x_BTD, keep_BT, strict=True)])
    torch.testing.assert_close(found, expected)
    inputs = [x_BTD, *module.parameters()]
    weights = torch.randn(expected.shape).double()
    for one, two in zip(
        torch.autograd.grad((found * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("is_causal", [False, True])
def test_single_precision_equals_double_precision_in_outputs_and_gradients(is_causal: bool) -> None:
    torch.manual_seed(0)
    exact = SeparableConv(24, 40, 3, 5, bias=True, dropout=0.0).double()
    rough = SeparableConv(24, 40, 3, 5, bias=True, dropout=0.0)
    rough.load_state_dict(exact.state_dict())
    x_BTD = torch.randn(4, 17, 24)
    keep_BT = torch.arange(17) < torch.tensor([[17], [9], [1], [16]])
    found = []
    for module in (rough, exact):
        x = x_BTD.to(module.up.weight.dtype).requires_grad_()
        output = module(x, is_causal=is_causal, keep_BT=keep_BT)
        grads = torch.autograd.grad(output[keep_BT].square().sum(), [x, *module.parameters()])
        found.append([output[keep_BT], *grads])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one.double(), two, rtol=1e-5, atol=1e-5 * float(two.detach().abs().max()))


def test_what_stands_in_padding_is_never_read_and_its_biases_do_not_tell_where_a_sentence_ends() -> None:
    module = _module()
    x_BTD = torch.randn(1, T, D).double()
    alone = module(x_BTD[:, :4], is_causal=False)
    keep_BT = torch.arange(T)[None] < 4
    for fill in (0.0, 7.0, float("nan")):
        padded = x_BTD.masked_fill(~keep_BT[..., None], fill)
        torch.testing.assert_close(module(padded, is_causal=False, keep_BT=keep_BT)[:, :4], alone)
    # Zeros in place of the inputs alone do not do: the first map's bias would stand in the padding of the second.
    unmasked = module(x_BTD.masked_fill(~keep_BT[..., None], 0.0), is_causal=False)[:, :4]
    assert not torch.allclose(unmasked, alone)


@pytest.mark.parametrize(
    ("kernel", "is_causal", "expected"),
    [(1, False, (0, 0)), (2, False, (0, 1)), (3, False, (1, 1)), (4, False, (1, 2)), (5, True, (4, 0))],
)
def test_a_sentence_keeps_its_length_and_an_even_kernel_looks_one_further_to_the_right(
    kernel: int, is_causal: bool, expected: tuple[int, int]
) -> None:
    assert padding(kernel, is_causal) == expected
    module = _module(kernel, 1)
    nn.init.ones_(module.up.bias)  # every hidden unit is alive
    x_BTD = torch.zeros(1, 9, D).double().requires_grad_()
    module(x_BTD, is_causal=is_causal)[0, 4].sum().backward()
    assert x_BTD.grad is not None
    seen = x_BTD.grad[0].abs().sum(-1).nonzero().flatten().tolist()
    assert seen == list(range(4 - expected[0], 4 + expected[1] + 1))


@pytest.mark.parametrize("kernels", [(3, 5), (1, 1), (1, 4), (9, 2)])
@pytest.mark.parametrize("cuts", [[0, 1, 2, 3, 4, 5, 6], [0, 4, 6], [0, 1, 6], [0, 6]])
def test_columns_fed_in_parts_equal_the_full_pass_also_behind_left_padding(
    kernels: tuple[int, int], cuts: list[int]
) -> None:
    module = _module(*kernels)
    x_BTD = torch.randn(B, T, D).double()
    keep_BT = torch.arange(T) >= torch.tensor([[0], [2], [5]])
    full = module(x_BTD, is_causal=True, keep_BT=keep_BT)
    windows = (ColumnWindow(), ColumnWindow())
    parts = [
        module(x_BTD[:, a:b], is_causal=True, keep_BT=keep_BT[:, a:b], windows=windows)
        for a, b in itertools.pairwise(cuts)
    ]
    torch.testing.assert_close(torch.cat(parts, dim=1)[keep_BT], full[keep_BT])


def test_windows_follow_the_rows_that_are_selected() -> None:
    module = _module()
    x_BTD = torch.randn(B, T, D).double()
    windows = (ColumnWindow(), ColumnWindow())
    module(x_BTD[:, :4], is_causal=True, windows=windows)
    rows = torch.tensor([2, 0, 0])
    for window in windows:
        window.select(rows)
    found = module(x_BTD[rows, 4:], is_causal=True, windows=windows)
    torch.testing.assert_close(found, module(x_BTD, is_causal=True)[rows, 4:])


def test_a_convolution_that_sees_the_future_cannot_run_column_by_column() -> None:
    with pytest.raises(ValueError, match="pass is_causal=True"):
        _module()(torch.zeros(1, 1, D).double(), is_causal=False, windows=(ColumnWindow(), ColumnWindow()))


def test_dropout_acts_on_the_hidden_layer_in_training_only() -> None:
    module = SeparableConv(D, F, 3, 5, bias=True, dropout=0.5)
    x_BTD = torch.randn(B, T, D)
    torch.manual_seed(1)
    first, second = (module(x_BTD, is_causal=True) for _ in range(2))
    assert not torch.equal(first, second)
    module.eval()
    assert torch.equal(module(x_BTD, is_causal=True), module(x_BTD, is_causal=True))


class _FreezeAfterOneRound(NoHalting):
    """Tokens 1 and 4 halt after the first round: the others go on seeing what they were then."""

    halted_T = torch.tensor([False, True, False, False, True, False])

    def start(self, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int) -> _FrozenPass:
        return _FrozenPass(states_ND, rows, run)


class _FrozenPass(WholePass):
    frozen_ND: Tensor | None = None

    def enter(self, index: int, states_ND: Tensor, entered_ND: Tensor) -> tuple[None, Visible]:  # type: ignore[override]
        return None, self.visible

    def visible(self, states_ND: Tensor) -> Tensor:
        if self.frozen_ND is None:
            return states_ND
        return torch.where(_FreezeAfterOneRound.halted_T[:, None], self.frozen_ND, states_ND)

    def leave(self, index: int, states_ND: Tensor, left_ND: Tensor) -> Tensor:
        if self.frozen_ND is None:
            self.frozen_ND = left_ND
        return left_ND


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_neighbours_see_a_halted_token_as_it_last_stood(placement: str, is_causal: bool) -> None:
    banks = Banks()
    banks.ffn["one_0"] = module = _module()
    norm = build_norm("layer", D, 1e-5).double()
    banks.norm["ffn_one_0"], banks.norm["final_one"] = norm, nn.Identity()
    stack = Stack(
        build_plan("one", [SubLayerPlan("ffn", (0, 0, 0), "one", placement=placement)], n_steps=3),  # type: ignore[arg-type]
        banks.eval(),
        has_final_norm=placement == "pre",
        dropout=0.0,
        signal=PositionSignal(),
        is_causal=is_causal,
        halting=_FreezeAfterOneRound(),
    )
    x_BTD = torch.randn(1, T, D).double()
    found = stack(x_BTD).states_BTD

    def run(states: Tensor, visible: Tensor) -> Tensor:
        seen = norm(visible) if placement == "pre" else visible
        states = states + _plain(module, seen[0], is_causal)[None]
        return states if placement == "pre" else norm(states)

    halted = _FreezeAfterOneRound.halted_T[None, :, None]
    frozen = states = run(x_BTD, x_BTD)
    for _ in range(2):
        states = run(states, torch.where(halted, frozen, states))
    active = ~_FreezeAfterOneRound.halted_T
    torch.testing.assert_close(found[:, active], states[:, active])
    stack.halting = NoHalting()  # the same stack where nothing halts
    assert stack(x_BTD).halting is None
    assert not torch.allclose(stack(x_BTD).states_BTD[:, active], states[:, active])
