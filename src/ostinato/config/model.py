"""What a model is: stacks of steps, how each kind of sub-layer is spread over them, and their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from ostinato.config.base import Config
from ostinato.config.one_wide import FfnVariant, spread_feed_forwards, variant_problems
from ostinato.errors import Problem
from ostinato.plan import Kind, Plan, Scheme, SubLayerPlan, assign, build_plan

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Size = Annotated[int, Field(ge=1)]


class SubLayerConfig(Config):
    """How one kind of sub-layer is spread over the steps of a stack (schemes: see `ostinato.plan`)."""

    keeps_common_settings: ClassVar[bool] = True
    """Another `kind` on top of a recipe changes the kind, not how sub-layers are spread nor how wide they are."""

    share: Scheme | list[Annotated[int, Field(ge=0)] | None] = "individual"
    """Which steps use which parameter set: a scheme's name, or a list with one entry a step (null: absent)."""
    n_unique: Size | None = None
    """Number of parameter sets, for sequence, cycle and cycle_rev."""
    share_norm: bool = True
    """True: a norm is shared with its weights. False: every step has its own."""
    bank: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*$")] | None = None
    """Name of the bank; two stacks naming the same one use the same parameter sets. Default: the stack's name."""

    def sets(self, n_steps: int) -> tuple[int | None, ...]:
        """Return the parameter set of every step."""
        return assign(self.share, n_steps, self.n_unique)


class AttentionConfig(SubLayerConfig):
    """Multi-head attention: softmax(q k^T / sqrt(d_head)) v."""

    n_heads: Size = 8
    d_head: Size | None = None
    """Width of one head; default d_model / n_heads."""
    bias: bool = True
    """Biases in the four projections (fairseq: yes, tensor2tensor and T5: no)."""
    dropout: Probability = 0.0
    """Dropout of the attention weights."""

    def head_width(self, d_model: int) -> int:
        """Return d_head."""
        return self.d_head if self.d_head is not None else d_model // self.n_heads


class DenseFeedForwardConfig(SubLayerConfig):
    """Position-wise feed-forward: act(x W1 + b1) W2 + b2; geglu: (gelu(x Wg) * (x W1)) W2 (Shazeer 2020)."""

    kind: Literal["dense"] = "dense"
    d_ff: Size = 2048
    activation: Literal["relu", "gelu", "geglu"] = "relu"
    bias: bool = True
    dropout: Probability = 0.0
    """Dropout of the hidden layer."""


class SeparableConvConfig(SubLayerConfig):
    """Separable convolutions as transition: relu(sepconv(x; kernel_in, D -> F)) sepconv(.; kernel_out, F -> D).

    A sepconv is a depth-wise convolution over positions, then a position-wise map with bias (tensor2tensor's Universal
    Transformer). Encoders pad on both sides, causal stacks on the left only.
    """

    kind: Literal["separable_conv"] = "separable_conv"
    d_ff: Size = 2048
    kernel_in: Size = 3
    """Positions the first convolution sees."""
    kernel_out: Size = 5
    """Positions the second convolution sees."""
    bias: bool = True
    """Biases in the two position-wise maps."""
    dropout: Probability = 0.0
    """Dropout of the hidden layer."""


class NormConfig(Config):
    """Normalisation: post: norm(x + f(x)); pre: x + f(norm(x)), with a final norm after the last step."""

    kind: Literal["layer", "rms"] = "layer"
    placement: Literal["post", "pre"] = "post"
    eps: Annotated[float, Field(gt=0)] = 1e-5


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
    max_distance: Size = 128

    def problems(self, path: str = "") -> Iterator[Problem]:
        """The logarithmic half of the buckets needs room beyond the exact half."""
        if self.max_distance <= self.n_buckets // 2:
            reason = f"must be larger than {path}n_buckets / 2 = {self.n_buckets // 2}"
            yield Problem(f"{path}max_distance", self.max_distance, reason)


class RotaryConfig(Config):
    """Rotations of queries and keys by position (Su et al. 2021)."""

    kind: Literal["rotary"] = "rotary"
    base: Annotated[float, Field(gt=1)] = 10_000.0


class NoHaltingConfig(Config):
    """Every token takes part in every round."""

    kind: Literal["none"] = "none"


FeedForwardConfig = Annotated[DenseFeedForwardConfig | SeparableConvConfig, Field(discriminator="kind")]
SignalConfig = Annotated[NoSignalConfig | SinusoidalConfig | CoordinatesConfig, Field(discriminator="kind")]
RelativeConfig = Annotated[NoRelativeConfig | WindowConfig | BucketsConfig | RotaryConfig, Field(discriminator="kind")]


