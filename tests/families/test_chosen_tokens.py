"""Models in which a router chooses the tokens of a round, against plain twins written from the published equations.

A twin takes the chosen tokens of one sentence out, in order, runs the layers on them alone, and puts them back. In
training those with the highest scores are chosen, outside training all whose score is high enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_twins import V, weights
from torch import Tensor
from twins import Weights, feed, rms

from ostinato.config.training import DepthCostConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError
from ostinato.models import Model, build_model
from ostinato.nn.execution import Execution
from ostinato.tasks.recipes import load_recipe

Kept = list[tuple[Tensor, Tensor, Tensor]]
Layer = Callable[[Tensor, Tensor, int, Kept], Tensor]
ADAPTIVE = "cotformer, adaptive"
BY_TOKEN = "mixture of recursions, token choice"


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


def llama(w: Weights) -> Layer:
    def layer(x: Tensor, at: Tensor, i: int, kept: Kept) -> Tensor:
        x = x + attend(rms(x, w[f"banks.norm.self_attention_decoder_{i}.weight"], 1e-5), at, w, i, 4, 2, kept)
        return x + feed(rms(x, w[f"banks.norm.ffn_decoder_{i}.weight"], 1e-5), w, i, "swiglu")

    return layer


def mor(w: Weights, ids: Tensor, rounds: int, trains: bool) -> tuple[Tensor, Tensor]:
    """h_t <- h_t + 0.1 sigmoid(s_t) C(h of the chosen)_t, chosen among those chosen before; section 2.8."""
    layer, routers, at = llama(w), w["banks.halting.decoder.weight_RD"], torch.arange(len(ids))
    h, left, total = layer(F.embedding(ids, w["target_weight"]), at, 0, []), at, torch.zeros(())
    for r in range(rounds):
        s = h[left] @ routers[min(r, len(routers) - 1)]
        chosen = choose(s, len(ids), (rounds - r) / rounds, trains=trains)
        total = total + (cost(s, chosen) if r else 0)
        left, g = left[chosen], 0.1 * torch.sigmoid(s[chosen])
        if not len(left):
            break
        c = layer(layer(h[left], left, 1, []), left, 2, [])
        h = h.index_copy(0, left, h[left] + g[:, None] * c)
    return rms(layer(h, at, 3, []), w["banks.norm.final_decoder.weight"], 1e-5) @ w["target_weight"].T, total


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


def cotformer(w: Weights, ids: Tensor, rounds: int, trains: bool) -> tuple[Tensor, Tensor]:
    """x <- (1 - g) x + g C(x) for the chosen of those chosen before; dropped tokens' keys stay; section 2.11."""

    def norm(x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], w[f"banks.norm.{name}.weight"], w[f"banks.norm.{name}.bias"], 1e-5)

    def layer(x: Tensor, at: Tensor, i: int, kept: Kept) -> Tensor:
        x = x + attend(norm(x, f"self_attention_decoder_{i}"), at, w, i, 4, 4, kept)
        return x + feed(norm(x, f"ffn_decoder_{i}"), w, i, "gelu")

    routers, at = w["banks.halting.decoder.weight_RD"], torch.arange(len(ids))
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
        c = layer(layer(h[left], left, 1, first), left, 2, second)
        h = h.index_copy(0, left, (1 - g[:, None]) * h[left] + g[:, None] * c)
    return norm(layer(h, at, 3, []), "final_decoder") @ w["target_weight"].T, total


BY_ROUTER = "model.decoder.halting={kind: select, capacities: [null, 0.7, 0.4], mix: interpolate}"
TWINS: dict[str, tuple[str, Sequence[str], Callable[..., tuple[Tensor, Tensor]]]] = {
    "mixture of recursions": ("looped/mor-toy", (), mor),
    BY_TOKEN: ("looped/mor-token-toy", (), mor_by_token),
    "mixture of depths": ("looped/mod-toy", (), mod),
    ADAPTIVE: ("looped/cotformer-toy", (BY_ROUTER, "training.halting.weight=0.001"), cotformer),
}
ROUNDS = [(name, n) for name in TWINS for n in ((4,) if name == "mixture of depths" else (1, 2, 4, 8))]
MODES = ["training", "evaluation"]


