"""One hypothesis strategy over every model the configuration can express, and ragged batches for them.

Everything is tiny: widths under 10, at most four steps. Vocabularies are tiny too; ids 0-3 are the special symbols.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from haltings import all_halting_traits, halting_traits, haltings
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    HypersphereRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.halting import HaltingConfig, NoHaltingConfig
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
from ostinato.config.model import (
    ClassificationHeadConfig,
    EncoderConfig,
    HeadConfig,
    LanguageModelConfig,
    MaskedHeadConfig,
    ModelConfig,
    Seq2SeqConfig,
    SpanHeadConfig,
    TaggingHeadConfig,
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
from ostinato.config.stack import DecoderConfig, NormConfig, StackConfig, ValueEmbeddingsConfig
from ostinato.config.sub_layers import (
    Activation,
    AttentionConfig,
    DenseFeedForwardConfig,
    SeparableConvConfig,
    SubLayerConfig,
)
from ostinato.data.batch import Batch, Tokens
from ostinato.models import Model, build_model
from ostinato.plan import PLACES, SCHEMES, Kind, Placement

PAD, BOS, EOS = 0, 1, 2
ACTIVATIONS = get_args(Activation)


def draws(n: int, *, always_all: bool = False) -> settings:
    """Return the settings of a property that is checked on `n` draws, the same ones in every run.

    `make test` looks at half as many, `make test-all`, which sets OSTINATO_ALL_DRAWS, at all of them.

    Args:
        always_all: `make test` looks at all of them, too: the property counts what they have covered.
    """
    n = n if always_all or os.environ.get("OSTINATO_ALL_DRAWS") else -(-n // 2)
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]
    return settings(max_examples=n, deadline=None, derandomize=True, database=None, suppress_health_check=slow)


@dataclass(frozen=True)
class Sentence:
    """One example without padding; the target begins with BOS. Language models have no source.

    A pair as one sequence is a target whose first `n_prefix` tokens are the source, EOS included.
    """

    source: list[int] | None
    target: list[int]
    n_prefix: int | None = None

    def with_target(self, target: list[int]) -> Sentence:
        """Return the sentence with another target, of which the prefix is still a part."""
        return Sentence(self.source, target, self.n_prefix)


# --- architectures ---------------------------------------------------------------------------------------------------


@st.composite
def any_architecture(
    draw: st.DrawFn,
    *,
    kind: str | None = None,
    fully_shared: bool = False,
    halting: st.SearchStrategy[HaltingConfig] | None = None,
    placements: Sequence[Placement] = tuple(PLACES),
    has_values: bool = True,
) -> Any:
    """Draw a small model, its vocabulary sizes set and its dropout zero.

    Args:
        kind: "seq2seq", "language_model" or "encoder"; None draws one of the first two, which generate.
        fully_shared: every round runs the same parameter sets, so that `n_steps` may be given at call time.
        halting: rules of the stacks; None: any. placements: of norms. has_values: tokens may add to values.
    """
    kind = kind or draw(st.sampled_from(["seq2seq", "language_model"]))
    d_model = draw(st.sampled_from([4, 6, 8]))
    common: dict[str, Any] = {
        "d_model": d_model,
        "dropout": 0.0,
        "init": draw(st.sampled_from(["xavier", "normal", "unit_scaling", "torch", "depth_scaled"])),
        "embedding_scale": draw(st.sampled_from([True, False, 3.0])),
        "d_embedding": draw(st.sampled_from([None, None, 4, 6])),
    }
    if common["d_embedding"] is not None:
        common["embedding_bias"] = draw(st.booleans())
    if kind != "encoder":
        common["output"] = draw(outputs(is_mapped=common["d_embedding"] is not None))
    stack = _Stacks(draw, d_model, fully_shared, halting, placements, has_values)
    if kind == "language_model":
        tie = draw(st.sampled_from(["none", "output"]))
        mask = draw(st.sampled_from(["causal", "prefix"]))
        rows = draw(st.integers(5, 9))
        decoder = stack.draw("decoder")
        return LanguageModelConfig(mask=mask, vocab_size=rows, tie_embeddings=tie, decoder=decoder, **common)
    if kind == "encoder":
        return _encoder(draw, stack.draw("encoder"), common)
    encoder, decoder = stack.pair()
    tie = draw(st.sampled_from(["none", "output", "input", "all"]))
    target = draw(st.integers(5, 9))
    source = target if tie in ("input", "all") else draw(st.integers(5, 9))
    return Seq2SeqConfig(
        source_vocab_size=source,
        target_vocab_size=target,
        tie_embeddings=tie,
        encoder=encoder,
        decoder=decoder,
        **common,
    )


@st.composite
def outputs(draw: st.DrawFn, *, is_mapped: bool = False) -> OutputConfig:
    """Draw how states become logits; `is_mapped`: with a transform."""
    transform = None
    if is_mapped or draw(st.integers(0, 3)) == 0:
        norm = draw(st.one_of(st.none(), _norms()))
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


HEADS: list[HeadConfig] = [
    MaskedHeadConfig(),
    ClassificationHeadConfig(pooling="first"),
    ClassificationHeadConfig(pooling="mean"),
    TaggingHeadConfig(),
    SpanHeadConfig(),
]


def _encoder(draw: st.DrawFn, stack: StackConfig, common: dict[str, Any]) -> EncoderConfig:
    head = draw(st.sampled_from(HEADS))
    if head.kind == "masked":
        common["output"] = draw(outputs(is_mapped=common["d_embedding"] is not None))
    return EncoderConfig(
        n_token_types=draw(st.sampled_from([0, 0, 2])),
        vocab_size=draw(st.integers(5, 9)),
        n_labels=draw(st.integers(2, 5)) if head.kind in ("classification", "tagging") else None,
        tie_embeddings=draw(st.sampled_from(["none", "output"])) if head.kind == "masked" else "output",
        encoder=stack,
        head=head,
        **common,
    )


class _Stacks:
    """Draws the stacks of one model: the second may use the banks of the first."""

    def __init__(
        self,
        draw: st.DrawFn,
        d_model: int,
        fully_shared: bool,
        halting: st.SearchStrategy[HaltingConfig] | None,
        placements: Sequence[Placement],
        has_values: bool,
    ) -> None:
        self._draw, self._d_model, self._fully_shared, self._halting = draw, d_model, fully_shared, halting
        self._placements, self._has_values = placements, has_values

    def draw(self, name: str, shared: dict[str, Any] | None = None) -> Any:
        """Draw the stack called `name`; `shared` holds the settings it must take over with another stack's banks."""
        draw, shared = self._draw, shared or {}
        n_rounds, steps_per_round = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        n_steps, segments = n_rounds * steps_per_round, list[SegmentConfig]()
        if not draw(st.integers(0, 3)):
            before, looped, after = draw(st.integers(0, 1)), draw(st.integers(1, 2)), draw(st.integers(0, 1))
            segments = draw(_segments(before, looped, after))
            n_steps, steps_per_round = sum(segment.n_steps for segment in segments), 1
        # Rounds that run the same sets have the same positions at each of their steps.
        most = steps_per_round if self._fully_shared and not segments else n_steps
        relative: RelativeConfig = shared.get("relative") or draw(_relatives(most))
        if isinstance(relative, ByStepConfig) and len(relative.pattern) > most:  # of another stack
            relative = relative.settings[relative.pattern[0]]
        norm: NormConfig = shared.get("norm") or draw(_norms())
        norm = norm.model_copy(update=self._where_norms_are())
        if norm.has_final and not norm.weight:
            norm = norm.model_copy(update={"final_weight": self._draw(st.booleans())})
        if not norm.has_final:
            segments = [s.model_copy(update={"end_norm": "own"}) if s.end_norm == "final" else s for s in segments]
        ffn = self._sub("ffn", n_steps, steps_per_round, shared, relative)
        n_rounds = next((s.repeats for s in segments if s.repeats), n_steps // steps_per_round)
        can_select = not isinstance(ffn, SeparableConvConfig)
        rules = haltings(is_causal=name != "encoder", n_rounds=n_rounds, can_select=can_select)
        signal = draw(_signals())
        halting = draw(rules if self._halting is None else self._halting)
        if any(segment.states for segment in segments):
            halting = halting if halting.kind == "length" else NoHaltingConfig()
            signal = NoSignalConfig() if signal.kind == "coordinates" else signal
        if halting.kind == "length":
            by_time = {"modulation": NoModulationConfig()}
            segments = [one.model_copy(update=by_time) if one.modulation.kind == "by_time" else one for one in segments]
        settings: dict[str, Any] = {
            "n_steps": n_steps,
            "steps_per_round": steps_per_round,
            "segments": segments,
            "norm": norm,
            "positions": signal,
            "relative": relative,
            "self_attention": self._sub("self_attention", n_steps, steps_per_round, shared, relative),
            "ffn": ffn,
            "sparse_layer": None if self._fully_shared else draw(_sparse_layers(n_steps)),
            "halting": halting,
        }
        if settings["sparse_layer"] or all(
            settings[kind].kind != "dense" or settings[kind].share == "none" for kind in ("self_attention", "ffn")
        ):
            segments = [one.model_copy(update={"delta_rank": 0}) for one in segments]
        if norm.placement == "scores":
            nothing = {"delta_rank": 0, "modulation": NoModulationConfig()}
            segments = [one.model_copy(update=nothing) for one in segments]
        settings["segments"] = segments
        settings |= _more_of_attention(settings, self._fully_shared, self._has_values)
        if name == "decoder_of_pair":
            cross = self._sub("cross_attention", n_steps, steps_per_round, {}, relative)
            return DecoderConfig(cross_attention=cross, **settings)
        return StackConfig(**settings)

    def _where_norms_are(self) -> dict[str, Any]:
        draw = self._draw
        placement, final = draw(st.sampled_from(self._placements)), draw(st.sampled_from([None, None, True, False]))
        first = (
            self._fully_shared
            or placement not in ("pre", "peri", "sandwich")
            or draw(st.sampled_from([True, True, False]))
        )
        return {"placement": placement, "embedding": draw(st.booleans()), "final": final, "first": first}

    def pair(self) -> tuple[StackConfig, DecoderConfig]:
        """Draw an encoder and a decoder that may serve themselves from the same banks."""
        draw = self._draw
        encoder: StackConfig = self.draw("encoder")
        shared: dict[str, Any] = {}
        kinds: list[Kind] = ["self_attention", "ffn"]
        for kind in kinds:
            if draw(st.integers(0, 2)) == 0:
                bank = draw(st.sampled_from(["encoder", "both"]))
                sub = getattr(encoder, kind).model_copy(update={"bank": bank})
                encoder = encoder.model_copy(update={kind: sub})
                shared |= {kind: sub.model_dump(exclude={"share", "n_unique", "share_norm"}), "norm": encoder.norm}
                if kind == "self_attention" and (encoder.relative.kind == "window" or encoder.is_rotary):
                    shared["relative"] = encoder.relative
        if "self_attention" in shared and not encoder.is_rotary:
            # An odd head width does not fit rotary positions, and a window's table belongs to the weights.
            shared.setdefault("relative", draw(st.sampled_from([NoRelativeConfig(), _BUCKETS])))
        return encoder, self.draw("decoder_of_pair", shared)

    def _sub(
        self, kind: Kind, n_steps: int, steps_per_round: int, shared: dict[str, Any], relative: RelativeConfig
    ) -> SubLayerConfig:
        draw = self._draw
        spread = draw(_spreads(n_steps, steps_per_round, self._fully_shared))
        if kind in shared:
            own = shared[kind]
        elif kind == "ffn":
            own = draw(_feed_forwards())
        else:
            is_self = kind == "self_attention"
            given = self._d_model, relative if is_self else NoRelativeConfig()
            own = draw(_attentions(*given, has_head_experts=is_self))
        return (_FEED_FORWARDS if kind == "ffn" else _ATTENTIONS)[own["kind"]](**spread, **own)


_FEED_FORWARDS: dict[str, Callable[..., SubLayerConfig]] = {
    "dense": DenseFeedForwardConfig,
    "separable_conv": SeparableConvConfig,
    "experts": ExpertFeedForwardConfig,
}
_ATTENTIONS: dict[str, Callable[..., SubLayerConfig]] = {
    "dense": AttentionConfig,
    "experts": ExpertAttentionConfig,
    "head_experts": HeadExpertAttentionConfig,
}
_BUCKETS = BucketsConfig(n_buckets=6, max_distance=5)
_LLAMA3 = Llama3ScalingConfig(factor=4.0, original_length=16)
_REACHES = st.sampled_from([None, None, None, 1, 2])
QK_NORMS, LAYOUTS = ("none", "rms", "rms_plain"), ("half", "interleaved")
RELATIVES = ("none", "window", "buckets", "rotary", "alibi", "by_step")


@st.composite
def _segments(draw: st.DrawFn, before: int, looped: int, after: int) -> list[SegmentConfig]:
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
        states = draw(_states())
        core |= {"n_steps": sum(one.n_steps for one in states), "states": states}
    once = [SegmentConfig(**draw(ends)) for _ in range(before + after)]
    return [*once[:before], SegmentConfig(**core, **draw(ends)), *once[before:]]


@st.composite
def _states(draw: st.DrawFn) -> list[LoopStateConfig]:
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


def _signals() -> st.SearchStrategy[SignalConfig]:
    sines: list[SignalConfig] = [SinusoidalConfig(), SinusoidalConfig(layout="halves")]
    learned: list[SignalConfig] = [LearnedConfig(max_length=64), LearnedConfig(max_length=64, offset=2)]
    kinds = [[NoSignalConfig()], sines, [CoordinatesConfig()], learned]
    return st.sampled_from(kinds).flatmap(st.sampled_from)


@st.composite
def _norms(draw: st.DrawFn) -> NormConfig:
    """Draw a norm; its placement is drawn elsewhere."""
    kind, eps = draw(st.sampled_from(["layer", "rms"])), draw(st.sampled_from([1e-5, 1e-3]))
    few: dict[str, list[dict[str, bool]]] = {"layer": [{"bias": False}], "rms": [{"unit_offset": True}]}
    settings = draw(st.sampled_from([{}, {}, {"weight": False}, *few[kind]]))
    return NormConfig(kind=kind, eps=eps, **settings)


@st.composite
def _attentions(
    draw: st.DrawFn, d_model: int, relative: RelativeConfig, *, has_head_experts: bool = True
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
    kind = draw(st.sampled_from(["dense", "experts", *(["head_experts"] if has_head_experts else [])]))
    if not draw(st.integers(0, 2)):
        own |= draw(_options_of_attention(heads, is_rotary, kind))
    if kind == "dense":
        return own | {"kind": "dense"}
    if kind == "head_experts":
        return own | {"kind": kind, "bias": False} | draw(_experts(least=2))
    return own | {"kind": "experts", "sum_bias": not draw(st.integers(0, 3))} | draw(_experts())


@st.composite
def _options_of_attention(draw: st.DrawFn, heads: int, is_rotary: bool, kind: str) -> dict[str, Any]:
    own: dict[str, Any] = {"n_kv_heads": draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0]))}
    own |= {"scale": draw(st.sampled_from([None, 1.0])), "qk_norm": draw(st.sampled_from(QK_NORMS))}
    if own["qk_norm"] != "none" and is_rotary:
        own["qk_norm_at"] = draw(st.sampled_from(["before", "after"]))
    own["bias"] = draw(st.sampled_from([True, False, "qkv", "qk"] if kind == "dense" else [True, False, "qkv"]))
    return own | ({"output_gate": draw(st.booleans())} if kind == "dense" else {})


