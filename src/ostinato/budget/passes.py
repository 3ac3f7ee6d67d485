"""One training pass whose bytes are counted: its sentences, its precision, and the sizes of numbers."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.config.model import LanguageModelConfig, ModelConfig

FLOAT, HALF, ID = 4, 2, 8
PER_HIDDEN_UNIT = {"relu": 1, "gelu": 2, "geglu": 4}
"""Numbers kept for every unit of a feed-forward's hidden layer, masks of dropout aside."""


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """One training pass over a batch without padding.

    Args:
        lengths: tokens of a sentence by stack. batch: sentences.
        is_mixed: bfloat16 autocast. is_recomputed: only the states between steps are kept.
    """

    config: ModelConfig
    lengths: dict[str, int]
    batch: int
    is_mixed: bool
    is_recomputed: bool

    @property
    def width(self) -> int:
        """Bytes of a number that a matrix product reads or writes."""
        return HALF if self.is_mixed else FLOAT

    def tokens(self, stack: str) -> int:
        """Return the tokens of all sentences."""
        return self.batch * self.lengths[stack]

    def mask(self, stack: str) -> int:
        """Return the places of the mask of self-attention: one for all sentences, or with prefixes one for each."""
        length = self.lengths[stack]
        return (self.batch if self.has_prefixes else 1) * length**2 if stack == "decoder" and length > 1 else 0

    @property
    def has_prefixes(self) -> bool:
        """Whether sentences have a part whose tokens see each other in both directions."""
        return isinstance(self.config, LanguageModelConfig) and self.config.mask == "prefix"

    def copy_of(self, n: int) -> int:
        """Return the bytes of autocast's copy of `n` weights."""
        return HALF * n if self.is_mixed else 0
