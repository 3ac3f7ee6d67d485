"""The training pass whose saved bytes are counted, and what several counts of sub-layers ask."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.budget.sizes import PlannedUse
from ostinato.config.experts import RoutedConfig
from ostinato.config.halting import StickBreakingConfig
from ostinato.config.model import ModelConfig
from ostinato.config.sub_layers import AttentionConfig, SeparableConvConfig

FLOAT, HALF, ID = 4, 2, 8
"""Bytes of a float32, a bfloat16 and an int64 number."""


@dataclass(frozen=True, slots=True)
class TrainingPass:
    """One training pass over a batch without padding.

    Args:
        lengths: tokens of a sentence by stack. batch: sentences.
        is_mixed: bfloat16 autocast. is_recomputed: only the states between steps are saved.
        n_predictions: rounds of the last stack's loop whose predictions have a gradient.
    """

    config: ModelConfig
    lengths: dict[str, int]
    batch: int
    is_mixed: bool
    is_recomputed: bool
    n_predictions: int = 1

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
        if stack not in self.config.causal_stacks or length == 1:
            return 0
        return (self.batch if self.config.sees_prefix else 1) * length**2

    def copies_heads(self, attention: AttentionConfig) -> bool:
        """Return True where plain matrix products copy keys and values so that the heads are outermost."""
        return self.batch > 1 and attention.n_heads > 1

    def copy_of(self, n: int) -> int:
        """Return the bytes of autocast's copy of `n` weights."""
        return HALF * n if self.is_mixed else 0


def reads_expected_states(planned: PlannedUse) -> bool:
    """Return True for a use that reads expected states of stick-breaking in place of the states themselves."""
    makes_keys = planned.use.kind == "self_attention" and not planned.borrows_keys
    mixes = makes_keys or isinstance(planned.sub, SeparableConvConfig)
    return isinstance(planned.stack_config.halting, StickBreakingConfig) and mixes and planned.round > 0


def states_of_experts(run: TrainingPass, sub: RoutedConfig, tokens: int) -> int:
    """Return the bytes of the states that experts read, where they are not those that the router saves."""
    return run.width * tokens * run.config.d_model if run.is_mixed or not sub.has_router else 0
