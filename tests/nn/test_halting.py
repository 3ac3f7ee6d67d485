"""Halting rules on a real stack, against listings that go token by token and round by round."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from ostinato.config.halting import ActConfig, HaltingConfig, StickBreakingConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.config.positions import SinusoidalConfig
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.models import LanguageModel, build_model
from ostinato.nn.types import StackOutput
from reference.grids import by_head, put_out
from running import run_as

B, T, V, L = 3, 5, 7, 4


def model_with(
    halting: HaltingConfig, *, n_steps: int = L, seed: int = 0, gate_std: float = 1.5, **stack: Any
) -> LanguageModel:
    """Return a float64 model with random weights whose halting units are far from constant."""
    torch.manual_seed(seed)
    decoder = StackConfig(
        n_steps=n_steps,
        self_attention=AttentionConfig(n_heads=2, share="all"),
        ffn=DenseFeedForwardConfig(d_ff=6, share="all"),
        positions=SinusoidalConfig(),
        halting=halting,
        **stack,
    )
    model = build_model(LanguageModelConfig(d_model=4, dropout=0.0, vocab_size=V, decoder=decoder)).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Drawn in the order of the numbers, not as they lie in memory.
            parameter.copy_(torch.empty(parameter.shape).double().normal_(std=gate_std if "halting" in name else 0.6))
    assert isinstance(model, LanguageModel)
    return model


def batch_of(lengths: list[int], seed: int = 1) -> Batch:
    torch.manual_seed(seed)
    ids = torch.randint(3, V, (len(lengths), max(lengths)))
    keep = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return Batch(target=Tokens(ids, keep), labels_BT=ids, loss_mask_BT=keep)


def decoder_output(model: LanguageModel, batch: Batch) -> StackOutput:
    return model(batch).stacks["decoder"]


def block(model: LanguageModel, states: Tensor, seen: Tensor) -> Tensor:
    """Run one post-norm step of one sentence: queries from `states`, keys and values from `seen`, causally."""
    banks = model.banks
    attention, ffn = banks.self_attention["decoder_0"], banks.ffn["decoder_0"]
    q, k, v = by_head(attention, states[None], seen[None])  # type: ignore[arg-type]
    scores = q @ k.transpose(-1, -2) * attention.scale  # type: ignore[operator]
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    read = torch.softmax(scores.masked_fill(later, -torch.inf), -1) @ v
    read = put_out(attention, read.transpose(1, 2).flatten(2))[0]  # type: ignore[arg-type]
    x = banks.norm["self_attention_decoder_0"](states + read)
    y: Tensor = banks.norm["ffn_decoder_0"](x + ffn(x))
    return y


def embedded(model: LanguageModel, batch: Batch, row: int) -> Tensor:
    """Return what the first round of one sentence starts from."""
    ids = batch.target.ids_BT[row][batch.target.keep_BT[row]]
    signal = model.stacks["decoder"].signal
    prepared = signal.prepare(torch.arange(len(ids))[None])
    start = signal.at_start(prepared)
    assert start is not None
    return (model.embed(ids[None], model.target_embedding) + start)[0]


def stick_breaking_listing(model: LanguageModel, h0: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, depth and expected depth of one sentence by the loop of SUT, section 2.5."""
    unit = model.banks.halting["decoder"]
    n_rounds = model.stacks["decoder"].plan.n_rounds
    n = h0.shape[0]
    h, s = h0, h0
    left, mean, cost = torch.ones(n), torch.zeros_like(h0), torch.zeros(n)
    left, cost = left.double(), cost.double()
    active = torch.ones(n, dtype=torch.bool)
    depth = torch.zeros(n)
    for r in range(1, n_rounds + 1):
        if r >= 2:
            halt = unit(h)[1].exp()  # type: ignore[operator]
            for t in range(n):
                if not active[t]:
                    continue
                if threshold == 0 or left[t] * (1 - halt[t]) < 1 - threshold:
                    cost[t] = cost[t] + (r - 1) * left[t]
                    active[t] = False
                    continue
                mean = mean.index_add(0, torch.tensor([t]), (left[t] * halt[t] * h[t])[None])
                cost[t] = cost[t] + (r - 1) * left[t] * halt[t]
                left[t] = left[t] * (1 - halt[t])
        new = block(model, h, s)
        h = torch.where(active[:, None], new, h)
        s = torch.where(active[:, None], mean + left[:, None] * h, s)
        depth += active
    cost = cost + torch.where(active, n_rounds * left, torch.zeros(n).double())
    return s, depth, cost


