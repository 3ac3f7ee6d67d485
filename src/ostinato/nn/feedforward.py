"""The feed-forward: a map of every position by itself, and the sub-layer that it is."""

from __future__ import annotations

from typing import Any

from torch import nn

from ostinato.kernels import GATES, Activation, Draws, activate, drop_activated
from ostinato.nn.context import Pass, Round
from ostinato.nn.experts import Decision
from ostinato.nn.layers import Blocks, Linear
from ostinato.nn.shapes import Float, Tensor
from ostinato.nn.sub_layer import SubLayer


class FeedForward(nn.Module):
    """The transition of one step.

        relu, gelu, ...:     dropout(act(x W1 + b1)) W2 + b2                 Vaswani et al. 2017, eq. 2
        geglu, swiglu, ...:  dropout(act(x Wg + bg) * (x W1 + b1)) W2 + b2   Shazeer 2020 (T5 1.1, Llama: no biases)

    Args:
        d_model, d_ff: widths of states and hidden layer. dropout: of the hidden layer.
    """

    def __init__(self, d_model: int, d_ff: int, activation: Activation, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.activation = activation
        self.dropout = dropout
        self.is_gated = activation in GATES
        # The gate's rows stand before the linear branch's: one matmul for both.
        self.up = Linear(d_model, 2 * d_ff if self.is_gated else d_ff, bias=bias)
        self.down = Linear(d_ff, d_model, bias=bias)

    @property
    def blocks(self) -> dict[str, Blocks]:
        """Outputs of every map: of gate and linear branch, and back to the states."""
        d_ff, d_model = self.down.in_features, self.down.out_features
        return {"up": Blocks(d_model, (d_ff,) * (1 + self.is_gated)), "down": Blocks(d_ff, (d_model,))}

    def forward(
        self, x_BTD: Float[Tensor, "*B D"], decision: None = None, draws: Draws = "auto"
    ) -> Float[Tensor, "*B D"]:
        """Map every position by itself.

        Args:
            draws: where the random numbers of dropout come from, see `ostinato.kernels.dropout`.
        """
        before = self.up(x_BTD)
        if self.training and self.dropout:
            hidden = drop_activated(before, self.activation, self.dropout, draws)
        else:
            hidden = activate(before, self.activation)
        return self.down(hidden)  # type: ignore[no-any-return]


class FeedForwardSubLayer(SubLayer):
    """One use of a feed-forward, dense, of experts, or a sparse layer. Args: see `SubLayer`."""

    def transform(
        self,
        module: Any,
        read_ND: Tensor,
        scored_ND: Tensor,
        decision: Decision | None,
        states_ND: Tensor,
        run: Pass,
        here: Round,
    ) -> Float[Tensor, "N D"]:
        """Map every row."""
        return module(read_ND, decision, run.execution.dropout_draws)  # type: ignore[no-any-return]
