from __future__ import annotations

import math

import pytest
import torch

from ostinato.nn.attention import Attention
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.init import Init, init_attention, init_embedding, init_feed_forward, init_separable_conv
from ostinato.nn.separable import SeparableConv

D, INNER, F = 96, 64, 256

# Standard deviation of a block [fan_out, fan_in], from the table in ostinato.nn.init.
DEVIATION = {
    "xavier": lambda fan_out, fan_in: math.sqrt(2 / (fan_in + fan_out)),
    "normal": lambda fan_out, fan_in: 0.02,
    "unit_scaling": lambda fan_out, fan_in: math.sqrt(1 / fan_in),
    "torch": lambda fan_out, fan_in: math.sqrt(1 / (3 * fan_in)),
}


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
        expected = kernel**-0.5 if init == "normal" else DEVIATION[init](kernel, kernel)
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


@pytest.mark.parametrize(("init", "expected"), [("normal", 0.02), ("xavier", D**-0.5), ("unit_scaling", D**-0.5)])
def test_embeddings_have_the_documented_deviation(init: Init, expected: float) -> None:
    torch.manual_seed(0)
    weight_VD = torch.empty(500, D)
    init_embedding(weight_VD, init)
    assert close(weight_VD, expected)
