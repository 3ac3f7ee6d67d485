"""What drawn models are made of, by name: what `any_architecture` has covered, and all that it is to cover."""

from __future__ import annotations

from typing import Any, get_args

from drawn_parts import ACTIVATIONS, LAYOUTS, NORMS, SWITCHES
from haltings import all_halting_traits, halting_traits
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    HypersphereRouterConfig,
    RoutedConfig,
    RouterConfig,
    SparseLayerConfig,
)
from ostinato.config.loops import INPUT, InjectionConfig, ModulationConfig, StateConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.norm import NormalisationConfig
from ostinato.config.positions import RelativeConfig, RotaryConfig, ScalingConfig, SignalConfig, SinusoidalConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig
from ostinato.plan import PLACES, SCHEMES


def traits(config: Seq2SeqConfig | LanguageModelConfig) -> set[str]:
    """Name what a model is made of, so that a test can see what its draws covered."""
    found = {f"kind {config.kind}", f"tie {config.tie_embeddings}", f"init {config.init}"}
    found.add(f"embedding_scale {config.embedding_scale}")
    found.add(f"d_embedding {'none' if config.d_embedding is None else f'bias {config.embedding_bias}'}")
    output = config.output
    found |= {f"output bias {output.bias}", f"output scale {output.scale}", f"soft cap {output.soft_cap}"}
    found.add(f"transform {None if output.transform is None else output.transform.activation}")
    if isinstance(config, LanguageModelConfig):
        found |= {f"mask {config.mask}", f"mask {config.mask} relative {config.decoder.relative.kind}"}
    for name, stack in config.stacks().items():
        norm = stack.norm
        found |= {f"norm {norm.kind} {norm.placement}", f"positions {stack.positions.kind}"}
        found |= {f"final norm {norm.has_final} {norm.placement}", f"first norm {norm.first}"}
        found |= {f"embedding norm {norm.embedding}", f"final weight {norm.final_weight}"}
        found.add(f"final eps {norm.final_eps}")
        found |= {f"norm {norm.kind} weight {norm.weight}", f"norm {norm.kind} offset {norm.unit_offset}"}
        found |= {f"norm {norm.kind} bias {norm.has_bias}"}
        if isinstance(stack.positions, SinusoidalConfig):
            found.add(f"sinusoids {stack.positions.layout}")
        found |= {f"relative {stack.relative.kind} {name}", f"steps_per_round {stack.steps_per_round}"}
        for segment in stack.segments:
            if segment.fixed:
                found |= {f"fixed {name}", f"fixed inject {segment.inject.kind}", f"fixed keys {segment.keys}"}
                found |= {f"fixed modulation {segment.modulation.kind}"}
                continue
            found |= {f"segments {name}", f"end_norm {segment.end_norm}", f"end_map {segment.end_map}"}
            found |= {f"inject {segment.inject.kind}", f"state {segment.state.kind}"}
            found |= {f"round_norm {segment.round_norm}", f"keys {segment.keys}"}
            found |= {f"norms {segment.norms}", f"vectors {segment.vectors}", f"delta {segment.delta_rank > 0}"}
            found |= {f"modulation {segment.modulation.kind}"}
            for one in segment.states:
                found |= {f"one of {len(segment.states)} states", f"norm of a state {one.norm}"}
                found |= {f"state adds {'input' if other == INPUT else 'another'}" for other in one.adds}
        found |= halting_traits(name, stack)
        if (tables := stack.value_tables()) is not None:
            found |= {f"values {name} {'none' if one is None else 'some'}" for one in tables}
        for one in stack.relatives():
            found.add(f"reach {one.reach is not None}")
            if isinstance(one, RotaryConfig):
                found |= {f"rotary {one.layout}", f"rotary fraction {one.fraction}", f"scaling {one.scaling.kind}"}
        for kind, sub in stack.sub_layers():
            scheme = sub.share if isinstance(sub.share, str) else "list with nulls" if None in sub.share else "list"
            found |= {f"share {kind} {scheme}", f"share_norm {sub.share_norm}", f"bias {kind} {sub.bias}"}  # type: ignore[attr-defined]
            if any(use.kind == kind and use.delta is not None for use in stack.plan(name).uses()):
                found.add(f"delta of {kind} {sub.kind}")  # type: ignore[attr-defined]
            if isinstance(sub, AttentionConfig):
                if sub.qk_norm != "none":
                    found.add(f"qk_norm_eps {sub.qk_norm_eps}")
                found |= {f"qk_norm {sub.qk_norm} {sub.qk_norm_at}", f"output_gate {kind} {sub.output_gate}"}
                grouped = "grouped" if sub.n_key_heads < sub.n_heads else "each its own"
                found |= {f"keys {kind} {grouped}", f"scale {sub.scale}"}
            if isinstance(sub, DenseFeedForwardConfig):
                found.add(f"activation {sub.activation}")
            if isinstance(sub, RoutedConfig) and any(s is not None for s in sub.sets(stack.n_steps)):
                found |= _traits_of_experts(sub, f"{kind} {name}")
                if kind == "self_attention":
                    found.add(f"relative {stack.relative.kind} of experts")
            if isinstance(sub, SeparableConvConfig) and any(s is not None for s in sub.sets(stack.n_steps)):
                found.add(f"separable_conv {name}")
                found |= {f"kernel {'even' if k % 2 == 0 else 'odd'}" for k in (sub.kernel_in, sub.kernel_out)}
        if stack.sparse_layer is not None:
            found |= _traits_of_experts(stack.sparse_layer, f"sparse_layer {name}")
    if isinstance(config, Seq2SeqConfig):
        plans = config.plans()
        for kind in ("self_attention", "ffn"):
            if set(plans["encoder"].names(kind)) & set(plans["decoder"].names(kind)):
                found.add(f"served from one bank {kind}")
                if kind == "ffn" and isinstance(config.decoder.ffn, SeparableConvConfig):
                    found.add("served from one bank separable_conv")
                if isinstance(getattr(config.decoder, kind), RoutedConfig):
                    found.add(f"served from one bank experts of {kind}")
    return found


