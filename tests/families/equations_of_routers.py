"""Plain twins of models in which a router chooses the tokens of a round, written from the published equations.

A twin takes the chosen tokens of one sentence out, in order, runs the layers on them alone, and puts them back. In
training those with the highest scores are chosen, outside training all whose score is high enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from equations import Weights, feed, rms
from torch import Tensor

Kept = list[tuple[Tensor, Tensor, Tensor]]


class FirstKept(Kept):
    """Only what is added first, which everybody then reads."""

    def append(self, one: tuple[Tensor, Tensor, Tensor]) -> None:
        if not self:
            super().append(one)


Layer = Callable[[Tensor, Tensor, int, Kept], Tensor]


def turned_at(x_HNK: Tensor, at_N: Tensor) -> Tensor:
    """Rotate halves by the tokens' own positions."""
    K = x_HNK.shape[2]
    angles = at_N[:, None] * 10_000.0 ** (-torch.arange(0, K, 2, dtype=x_HNK.dtype) / K)
    a, b = x_HNK.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


def attend(x_ND: Tensor, at_N: Tensor, w: Weights, i: int, n_heads: int, n_keys: int, kept: Kept) -> Tensor:
    """Attention of tokens at these positions to each other and to what is kept; keys and values are added to that."""
    name = f"banks.self_attention.decoder_{i}"
    out, qkv = w[f"{name}.out.weight"], x_ND @ w[f"{name}.qkv.weight"].T + w.get(f"{name}.qkv.bias", torch.zeros(()))
    K = out.shape[1] // n_heads
    q, k, v = (y.view(len(x_ND), -1, K).transpose(0, 1) for y in qkv.split([n_heads * K, n_keys * K, n_keys * K], -1))
    kept.append((turned_at(k, at_N), v, at_N))
    keys, values, places = (torch.cat(one, dim) for one, dim in zip(zip(*kept, strict=True), (1, 1, 0), strict=True))
    keys, values = (y.repeat_interleave(n_heads // n_keys, 0) for y in (keys, values))
    scores = turned_at(q, at_N) @ keys.transpose(-1, -2) / math.sqrt(K)
    weights = scores.masked_fill(places[None, :] > at_N[:, None], -math.inf).softmax(-1)
    read = (weights @ values).transpose(0, 1).flatten(1) @ out.T
    return read + w.get(f"{name}.out.bias", torch.zeros(()))


def choose(scores_N: Tensor, n_tokens: int, capacity: float, *, trains: bool) -> Tensor:
    """Which of the scores are chosen, in order."""
    if capacity == 1:
        return torch.arange(len(scores_N))
    if trains:
        return scores_N.topk(min(len(scores_N), max(1, math.floor(capacity * n_tokens + 1e-9)))).indices.sort().values
    return (torch.sigmoid(scores_N) >= 0.5).nonzero().squeeze(1)


def cost(scores_N: Tensor, chosen: Tensor) -> Tensor:
    """Binary cross-entropy of the scores and who was chosen, summed."""
    target = torch.zeros_like(scores_N)
    target[chosen] = 1
    return F.binary_cross_entropy_with_logits(scores_N, target, reduction="sum")


def of_batch(
    one: Callable[[Weights, Tensor, int, bool], tuple[Tensor, Tensor]],
) -> Callable[..., tuple[Tensor, Tensor]]:
    """Return the equations of a batch of sentences as long as each other: logits, and the mean cost of a token."""

    def equations(w: Weights, ids_BT: Tensor, rounds: int, *, trains: bool = False) -> tuple[Tensor, Tensor]:
        rows = [one(w, ids, rounds, trains) for ids in ids_BT]
        return torch.stack([logits for logits, _ in rows]), torch.stack(
            [total for _, total in rows]
        ).sum() / ids_BT.numel()

    return equations


def llama(w: Weights) -> Layer:
    def layer(x: Tensor, at: Tensor, i: int, kept: Kept) -> Tensor:
        x = x + attend(rms(x, w[f"banks.norm.self_attention_decoder_{i}.weight"], 1e-5), at, w, i, 4, 2, kept)
        return x + feed(rms(x, w[f"banks.norm.ffn_decoder_{i}.weight"], 1e-5), w, i, "swiglu")

    return layer


def _mor(w: Weights, ids: Tensor, rounds: int, trains: bool, *, shares_keys: bool) -> tuple[Tensor, Tensor]:
    """h_t <- h_t + 0.1 sigmoid(s_t) C(h of the chosen)_t, chosen among those chosen before; section 2.8.

    Args:
        shares_keys: the chosen read keys and values of all tokens before them in the first round, in which all take
            part ("recursive sharing"); else those of the tokens chosen with them.
    """
    layer, routers, at = llama(w), w["banks.halting.decoder.weight_RD"], torch.arange(len(ids))
    h, left, total = layer(F.embedding(ids, w["target_weight"]), at, 0, []), at, torch.zeros(())
    shared = FirstKept(), FirstKept()
    for r in range(rounds):
        s = h[left] @ routers[min(r, len(routers) - 1)]
        chosen = choose(s, len(ids), (rounds - r) / rounds, trains=trains)
        total = total + (cost(s, chosen) if r else 0)
        left, g = left[chosen], 0.1 * torch.sigmoid(s[chosen])
        if not len(left):
            break
        first, second = shared if shares_keys else ([], [])
        c = layer(layer(h[left], left, 1, first), left, 2, second)
        h = h.index_copy(0, left, h[left] + g[:, None] * c)
    return rms(layer(h, at, 3, []), w["banks.norm.final_decoder.weight"], 1e-5) @ w["target_weight"].T, total


mor, mor_sharing = (of_batch(partial(_mor, shares_keys=shares_keys)) for shares_keys in (False, True))


@of_batch
def mor_by_token(w: Weights, ids: Tensor, rounds: int, trains: bool) -> tuple[Tensor, Tensor]:
    """T = argmax p, p = softmax(W h_0): h_0 + p_T h_T; section 2.8. The cost: R sum f P + 0.001 (log sum exp s)^2."""
    layer, routers, at = llama(w), w["banks.halting.decoder.weight_RD"], torch.arange(len(ids))
    h = first = layer(F.embedding(ids, w["target_weight"]), at, 0, [])
    scores = first @ routers[:rounds].T
    p, n = scores.softmax(-1), min(rounds, len(routers))
    last = p.argmax(-1)
    shares = torch.stack([(last == r).to(p.dtype).mean() for r in range(n)])
    total = len(ids) * n * (shares * p.mean(0)).sum() + 0.001 * scores.exp().sum(-1).log().square().sum()
    for r in range(n):
        left = (last >= r).nonzero().squeeze(1)
        if len(left):
            c = layer(layer(h[left], left, 1, []), left, 2, [])
            ended = (first + p[:, r : r + 1] * h.index_copy(0, left, c))[left]
            h = h.index_copy(0, left, torch.where((last[left] == r)[:, None], ended, c))
    return rms(layer(h, at, 3, []), w["banks.norm.final_decoder.weight"], 1e-5) @ w["target_weight"].T, total


@of_batch
def mod(w: Weights, ids: Tensor, rounds: int, trains: bool) -> tuple[Tensor, Tensor]:
    """Every other layer: x_t <- x_t + s_t f(x of the chosen)_t, an eighth of all tokens; section 2.9."""
    layer, routers, at = llama(w), w["banks.halting.decoder.weight_RD"], torch.arange(len(ids))
    x, total = F.embedding(ids, w["target_weight"]), torch.zeros(())
    for i in range(4):
        if i % 2 == 0:
            x = layer(x, at, i, [])
            continue
        s = x @ routers[i // 2]
        chosen = choose(s, len(ids), 0.125, trains=trains)
        total = total + cost(s, chosen)
        if len(chosen):
            f = layer(x[chosen], chosen, i, []) - x[chosen]
            x = x.index_copy(0, chosen, x[chosen] + s[chosen][:, None] * f)
    return rms(x, w["banks.norm.final_decoder.weight"], 1e-5) @ w["target_weight"].T, total


@of_batch
def cotformer(w: Weights, ids: Tensor, rounds: int, trains: bool) -> tuple[Tensor, Tensor]:
    """x <- (1 - g) x + g LN(C(x + v_r)) for the chosen of those chosen before; dropped tokens' keys stay; section
    2.11."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"banks.norm.{name}.weight"], None, 1e-5)

    def layer(x: Tensor, at: Tensor, i: int, kept: Kept) -> Tensor:
        x = x + attend(norm(x, f"self_attention_decoder_{i}"), at, w, i, 4, 4, kept)
        return x + feed(norm(x, f"ffn_decoder_{i}"), w, i, "gelu")

    routers, at = w["banks.halting.decoder.weight_RD"], torch.arange(len(ids))
    vectors = w["banks.vectors.decoder_1.table_RD"]
    h, left, total = layer(F.embedding(ids, w["target_weight"]), at, 0, []), at, torch.zeros(())
    first: Kept = []
    second: Kept = []
    number = 0
    for r in range(rounds):
        g = torch.ones(len(left), dtype=h.dtype)
        if capacity := (None, 0.7, 0.4)[r % 3]:
            s = h[left] @ routers[min(number, len(routers) - 1)]
            number += 1
            chosen = choose(s, len(ids), capacity, trains=trains)
            total = total + cost(s, chosen)
            left, g = left[chosen], torch.sigmoid(s[chosen])
        if not len(left):
            break
        c = layer(layer(h[left] + vectors[min(r, 2)], left, 1, first), left, 2, second)
        c = norm(c, "round_decoder_1")
        h = h.index_copy(0, left, (1 - g[:, None]) * h[left] + g[:, None] * c)
    return norm(layer(h, at, 3, []), "final_decoder") @ w["target_weight"].T, total
