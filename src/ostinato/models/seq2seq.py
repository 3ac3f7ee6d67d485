"""Encoder-decoder models."""

from __future__ import annotations

from collections.abc import Collection

from ostinato.config.model import Seq2SeqConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.models.base import keep_or_none, source_of, vocabulary_size
from ostinato.models.output import ModelOutput
from ostinato.models.transformer import Transformer
from ostinato.nn.cache import Cache
from ostinato.nn.shapes import Tensor
from ostinato.nn.types import StackOutput


class Seq2Seq(Transformer):
    """An encoder and a decoder whose depth is laid out by plans.

        memory = encoder(E_s[source]),   logits = decoder(E_t[target], memory) O^T

    Args:
        config: with both vocabulary sizes set. `tie_embeddings`: "output": O = E_t; "all": O = E_t = E_s.
    """

    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config, causal=frozenset({"decoder"}))
        self.target_weight = self._matrix(vocabulary_size(config, "target_vocab_size"))
        n_source = vocabulary_size(config, "source_vocab_size")
        self.source_weight = None if config.tie_embeddings == "all" else self._matrix(n_source)
        self.output_weight = self._matrix(self.target_weight.shape[0]) if config.tie_embeddings == "none" else None

    @property
    def source_embedding(self) -> Tensor:
        """E_s, `[V, D]`."""
        return self.target_weight if self.source_weight is None else self.source_weight

    def forward(self, batch: Batch, *, n_steps: int | None = None, request: Collection[str] = ()) -> ModelOutput:
        """Run a teacher-forced pass.

        Args:
            batch: source and target tokens.
            n_steps: rounds to run in both stacks instead of the plans' own (fully shared plans only).
            request: captures to return with the stacks' outputs, see `ostinato.nn.stack`.
        """
        source = source_of(batch)
        encoder = self._encode(source, n_steps, request)
        target = batch.target
        decoder = self.stacks["decoder"](
            self.embed(target.ids_BT, self.target_embedding),
            keep_BT=keep_or_none(target),
            positions_BT=target.positions_BT,
            memory_BSD=encoder.states_BTD,
            memory_keep_BS=keep_or_none(source),
            n_rounds=n_steps,
            request=request,
        )
        return ModelOutput(self.logits(decoder.states_BTD), {"encoder": encoder, "decoder": decoder})

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        """Run the encoder and return the cache that decoding starts from."""
        source = source_of(batch)
        memory = self._encode(source, n_steps, ()).states_BTD
        return Cache(
            memory_BSD=memory, memory_keep_BS=keep_or_none(source), n_steps=n_steps, device=source.ids_BT.device
        )

    def _encode(self, source: Tokens, n_steps: int | None, request: Collection[str]) -> StackOutput:
        return self.stacks["encoder"](
            self.embed(source.ids_BT, self.source_embedding),
            keep_BT=keep_or_none(source),
            positions_BT=source.positions_BT,
            n_rounds=n_steps,
            request=request,
        )
