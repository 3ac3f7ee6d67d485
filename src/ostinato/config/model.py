"""What a model is: stacks of steps, how each kind of sub-layer is spread over them, and their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ostinato.config.base import Config
from ostinato.config.common import CommonModelConfig, Init, PairModelConfig, Reads, SequenceModelConfig
from ostinato.config.embedders import EmbedderConfig, FactsConfig, TokensConfig
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    GateConfig,
    HypersphereRouterConfig,
    LinearRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    RouterConfig,
    SparseLayerConfig,
)
from ostinato.config.halting import ActConfig, HaltingConfig, NoHaltingConfig, StickBreakingConfig
from ostinato.config.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    MaskedHeadConfig,
    SpanHeadConfig,
    TaggingHeadConfig,
)
from ostinato.config.one_wide import FfnVariant, spread_feed_forwards, variant_problems
from ostinato.config.recurrent import LstmLanguageModelConfig, LstmSeq2SeqConfig
from ostinato.config.sub_layers import (
    AttentionConfig,
    DenseFeedForwardConfig,
    SeparableConvConfig,
    Size,
    SubLayerConfig,
)
from ostinato.errors import Problem
from ostinato.plan import Kind, Plan, SubLayerPlan, Use, build_plan, insert

__all__ = [
    "ActConfig",
    "AttentionConfig",
    "AttentionSubLayer",
    "BucketsConfig",
    "ClassificationHeadConfig",
    "CoordinatesConfig",
    "DecoderConfig",
    "DenseFeedForwardConfig",
    "EncoderConfig",
    "ExpertAttentionConfig",
    "ExpertFeedForwardConfig",
    "FactsConfig",
    "FeedForwardConfig",
    "GateConfig",
    "HaltingConfig",
    "HeadConfig",
    "HypersphereRouterConfig",
    "Init",
    "LanguageModelConfig",
    "LinearRouterConfig",
    "LstmLanguageModelConfig",
    "LstmSeq2SeqConfig",
    "MaskedHeadConfig",
    "MlpRouterConfig",
    "ModelConfig",
    "NoHaltingConfig",
    "NoRelativeConfig",
    "NoSignalConfig",
    "NormConfig",
    "Reads",
    "RelativeConfig",
    "RotaryConfig",
    "RoutedConfig",
    "RouterConfig",
    "SeparableConvConfig",
    "Seq2SeqConfig",
    "SignalConfig",
    "SinusoidalConfig",
    "SpanHeadConfig",
    "SparseLayerConfig",
    "StackConfig",
    "StickBreakingConfig",
    "SubLayerConfig",
    "TaggingHeadConfig",
    "WindowConfig",
]


class NormConfig(Config):
    """Normalisation: post: norm(x + f(x)); pre: x + f(norm(x)), with a final norm after the last step."""

    kind: Literal["layer", "rms"] = "layer"
    """layer: LayerNorm. rms: RMSNorm."""
    placement: Literal["post", "pre"] = "post"
    """post: after the residual sum. pre: before the sub-layer."""
    eps: Annotated[float, Field(gt=0)] = 1e-5
    """Added to the variance, so that nothing is divided by 0."""


class NoSignalConfig(Config):
    """No absolute position signal."""

    kind: Literal["none"] = "none"


class SinusoidalConfig(Config):
    """Sinusoids of the position, added once to the embeddings (Vaswani et al. 2017, 3.5), positions from 0."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    random_offset: Annotated[int, Field(ge=0)] = 0
    """In training every sentence's positions start at a number drawn from 0 .. random_offset."""


class CoordinatesConfig(Config):
    """Sinusoids of position and step, added before every round (Universal Transformers, 2.1), both from 1."""

    kind: Literal["coordinates"] = "coordinates"
    random_offset: Annotated[int, Field(ge=0)] = 0
    """In training every sentence's positions start at a number drawn from 0 .. random_offset."""


class NoRelativeConfig(Config):
    """No relative positions."""

    kind: Literal["none"] = "none"


class WindowConfig(Config):
    """Learned key offsets within a window, clamped beyond it (Shaw et al. 2018, as used by SUT: zero-initialised)."""

    kind: Literal["window"] = "window"
    window: Size = 16
    """W: positions on each side; the table has 2 W + 1 rows per head."""


