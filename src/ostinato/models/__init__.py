"""What a user instantiates, and how a configuration becomes a model."""

from __future__ import annotations

from ostinato.models.build import Model, Writer, build_model
from ostinato.models.checkpoint import load_model, save_average, save_model
from ostinato.models.encoder import Encoder
from ostinato.models.lstm import LstmLanguageModel, LstmSeq2Seq
from ostinato.models.output import ModelOutput
from ostinato.models.transformer import LanguageModel, Seq2Seq

__all__ = [
    "Encoder",
    "LanguageModel",
    "LstmLanguageModel",
    "LstmSeq2Seq",
    "Model",
    "ModelOutput",
    "Seq2Seq",
    "Writer",
    "build_model",
    "load_model",
    "save_average",
    "save_model",
]
