"""From settings to the parts of a model, freshly initialised: parameter sets, positions, halting rules."""

from __future__ import annotations

from typing import Any

from torch import nn

from ostinato.config.common import Init
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    HypersphereRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.halting import (
    ActConfig,
    ByLengthConfig,
    ExitConfig,
    HaltingConfig,
    SelectConfig,
    StickBreakingConfig,
    TokenChoiceConfig,
)
from ostinato.config.loops import (
    ByTimeModulationConfig,
    DecayInjectionConfig,
    InputStateConfig,
    LearnedStateConfig,
    LinearInjectionConfig,
    ModulationConfig,
    NoiseStateConfig,
    SegmentConfig,
    StateConfig,
)
from ostinato.config.norm import NormalisationConfig
from ostinato.config.positions import (
    AlibiConfig,
    BucketsConfig,
    CoordinatesConfig,
    LearnedConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    OneRelativeConfig,
    RotaryConfig,
    ScalingConfig,
    SignalConfig,
    SinusoidalConfig,
    WindowConfig,
)
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig, SubLayerConfig
from ostinato.nn.act import Act, ActUnit
from ostinato.nn.attention import Attention, QkNorm
from ostinato.nn.bank import Banks
from ostinato.nn.by_length import ByLength
from ostinato.nn.by_round import Deltas, Modulation, RoundTime, TimeModulation
from ostinato.nn.choosing import Routers
from ostinato.nn.exits import Exit
from ostinato.nn.experts import ExpertAttention, ExpertFeedForward, ExpertMaps, SparseLayer
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.halting import HaltingRule, NoHalting
from ostinato.nn.head_experts import HeadExpertAttention
from ostinato.nn.init import (
    init_attention,
    init_deltas,
    init_embedding,
    init_expert_attention,
    init_expert_maps,
    init_feed_forward,
    init_head_experts,
    init_linear_injection,
    init_projection,
    init_router,
    init_separable_conv,
    init_time,
    zero_second_maps,
)
from ostinato.nn.layers import Blocks, Linear, build_norm
from ostinato.nn.loops import (
    BesideInjection,
    DecayInjection,
    Injection,
    InputState,
    LearnedState,
    LinearInjection,
    NoiseState,
    SeveralStates,
    ZeroState,
)
from ostinato.nn.positions import Coordinates, Learned, PositionSignal, Sinusoidal
from ostinato.nn.relative import (
    Alibi,
    Buckets,
    LinearScaling,
    Llama3Scaling,
    RelativePositions,
    RelativeWindow,
    Rotary,
)
from ostinato.nn.routing import Gate, HypersphereRouter, LinearRouter, MlpRouter, Router
from ostinato.nn.select import Select
from ostinato.nn.separable import SeparableConv
from ostinato.nn.stick_breaking import StickBreaking, StickBreakingUnit
from ostinato.nn.token_choice import TokenChoice
from ostinato.nn.token_values import TokenValues
from ostinato.plan import Kind, Use


def build_sub_layer(
    settings: SubLayerConfig | SparseLayerConfig, d_model: int, init: Init, n_steps: int, eps: float
) -> nn.Module:
    """Return a parameter set; torch's global generator decides the weights.

    Args:
        d_model: width of the states. init: of the model. n_steps: of the stack. eps: of norms inside the set, such as
            those of queries and keys.
    """
    match settings:
        case ExpertAttentionConfig() as c:
            assert c.bias != "qk"  # the configuration refuses it
            given = (_router(c, d_model, init, n_steps), _gate(c), d_model, c.n_heads, c.head_width(d_model))
            experts = ExpertAttention(*given, bias=c.bias, sum_bias=c.sum_bias, **_of_attention(c, eps))
            init_expert_attention(experts, init, c.expert_init, n_steps)
            return experts
        case HeadExpertAttentionConfig() as c:
            of_outputs, of_values = (
                _router_of(c, d_model, heads * c.n_experts, init, n_steps) for heads in (c.n_heads, c.n_key_heads)
            )
            sizes = (d_model, c.n_heads, c.head_width(d_model))
            head_experts = HeadExpertAttention(of_outputs, of_values, _gate(c), *sizes, **_of_attention(c, eps))
            init_head_experts(head_experts, init, c.expert_init, n_steps)
            return head_experts
        case AttentionConfig() as c:
            sizes = (d_model, c.n_heads, c.head_width(d_model))
            attention = Attention(*sizes, bias=c.bias, output_gate=c.output_gate, **_of_attention(c, eps))
            init_attention(attention, init, n_steps)
            return attention
        case DenseFeedForwardConfig() as c:
            ffn = FeedForward(d_model, c.d_ff, c.activation, bias=c.bias, dropout=c.dropout)
            init_feed_forward(ffn, init, n_steps)
            return ffn
        case SeparableConvConfig() as c:
            conv = SeparableConv(d_model, c.d_ff, c.kernel_in, c.kernel_out, bias=c.bias, dropout=c.dropout)
            init_separable_conv(conv, init, n_steps)
            return conv
        case ExpertFeedForwardConfig() as c:
            router = _router(c, d_model, init, n_steps)  # before the experts: a seed's weights stay what they were
            return ExpertFeedForward(router, _gate(c), _maps(c, d_model, init, n_steps), sum_bias=c.sum_bias)
        case SparseLayerConfig() as c:
            layers = [_maps(c, d_model, init, n_steps) for _ in range(c.n_layers)]
            for maps in layers:
                zero_second_maps(maps)
            return SparseLayer(_router(c, d_model, init, n_steps), _gate(c), layers, d_model, eps)
    raise TypeError(f"no sub-layer is known for {type(settings).__name__}")


