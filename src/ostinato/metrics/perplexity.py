"""Perplexity, of the probabilities of a model or of frequencies."""

from __future__ import annotations

import math

_LARGEST = 700.0
"""exp of more is beyond a float."""


def perplexity(loss: float) -> float:
    """Return exp(loss), of a mean of -log p in nats a label or a word; inf from 700 nats on."""
    return math.inf if loss >= _LARGEST else math.exp(loss)
