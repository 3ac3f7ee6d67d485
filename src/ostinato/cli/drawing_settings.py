"""What the drawing of a plan leaves unsaid of a model's settings, as they would be written in a recipe."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.config.base import Config, NamesByClass
    from ostinato.config.model import ModelConfig


def other_settings(model: ModelConfig) -> dict[str, list[str]]:
    """Return what differs from its default and is drawn nowhere else, by stack, that of the model under "": KEY=VALUE.

    A setting that is new to the configuration is among them until it is drawn, see `drawn_settings`.
    """
    from ostinato.config.base import changed_settings

    stacks = model.stacks()
    found: dict[str, list[str]] = {name: [] for name in ("", *stacks)}
    absent = {(name, kind) for name, stack in stacks.items() for kind, sub in stack.sub_layers() if sub.is_absent}
    for key, value in changed_settings(model, but=drawn_settings()):
        name, _, own = key.partition(".")
        if name not in stacks:
            found[""].append(f"{key}={as_written(value)}")
        elif (name, own.partition(".")[0]) not in absent:
            found[name].append(f"{own}={as_written(value)}")
    return found


def lines_of(settings: list[str], indent: str, width: int) -> Iterator[str]:
    """Yield settings in lines of at most `width`, but for what cannot be broken; nothing where there are none."""
    if settings:
        yield from textwrap.wrap(
            f"other settings: {', '.join(settings)}",
            width,
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def as_written(value: Any) -> str:
    """Return a value as it is written in YAML; a float with at most six significant digits, unless it is whole."""
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() else f"{value:g}"
    return value if isinstance(value, str) and value else json.dumps(value)


@cache
def drawn_settings() -> NamesByClass:
    """Return the settings that columns and other lines of a drawing show; of a group its kind, or that it is there."""
    from ostinato.config.common import CommonModelConfig, PairModelConfig, SequenceModelConfig
    from ostinato.config.experts import (
        ExpertFeedForwardConfig,
        GateConfig,
        HypersphereRouterConfig,
        RoutedConfig,
        SparseLayerConfig,
    )
    from ostinato.config.halting import ActConfig, ByLengthConfig, ExitConfig, SelectConfig, StickBreakingConfig
    from ostinato.config.loops import LearnedStateConfig, LoopStateConfig, NoiseStateConfig, SegmentConfig
    from ostinato.config.lstm import LstmLanguageModelConfig, LstmSeq2SeqConfig
    from ostinato.config.model import EncoderConfig
    from ostinato.config.stack import DecoderConfig, NormConfig, StackConfig, ValueEmbeddingsConfig
    from ostinato.config.sub_layers import (
        AttentionConfig,
        DenseFeedForwardConfig,
        SeparableConvConfig,
        SubLayerConfig,
    )

    names: dict[type[Config], str] = {
        CommonModelConfig: "d_model",
        PairModelConfig: "source_vocab_size target_vocab_size",
        SequenceModelConfig: "vocab_size",
        EncoderConfig: "vocab_size",
        LstmSeq2SeqConfig: "n_layers bidirectional attention",
        LstmLanguageModelConfig: "n_layers",
        StackConfig: "n_steps steps_per_round segments self_attention ffn value_embeddings sparse_layer positions "
        "relative halting",
        DecoderConfig: "cross_attention",
        SegmentConfig: "n_steps repeats fixed state inject keys norms vectors delta_rank modulation round_norm end_map "
        "end_norm states",
        LoopStateConfig: "name n_steps repeats state adds norm",
        LearnedStateConfig: "std",
        NoiseStateConfig: "std",
        NormConfig: "kind placement",
        ValueEmbeddingsConfig: "share",
        SubLayerConfig: "share n_unique share_norm bank",
        AttentionConfig: "n_heads n_kv_heads d_head",
        DenseFeedForwardConfig: "d_ff activation",
        ExpertFeedForwardConfig: "d_ff activation",
        SeparableConvConfig: "d_ff kernel_in kernel_out",
        SparseLayerConfig: "after n_layers d_ff activation",
        RoutedConfig: "n_experts top_k router",
        GateConfig: "kind renormalise n_sampled",
        HypersphereRouterConfig: "d_router",
        ActConfig: "epsilon mix freeze_halted_state force_remainder_at_max scope",
        StickBreakingConfig: "threshold",
        ExitConfig: "threshold freeze_halted_state",
        SelectConfig: "capacities among threshold",
        ByLengthConfig: "per_token extra",
    }
    return {owner: frozenset(words.split()) for owner, words in names.items()}