def model_of(name: str, mode: str, dtype: torch.dtype = torch.float64) -> Model:
    """Return a model with weights that hide nothing, and routers that choose some."""
    recipe, settings, _ = TWINS[name]
    model = build_model(load_recipe(recipe, ["model.dropout=0.0", f"model.vocab_size={V}", *settings]).model)
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return model.to(dtype).train(mode == "training")


def twin_of(name: str, model: Model, ids: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Return logits and the mean cost of a batch of sentences as long as each other."""
    rows = [TWINS[name][2](weights(model), one, rounds, model.training) for one in ids]
    return torch.stack([logits for logits, _ in rows]), sum(total for _, total in rows) / ids.numel()  # type: ignore[return-value]


def run(name: str, model: Model, ids: Tensor, rounds: int) -> Any:
    """Return the model's output; one whose layers differ has no other number of rounds."""
    return model(ids, n_steps=None if name == "mixture of depths" else rounds)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, V, (3, 12), generator=torch.Generator().manual_seed(1))


@pytest.mark.check("float64")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("name", "rounds"), ROUNDS)
def test_logits_and_costs_are_those_of_the_equations(
    name: str, rounds: int, mode: str, ids: Tensor, record_property: Any
) -> None:
    record_property("family", f"{name} (twin of the specification)")
    record_property("check", "float64")
    model = model_of(name, mode)
    expected, total = twin_of(name, model, ids, rounds)
    output = run(name, model, ids, rounds)
    torch.testing.assert_close(output.logits_BTV, expected, rtol=0, atol=1e-10)
    stack = output.stacks["decoder"]
    torch.testing.assert_close(stack.depth_cost, total.to(torch.float64), rtol=0, atol=1e-10)
    executed = stack.halting.executed_BTR.sum(-1)
    assert rounds == 1 or int(executed.min()) < int(executed.max()), "all tokens took part in as many rounds"
    single = model_of(name, mode, torch.float32)
    torch.testing.assert_close(run(name, single, ids, rounds).logits_BTV, expected.float(), rtol=0, atol=1e-5)


@pytest.mark.check("all gradients")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", TWINS)
def test_all_gradients_are_those_of_the_equations(name: str, mode: str, ids: Tensor, record_property: Any) -> None:
    record_property("family", f"{name} (twin of the specification)")
    record_property("check", "all gradients")
    model = model_of(name, mode)
    parameters = weights(model)
    expected, total = twin_of(name, model, ids, 4)
    wanted = torch.autograd.grad(
        expected.square().sum() + 100 * total, list(parameters.values()), allow_unused=True, materialize_grads=True
    )
    output = run(name, model, ids, 4)
    (output.logits_BTV.square().sum() + 100 * output.stacks["decoder"].depth_cost).backward()
    for (key, parameter), grad in zip(parameters.items(), wanted, strict=True):
        found, scale = parameter.grad, float(grad.abs().max()) or 1.0
        found = torch.zeros_like(parameter) if found is None else found
        torch.testing.assert_close(found / scale, grad / scale, rtol=0, atol=1e-4, msg=lambda m, n=key: f"{n}: {m}")
    assert float(wanted[list(parameters).index("banks.halting.decoder.weight_RD")].abs().max()) > 0