class BucketsConfig(Config):
    """One learned bias per head and bucket of distance, shared by the stack (Raffel et al. 2020, T5)."""

    kind: Literal["buckets"] = "buckets"
    n_buckets: Annotated[int, Field(ge=4, multiple_of=2)] = 32
    """Buckets of distance: half of them exact, half logarithmic."""
    max_distance: Size = 128
    """Distance from which all fall into the last bucket."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The logarithmic half of the buckets needs room beyond the exact half."""
        if self.max_distance <= self.n_buckets // 2:
            reason = f"must be larger than {path}n_buckets / 2 = {self.n_buckets // 2}"
            yield Problem(f"{path}max_distance", self.max_distance, reason)


class RotaryConfig(Config):
    """Rotations of queries and keys by position (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1)] = 10_000.0
    """Base of the wavelengths: pair i of d_head turns by position / base^(2 i / d_head)."""


AttentionSubLayer = Annotated[AttentionConfig | ExpertAttentionConfig, Field(discriminator="kind")]
FeedForwardConfig = Annotated[
    DenseFeedForwardConfig | SeparableConvConfig | ExpertFeedForwardConfig, Field(discriminator="kind")
]
SignalConfig = Annotated[NoSignalConfig | SinusoidalConfig | CoordinatesConfig, Field(discriminator="kind")]
RelativeConfig = Annotated[NoRelativeConfig | WindowConfig | BucketsConfig | RotaryConfig, Field(discriminator="kind")]


_SPARSE = "_sparse"


class StackConfig(Config):
    """A stack of steps: self-attention, then feed-forward, at every step where its plan has them."""

    n_steps: Size = 6
    """Steps of depth."""
    steps_per_round: Size = 1
    """Steps between two ticks of the step signal and of halting."""
    self_attention: AttentionSubLayer = AttentionConfig()
    """Self-attention of every step."""
    ffn: FeedForwardConfig = DenseFeedForwardConfig()
    """Feed-forward of every step."""
    sparse_layer: SparseLayerConfig | None = None
    """A layer of experts between two steps."""
    norm: NormConfig = NormConfig()
    """Normalisation around every sub-layer."""
    positions: SignalConfig = SinusoidalConfig()
    """Absolute positions, added to the states."""
    relative: RelativeConfig = NoRelativeConfig()
    """Relative positions, inside self-attention."""
    halting: HaltingConfig = NoHaltingConfig()
    """When a token stops taking part in rounds."""

    @field_validator("self_attention", "ffn", "cross_attention", mode="before", check_fields=False)
    @classmethod
    def _dense_unless_named(cls, value: object) -> object:
        """A sub-layer that names no kind is a dense one, as it is in recipes."""
        return {"kind": "dense", **value} if isinstance(value, dict) else value

    def sub_layers(self) -> list[tuple[Kind, SubLayerConfig]]:
        """Return the kinds of sub-layer in the order they run within a step."""
        return [("self_attention", self.self_attention), ("ffn", self.ffn)]

    def plan(self, name: str) -> Plan:
        """Return the plan of this stack, called `name`."""
        table: Literal["stack", "weights"] = "weights" if isinstance(self.relative, WindowConfig) else "stack"
        subs = [
            SubLayerPlan(
                kind,
                sub.sets(self.n_steps),
                bank=sub.bank or name,
                share_norm=sub.share_norm,
                position=table if kind == "self_attention" and self.relative.kind != "none" else None,
            )
            for kind, sub in self.sub_layers()
        ]
        plan = build_plan(name, subs, self.n_steps, self.steps_per_round)
        if self.sparse_layer is None:
            return plan
        return insert(plan, self.sparse_layer.after, Use("ffn", self._sparse_name(name), norm=None))

    @property
    def has_router(self) -> bool:
        """Whether some step of this stack chooses between experts."""
        absent = ("none", [None] * self.n_steps)
        used: list[object] = [sub for _, sub in self.sub_layers() if sub.share not in absent]
        return any(isinstance(sub, RoutedConfig) and sub.has_router for sub in [*used, self.sparse_layer])

    def settings_of(self, use: Use) -> SubLayerConfig | SparseLayerConfig:
        """Return what a use of this stack's plan runs."""
        if self.sparse_layer is not None and use.weights.endswith(_SPARSE):
            return self.sparse_layer
        return dict(self.sub_layers())[use.kind]

    @staticmethod
    def _sparse_name(name: str) -> str:
        return f"{name}{_SPARSE}"

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Sharing schemes that do not fit the number of steps."""
        for kind, sub in self.sub_layers():
            try:
                sub.sets(self.n_steps)
            except ValueError as error:
                yield Problem(f"{path}{kind}.share", sub.share, f"{error} ({path}n_steps is {self.n_steps})")
        if self.n_steps % self.steps_per_round:
            yield Problem(f"{path}steps_per_round", self.steps_per_round, f"must divide {path}n_steps = {self.n_steps}")
        if self.sparse_layer is not None and self.sparse_layer.after > self.n_steps:
            reason = f"must be at most {path}n_steps = {self.n_steps}"
            yield Problem(f"{path}sparse_layer.after", self.sparse_layer.after, reason)

    def size_problems(self, path: str, d_model: int) -> Iterator[Problem]:
        """Sizes that do not fit the model's width."""
        for kind, sub in self.sub_layers():
            if not isinstance(sub, AttentionConfig) or sub.share == "none":
                continue
            if sub.d_head is None and d_model % sub.n_heads:
                near = max(h for h in range(1, sub.n_heads + 1) if d_model % h == 0)
                reason = f"must divide model.d_model = {d_model} (nearest: {near}), or set {path}{kind}.d_head"
                yield Problem(f"{path}{kind}.n_heads", sub.n_heads, reason)
            elif kind == "self_attention" and self.relative.kind == "rotary" and sub.head_width(d_model) % 2:
                width = sub.head_width(d_model)
                yield Problem(f"{path}{kind}.d_head", width, "rotary positions need an even head width")
        if self.positions.kind != "none" and d_model % 2:
            yield Problem(f"{path}positions.kind", self.positions.kind, f"needs an even model.d_model, got {d_model}")


