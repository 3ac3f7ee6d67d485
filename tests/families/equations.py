"""Plain twins of looped models, written from the published equations.

A twin reads a model's parameters by name and knows nothing else of the library: no plan, no cache, no fused attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
    return x if weight is None else weight * x


def turned(x_BHTK: Tensor, base: float, *, pairs: bool) -> Tensor:
    """Rotate component pairs by position: neighbours, or one of each half."""
    T, K = x_BHTK.shape[2:]
    angles = torch.arange(T)[:, None] * base ** (-torch.arange(0, K, 2, dtype=x_BHTK.dtype) / K)
    cos, sin = angles.cos(), angles.sin()
    a, b = (x_BHTK[..., 0::2], x_BHTK[..., 1::2]) if pairs else (x_BHTK[..., : K // 2], x_BHTK[..., K // 2 :])
    a, b = a * cos - b * sin, a * sin + b * cos
    return torch.stack([a, b], -1).flatten(-2) if pairs else torch.cat([a, b], -1)


def attend(
    x: Tensor,
    w: Weights,
    i: int,
    n_heads: int,
    n_keys: int,
    change: Callable[[Tensor], Tensor] = lambda x: x,
    stack: str = "decoder",
    valued: Callable[[Tensor, Tensor], Tensor] = lambda v, x: v,
    earlier: list[tuple[Tensor, Tensor]] | None = None,
    *,
    is_causal: bool | None = None,
) -> Tensor:
    """Attention.

    Args:
        change: what is done to queries and keys. valued: what is done to values, given x.
        earlier: keys and values of earlier rounds, which it sees, too, and adds its own to.
        is_causal: None: in decoders.
    """
    B, T, _ = x.shape
    name = f"banks.self_attention.{stack}_{i}"
    out = w[f"{name}.out.weight"]
    K = out.shape[1] // n_heads
    qkv = x @ w[f"{name}.qkv.weight"].T
    if f"{name}.qkv.bias" in w:
        qkv = qkv + w[f"{name}.qkv.bias"]
    if f"{name}.qk_bias" in w:
        qkv = qkv + F.pad(w[f"{name}.qk_bias"], (0, n_keys * K))
    q, k, v = qkv.split([n_heads * K, n_keys * K, n_keys * K], -1)
    q, k, v = (y.view(B, T, -1, K).transpose(1, 2) for y in (q, k, v))
    q, k, v = change(q), change(k), valued(v, x)
    k, v = (y.repeat_interleave(n_heads // n_keys, 1) for y in (k, v))
    later = torch.ones(T, T).triu(1).bool()
    if earlier is not None:
        earlier.append((k, v))
        k, v = (torch.cat(sets, 2) for sets in zip(*earlier, strict=True))
        later = later.repeat(1, len(earlier))
    scores = q @ k.transpose(-1, -2) / math.sqrt(K)
    if stack == "decoder" if is_causal is None else is_causal:
        scores = scores.masked_fill(later, -math.inf)
    read = (scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1)
    if f"{name}.output_gate.weight" in w:
        read = read * torch.sigmoid(x @ w[f"{name}.output_gate.weight"].T)
    read = read @ out.T
    return read + w[f"{name}.out.bias"] if f"{name}.out.bias" in w else read


def feed(x: Tensor, w: Weights, i: int, kind: str, stack: str = "decoder") -> Tensor:
    up, down = w[f"banks.ffn.{stack}_{i}.up.weight"], w[f"banks.ffn.{stack}_{i}.down.weight"]
    if kind == "swiglu":
        gate, linear = (x @ up.T).chunk(2, -1)
        return (gate * torch.sigmoid(gate) * linear) @ down.T
    if kind == "relu2":
        return (x @ up.T).clamp_min(0).square() @ down.T
    none = torch.zeros(())
    approximate = "tanh" if kind == "gelu_tanh" else "none"
    hidden = F.gelu(x @ up.T + w.get(f"banks.ffn.{stack}_{i}.up.bias", none), approximate=approximate)
    return hidden @ down.T + w.get(f"banks.ffn.{stack}_{i}.down.bias", none)


def norm_of(w: Weights, name: str, i: int, eps: float) -> Callable[[Tensor], Tensor]:
    return lambda x: rms(x, w[f"banks.norm.{name}_decoder_{i}.weight"], eps)


def ouro(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """h_{t+1} = N_f(L_N(...L_1(h_t))), of branches N2(Attn(N1 x)); section 2.3."""
    eps = 1e-6

    def layer(x: Tensor, i: int) -> Tensor:
        turn = lambda y: turned(y, 1_000_000.0, pairs=False)  # noqa: E731
        for name, part in (
            ("self_attention", lambda y: attend(y, w, i, 4, 4, turn)),
            ("ffn", lambda y: feed(y, w, i, "swiglu")),
        ):
            before, behind = (w[f"banks.norm.{name}_decoder_{i}{end}.weight"] for end in ("", "_output"))
            x = x + rms(part(rms(x, before, eps)), behind, eps)
        return x

    h = F.embedding(ids, w["target_weight"])
    for _ in range(rounds):
        h = rms(layer(layer(h, 0), 1), w["banks.norm.round_decoder_0.weight"], eps)
    return h @ w["output_weight"].T


def huginn(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """h_0 = 0, h = C(W [h ; e]), one norm behind the last round and behind the coda; in layers a = N2(x + Attn(N1 x));
    section 2.1."""
    eps = 1e-6

    def layer(x: Tensor, i: int) -> Tensor:
        turn = lambda y: turned(y, 50_000.0, pairs=True)  # noqa: E731
        for name, part in (
            ("self_attention", lambda y: attend(y, w, i, 4, 4, turn)),
            ("ffn", lambda y: feed(y, w, i, "swiglu")),
        ):
            before, behind = (w[f"banks.norm.{name}_decoder_{i}{end}.weight"] for end in ("", "_after"))
            x = rms(x + part(rms(x, before, eps)), behind, eps)
        return x

    e = layer(math.sqrt(32) * F.embedding(ids, w["target_weight"]), 0)
    adapter = torch.cat([w[f"banks.injection.decoder_1.{part}.weight"] for part in ("state", "input")], 1)
    h = torch.zeros_like(e)
    for _ in range(rounds):
        h = layer(layer(torch.cat([h, e], -1) @ adapter.T, 1), 2)
    final = w["banks.norm.final_decoder.weight"]
    return rms(layer(rms(h, final, eps), 3), final, eps) @ w["target_weight"].T


def loopformer(w: Weights, ids: Tensor, rounds: int, path: tuple[float, ...] = ()) -> Tensor:
    """x += g Attn(rms(x) (1 + s)), g and s made of the time before a round and its length; section 2.6.

    Args:
        path: the lengths of the rounds; else they are equal.
    """
    eps = 1.1920929e-07

    def embedded(time: float, name: str) -> Tensor:
        """Return 256 sinusoids, cosines first, through two maps."""
        angles = time * 10_000.0 ** (-torch.arange(128, dtype=w["target_weight"].dtype) / 128)
        x = torch.cat([angles.cos(), angles.sin()])
        for number in (0, 1):
            at = f"banks.time.decoder_0.{name}.{number}"
            x = (x if number == 0 else F.silu(x)) @ w[f"{at}.weight"].T + w[f"{at}.bias"]
        return x

    x = F.embedding(ids, w["target_weight"]) + w["banks.positions.decoder.weight"][: ids.shape[1]]
    lengths, before = path or rounds * (1 / rounds,), 0.0
    for length in lengths:
        c = F.silu(embedded(before, "before") + embedded(length, "step"))
        for i in (0, 1):
            for name in ("self_attention", "ffn"):
                at = f"banks.modulation.{name}_decoder_step_{i}.map"
                gate, scale = (c @ w[f"{at}.weight"].T + w[f"{at}.bias"]).chunk(2)
                n = rms(x, None, eps) * (1 + scale)
                x = x + gate * (attend(n, w, i, 4, 4) if name == "self_attention" else feed(n, w, i, "gelu"))
        before += length
    return rms(x, w["banks.norm.final_decoder.weight"], eps) @ w["target_weight"].T


def trm(w: Weights, ids: Tensor, rounds: int, *, is_cut: bool = False) -> Tensor:
    """Six times z_L = F(z_L + z_H + x), then z_H = F(z_H + z_L), the same two layers, norms behind the sums; section
    2.13.

    Args:
        is_cut: as published, the gradient goes through the last round only.
    """

    def net(x: Tensor) -> Tensor:
        turn = lambda y: turned(y, 10_000.0, pairs=False)  # noqa: E731
        for i in (0, 1):
            x = rms(x + attend(x, w, i, 2, 2, turn, "encoder"), None, 1e-5)
            x = rms(x + feed(x, w, i, "swiglu", "encoder"), None, 1e-5)
        return x

    x = math.sqrt(32) * F.embedding(ids, w["target_weight"])
    low, high = (w[f"banks.start.encoder_0.{i}.vector_D"].expand_as(x) for i in (0, 1))
    for r in range(rounds):
        if is_cut and r == rounds - 1:
            low, high = low.detach(), high.detach()
        for _ in range(6):
            low = net(low + high + x)
        high = net(high + low)
    return high @ w["head.weight"].T + w["head.bias"]


def parcae(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """e = N_p(P(E)), u = a h + b (B e), h = C(u); N_f(Q(W_C h)), values by token in every other layer; 2.4."""
    eps = 1e-5

    def valued(v_BHTK: Tensor, n: Tensor, i: int) -> Tensor:
        if not i % 2:
            return v_BHTK
        table, gate = (w[f"banks.values.decoder_{i // 2}.{name}"] for name in ("table_VJ", "gate.weight"))
        rows_BHTK = F.embedding(ids, table).unflatten(-1, (2, -1)).transpose(1, 2)
        return v_BHTK + 2 * torch.sigmoid(n @ gate.T).transpose(1, 2)[..., None] * rows_BHTK

    def layer(x: Tensor, i: int) -> Tensor:
        both = lambda y: rms(turned(y, 50_000.0, pairs=True), None, 1.1920929e-7)  # noqa: E731
        of_tokens = lambda v, n: valued(v, n, i)  # noqa: E731
        x = x + attend(norm_of(w, "self_attention", i, eps)(x), w, i, 2, 2, both, valued=of_tokens)
        return x + feed(norm_of(w, "ffn", i, eps)(x), w, i, "relu2")

    x = F.embedding(ids, w["target_weight"])
    for i in (0, 1):
        x = layer(x, i)
    e = rms(x, w["banks.norm.end_decoder_0.weight"], eps)
    inject = "banks.injection.decoder_1"
    b = torch.log1p(torch.exp(w[f"{inject}.step_D"]))
    a = torch.exp(-b * torch.exp(w[f"{inject}.rate_D"]))
    h = torch.zeros_like(e)
    for _ in range(rounds):
        h = a * h + b * (e @ w[f"{inject}.input.weight"].T)
        for i in (2, 3):
            h = layer(h, i)
    h = h @ w["banks.end_map.decoder_1.weight"].T
    for i in (4, 5):
        h = layer(h, i)
    return rms(h, w["banks.norm.final_decoder.weight"], eps) @ w["target_weight"].T


def retrofit(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """Huginn's scheme with plain pre-norm Llama layers; no norm between rounds or before the coda; section 2.2."""
    eps = 1e-5

    def layer(x: Tensor, i: int) -> Tensor:
        turn = lambda y: turned(y, 10_000.0, pairs=False)  # noqa: E731
        x = x + attend(norm_of(w, "self_attention", i, eps)(x), w, i, 4, 2, turn)
        return x + feed(norm_of(w, "ffn", i, eps)(x), w, i, "swiglu")

    e = layer(F.embedding(ids, w["target_weight"]), 0)
    adapter = torch.cat([w[f"banks.injection.decoder_1.{part}.weight"] for part in ("state", "input")], 1)
    h = torch.zeros_like(e)
    for _ in range(rounds):
        h = torch.cat([h, e], -1) @ adapter.T
        for i in (1, 2):
            h = layer(h, i)
    return rms(layer(h, 3), w["banks.norm.final_decoder.weight"], eps) @ w["output_weight"].T


