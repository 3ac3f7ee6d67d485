"""How states become logits over a vocabulary."""

from __future__ import annotations

from typing import Literal

from ostinato.config.base import Config, Positive
from ostinato.config.norm import NormalisationConfig


class TransformConfig(Config):
    """What stands before the output projection: n(act(W x + b)) (BERT's head; of ALBERT it leads to d_embedding)."""

    activation: Literal["none", "relu", "relu2", "gelu", "gelu_tanh", "silu"] = "gelu"
    """Activation behind the map."""
    bias: bool = True
    """Bias of the map."""
    norm: NormalisationConfig | None = NormalisationConfig()
    """Normalisation behind the activation; null: none."""


class OutputConfig(Config):
    """Logits over a vocabulary: z = scale * transform(states) O^T + bias, or c tanh(z / c) with a soft cap c."""

    transform: TransformConfig | None = None
    """A map of the states before the projection; null: none."""
    scale: bool | Positive = False
    """Factor of what is projected: a number, or true for 1 / sqrt(d_model) (T5, whose O is its embedding)."""
    bias: bool = False
    """A learned bias of every logit (heads of masked language models; Marian's and BART's final_logits_bias)."""
    soft_cap: Positive | None = None
    """c: bound of the logits (Gemma 2: 30); null: none."""

    def scale_at(self, d_model: int) -> float:
        """Return the factor as a number."""
        return d_model**-0.5 if self.scale is True else float(self.scale or 1.0)
