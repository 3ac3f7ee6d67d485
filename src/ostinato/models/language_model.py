"""Causal language models."""

from __future__ import annotations

from collections.abc import Collection

from ostinato.config.model import LanguageModelConfig
from ostinato.data.batch import Batch
from ostinato.models.output import ModelOutput
from ostinato.models.transformer import Transformer, keep_or_none, vocabulary_size
from ostinato.nn.cache import Cache


class LanguageModel(Transformer):
    """One causal stack: logits = decoder(E[tokens]) O^T.

    Args:
        config: with the vocabulary size set. `tie_embeddings`: "output": O = E.
    """

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig) -> None:
        super().__init__(config, causal=frozenset({"decoder"}))
        self.target_weight = self._matrix(vocabulary_size(config, "vocab_size"))
        self.output_weight = self._matrix(self.target_weight.shape[0]) if config.tie_embeddings == "none" else None

    def forward(self, batch: Batch, *, n_steps: int | None = None, request: Collection[str] = ()) -> ModelOutput:
        """Run a teacher-forced pass over `batch.target`.

        Args:
            n_steps: rounds to run instead of the plan's own (fully shared plans only).
            request: captures to return with the stack's output, see `ostinato.nn.stack`.
        """
        target = batch.target
        decoder = self.stacks["decoder"](
            self.embed(target.ids_BT, self.target_embedding),
            keep_BT=keep_or_none(target),
            positions_BT=target.positions_BT,
            n_rounds=n_steps,
            request=request,
        )
        return ModelOutput(self.logits(decoder.states_BTD), {"decoder": decoder})

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        """Return an empty cache; the prompt is the first `step`."""
        return Cache(n_steps=n_steps, device=batch.target.ids_BT.device)
