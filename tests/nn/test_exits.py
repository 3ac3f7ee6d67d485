"""Exits after training: criteria, thresholds, frozen tokens, cached steps; truncated gradients; readouts of rounds."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from architectures import random_model
from contract import assert_all_equal
from ostinato.config.model import EncoderConfig, LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError
from ostinato.models import Encoder, LanguageModel
from ostinato.nn.execution import CRITERIA_AT_TEST, Execution
from ostinato.nn.exits import OF_STATES

CORE = {"repeats": 6, "inject": {"kind": "linear"}, "state": {"kind": "zeros"}}


def _model(*, coda: bool = True, **changes: Any) -> LanguageModel:
    segments: list[dict[str, Any]] = [{}, CORE, {}] if coda else [{}, CORE]
    stack = {"n_steps": len(segments), "segments": segments, "norm": {"kind": "rms", "placement": "pre"}}
    stack |= {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 24}} | changes
    config = {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "decoder": stack}
    return random_model(LanguageModelConfig.model_validate(config)).eval()  # type: ignore[return-value]


IDS = torch.tensor([[1, 5, 6, 7, 3], [1, 4, 4, 9, 8]])


@pytest.mark.parametrize("criterion", CRITERIA_AT_TEST)
def test_threshold_one_runs_all_rounds_and_zero_stops_after_the_first(criterion: str) -> None:
    model = _model()
    whole, once = model(IDS).logits_BTV, model(IDS, n_steps=1).logits_BTV
    never = model(IDS, execution=Execution(exit=criterion, halting_threshold=1.0)).logits_BTV
    first = model(IDS, execution=Execution(exit=criterion, halting_threshold=0.0))
    torch.testing.assert_close(never, whole, rtol=0, atol=0)
    torch.testing.assert_close(first.logits_BTV, once, rtol=0, atol=1e-12)
    trace = first.stacks["decoder"].halting
    assert bool((trace.executed_BTR.sum(-1) == 1).all())


@pytest.mark.parametrize("n", range(1, 7))
def test_predictions_that_are_the_same_n_times_reach_the_threshold_of_n(n: int) -> None:
    plain = _model(coda=False).config
    output = plain.output.model_copy(update={"bias": True})
    model = random_model(plain.model_copy(update={"output": output})).float().eval()
    with torch.no_grad():
        model.output_bias[5] = 1e4  # always predicted
    trace = model(IDS, n_steps=9, execution=Execution(exit="stable", halting_threshold=n / (n + 1)))
    executed_BTR = trace.stacks["decoder"].halting.executed_BTR
    assert executed_BTR.sum(-1).unique().tolist() == [n + 1]


@pytest.mark.sampled
@pytest.mark.parametrize("coda", [True, False])
@pytest.mark.parametrize("criterion", CRITERIA_AT_TEST)
def test_some_tokens_stop_early_alone_as_in_a_batch_and_gathered_as_masked(criterion: str, coda: bool) -> None:
    model, depths = _model(coda=coda), set[int]()
    for threshold in (0.02, 0.1, 0.3, 0.5, 0.7, 0.9):
        execution = Execution(exit=criterion, halting_threshold=threshold, compaction="always")
        output = model(IDS, execution=execution)
        masked = Execution(exit=criterion, halting_threshold=threshold, compaction="never")
        torch.testing.assert_close(output.logits_BTV, model(IDS, execution=masked).logits_BTV, rtol=0, atol=1e-10)
        for row in (0, 1):
            alone = model(IDS[row : row + 1], execution=execution).logits_BTV
            torch.testing.assert_close(output.logits_BTV[row : row + 1], alone, rtol=0, atol=1e-10)
        executed_BTR = output.stacks["decoder"].halting.executed_BTR
        depths |= set(executed_BTR.sum(-1).flatten().tolist())
    assert len(depths) > 1


# Predictions of steps after the loop read what earlier tokens stopped with, see the module: not those with a coda.
STOPS = [(name, coda) for name in CRITERIA_AT_TEST for coda in (True, False) if not coda or name in OF_STATES]


@pytest.mark.sampled
@pytest.mark.parametrize(("criterion", "coda"), STOPS)
@pytest.mark.parametrize("relative", ["none", "buckets"])
def test_cached_steps_stop_where_the_whole_pass_does(criterion: str, coda: bool, relative: str) -> None:
    model = _model(coda=coda, relative={"kind": relative}).float()
    for threshold in (0.1, 0.5, 0.9):
        with torch.inference_mode(), model.execution(exit=criterion, halting_threshold=threshold):
            whole = model(IDS).logits_BTV
            cache = model.encode(_batch())
            steps = torch.stack([model.step(IDS[:, t : t + 1], cache) for t in range(IDS.shape[1])], dim=1)
        torch.testing.assert_close(steps, whole, rtol=0, atol=2e-5)


@pytest.mark.parametrize("criterion", [c for c in CRITERIA_AT_TEST if c not in OF_STATES])
def test_predictions_after_a_coda_leave_nothing_in_the_cache(criterion: str) -> None:
    # At threshold 1 they are made after every round, and decide nothing.
    model = _model().float()
    with torch.inference_mode(), model.execution(exit=criterion, halting_threshold=1.0):
        cache = model.encode(_batch())
        steps = torch.stack([model.step(IDS[:, t : t + 1], cache) for t in range(IDS.shape[1])], dim=1)
        torch.testing.assert_close(steps, model(IDS).logits_BTV, rtol=0, atol=2e-5)


def _batch() -> Any:
    from ostinato.models.base import as_batch

    return as_batch(IDS, None)


def test_a_rounds_output_is_what_the_model_gives_when_it_is_the_last() -> None:
    model = _model()
    rounds = model(IDS, request=["rounds"]).stacks["decoder"].rounds
    assert len(rounds) == 6
    for number, states in enumerate(rounds, 1):
        expected = model(IDS, n_steps=number).logits_BTV
        torch.testing.assert_close(model.logits(states()), expected, rtol=0, atol=1e-10)


def test_gradients_stop_before_the_last_rounds() -> None:
    model = _model()

    def gradients(**execution: Any) -> dict[str, torch.Tensor]:
        model.zero_grad()
        model(IDS, execution=Execution(**execution)).logits_BTV.square().sum().backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    full = gradients()
    for name, found in gradients(gradient_rounds=6).items():
        torch.testing.assert_close(found, full[name], rtol=0, atol=0)
    # The plain twin: the first four rounds give a constant state, and two rounds start from it.
    with torch.no_grad():
        left = model(IDS, n_steps=4, request=["rounds"]).stacks["decoder"].left[-1]
    of_last_two = {c: gradients(gradient_rounds=2, compaction=c) for c in ("auto", "never", "always")}
    model.banks.start["decoder_1"].forward = lambda entry, positions: left
    expected = gradients(rounds={"decoder": 2})
    for last_two in of_last_two.values():
        assert_all_equal(last_two, expected)


def test_an_exit_needs_a_threshold_and_a_known_criterion() -> None:
    with pytest.raises(ConfigError, match="needs a halting_threshold"):
        Execution(exit="change")
    with pytest.raises(ConfigError, match="must be one of change"):
        Execution(exit="gate", halting_threshold=0.5)


def _encoder(head: str = "masked", **changes: Any) -> Encoder:
    stack = {"n_steps": 2, "segments": [{}, CORE], "norm": {"kind": "rms", "placement": "post"}}
    stack |= {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 24}} | changes
    config = {"kind": "encoder", "head": {"kind": head}, "n_labels": 3 if head == "classification" else None}
    config |= {"d_model": 16, "vocab_size": 11, "dropout": 0.0, "encoder": stack}
    return random_model(EncoderConfig.model_validate(config)).eval()  # type: ignore[return-value]


@pytest.mark.parametrize("compaction", ["always", "never"])
def test_a_sequence_stops_as_a_whole_once_the_mean_confidence_of_its_real_tokens_is_reached(compaction: str) -> None:
    model = _encoder()
    keep = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    model.requires_grad_(False)
    # The plain twin: states after every round of a stack that nothing follows; zeros before the first.
    after = [model(IDS, keep=keep, n_steps=n).stacks["encoder"].states_BTD for n in range(1, 7)]
    before = [torch.zeros_like(after[0]), *after[:-1]]
    seen = set[int]()
    for threshold in (0.05, 0.2, 0.4, 0.6, 0.8, 0.95):
        execution = Execution(
            exit="change", exit_scope="sequence", halting_threshold=threshold, compaction=cast(Any, compaction)
        )
        output = model(IDS, keep=keep, execution=execution)
        executed_BT = output.stacks["encoder"].halting.executed_BTR.sum(-1)
        for row in (0, 1):
            real = keep[row]
            confidences = [
                float((1 - (h - g)[row, real].norm(dim=-1) / h[row, real].norm(dim=-1)).clamp(0, 1).mean())
                for g, h in zip(before, after, strict=True)
            ]
            expected = next((n for n, found in enumerate(confidences, 1) if found >= threshold), 6)
            assert set(executed_BT[row, real].tolist()) == {expected}
            seen.add(expected)
            alone = model(IDS[row : row + 1, real], execution=execution).logits_BTV
            torch.testing.assert_close(output.logits_BTV[row : row + 1, real], alone, rtol=0, atol=1e-10)
    assert len(seen) > 1


def test_sequences_of_a_causal_model_are_refused_and_a_scope_needs_a_criterion() -> None:
    whole: dict[str, Any] = {"exit": "change", "halting_threshold": 0.5, "exit_scope": "sequence"}
    with pytest.raises(ConfigError, match=r"exit_scope is 'sequence': a token would stop by what comes after it"):
        _model()(IDS, execution=Execution(**whole))
    with pytest.raises(ConfigError, match=r"exit_scope is 'sequence': needs an exit"):
        Execution(exit_scope="sequence")


def test_a_head_that_says_nothing_of_single_tokens_has_no_criteria_of_predictions() -> None:
    model = _encoder("classification")
    with pytest.raises(ConfigError, match=r"exit is 'margin': no stack .* valid here: change, cosine"):
        model(IDS, execution=Execution(exit="margin", halting_threshold=0.5))
    scope = Execution(exit="change", halting_threshold=0.5, exit_scope="sequence")
    assert model(IDS, execution=scope).logits_BTV.shape == (2, 1, 3)


def test_stacks_that_cannot_stop_by_the_criterion_keep_their_own_rule() -> None:
    attention, ffn = {"n_heads": 2, "share": "all"}, {"d_ff": 24, "share": "all"}
    stack = {"n_steps": 4, "self_attention": attention, "ffn": ffn, "halting": {"kind": "act", "epsilon": 0.1}}
    sizes = {"d_model": 16, "source_vocab_size": 11, "target_vocab_size": 11, "dropout": 0.0}
    stacks = {"encoder": stack, "decoder": stack | {"cross_attention": attention}}
    model = random_model(Seq2SeqConfig.model_validate(sizes | stacks)).eval()
    own = model(IDS, IDS).stacks["encoder"]
    with model.execution(exit="margin", halting_threshold=0.3):
        assert model.halting_thresholds() == {"encoder": pytest.approx(0.9), "decoder": 0.3}
        assert model.exits() == {"decoder": True}
        found = model(IDS, IDS).stacks["encoder"]
        torch.testing.assert_close(found.states_BTD, own.states_BTD, rtol=0, atol=0)
        assert torch.equal(found.halting.executed_BTR, own.halting.executed_BTR)
    with model.execution(exit="change", halting_threshold=0.3, exit_scope="sequence"):
        assert model.exits() == {"encoder": False}
        assert model.halting_thresholds() == {"encoder": 0.3, "decoder": pytest.approx(0.9)}
    with pytest.raises(ConfigError, match="the stack that predicts tokens is causal; valid here with exit_scope"):
        model(IDS, IDS, execution=Execution(exit="margin", halting_threshold=0.3, exit_scope="sequence"))
    assert model.exits() == {}
