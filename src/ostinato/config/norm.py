"""What a norm computes, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ostinato.config.base import Config, Positive
from ostinato.errors import Inert, Problem


class NormalisationConfig(Config):
    """A norm over the components of a state."""

    kind: Literal["layer", "rms"] = "layer"
    """layer: layer normalisation. rms: division by the root mean square, without a mean and a bias."""
    eps: Positive = 1e-5
    """Added to the variance before its root is taken."""
    weight: bool = True
    """A learned factor of every component. False: there is neither weight nor bias."""
    bias: bool = True
    """A learned bias of every component, of layer normalisation (ModernBERT: no)."""
    unit_offset: bool = False
    """The factor is 1 + weight, of rms (Gemma)."""

    @property
    def has_bias(self) -> bool:
        """Whether there is a bias."""
        return self.kind == "layer" and self.weight and self.bias

    def shape(self) -> dict[str, object]:
        """Return what norms with the same parameters have in common."""
        return {name: getattr(self, name) for name in NormalisationConfig.model_fields}

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings of weights that are not there."""
        if self.unit_offset and (self.kind != "rms" or not self.weight):
            reason = f"needs {path}kind=rms and {path}weight=true, got {self.kind} and {str(self.weight).lower()}"
            yield Problem(f"{path}unit_offset", True, reason)
        if not self.bias and (self.kind == "rms" or not self.weight):
            why = "rms has no bias" if self.kind == "rms" else f"{path}weight=false leaves the bias out already"
            yield Inert(f"{path}bias", False, f"has no effect: {why}; remove it")