@st.composite
def _feed_forwards(draw: st.DrawFn) -> dict[str, Any]:
    own: dict[str, Any] = {"d_ff": draw(st.integers(1, 9)), "bias": draw(st.booleans())}
    kind = draw(st.sampled_from(["dense", "separable_conv", "experts"]))
    if kind == "separable_conv":
        kernels = {"kernel_in": draw(st.integers(1, 5)), "kernel_out": draw(st.integers(1, 5))}
        return own | {"kind": kind} | kernels
    own |= {"kind": kind, "activation": draw(st.sampled_from(ACTIVATIONS))}
    return own if kind == "dense" else own | {"sum_bias": not draw(st.integers(0, 3))} | draw(_experts())


@st.composite
def _experts(draw: st.DrawFn, *, least: int = 1) -> dict[str, Any]:
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
        router |= {switch: draw(st.booleans()) for switch in _SWITCHES}
    init = draw(st.sampled_from(["model", "fan_in"]))
    return {"n_experts": n_experts, "top_k": k, "gate": gate, "router": router, "expert_init": init}


_SWITCHES = ("project", "normalise", "learn_temperature")


def _more_of_attention(settings: dict[str, Any], fully_shared: bool, has_values: bool) -> dict[str, Any]:
    """Choose tables of values for a fourth of the stacks, and an epsilon of their own for some norms of keys.

    They follow from the other settings of the stack: one more draw would turn every model after it into another one.
    """
    choose = random.Random(repr(settings))
    attention = settings["self_attention"]
    changed: dict[str, Any] = {}
    if attention.qk_norm != "none" and attention.bank is None and choose.randrange(2):
        changed["self_attention"] = attention.model_copy(update={"qk_norm_eps": 1e-2})
    of_steps = attention.sets(settings["n_steps"])
    if has_values and not choose.randrange(4) and any(one is not None for one in of_steps):
        tables = [0] if fully_shared else [None, 0, 1]
        share = [None if one is None else choose.choice(tables) for one in of_steps]
        if any(one is not None for one in share):
            gate_width = choose.randint(1, 4)
            changed["value_embeddings"] = ValueEmbeddingsConfig(share=_without_gaps(share), gate_width=gate_width)
    return changed


