"""Train models: the loop, its losses and optimisers, checkpoints and run directories."""

from __future__ import annotations

from ostinato.training.loop import train
from ostinato.training.reporter import LinesReporter, Reporter, RichReporter, make_reporter

__all__ = ["LinesReporter", "Reporter", "RichReporter", "make_reporter", "train"]
