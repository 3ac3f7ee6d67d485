"""What a token adds to its values, whatever its state: a row of a table, through a gate of every head of keys.

    v + g E_v[token],   g = 2 sigmoid(W x[:C])        g: one number a head; x: what keys are made of, C of its D numbers

(Parcae, Prairie et al. 2026, public code; C = 32 there.) W starts at 0, so that g = 1. A pass takes the rows of its
tokens once for all steps and rounds that read the table.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.nn.layers import Linear
from ostinato.nn.shapes import Float, Int, Tensor


class TokenValues(nn.Module):
    """E_v and W.

    Args:
        n_rows: tokens. n_heads, d_head: of values. gate_width: C.
    """

    def __init__(self, n_rows: int, n_heads: int, d_head: int, gate_width: int) -> None:
        super().__init__()
        self.n_heads, self.d_head, self.gate_width = n_heads, d_head, gate_width
        self.table_VJ = nn.Parameter(torch.empty(n_rows, n_heads * d_head))
        self.gate = Linear(gate_width, n_heads, bias=False)
        nn.init.zeros_(self.gate.weight)

    def rows(self, ids: Int[Tensor, "*B"]) -> Float[Tensor, "*B J"]:
        """Return E_v of tokens."""
        return F.embedding(ids, self.table_VJ)

    def forward(
        self, kv_NJ: Float[Tensor, "N I"], rows_NJ: Float[Tensor, "N J"], read_ND: Float[Tensor, "N D"]
    ) -> Float[Tensor, "N I"]:
        """Return keys and values side by side, with g E_v added to the values.

        Args:
            kv_NJ: keys and values, `[N, 2 H K]`. rows_NJ: E_v of every row's token, `[N, H K]`. read_ND: x.
        """
        gates_NH = 2 * torch.sigmoid(self.gate(read_ND[:, : self.gate_width]))
        added_NHK = rows_NJ.view(rows_NJ.shape[0], self.n_heads, self.d_head) * gates_NH[..., None]
        k_NJ, v_NJ = kv_NJ.chunk(2, dim=-1)
        return torch.cat([k_NJ, v_NJ + added_NHK.flatten(1).to(v_NJ.dtype)], dim=-1)
