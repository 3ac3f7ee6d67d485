"""A stack of steps: how each kind of sub-layer is spread over them, positions, norms and halting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from ostinato.config.base import Config, Number, NumberOrZero, Positive
from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.halting import ChoosingConfig, HaltingConfig, NoHaltingConfig
from ostinato.config.loops import SegmentConfig
from ostinato.config.norm import NormalisationConfig
from ostinato.config.positions import (
    ByStepConfig,
    NoRelativeConfig,
    OneRelativeConfig,
    RelativeConfig,
    RotaryConfig,
    SignalConfig,
    SinusoidalConfig,
    WindowConfig,
)
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig, SubLayerConfig
from ostinato.errors import Inert, Problem
from ostinato.plan import Kind, Placement, Plan, SubLayerPlan, Use, assign, build_plan

_SPARSE = "_sparse"
"""Ending of the name of a sparse layer's parameter set."""

AttentionSubLayer = Annotated[AttentionConfig | ExpertAttentionConfig, Field(discriminator="kind")]
SelfAttentionSubLayer = Annotated[
    AttentionConfig | ExpertAttentionConfig | HeadExpertAttentionConfig, Field(discriminator="kind")
]
FeedForwardConfig = Annotated[
    DenseFeedForwardConfig | SeparableConvConfig | ExpertFeedForwardConfig, Field(discriminator="kind")
]


