"""Embeddings: token ids to states and states to logits, and which of their matrices are one."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.config.model import ModelConfig
from ostinato.config.output import TransformConfig
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.kernels import PackedMatrix, activate, active_packing, product
from ostinato.models.parts import build_norm_of
from ostinato.nn.init import init_embedding, init_projection
from ostinato.nn.layers import Linear, at_least_float32
from ostinato.nn.shapes import Bool, Float, Int, Tensor


def rows_of(table_VD: Float[Tensor, "V D"], ids: Int[Tensor, "*B"], name: str) -> Float[Tensor, "*B D"]:
    """Return the rows of a table that have these ids.

    Args:
        name: of an id, in errors.

    Raises:
        DataError: an id that has no row, on a CPU where nothing is compiled. On a GPU the device stops with an assert
            of its own: to look at the ids before would mean to wait for them.
    """
    try:
        return F.embedding(ids, table_VD)
    except IndexError as error:
        n_rows = len(table_VD)
        wrong = int(ids[(ids < 0) | (ids >= n_rows)][0])
        raise DataError(f"{name} {wrong} is not in a vocabulary of {n_rows}: must be 0 to {n_rows - 1}") from error


class Embeddings(nn.Module):
    """E_t of the tokens that are predicted, E_s of the source, and the output projection O: logits = states O^T + b.

    `tie_embeddings`: "none": three matrices. "output": O = E_t. "input": E_t = E_s. "all": O = E_t = E_s. A tied one is
    stored once.

    Args:
        config: the model's configuration, vocabulary sizes set.
    """

    target_weight: nn.Parameter
    source_weight: nn.Parameter | None
    output_weight: nn.Parameter | None
    output_bias: nn.Parameter | None
    output_transform: OutputTransform | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self._factor, self._output_factor = config.embedding_factor, config.output.scale_at(config.d_model)
        self._packed_output = PackedMatrix()

    def make_embeddings(self) -> None:
        """Make the matrices.

        Raises:
            ConfigError: a size that is not set.
        """
        config, tie = self.config, self.config.tie_embeddings
        n_target = self.vocabulary_size(config.vocabulary_key("target"))
        self.target_weight = self._matrix(n_target)
        if config.has_two_sides:
            n_source = self.vocabulary_size(config.vocabulary_key("source"))
            self.source_weight = None if tie in ("input", "all") else self._matrix(n_source)
        self.output_weight = self._matrix(n_target) if tie in ("none", "input") else None
        self.output_bias, self.output_transform = None, None
        if config.has_vocabulary_output:
            self._make_output(n_target)

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
        """Return embeddings, scaled as the configuration says; see `rows_of`."""
        embedded = rows_of(weight_VD, ids, "token id")
        return embedded if self._factor == 1.0 else embedded * self._factor

    def logits(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return logits in at least float32.

        z = scale * transform(states) O^T + bias,   with a soft cap c tanh(z / c)
        """
        if self.output_transform is not None:
            states = self.output_transform(states)
        if self._output_factor != 1.0:
            states = states * self._output_factor
        if not torch.compiler.is_compiling() and active_packing.get() is not None:
            logits = self._packed_output.product(states, self.output_projection, self.output_bias)
        else:
            logits = product(states, self.output_projection, self.output_bias)
        logits = at_least_float32(logits)
        if (cap := self.config.output.soft_cap) is not None:
            logits = cap * torch.tanh(logits / cap)
        return logits

    def _make_output(self, n_rows: int) -> None:
        output, config = self.config.output, self.config
        if output.bias:
            self.output_bias = nn.Parameter(torch.zeros(n_rows))
        if output.transform is not None:
            self.output_transform = OutputTransform(output.transform, config.d_model, config.embedding_width)
            init_projection(self.output_transform.dense, config.init)

    def _matrix(self, n_rows: int) -> nn.Parameter:
        weight_VD = nn.Parameter(torch.empty(n_rows, self.config.embedding_width))
        init_embedding(weight_VD, self.config.init)
        return weight_VD


class OutputTransform(nn.Module):
    """What stands between states and the output projection: n(act(W x + b)) (Devlin et al. 2019, masked LM head).

    Args:
        config: activation, bias and norm n. d_model: D, of the states. width: E, of the output projection's rows.
    """

    def __init__(self, config: TransformConfig, d_model: int, width: int) -> None:
        super().__init__()
        self._activation = config.activation
        self.dense = Linear(d_model, width, bias=config.bias)
        self.norm = None if config.norm is None else build_norm_of(config.norm, width)

    def forward(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B E"]:
        """Return what is projected to the vocabulary."""
        mapped: Tensor = self.dense(states)
        if self._activation != "none":
            mapped = activate(mapped, self._activation)
        return mapped if self.norm is None else self.norm(at_least_float32(mapped))


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