class DecoderConfig(StackConfig):
    """A decoder stack: cross-attention between self-attention and feed-forward."""

    cross_attention: AttentionSubLayer = AttentionConfig()
    """Attention to the encoder's output, of every step."""

    def sub_layers(self) -> list[tuple[Kind, SubLayerConfig]]:
        """Return the kinds of sub-layer in the order they run within a step."""
        return [
            ("self_attention", self.self_attention),
            ("cross_attention", self.cross_attention),
            ("ffn", self.ffn),
        ]


class _StackedConfig(CommonModelConfig):
    ffn_variant: FfnVariant | None = None
    """Feed-forwards shared or dropped by a name of One Wide FFN: see `ostinato.config.one_wide`."""
    shared_d_ff: Size | Literal["parity"] | None = None
    """Width of the feed-forwards that `ffn_variant` shares; parity: all feed-forwards together stay as wide as they
    were. None: their d_ff as given (one-wide: parity)."""

    def given_stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as configured, before `ffn_variant`, by name, in the order they run."""
        raise TypeError(type(self).__name__)

    def stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as they are built, by name, in the order they run."""
        return spread_feed_forwards(self.given_stacks(), self.ffn_variant, self.shared_d_ff)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Sizes that do not fit the width, variants the model cannot have, and banks whose users disagree."""
        yield from super().problems(path)
        yield from variant_problems(self.given_stacks(), self.ffn_variant, self.shared_d_ff, path)
        for name, stack in self.stacks().items():
            yield from stack.size_problems(f"{path}{name}.", self.d_model)
            if name == "decoder" and isinstance(stack.halting, ActConfig) and stack.halting.scope == "global":
                reason = (
                    "its one probability a sentence is the mean over all tokens, so that a token of a causal stack "
                    "would halt by what comes after it; valid here: token"
                )
                yield Problem(f"{path}{name}.halting.scope", stack.halting.scope, reason)
        yield from self._bank_problems(path)

    def _bank_problems(self, path: str) -> Iterator[Problem]:
        """A parameter set has one shape, one norm and one table, whichever stack uses it."""
        seen: dict[tuple[str, str], tuple[str, dict[str, object]]] = {}
        for name, stack in self.stacks().items():
            for kind, sub in stack.sub_layers():
                if sub.share == "none":
                    continue
                bank = sub.bank or name
                mine = _entry(stack, kind, sub)
                other, first = seen.setdefault((kind, bank), (name, mine))
                for key in sorted(k for k in mine if k in first and mine[k] != first[k]):
                    reason = f"the {kind} bank '{bank}' serves both stacks, and {path}{other}.{key} is {first[key]!r}"
                    yield Problem(f"{path}{name}.{key}", mine[key], reason)


def _entry(stack: StackConfig, kind: Kind, sub: SubLayerConfig) -> dict[str, object]:
    """Return what decides the shape of a parameter set, by dotted path within its stack."""
    spread = {"share", "n_unique", "share_norm", "bank"}
    entry = dict(_leaves(f"{kind}.", sub.model_dump(exclude=spread)))
    if sub.share_norm:
        entry |= {"norm.kind": stack.norm.kind, "norm.eps": stack.norm.eps}
    if kind == "self_attention" and isinstance(stack.relative, WindowConfig):
        entry["relative.window"] = stack.relative.window
    return entry


def _leaves(path: str, settings: dict[str, object]) -> Iterator[tuple[str, object]]:
    """Yield every setting that is not a group of settings, by dotted path."""
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(f"{path}{key}.", value)
        else:
            yield f"{path}{key}", value


class Seq2SeqConfig(_StackedConfig, PairModelConfig):
    """An encoder-decoder model."""

    kind: Literal["seq2seq"] = "seq2seq"
    encoder: StackConfig = StackConfig()
    """The stack that reads the source."""
    decoder: DecoderConfig = DecoderConfig()
    """The stack that writes the target."""

    def given_stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as configured, before `ffn_variant`, by name, in the order they run."""
        return {"encoder": self.encoder, "decoder": self.decoder}


