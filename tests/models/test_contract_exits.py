"""The contract for criteria by which tokens of a trained model stop, and for caches that keep some rounds of a loop."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_contract_bytes import _batch, _held
from test_contract_chains import assert_near, logits_of_steps
from test_contract_decoding import _cuts, _least_first_step
from test_contract_equivalence import assert_same_depths
from test_contract_numbers import check_realised_macs_of

from architectures import Model, Sentence, any_architecture, draws, left_padded, random_model, right_padded, sentences
from contract import assert_all_equal, assert_equal, gradients, weights_of
from drawn_ways import KEPT, exit_of, kept_of
from haltings import never_halting
from loops import RAGGED, looped
from ostinato.budget import count_bytes
from ostinato.config.model import LanguageModelConfig
from ostinato.data.batch import Batch
from ostinato.kernels import packing
from ostinato.kernels.native import library
from ostinato.models import build_model
from ostinato.nn.execution import CRITERIA_AT_TEST
from ostinato.nn.exits import OF_STATES
from reference.cached import cached_twin
from reference.twin import twin_with_depths
from running import run_as

LOOKS_AT_ALL = bool(os.environ.get("OSTINATO_ALL_DRAWS"))


def models_that_can_stop(**options: Any) -> st.SearchStrategy[Model]:
    """Draw models whose tokens can stop by the criterion that `exit_of` gives them."""
    return any_architecture(**options).map(random_model).filter(exit_of)


@st.composite
def models_and_ways(draw: st.DrawFn) -> tuple[Model, dict[str, Any]]:
    """Draw a model of which tokens can stop by a criterion, or rounds be kept, or both, and how it is run."""
    wanted = draw(st.sampled_from([(exit_of,), (kept_of,), (exit_of, kept_of)]))
    # Rounds are kept where all share their weights; of other models all are.
    models = any_architecture(fully_shared=kept_of in wanted or draw(st.booleans())).map(random_model)
    model = draw(models.filter(lambda one: all(way(one) for way in wanted)))
    return model, {name: value for way in wanted for name, value in way(model).items()}


def check_stopping(model: Model, batch: list[Sentence], padded: Batch) -> Counter[tuple[str, int]]:
    """Compare tokens that stop with their twins; return how many ran so many rounds, by stack."""
    stopped: Counter[tuple[str, int]] = Counter()
    output = model(padded)
    logits = [row[keep] for row, keep in zip(output.logits_BTV, padded.target.keep_BT, strict=True)]
    expected, depths = (list(values) for values in zip(*(twin_with_depths(model, s) for s in batch), strict=True))
    for i, (found, wanted) in enumerate(zip(logits, expected, strict=True)):
        assert_equal(found, wanted, f"logits of sentence {i}")
    if LOOKS_AT_ALL:
        weights = weights_of(batch, logits[0].shape[1])
        assert_all_equal(gradients(model, logits, weights), gradients(model, expected, weights))
    for name, stack in output.stacks.items():
        tokens = padded.source if name == "encoder" else padded.target
        assert tokens is not None
        assert_same_depths(stack.halting, tokens.keep_BT, [one[name] for one in depths])
        if model.stacks[name].exits(model.current_execution):
            stopped.update((name, n) for one in depths for n in one[name].n_executed)
    return stopped


@draws(80, quick=8)
@given(st.data())
def test_tokens_stop_where_their_twins_do_with_the_same_logits_and_gradients(data: st.DataObject) -> None:
    model = data.draw(models_that_can_stop())
    run_as(model, **exit_of(model), compaction=data.draw(st.sampled_from(["auto", "always", "never"])))
    batch = data.draw(sentences(model.config))
    check_stopping(model, batch, data.draw(st.sampled_from([right_padded, left_padded]))(batch))


OF_STACKS = [(criterion, "token", "decoder") for criterion in CRITERIA_AT_TEST]
# Those that need predictions cannot stop tokens of an encoder, nor whole sentences.
OF_STACKS += [
    (one, scope, "encoder") for one in OF_STATES if one in CRITERIA_AT_TEST for scope in ("token", "sequence")
]


@pytest.mark.parametrize("keys", ["first", "all"])
def test_predictions_leave_no_keys_for_the_segments_behind_the_loop(keys: str) -> None:
    attention = {"n_heads": 2}
    behind = {"n_steps": 1, "repeats": 2, "fixed": True, "keys": keys}

    def model_of(n_rounds: int) -> Model:
        segments = [{"n_steps": 1, "repeats": n_rounds}, behind]
        decoder = {"n_steps": 2, "self_attention": attention, "ffn": {"d_ff": 6}, "segments": segments}
        return random_model(
            LanguageModelConfig.model_validate({"d_model": 4, "dropout": 0.0, "vocab_size": 7, "decoder": decoder})
        )

    model, batch = model_of(3), [Sentence(None, [1, 5, 6, 3])]
    padded = right_padded(batch)
    after_one, after_two, _ = model(padded, request=["rounds"]).stacks["decoder"].rounds
    for n, found in ((2, after_two), (1, after_one)):
        assert_equal(found(), model_of(n)(padded).stacks["decoder"].states_BTD, f"after {n} rounds")
    run_as(model, exit="settled", exit_scope="token", halting_threshold=0.3)
    check_stopping(model, batch, padded)


@pytest.mark.sampled
@pytest.mark.parametrize(("criterion", "scope", "name"), OF_STACKS)
def test_tokens_stop_in_different_rounds_by_every_criterion(criterion: str, scope: str, name: str) -> None:
    model, padded = random_model(looped("injection by sum")), right_padded(RAGGED)
    run_as(model, exit=criterion, exit_scope=scope, halting_threshold=1.0)
    trace = model(padded).stacks[name].halting
    tokens = padded.source if name == "encoder" else padded.target
    assert trace is not None
    assert tokens is not None
    confidences = trace.probs_BTR.detach()[tokens.keep_BT][:, -2].unique()  # after the last round but one
    middle = len(confidences) // 2
    threshold = float(confidences[middle - 1 : middle + 1].mean())  # reached by some tokens, not by all
    run_as(model, halting_threshold=threshold)
    stopped = check_stopping(model, RAGGED, padded)
    assert len({n for stack, n in stopped if stack == name}) > 1, stopped


def test_cached_steps_read_what_their_twins_read_whatever_is_kept_and_whoever_has_stopped() -> None:
    seen: Counter[Any] = Counter()

    @draws(120 if LOOKS_AT_ALL else 20)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        model, way = data.draw(models_and_ways())
        config = model.config
        run_as(model, **way, compaction=data.draw(st.sampled_from(["auto", "always", "never"])))
        batch = data.draw(sentences(config))
        padded = left_padded(batch) if len({len(s.target) for s in batch}) > 1 else right_padded(batch)
        cuts = _cuts(data, padded.target.ids_BT.shape[1], _least_first_step(config, padded))
        # What is on the left of a sentence is padding, which is fed as it stands.
        n_padded = (~padded.target.keep_BT).sum(1).tolist()
        twins = []
        for sentence, missing in zip(batch, n_padded, strict=True):
            ends = [end - missing for _, end in cuts if end > missing]
            twins.append(dict(zip(ends, cached_twin(model, sentence, ends, way.get("cached_rounds")), strict=True)))
        with torch.no_grad():
            cache = model.encode(padded)
            for start, end in cuts:
                ids, keep = (one[:, start:end] for one in (padded.target.ids_BT, padded.target.keep_BT))
                logits_BV = model.step(ids, cache, keep)
                for b, missing in enumerate(n_padded):
                    if end > missing:
                        assert_equal(logits_BV[b], twins[b][end - missing], f"sentence {b}, columns {start} to {end}")
        seen.update([way.get("exit"), way.get("cached_rounds")])

    check()
    assert any(seen[n_kept] for n_kept in KEPT)
    if LOOKS_AT_ALL:
        assert {*CRITERIA_AT_TEST, *KEPT} <= set(seen)


@pytest.mark.skipif(library() is None, reason="no C compiler here")
def test_hypotheses_that_change_places_are_decoded_by_kernels_as_by_plain_code() -> None:
    seen: Counter[Any] = Counter()

    @draws(100 if LOOKS_AT_ALL else 14)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        model, way = data.draw(models_and_ways())
        config = model.float().config
        run_as(model, **way, compaction=data.draw(st.sampled_from(["auto", "always", "never"])))
        batch = left_padded(data.draw(sentences(config)))
        n_beams, n_sentences = data.draw(st.integers(1, 3)), len(batch.target.ids_BT)
        keep = sorted(data.draw(st.sets(st.integers(0, n_sentences - 1), min_size=1)))
        with torch.no_grad():
            expected = logits_of_steps(model, batch, n_beams, keep)
            with packing():
                found = logits_of_steps(model, batch, n_beams, keep)
        assert_near(found, expected)
        seen.update([way.get("exit"), way.get("cached_rounds")])

    check()
    assert any(seen[one] for one in CRITERIA_AT_TEST)
    if LOOKS_AT_ALL:
        assert {*CRITERIA_AT_TEST, *KEPT} <= set(seen)


@draws(24 if LOOKS_AT_ALL else 8)
@given(st.data())
def test_the_cache_that_keeps_some_rounds_is_as_large_as_counted(data: st.DataObject) -> None:
    config = data.draw(any_architecture(fully_shared=True).filter(lambda one: kept_of(build_model(one))))
    model = never_halting(build_model(config)).eval()
    way = kept_of(model)
    beam, target_length = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([4, 36]))
    batch = _batch(config, 2, 7, target_length)
    with torch.inference_mode(), model.execution(**way):
        cache = model.encode(batch)
        model.step(batch.target.ids_BT[:, :1], cache)
        cache.expand(beam, 2)
        for column in batch.target.ids_BT[:, 1:].repeat_interleave(beam, 0).split(1, 1):
            if beam > 1:
                cache.reorder(torch.arange(2 * beam))
            model.step(column, cache)
    assert count_bytes(config, 7, target_length, batch_size=2, beam=beam, **way).cache == _held(cache)


# Sums weighted by gates are element-wise in a budget, and readouts make more of them.
@draws(20)
@given(models_that_can_stop(has_experts=False), st.integers(2, 9), st.integers(2, 9))
def test_realised_macs_of_tokens_that_stop_agree_with_the_flop_counter(
    model: Model, source_length: int, target_length: int
) -> None:
    run_as(model, **exit_of(model))
    check_realised_macs_of(model, source_length, target_length)
