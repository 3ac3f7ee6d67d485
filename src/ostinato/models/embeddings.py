"""Embeddings: token ids to states and states to logits, and which of their matrices are one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.config.model import ModelConfig
from ostinato.errors import ConfigError, Problem
from ostinato.kernels import PackedMatrix, active_packing
from ostinato.nn.init import init_embedding
from ostinato.nn.layers import at_least_float32
from ostinato.nn.shapes import Bool, Float, Int, Tensor


class Embeddings(nn.Module):
    """E_t of the tokens that are predicted, E_s of the source, and the output projection O: logits = states O^T.

    `tie_embeddings`: "none": three matrices. "output": O = E_t. "all": O = E_t = E_s. A tied one is stored once.

    Args:
        config: the model's configuration, vocabulary sizes set.
    """

    target_weight: nn.Parameter
    source_weight: nn.Parameter | None
    output_weight: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self._packed_output = PackedMatrix()

    def make_embeddings(self, vocabulary: str, source_vocabulary: str | None = None) -> None:
        """Make the matrices, by the names of the settings that hold their sizes.

        Raises:
            ConfigError: a size that is not set.
        """
        tie = self.config.tie_embeddings
        n_target = self.vocabulary_size(vocabulary)
        self.target_weight = self._matrix(n_target)
        if source_vocabulary is not None:
            n_source = self.vocabulary_size(source_vocabulary)
            self.source_weight = None if tie == "all" else self._matrix(n_source)
        self.output_weight = self._matrix(n_target) if tie == "none" else None

    def vocabulary_size(self, setting: str) -> int:
        """Return a size that must be known by now.

        Raises:
            ConfigError: it is not set.
        """
        size: int | None = getattr(self.config, setting)
        if size is None:
            reason = "must be set to build a model (training takes it from the data)"
            raise ConfigError([Problem(f"model.{setting}", None, reason)])
        return size

    @property
    def target_embedding(self) -> Tensor:
        """E_t, `[V, D]`: embeddings of the tokens that are predicted."""
        return self.target_weight

    @property
    def source_embedding(self) -> Tensor:
        """E_s, `[V, D]`."""
        return self.target_weight if self.source_weight is None else self.source_weight

    @property
    def output_projection(self) -> Tensor:
        """O, `[V, D]`: what turns states into logits."""
        return self.target_weight if self.output_weight is None else self.output_weight

    def embed(self, ids: Int[Tensor, "*B"], weight_VD: Float[Tensor, "V D"]) -> Float[Tensor, "*B D"]:
        """Return embeddings, scaled by sqrt(d_model) where the configuration says so."""
        embedded = F.embedding(ids, weight_VD)
        return embedded * math.sqrt(self.config.d_model) if self.config.embedding_scale else embedded

    def logits(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return logits in float32, of a float64 model in float64."""
        if active_packing.get() is not None:
            return at_least_float32(self._packed_output.product(states, self.output_projection))
        return at_least_float32(F.linear(states, self.output_projection))

    def _matrix(self, n_rows: int) -> nn.Parameter:
        weight_VD = nn.Parameter(torch.empty(n_rows, self.config.d_model))
        init_embedding(weight_VD, self.config.init)
        return weight_VD


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