def _traits_of_experts(sub: RoutedConfig, where: str) -> set[str]:
    few = "all" if sub.top_k == sub.n_experts else "one" if sub.top_k == 1 else "some"
    found = {f"experts {where}", f"n_experts {sub.n_experts}", f"expert_init {sub.expert_init}"}
    if isinstance(sub, HeadExpertAttentionConfig):
        found |= {f"experts of heads {where}", f"heads with experts {'grouped' if sub.n_kv_heads else 'alone'}"}
    elif isinstance(sub, ExpertAttentionConfig):
        found.add(f"heads of an expert {'one' if sub.n_heads == 1 else 'some'}")
    elif isinstance(sub, ExpertFeedForwardConfig | SparseLayerConfig):
        found |= {f"activation of experts {sub.activation}", f"bias of experts {sub.bias}"}
    if isinstance(sub, ExpertAttentionConfig | ExpertFeedForwardConfig):
        found.add(f"bias of the sum {sub.sum_bias}")
    if not sub.has_router:
        return found
    renormalised = f" renormalised {sub.is_renormalised}" if sub.gate.kind == "softmax" else ""
    found |= {f"k {few}", f"gate {sub.gate.kind}{renormalised}", f"n_sampled {sub.gate.n_sampled}"}
    found.add(f"router {sub.router.kind}")
    if isinstance(sub.router, HypersphereRouterConfig):
        found |= {f"hypersphere {switch} {getattr(sub.router, switch)}" for switch in SWITCHES}
    return found


def kinds_of(union: Any) -> set[str]:
    """Return the kinds that a setting can be."""
    return {one.model_fields["kind"].default for one in get_args(get_args(union)[0])}