class StackConfig(Config):
    """A stack of steps: self-attention, then feed-forward, at every step where its plan has them."""

    n_steps: Size = 6
    steps_per_round: Size = 1
    """Steps between two ticks of the step signal and of halting."""
    self_attention: AttentionConfig = AttentionConfig()
    ffn: FeedForwardConfig = DenseFeedForwardConfig()
    norm: NormConfig = NormConfig()
    positions: SignalConfig = SinusoidalConfig()
    """Absolute positions, added to the states."""
    relative: RelativeConfig = NoRelativeConfig()
    """Relative positions, inside self-attention."""
    halting: NoHaltingConfig = NoHaltingConfig()

    @field_validator("ffn", mode="before")
    @classmethod
    def _dense_unless_named(cls, value: object) -> object:
        """A feed-forward that names no kind is a dense one, as it is in recipes."""
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
        return build_plan(name, subs, self.n_steps, self.steps_per_round)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Sharing schemes that do not fit the number of steps."""
        for kind, sub in self.sub_layers():
            try:
                sub.sets(self.n_steps)
            except ValueError as error:
                yield Problem(f"{path}{kind}.share", sub.share, f"{error} ({path}n_steps is {self.n_steps})")
        if self.n_steps % self.steps_per_round:
            yield Problem(f"{path}steps_per_round", self.steps_per_round, f"must divide {path}n_steps = {self.n_steps}")

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

    cross_attention: AttentionConfig = AttentionConfig()

    def sub_layers(self) -> list[tuple[Kind, SubLayerConfig]]:
        """Return the kinds of sub-layer in the order they run within a step."""
        return [
            ("self_attention", self.self_attention),
            ("cross_attention", self.cross_attention),
            ("ffn", self.ffn),
        ]


Init = Literal["xavier", "normal", "unit_scaling", "torch"]


class _ModelConfig(Config):
    d_model: Size = 512
    dropout: Probability = 0.1
    """Dropout of the embeddings and of every sub-layer's output before its residual."""
    init: Init = "xavier"
    """Initialisation of the weights: see `ostinato.nn.init`."""
    embedding_scale: bool = True
    """Multiply embeddings by sqrt(d_model) (Vaswani et al. 2017, 3.4)."""
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

    def plans(self) -> dict[str, Plan]:
        """Return the plan of every stack."""
        return {name: stack.plan(name) for name, stack in self.stacks().items()}

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Sizes that do not fit the width, variants the model cannot have, and banks whose users disagree."""
        yield from variant_problems(self.given_stacks(), self.ffn_variant, self.shared_d_ff, path)
        for name, stack in self.stacks().items():
            yield from stack.size_problems(f"{path}{name}.", self.d_model)
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
    entry = {f"{kind}.{key}": value for key, value in sub.model_dump(exclude=spread).items()}
    if sub.share_norm:
        entry |= {"norm.kind": stack.norm.kind, "norm.eps": stack.norm.eps}
    if kind == "self_attention" and isinstance(stack.relative, WindowConfig):
        entry["relative.window"] = stack.relative.window
    return entry


class Seq2SeqConfig(_ModelConfig):
    """An encoder-decoder model."""

    kind: Literal["seq2seq"] = "seq2seq"
    source_vocab_size: Size | None = None
    """Rows of the source embedding; None: from the tokenizer."""
    target_vocab_size: Size | None = None
    tie_embeddings: Literal["none", "output", "all"] = "output"
    """output: target embedding = output projection. all: the source embedding too (one joint vocabulary)."""
    encoder: StackConfig = StackConfig()
    decoder: DecoderConfig = DecoderConfig()

    @property
    def joins_pairs(self) -> bool:
        """False: source and target of a pair are read by stacks of their own."""
        return False

    def given_stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as configured, before `ffn_variant`, by name, in the order they run."""
        return {"encoder": self.encoder, "decoder": self.decoder}

    def problems(self, path: str = "") -> Iterator[Problem]:
        """One matrix for both sides needs one vocabulary size."""
        yield from super().problems(path)
        if self.tie_embeddings == "all" and self.source_vocab_size != self.target_vocab_size:
            reason = (
                f"needs one joint vocabulary, but source_vocab_size is {self.source_vocab_size} and "
                f"target_vocab_size is {self.target_vocab_size}"
            )
            yield Problem(f"{path}tie_embeddings", self.tie_embeddings, reason)


class LanguageModelConfig(_ModelConfig):
    """A decoder-only model: one stack without cross-attention.

    Trained on texts, or on pairs read as one sequence: source, end symbol, begin symbol, target. The loss is then on
    the target and its end symbol.
    """

    kind: Literal["language_model"] = "language_model"
    mask: Literal["causal", "prefix"] = "causal"
    """causal: a token sees none after it. prefix: the source's tokens also see each other in both directions (One Wide
    FFN, decoder-only model)."""
    vocab_size: Size | None = None
    tie_embeddings: Literal["none", "output"] = "output"
    decoder: StackConfig = StackConfig()

    @property
    def joins_pairs(self) -> bool:
        """True: source and target of a pair are read as one sequence."""
        return True

    def given_stacks(self) -> dict[str, StackConfig]:
        """Return the stacks as configured, before `ffn_variant`, by name, in the order they run."""
        return {"decoder": self.decoder}


ModelConfig = Annotated[Seq2SeqConfig | LanguageModelConfig, Field(discriminator="kind")]