@pytest.mark.check("cached")
@pytest.mark.parametrize("name", TWINS)
def test_cached_steps_are_the_equations_of_everything_so_far(name: str, ids: Tensor, record_property: Any) -> None:
    record_property("family", f"{name} (twin of the specification)")
    record_property("check", "cached")
    model, keep = model_of(name, "evaluation"), torch.ones_like(ids, dtype=torch.bool)
    rounds = model.n_rounds()["decoder"]
    with torch.no_grad():
        cache = model.encode(Batch(Tokens(ids, keep), ids, keep))
        steps = torch.stack([model.step(ids[:, t : t + 1], cache) for t in range(ids.shape[1])], 1)
        torch.testing.assert_close(steps, twin_of(name, model, ids, rounds)[0], rtol=0, atol=1e-10)


@pytest.mark.check("rows")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TWINS)
def test_padding_and_the_rest_of_the_batch_change_nothing(
    name: str, side: str, mode: str, ids: Tensor, record_property: Any
) -> None:
    record_property("family", f"{name} (twin of the specification)")
    record_property("check", "rows")
    model, lengths = model_of(name, mode), (12, 9, 7)
    keep = torch.stack([torch.arange(12) < n for n in lengths])
    keep = keep.flip(1) if side == "left" else keep
    padded, positions = torch.where(keep, ids, 0), (keep.long().cumsum(1) - 1).clamp_min(0)
    with torch.no_grad():
        logits = model(Batch(Tokens(padded, keep, positions), padded, keep)).logits_BTV
        for row, n in enumerate(lengths):
            alone = twin_of(name, model, ids[row][keep[row]][None], model.n_rounds()["decoder"])[0]
            torch.testing.assert_close(logits[row][keep[row]], alone[0], rtol=0, atol=1e-10)
            assert alone.shape[1] == n


