"""What single tokens give in one sub-layer: feed-forwards, convolutions and attention, one head at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    HeadExpertAttentionConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.positions import (
    AlibiConfig,
    BucketsConfig,
    LinearScalingConfig,
    Llama3ScalingConfig,
    RotaryConfig,
    WindowConfig,
)
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig
from ostinato.models import Encoder, LanguageModel, Seq2Seq
from ostinato.plan import Use
from reference.by_round import experts_with_added, with_added
from reference.equations import (
    ACTIVATIONS,
    alibi_slope,
    bucket,
    depth_wise,
    llama3_frequency,
    relu,
    rms_norm,
    rotate,
    softmax,
    window_entry,
)
from reference.experts import (
    choose,
    output_of_heads,
    read_expert_heads,
    run_maps,
    run_stack,
    value_of_head,
    weighted,
)
from reference.weights import Heads, of_token, read_affine, read_heads

States = list[Tensor]
Column = tuple[Tensor, Tensor] | None
"""What a column's key and its value are made of; None where it is hidden."""
Model = Seq2Seq | LanguageModel | Encoder


class SubLayers:
    """The sub-layers of one stack."""

    def __init__(
        self, model: Model, name: str, ids: Sequence[int], *, is_causal: bool, n_prefix: int | None = None
    ) -> None:
        self._model, self._name, self._is_causal, self._n_prefix = model, name, is_causal, n_prefix
        self._ids = ids
        separator = getattr(model.config, "source_separator_id", None) if name == "encoder" else None
        # By column how many texts have ended before it: a separator belongs to the text that it ends.
        self._texts = [sum(one == separator for one in ids[:t]) for t in range(len(ids))]
        self._read_by_others: dict[int, tuple[list[Column], Use]] = {}
        self._made_by: list[Use] = []
        self._made: dict[object, Any] = {}
        self._time: Tensor | None = None
        self._config: StackConfig = model.config.stacks()[name]

    def _kept(self, key: object, make: Callable[..., Any], *given: Any) -> Any:
        """Return what a use makes of its weights, or of a column: once for all the tokens that read it."""
        if key not in self._made:
            self._made[key] = make(*given)
        return self._made[key]

    def _weights(self, use: Use) -> Any:
        """Return the parameter set of a use; where its round adds to it, its maps W + B A."""
        return self._kept(("weights", use), self._make_weights, use)

    def _make_weights(self, use: Use) -> Any:
        module: Any = getattr(self._model.banks, use.kind)[use.weights]
        if use.delta is None:
            return module
        sub, d_model = self._config.settings_of(use), self._model.config.d_model
        is_cross, deltas = use.kind == "cross_attention", self._model.banks.delta[use.delta]
        if isinstance(sub, AttentionConfig):
            width = sub.d_head or d_model // sub.n_heads
            queries, keys = sub.n_heads * width, [] if is_cross else [(sub.n_kv_heads or sub.n_heads) * width] * 2
            if isinstance(sub, ExpertAttentionConfig):
                heights = {"query": [queries], "out": [d_model]} | ({"kv": keys} if keys else {})
            else:
                heights = {"qkv": [queries, *keys], "out": [d_model]}
            heights |= {"output_gate": [queries]} if sub.output_gate else {}
        else:
            assert isinstance(sub, DenseFeedForwardConfig | ExpertFeedForwardConfig)
            n = 2 if ACTIVATIONS[sub.activation][1] else 1
            heights = {"up": [sub.d_ff] * n, "down": [d_model]}
        assert heights.keys() == deltas.keys()
        return (experts_with_added if isinstance(sub, RoutedConfig) else with_added)(module, deltas, heights)

    def _feed_forward(self, use: Use, x_D: Tensor, scored_D: Tensor) -> Tensor:
        sub, module = self._config.settings_of(use), self._weights(use)
        if isinstance(sub, ExpertFeedForwardConfig):
            maps, act_name = module.experts, sub.activation
            y_D = weighted(choose(sub, module, scored_D), lambda e: run_maps(maps, e, act_name, x_D))  # type: ignore[arg-type]
            return y_D + module.sum_bias_D if sub.sum_bias else y_D  # type: ignore[operator]
        if isinstance(sub, SparseLayerConfig):
            act_name, eps = sub.activation, self._config.norm.eps
            return weighted(choose(sub, module, x_D), lambda e: run_stack(module, e, act_name, eps, x_D))
        assert isinstance(sub, DenseFeedForwardConfig)
        F = sub.d_ff
        down = read_affine(module.down)  # type: ignore[arg-type]
        act, is_gated = ACTIVATIONS[sub.activation]
        if is_gated:
            gate, linear = read_affine(module.up, 0, F), read_affine(module.up, F, 2 * F)  # type: ignore[arg-type]
            return down(act(gate(x_D)) * linear(x_D))
        return down(act(read_affine(module.up)(x_D)))  # type: ignore[arg-type]

    def _separable(self, use: Use, inputs: States, running: list[int]) -> States:
        """relu(W1 (depth-wise x) + b1), then W2 (depth-wise hidden) + b2: two convolutions over the sentence."""
        sub, module = self._config.settings_of(use), self._model.banks.ffn[use.weights]
        assert isinstance(sub, SeparableConvConfig)
        up, down = read_affine(module.up), read_affine(module.down)  # type: ignore[arg-type]
        taps_in, taps_out = module.taps_in_KD, module.taps_out_KF
        assert isinstance(taps_in, Tensor)
        assert isinstance(taps_out, Tensor)
        assert taps_in.shape[0] == sub.kernel_in
        assert taps_out.shape[0] == sub.kernel_out
        hidden = [relu(up(depth_wise(inputs, taps_in, t, self._is_causal))) for t in range(len(inputs))]
        return [down(depth_wise(hidden, taps_out, t, self._is_causal)) for t in running]

    def _attend(self, use: Use, t: int, inputs: States, others: Sequence[Column]) -> Tensor:
        """What token t reads: with experts the sum over the chosen ones of gate times what their heads read."""
        sub = self._config.settings_of(use)
        assert isinstance(sub, AttentionConfig)
        sizes = (sub.n_heads, sub.n_kv_heads or sub.n_heads, sub.d_head or self._model.config.d_model // sub.n_heads)
        module = self._weights(use)
        if isinstance(sub, HeadExpertAttentionConfig):
            return self._attend_by_heads(sub, use, t, inputs, others)
        makers = [self._weights(one) for one in (self._made_by if use.kind == "self_attention" else [use])]
        if not isinstance(sub, RoutedConfig):
            of_all = self._kept("heads", lambda: [read_heads(one, *sizes) for one in (module, *makers)])
            return self._read(of_all, use, t, inputs, others)

        def of_expert(e: int) -> Tensor:
            heads = self._kept(("heads", e), lambda: [read_expert_heads(one, e, *sizes) for one in (module, *makers)])
            return self._read(heads, use, t, inputs, others, expert=e)

        y_D = weighted(choose(sub, module, inputs[t]), of_expert)
        return y_D + module.sum_bias_D if isinstance(sub, ExpertAttentionConfig) and sub.sum_bias else y_D

    def _attend_by_heads(
        self, sub: HeadExpertAttentionConfig, use: Use, t: int, inputs: States, others: Sequence[Column]
    ) -> Tensor:
        """What token t reads where every head has experts of values and of outputs."""
        module = self._weights(use)
        K, n_groups = sub.head_width(self._model.config.d_model), sub.n_heads // sub.n_key_heads
        shown, T = self._shown(use, t, others)
        makers = [self._weights(one) for one in self._made_by]
        read = []
        first = sub.n_heads * K

        def column(of_keys: int, s: int) -> tuple[Tensor, Tensor]:
            (keyed, valued), maker = others[s], makers[s // T]  # type: ignore[misc]
            key = read_affine(maker.qk, first + of_keys * K, first + (of_keys + 1) * K)
            value = value_of_head(sub, maker, of_keys, keyed, valued)
            return self._placed(use, key(keyed), s % T, "k_norm"), value + self._of_token(use, of_keys, keyed, s, T)

        for head in range(sub.n_heads):
            query = read_affine(module.qk, head * K, (head + 1) * K)
            of = head // n_groups
            columns = {s: self._kept(("column", of, s), column, of, s) for s in shown}
            read.append(self._mixed(use, head, query(inputs[t]), t, columns, T))
        return output_of_heads(sub, module, inputs[t], read)

    def _mixed(
        self, use: Use, head: int, query: Tensor, t: int, columns: Mapping[int, tuple[Tensor, Tensor]], T: int
    ) -> Tensor:
        """sum_s softmax_s(q_t . k_s * scale + relation) v_s of one head, of keys and values by their column."""
        q_K = self._placed(use, query, t, "q_norm")
        weights = softmax([self._score(use, head, q_K, k_K, t, s % T) for s, (k_K, _) in columns.items()])
        parts = [w * v_K for w, (_, v_K) in zip(weights, columns.values(), strict=True)]
        return sum(parts[1:], parts[0])

    def _shown(self, use: Use, t: int, others: Sequence[Column]) -> tuple[dict[int, tuple[Tensor, Tensor]], int]:
        """Return the columns that token t sees by their place in all sets of keys that are read, and a set's number."""
        is_self = use.kind == "self_attention"
        # Of self-attention each set of keys that is read has all columns.
        T = len(others) // (len(self._at.keys) or 1) if is_self else len(others)
        shown = {s: x for s, x in enumerate(others) if x is not None}
        visible = [s for s in shown if not (is_self and self._is_causal) or s % T < self._n_seen(t)]
        if is_self:
            visible = [s for s in visible if self._texts[s % T] == self._texts[t]]
        if is_self and (reach := self._config.relative_of(use).reach) is not None:
            visible = [s for s in visible if abs(s % T - t) <= reach]
        return {s: shown[s] for s in visible}, T

    def _read(
        self, of_all: Sequence[Heads], use: Use, t: int, inputs: States, others: Sequence[Column], expert: int = 0
    ) -> Tensor:
        """concat over heads of sum_s softmax_s(q_t . k_s * scale + relation) v_s, gated, then the output projection.

        Args:
            of_all: heads of the use itself, and of every set of keys that is read what makes them.
        """
        shown, T = self._shown(use, t, others)
        heads, *makers = of_all
        n_groups, mixed = self._n_groups(use), []

        def column(head: int, s: int) -> tuple[Tensor, Tensor]:
            (keyed, valued), made_by = others[s], makers[s // T]  # type: ignore[misc]
            value = made_by.value[head](valued) + self._of_token(use, head // n_groups, keyed, s, T)
            return self._placed(use, made_by.key[head](keyed), s % T, "k_norm"), value

        for head, query in enumerate(heads.query):
            columns = {s: self._kept(("column", expert, head, s), column, head, s) for s in shown}
            mixed.append(self._mixed(use, head, query(inputs[t]), t, columns, T))
        read = torch.cat(mixed)
        gate = self._weights(use).output_gate
        return heads.out(read if gate is None else read * torch.sigmoid(read_affine(gate)(inputs[t])))

    def _n_groups(self, use: Use) -> int:
        sub = self._config.settings_of(use)
        assert isinstance(sub, AttentionConfig)
        return sub.n_heads // (sub.n_kv_heads or sub.n_heads)

    def _of_token(self, use: Use, head: int, keyed: Tensor, s: int, T: int) -> Tensor | float:
        """What the token of a column adds to its value of one head of keys."""
        table = self._made_by[s // T].values if use.kind == "self_attention" else None
        return 0.0 if table is None else of_token(self._model.banks.values[table], head, keyed, self._ids[s % T])

    def _n_seen(self, t: int) -> int:
        """Number of first tokens that token t of a causal stack sees: up to itself; from the prefix, all of that."""
        return self._n_prefix if self._n_prefix is not None and t < self._n_prefix else t + 1

    def _placed(self, use: Use, x_K: Tensor, position: int, norm: str) -> Tensor:
        """A query or a key with its norm, turned by its position, whichever comes first."""
        sub, relative = self._config.settings_of(use), self._config.relative_of(use)
        assert isinstance(sub, AttentionConfig)
        if sub.qk_norm != "none" and sub.qk_norm_at == "before":
            x_K = self._normed_head(use, x_K, norm)
        if isinstance(relative, RotaryConfig):
            x_K = self._turned(relative, x_K, position)
        if sub.qk_norm != "none" and sub.qk_norm_at == "after":
            x_K = self._normed_head(use, x_K, norm)
        return x_K

    def _score(self, use: Use, head: int, q_K: Tensor, k_K: Tensor, t: int, s: int) -> Tensor:
        """Score of key s for query t, both placed, with the relative positions of the use."""
        sub, relative = self._config.settings_of(use), self._config.relative_of(use)
        assert isinstance(sub, AttentionConfig)
        scale = 1 / math.sqrt(q_K.numel()) if sub.scale is None else sub.scale
        score = (q_K * k_K).sum() * scale
        if isinstance(relative, WindowConfig):
            table_HKR = self._model.banks.relative[use.position or ""].table_HKR
            entry = window_entry(t, s, relative.window)
            return score + (q_K * table_HKR[head, :, entry]).sum() * scale  # type: ignore[index]
        if isinstance(relative, BucketsConfig):
            table_RH = self._model.banks.relative[use.position or ""].table_RH
            looks_back_only = self._is_causal and self._n_prefix is None
            row = bucket(t, s, relative.n_buckets, relative.max_distance, looks_back_only)
            return score + table_RH[row, head]  # type: ignore[index]
        if isinstance(relative, AlibiConfig):
            return score - alibi_slope(head, sub.n_heads) * abs(s - t)
        return score

    def _normed_head(self, use: Use, x_K: Tensor, name: str) -> Tensor:
        module, sub = getattr(self._model.banks, use.kind)[use.weights], self._config.settings_of(use)
        eps = self._config.norm.eps if sub.qk_norm_eps is None else sub.qk_norm_eps  # type: ignore[union-attr]
        weight = getattr(module, name).weight
        return rms_norm(x_K, torch.ones_like(x_K) if weight is None else weight, eps)

    def _turned(self, c: RotaryConfig, x_K: Tensor, position: int) -> Tensor:
        n = round(c.fraction * x_K.numel())
        frequencies = [c.base ** (-2 * j / n) for j in range(n // 2)]
        if isinstance(c.scaling, LinearScalingConfig):
            frequencies = [f / c.scaling.factor for f in frequencies]
        if isinstance(c.scaling, Llama3ScalingConfig):
            bands = (c.scaling.factor, c.scaling.low, c.scaling.high, c.scaling.original_length)
            frequencies = [llama3_frequency(f, *bands) for f in frequencies]
        return rotate(x_K, position, frequencies, is_interleaved=c.layout == "interleaved")
