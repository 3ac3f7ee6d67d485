"""Transformers that spend parameters and compute unevenly over depth.

Importing the package imports no torch: the public names below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ostinato.version import __version__

if TYPE_CHECKING:
    from ostinato.config.data import DataConfig, DataSetConfig, MaskingConfig, MixtureConfig, TokenizerConfig
    from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
    from ostinato.config.experts import (
        ExpertAttentionConfig,
        ExpertFeedForwardConfig,
        GateConfig,
        HeadExpertAttentionConfig,
        HypersphereRouterConfig,
        LinearRouterConfig,
        MlpRouterConfig,
        SparseLayerConfig,
    )
    from ostinato.config.halting import (
        ActConfig,
        ByLengthConfig,
        ExitConfig,
        NoHaltingConfig,
        SelectConfig,
        StickBreakingConfig,
        TokenChoiceConfig,
    )
    from ostinato.config.loops import (
        AddInjectionConfig,
        ByRoundModulationConfig,
        ByTimeModulationConfig,
        DecayInjectionConfig,
        InputStateConfig,
        LearnedStateConfig,
        LinearInjectionConfig,
        LoopStateConfig,
        NoInjectionConfig,
        NoiseStateConfig,
        NoModulationConfig,
        SegmentConfig,
        ZeroStateConfig,
    )
    from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
    from ostinato.config.model import (
        ClassificationHeadConfig,
        EncoderConfig,
        FactsConfig,
        LanguageModelConfig,
        MaskedHeadConfig,
        Seq2SeqConfig,
        SpanHeadConfig,
        TaggingHeadConfig,
        TokensConfig,
    )
    from ostinato.config.norm import NormalisationConfig
    from ostinato.config.output import OutputConfig, TransformConfig
    from ostinato.config.positions import (
        AlibiConfig,
        BucketsConfig,
        ByStepConfig,
        CoordinatesConfig,
        LearnedConfig,
        LinearScalingConfig,
        Llama3ScalingConfig,
        NoRelativeConfig,
        NoScalingConfig,
        NoSignalConfig,
        RotaryConfig,
        SinusoidalConfig,
        WindowConfig,
    )
    from ostinato.config.recipe import EvaluationConfig, Recipe, ReferenceRow, TaskRef
    from ostinato.config.special_ids import SpecialIds
    from ostinato.config.stack import DecoderConfig, NormConfig, StackConfig, ValueEmbeddingsConfig
    from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig
    from ostinato.config.training import (
        BalanceConfig,
        ConsistencyConfig,
        DdpConfig,
        DepthCostConfig,
        FsdpConfig,
        LearningRateScale,
        LogNormalPoissonRoundsConfig,
        OptimizerConfig,
        PlainParallelConfig,
        PlannedRoundsConfig,
        PoissonRoundsConfig,
        RoundLossConfig,
        ScheduleConfig,
        SelectionConfig,
        TrainingConfig,
        UniformRoundsConfig,
    )
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
    "ostinato.config.data": ("DataConfig", "DataSetConfig", "MaskingConfig", "MixtureConfig", "TokenizerConfig"),
    "ostinato.config.decoding": ("DecodingConfig", "LengthPenaltyConfig"),
    "ostinato.config.experts": (
        "ExpertAttentionConfig",
        "ExpertFeedForwardConfig",
        "GateConfig",
        "HeadExpertAttentionConfig",
        "HypersphereRouterConfig",
        "LinearRouterConfig",
        "MlpRouterConfig",
        "SparseLayerConfig",
    ),
    "ostinato.config.halting": (
        "ActConfig",
        "ByLengthConfig",
        "ExitConfig",
        "NoHaltingConfig",
        "SelectConfig",
        "StickBreakingConfig",
        "TokenChoiceConfig",
    ),
    "ostinato.config.loops": (
        "AddInjectionConfig",
        "ByRoundModulationConfig",
        "ByTimeModulationConfig",
        "DecayInjectionConfig",
        "InputStateConfig",
        "LearnedStateConfig",
        "LinearInjectionConfig",
        "LoopStateConfig",
        "NoInjectionConfig",
        "NoModulationConfig",
        "NoiseStateConfig",
        "SegmentConfig",
        "ZeroStateConfig",
    ),
    "ostinato.config.lstm": ("LstmLanguageModelConfig", "LstmSeq2SeqConfig"),
    "ostinato.config.model": (
        "ClassificationHeadConfig",
        "EncoderConfig",
        "FactsConfig",
        "LanguageModelConfig",
        "MaskedHeadConfig",
        "Seq2SeqConfig",
        "SpanHeadConfig",
        "TaggingHeadConfig",
        "TokensConfig",
    ),
    "ostinato.config.norm": ("NormalisationConfig",),
    "ostinato.config.output": ("OutputConfig", "TransformConfig"),
    "ostinato.config.positions": (
        "AlibiConfig",
        "BucketsConfig",
        "ByStepConfig",
        "CoordinatesConfig",
        "LearnedConfig",
        "LinearScalingConfig",
        "Llama3ScalingConfig",
        "NoRelativeConfig",
        "NoScalingConfig",
        "NoSignalConfig",
        "RotaryConfig",
        "SinusoidalConfig",
        "WindowConfig",
    ),
    "ostinato.config.recipe": ("EvaluationConfig", "Recipe", "ReferenceRow", "TaskRef"),
    "ostinato.config.special_ids": ("SpecialIds",),
    "ostinato.config.stack": ("DecoderConfig", "NormConfig", "StackConfig", "ValueEmbeddingsConfig"),
    "ostinato.config.sub_layers": ("AttentionConfig", "DenseFeedForwardConfig", "SeparableConvConfig"),
    "ostinato.config.training": (
        "BalanceConfig",
        "ConsistencyConfig",
        "DdpConfig",
        "DepthCostConfig",
        "FsdpConfig",
        "LearningRateScale",
        "LogNormalPoissonRoundsConfig",
        "OptimizerConfig",
        "PlainParallelConfig",
        "PlannedRoundsConfig",
        "PoissonRoundsConfig",
        "RoundLossConfig",
        "ScheduleConfig",
        "SelectionConfig",
        "TrainingConfig",
        "UniformRoundsConfig",
    ),
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
    "AddInjectionConfig",
    "AlibiConfig",
    "AttentionConfig",
    "BalanceConfig",
    "Batch",
    "BucketsConfig",
    "ByLengthConfig",
    "ByRoundModulationConfig",
    "ByStepConfig",
    "ByTimeModulationConfig",
    "ClassificationHeadConfig",
    "ConsistencyConfig",
    "CoordinatesConfig",
    "DataConfig",
    "DataSetConfig",
    "DdpConfig",
    "DecayInjectionConfig",
    "DecoderConfig",
    "DecodingConfig",
    "DenseFeedForwardConfig",
    "DepthCostConfig",
    "Encoder",
    "EncoderConfig",
    "EvaluationConfig",
    "Execution",
    "ExitConfig",
    "ExpertAttentionConfig",
    "ExpertFeedForwardConfig",
    "FactsConfig",
    "FsdpConfig",
    "GateConfig",
    "HeadExpertAttentionConfig",
    "HypersphereRouterConfig",
    "InputStateConfig",
    "LanguageModel",
    "LanguageModelConfig",
    "LearnedConfig",
    "LearnedStateConfig",
    "LearningRateScale",
    "LengthPenaltyConfig",
    "LinearInjectionConfig",
    "LinearRouterConfig",
    "LinearScalingConfig",
    "Llama3ScalingConfig",
    "LoadedRun",
    "LogNormalPoissonRoundsConfig",
    "LoopStateConfig",
    "LstmLanguageModel",
    "LstmLanguageModelConfig",
    "LstmSeq2Seq",
    "LstmSeq2SeqConfig",
    "MaskedHeadConfig",
    "MaskingConfig",
    "MixtureConfig",
    "MlpRouterConfig",
    "ModelOutput",
    "NoHaltingConfig",
    "NoInjectionConfig",
    "NoModulationConfig",
    "NoRelativeConfig",
    "NoScalingConfig",
    "NoSignalConfig",
    "NoiseStateConfig",
    "NormConfig",
    "NormalisationConfig",
    "OptimizerConfig",
    "OutputConfig",
    "PlainParallelConfig",
    "Plan",
    "PlannedRoundsConfig",
    "PoissonRoundsConfig",
    "Recipe",
    "ReferenceRow",
    "RotaryConfig",
    "RoundLossConfig",
    "RoundsByLength",
    "ScheduleConfig",
    "SegmentConfig",
    "SelectConfig",
    "SelectionConfig",
    "SeparableConvConfig",
    "Seq2Seq",
    "Seq2SeqConfig",
    "SinusoidalConfig",
    "SpanHeadConfig",
    "SparseLayerConfig",
    "SpecialIds",
    "StackConfig",
    "StickBreakingConfig",
    "TaggingHeadConfig",
    "TaskRef",
    "TokenChoiceConfig",
    "TokenizerConfig",
    "TokensConfig",
    "TrainingConfig",
    "TransformConfig",
    "UniformRoundsConfig",
    "ValueEmbeddingsConfig",
    "WindowConfig",
    "ZeroStateConfig",
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