@pytest.mark.parametrize("name", TWINS)
def test_outside_training_no_token_depends_on_a_later_one(name: str, ids: Tensor) -> None:
    changed = ids.clone()
    changed[:, 8:] = (ids[:, 8:] - 3 + 17) % (V - 3) + 3
    with torch.no_grad():
        model = model_of(name, "evaluation")
        before, after = model(ids).logits_BTV, model(changed).logits_BTV
        torch.testing.assert_close(after[:, :8], before[:, :8], rtol=0, atol=1e-12)
        assert float((after[:, 8:] - before[:, 8:]).abs().max()) > 0.1
        # In training the best of a sentence are known only at its end; a token that chooses for itself knows at once.
        model.train()
        is_other = (
            model(changed).stacks["decoder"].halting.executed_BTR != model(ids).stacks["decoder"].halting.executed_BTR
        )
        assert bool(is_other[:, :8].any()) != (name == BY_TOKEN)
        if name == BY_TOKEN:
            torch.testing.assert_close(model(changed).logits_BTV[:, :8], before[:, :8], rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_round_runs_as_many_rows_as_it_has_chosen(mode: str, ids: Tensor) -> None:
    model, rows = model_of("mixture of recursions", mode), list[int]()
    model.banks.ffn["decoder_1"].register_forward_hook(lambda module, args, output: rows.append(args[0].shape[0]))
    with model.execution(compaction="always"):
        executed = model(ids).stacks["decoder"].halting.executed_BTR
    assert rows == executed.sum((0, 1)).tolist()
    assert rows[0] == ids.numel()
    if mode == "training":
        assert rows == [36, 24, 12]


def test_capacities_shrink_with_what_routers_leave_out(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "training")
    chosen = {}
    for left_out in (0.0, 0.5, 1.0):
        with model.execution(left_out=left_out):
            chosen[left_out] = model(ids).stacks["decoder"].halting.executed_BTR.sum((0, 1)).tolist()
    assert chosen == {0.0: [36, 36, 36], 0.5: [36, 30, 24], 1.0: [36, 24, 12]}
    with model.eval().execution(left_out=0.0):  # outside training a threshold decides
        assert model(ids).stacks["decoder"].halting.executed_BTR.sum() < 3 * ids.numel()


def test_an_update_has_the_capacity_of_its_place_in_the_warm_up(ids: Tensor) -> None:
    model, batch = model_of("mixture of recursions", "training"), Batch.from_lists([row.tolist() for row in ids])
    config, losses = DepthCostConfig(capacity_warmup=4), []
    for update in (2, 4):
        with torch.no_grad():
            losses.append(float(model.loss(batch, update=update, halting=config)))
        with torch.no_grad(), model.execution(left_out=config.left_out_at(update)):
            output = model(batch)
            expected = F.cross_entropy(output.logits_BTV.flatten(0, 1), batch.labels_BT.flatten())
        assert losses[-1] == pytest.approx(float(expected), rel=1e-6)
    assert losses[0] != losses[1]


@pytest.mark.parametrize("mode", MODES)
def test_rounds_that_choose_anew_run_the_chosen_rows_and_give_what_all_rows_would(mode: str, ids: Tensor) -> None:
    model, rows, found = model_of("mixture of depths", mode), dict[str, list[int]](), list[Tensor]()
    for at in (1, 3):
        model.banks.ffn[f"decoder_{at}"].register_forward_hook(lambda _, args, out: rows[way].append(args[0].shape[0]))
    for way in ("always", "never"):
        rows[way] = []
        model.zero_grad()
        with model.execution(compaction=way):  # type: ignore[arg-type]
            output = model(ids)
        output.logits_BTV.square().sum().backward()
        found += [output.logits_BTV, *(p.grad for p in model.parameters() if p.grad is not None)]
    trace = output.stacks["decoder"].halting
    assert rows["always"] == trace.executed_BTR[..., 1::2].sum((0, 1)).tolist()
    assert rows["never"] == [36, 36]
    assert mode == "evaluation" or rows["always"] == [3, 3]
    for gathered, masked in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
        torch.testing.assert_close(gathered, masked, rtol=0, atol=1e-10)


def test_a_lower_threshold_leaves_more_tokens_out(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "evaluation")
    depths = []
    for threshold in (0.0, 0.3, 0.5, 0.7, 1.0):
        with torch.no_grad(), model.execution(halting_threshold=threshold):
            depths.append(float(model(ids).stacks["decoder"].halting.executed_BTR.sum(-1).double().mean()))
    assert depths == sorted(depths)
    assert depths[0] == 1
    assert depths[-1] == 3
    with torch.no_grad(), model.execution(halting=False):
        torch.testing.assert_close(model(ids).logits_BTV, at_threshold(model, ids, 1.0), rtol=0, atol=1e-12)


def test_what_a_router_that_chooses_tokens_does_not_go_with_is_refused(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "evaluation")
    with pytest.raises(ConfigError, match="routers choose the tokens of every round"):
        model(ids, execution=Execution(exit="change", halting_threshold=0.9))
    for settings, reason in (
        ("halting={kind: select, capacities: [0.5]}", "the first round takes all tokens"),
        ("halting={kind: select, capacities: [null, null]}", "no round has a router"),
        ("halting={kind: select, capacities: [1.0, 0.5, 0.4, 0.3]}", "more numbers than the stack has rounds, 3"),
        ("ffn={kind: separable_conv}", "reads its neighbours"),
    ):
        with pytest.raises(ConfigError, match=reason):
            load_recipe("looped/mor-toy", [f"model.decoder.{settings}"])


def test_more_rounds_than_routers_have_the_last_one(ids: Tensor) -> None:
    model = model_of("mixture of recursions", "evaluation")
    before = model(ids, n_steps=5).logits_BTV
    with torch.no_grad():
        model.banks.halting["decoder"].weight_RD[2].mul_(-1)
    assert float((model(ids, n_steps=5).logits_BTV - before).detach().abs().max()) > 1e-3
    assert model.banks.halting["decoder"].weight_RD.shape == (3, 32)


def at_threshold(model: Model, ids: Tensor, threshold: float) -> Tensor:
    """Return the logits at a threshold."""
    with model.execution(halting=True, halting_threshold=threshold):
        return model(ids).logits_BTV  # type: ignore[no-any-return]
