"""A model of every kind that is exported, by what it has: tiny, with random weights."""

from __future__ import annotations

from typing import Any

import torch

import ostinato as o
from ostinato.config.lstm import LstmLanguageModelConfig
from ostinato.models import Model

_ATTENTION: dict[str, Any] = {"n_heads": 2, "share": "all"}
_FEED_FORWARD: dict[str, Any] = {"d_ff": 12, "share": "all"}
_EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": 3, "top_k": 2, "d_ff": 6, "share": "all"}
_OF_EXPERTS = {"kind": "experts", "n_experts": 3, "top_k": 2, "n_heads": 1, "d_head": 4, "share": "all"}
_OF_HEADS = {"kind": "head_experts", "n_experts": 3, "top_k": 2, "n_heads": 2, "share": "all", "bias": False}
_CORE: dict[str, Any] = {"n_steps": 2, "repeats": 3}


def _loop(core: dict[str, Any], **more: Any) -> dict[str, Any]:
    segments = [{"n_steps": 1}, _CORE | core, {"n_steps": 1}]
    own: dict[str, Any] = {"n_steps": 4, "segments": segments, "norm": {"placement": "pre"}}
    return own | {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 12}} | more


def _shared(**more: Any) -> dict[str, Any]:
    return {"n_steps": 4, "self_attention": _ATTENTION, "ffn": _FEED_FORWARD, **more}


STACKS: dict[str, dict[str, Any]] = {
    "dense, sinusoidal": {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 12}},
    "one wide feed-forward, learned": {
        "n_steps": 3,
        "self_attention": {"n_heads": 2},
        "ffn": _FEED_FORWARD,
        "positions": {"kind": "learned", "max_length": 64},
    },
    "shared, coordinates, ACT": _shared(
        positions={"kind": "coordinates"}, halting={"kind": "act", "initial_bias": -1.0}
    ),
    "shared, rotary, stick-breaking": _shared(
        positions={"kind": "none"}, relative={"kind": "rotary"}, halting={"kind": "stick_breaking"}
    ),
    "shared, buckets, exits by a gate": _shared(
        relative={"kind": "buckets", "n_buckets": 8, "max_distance": 16}, halting={"kind": "exit", "threshold": 0.6}
    ),
    "shared, window, experts": _shared(
        ffn=_EXPERTS, self_attention=_OF_EXPERTS, relative={"kind": "window", "window": 3}
    ),
    "ALiBi, experts of heads": _shared(
        self_attention=_OF_HEADS, relative={"kind": "alibi"}, positions={"kind": "none"}
    ),
    "loop, linear injection, noise": _loop({"inject": {"kind": "linear"}, "state": {"kind": "noise", "std": 0.3}}),
    "loop, add, reach": _loop({"inject": {"kind": "add"}, "round_norm": True}, relative={"kind": "none", "reach": 3}),
    "loop, decay, rounds with norms and vectors": _loop(
        {"inject": {"kind": "decay"}, "norms": "by_round", "vectors": True}
    ),
    "loop, keys of all rounds, by time": _loop({"keys": "all", "modulation": {"kind": "by_time"}}),
    "values by token, one table of a loop, experts": _shared(
        value_embeddings={"share": "all", "gate_width": 4}, ffn=_EXPERTS, halting={"kind": "act", "initial_bias": -1.0}
    ),
    "values by token, tables of their own": _loop({}, value_embeddings={"share": [0, None, 1, 0], "gate_width": 4}),
    "convolution": _shared(ffn={"kind": "separable_conv", "d_ff": 6, "share": "all"}),
    "chosen tokens": _shared(halting={"kind": "select", "threshold": 0.5}),
    "grouped heads, qk norm, gated": {
        "n_steps": 2,
        "self_attention": {"n_heads": 4, "n_kv_heads": 2, "qk_norm": "rms", "output_gate": True, "bias": False},
        "ffn": {"d_ff": 12, "activation": "swiglu", "bias": False},
        "norm": {"kind": "rms", "placement": "pre"},
        "relative": {"kind": "rotary"},
        "positions": {"kind": "none"},
    },
}
HEADS: dict[str, dict[str, Any]] = {
    "masked": {},
    "classification": {"head": {"kind": "classification", "pooling": "mean"}, "n_labels": 3},
    "classification by the first": {"head": {"kind": "classification", "pooling": "first"}, "n_labels": 3},
    "tagging": {"head": {"kind": "tagging"}, "n_labels": 3},
    "tagging, causal": {"head": {"kind": "tagging"}, "n_labels": 3, "mask": "causal"},
    "span": {"head": {"kind": "span"}},
}


def language_model(stack: str, **more: Any) -> Model:
    """Return a language model of one stack."""
    return _built(o.LanguageModelConfig(d_model=8, vocab_size=20, decoder=STACKS[stack], **more))  # type: ignore[arg-type]


def pair_model(encoder: str, decoder: str) -> Model:
    """Return an encoder and a decoder."""
    cross = {"n_heads": 2, "share": "all"}
    stacks = {"encoder": STACKS[encoder], "decoder": STACKS[decoder] | {"cross_attention": cross}}
    sizes = {"source_vocab_size": 20, "target_vocab_size": 15}
    return _built(o.Seq2SeqConfig.model_validate({"d_model": 8, **sizes, **stacks}))


def encoder_model(stack: str, head: str, **more: Any) -> Model:
    """Return an encoder with a head."""
    given = {"d_model": 8, "vocab_size": 20, "encoder": STACKS[stack], **HEADS[head], **more}
    return _built(o.EncoderConfig.model_validate(given))


def _built(config: Any) -> Model:
    torch.manual_seed(1)
    model = o.build_model(config.model_copy(update={"dropout": 0.0})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if "tau" in name else 0.3))
    return model


def recurrent_model() -> Model:
    """Return a model that is no Transformer."""
    return _built(LstmLanguageModelConfig(d_model=8, vocab_size=20))
