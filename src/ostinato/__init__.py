"""Transformers that spend parameters and compute unevenly over depth.

Importing the package imports no torch: the public names below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ostinato.version import __version__

if TYPE_CHECKING:
    from ostinato.config.decoding import DecodingConfig
    from ostinato.config.experts import ExpertAttentionConfig, ExpertFeedForwardConfig, SparseLayerConfig
    from ostinato.config.halting import ActConfig, StickBreakingConfig
    from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
    from ostinato.config.model import EncoderConfig, LanguageModelConfig, Seq2SeqConfig
    from ostinato.config.recipe import Recipe
    from ostinato.config.special_ids import SpecialIds
    from ostinato.config.stack import DecoderConfig, StackConfig
    from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig
    from ostinato.config.training import BalanceConfig, DepthCostConfig, TrainingConfig
    from ostinato.data.batch import Batch
    from ostinato.decoding.generate import generate
    from ostinato.evaluation.evaluate import evaluate
    from ostinato.evaluation.loading import LoadedRun, load
    from ostinato.kernels.memory import keep_freed_memory
    from ostinato.models.build import build_model
    from ostinato.models.checkpoint import load_model, save_model
    from ostinato.models.encoder import Encoder
    from ostinato.models.lstm import LstmLanguageModel, LstmSeq2Seq
    from ostinato.models.output import ModelOutput
    from ostinato.models.transformer import LanguageModel, Seq2Seq
    from ostinato.nn.execution import Execution, RoundsByLength
    from ostinato.plan import Plan
    from ostinato.tasks.recipes import load_recipe
    from ostinato.training.loop import train

_HOMES = {
    "ostinato.config.decoding": ("DecodingConfig",),
    "ostinato.config.experts": ("ExpertAttentionConfig", "ExpertFeedForwardConfig", "SparseLayerConfig"),
    "ostinato.config.halting": ("ActConfig", "StickBreakingConfig"),
    "ostinato.config.lstm": ("LstmLanguageModelConfig", "LstmSeq2SeqConfig"),
    "ostinato.config.model": ("EncoderConfig", "LanguageModelConfig", "Seq2SeqConfig"),
    "ostinato.config.recipe": ("Recipe",),
    "ostinato.config.special_ids": ("SpecialIds",),
    "ostinato.config.stack": ("DecoderConfig", "StackConfig"),
    "ostinato.config.sub_layers": ("AttentionConfig", "DenseFeedForwardConfig", "SeparableConvConfig"),
    "ostinato.config.training": ("BalanceConfig", "DepthCostConfig", "TrainingConfig"),
    "ostinato.data.batch": ("Batch",),
    "ostinato.decoding.generate": ("generate",),
    "ostinato.evaluation.evaluate": ("evaluate",),
    "ostinato.evaluation.loading": ("LoadedRun", "load"),
    "ostinato.kernels.memory": ("keep_freed_memory",),
    "ostinato.models.build": ("build_model",),
    "ostinato.models.checkpoint": ("load_model", "save_model"),
    "ostinato.models.encoder": ("Encoder",),
    "ostinato.models.lstm": ("LstmLanguageModel", "LstmSeq2Seq"),
    "ostinato.models.output": ("ModelOutput",),
    "ostinato.models.transformer": ("LanguageModel", "Seq2Seq"),
    "ostinato.nn.execution": ("Execution", "RoundsByLength"),
    "ostinato.plan": ("Plan",),
    "ostinato.tasks.recipes": ("load_recipe",),
    "ostinato.training.loop": ("train",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ActConfig",
    "AttentionConfig",
    "BalanceConfig",
    "Batch",
    "DecoderConfig",
    "DecodingConfig",
    "DenseFeedForwardConfig",
    "DepthCostConfig",
    "Encoder",
    "EncoderConfig",
    "Execution",
    "ExpertAttentionConfig",
    "ExpertFeedForwardConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LoadedRun",
    "LstmLanguageModel",
    "LstmLanguageModelConfig",
    "LstmSeq2Seq",
    "LstmSeq2SeqConfig",
    "ModelOutput",
    "Plan",
    "Recipe",
    "RoundsByLength",
    "SeparableConvConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "SparseLayerConfig",
    "SpecialIds",
    "StackConfig",
    "StickBreakingConfig",
    "TrainingConfig",
    "__version__",
    "build_model",
    "evaluate",
    "generate",
    "keep_freed_memory",
    "load",
    "load_model",
    "load_recipe",
    "save_model",
    "train",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
