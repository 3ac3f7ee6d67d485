"""Plain twins of the models: one sentence, one token, one head at a time.

They read the same weights as the model they are twins of and are differentiable with respect to them. No masks, no
padding, no packing, no fused attention, no cache. Depth is followed step by step from the plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ostinato.config.model import (
    BucketsConfig,
    CoordinatesConfig,
    DenseFeedForwardConfig,
    RotaryConfig,
    SinusoidalConfig,
    StackConfig,
    WindowConfig,
)
from ostinato.models import LanguageModel, Seq2Seq
from ostinato.plan import Use
from reference.equations import (
    bucket,
    coordinate,
    gelu,
    layer_norm,
    relu,
    rms_norm,
    rotate,
    sinusoid,
    softmax,
    window_entry,
)
from reference.weights import read_affine, read_heads

States = list[Tensor]
Model = Seq2Seq | LanguageModel


def twin_seq2seq(
    model: Seq2Seq, source_ids: Sequence[int], target_ids: Sequence[int], n_steps: int | None = None
) -> Tensor:
    """Return the logits after every token of the target, `[T, V]`."""
    memory = _Twin(model, "encoder", is_causal=False).run(_embed(model, model.source_embedding, source_ids), n_steps)
    states = _Twin(model, "decoder", is_causal=True).run(
        _embed(model, model.target_embedding, target_ids), n_steps, memory
    )
    return _logits(model, states)


def twin_language_model(model: LanguageModel, ids: Sequence[int], n_steps: int | None = None) -> Tensor:
    """Return the logits after every token, `[T, V]`."""
    states = _Twin(model, "decoder", is_causal=True).run(_embed(model, model.target_embedding, ids), n_steps)
    return _logits(model, states)


def twin(model: Model, source: Sequence[int] | None, target: Sequence[int], n_steps: int | None = None) -> Tensor:
    """Return the logits of either kind of model."""
    if isinstance(model, Seq2Seq):
        assert source is not None
        return twin_seq2seq(model, source, target, n_steps)
    return twin_language_model(model, target, n_steps)


def _embed(model: Model, table_VD: Tensor, ids: Sequence[int]) -> States:
    scale = math.sqrt(model.config.d_model) if model.config.embedding_scale else 1.0
    return [table_VD[i] * scale for i in ids]


def _logits(model: Model, states: States) -> Tensor:
    return torch.stack([(model.output_projection * x_D).sum(-1) for x_D in states])


class _Twin:
    """One stack."""

    def __init__(self, model: Model, name: str, *, is_causal: bool) -> None:
        self._model, self._name, self._is_causal = model, name, is_causal
        self._config: StackConfig = model.config.stacks()[name]
        self._subs = dict(self._config.sub_layers())

    def run(self, states: States, n_steps: int | None, memory: States | None = None) -> States:
        """Apply all steps of the plan."""
        d_model, positions = self._model.config.d_model, self._config.positions
        plan = self._config.plan(self._name)
        plan = plan if n_steps is None else plan.with_rounds(n_steps)
        if isinstance(positions, SinusoidalConfig):
            states = [x + sinusoid(t, d_model) for t, x in enumerate(states)]
        last_round = -1
        for step in plan.steps:
            if isinstance(positions, CoordinatesConfig) and step.round != last_round:
                states = [x + coordinate(t + 1, step.round + 1, d_model) for t, x in enumerate(states)]
            last_round = step.round
            for use in step.uses:
                states = self._sub_layer(use, states, memory)
        if self._config.norm.placement == "pre":
            states = [self._norm(f"final_{self._name}", x) for x in states]
        return states

    def _sub_layer(self, use: Use, states: States, memory: States | None) -> States:
        """post: norm(x + f(x)); pre: x + f(norm(x))."""
        is_pre = self._config.norm.placement == "pre"
        inputs = [self._norm(use.norm, x) for x in states] if is_pre else states
        if use.kind == "ffn":
            outputs = [self._feed_forward(use, x) for x in inputs]
        elif use.kind == "self_attention":
            outputs = [self._attend(use, t, inputs, inputs) for t in range(len(inputs))]
        else:
            assert memory is not None
            outputs = [self._attend(use, t, inputs, memory) for t in range(len(inputs))]
        states = [x + y for x, y in zip(states, outputs, strict=True)]
        return states if is_pre else [self._norm(use.norm, x) for x in states]

    def _norm(self, name: str, x_D: Tensor) -> Tensor:
        module, eps = self._model.banks.norm[name], self._config.norm.eps
        weight = module.weight
        assert isinstance(weight, Tensor)
        if self._config.norm.kind == "rms":
            return rms_norm(x_D, weight, eps)
        return layer_norm(x_D, weight, module.bias, eps)  # type: ignore[arg-type]

    def _feed_forward(self, use: Use, x_D: Tensor) -> Tensor:
        sub, module = self._subs["ffn"], self._model.banks.ffn[use.weights]
        assert isinstance(sub, DenseFeedForwardConfig)
        F = sub.d_ff
        down = read_affine(module.down)  # type: ignore[arg-type]
        if sub.activation == "geglu":
            gate, linear = read_affine(module.up, 0, F), read_affine(module.up, F, 2 * F)  # type: ignore[arg-type]
            return down(gelu(gate(x_D)) * linear(x_D))
        act: Callable[[Tensor], Tensor] = relu if sub.activation == "relu" else gelu
        return down(act(read_affine(module.up)(x_D)))  # type: ignore[arg-type]

    def _attend(self, use: Use, t: int, inputs: States, others: States) -> Tensor:
        """concat over heads of sum_s softmax_s(q_t . k_s / sqrt(d_head) + relation) v_s, then the output projection."""
        sub = self._subs[use.kind]
        width = sub.d_head or self._model.config.d_model // sub.n_heads  # type: ignore[attr-defined]
        bank = getattr(self._model.banks, use.kind)
        heads = read_heads(bank[use.weights], sub.n_heads, width)  # type: ignore[attr-defined]
        is_self = use.kind == "self_attention"
        visible = range(t + 1) if is_self and self._is_causal else range(len(others))
        mixed = []
        for head in range(len(heads.query)):
            q = heads.query[head](inputs[t])
            scores = []
            for s in visible:
                k = heads.key[head](others[s])
                scores.append(self._score(use, head, q, k, t, s) if is_self else (q * k).sum() / math.sqrt(width))
            values = [heads.value[head](others[s]) for s in visible]
            weighted = [w * v for w, v in zip(softmax(scores), values, strict=True)]
            mixed.append(sum(weighted[1:], weighted[0]))
        return heads.out(torch.cat(mixed))

    def _score(self, use: Use, head: int, q_K: Tensor, k_K: Tensor, t: int, s: int) -> Tensor:
        """Score of key s for query t of self-attention, with the stack's relative positions."""
        relative, scale = self._config.relative, 1 / math.sqrt(q_K.numel())
        if isinstance(relative, RotaryConfig):
            return (rotate(q_K, t, relative.base) * rotate(k_K, s, relative.base)).sum() * scale
        score = (q_K * k_K).sum() * scale
        if isinstance(relative, WindowConfig):
            table_HKR = self._model.banks.relative[use.position or ""].table_HKR
            entry = window_entry(t, s, relative.window)
            return score + (q_K * table_HKR[head, :, entry]).sum() * scale  # type: ignore[index]
        if isinstance(relative, BucketsConfig):
            table_RH = self._model.banks.relative[use.position or ""].table_RH
            row = bucket(t, s, relative.n_buckets, relative.max_distance, self._is_causal)
            return score + table_RH[row, head]  # type: ignore[index]
        return score