class LanguageModelConfig(_StackedConfig, SequenceModelConfig):
    """A decoder-only model: one stack without cross-attention."""

    kind: Literal["language_model"] = "language_model"
    mask: Literal["causal", "prefix"] = "causal"
    """causal: a token sees none after it. prefix: the source's tokens also see each other in both directions (One Wide
    FFN, decoder-only model)."""
    decoder: StackConfig = StackConfig()
    """The stack that reads and writes the text."""

    def given_stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as configured, before `ffn_variant`, by name, in the order they run."""
        return {"decoder": self.decoder}


class EncoderConfig(_StackedConfig):
    """An encoder-only model: one stack whose tokens all see each other, and a head that reads their states.

    It reads ``<bos> text <eos>``, of a pair (two texts separated by a tab) ``<bos> text <eos> text <eos>``. The
    embeddings have one row more than the tokenizer has ids: the last one is the mask symbol's, whatever the head is,
    so that a model pre-trained with a `masked` head goes on with another.
    """

    kind: Literal["encoder"] = "encoder"
    vocab_size: Size | None = None
    """Rows of the embedding, the mask symbol's included; None: from the tokenizer."""
    n_labels: Size | None = None
    """Labels of a classification or tagging head; None: from the training split."""
    tie_embeddings: Literal["none", "output"] = "output"
    """Whether a masked head reads with the embeddings, or with a matrix of its own."""
    embedder: EmbedderConfig = TokensConfig()
    """facts: a story's facts and its question, with tabs between them, are positions; for a classification head."""
    encoder: StackConfig = StackConfig()
    """The stack that reads the text."""
    head: HeadConfig = MaskedHeadConfig()
    """What is read off the stack's states."""

    @property
    def reads(self) -> Reads:
        """What the head is for."""
        return self.head.kind

    @property
    def max_words(self) -> int | None:
        """Tokens of the longest fact; None where a position is a token."""
        return self.embedder.max_words if isinstance(self.embedder, FactsConfig) else None

    @property
    def n_outputs(self) -> int | None:
        """Numbers that a projection of the head's own gives; None: the head reads with a matrix over the vocabulary."""
        return {"masked": None, "span": 2}.get(self.head.kind, self.n_labels or 0)

    def vocabulary_sizes(self, source: int, target: int) -> dict[str, int]:
        """Return the rows of the embedding, and for heads that choose a label how many there are."""
        labels = {"n_labels": target} if self.head.kind in ("classification", "tagging") else {}
        return {"vocab_size": source + 1} | labels

    def given_stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as configured, before `ffn_variant`, by name, in the order they run."""
        return {"encoder": self.encoder}

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Settings that belong to another head."""
        yield from super().problems(path)
        if self.tie_embeddings == "none" and self.head.kind != "masked":
            reason = f"has no effect: {path}head.kind={self.head.kind} has no output over the vocabulary"
            yield Problem(f"{path}tie_embeddings", "none", reason)
        if isinstance(self.embedder, FactsConfig) and getattr(self.head, "pooling", "first") != "mean":
            reason = f"has no begin symbol and no words: needs {path}head={{kind: classification, pooling: mean}}"
            yield Problem(f"{path}embedder.kind", self.embedder.kind, reason)
        if self.n_labels is not None and self.head.kind in ("masked", "span"):
            yield Problem(f"{path}n_labels", self.n_labels, f"{path}head.kind={self.head.kind} has no labels")


ModelConfig = Annotated[
    Seq2SeqConfig | LanguageModelConfig | EncoderConfig | LstmSeq2SeqConfig | LstmLanguageModelConfig,
    Field(discriminator="kind"),
]
