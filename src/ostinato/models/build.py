"""From a configuration to a model."""

from __future__ import annotations

from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.config.model import EncoderConfig, ModelConfig, Seq2SeqConfig
from ostinato.models.encoder import Encoder
from ostinato.models.language_model import LanguageModel
from ostinato.models.lstm import LstmLanguageModel, LstmSeq2Seq
from ostinato.models.seq2seq import Seq2Seq

Writer = Seq2Seq | LanguageModel | LstmSeq2Seq | LstmLanguageModel
"""A model that writes text."""
Model = Writer | Encoder
"""What a configuration becomes."""


def build_model(config: ModelConfig) -> Model:
    """Return a freshly initialised model; torch's global generator decides the weights.

    Raises:
        ConfigError: a vocabulary size is not set.
    """
    match config:
        case Seq2SeqConfig():
            return Seq2Seq(config)
        case EncoderConfig():
            return Encoder(config)
        case LstmSeq2SeqConfig():
            return LstmSeq2Seq(config)
        case LstmLanguageModelConfig():
            return LstmLanguageModel(config)
    return LanguageModel(config)
