"""LSTM layers over padded sentences, and attention to what an encoder gave.

Letters: B rows, T columns, S source columns, D width, L layers, N sentences, Q queries of a sentence.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ostinato.kernels import Draws, hidden_score, without_autocast
from ostinato.nn.layers import Dropping, Linear
from ostinato.nn.shapes import Bool, Float, Int, Tensor

LstmState = tuple[Tensor, Tensor]
"""Outputs and cells of every layer after the last real token, each `[L, B, D]`; two directions stand side by side."""


class Lstm(nn.Module, Dropping):
    """Layers of `torch.nn.LSTM`, each D wide, with dropout before, between and behind them.

        i, f, o = sigmoid(...), g = tanh(...) of W x_t + U h_(t-1) + b + b'
        c_t = f * c_(t-1) + i * g,   h_t = o * tanh(c_t)

    Padding may stand anywhere: real tokens are brought to the left, packed, and their outputs put back. Padding has
    the output 0 and changes no state. Weights and states stay in their own precision under autocast.

    Args:
        d_model: D. n_layers: L. n_directions: 2: forwards and backwards, D / 2 units each. dropout: probability.
    """

    def __init__(self, d_model: int, n_layers: int, *, n_directions: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.lstm = nn.LSTM(
            d_model,
            d_model // n_directions,
            n_layers,
            batch_first=True,
            dropout=dropout if n_layers > 1 else 0.0,
            bidirectional=n_directions == 2,
        )

    def forward(
        self,
        x_BTD: Float[Tensor, "B T D"],
        keep_BT: Bool[Tensor, "B T"] | None = None,
        state: LstmState | None = None,
        draws: Draws = "auto",
    ) -> tuple[Float[Tensor, "B T D"], LstmState]:
        """Read T columns.

        Args:
            keep_BT: real tokens; None where all are. state: where a stack of one direction goes on; None: zeros.
            draws: where the random numbers of dropout come from, see `ostinato.kernels.dropout`.

        Returns:
            Outputs, and the state after the last real token of every row.
        """
        x_BTD = self.drop(x_BTD, draws)
        with without_autocast(x_BTD.device):
            x_BTD = x_BTD.to(next(self.lstm.parameters()).dtype)
            if keep_BT is None:
                out_BTD, (h, c) = self.lstm(x_BTD, state)
                state = self._side_by_side(h), self._side_by_side(c)
            else:
                out_BTD, state = self._packed(x_BTD, keep_BT, state)
        return self.drop(out_BTD, draws), state

    def _packed(
        self, x_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"], state: LstmState | None
    ) -> tuple[Float[Tensor, "B T D"], LstmState]:
        n_B = keep_BT.sum(1)
        order_BT = keep_BT.int().argsort(dim=1, descending=True, stable=True)
        x_BTD = _columns(x_BTD, order_BT)
        # A packed row has at least one token: what an empty row makes of its padding is thrown away below.
        packed = pack_padded_sequence(x_BTD, n_B.clamp_min(1).cpu(), batch_first=True, enforce_sorted=False)
        out, (h, c) = self.lstm(packed, state)
        out_BTD, _ = pad_packed_sequence(out, batch_first=True, total_length=x_BTD.shape[1])
        out_BTD = _columns(out_BTD, order_BT.argsort(dim=1)).masked_fill(~keep_BT[..., None], 0.0)
        found = self._side_by_side(h), self._side_by_side(c)
        is_empty_B1 = (n_B == 0)[:, None]
        before = [torch.zeros_like(one) for one in found] if state is None else state
        h, c = (torch.where(is_empty_B1, old, new) for old, new in zip(before, found, strict=True))
        return out_BTD, (h, c)

    def _side_by_side(self, state: Float[Tensor, "M B H"]) -> Float[Tensor, "L B D"]:
        """Return the states of a layer's directions as one state."""
        if not self.lstm.bidirectional:
            return state
        M, B, H = state.shape
        return state.view(M // 2, 2, B, H).transpose(1, 2).reshape(M // 2, B, 2 * H)


def _columns(x_BTD: Float[Tensor, "B T D"], order_BT: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    return x_BTD.gather(1, order_BT[..., None].expand_as(x_BTD))


class GlobalAttention(nn.Module):
    """What is read out of a decoder's output h and an encoder's outputs m (Luong et al. 2015, section 3.1).

        a = softmax_s(score(h, m_s)),   tanh(W [sum_s a_s m_s; h])
        score: dot h m_s;   general h W_a m_s;   additive v tanh(W_q h + W_m m_s) (Bahdanau et al. 2015, A.1.2)

    No map has a bias. An additive score makes Q S D numbers for every sentence.
    """

    def __init__(self, d_model: int, score: Literal["dot", "general", "additive"]) -> None:
        super().__init__()
        self.query = None if score == "dot" else Linear(d_model, d_model, bias=False)
        self.key = Linear(d_model, d_model, bias=False) if score == "additive" else None
        self.score_D = nn.Parameter(torch.empty(d_model)) if score == "additive" else None
        self.out = Linear(2 * d_model, d_model, bias=False)

    def keys(self, memory_NSD: Float[Tensor, "N S D"]) -> Float[Tensor, "N S D"] | None:
        """Return what is made of the memory once, whoever asks; None where that is nothing."""
        return None if self.key is None else self.key(memory_NSD)

    def forward(
        self,
        h_BTD: Float[Tensor, "B T D"],
        memory_NSD: Float[Tensor, "N S D"],
        keep_NS: Bool[Tensor, "N S"] | None,
        keys_NSD: Float[Tensor, "N S D"] | None,
    ) -> Float[Tensor, "B T D"]:
        """Return what is read out of every output.

        Args:
            h_BTD: the decoder's; the rows of a sentence stand side by side, B / N each.
            keep_NS: real tokens of the source; None where all are. keys_NSD: as `keys` returned.
        """
        (B, T, D), N = h_BTD.shape, memory_NSD.shape[0]
        h_NQD = h_BTD.reshape(N, B // N * T, D)
        query_NQD = h_NQD if self.query is None else self.query(h_NQD)
        memory_NSD = memory_NSD.to(query_NQD.dtype)
        bias_N1S = None
        if keep_NS is not None:
            shown_NS = torch.zeros_like(keep_NS, dtype=query_NQD.dtype)
            bias_N1S = shown_NS.masked_fill(~keep_NS, hidden_score(shown_NS.dtype))[:, None]
        if keys_NSD is None:
            # One head: torch's fused kernels want that dimension.
            one, memory = query_NQD[:, None], memory_NSD[:, None]
            bias = None if bias_N1S is None else bias_N1S[:, None]
            context_NQD = F.scaled_dot_product_attention(one, memory, memory, bias, scale=1.0)[:, 0]
        else:
            context_NQD = _additive(query_NQD, keys_NSD, self.score_D, bias_N1S) @ memory_NSD
        read_NQD = torch.tanh(self.out(torch.cat([context_NQD.to(h_NQD.dtype), h_NQD], dim=-1)))
        return read_NQD.view(B, T, D)


def _additive(query_NQD: Tensor, keys_NSD: Tensor, score_D: Tensor | None, bias_N1S: Tensor | None) -> Tensor:
    """Return the weights of every place of the memory, `[N, Q, S]`."""
    assert score_D is not None  # not user input: whoever has keys has it
    scores_NQS = torch.tanh(query_NQD[:, :, None] + keys_NSD[:, None]) @ score_D.to(query_NQD.dtype)
    return torch.softmax(scores_NQS if bias_N1S is None else scores_NQS + bias_N1S, dim=-1)
