from __future__ import annotations

import math

import pytest
import torch

from ostinato.nn.attention import Attention
from ostinato.nn.experts import ExpertMaps
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.head_experts import HeadExpertAttention
from ostinato.nn.init import (
    Init,
    init_attention,
    init_embedding,
    init_expert_maps,
    init_feed_forward,
    init_head_experts,
    init_router,
    init_separable_conv,
)
from ostinato.nn.routing import Gate, LinearRouter
from ostinato.nn.separable import SeparableConv

D, INNER, F = 96, 64, 256

# Standard deviation of a block [fan_out, fan_in], from the table in ostinato.nn.init.
DEVIATION = {
    "xavier": lambda fan_out, fan_in: math.sqrt(2 / (fan_in + fan_out)),
    "normal": lambda fan_out, fan_in: 0.02,
    "unit_scaling": lambda fan_out, fan_in: math.sqrt(1 / fan_in),
    "torch": lambda fan_out, fan_in: math.sqrt(1 / (3 * fan_in)),
    "depth_scaled": lambda fan_out, fan_in: math.sqrt(2 / (3 * fan_in)),
}
"""depth_scaled: of three steps."""


def close(block: torch.Tensor, expected: float) -> bool:
    return math.isclose(block.std().item(), expected, rel_tol=0.06) and abs(block.mean().item()) < 0.1 * expected


@pytest.mark.parametrize("init", DEVIATION)
def test_packed_projections_are_initialised_as_if_they_stood_apart(init: Init) -> None:
    torch.manual_seed(0)
    attention = Attention(D, n_heads=4, d_head=INNER // 4, bias=True, dropout=0.0)
    init_attention(attention, init, n_steps=3)
    for block in attention.qkv.weight.detach().chunk(3):
        assert close(block, DEVIATION[init](INNER, D))
    shrink = math.sqrt(2 * 3) if init == "normal" else 1.0
    assert close(attention.out.weight.detach(), DEVIATION[init](D, INNER) / shrink)
    ffn = FeedForward(D, F, "geglu", bias=True, dropout=0.0)
    init_feed_forward(ffn, init, n_steps=3)
    for block in ffn.up.weight.detach().chunk(2):
        assert close(block, DEVIATION[init](F, D))
    assert close(ffn.down.weight.detach(), DEVIATION[init](D, F) / shrink)


@pytest.mark.parametrize("init", DEVIATION)
def test_the_parts_of_a_separable_convolution_are_initialised_by_their_own_fan_in(init: Init) -> None:
    torch.manual_seed(0)
    module = SeparableConv(512, 256, kernel_in=3, kernel_out=5, bias=True, dropout=0.0)
    init_separable_conv(module, init, n_steps=3)
    for taps, kernel in ((module.taps_in_KD, 3), (module.taps_out_KF, 5)):
        expected = kernel**-0.5 if init in ("normal", "depth_scaled") else DEVIATION[init](kernel, kernel)
        assert close(taps.detach(), expected)
    shrink = math.sqrt(2 * 3) if init == "normal" else 1.0
    assert close(module.up.weight.detach(), DEVIATION[init](256, 512))
    assert close(module.down.weight.detach(), DEVIATION[init](512, 256) / shrink)
    assert (module.up.bias.abs().max().item() == 0.0) == (init != "torch")


@pytest.mark.parametrize("init", DEVIATION)
def test_biases_are_zero_except_where_torch_draws_them(init: Init) -> None:
    torch.manual_seed(0)
    ffn = FeedForward(D, F, "relu", bias=True, dropout=0.0)
    init_feed_forward(ffn, init, n_steps=1)
    largest = ffn.up.bias.abs().max().item()
    assert (largest == 0.0) == (init != "torch")
    assert largest <= 1 / math.sqrt(D)


def test_depth_scaled_experts_have_the_fan_in_of_all_that_are_summed_and_routers_rows_of_one_length() -> None:
    torch.manual_seed(0)
    maps = ExpertMaps(5, D, 32, "relu", bias=False, dropout=0.0)
    init_expert_maps(maps, "depth_scaled", "model", n_steps=3)
    assert close(maps.up_EDF.detach(), math.sqrt(2 / (3 * D)))
    assert close(maps.down_EFD.detach(), math.sqrt(2 / (3 * 5 * 32)))
    routers = LinearRouter(D, 4 * 6), LinearRouter(D, 4 * 6)
    heads = HeadExpertAttention(*routers, Gate("sigmoid", 2, 6), D, 4, 16, dropout=0.0)
    init_head_experts(heads, "depth_scaled", "model", n_steps=3)
    for part, fan_in in ((heads.qk.weight, D), (heads.value_EDK, D), (heads.out_EKD, 4 * 16)):
        assert close(part.detach(), math.sqrt(2 / (3 * fan_in)))
    init_router(routers[0], "depth_scaled", n_steps=3)
    torch.testing.assert_close(routers[0].experts_ED.norm(dim=1), torch.full((24,), math.sqrt(2 / 3)))
    before = routers[1].experts_ED.detach().clone()
    init_router(routers[1], "xavier", n_steps=3)
    assert torch.equal(routers[1].experts_ED, before)


@pytest.mark.parametrize(("init", "expected"), [("normal", 0.02), ("xavier", D**-0.5), ("unit_scaling", D**-0.5)])
def test_embeddings_have_the_documented_deviation(init: Init, expected: float) -> None:
    torch.manual_seed(0)
    weight_VD = torch.empty(500, D)
    init_embedding(weight_VD, init)
    assert close(weight_VD, expected)