class NormConfig(NormalisationConfig):
    """Normalisation around every sub-layer."""

    placement: Placement = "post"
    """post: n(x + f(x)). pre: x + f(n(x)). peri: x + n2(f(n1(x))). output: x + n(f(x)). sandwich: n2(x + f(n1(x))).
    parallel: x + f(n(x)) + g(m(x)), the sub-layers f, g of a step side by side. scores: x + f(x), where queries, keys,
    gates and routers read n(x), values and experts x (MoEUT); a feed-forward without a router has no norm."""
    embedding: bool = False
    """A norm of the embeddings, too, behind what is added to them and before dropout (BERT, BART, ModernBERT)."""
    first: bool = True
    """Whether the first sub-layer has a norm of what it reads, where the others do (ModernBERT: no, it reads normed
    embeddings)."""
    final: bool | None = None
    """Whether there is a norm after the last step; null: with every placement but post."""

    final_weight: bool = False
    """Learned weights (and bias) of the final norm where `weight` leaves them out of the others (LoopFormer)."""

    final_eps: Positive | None = None
    """`eps` of the final norm (JetMoE has another there); null: that of the others."""

    @property
    def of_final(self) -> NormalisationConfig:
        """What the norm after the last step computes."""
        own = {"weight": True} if self.final_weight else {}
        return self.model_copy(update=own if self.final_eps is None else own | {"eps": self.final_eps})

    @property
    def has_final(self) -> bool:
        """Whether there is a norm after the last step."""
        return self.placement != "post" if self.final is None else self.final

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A first norm left out of sub-layers that have none of what they read."""
        yield from super().problems(path)
        if not self.first and self.placement not in ("pre", "peri", "sandwich"):
            reason = f"needs {path}placement pre, peri or sandwich, whose sub-layers follow each other behind norms"
            yield Problem(f"{path}first", False, reason)
        if self.final_weight and (self.weight or not self.has_final):
            reason = (
                f"has no effect: {'all norms have weights' if self.weight else 'there is no final norm'}; remove it"
            )
            yield Inert(f"{path}final_weight", True, reason)
        if self.final_eps is not None and not self.has_final:
            yield Inert(f"{path}final_eps", self.final_eps, "has no effect: there is no final norm; remove it")


class ValueEmbeddingsConfig(Config):
    """What tokens add to the values of self-attention: v + g E_v[token], g = 2 sigmoid(W x[:C]), a number for every
    head of keys (Parcae): see `ostinato.nn.token_values`."""

    share: Literal["individual", "all"] | list[NumberOrZero | None] = "individual"
    """Which steps read which table: a table for each, one for all, or a list with one entry a step (null: none)."""
    gate_width: Number = 32
    """C: numbers of what keys are made of that the gate reads."""


class StackConfig(Config):
    """A stack of steps: self-attention, then feed-forward, at every step where its plan has them."""

    n_steps: Number = 6
    """Number of steps of depth; with segments, those that are laid out before any are repeated."""
    steps_per_round: Number = 1
    """Steps of a round, which the step signal and halting count; with segments, a round is one of the repeats."""
    segments: list[SegmentConfig] = Field(default_factory=list)
    """Empty: one segment that has all steps."""
    self_attention: SelfAttentionSubLayer = AttentionConfig()
    """Self-attention of every step."""
    ffn: FeedForwardConfig = DenseFeedForwardConfig()
    """Feed-forward of every step."""
    value_embeddings: ValueEmbeddingsConfig | None = None
    """Tables of what tokens add to the values of self-attention."""
    sparse_layer: SparseLayerConfig | None = None
    """A layer of experts between two steps."""
    norm: NormConfig = NormConfig()
    """Normalisation of every sub-layer."""
    positions: SignalConfig = SinusoidalConfig()
    """Absolute positions, added to the states."""
    relative: RelativeConfig = NoRelativeConfig()
    """Relative positions, inside self-attention."""
    halting: HaltingConfig = NoHaltingConfig()
    """Rule by which a token stops before the last round."""

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
        positions = self._tables()
        subs = [
            SubLayerPlan(
                kind,
                sub.sets(self.n_steps),
                bank=sub.bank or name,
                share_norm=sub.share_norm,
                position=positions if kind == "self_attention" else None,
                values=self.value_tables() if kind == "self_attention" else None,
                placement=self.norm.placement,
                has_scores=sub.has_scores,
            )
            for kind, sub in self.sub_layers()
        ]
        sparse = None if self.sparse_layer is None else (self.sparse_layer.after, Use("ffn", f"{name}{_SPARSE}"))
        segments = [segment.plan(self._changing_kinds()) for segment in self.segments]
        return build_plan(
            name,
            subs,
            self.n_steps,
            self.steps_per_round,
            segments=segments,
            extra=sparse,
            has_first_norm=self.norm.first,
        )

    def value_tables(self) -> tuple[int | None, ...] | None:
        """Return for every step the number of its table of values."""
        return None if self.value_embeddings is None else assign(self.value_embeddings.share, self.n_steps)

    def _changing_kinds(self) -> tuple[Kind, ...]:
        """Return the kinds of sub-layer to whose maps a round may add something."""
        kinds = ((kind, sub) for kind, sub in self.sub_layers() if not sub.is_absent)
        return tuple(kind for kind, sub in kinds if getattr(sub, "kind", "") in ("dense", "experts"))

    def _tables(self) -> Literal["stack", "weights"] | tuple[int | None, ...] | None:
        """Return what has a table of relative positions: see `SubLayerPlan.position`."""
        match self.relative:
            case ByStepConfig(settings=settings, pattern=pattern):
                numbers = (pattern[step % len(pattern)] for step in range(self.n_steps))
                return tuple(None if settings[n] == NoRelativeConfig() else n for n in numbers)
            case WindowConfig():
                return "weights"
            case relative:
                return None if relative == NoRelativeConfig() else "stack"

    def relatives(self) -> list[WindowConfig | OneRelativeConfig]:
        """Return the relative positions that some step has."""
        if isinstance(self.relative, ByStepConfig):
            used = set(self.relative.pattern[: self.n_steps])  # may have numbers of none, which is a problem of its own
            return [one for number, one in enumerate(self.relative.settings) if number in used]
        return [self.relative]

    def relative_of(self, use: Use) -> WindowConfig | OneRelativeConfig:
        """Return the relative positions of a use of this stack's plan."""
        if use.position is None:
            return NoRelativeConfig()
        if isinstance(self.relative, ByStepConfig):
            return self.relative.settings[int(use.position.rpartition("_")[2])]
        return self.relative

    @property
    def is_rotary(self) -> bool:
        """Whether some step turns queries and keys."""
        return any(isinstance(relative, RotaryConfig) for relative in self.relatives())

    @property
    def depth(self) -> int:
        """Steps that run, those of a repeated segment as often as they do; a sparse layer is none."""
        if not self.segments:
            return self.n_steps
        return sum(segment.steps_of_round * (segment.repeats or 1) for segment in self.segments)

    @property
    def has_router(self) -> bool:
        """Whether some step of this stack chooses between experts."""
        used: list[object] = [sub for _, sub in self.sub_layers() if not sub.is_absent]
        return any(isinstance(sub, RoutedConfig) and sub.has_router for sub in [*used, self.sparse_layer])

    def settings_of(self, use: Use) -> SubLayerConfig | SparseLayerConfig:
        """Return what a use of this stack's plan runs."""
        if self.sparse_layer is not None and use.weights.endswith(_SPARSE):
            return self.sparse_layer
        return dict(self.sub_layers())[use.kind]

    def problems(self, path: str = "") -> Iterator[Problem]:
        """What of sharing, segments, values, positions and halting does not fit the steps, or each other."""
        for kind, sub in self.sub_layers():
            try:
                sub.sets(self.n_steps)
            except ValueError as error:
                yield Problem(f"{path}{kind}.share", sub.share, f"{error} ({path}n_steps is {self.n_steps})")
                continue
            yield from sub.inert_settings(f"{path}{kind}.", self.n_steps)
            if not sub.share_norm and self.norm.placement == "scores" and not sub.has_scores:
                reason = f"has no effect with {path}norm.placement=scores, where this has no norm: remove it"
                yield Inert(f"{path}{kind}.share_norm", False, reason)
            turns = kind == "self_attention" and self.is_rotary
            if isinstance(sub, AttentionConfig) and sub.qk_norm_at == "after" and sub.qk_norm != "none" and not turns:
                reason = f"has no effect without rotary positions ({path}relative) in {kind}: remove it"
                yield Inert(f"{path}{kind}.qk_norm_at", sub.qk_norm_at, reason)
        yield from self._value_problems(path)
        if isinstance(self.relative, ByStepConfig) and len(self.relative.pattern) > self.n_steps:
            reason = f"has more numbers than {path}n_steps = {self.n_steps}"
            yield Problem(f"{path}relative.pattern", self.relative.pattern, reason)
        if self.segments:
            yield from self._segment_problems(path)
        if isinstance(self.halting, ChoosingConfig):
            yield from self._choosing_problems(path)
        if self.n_steps % self.steps_per_round:
            yield Problem(f"{path}steps_per_round", self.steps_per_round, f"must divide {path}n_steps = {self.n_steps}")
        if self.sparse_layer is not None and self.sparse_layer.after > self.n_steps:
            reason = f"must be at most {path}n_steps = {self.n_steps}"
            yield Problem(f"{path}sparse_layer.after", self.sparse_layer.after, reason)

    def _value_problems(self, path: str) -> Iterator[Problem]:
        if self.value_embeddings is None:
            return
        key, share = f"{path}value_embeddings.share", self.value_embeddings.share
        try:
            tables = assign(share, self.n_steps)
            attention = self.self_attention.sets(self.n_steps)
        except ValueError as error:
            yield Problem(key, share, f"{error} ({path}n_steps is {self.n_steps})")
            return
        if all(table is None for table in tables):
            yield Problem(key, share, f"no step reads a table: leave out {path}value_embeddings")
        if any(table is not None and one is None for table, one in zip(tables, attention, strict=True)):
            reason = f"a step without self-attention ({path}self_attention.share) has no values: must be null there"
            yield Problem(key, share, reason)

    def _segment_problems(self, path: str) -> Iterator[Problem]:
        segments = self.segments
        if (n := sum(segment.n_steps for segment in segments)) != self.n_steps:
            yield Problem(f"{path}segments", f"{n} steps", f"must have {path}n_steps = {self.n_steps} steps in all")
        if (n := sum(segment.repeats is not None and not segment.fixed for segment in segments)) != 1:
            reason = "one of them must have repeats" + ("; set fixed in the others" if n else ", and not be fixed")
            yield Problem(f"{path}segments", f"{n} with repeats", reason)
        for number, segment in enumerate(segments):
            if segment.end_norm == "final" and not self.norm.has_final:
                reason = (
                    f"the stack has no final norm ({path}norm.placement={self.norm.placement}); own: one of its own"
                )
                yield Problem(f"{path}segments.{number}.end_norm", "final", reason)
            of_rounds = {"delta_rank": segment.delta_rank, "modulation.kind": segment.modulation.kind}
            for key, value in of_rounds.items():
                if self.norm.placement == "scores" and value not in (0, "none"):
                    reason = f"acts on what is normed: needs {path}norm.placement other than scores"
                    yield Problem(f"{path}segments.{number}.{key}", value, reason)
            if segment.delta_rank and (self.sparse_layer is not None or not self._changing_kinds()):
                reason = "is added to the maps of attention and feed-forwards of kind dense or experts: "
                reason += f"leave out {path}sparse_layer" if self.sparse_layer is not None else "there are none"
                yield Problem(f"{path}segments.{number}.delta_rank", segment.delta_rank, reason)
        if self.halting.kind == "length" and any(
            segment.modulation.kind == "by_time" and not segment.fixed for segment in segments
        ):
            reason = (
                f"times of rounds ({path}segments, modulation by_time) follow from their number for the whole batch"
            )
            yield Problem(f"{path}halting.kind", "length", f"{reason}: must be another rule, or modulation by_round")
        if any(segment.states for segment in segments):
            if self.halting.kind not in ("none", "length"):
                reason = f"a loop of several states ({path}segments) stops whole sentences only: must be none or length"
                yield Problem(f"{path}halting.kind", self.halting.kind, reason)
            if self.positions.kind == "coordinates":
                reason = f"are added to one state in every round, and the loop has several ({path}segments)"
                yield Problem(f"{path}positions.kind", self.positions.kind, reason)
        if self.steps_per_round != 1:
            reason = f"has no effect with {path}segments, whose rounds are repeats: remove it"
            yield Inert(f"{path}steps_per_round", self.steps_per_round, reason)

    def _choosing_problems(self, path: str) -> Iterator[Problem]:
        of_loop = (one.repeats for one in self.segments if one.repeats and not one.fixed)
        n_rounds = next(of_loop, self.n_steps // self.steps_per_round)
        capacities = getattr(self.halting, "capacities", None)
        if capacities is not None and len(capacities) > n_rounds:
            reason = f"has more numbers than the stack has rounds, {n_rounds}"
            yield Problem(f"{path}halting.capacities", capacities, reason)
        if isinstance(self.ffn, SeparableConvConfig) and not self.ffn.is_absent:
            reason = "a separable convolution reads its neighbours, of which some take no part in a round"
            reason += f": {path}ffn.kind must be dense or experts"
            yield Problem(f"{path}halting.kind", self.halting.kind, reason)

    def size_problems(self, path: str, d_model: int, embedding_width: int) -> Iterator[Problem]:
        """Sizes that do not fit the widths of the model's states and embeddings."""
        for kind, sub in self.sub_layers():
            if not isinstance(sub, AttentionConfig) or sub.is_absent:
                continue
            if sub.d_head is None and d_model % sub.n_heads:
                near = max(h for h in range(1, min(sub.n_heads, d_model) + 1) if d_model % h == 0)
                reason = f"must divide model.d_model = {d_model} (nearest: {near}), or set {path}{kind}.d_head"
                yield Problem(f"{path}{kind}.n_heads", sub.n_heads, reason)
            elif kind == "self_attention":
                yield from self._rotary_problems(f"{path}{kind}.d_head", sub.head_width(d_model))
        if self.value_embeddings is not None and self.value_embeddings.gate_width > d_model:
            reason = f"must be at most model.d_model = {d_model}"
            yield Problem(f"{path}value_embeddings.gate_width", self.value_embeddings.gate_width, reason)
        name, width = "d_model", d_model
        if self.positions.kind == "sinusoidal" and embedding_width != d_model:
            name, width = "d_embedding", embedding_width
        if self.positions.kind in ("sinusoidal", "coordinates") and width % 2:
            yield Problem(f"{path}positions.kind", self.positions.kind, f"needs an even model.{name}, got {width}")

    def _rotary_problems(self, key: str, width: int) -> Iterator[Problem]:
        for relative in self.relatives():
            if isinstance(relative, RotaryConfig) and relative.n_turned(width) is None:
                reason = "rotary positions need an even head width"
                if relative.fraction < 1:
                    reason = (
                        f"rotary positions need an even number of components to turn, not {relative.fraction:g} of it"
                    )
                yield Problem(key, width, reason)


class DecoderConfig(StackConfig):
    """A decoder stack: cross-attention between self-attention and feed-forward."""

    cross_attention: AttentionSubLayer = AttentionConfig()
    """Attention of every step to the encoder's output."""

    def sub_layers(self) -> list[tuple[Kind, SubLayerConfig]]:
        """Return the kinds of sub-layer in the order they run within a step."""
        return [
            ("self_attention", self.self_attention),
            ("cross_attention", self.cross_attention),
            ("ffn", self.ffn),
        ]