@st.composite
def _sparse_layers(draw: st.DrawFn, n_steps: int) -> SparseLayerConfig | None:
    if draw(st.integers(0, 3)):
        return None
    own: dict[str, Any] = {"after": draw(st.integers(1, n_steps)), "n_layers": draw(st.integers(1, 2))}
    own |= {"d_ff": draw(st.integers(1, 9)), "bias": draw(st.booleans())}
    return SparseLayerConfig(**own, activation=draw(st.sampled_from(ACTIVATIONS)), **draw(_experts()))


@st.composite
def _relatives(draw: st.DrawFn, n_steps: int) -> RelativeConfig:
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
def _spreads(draw: st.DrawFn, n_steps: int, steps_per_round: int, fully_shared: bool) -> dict[str, Any]:
    """Draw how one kind of sub-layer is spread over the steps."""
    if fully_shared:
        one_round = [draw(st.sampled_from([0, 0, 0, None])) for _ in range(steps_per_round)]
        pattern = one_round * (n_steps // steps_per_round)
        return {"share": draw(st.sampled_from([pattern, "all"])), "share_norm": True}
    share: Any = draw(st.sampled_from([*SCHEMES, "list", "list with nulls"]))
    if share.startswith("list"):
        sets = [draw(st.sampled_from([0, 1, 2])) for _ in range(n_steps)]
        absent = draw(st.sets(st.integers(0, n_steps - 1), min_size=1)) if share == "list with nulls" else set()
        share = _without_gaps([None if i in absent else s for i, s in enumerate(sets)])
    n_unique = draw(st.integers(1, n_steps)) if share in ("sequence", "cycle", "cycle_rev") else None
    return {"share": share, "n_unique": n_unique, "share_norm": draw(st.booleans())}


def _without_gaps(drawn: list[int | None]) -> list[int | None]:
    """Renumber parameter sets 0, 1, 2, ... in the order of their first use."""
    numbers: dict[int, int] = {}
    return [None if s is None else numbers.setdefault(s, len(numbers)) for s in drawn]


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
        found |= {f"norm {norm.kind} weight {norm.weight}", f"norm {norm.kind} offset {norm.unit_offset}"}
        found |= {f"norm {norm.kind} bias {norm.has_bias}"}
        if isinstance(stack.positions, SinusoidalConfig):
            found.add(f"sinusoids {stack.positions.layout}")
        found |= {f"relative {stack.relative.kind} {name}", f"steps_per_round {stack.steps_per_round}"}
        for segment in stack.segments:
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
        found |= {f"hypersphere {switch} {getattr(sub.router, switch)}" for switch in _SWITCHES}
    return found


def all_traits() -> set[str]:
    """Name every trait that `any_architecture` is to draw."""
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
        *(f"scaling {s}" for s in ("none", "linear", "llama3")),
        *(f"qk_norm {n} {at}" for n in ("rms", "rms_plain") for at in ("before", "after")),
        *(f"output_gate {kind} {g}" for kind in ("self_attention", "cross_attention") for g in (True, False)),
        *(f"keys {kind} grouped" for kind in ("self_attention", "cross_attention")),
        *(f"scale {s}" for s in (None, 1.0)),
        *(f"norm {n} {p}" for n in ("layer", "rms") for p in PLACES),
        *(f"final norm {f} {p}" for f in (True, False) for p in PLACES),
        *(f"embedding norm {s}" for s in (True, False)),
        *(f"first norm {s}" for s in (True, False)),
        *(f"final weight {s}" for s in (True, False)),
        *(f"norm {n} weight {s}" for n in ("layer", "rms") for s in (True, False)),
        *("norm rms offset True", "norm layer bias True", "norm layer bias False"),
        *(f"positions {p}" for p in ("none", "sinusoidal", "coordinates", "learned")),
        *(f"sinusoids {layout}" for layout in ("interleaved", "halves")),
        *(f"relative {r} {s}" for r in RELATIVES for s in ("encoder", "decoder")),
        *(f"steps_per_round {n}" for n in (1, 2)),
        *(f"segments {s}" for s in ("encoder", "decoder")),
        *(f"inject {i.kind}" for i in INJECTIONS),
        *(f"state {s.kind}" for s in STATES),
        *(f"{name} {s}" for name in ("round_norm", "end_map") for s in (True, False)),
        *(f"keys {k}" for k in ("own", "first", "all")),
        *(f"norms {n}" for n in NORMS),
        *(f"values {s} {of}" for s in ("encoder", "decoder") for of in ("none", "some")),
        *(f"qk_norm_eps {eps}" for eps in (None, 1e-2)),
        *(f"{name} {s}" for name in ("vectors", "delta") for s in (True, False)),
        *(f"modulation {m.kind}" for m in MODULATIONS),
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
        *(f"relative {r} of experts" for r in RELATIVES),
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
        *(f"router {r}" for r in ("linear", "mlp", "hypersphere")),
        *(f"hypersphere {switch} {on}" for switch in _SWITCHES for on in (True, False)),
    }