def _of_attention(c: AttentionConfig, eps: float) -> dict[str, Any]:
    """Return what attention has with experts or without."""
    norm: QkNorm | None = None
    if c.qk_norm != "none":
        norm = QkNorm(c.qk_norm_eps or eps, c.qk_norm == "rms", c.qk_norm_at == "after")
    return {"dropout": c.dropout, "n_kv_heads": c.n_kv_heads, "scale": c.scale, "qk_norm": norm}


def _maps(c: ExpertFeedForwardConfig | SparseLayerConfig, d_model: int, init: Init, n_steps: int) -> ExpertMaps:
    maps = ExpertMaps(c.n_experts, d_model, c.d_ff, c.activation, bias=c.bias, dropout=c.dropout)
    init_expert_maps(maps, init, c.expert_init, n_steps)
    return maps


def _gate(c: RoutedConfig) -> Gate:
    return Gate(
        c.gate.kind,
        c.top_k,
        c.n_experts,
        is_renormalised=c.has_router and c.is_renormalised,
        n_sampled=c.gate.n_sampled,
    )


def _router(c: RoutedConfig, d_model: int, init: Init, n_steps: int) -> Router | None:
    """Return the router, None where there is nothing to choose."""
    return _router_of(c, d_model, c.n_experts, init, n_steps) if c.has_router else None


def _router_of(c: RoutedConfig, d_model: int, n_experts: int, init: Init, n_steps: int) -> Router:
    """Return a router of so many experts."""
    router: Router
    match c.router:
        case HypersphereRouterConfig() as r:
            router = HypersphereRouter(
                d_model,
                n_experts,
                c.router_width,
                temperature=c.temperature,
                floor=r.floor,
                norm=r.expert_norm,
                has_projection=r.project,
                is_normalised=r.normalise,
                learns_temperature=r.learn_temperature,
            )
        case MlpRouterConfig() as r:
            router = MlpRouter(d_model, n_experts, r.dropout)
        case _:
            router = LinearRouter(d_model, n_experts)
    init_router(router, init, n_steps)
    return router


def build_norm_of(config: NormalisationConfig, width: int) -> nn.Module:
    """Return a norm of states that are so wide."""
    c = config
    return build_norm(c.kind, width, c.eps, weight=c.weight, bias=c.bias, unit_offset=c.unit_offset)


def build_signal(
    config: SignalConfig, stack: str, banks: Banks, d_model: int, embedding_width: int, init: Init
) -> PositionSignal:
    """Return what a stack adds to its embeddings for positions, and to its states for positions and rounds.

    A table of learned positions is put into its bank.
    """
    match config:
        case SinusoidalConfig() as c:
            return Sinusoidal(embedding_width, c.random_offset, in_halves=c.layout == "halves")
        case CoordinatesConfig() as c:
            return Coordinates(d_model, c.random_offset)
        case LearnedConfig() as c:
            table = nn.Embedding(c.n_rows, embedding_width)
            init_embedding(table.weight, init)
            banks.positions[stack] = table
            return Learned(banks.positions, c.offset, stack)
    return PositionSignal()


def build_map(n_in: int, n_out: int, *, bias: bool, init: Init) -> Linear:
    """Return a map that belongs to no sub-layer."""
    linear = Linear(n_in, n_out, bias=bias)
    init_projection(linear, init)
    return linear


def build_relation(stack: StackConfig, use: Use, d_model: int) -> RelativePositions:
    """Return the relative positions of a use: a table, or rules without parameters."""
    relative = stack.relative_of(use)
    relation = _relation(relative, stack.self_attention.n_heads, stack.self_attention.head_width(d_model))
    relation.reach = relative.reach
    return relation


def _relation(relative: WindowConfig | OneRelativeConfig, heads: int, width: int) -> RelativePositions:
    match relative:
        case WindowConfig():
            return RelativeWindow(heads, width, relative.window)
        case BucketsConfig():
            return Buckets(heads, relative.n_buckets, relative.max_distance)
        case AlibiConfig():
            return Alibi(heads)
        case RotaryConfig():
            return Rotary(
                width,
                relative.base,
                n_turned=relative.n_turned(width),
                is_interleaved=relative.layout == "interleaved",
                scaling=_scaling(relative.scaling),
            )
    return RelativePositions()


