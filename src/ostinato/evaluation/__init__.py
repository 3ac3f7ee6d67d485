"""Run a model over a split, and load runs."""

from __future__ import annotations

from ostinato.evaluation.evaluate import evaluate
from ostinato.evaluation.predictions import PredictionWriter

__all__ = ["PredictionWriter", "evaluate"]