def act_listing(model: LanguageModel, h0: Tensor, c: ActConfig) -> tuple[Tensor, Tensor, Tensor]:
    """Return output, rounds and remainder of one sentence by the listing of UT, section 2.7, with its options."""
    unit = model.banks.halting["decoder"]
    n_rounds = model.stacks["decoder"].plan.n_rounds
    n = h0.shape[0]
    total, remainder, updates = torch.zeros(n).double(), torch.zeros(n).double(), torch.zeros(n)
    state, mix = h0, torch.zeros_like(h0)
    halted_before = torch.zeros(n, dtype=torch.bool)
    for r in range(n_rounds):
        if halted_before.all():
            break
        p = unit(state)  # type: ignore[operator]
        running = ~halted_before
        stops = running & (total + p > 1 - c.epsilon)
        if c.force_remainder_at_max and r == n_rounds - 1:
            stops = running
        u = torch.where(stops, 1 - total, torch.where(running, p, torch.zeros_like(p)))
        remainder = torch.where(stops, 1 - total, remainder)
        total = total + u
        updates += running
        new = block(model, state, state)
        mix = mix + u[:, None] * new if c.mix == "accumulate" else u[:, None] * new + (1 - u[:, None]) * mix
        state = torch.where(running[:, None], new, state) if c.freeze_halted_state else new
        halted_before = halted_before | stops
    return mix, updates, remainder


@pytest.mark.parametrize("threshold", [1.0, 0.999, 0.9, 0.6, 0.0])
def test_stick_breaking_is_the_papers_loop(threshold: float) -> None:
    depths = set()
    # Gates far apart: between them these draws halt in every round.
    for seed, std, bias in ((6, 3.0, None), (4, 1.0, 0.0), (5, 1.0, 0.0)):
        model = model_with(StickBreakingConfig(threshold=threshold, initial_bias=bias), seed=seed, gate_std=std)
        batch = batch_of([5, 3, 1], seed)
        output = decoder_output(model, batch)
        assert output.halting is not None
        costs = []
        for row, keep in enumerate(batch.target.keep_BT):
            s, depth, cost = stick_breaking_listing(model, embedded(model, batch, row), threshold)
            torch.testing.assert_close(output.states_BTD[row][keep], s, rtol=1e-9, atol=1e-9)
            executed = output.halting.executed_BTR[row][keep].sum(-1)
            assert executed.tolist() == depth.tolist()
            costs.append(cost)
            depths |= set(executed.tolist())
        torch.testing.assert_close(output.depth_cost, torch.cat(costs).mean(), rtol=1e-9, atol=1e-9)
        assert not output.halting.executed_BTR[~batch.target.keep_BT].any()
    if threshold == 0.9:
        assert depths == {1, 2, 3, 4}
    if threshold == 0.0:
        assert depths == {1}


@pytest.mark.parametrize("mix", ["accumulate", "interpolate"])
@pytest.mark.parametrize("freeze", [True, False])
@pytest.mark.parametrize("force", [True, False])
def test_act_is_the_listing_in_every_variant(mix: Any, freeze: bool, force: bool) -> None:
    c = ActConfig(mix=mix, freeze_halted_state=freeze, force_remainder_at_max=force)
    depths = set()
    for seed in range(4):
        model = model_with(c, seed=seed)
        batch = batch_of([5, 3, 1], seed)
        output = decoder_output(model, batch)
        assert output.halting is not None
        costs = []
        for row, keep in enumerate(batch.target.keep_BT):
            mixed, updates, remainder = act_listing(model, embedded(model, batch, row), c)
            torch.testing.assert_close(output.states_BTD[row][keep], mixed, rtol=1e-9, atol=1e-9)
            costs.append(updates + remainder)
            assert output.halting.executed_BTR[row][keep].sum(-1).tolist() == updates.tolist()
            depths |= set(updates.int().tolist())
        torch.testing.assert_close(output.depth_cost, torch.cat(costs).mean(), rtol=1e-9, atol=1e-9)
    assert depths >= {1, 2, 3, 4}


def test_without_halting_probability_stick_breaking_is_the_plain_stack() -> None:
    """A gate far below zero: every s_r is h_r, and nothing has halted (specification, test iii)."""
    model = model_with(StickBreakingConfig(initial_bias=0.0, threshold=1.0))
    unit = model.banks.halting["decoder"]
    torch.nn.init.zeros_(unit.out.weight)  # type: ignore[union-attr, arg-type]
    torch.nn.init.constant_(unit.bias, -1e4)  # type: ignore[arg-type]
    batch = batch_of([5, 3])
    plain = model.config.model_copy(
        update={"decoder": model.config.decoder.model_copy(update={"halting": StackConfig().halting})}
    )
    other = build_model(plain).double().eval()
    other.load_state_dict({k: v for k, v in model.state_dict().items() if "halting" not in k})
    keep = batch.target.keep_BT
    torch.testing.assert_close(
        decoder_output(model, batch).states_BTD[keep],
        other(batch).stacks["decoder"].states_BTD[keep],
        rtol=1e-12,
        atol=1e-12,
    )