# --- models and batches ----------------------------------------------------------------------------------------------


def random_model(config: ModelConfig, seed: int = 0) -> Model:
    """Build a float64 model in evaluation mode whose every parameter is random: no zero table, no unit norm.

    Temperatures stay above their floor, so that gates are neither all 0 and 1 nor without a gradient. Halting units are
    far from constant, and from each other, so that tokens halt in every round. Gates made of times stay near those that
    are learned: they are made of 256 sinusoids.
    """
    torch.manual_seed(seed)
    model = build_model(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.5)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
            if name.endswith("router.tau"):
                parameter.abs_().add_(0.2)
            if ".halting." in name:
                parameter.mul_(3.0 if parameter.ndim > 1 else 5.0)
            if "banks.time." in name and parameter.ndim > 1:
                parameter.mul_(0.2)
    return model


@st.composite
def sentences(
    draw: st.DrawFn, config: Seq2SeqConfig | LanguageModelConfig, max_sentences: int = 3, max_length: int = 6
) -> list[Sentence]:
    """Draw one to `max_sentences` sentences of ragged lengths, one token among them.

    Prefix language models get pairs as one sequence; causal ones texts or such pairs.
    """
    target_rows = config.vocab_size if isinstance(config, LanguageModelConfig) else config.target_vocab_size

    def ids(rows: int | None, least: int) -> list[int]:
        assert rows is not None
        return draw(st.lists(st.integers(EOS, rows - 1), min_size=least, max_size=max_length - 1))

    is_joined = isinstance(config, LanguageModelConfig) and (config.mask == "prefix" or draw(st.booleans()))
    drawn = []
    for _ in range(draw(st.integers(1, max_sentences))):
        if is_joined:
            prefix = [*ids(target_rows, 0), EOS]
            drawn.append(Sentence(None, [*prefix, BOS, *ids(target_rows, 0)], len(prefix)))
            continue
        source = None if isinstance(config, LanguageModelConfig) else [*ids(config.source_vocab_size, 0), EOS]
        drawn.append(Sentence(source, [BOS, *ids(target_rows, 0)]))
    return drawn


