"""From a configuration to a model."""

from __future__ import annotations

import torch

from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.config.model import EncoderConfig, ModelConfig, Seq2SeqConfig
from ostinato.models.encoder import Encoder
from ostinato.models.lstm import LstmLanguageModel, LstmSeq2Seq
from ostinato.models.transformer import LanguageModel, Seq2Seq
from ostinato.nn.execution import Execution

Writer = Seq2Seq | LanguageModel | LstmSeq2Seq | LstmLanguageModel
"""A model that writes text."""
Model = Writer | Encoder
"""What a configuration becomes."""


def build_model(config: ModelConfig, execution: Execution | None = None) -> Model:
    """Return a freshly initialised model; torch's global generator decides the weights.

    Args:
        execution: how it runs where a call does not say otherwise, see `ostinato.nn.execution`.

    Raises:
        ConfigError: a vocabulary size is not set; an execution that the model cannot follow.
    """
    model: Model
    match config:
        case Seq2SeqConfig():
            model = Seq2Seq(config, execution)
        case EncoderConfig():
            model = Encoder(config, execution)
        case LstmSeq2SeqConfig():
            model = LstmSeq2Seq(config, execution)
        case LstmLanguageModelConfig():
            model = LstmLanguageModel(config, execution)
        case _:
            model = LanguageModel(config, execution)
    model.checked(execution)
    return model


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a model's parameters by name; its vocabulary sizes are set."""
    with torch.device("meta"):
        return {name: tuple(parameter.shape) for name, parameter in build_model(config).named_parameters()}


def without_memory(config: ModelConfig, execution: Execution | None = None) -> Model:
    """Return a model of names and shapes alone (on torch's meta device), before its vocabularies are known.

    Raises:
        ConfigError: an execution that the model cannot follow.
    """
    with torch.device("meta"):
        return build_model(config.model_copy(update=config.vocabulary_sizes(8, 8)), execution)