def test_a_gate_that_always_halts_leaves_the_first_rounds_state() -> None:
    """Specification, test ii of SUT and of UT: one round, whatever follows."""
    first = model_with(StickBreakingConfig(initial_bias=0.0))
    unit = first.banks.halting["decoder"]
    torch.nn.init.zeros_(unit.out.weight)  # type: ignore[union-attr, arg-type]
    torch.nn.init.constant_(unit.bias, 1e4)  # type: ignore[arg-type]
    act = model_with(ActConfig())
    torch.nn.init.zeros_(act.banks.halting["decoder"].map.weight)  # type: ignore[union-attr, arg-type]
    torch.nn.init.constant_(act.banks.halting["decoder"].map.bias, 1e4)  # type: ignore[union-attr, arg-type]
    batch = batch_of([5])
    for model in (first, act):
        output = decoder_output(model, batch)
        h0 = embedded(model, batch, 0)
        torch.testing.assert_close(output.states_BTD[0], block(model, h0, h0), rtol=1e-9, atol=1e-9)
        assert output.halting is not None
        assert output.halting.executed_BTR.sum(-1).tolist() == [[1] * 5]
    assert decoder_output(act, batch).depth_cost.item() == pytest.approx(2.0)  # type: ignore[union-attr]


@pytest.mark.parametrize("halting", [StickBreakingConfig(), ActConfig()])
def test_a_pass_without_a_real_token_has_no_cost(halting: HaltingConfig) -> None:
    ids, none = torch.full((2, 5), 3), torch.zeros(2, 5, dtype=torch.bool)
    output = decoder_output(model_with(halting), Batch(target=Tokens(ids, none), labels_BT=ids, loss_mask_BT=none))
    assert output.depth_cost is not None
    assert float(output.depth_cost) == 0.0


@pytest.mark.parametrize("halting", [StickBreakingConfig(), ActConfig()])
def test_at_a_threshold_of_0_a_gate_that_is_exactly_0_halts_too(halting: HaltingConfig) -> None:
    model, batch = model_with(halting), batch_of([5, 3])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "halting" in name:
                parameter.fill_(-1e4 if name.endswith("bias") else 0.0)
    run_as(model, halting_threshold=0.0)
    trace = model(batch, request=("halting",)).stacks["decoder"].halting
    assert trace is not None
    assert trace.executed_BTR.shape[-1] == 1


def test_a_gate_that_never_halts_gives_act_no_output_without_a_forced_remainder() -> None:
    """Specification of UT, test iii: all rounds, no remainder, output 0 in both mixes."""
    for mix in ("accumulate", "interpolate"):
        model = model_with(ActConfig(mix=mix, force_remainder_at_max=False, freeze_halted_state=False))  # type: ignore[arg-type]
        gate = model.banks.halting["decoder"].map
        torch.nn.init.zeros_(gate.weight)  # type: ignore[union-attr, arg-type]
        torch.nn.init.constant_(gate.bias, -1e4)  # type: ignore[union-attr, arg-type]
        output = decoder_output(model, batch_of([5]))
        assert bool((output.states_BTD == 0).all())
        assert output.depth_cost.item() == L  # type: ignore[union-attr]


def test_the_ponder_cost_reaches_the_gate_through_the_remainder_only() -> None:
    model = model_with(ActConfig())
    output = decoder_output(model, batch_of([4]))
    assert output.halting is not None
    weights = output.halting.weights_BTR
    assert output.depth_cost is not None
    (grad,) = torch.autograd.grad(output.depth_cost, [model.banks.halting["decoder"].map.bias])  # type: ignore[union-attr, list-item]
    probs = output.halting.probs_BTR
    expected = (
        -sum(
            (probs[0, t, r] * (1 - probs[0, t, r])).item()
            for t in range(4)
            for r in range(weights.shape[-1])
            if output.halting.executed_BTR[0, t, r + 1 :].any()
        )
        / 4
    )
    # Through the states the bias of a round also moves nothing: p depends on it only directly within one round.
    assert float(grad) < 0
    assert float(grad) == pytest.approx(expected, rel=1e-6)
