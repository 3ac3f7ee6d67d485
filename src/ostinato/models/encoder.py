"""Encoder-only models: one stack, whose tokens all see each other unless it is causal, and a head that reads them."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn

from ostinato.config.model import EncoderConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import DataError
from ostinato.models.base import as_batch, check_no_source, keep_or_none
from ostinato.models.embeddings import FactEmbedder, rows_of
from ostinato.models.output import ModelOutput
from ostinato.models.transformer import Transformer
from ostinato.nn.cache import Cache
from ostinato.nn.execution import Execution
from ostinato.nn.init import init_embedding, init_projection
from ostinato.nn.layers import at_least_float32
from ostinato.nn.shapes import Bool, Float, Int, Tensor


class Encoder(Transformer):
    """A stack and a head.

        states = encoder(E[tokens]),   of a label's place t, a sentence's pooled state p, or all places:
        masked          logits = states_t O^T + b, O = E or a matrix of its own (`Embeddings.logits`)
        classification  logits = W p + b, p the state of the begin symbol or the mean over real tokens
        tagging         logits = W states_t + b
        span            logits[start, t], logits[end, t] = W states_t + b, over the tokens of the passage

    With `embedder: facts` a position is a fact, whose state is made of its tokens' embeddings (`FactEmbedder`).

    The tokens are the batch's `target`. Whatever the head, logits are `[B, L, V]` beside labels `[B, L]`: L labels of a
    sentence, each one of V; a span has the labels start and end, each one of the T columns.

    Args:
        config: with the vocabulary size set, and for heads that choose a label how many there are.
    """

    config: EncoderConfig

    def __init__(self, config: EncoderConfig, execution: Execution | None = None) -> None:
        super().__init__(config, execution)
        self.make_embeddings()
        self.type_weight: nn.Parameter | None = None
        if config.n_token_types:
            self.type_weight = nn.Parameter(torch.empty(config.n_token_types, config.embedding_width))
            init_embedding(self.type_weight, config.init)
        self.facts = None if config.max_words is None else FactEmbedder(config.max_words, config.embedding_width)
        self.head: nn.Linear | None = None
        if config.n_outputs is not None:
            n_outputs = config.n_outputs or self.vocabulary_size("n_labels")
            self.head = nn.Linear(config.d_model, n_outputs)
            init_projection(self.head, config.init)
        if config.head.kind in ("masked", "tagging"):  # the others say nothing of single tokens
            self.stacks["encoder"].readout = self.logits if self.head is None else self._project

    @property
    def mask_id(self) -> int:
        """The id of the mask symbol: the embedding's last row, where `special_ids` names no other."""
        return self.target_weight.shape[0] - 1 if self.special_ids.mask is None else self.special_ids.mask

    def forward(
        self,
        batch: Batch | Tensor,
        *,
        keep: Bool[Tensor, "B T"] | None = None,
        token_types: Int[Tensor, "B T"] | None = None,
        n_steps: int | Tensor | None = None,
        request: Collection[str] = (),
        execution: Execution | None = None,
    ) -> ModelOutput:
        """Read a batch.

        Args:
            batch: tokens; or token ids, `[B, T]` (heads without passages, facts or places only). keep: real tokens,
                where ids are given; None: all.
            token_types: rows of the table of token types; None: row 0 for every token.
            n_steps: rounds to run instead of the plan's own (fully shared plans only); in a graph a tensor.
            request: captures to return with the stack's output, see `ostinato.nn.Stack`.
            execution: how to run; None: as the model does.

        Raises:
            DataError: a span head, and a batch that does not say where the passages begin; token types for a model that
                has none, or (on a CPU) that it has no row for.
        """
        batch = as_batch(batch, keep)
        check_no_source(batch)
        tokens = batch.target
        encoder = self.stacks["encoder"](
            self._states(tokens, token_types),
            keep_BT=keep_or_none(tokens),
            ids_BT=tokens.ids_BT,
            positions_BT=tokens.positions_BT,
            texts_BT=tokens.texts_BT,
            n_rounds=n_steps,
            request=request,
            execution=self.checked(execution),
        )
        return ModelOutput(self.read(encoder.states_BTD, batch), {"encoder": encoder})

    def encode(self, batch: Batch, *, n_steps: int | None = None, execution: Execution | None = None) -> Cache:
        """Refuse: an encoder-only model writes nothing.

        Raises:
            DataError: always.
        """
        raise self._no_text()

    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Refuse, as `encode` does.

        Raises:
            DataError: always.
        """
        raise self._no_text()

    def _no_text(self) -> DataError:
        reason = "an encoder-only model (model.kind=encoder) writes no text"
        if self.config.reads != "masked":  # whose head says nothing of an example
            reason += ": what its head says of examples is what `ostinato evaluate RUN --predictions FILE` writes"
        return DataError(reason)

    def _states(self, tokens: Tokens, types_BT: Tensor | None) -> Float[Tensor, "B T E"]:
        """Return the embeddings of the positions: of tokens with their types, or of facts made of tokens."""
        embedded = self.embed(tokens.ids_BT, self.target_embedding)
        if self.type_weight is not None:
            of_types = self.type_weight[0] if types_BT is None else rows_of(self.type_weight, types_BT, "token type")
            embedded = embedded + of_types
        elif types_BT is not None:
            raise DataError("this model has no token types: model.n_token_types is 0")
        if self.facts is None:
            return embedded
        states_BTD: Tensor = self.facts(embedded, tokens.ids_BT != self.special_ids.pad, tokens.keep_BT)
        return states_BTD

    def read(self, states_BTD: Float[Tensor, "B T D"], batch: Batch) -> Float[Tensor, "B L V"]:
        """Return what the head makes of the states."""
        head = self.config.head
        if head.kind == "classification":
            return self._project(_pool(states_BTD, batch.target.keep_BT, head.pooling)[:, None])
        if head.kind == "span":
            scores_BLT = self._project(states_BTD).transpose(1, 2)
            return scores_BLT.masked_fill(~passages(batch)[:, None], torch.finfo(scores_BLT.dtype).min)
        if batch.places_BL is not None:
            places_BLD = batch.places_BL[..., None].expand(-1, -1, states_BTD.shape[-1])
            states_BTD = states_BTD.gather(1, places_BLD)
        return self.logits(states_BTD) if self.head is None else self._project(states_BTD)

    def _project(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        assert self.head is not None  # not user input: heads that come here have a projection
        projected: Tensor = self.head(nn.functional.dropout(states, self.config.dropout, self.training))
        return at_least_float32(projected)


def passages(batch: Batch) -> Bool[Tensor, "B T"]:
    """Return which columns belong to the passage that an answer is a part of: after the prefix, before the end symbol.

    Raises:
        DataError: the batch does not say how long the prefixes are.
    """
    if batch.prefix_lengths_B is None:
        raise DataError("a span head needs to know where every passage begins; these examples have no question")
    keep_BT = batch.target.keep_BT
    # Numbers real tokens from 1, wherever the padding stands.
    number_BT = keep_BT.cumsum(1)
    return keep_BT & (number_BT > batch.prefix_lengths_B[:, None]) & (number_BT < number_BT[:, -1:])


def _pool(states_BTD: Float[Tensor, "B T D"], keep_BT: Bool[Tensor, "B T"], pooling: str) -> Float[Tensor, "B D"]:
    """Return the state of the first real token, or the mean over real ones; of rows without any, some state or 0."""
    if pooling == "first":
        first_B = keep_BT.int().argmax(1)
        # Not len(states_BTD), which a graph would keep as a number.
        return states_BTD[torch.arange(states_BTD.shape[0], device=states_BTD.device), first_B]
    n_B = keep_BT.sum(1, keepdim=True).clamp_min(1)
    return states_BTD.masked_fill(~keep_BT[..., None], 0.0).sum(1) / n_B
