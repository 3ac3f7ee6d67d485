"""From a configuration to a model."""

from __future__ import annotations

from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.models.language_model import LanguageModel
from ostinato.models.seq2seq import Seq2Seq


def build_model(config: Seq2SeqConfig | LanguageModelConfig) -> Seq2Seq | LanguageModel:
    """Return a freshly initialised model; torch's global generator decides the weights.

    Raises:
        ConfigError: a vocabulary size is not set.
    """
    return Seq2Seq(config) if isinstance(config, Seq2SeqConfig) else LanguageModel(config)
