"""Position-wise feed-forward maps."""

from __future__ import annotations

from torch import nn

from ostinato.kernels import Activation, activate, drop_activated
from ostinato.nn.dropout import Drops
from ostinato.nn.linear import Linear
from ostinato.nn.shapes import Float, Tensor


class FeedForward(Drops, nn.Module):
    """The transition of one step.

        relu, gelu:  dropout(act(x W1 + b1)) W2 + b2                  Vaswani et al. 2017, eq. 2
        geglu:       dropout(gelu(x Wg + bg) * (x W1 + b1)) W2 + b2   Shazeer 2020 (T5 1.1: no biases)

    Args:
        d_model, d_ff: widths of states and hidden layer. dropout: of the hidden layer.
    """

    def __init__(self, d_model: int, d_ff: int, activation: Activation, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.is_gated = activation == "geglu"
        # The gate's rows stand before the linear branch's: one matmul for both.
        self.up = Linear(d_model, 2 * d_ff if self.is_gated else d_ff, bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)

    def route(self, x_ND: Float[Tensor, "N D"], weight_N: Tensor | None = None) -> None:
        """Return None: every row runs all weights."""

    def forward(self, x_BTD: Float[Tensor, "*B D"], decision: None = None) -> Float[Tensor, "*B D"]:
        """Map every position by itself."""
        before = self.up(x_BTD)
        if self.drops:
            hidden = drop_activated(before, self.activation, self.dropout, self.draws)
        else:
            hidden = activate(before, self.activation)
        return self.down(hidden)  # type: ignore[no-any-return]
