"""Decoder-only language models: causal, or with a prefix that is seen in both directions."""

from __future__ import annotations

from collections.abc import Collection

from ostinato.config.model import LanguageModelConfig
from ostinato.data.batch import Batch
from ostinato.errors import DataError
from ostinato.models.base import keep_or_none, vocabulary_size
from ostinato.models.output import ModelOutput
from ostinato.models.transformer import Transformer
from ostinato.nn.cache import Cache
from ostinato.nn.shapes import Bool, Float, Int, Tensor


class LanguageModel(Transformer):
    """One stack without cross-attention: logits = decoder(E[tokens]) O^T.

    With `mask="prefix"` a token of the first `batch.prefix_lengths_B` sees all of them, later ones see everything up to
    themselves (One Wide FFN, decoder-only model): the prefix is a source, the rest begins with the begin symbol.

    Args:
        config: with the vocabulary size set. `tie_embeddings`: "output": O = E.
    """

    config: LanguageModelConfig

    def __init__(self, config: LanguageModelConfig) -> None:
        stacks = frozenset({"decoder"})
        super().__init__(config, causal=stacks, prefixed=stacks if config.mask == "prefix" else frozenset())
        self.target_weight = self._matrix(vocabulary_size(config, "vocab_size"))
        self.output_weight = self._matrix(self.target_weight.shape[0]) if config.tie_embeddings == "none" else None

    def forward(self, batch: Batch, *, n_steps: int | None = None, request: Collection[str] = ()) -> ModelOutput:
        """Run a teacher-forced pass over `batch.target`.

        Args:
            n_steps: rounds to run instead of the plan's own (fully shared plans only).
            request: captures to return with the stack's output, see `ostinato.nn.stack`.

        Raises:
            DataError: a prefix language model, and a batch that does not say how long the prefixes are.
        """
        target = batch.target
        decoder = self.stacks["decoder"](
            self.embed(target.ids_BT, self.target_embedding),
            keep_BT=keep_or_none(target),
            positions_BT=target.positions_BT,
            prefix_lengths_B=self._prefix_lengths(batch),
            n_rounds=n_steps,
            request=request,
        )
        return ModelOutput(self.logits(decoder.states_BTD), {"decoder": decoder})

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        """Return an empty cache; the prompt is the first `step`, of a prefix language model with the whole prefix."""
        return Cache(n_steps=n_steps, prefix_lengths_B=self._prefix_lengths(batch), device=batch.target.ids_BT.device)

    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Add T columns to the cache and return the logits after the last one; see `Transformer.step`.

        Raises:
            DataError: a first step without the whole prefix, whose tokens would see later ones that are not there yet.
        """
        if cache.prefix_lengths_B is not None:
            n_given = ids_BT.shape[1] if keep_BT is None else keep_BT.sum(1)
            if bool((cache.prefix_lengths_B > n_given).any()):
                raise DataError(
                    "the first step of a prefix language model must hold the whole prefix, whose tokens see each "
                    f"other: prefixes of up to {int(cache.prefix_lengths_B.max())} tokens, a step of {ids_BT.shape[1]}"
                )
        return super().step(ids_BT, cache, keep_BT)

    def _prefix_lengths(self, batch: Batch) -> Int[Tensor, "B"] | None:
        if self.config.mask == "causal":
            return None
        if batch.prefix_lengths_B is None:
            raise DataError("a prefix language model needs the length of every prefix; this batch has no sources")
        return batch.prefix_lengths_B
