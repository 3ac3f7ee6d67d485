"""Our cache of decoding under the name and with the methods that `generate` knows."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache as TransformersCache

from ostinato.nn.cache import Cache


class DepthCache(TransformersCache):
    """Keys and values of every executed attention, and what else decoding remembers (`ostinato.nn.cache`).

    One slot holds the keys of one executed attention, so that steps that share weights have theirs, also where tokens
    halt. Cross-attention has one slot a parameter set.

    Args:
        content: what `encode` of a model returned, one row a hypothesis.
    """

    def __init__(self, content: Cache) -> None:
        super().__init__(layers=[])
        self.content = content

    def __len__(self) -> int:
        """Return the number of slots."""
        return len(self.content.self_kv)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the columns that are cached, padding included."""
        return self.content.length

    @property
    def is_compileable(self) -> bool:
        """Whether its shapes never change: they do."""
        return False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i go on from row beam_idx[i], of the same sentence."""
        self.content.reorder(beam_idx.to(self.content.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        self.content.keep(indices.to(self.content.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        cache = self.content
        kept = cache.self_kv.values()
        n_rows = next((kv._kv_2BHSK.shape[1] for kv in kept if kv._kv_2BHSK is not None), 0)
        self.content.keep(torch.arange(n_rows, device=cache.device).repeat_interleave(repeats))
