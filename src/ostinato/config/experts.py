"""Sub-layers that run a few of their experts for every token: routers, gates, and what an expert is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import MOST, Config, Number, NumberOrZero, Positive, Probability, Size, inert
from ostinato.config.sub_layers import Activation, AttentionConfig, SubLayerConfig
from ostinato.errors import Inert, Problem

ExpertInit = Literal["model", "fan_in"]
_TEMPERATURES = {"softmax": 0.3, "topk_softmax": 0.3, "sigmoid": 0.07}


class LinearRouterConfig(Config):
    """Scores are dot products with one vector an expert (Switch Transformer; the baseline of X-MoE)."""

    kind: Literal["linear"] = "linear"


class MlpRouterConfig(Config):
    """Two layers: E tanh(W h + b) (Sparse Universal Transformer)."""

    kind: Literal["mlp"] = "mlp"
    dropout: Probability = 0.0
    """Dropout of the hidden layer."""


class HypersphereRouterConfig(Config):
    """Cosines in a low dimension, divided by a learned temperature (X-MoE, as published)."""

    kind: Literal["hypersphere"] = "hypersphere"
    d_router: Size | None = None
    """Width d_e of the routing space; None: half the number of experts, at least 2."""
    temperature: Positive | None = None
    """tau at the start; None: 0.3, with sigmoid gates 0.07."""
    floor: Positive = 1e-4
    """tau is never taken as smaller than this."""
    expert_norm: Positive = 0.1
    """Length of an expert's embedding, held after every update."""
    project: bool = True
    """Ablation: False routes in the model's own width."""
    normalise: bool = True
    """Ablation: False takes dot products for cosines."""
    learn_temperature: bool = True
    """Ablation: False keeps tau as it is at the start."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Cosines of vectors with one component."""
        if self.d_router is not None and not self.project:
            reason = f"has no effect with {path}project=false, which routes in the model's own width: remove it"
            yield Inert(f"{path}d_router", self.d_router, reason)
        if self.d_router == 1 and self.project and self.normalise:
            reason = (
                "in one dimension every cosine is 1 or -1 and has no gradient: must be at least 2, or set "
                f"{path}normalise: false"
            )
            yield Problem(f"{path}d_router", self.d_router, reason)


RouterConfig = Annotated[
    LinearRouterConfig | MlpRouterConfig | HypersphereRouterConfig,
    Field(discriminator="kind"),
]


class GateConfig(Config):
    """From scores to the top_k chosen experts and their weights: see `ostinato.nn.routing.Gate`."""

    kind: Literal["softmax", "topk_softmax", "sigmoid"] = "softmax"
    """softmax: over all experts, then the top_k largest. topk_softmax: over the top_k largest. sigmoid: of every
    score."""
    renormalise: bool | None = None
    """softmax: divide the chosen gates by their sum. None: where more than one is chosen."""
    n_sampled: NumberOrZero = 0
    """In training so many of the top_k are drawn from the remaining probabilities (SUT: sample_topk)."""