def all_traits() -> set[str]:
    """Name every trait that `any_architecture` is to draw; kinds are those of the configuration."""
    relatives, norms = kinds_of(RelativeConfig), get_args(NormalisationConfig.model_fields["kind"].annotation)
    schemes = [*SCHEMES, "list", "list with nulls"]
    kinds = ("self_attention", "cross_attention", "ffn")
    return all_halting_traits() | {
        *(f"kind {k}" for k in ("seq2seq", "language_model")),
        *(f"tie {t}" for t in ("none", "output", "input", "all")),
        *(f"init {i}" for i in ("xavier", "normal", "unit_scaling", "torch", "depth_scaled")),
        *(f"embedding_scale {s}" for s in (True, False, 3.0)),
        *(f"d_embedding {s}" for s in ("none", "bias True", "bias False")),
        *(f"output bias {s}" for s in (True, False)),
        *(f"output scale {s}" for s in (True, False, 0.5)),
        *(f"soft cap {s}" for s in (None, 2.0)),
        *(f"transform {s}" for s in (None, "none", "relu", "relu2", "gelu", "gelu_tanh", "silu")),
        *(f"mask {m}" for m in ("causal", "prefix")),
        *(f"mask {m} relative {r}" for m in ("causal", "prefix") for r in ("none", "window", "buckets", "rotary")),
        *(f"reach {r}" for r in (True, False)),
        *(f"rotary {layout}" for layout in LAYOUTS),
        *(f"rotary fraction {f}" for f in (1.0, 0.5)),
        *(f"scaling {s}" for s in kinds_of(ScalingConfig)),
        *(f"qk_norm {n} {at}" for n in ("rms", "rms_plain") for at in ("before", "after")),
        *(f"output_gate {kind} {g}" for kind in ("self_attention", "cross_attention") for g in (True, False)),
        *(f"keys {kind} grouped" for kind in ("self_attention", "cross_attention")),
        *(f"scale {s}" for s in (None, 1.0)),
        *(f"norm {n} {p}" for n in norms for p in PLACES),
        *(f"final norm {f} {p}" for f in (True, False) for p in PLACES),
        *(f"embedding norm {s}" for s in (True, False)),
        *(f"first norm {s}" for s in (True, False)),
        *(f"final weight {s}" for s in (True, False)),
        *(f"norm {n} weight {s}" for n in norms for s in (True, False)),
        *("norm rms offset True", "norm layer bias True", "norm layer bias False"),
        *(f"positions {p}" for p in kinds_of(SignalConfig)),
        *(f"sinusoids {layout}" for layout in ("interleaved", "halves")),
        *(f"relative {r} {s}" for r in relatives for s in ("encoder", "decoder")),
        *(f"steps_per_round {n}" for n in (1, 2)),
        *(f"segments {s}" for s in ("encoder", "decoder")),
        *(f"fixed {s}" for s in ("encoder", "decoder")),
        *(f"{fixed}inject {i}" for fixed in ("", "fixed ") for i in kinds_of(InjectionConfig)),
        *(f"state {s}" for s in kinds_of(StateConfig)),
        *(f"{name} {s}" for name in ("round_norm", "end_map") for s in (True, False)),
        *(f"{fixed}keys {k}" for fixed in ("", "fixed ") for k in ("own", "first", "all")),
        *(f"norms {n}" for n in NORMS),
        *(f"values {s} {of}" for s in ("encoder", "decoder") for of in ("none", "some")),
        *(f"qk_norm_eps {eps}" for eps in (None, 1e-2)),
        *(f"{name} {s}" for name in ("vectors", "delta") for s in (True, False)),
        *(f"delta of {kind} {s}" for kind in kinds for s in ("dense", "experts")),
        *(f"{fixed}modulation {m}" for fixed in ("", "fixed ") for m in kinds_of(ModulationConfig)),
        *(f"end_norm {n}" for n in ("none", "own", "final")),
        *(f"one of {n} states" for n in (2, 3)),
        *(f"norm of a state {s}" for s in (True, False)),
        *(f"state adds {s}" for s in ("input", "another")),
        *(f"share {kind} {scheme}" for kind in kinds for scheme in schemes),
        *(f"share_norm {s}" for s in (True, False)),
        *(f"bias {kind} {b}" for kind in kinds for b in (True, False)),
        *(f"bias {kind} {b}" for kind in kinds[:2] for b in ("qkv", "qk")),
        *(f"activation {a}" for a in ACTIVATIONS),
        *(f"separable_conv {s}" for s in ("encoder", "decoder")),
        *(f"kernel {k}" for k in ("even", "odd")),
        *(f"served from one bank {s}" for s in ("self_attention", "ffn", "separable_conv")),
        *(f"served from one bank experts of {kind}" for kind in ("self_attention", "ffn")),
        *(f"experts {kind} {s}" for kind in ("self_attention", "ffn", "sparse_layer") for s in ("encoder", "decoder")),
        "experts cross_attention decoder",
        *(f"relative {r} of experts" for r in relatives),
        *(f"experts of heads self_attention {s}" for s in ("encoder", "decoder")),
        *(f"heads with experts {how}" for how in ("grouped", "alone")),
        *(f"n_experts {n}" for n in (1, 2, 3, 4)),
        *(f"k {few}" for few in ("one", "some", "all")),
        *(f"expert_init {i}" for i in ("model", "fan_in")),
        *(f"heads of an expert {n}" for n in ("one", "some")),
        *(f"activation of experts {a}" for a in ACTIVATIONS),
        *(f"bias of experts {b}" for b in (True, False)),
        *(f"bias of the sum {b}" for b in (True, False)),
        *(f"gate {g}" for g in ("softmax renormalised True", "softmax renormalised False", "topk_softmax", "sigmoid")),
        *(f"n_sampled {n}" for n in (0, 1)),
        *(f"router {r}" for r in kinds_of(RouterConfig)),
        *(f"hypersphere {switch} {on}" for switch in SWITCHES for on in (True, False)),
    }
