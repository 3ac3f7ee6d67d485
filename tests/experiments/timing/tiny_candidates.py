"""Models of a few hundred parameters for the measuring code."""

from __future__ import annotations

from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.config.training import TrainingConfig
from ostinato.experiments.timing.workloads import TimedModel

_ATTENTION, _FFN = AttentionConfig(n_heads=2), DenseFeedForwardConfig(d_ff=12)
TRAINING = TrainingConfig()


def seq2seq(name: str = "seq2seq", n_steps: int = 1) -> TimedModel:
    model = Seq2SeqConfig(
        d_model=8,
        source_vocab_size=11,
        target_vocab_size=11,
        tie_embeddings="all",
        encoder=StackConfig(n_steps=n_steps, self_attention=_ATTENTION, ffn=_FFN),
        decoder=DecoderConfig(n_steps=n_steps, self_attention=_ATTENTION, cross_attention=_ATTENTION, ffn=_FFN),
    )
    return TimedModel(name, model, TRAINING)


def language_model(name: str = "causal", mask: str = "causal") -> TimedModel:
    stack = StackConfig(n_steps=2, self_attention=_ATTENTION, ffn=_FFN)
    model = LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 11, "mask": mask, "decoder": stack})
    return TimedModel(name, model, TRAINING)