def iso_depth(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """s_0 = e = P(N(E)), u = W [e ; s], s = N_r(C(u)); 15 tanh(z / 15); section 2.5."""
    eps = 1e-6

    def layer(x: Tensor, i: int) -> Tensor:
        both = lambda y: rms(turned(y, 10_000.0, pairs=False), None, eps)  # noqa: E731
        x = x + attend(norm_of(w, "self_attention", i, eps)(x), w, i, 2, 2, both)
        return x + feed(norm_of(w, "ffn", i, eps)(x), w, i, "relu2")

    e = layer(rms(F.embedding(ids, w["target_weight"]), w["banks.norm.embedding_decoder.weight"], eps), 0)
    adapter = torch.cat([w[f"banks.injection.decoder_1.{part}.weight"] for part in ("input", "state")], 1)
    s = e
    for _ in range(rounds):
        s = torch.cat([e, s], -1) @ adapter.T
        for i in (1, 2):
            s = layer(s, i)
        s = rms(s, w["banks.norm.round_decoder_1.weight"], eps)
    z = rms(layer(s, 3), w["banks.norm.final_decoder.weight"], eps) @ w["output_weight"].T
    return 15 * torch.tanh(z / 15)


def length(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """z_{t+1} = f(z_t + e), z_0 = 0, T(n) times for n words between two symbols, no positions; section 8 (Fan)."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"banks.norm.{name}.weight"], w[f"banks.norm.{name}.bias"], 1e-5)

    e = F.embedding(ids, w["target_weight"])
    z = torch.zeros_like(e)
    for _ in range(min(rounds, max(1, ids.shape[1] - 2))):
        z = z + e
        z = z + attend(norm(z, "self_attention_encoder_0"), w, 0, 4, 4, stack="encoder", is_causal=True)
        z = z + feed(norm(z, "ffn_encoder_0"), w, 0, "gelu", "encoder")
    return norm(z, "final_encoder") @ w["head.weight"].T + w["head.bias"]


def yang(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """z_{t+1} = LN(f(z_t + e + p)), z_0 = 0, learned positions p in every round; section 2.15."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"banks.norm.{name}.weight"], w[f"banks.norm.{name}.bias"], 1e-5)

    e, p = F.embedding(ids, w["target_weight"]), w["banks.positions.decoder.weight"][: ids.shape[1]]
    z = torch.zeros_like(e)
    for _ in range(rounds):
        z = z + e + p
        z = z + attend(norm(z, "self_attention_decoder_0"), w, 0, 4, 4)
        z = norm(z + feed(norm(z, "ffn_decoder_0"), w, 0, "gelu_tanh"), "round_decoder_0")
    return z @ w["output_weight"].T + w["output_bias"]


def cotformer(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """In repeat r a layer sees the keys and values of the same layer in repeats 1..r, turned alike; of LN-CoTFormer a
    repeat has a vector before it and a norm behind it; section 2.11."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"banks.norm.{name}.weight"], None, 1e-5)

    def layer(x: Tensor, i: int, earlier: list[tuple[Tensor, Tensor]]) -> Tensor:
        turn = lambda y: turned(y, 10_000.0, pairs=False)  # noqa: E731
        x = x + attend(norm(x, f"self_attention_decoder_{i}"), w, i, 4, 4, turn, earlier=earlier)
        return x + feed(norm(x, f"ffn_decoder_{i}"), w, i, "gelu")

    h = layer(F.embedding(ids, w["target_weight"]), 0, [])
    kept: dict[int, list[tuple[Tensor, Tensor]]] = {1: [], 2: []}
    vectors = w.get("banks.vectors.decoder_1.table_RD")
    for r in range(rounds):
        h = h if vectors is None else h + vectors[min(r, 2)]
        for i in kept:
            h = layer(h, i, kept[i])
        h = h if vectors is None else norm(h, "round_decoder_1")
    return norm(layer(h, 3, []), "final_decoder") @ w["target_weight"].T


def relaxed(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """W_l = W'_{l mod c} + B_l A_l on all seven matrices, norms by layer; rounds beyond the last have its own ones;
    section 2.10."""
    eps, d, H, K = 1e-6, 32, 4, 16

    def added(name: str, delta: str, heights: list[int]) -> Tensor:
        whole, parts, first = w[f"{name}.weight"], [], 0
        a, b = w[f"{delta}.a.weight"], w[f"{delta}.b_FR"]
        for i, height in enumerate(heights):
            parts.append(b[first : first + height] @ a[4 * i : 4 * (i + 1)])
            first += height
        return whole + torch.cat(parts)

    def layer(x: Tensor, i: int, r: int) -> Tensor:
        attention, ffn = f"banks.self_attention.decoder_{i}", f"banks.ffn.decoder_{i}"
        own = {
            f"{name}.{part}.weight": added(f"{name}.{part}", f"banks.delta.{kind}_decoder_step_{i}_round_{r}.{part}", n)
            for kind, name, part, n in (
                ("self_attention", attention, "qkv", [H * K, K, K]),
                ("self_attention", attention, "out", [d]),
                ("ffn", ffn, "up", [64, 64]),
                ("ffn", ffn, "down", [d]),
            )
        }
        norms = [1 + w[f"banks.norm.{kind}_decoder_{i}_round_{r}.weight"] for kind in ("self_attention", "ffn")]
        turn = lambda y: turned(y, 10_000.0, pairs=False)  # noqa: E731
        x = x + attend(rms(x, norms[0], eps), {**w, **own}, i, H, 1, turn)
        gate, linear = (rms(x, norms[1], eps) @ own[f"{ffn}.up.weight"].T).chunk(2, -1)
        return x + (F.gelu(gate, approximate="tanh") * linear) @ own[f"{ffn}.down.weight"].T

    h = F.embedding(ids, w["target_weight"]) * math.sqrt(d)
    for r in range(rounds):
        for i in (0, 1):
            h = layer(h, i, min(r, 2))
    return rms(h, 1 + w["banks.norm.final_decoder.weight"], eps) @ w["target_weight"].T


def hrm_text(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """z_H = 50 E: three times z_L = F(z_L + z_H), then z_H = G(z_H + z_L), a norm behind each; section 2.14."""

    def stack(x: Tensor, layers: tuple[int, ...]) -> Tensor:
        turn = lambda y: turned(y, 10_000.0, pairs=False)  # noqa: E731
        for i in layers:
            x = x + attend(rms(x, None, 1e-6), w, i, 4, 4, turn)
            x = x + feed(rms(x, None, 1e-6), w, i, "swiglu")
        return rms(x, None, 1e-6)

    high = 50 * F.embedding(ids, w["target_weight"])
    low = w["banks.start.decoder_0.0.vector_D"].expand_as(high)
    for _ in range(rounds):
        for _ in range(3):
            low = stack(low + high, (0, 1))
        high = stack(high + low, (2, 3))
    return high @ w["output_weight"].T


def hrm(w: Weights, ids: Tensor, rounds: int, *, is_cut: bool = False) -> Tensor:
    """Twice z_L = F(z_L + z_H + x), then z_H = G(z_H + z_L), one layer each, norms behind the sums; section 2.12.

    Args:
        is_cut: as published, the gradient goes through the last F and G only.
    """

    def layer(x: Tensor, i: int) -> Tensor:
        turn = lambda y: turned(y, 10_000.0, pairs=False)  # noqa: E731
        x = rms(x + attend(x, w, i, 2, 2, turn, "encoder"), None, 1e-5)
        return rms(x + feed(x, w, i, "swiglu", "encoder"), None, 1e-5)

    x = math.sqrt(32) * F.embedding(ids, w["target_weight"])
    low, high = (w[f"banks.start.encoder_0.{i}.vector_D"].expand_as(x) for i in (0, 1))
    for r in range(rounds):
        for repeat in range(2):
            if is_cut and (r, repeat) == (rounds - 1, 1):
                low, high = low.detach(), high.detach()
            low = layer(low + high + x, 0)
        high = layer(high + low, 1)
    return high @ w["head.weight"].T + w["head.bias"]


def moeut(w: Weights, ids: Tensor, rounds: int) -> Tensor:
    """y = x + Attn(LN x; x), y + FFN(LN y; y): scores of normed states, values and experts of states; section 2.7."""
    H, K, top_k = 2, 16, 2

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"banks.norm.{name}.weight"], w[f"banks.norm.{name}.bias"], 1e-5)

    def gates(scores: Tensor, k: int) -> Tensor:
        """sigmoid of the k largest scores of the last dimension, 0 of the others."""
        chosen = torch.zeros_like(scores).scatter(-1, scores.topk(k).indices, 1.0)
        return chosen * torch.sigmoid(scores)

    def turn(x_BHTK: Tensor) -> Tensor:
        """Half of the head, by half-split pairs inside it."""
        return torch.cat([turned(x_BHTK[..., : K // 2], 10_000.0, pairs=False), x_BHTK[..., K // 2 :]], -1)

    def switch_head(n: Tensor, x: Tensor, i: int) -> Tensor:
        name = f"banks.self_attention.decoder_{i}"
        B, T, D = x.shape
        q, k = ((n @ y.T).view(B, T, H, K).transpose(1, 2) for y in w[f"{name}.qk.weight"].chunk(2))
        g_v, g_o = (
            gates((n @ w[f"{name}.{router}.experts_ED"].T).view(B, T, H, -1), top_k)
            for router in ("value_router", "router")
        )
        v_maps, o_maps = w[f"{name}.value_EDK"].view(H, -1, D, K), w[f"{name}.out_EKD"].view(H, -1, K, D)
        v = torch.einsum("bthe,hedk,btd->bhtk", g_v, v_maps, x)
        # Queries and keys are each scaled by K^(-1/4).
        scores = (turn(q) * K**-0.25) @ (turn(k) * K**-0.25).transpose(-1, -2)
        read = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf).softmax(-1) @ v
        return torch.einsum("bthe,hekd,bhtk->btd", g_o, o_maps, read)

    def sigma_moe(n: Tensor, x: Tensor, i: int) -> Tensor:
        name = f"banks.ffn.decoder_{i}"
        g = gates(n @ w[f"{name}.router.experts_ED"].T, 3)
        hidden = torch.einsum("edf,btd->btef", w[f"{name}.experts.up_EDF"], x).clamp_min(0)
        return torch.einsum("bte,efd,btef->btd", g, w[f"{name}.experts.down_EFD"], hidden)

    x = F.embedding(ids, w["target_weight"])
    for _ in range(rounds):
        for i in (0, 1):
            x = x + switch_head(norm(x, f"self_attention_decoder_{i}"), x, i)
            x = x + sigma_moe(norm(x, f"ffn_decoder_{i}"), x, i)
    return norm(x, "final_decoder") @ w["output_weight"].T + w["output_bias"]