def _scaling(c: ScalingConfig) -> LinearScaling | Llama3Scaling | None:
    match c:
        case LinearScalingConfig():
            return LinearScaling(c.factor)
        case Llama3ScalingConfig():
            return Llama3Scaling(c.factor, c.low, c.high, c.original_length)
    return None


def build_injection(settings: SegmentConfig, d_model: int, init: Init) -> Injection:
    """Return how what entered a segment enters its rounds, where it does."""
    if settings.states:
        return BesideInjection()
    match settings.inject:
        case LinearInjectionConfig() as c:
            linear = LinearInjection(d_model)
            init_linear_injection(linear, init, c.init)
            return linear
        case DecayInjectionConfig():
            return DecayInjection(d_model)
    return Injection()


def build_start(settings: SegmentConfig, d_model: int) -> nn.Module:
    """Return what the first round of a segment starts from, where that is not what enters it."""
    if settings.states:
        return SeveralStates(_build_state(one.state, d_model) for one in settings.states)
    return _build_state(settings.state, d_model)


def _build_state(config: StateConfig, d_model: int) -> nn.Module:
    match config:
        case InputStateConfig():
            return InputState()
        case LearnedStateConfig() as c:
            return LearnedState(d_model, c.std)
        case NoiseStateConfig() as c:
            return NoiseState(d_model, c.std, c.seed)
    return ZeroState()


def build_token_values(stack: StackConfig, n_rows: int, d_model: int, init: Init) -> TokenValues:
    """Return a table of what so many tokens add to the values of a stack's self-attention."""
    attention, config = stack.self_attention, stack.value_embeddings
    assert config is not None  # the plan names a table
    values = TokenValues(n_rows, attention.n_key_heads, attention.head_width(d_model), config.gate_width)
    init_embedding(values.table_VJ, init)
    return values


def build_deltas(
    module: Attention | FeedForward | ExpertAttention | ExpertFeedForward, kind: Kind, rank: int, init: Init
) -> Deltas:
    """Return what a round adds to the maps of a parameter set: in cross-attention none of those of the memory."""
    blocks = module.blocks
    if kind == "cross_attention":
        read = {name: one.heights[: len(one.heights) - one.n_keys] for name, one in blocks.items()}
        blocks = {name: Blocks(blocks[name].reads, heights) for name, heights in read.items() if heights}
    deltas = Deltas(blocks, rank)
    init_deltas(deltas, init)
    return deltas


def build_modulation(config: ModulationConfig, d_model: int, init: Init) -> nn.Module:
    """Return what gives gate and scale of a use."""
    if isinstance(config, ByTimeModulationConfig):
        by_time = TimeModulation(d_model)
        init_time(by_time, init)
        return by_time
    return Modulation(d_model)


def build_time(d_model: int, init: Init) -> RoundTime:
    """Return what modulations by time are made of."""
    time = RoundTime(d_model)
    init_time(time, init)
    return time


def build_halting(config: HaltingConfig, d_model: int, n_rounds: int) -> tuple[nn.Module | None, HaltingRule]:
    """Return the gate, where there is one, and the rule of a stack whose plan has so many rounds."""
    match config:
        case StickBreakingConfig() as c:
            stick = StickBreakingUnit(d_model, dropout=c.dropout, initial_bias=c.initial_bias)
            return stick, StickBreaking(stick, c.threshold, detaches_weight=c.detach_router_weight)
        case ActConfig() as c:
            unit = ActUnit(d_model, c.initial_bias)
            rule = Act(
                unit,
                1.0 - c.epsilon,
                mix=c.mix,
                freezes=c.freeze_halted_state,
                forces_remainder=c.force_remainder_at_max,
                is_global=c.scope == "global",
            )
            return unit, rule
        case ExitConfig() as c:
            gate = ActUnit(d_model, c.initial_bias)
            return gate, Exit("gate", c.threshold, unit=gate, freezes=c.freeze_halted_state)
        case SelectConfig() as c:
            routers = Routers(d_model, c.n_routers(n_rounds))
            select = Select(
                routers,
                c.threshold,
                capacities=c.capacities,
                gate=c.gate,
                mix=c.mix,
                scale=c.scale,
                freezes=c.among == "chosen",
                z=c.z,
            )
            return routers, select
        case TokenChoiceConfig() as c:
            routers = Routers(d_model, c.n_routers(n_rounds))
            return routers, TokenChoice(routers, scale=c.scale, z=c.z)
        case ByLengthConfig() as c:
            return None, ByLength(c.per_token, c.extra)
    return None, NoHalting()
