"""What a user instantiates, and how a configuration becomes a model."""

from __future__ import annotations

from ostinato.models.build import Model, build_model
from ostinato.models.checkpoint import load_model, save_average, save_model
from ostinato.models.encoder import Encoder
from ostinato.models.language_model import LanguageModel
from ostinato.models.output import ModelOutput
from ostinato.models.seq2seq import Seq2Seq

__all__ = [
    "Encoder",
    "LanguageModel",
    "Model",
    "ModelOutput",
    "Seq2Seq",
    "build_model",
    "load_model",
    "save_average",
    "save_model",
]