class RoutedConfig(Config):
    """What every sub-layer of experts has: number of experts, number of experts a token, router and gate."""

    n_experts: Number = 8
    """E. With one expert there is no router: it always runs, with gate 1."""
    top_k: Number = 2
    """Number of experts that a token runs."""
    router: RouterConfig = LinearRouterConfig()
    """What scores the experts for a token."""
    gate: GateConfig = GateConfig()
    """How experts are chosen by their scores, and weighted."""
    expert_init: ExpertInit = "model"
    """model: as `model.init` says, expert by expert. fan_in: U(-1 / fan_in, 1 / fan_in) (SUT)."""

    @property
    def has_router(self) -> bool:
        """False where there is nothing to choose."""
        return self.n_experts > 1

    @property
    def is_renormalised(self) -> bool:
        """Whether the chosen gates of a softmax are divided by their sum."""
        return self.top_k > 1 if self.gate.renormalise is None else self.gate.renormalise

    @property
    def router_width(self) -> int:
        """d_e of a hypersphere router with a projection."""
        width = self.router.d_router if isinstance(self.router, HypersphereRouterConfig) else None
        return max(2, self.n_experts // 2) if width is None else width

    @property
    def temperature(self) -> float:
        """tau at the start: 1 for routers that have none."""
        if not isinstance(self.router, HypersphereRouterConfig):
            return 1.0
        return self.router.temperature or _TEMPERATURES[self.gate.kind]

    def problems(self, path: str = "") -> Iterator[Problem]:
        """More experts a token than there are, gates that give their router no gradient, and what is useless."""
        if not self.has_router:
            reason = f"has no effect, because with {path}n_experts=1 nothing is chosen: remove it"
            yield from inert(self.gate, f"{path}gate.", reason)
            if not isinstance(self.router, LinearRouterConfig):
                yield Inert(f"{path}router", self.router.kind, reason)
        elif self.gate.renormalise is not None and self.gate.kind != "softmax":
            reason = f"has no effect with {path}gate.kind={self.gate.kind}: remove it"
            yield Inert(f"{path}gate.renormalise", self.gate.renormalise, reason)
        if self.top_k > self.n_experts:
            yield Problem(f"{path}top_k", self.top_k, f"must be at most {path}n_experts = {self.n_experts}")
        if self.gate.n_sampled > self.top_k:
            yield Problem(f"{path}gate.n_sampled", self.gate.n_sampled, f"must be at most {path}top_k = {self.top_k}")
        is_constant = self.gate.kind == "topk_softmax" or (self.gate.kind == "softmax" and self.is_renormalised)
        if self.top_k == 1 and self.has_router and is_constant:
            key = "gate.kind" if self.gate.kind == "topk_softmax" else "gate.renormalise"
            value = self.gate.kind if self.gate.kind == "topk_softmax" else self.gate.renormalise
            reason = (
                f"one expert of {self.n_experts}, renormalised, always has gate 1, and its router would get no "
                f"gradient: use {path}top_k of at least 2, or a gate that is not renormalised"
            )
            yield Problem(f"{path}{key}", value, reason)


class ExpertFeedForwardConfig(SubLayerConfig, RoutedConfig):
    """Mixture of feed-forwards: sum over the chosen experts of gate_e f_e(x) (SUT, section 2.2: (E, k, D))."""

    kind: Literal["experts"] = "experts"
    d_ff: Size = 512
    """Hidden width of one expert."""
    activation: Activation = "relu"
    """Activation of the hidden layer."""
    bias: bool = True
    """Biases in the experts' matrices."""
    sum_bias: bool = False
    """A vector added to the sum of the experts' outputs (JetMoE)."""
    dropout: Probability = 0.0
    """Dropout of the experts' hidden layer."""

    @property
    def has_scores(self) -> bool:
        """Experts are scored where there is a choice."""
        return self.has_router


class ExpertAttentionConfig(AttentionConfig, RoutedConfig):
    """Mixture of multi-head attentions: keys and values are shared, an expert owns queries and outputs.

    SUT, section 2.3: (E, k, H, D, W), W being the stack's window. n_heads = 1 is Mixture of Attention heads.
    """

    kind: Literal["experts"] = "experts"  # type: ignore[assignment]
    n_heads: Number = 4
    """Heads of one expert: a token runs top_k times as many, on these keys and values."""
    bias: bool | Literal["qkv", "qk"] = False
    """Biases in the four projections, or in some of them."""
    sum_bias: bool = False
    """A vector added to the sum of the experts' outputs (JetMoE)."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """What only dense attention has."""
        yield from super().problems(path)
        if self.output_gate:
            yield Problem(f"{path}output_gate", True, f"experts have gates of their own: needs {path}kind=dense")
        if self.bias == "qk":
            reason = f"experts have biases everywhere (true), or not in their outputs (qkv): needs {path}kind=dense"
            yield Problem(f"{path}bias", self.bias, reason)


class HeadExpertAttentionConfig(AttentionConfig, RoutedConfig):
    """Attention whose heads have experts of values and of outputs; queries and keys are dense (SwitchHead, MoEUT).

    Of every head a token runs top_k of n_experts for its value, and top_k others for its output.
    """

    kind: Literal["head_experts"] = "head_experts"  # type: ignore[assignment]
    n_experts: Annotated[int, Field(ge=2, le=MOST)] = 8
    """E of every head, for values, and as many for outputs."""
    gate: GateConfig = GateConfig(kind="sigmoid")
    """How experts are chosen by their scores, and weighted."""
    bias: Literal[False] = False
    """There are none."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """What only dense attention has."""
        yield from super().problems(path)
        if self.output_gate:
            yield Problem(f"{path}output_gate", True, f"experts have gates of their own: needs {path}kind=dense")


class SparseLayerConfig(RoutedConfig):
    """A layer of its own between two steps, without attention: every expert a stack of feed-forward sub-layers.

        x_i = x_{i-1} + f_i(norm_i(x_{i-1})),   i = 1 .. n_layers, x_0 = x;   h' = h + gate_e (x_n - x)

    X-MoE, section 3 (after BASE layers). The second projection of every sub-layer starts at zero.
    """

    after: Size = 6
    """The step it follows."""
    n_experts: Number = 32
    """E. With one expert there is no router: it always runs, with gate 1."""
    top_k: Number = 1
    """Number of experts that a token runs."""
    n_layers: Number = 3
    """Feed-forward sub-layers in an expert."""
    d_ff: Size = 2048
    """Hidden width of every sub-layer of an expert."""
    activation: Activation = "relu"
    """Activation of the hidden layers."""
    bias: bool = True
    """Biases in the experts' matrices."""
    dropout: Probability = 0.0
    """Dropout of the hidden layers."""