def right_padded(batch: Sequence[Sentence], extra: int = 0, fill: int = PAD) -> Batch:
    """Put sentences side by side, padding (with `extra` more columns of it) on the right."""
    return _side_by_side(batch, lambda ids, width: ids + [None] * (width - len(ids)), extra, fill, with_positions=False)


def left_padded(batch: Sequence[Sentence], extra: int = 0, fill: int = PAD) -> Batch:
    """Put sentences side by side, padding on the left; positions count real tokens."""
    return _side_by_side(batch, lambda ids, width: [None] * (width - len(ids)) + ids, extra, fill, with_positions=True)


Pad = Callable[[list[int | None], int], list[int | None]]


def _side_by_side(batch: Sequence[Sentence], pad: Pad, extra: int, fill: int, with_positions: bool) -> Batch:
    def tokens(rows: list[list[int]]) -> Tokens:
        width = max(map(len, rows)) + extra
        padded = [pad(list(row), width) for row in rows]
        keep = torch.tensor([[i is not None for i in row] for row in padded])
        ids = torch.tensor([[fill if i is None else i for i in row] for row in padded])
        return Tokens(ids, keep, (keep.long().cumsum(1) - 1).clamp_min(0) if with_positions else None)

    target = tokens([s.target for s in batch])
    labels = tokens([[*s.target[1:], EOS] for s in batch]).ids_BT
    source = None if batch[0].source is None else tokens([s.source or [] for s in batch])
    prefixes = None if batch[0].n_prefix is None else torch.tensor([s.n_prefix for s in batch])
    return Batch(target=target, labels_BT=labels, loss_mask_BT=target.keep_BT, source=source, prefix_lengths_B=prefixes)
