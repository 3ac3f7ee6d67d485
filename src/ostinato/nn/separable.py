"""Separable convolutions as transition: the feed-forward whose two maps also look at neighbours.

sepconv(x; K) = W (sum_k w_k * x_{t - left + k}) + b,   k = 0 .. K-1,   w: [K, channels], W position-wise
y = sepconv(dropout(relu(sepconv(x; kernel_in))); kernel_out)          Universal Transformers, section 2.1
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.kernels import Draws
from ostinato.nn.bank import Banks
from ostinato.nn.cache import ColumnWindow
from ostinato.nn.context import Pass, Round
from ostinato.nn.experts import Decision
from ostinato.nn.layers import Dropping, Linear
from ostinato.nn.shapes import Bool, Float, Tensor
from ostinato.nn.sub_layer import SubLayer
from ostinato.plan import Step, Use


class SeparableConv(Dropping, nn.Module):
    """The transition of one step, by two separable convolutions over the columns of a sentence.

    Args:
        d_model, d_ff: widths of states and hidden layer.
        kernel_in, kernel_out: columns that the first and the second convolution see (tensor2tensor: 3 and 5).
        bias: biases of the two position-wise maps; the depth-wise ones have none. dropout: of the hidden layer.
    """

    def __init__(self, d_model: int, d_ff: int, kernel_in: int, kernel_out: int, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.taps_in_KD = _taps(kernel_in, d_model)
        self.up = Linear(d_model, d_ff, bias=bias)
        self.taps_out_KF = _taps(kernel_out, d_ff)
        self.down = Linear(d_ff, d_model, bias=bias)

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        *,
        is_causal: bool,
        keep_BT: Bool[Tensor, "B T"] | None = None,
        windows: tuple[ColumnWindow, ColumnWindow] | None = None,
        draws: Draws = "auto",
    ) -> Float[Tensor, "B T D"]:
        """Map every column and its neighbours.

        Args:
            is_causal: a column sees none after it.
            keep_BT: real columns; None where all are. Padding is zeroed before EACH of the two convolutions, as if
                the sentence ended there: otherwise the biases of the first map would tell the second where it ends.
            windows: what came before these columns, one window a convolution; extended by them. Causal only.
            draws: where the random numbers of dropout come from, see `ostinato.kernels.dropout`.

        Raises:
            ValueError: windows without `is_causal`: columns that are still to come cannot be seen.
        """
        if windows is not None and not is_causal:
            raise ValueError("only a causal convolution can run column by column: pass is_causal=True with windows")
        first, second = (None, None) if windows is None else windows
        hidden_BTF = F.relu(self.up(_depthwise(x_BTD, self.taps_in_KD, is_causal, keep_BT, first)))
        return self.down(_depthwise(self.drop(hidden_BTF, draws), self.taps_out_KF, is_causal, keep_BT, second))  # type: ignore[no-any-return]


class SeparableConvSubLayer(SubLayer):
    """One use of separable convolutions. It reads neighbours, so that no row may be gathered away in its stack.

    Args:
        is_causal: a column sees none after it, also in a prefix: only attention sees that whole. The others: see
            `SubLayer`.
    """

    def __init__(self, stack: str, step: Step, use: Use, banks: Banks, *, is_causal: bool, **named: Any) -> None:
        super().__init__(stack, step, use, banks, **named)
        self.is_causal = is_causal

    def reads(self, states_ND: Tensor, here: Round) -> Tensor:
        """Return what is visible in all columns, a row's own too."""
        return states_ND if here.visible is None else here.visible(states_ND)

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
        """Map every column and its neighbours."""
        windows = None
        if run.cache is not None:
            windows = run.cache.windows.setdefault(self.step, (ColumnWindow(), ColumnWindow()))
        columns_BTD = module(
            here.rows.grid(read_ND),
            is_causal=self.is_causal,
            keep_BT=run.keep_BT,
            windows=windows,
            draws=run.execution.dropout_draws,
        )
        return columns_BTD.flatten(0, 1)  # type: ignore[no-any-return]


def padding(kernel: int, is_causal: bool) -> tuple[int, int]:
    """Return the zeros before and after a sentence, `kernel` - 1 in all, so that it keeps its length.

    Causal: all before it. Otherwise half on each side; an even kernel sees one column more on the right than on the
    left (TensorFlow's "SAME").
    """
    left = kernel - 1 if is_causal else (kernel - 1) // 2
    return left, kernel - 1 - left


def _taps(kernel: int, channels: int) -> nn.Parameter:
    """Return the weights of a depth-wise convolution, as `torch.nn.Conv1d` draws them."""
    return nn.Parameter(torch.empty(kernel, channels).uniform_(-(kernel**-0.5), kernel**-0.5))


def _depthwise(
    x_BTC: Tensor, taps_KC: Tensor, is_causal: bool, keep_BT: Tensor | None, window: ColumnWindow | None
) -> Tensor:
    """Return sum_k taps[k] * x[t - left + k] for every channel by itself."""
    if keep_BT is not None:
        x_BTC = x_BTC.masked_fill(~keep_BT[..., None], 0.0)
    kernel = taps_KC.shape[0]
    if window is None:
        left, right = padding(kernel, is_causal)
        x_BTC = F.pad(x_BTC, (0, 0, left, right))
    else:
        x_BTC = window.extend(x_BTC, kernel - 1)
    # As an image of height one whose channels lie innermost in memory, which states do anyway: they need no
    # other layout.
    image_BC1T = x_BTC.transpose(1, 2).unsqueeze(2)
    filters_C11K = taps_KC.t()[:, None, None, :].contiguous(memory_format=torch.channels_last)
    return F.conv2d(image_BC1T, filters_C11K, groups=taps_KC.shape[1]).squeeze(2).transpose(1, 2)
