"""Our cache of decoding under the name and with the methods that `generate` knows."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache as TransformersCache
from transformers.modeling_outputs import CausalLMOutputWithPast

from ostinato.errors import OstinatoError
from ostinato.nn.cache import Cache

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What outputs, and the arguments that `generate` gives, call a cache: transformers 5.24 has renamed it.

Calls of our models take both names, with any version.
"""


class DepthCache(TransformersCache):
    """Keys and values of every executed attention, and what else decoding remembers (`ostinato.nn.cache`).

    One slot holds the keys of one executed attention, so that steps that share weights have theirs, also where tokens
    halt. Cross-attention has one slot a parameter set.

    Args:
        content: what `encode` of a model returned, one row a hypothesis. n_rows: how many rows.
    """

    def __init__(self, content: Cache, n_rows: int) -> None:
        super().__init__(layers=[])
        self.content, self.n_rows = content, n_rows

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

    # The library asks these two of its own layers, of which there are none here: `all` of them would be both.
    @property
    def is_linear(self) -> list[bool]:
        """Say of every slot that its length counts: `generate` gives only the columns that are not cached."""
        return [False]

    @property
    def is_croppable(self) -> bool:
        """Whether columns can be taken back: what halting and convolutions remember cannot."""
        return False

    def crop(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to take columns back, as assisted generation and look-up of prompts ask for.

        Raises:
            OstinatoError: always.
        """
        raise OstinatoError(
            "a cache of Ostinato cannot be cropped: leave out assistant_model and prompt_lookup_num_tokens of generate"
        )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row i go on from row beam_idx[i], of the same sentence."""
        self.content.reorder(beam_idx.to(self.content.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows."""
        self.content.keep(indices.to(self.content.device))
        self.n_rows = len(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self.batch_select_indices(torch.arange(self.n_rows).repeat_interleave(repeats))
