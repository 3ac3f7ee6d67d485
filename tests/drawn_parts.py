"""Hypothesis strategies of a model's parts: loops, positions, norms, sub-layers and how they are spread over steps.

`architectures.py` puts them together; everything is tiny.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, get_args

from hypothesis import strategies as st

from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    SparseLayerConfig,
)
from ostinato.config.loops import (
    INPUT,
    AddInjectionConfig,
    ByRoundModulationConfig,
    ByTimeModulationConfig,
    DecayInjectionConfig,
    InjectionConfig,
    InputStateConfig,
    LearnedStateConfig,
    LinearInjectionConfig,
    LoopStateConfig,
    ModulationConfig,
    NoInjectionConfig,
    NoiseStateConfig,
    NoModulationConfig,
    SegmentConfig,
    StateConfig,
    ZeroStateConfig,
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
    RelativeConfig,
    RotaryConfig,
    SignalConfig,
    SinusoidalConfig,
    WindowConfig,
)
from ostinato.config.stack import NormConfig
from ostinato.config.sub_layers import (
    Activation,
    AttentionConfig,
    DenseFeedForwardConfig,
    SeparableConvConfig,
    SubLayerConfig,
)
from ostinato.plan import SCHEMES

ACTIVATIONS = get_args(Activation)


@st.composite
def outputs(draw: st.DrawFn, *, is_mapped: bool = False) -> OutputConfig:
    """Draw how states become logits; `is_mapped`: with a transform."""
    transform = None
    if is_mapped or draw(st.integers(0, 3)) == 0:
        norm = draw(st.one_of(st.none(), norms()))
        activation = draw(st.sampled_from(["none", "relu", "relu2", "gelu", "gelu_tanh", "silu"]))
        transform = TransformConfig(
            activation=activation,
            bias=draw(st.booleans()),
            norm=None if norm is None else NormalisationConfig.model_validate(norm.shape()),
        )
    return OutputConfig(
        transform=transform,
        scale=draw(st.sampled_from([False, False, True, 0.5])),
        bias=draw(st.booleans()),
        soft_cap=draw(st.sampled_from([None, None, 2.0])),
    )


FEED_FORWARDS: dict[str, Callable[..., SubLayerConfig]] = {
    "dense": DenseFeedForwardConfig,
    "separable_conv": SeparableConvConfig,
    "experts": ExpertFeedForwardConfig,
}
ATTENTIONS: dict[str, Callable[..., SubLayerConfig]] = {
    "dense": AttentionConfig,
    "experts": ExpertAttentionConfig,
    "head_experts": HeadExpertAttentionConfig,
}
BUCKETS = BucketsConfig(n_buckets=6, max_distance=5)
_LLAMA3 = Llama3ScalingConfig(factor=4.0, original_length=16)
_REACHES = st.sampled_from([None, None, None, 1, 2])
QK_NORMS, LAYOUTS = ("none", "rms", "rms_plain"), ("half", "interleaved")
RELATIVES = ("none", "window", "buckets", "rotary", "alibi", "by_step")


@st.composite
def segments_of(draw: st.DrawFn, before: int, looped: int, after: int) -> list[SegmentConfig]:
    """Draw a prelude and a coda of so many steps, and a core that is repeated."""
    ends = st.fixed_dictionaries({"end_map": st.booleans(), "end_norm": st.sampled_from(["none", "own", "final"])})
    inject, state = draw(st.sampled_from(INJECTIONS)), draw(st.sampled_from(STATES))
    core: dict[str, Any] = {"n_steps": looped, "repeats": draw(st.integers(1, 3))}
    core |= {"keys": draw(st.sampled_from(["own", "own", "first", "all"]))}
    if draw(st.integers(0, 2)):
        core |= {"state": InputStateConfig() if inject.kind == "none" else state, "round_norm": draw(st.booleans())}
        core |= {"norms": draw(st.sampled_from(NORMS)), "vectors": draw(st.booleans())}
        core |= {"delta_rank": draw(st.sampled_from([0, 1, 2])), "modulation": draw(st.sampled_from(MODULATIONS))}
        core |= {"inject": inject}
    else:
        states = draw(loop_states())
        core |= {"n_steps": sum(one.n_steps for one in states), "states": states}
    once = [SegmentConfig(**draw(ends)) for _ in range(before + after)]
    return [*once[:before], SegmentConfig(**core, **draw(ends)), *once[before:]]


def with_fixed(segments: list[SegmentConfig]) -> list[SegmentConfig]:
    """Repeat half of the preludes and codas a fixed number of times, with all that rounds have.

    It follows from the segments: a draw would turn every model after it into another one.
    """
    choose, found = random.Random(repr(segments)), list[SegmentConfig]()
    for segment in segments:
        own: dict[str, Any] = {}
        if segment.repeats is None and choose.randrange(2):
            inject = choose.choice(INJECTIONS)
            own = {"repeats": choose.randint(1, 3), "fixed": True, "inject": inject}
            own["state"] = InputStateConfig() if inject.kind == "none" else choose.choice(STATES)
            own |= {"keys": choose.choice(["own", "first", "all"]), "round_norm": choose.choice([True, False])}
            own |= {"norms": choose.choice(NORMS), "vectors": choose.choice([True, False])}
            own |= {"delta_rank": choose.randrange(3), "modulation": choose.choice(MODULATIONS)}
        found.append(segment.model_copy(update=own))
    return found


@st.composite
def loop_states(draw: st.DrawFn) -> list[LoopStateConfig]:
    """Draw two or three states of a loop, of which one reads what entered it."""
    names = ["low", "high", "other"][: draw(st.integers(2, 3))]
    drawn = []
    for name in names:
        others = [*(other for other in names if other != name), INPUT]
        adds = draw(st.lists(st.sampled_from(others), min_size=1, unique=True))
        sizes = {"n_steps": draw(st.integers(1, 2)), "repeats": draw(st.integers(1, 2))}
        # The last one starts from the input, so that something reads it.
        start = InputStateConfig() if name == names[-1] else draw(st.sampled_from(STATES))
        drawn.append(LoopStateConfig(name=name, state=start, adds=adds, norm=draw(st.booleans()), **sizes))
    return drawn


INJECTIONS: list[InjectionConfig] = [
    NoInjectionConfig(),
    AddInjectionConfig(),
    LinearInjectionConfig(),
    DecayInjectionConfig(),
]
NORMS = ("shared", "by_round")
MODULATIONS: list[ModulationConfig] = [NoModulationConfig(), ByRoundModulationConfig(), ByTimeModulationConfig()]
STATES: list[StateConfig] = [InputStateConfig(), ZeroStateConfig(), LearnedStateConfig(), NoiseStateConfig(std=0.3)]


def signals() -> st.SearchStrategy[SignalConfig]:
    sines: list[SignalConfig] = [SinusoidalConfig(), SinusoidalConfig(layout="halves")]
    learned: list[SignalConfig] = [LearnedConfig(max_length=64), LearnedConfig(max_length=64, offset=2)]
    kinds = [[NoSignalConfig()], sines, [CoordinatesConfig()], learned]
    return st.sampled_from(kinds).flatmap(st.sampled_from)


@st.composite
def norms(draw: st.DrawFn) -> NormConfig:
    """Draw a norm; its placement is drawn elsewhere."""
    kind, eps = draw(st.sampled_from(["layer", "rms"])), draw(st.sampled_from([1e-5, 1e-3]))
    few: dict[str, list[dict[str, bool]]] = {"layer": [{"bias": False}], "rms": [{"unit_offset": True}]}
    settings = draw(st.sampled_from([{}, {}, {"weight": False}, *few[kind]]))
    return NormConfig(kind=kind, eps=eps, **settings)


@st.composite
def attentions(
    draw: st.DrawFn,
    d_model: int,
    relative: RelativeConfig,
    *,
    has_experts: bool = True,
    has_head_experts: bool = True,
) -> dict[str, Any]:
    settings = relative.settings if isinstance(relative, ByStepConfig) else [relative]
    fractions = [one.fraction for one in settings if isinstance(one, RotaryConfig)]
    is_rotary, is_partly_rotary = bool(fractions), any(fraction < 1 for fraction in fractions)
    heads = draw(st.integers(1, 4))
    widths = [4] if is_partly_rotary else [2, 4] if is_rotary else [1, 2, 3, 4]
    default = d_model // heads
    default_fits = d_model % heads == 0 and not (is_rotary and default % (4 if is_partly_rotary else 2))
    d_head = draw(st.sampled_from([None, *widths] if default_fits else widths))
    own = {"n_heads": heads, "d_head": d_head, "bias": draw(st.booleans())}
    routed = ["experts", *(["head_experts"] if has_head_experts else [])] if has_experts else []
    kind = draw(st.sampled_from(["dense", *routed]))
    if not draw(st.integers(0, 2)):
        own |= draw(_options_of_attention(heads, is_rotary, kind))
    if kind == "dense":
        return own | {"kind": "dense"}
    if kind == "head_experts":
        return own | {"kind": kind, "bias": False} | draw(experts(least=2))
    return own | {"kind": "experts", "sum_bias": not draw(st.integers(0, 3))} | draw(experts())


@st.composite
def _options_of_attention(draw: st.DrawFn, heads: int, is_rotary: bool, kind: str) -> dict[str, Any]:
    own: dict[str, Any] = {"n_kv_heads": draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))}
    own |= {"scale": draw(st.sampled_from([None, 1.0])), "qk_norm": draw(st.sampled_from(QK_NORMS))}
    if own["qk_norm"] != "none" and is_rotary:
        own["qk_norm_at"] = draw(st.sampled_from(["before", "after"]))
    own["bias"] = draw(st.sampled_from([True, False, "qkv", "qk"] if kind == "dense" else [True, False, "qkv"]))
    return own | ({"output_gate": draw(st.booleans())} if kind == "dense" else {})


@st.composite
def feed_forwards(draw: st.DrawFn, *, has_experts: bool = True) -> dict[str, Any]:
    own: dict[str, Any] = {"d_ff": draw(st.integers(1, 9)), "bias": draw(st.booleans())}
    kind = draw(st.sampled_from(["dense", "separable_conv", *(["experts"] if has_experts else [])]))
    if kind == "separable_conv":
        kernels = {"kernel_in": draw(st.integers(1, 5)), "kernel_out": draw(st.integers(1, 5))}
        return own | {"kind": kind} | kernels
    own |= {"kind": kind, "activation": draw(st.sampled_from(ACTIVATIONS))}
    return own if kind == "dense" else own | {"sum_bias": not draw(st.integers(0, 3))} | draw(experts())


@st.composite
def experts(draw: st.DrawFn, *, least: int = 1) -> dict[str, Any]:
    """Draw how many experts there are, how many a token gets, and who decides.

    No ties are drawn: a routing width of 1 would make all cosines 1 or -1 (the configuration refuses it), and float64
    scores of random weights are as good as never within rounding of each other.
    """
    n_experts = draw(st.integers(least, 4))
    k = draw(st.integers(1, n_experts))
    kinds = ["softmax", "sigmoid"] if k == 1 < n_experts else ["softmax", "topk_softmax", "sigmoid"]
    gate: dict[str, Any] = {"kind": draw(st.sampled_from(kinds)), "n_sampled": draw(st.sampled_from([0, 0, 1]))}
    if gate["kind"] == "softmax":
        gate["renormalise"] = draw(st.sampled_from([None, False] if k == 1 < n_experts else [None, False, True]))
    router: dict[str, Any] = {"kind": draw(st.sampled_from(["linear", "mlp", "hypersphere"]))}
    if router["kind"] == "hypersphere":
        router |= {"d_router": draw(st.integers(2, 4)), "temperature": draw(st.sampled_from([None, 0.5]))}
        router |= {switch: draw(st.booleans()) for switch in SWITCHES}
    init = draw(st.sampled_from(["model", "fan_in"]))
    return {"n_experts": n_experts, "top_k": k, "gate": gate, "router": router, "expert_init": init}


SWITCHES = ("project", "normalise", "learn_temperature")


@st.composite
def sparse_layers(draw: st.DrawFn, n_steps: int) -> SparseLayerConfig | None:
    if draw(st.integers(0, 3)):
        return None
    own: dict[str, Any] = {"after": draw(st.integers(1, n_steps)), "n_layers": draw(st.integers(1, 2))}
    own |= {"d_ff": draw(st.integers(1, 9)), "bias": draw(st.booleans())}
    return SparseLayerConfig(**own, activation=draw(st.sampled_from(ACTIVATIONS)), **draw(experts()))


@st.composite
def relatives(draw: st.DrawFn, n_steps: int) -> RelativeConfig:
    kind = draw(st.sampled_from(RELATIVES))
    if kind == "by_step":
        settings = draw(st.lists(_one_relative(), min_size=1, max_size=min(2, n_steps)))
        return ByStepConfig(settings=settings, pattern=draw(st.permutations(range(len(settings)))))
    if kind == "window":
        return WindowConfig(window=draw(st.integers(1, 3)), reach=draw(_REACHES))
    return draw(_one_relative(kind))


@st.composite
def _one_relative(draw: st.DrawFn, kind: str | None = None) -> Any:
    kind = kind or draw(st.sampled_from(["none", "buckets", "rotary", "alibi"]))
    reach = draw(_REACHES)
    if kind == "buckets":
        n_buckets = draw(st.sampled_from([4, 6, 8]))
        return BucketsConfig(n_buckets=n_buckets, max_distance=draw(st.integers(n_buckets // 2 + 1, 9)), reach=reach)
    if kind == "rotary":
        scaling = draw(st.sampled_from([NoScalingConfig(), NoScalingConfig(), LinearScalingConfig(), _LLAMA3]))
        own = {"layout": draw(st.sampled_from(LAYOUTS)), "fraction": draw(st.sampled_from([1.0, 1.0, 0.5]))}
        return RotaryConfig(base=draw(st.sampled_from([10.0, 10_000.0])), scaling=scaling, reach=reach, **own)
    return AlibiConfig(reach=reach) if kind == "alibi" else NoRelativeConfig(reach=reach)


@st.composite
def spreads(draw: st.DrawFn, n_steps: int, steps_per_round: int, fully_shared: bool) -> dict[str, Any]:
    """Draw how one kind of sub-layer is spread over the steps."""
    if fully_shared:
        one_round = [draw(st.sampled_from([0, 0, 0, None])) for _ in range(steps_per_round)]
        pattern = one_round * (n_steps // steps_per_round)
        return {"share": draw(st.sampled_from([pattern, "all"])), "share_norm": True}
    share: Any = draw(st.sampled_from([*SCHEMES, "list", "list with nulls"]))
    if share.startswith("list"):
        sets = [draw(st.sampled_from([0, 1, 2])) for _ in range(n_steps)]
        absent = draw(st.sets(st.integers(0, n_steps - 1), min_size=1)) if share == "list with nulls" else set()
        share = without_gaps([None if i in absent else s for i, s in enumerate(sets)])
    n_unique = draw(st.integers(1, n_steps)) if share in ("sequence", "cycle", "cycle_rev") else None
    return {"share": share, "n_unique": n_unique, "share_norm": draw(st.booleans())}


def without_gaps(drawn: list[int | None]) -> list[int | None]:
    """Renumber parameter sets 0, 1, 2, ... in the order of their first use."""
    numbers: dict[int, int] = {}
    return [None if s is None else numbers.setdefault(s, len(numbers)) for s in drawn]
