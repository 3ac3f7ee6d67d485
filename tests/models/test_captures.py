from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from architectures import Model, any_architecture, random_model, right_padded, sentences
from ostinato.config.model import Seq2SeqConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.nn.head_experts import HeadExpertAttention
from ostinato.nn.separable import SeparableConv
from ostinato.nn.types import StackOutput
from ostinato.plan import Step
from running import run_as

WHAT = ("input", "output", "residual", "weights")


def steps_run(model: Model, name: str, output: StackOutput) -> list[Step]:
    """Return the steps of a stack, as far as they ran: rounds that no token takes part in do not."""
    plan = model.stacks[name].plan
    n_rounds = plan.n_rounds if output.halting is None else output.halting.executed_BTR.shape[-1]
    return [step for step in plan.steps if step.round < n_rounds]


def ran(batch: Batch, name: str, output: StackOutput, step: Step) -> torch.Tensor:
    """Return the tokens that took part in a step, `[B, T]`; the others may not have been computed at all."""
    if output.halting is not None:
        return output.halting.executed_BTR[..., step.round]
    tokens = batch.source if name == "encoder" else batch.target
    assert tokens is not None
    return tokens.keep_BT


@given(any_architecture(), st.data())
@settings(max_examples=15)
def test_what_is_requested_is_returned_for_every_use_and_changes_nothing(config: object, data: st.DataObject) -> None:
    model = random_model(config).float().eval()  # type: ignore[arg-type]
    batch = right_padded(data.draw(sentences(config)))  # type: ignore[arg-type]
    plain, full = model(batch), model(batch, request=WHAT)
    assert torch.equal(plain.logits_BTV, full.logits_BTV)
    for name, stack in full.stacks.items():
        assert plain.stacks[name].captures == {}
        wanted = {
            (name, step.index, use.kind, what)
            for step in steps_run(model, name, stack)
            for use in step.uses
            for what in WHAT
            if what != "weights" or use.kind != "ffn"
        }
        wanted |= {
            (name, step.index, use.kind, "values_input")
            for step in steps_run(model, name, stack)
            for use in step.uses
            if step.makes_keys and isinstance(getattr(model.banks, use.kind)[use.weights], HeadExpertAttention)
        }
        assert set(stack.captures) == wanted
        for (_, index, _, what), tensor in stack.captures.items():
            if what == "weights":
                ran_BT = ran(batch, name, stack, model.stacks[name].plan.steps[index])
                sums_BHTC = tensor.sum(-1).unflatten(2, (ran_BT.shape[1], -1))
                sums = sums_BHTC.transpose(1, 2)[ran_BT]
                torch.testing.assert_close(sums, torch.ones_like(sums))


def test_cached_steps_return_for_every_hypothesis_what_a_whole_pass_does() -> None:
    stack: dict[str, Any] = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    sizes = {"d_model": 8, "source_vocab_size": 20, "target_vocab_size": 20}
    stacks = {"encoder": stack, "decoder": stack | {"cross_attention": {"n_heads": 2}}}
    model: Any = random_model(Seq2SeqConfig.model_validate(sizes | stacks)).float().eval()
    sources = [[5, 9, 4, 7], [8, 6]]
    batch, target = Batch.from_lists([[]] * 2, sources), torch.arange(4, 18).roll(5)[:12].view(6, 2)
    assert batch.source is not None
    alone = Batch.from_lists([[]] * 6, [source for source in sources for _ in range(3)])
    alone = replace(alone, target=Tokens(target, torch.ones_like(target, dtype=torch.bool)))
    cache, full = model.encode(batch), model(alone, request=WHAT).stacks["decoder"].captures
    cache.expand(3, 2)
    for column in range(2):
        captures = model.extended(target[:, column : column + 1], cache, request=WHAT).captures
        assert captures.keys() == full.keys()
        for (name, step, kind, what), found in captures.items():
            whole = full[name, step, kind, what]
            expected = whole[:, :, column] if what == "weights" else whole[:, column]
            if what == "weights" and kind == "self_attention":
                expected = expected[..., : column + 1]
            torch.testing.assert_close(found[:, :, 0] if what == "weights" else found[:, 0], expected)


@given(any_architecture(), st.data())
@settings(max_examples=5)
def test_seconds_are_taken_of_every_use_and_change_nothing(config: object, data: st.DataObject) -> None:
    model = random_model(config).float().eval()  # type: ignore[arg-type]
    batch = right_padded(data.draw(sentences(config)))  # type: ignore[arg-type]
    plain, timed = model(batch), model(batch, request={"seconds"})
    assert torch.equal(plain.logits_BTV, timed.logits_BTV)
    for name, stack in timed.stacks.items():
        steps = steps_run(model, name, stack)
        assert set(stack.captures) == {(name, step.index, use.kind, "seconds") for step in steps for use in step.uses}
        assert all(0 < float(seconds) < 60 for seconds in stack.captures.values())


@given(any_architecture(), st.data())
@settings(max_examples=15)
def test_without_dropout_the_residual_is_the_running_state_plus_the_output(config: object, data: st.DataObject) -> None:
    model = random_model(config).float().eval()  # type: ignore[arg-type]
    batch = right_padded(data.draw(sentences(config)))  # type: ignore[arg-type]
    for name, stack in model(batch, request=WHAT).stacks.items():
        for step in steps_run(model, name, stack):
            if step.is_parallel:  # all of its sub-layers read what enters it
                continue
            before: torch.Tensor | None = None
            ran_BT = ran(batch, name, stack, step)
            for use in step.uses:
                key = (name, step.index, use.kind)
                norm = torch.nn.Identity() if use.after is None else model.banks.norm[use.after]
                output, residual = stack.captures[*key, "output"], stack.captures[*key, "residual"]
                if before is not None:
                    expected = norm(before + output)
                    torch.testing.assert_close(residual[ran_BT], expected[ran_BT])
                    if use.kind != "ffn" or not isinstance(model.banks.ffn[use.weights], SeparableConv):
                        # Convolutions read what is visible, which under a halting rule is another state.
                        read = use.before or use.scores
                        seen = before if read is None else model.banks.norm[read](before)
                        torch.testing.assert_close(stack.captures[*key, "input"][ran_BT], seen[ran_BT])
                before = residual


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["seq2seq", "language_model"])
def test_autocast_leaves_logits_in_float32_and_close_to_the_exact_ones(kind: str, dtype: torch.dtype) -> None:
    @given(any_architecture(kind=kind), st.data())
    @settings(max_examples=10)
    def check(config: object, data: st.DataObject) -> None:
        model = random_model(config).float().eval()  # type: ignore[arg-type]
        run_as(model, halting=False)  # a rounded state may halt a token in another round
        batch = right_padded(data.draw(sentences(config)))  # type: ignore[arg-type]
        exact = model(batch).logits_BTV
        with torch.autocast("cpu", dtype=dtype):
            rough = model(batch).logits_BTV
        assert rough.dtype == torch.float32
        scale = exact.abs().max().clamp_min(1.0)
        assert bool(torch.isfinite(rough).all())
        # A rounded score may choose another expert, and then all is another number.
        if not any(stack.has_router for stack in config.stacks().values()):  # type: ignore[attr-defined]
            assert ((rough - exact).abs().mean() / scale).item() < 0.1

    check()
