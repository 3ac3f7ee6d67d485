"""Dense sub-layers (attention, feed-forward, separable convolution), and which steps use which parameter set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Config, Number, NumberOrZero, Positive, Probability, Size, inert
from ostinato.errors import Inert, Problem
from ostinato.plan import Scheme, assign

Activation = Literal["relu", "relu2", "gelu", "gelu_tanh", "silu", "geglu", "geglu_tanh", "swiglu"]
GATED = ("geglu", "geglu_tanh", "swiglu")
"""Activations with a gate of its own, and so a third matrix."""


class SubLayerConfig(Config):
    """Which steps of a stack use which parameter set of one kind of sub-layer (schemes: see `ostinato.plan`)."""

    keeps_common_settings: ClassVar[bool] = True
    """A derived recipe that names another `kind` keeps the settings that both kinds have, such as share and d_ff."""

    share: Scheme | list[NumberOrZero | None] = "individual"
    """Which steps use which parameter set: a scheme's name, or a list with one entry a step (null: absent)."""
    n_unique: Number | None = None
    """Number of parameter sets, for sequence, cycle and cycle_rev."""
    share_norm: bool = True
    """True: a norm is shared with its weights. False: every step has its own."""
    bank: Annotated[str, Field(pattern=r"^[a-z][a-z0-9]*$")] | None = None
    """Name of the bank; two stacks naming the same one use the same parameter sets. Default: the stack's name."""

    def inert_settings(self, path: str, n_steps: int) -> Iterator[Problem]:
        """Settings that this scheme makes useless, in a stack of so many steps.

        Raises:
            ValueError: the scheme does not fit the number of steps.
        """
        sets = [number for number in self.sets(n_steps) if number is not None]
        if not sets:
            reason = f"has no effect, because no step has this sub-layer ({path}share): remove it"
            yield from inert(self, path, reason, but={"share"})
            return
        if self.n_unique is not None and self.share not in ("sequence", "cycle", "cycle_rev"):
            reason = f"has no effect with {path}share={self.share}: remove it, or share by sequence, cycle or cycle_rev"
            yield Inert(f"{path}n_unique", self.n_unique, reason)
        if not self.share_norm and self.bank is None and len(set(sets)) == len(sets):
            reason = f"has no effect, because no two steps share weights ({path}share): remove it"
            yield Inert(f"{path}share_norm", self.share_norm, reason)

    @property
    def has_scores(self) -> bool:
        """Whether it compares queries with keys, or chooses between experts."""
        return False

    @property
    def is_absent(self) -> bool:
        """Whether no step has it."""
        return self.share == "none" or (isinstance(self.share, list) and set(self.share) <= {None})

    def sets(self, n_steps: int) -> tuple[int | None, ...]:
        """Return the parameter set of every step."""
        return assign(self.share, n_steps, self.n_unique)


class AttentionConfig(SubLayerConfig):
    """Multi-head attention: softmax(q k^T / sqrt(d_head)) v."""

    kind: Literal["dense"] = "dense"
    n_heads: Number = 8
    """Number of heads."""
    n_kv_heads: Number | None = None
    """Heads of keys and values, each read by n_heads / n_kv_heads neighbouring heads of queries (Ainslie et al. 2023);
    default n_heads."""
    d_head: Size | None = None
    """Width of one head; default d_model / n_heads."""
    scale: Positive | None = None
    """Factor of q k^T; default 1 / sqrt(d_head) (T5: 1)."""
    qk_norm: Literal["none", "rms", "rms_plain"] = "none"
    """RMS norm of the queries and keys of every head. rms: with learned weights, one
    for each component of a head, one set for queries and one for keys (Qwen3). rms_plain: without."""
    qk_norm_at: Literal["before", "after"] = "before"
    """before: norm, then rotary positions (Qwen3). after: rotary positions, then norm."""
    qk_norm_eps: Positive | None = None
    """Added to their mean square; default the eps of the stack's norms (Parcae's public code leaves it to torch: the
    machine's, 1.2e-7 in float32)."""
    bias: bool | Literal["qkv", "qk"] = True
    """Biases in the four projections (fairseq: yes, tensor2tensor and T5: no), in those of queries, keys and values
    only, or in those of queries and keys only."""
    output_gate: bool = False
    """Multiply what the heads read by sigmoid(W x), x the input of the sub-layer, before the output projection."""
    dropout: Probability = 0.0
    """Dropout of the attention weights."""

    @property
    def has_scores(self) -> bool:
        """Queries are compared with keys."""
        return True

    def head_width(self, d_model: int) -> int:
        """Return d_head."""
        return self.d_head if self.d_head is not None else d_model // self.n_heads

    @property
    def n_key_heads(self) -> int:
        """Heads of keys and values."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Heads of keys and values that do not serve equally many heads, and settings of a norm that is not there."""
        yield from super().problems(path)
        if self.n_heads % self.n_key_heads:
            yield Problem(f"{path}n_kv_heads", self.n_kv_heads, f"must divide {path}n_heads = {self.n_heads}")
        for name, unset in (("qk_norm_at", "before"), ("qk_norm_eps", None)):
            if self.qk_norm == "none" and (value := getattr(self, name)) != unset:
                yield Inert(f"{path}{name}", value, f"has no effect with {path}qk_norm=none: remove it")


class DenseFeedForwardConfig(SubLayerConfig):
    """Position-wise feed-forward: act(x W1 + b1) W2 + b2; gated: (act(x Wg) * (x W1)) W2 (Shazeer 2020)."""

    kind: Literal["dense"] = "dense"
    d_ff: Size = 2048
    """Width of the hidden layer."""
    activation: Activation = "relu"
    """Activation of the hidden layer; geglu, geglu_tanh (T5 1.1) and swiglu (Llama): a gate of its own, and so a third
    matrix. gelu_tanh: GPT-2's approximation. relu2: max(0, u)^2."""
    bias: bool = True
    """Biases in the matrices."""
    dropout: Probability = 0.0
    """Dropout of the hidden layer."""


class SeparableConvConfig(SubLayerConfig):
    """Separable convolutions as transition: relu(sepconv(x; kernel_in, D -> F)) sepconv(.; kernel_out, F -> D).

    A sepconv is a depth-wise convolution over positions, then a position-wise map with bias (tensor2tensor's Universal
    Transformer). Encoders pad on both sides, causal stacks on the left only.
    """

    kind: Literal["separable_conv"] = "separable_conv"
    d_ff: Size = 2048
    """F: channels of the hidden layer."""
    kernel_in: Number = 3
    """Positions the first convolution sees."""
    kernel_out: Number = 5
    """Positions the second convolution sees."""
    bias: bool = True
    """Biases in the two position-wise maps."""
    dropout: Probability = 0.0
    """Dropout of the hidden layer."""
