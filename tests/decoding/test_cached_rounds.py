"""Keys and values of some rounds only in cached decoding, against a plain twin that keeps what the last ones left."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.budget import count_bytes
from ostinato.config.model import LanguageModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError
from ostinato.models import Model, build_model
from ostinato.nn.cache import KeyValues

D, H, V, R = 8, 2, 11, 3


def model_of(**changes: Any) -> Model:
    """Return one layer, one that is repeated, and one more: without positions and biases, norms before."""
    loop = {"repeats": R, "n_steps": 1} | changes.pop("loop", {})
    stack = {"n_steps": 3, "segments": [{}, loop, {}], "norm": {"placement": "pre", "kind": "rms"}}
    stack |= {"self_attention": {"n_heads": H, "bias": False}, "ffn": {"d_ff": 12, "bias": False, "activation": "relu"}}
    stack |= {"positions": {"kind": "none"}} | changes
    settings = {"d_model": D, "vocab_size": V, "dropout": 0.0, "embedding_scale": False, "tie_embeddings": "output"}
    model = build_model(LanguageModelConfig.model_validate(settings | {"decoder": stack}))
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.4)
    return model.eval()


def rms(x_D: Tensor, weight_D: Tensor) -> Tensor:
    return weight_D * x_D / (x_D.square().mean() + 1e-5).sqrt()


Slots = dict[tuple[int, int], list[tuple[Tensor, Tensor]]]


def token_by_token(
    model: Model, ids: Tensor, n_prompt: int, n_kept: int, rule: str = "none", threshold: float = 1.0
) -> tuple[Tensor, list[int]]:
    """Return the logits of every token after a prompt that is read at once, and how many rounds each token ran.

    Round r of a token sees of earlier ones what their last round q with q = r (mod n_kept) left, and those of the
    prompt see each other's keys of the same round. In the rounds after it has stopped a token leaves the keys of the
    state it stopped with.
    """
    w = dict(model.named_parameters())
    left: Slots = {}
    logits, depths = [], []

    def run_layer(x_D: Tensor, i: int, keys: list[tuple[Tensor, Tensor]], *, only_keys: bool) -> Tensor:
        n_D = rms(x_D, w[f"banks.norm.self_attention_decoder_{i}.weight"])
        q, k, v = (w[f"banks.self_attention.decoder_{i}.qkv.weight"] @ n_D).view(3, H, D // H)
        keys.append((k, v))
        if only_keys:
            return x_D
        all_k, all_v = (torch.stack(one, 1) for one in zip(*keys, strict=True))
        read = torch.softmax((all_k @ q[:, :, None]).squeeze(-1) / math.sqrt(D // H), -1)
        x_D = x_D + w[f"banks.self_attention.decoder_{i}.out.weight"] @ (read[:, None] @ all_v).flatten()
        up, down = (w[f"banks.ffn.decoder_{i}.{name}.weight"] for name in ("up", "down"))
        return x_D + down @ (up @ rms(x_D, w[f"banks.norm.ffn_decoder_{i}.weight"])).clamp_min(0)

    def gate(x_D: Tensor) -> float:
        unit = "banks.halting.decoder.map"
        return float(torch.sigmoid(w[f"{unit}.weight"][0] @ x_D + w[f"{unit}.bias"][0]))

    of_prompt: Slots = {}
    for t, token in enumerate(ids.tolist()):
        x_D, mine = w["target_weight"][token], {}
        depth, total, mix_D, has_stopped = 0, 0.0, torch.zeros(D, dtype=x_D.dtype), False
        for place, (i, r) in enumerate([(0, 0), *((1, r) for r in range(R)), (2, 0)]):
            slot = (i, r % n_kept if i == 1 else 0)
            seen = of_prompt.setdefault((i, place), []) if t < n_prompt else list(left[slot])
            if i == 2 and rule == "act":
                x_D = mix_D
            before_D, x_D = x_D, run_layer(x_D, i, seen, only_keys=has_stopped and i == 1)
            mine[slot] = seen[-1]
            if i != 1 or has_stopped:
                continue
            depth += 1
            if rule == "change":
                has_stopped = bool(1 - (x_D - before_D).norm() / x_D.norm() >= threshold)
            elif rule == "exit":
                total += (1 - total) * gate(x_D)
                has_stopped = total >= threshold
            elif rule == "act":
                prob = gate(before_D)
                has_stopped = total + prob > threshold or r == R - 1
                weight = 1 - total if has_stopped else prob
                mix_D, total = mix_D + weight * x_D, total + weight
        for slot, key in mine.items():
            left.setdefault(slot, []).append(key)
        depths.append(depth)
        logits.append(w["target_weight"] @ rms(x_D, w["banks.norm.final_decoder.weight"]))
    return torch.stack(logits), depths


def decoded(model: Model, ids: Tensor, n_prompt: int, n_kept: int | None, **execution: Any) -> tuple[Tensor, Any]:
    """Return the logits of all tokens from the last one of the prompt on, and the cache."""
    keep = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad(), model.execution(cached_rounds=n_kept, **execution):
        cache = model.encode(Batch(Tokens(ids, keep), ids, keep))
        steps = [model.step(ids[:, :n_prompt], cache)]
        steps += [model.step(ids[:, t : t + 1], cache) for t in range(n_prompt, ids.shape[1])]
    return torch.stack(steps, 1), cache


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, V, (3, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("n_kept", [1, 2, 3])
@pytest.mark.parametrize("n_prompt", [1, 4])
def test_a_round_reads_what_the_last_rounds_of_its_slot_left(n_kept: int, n_prompt: int, ids: Tensor) -> None:
    model = model_of()
    found, _ = decoded(model, ids, n_prompt, n_kept)
    with torch.no_grad():
        wanted = torch.stack([token_by_token(model, row, n_prompt, n_kept)[0] for row in ids])[:, n_prompt - 1 :]
        whole = model(ids).logits_BTV[:, n_prompt - 1 :]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    # The prompt is read as in a whole pass; with a slot for every round, or more, all is.
    torch.testing.assert_close(found[:, 0], whole[:, 0], rtol=0, atol=1e-10)
    assert bool((found - whole).abs().max() > 1e-3) == (n_kept < R)


@pytest.mark.sampled
@pytest.mark.parametrize("n_kept", [1, 2])
@pytest.mark.parametrize("n_prompt", [1, 4])
@pytest.mark.parametrize(("rule", "threshold"), [("change", 0.2), ("exit", 0.7), ("act", 0.7)])
def test_a_token_that_has_stopped_leaves_the_keys_of_the_state_it_stopped_with(
    rule: str, threshold: float, n_prompt: int, n_kept: int, ids: Tensor
) -> None:
    model = model_of() if rule == "change" else model_of(halting={"kind": rule})
    with torch.no_grad():
        twins = [token_by_token(model, row, n_prompt, n_kept, rule, threshold) for row in ids]
    wanted = torch.stack([logits[n_prompt - 1 :] for logits, _ in twins])
    depths = {depth for _, some in twins for depth in some}
    assert depths == set(range(1, R + 1))  # tokens stop after every round
    stops: dict[str, Any] = {"exit": "change"} if rule == "change" else {}
    for compaction in ("always", "never"):
        execution = stops | {"halting_threshold": threshold, "compaction": compaction}
        found, _ = decoded(model, ids, n_prompt, n_kept, **execution)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_more_slots_than_rounds_change_nothing(ids: Tensor) -> None:
    model = model_of()
    torch.testing.assert_close(decoded(model, ids, 2, 7)[0], decoded(model, ids, 2, None)[0], rtol=0, atol=0)


@pytest.mark.parametrize("n_kept", [None, 1, 2, 5])
def test_the_cache_is_as_large_as_counted(n_kept: int | None, ids: Tensor) -> None:
    model = model_of()
    _, cache = decoded(model, ids, 4, n_kept)
    held = [vars(kv)["_kv_2BHSK"] for kv in cache.self_kv.values() if isinstance(kv, KeyValues)]
    assert len(held) == len(cache.self_kv) == 2 + min(R, n_kept or R)
    counted = count_bytes(model.config, 9, 9, batch_size=3, cached_rounds=n_kept).cache
    assert counted == sum(kv.numel() * 4 for kv in held)  # in float32


def test_beams_that_change_places_keep_their_keys(ids: Tensor) -> None:
    model, keep = model_of(), torch.ones_like(ids, dtype=torch.bool)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad(), model.execution(cached_rounds=2):
        cache = model.encode(Batch(Tokens(ids, keep), ids, keep))
        model.step(ids[:, :4], cache)
        cache.reorder(order)
        moved = torch.stack([model.step(ids[order, t : t + 1], cache) for t in range(4, 9)], 1)
    torch.testing.assert_close(moved, decoded(model, ids, 4, 2)[0][order, 1:], rtol=0, atol=1e-12)


def test_rounds_that_cannot_stand_for_each_other_are_refused(ids: Tensor) -> None:
    with pytest.raises(ConfigError, match=r"cached_rounds.*must be at least 1"):
        decoded(model_of(), ids, 1, 0)
    with pytest.raises(ConfigError, match=r"cached_rounds.*keys: all"):
        decoded(model_of(loop={"keys": "all"}), ids, 1, 2)
    with pytest.raises(ConfigError, match=r"cached_rounds.*rounds share all weights"):
        decoded(model_of(segments=[]), ids, 1, 2)
    with pytest.raises(ConfigError, match=r"cached_rounds.*the tokens of a round are chosen"):
        decoded(model_of(halting={"kind": "select"}), ids, 1, 2)


def test_a_setting_of_decoding_keeps_as_many_unless_a_call_says_otherwise(ids: Tensor) -> None:
    model, prompts = model_of(), ids[:, :4]
    whole = model.generate(prompts, max_length=8)
    with model.execution(cached_rounds=1):
        some = model.generate(prompts, max_length=8)
    assert some != whole
    assert model.generate(prompts, max_length=8, cached_rounds=1) == some
    with model.execution(cached_rounds=R):
        assert model.generate(prompts, max_length=8, cached_rounds=1) == whole
    with pytest.raises(ConfigError, match=r"cached_rounds is 2: .*rounds share all weights"):
        model_of(segments=[]).generate(prompts, max_length=8, cached_rounds=2)
