"""Facts as positions: the words of each, weighted by masks of their places (Universal Transformers, bAbI)."""

from __future__ import annotations

import torch
from torch import nn

from ostinato.nn.shapes import Bool, Float, Tensor


class FactEmbedder(nn.Module):
    """One state of every fact, and of the question, which is a row's last one.

        e(fact) = sum_w M[w] * e_w,   e(question) = sum_w M_q[w] * e_w      (* by elements)

    Position masks of memory networks (Sukhbaatar et al. 2015) that are learned; M and M_q, `[W, D]`, begin at one.

    Args:
        max_words: W. d_model: D.
    """

    def __init__(self, max_words: int, d_model: int) -> None:
        super().__init__()
        self.fact_WD = nn.Parameter(torch.ones(max_words, d_model))
        self.question_WD = nn.Parameter(torch.ones(max_words, d_model))

    def forward(
        self,
        words_BTWD: Float[Tensor, "B T W D"],
        real_BTW: Bool[Tensor, "B T W"],
        keep_BT: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T D"]:
        """Return the states of B stories of T facts.

        Args:
            words_BTWD: embeddings of their words. real_BTW: those that are no padding. keep_BT: real facts.
        """
        B, _, W, _ = words_BTWD.shape
        words_BTWD = words_BTWD.masked_fill(~real_BTW[..., None], 0.0)
        states_BTD = (words_BTWD * self.fact_WD[:W]).sum(2)
        # Padding may stand on either side: the question is the last real position.
        number_BT = keep_BT.cumsum(1)
        is_question_BT = keep_BT & (number_BT == number_BT[:, -1:])
        place_B = is_question_BT.int().argmax(1)
        question_BWD = words_BTWD[torch.arange(B, device=place_B.device), place_B]
        question_BD = (question_BWD * self.question_WD[:W]).sum(1)
        return torch.where(is_question_BT[..., None], question_BD[:, None], states_BTD)
