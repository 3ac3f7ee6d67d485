"""Rounds by the length of the source: every sentence runs as a plain model of that many rounds would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import any_architecture, draws, left_padded, random_model, right_padded, sentences
from contract import assert_all_equal, assert_equal, gradients
from ostinato.budget import Assumptions, count_budget, count_macs
from ostinato.budget.depth import expected_depths
from ostinato.config.halting import ByLengthConfig
from ostinato.config.load import check_recipe
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError
from ostinato.kernels import packing
from ostinato.models import build_model
from ostinato.nn import RoundsByLength
from running import run_as

RULES = st.builds(ByLengthConfig, per_token=st.sampled_from([0.0, 0.4, 1.0]), extra=st.sampled_from([-1.0, 0.0, 2.0]))


@draws(40)
@given(st.data())
def test_a_sentence_runs_as_a_model_of_its_own_number_of_rounds(data: st.DataObject) -> None:
    rule = data.draw(RULES)
    config = data.draw(any_architecture(kind="seq2seq", fully_shared=True, halting=st.just(rule)))
    batch = data.draw(sentences(config))
    model = random_model(config)
    pad = data.draw(st.sampled_from([right_padded, left_padded]))
    run_as(model, compaction=data.draw(st.sampled_from(["never", "always"])))
    padded = pad(batch)
    output = model(padded)
    for row, sentence in enumerate(batch):
        found = {name: rule.rounds(len(sentence.source or ()), plan.n_rounds) for name, plan in config.plans().items()}
        assert padded.source is not None
        for name, tokens in ("encoder", padded.source), ("decoder", padded.target):
            trace = output.stacks[name].halting
            assert trace is not None
            assert set(trace.executed_BTR[row][tokens.keep_BT[row]].sum(-1).tolist()) == {found[name]}
            assert bool((trace.weights_BTR[row][tokens.keep_BT[row]].sum(-1) == 1).all())
            assert output.stacks[name].depth_cost is None
        with model.execution(halting=False, rounds=found):
            alone = model(right_padded([sentence])).logits_BTV[0]
        assert_equal(output.logits_BTV[row][padded.target.keep_BT[row]], alone, f"logits of sentence {row}")


@draws(30)
@given(st.data())
def test_gathered_or_masked_cached_or_whole_is_the_same(data: st.DataObject) -> None:
    config = data.draw(any_architecture(kind="seq2seq", halting=RULES))
    batch = right_padded(data.draw(sentences(config)))
    model = random_model(config)
    keep_BT = batch.target.keep_BT

    def run(compaction: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        run_as(model, compaction=compaction)
        logits = model(batch).logits_BTV[keep_BT]
        make = torch.Generator().manual_seed(1)
        weights = torch.randn(logits.shape, generator=make, dtype=torch.float64)
        return logits, gradients(model, [logits], [weights])

    (masked, of_masked), (gathered, of_gathered) = run("never"), run("always")
    assert_equal(gathered, masked, "logits")
    assert_all_equal(of_gathered, of_masked)
    with torch.no_grad():
        cache = model.encode(batch)
        for t in range(keep_BT.shape[1]):
            step_BV = model.step(batch.target.ids_BT[:, t : t + 1], cache)
            whole_BV = model(batch).logits_BTV[:, t]
            assert_equal(step_BV[keep_BT[:, t]], whole_BV[keep_BT[:, t]], f"logits of column {t}")
        model = model.float()
        expected = model(batch).logits_BTV
        with packing():
            cache = model.encode(batch)
            for t in range(keep_BT.shape[1]):
                step_BV = model.step(batch.target.ids_BT[:, t : t + 1], cache)
                real_B = keep_BT[:, t]
                torch.testing.assert_close(step_BV[real_B], expected[real_B, t], rtol=2e-4, atol=2e-4)


def _config(**halting: Any) -> Seq2SeqConfig:
    rule = ByLengthConfig(**halting)
    sizes: dict[str, Any] = {"source_vocab_size": 9, "target_vocab_size": 9, "d_model": 8}
    heads = {"self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}, "n_steps": 8}
    encoder = StackConfig.model_validate({**heads, "halting": rule.model_dump()})
    decoder = DecoderConfig.model_validate({**heads, "cross_attention": {"n_heads": 2, "share": "all"}})
    return Seq2SeqConfig(encoder=encoder, decoder=decoder, **sizes)


def test_another_maximum_at_call_time_lets_long_sources_go_deeper() -> None:
    model = build_model(_config(per_token=1.0)).eval()
    ids = torch.randint(4, 9, (1, 12))
    with torch.no_grad():
        own = model(ids, ids).stacks["encoder"].halting.executed_BTR.sum(-1)
        with model.execution(rounds={"encoder": 20}):
            deeper = model(ids, ids).stacks["encoder"].halting.executed_BTR.sum(-1)
    assert (own.unique().tolist(), deeper.unique().tolist()) == ([8], [12])


@pytest.mark.slow
@draws(20)
@given(st.data())
def test_by_length_at_call_time_is_the_rule_of_a_model_that_has_it(data: st.DataObject) -> None:
    rule = data.draw(RULES)
    config = data.draw(any_architecture(kind="seq2seq", fully_shared=True, halting=st.just(rule)))
    stacks = {
        name: stack.model_copy(update={"halting": _none()})
        for name, stack in {"encoder": config.encoder, "decoder": config.decoder}.items()
    }
    batch = right_padded(data.draw(sentences(config)))
    own = random_model(config).float()
    given = build_model(config.model_copy(update=stacks)).eval()
    given.load_state_dict(own.state_dict())
    rounds = dict.fromkeys(stacks, RoundsByLength(rule.per_token, rule.extra))
    assert batch.source is not None
    with torch.no_grad(), given.execution(rounds=rounds):
        assert_equal(given(batch).logits_BTV, own(batch).logits_BTV, "logits")
        written, expected = (m.generate(batch.source.ids_BT, batch.source.keep_BT, max_length=20) for m in (given, own))
        assert written == expected


def test_a_language_model_cannot_run_by_length_at_call_time() -> None:
    model = build_model(LanguageModelConfig(vocab_size=9))
    with (
        pytest.raises(ConfigError, match="a language model has no source"),
        model.execution(rounds={"decoder": RoundsByLength(1.0)}),
    ):
        pass


def test_rounds_with_times_are_the_same_for_a_whole_batch() -> None:
    timed = {"segments": [{"n_steps": 1, "repeats": 3, "modulation": {"kind": "by_time"}}], "n_steps": 1}
    shared = {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}} | timed
    sizes: dict[str, Any] = {"source_vocab_size": 9, "target_vocab_size": 9, "d_model": 8}
    with pytest.raises(ConfigError, match=r"halting\.kind is 'length': times of rounds .* for the whole batch"):
        Seq2SeqConfig.model_validate({**sizes, "encoder": {**shared, "halting": {"kind": "length"}}})
    model = build_model(Seq2SeqConfig.model_validate({**sizes, "encoder": shared}))
    with (
        pytest.raises(ConfigError, match="the rounds of the encoder have times, which follow from their number"),
        model.execution(rounds={"encoder": RoundsByLength(1.0)}),
    ):
        pass


def test_budgets_count_the_rounds_of_the_length_that_is_assumed() -> None:
    config = _config(per_token=0.5, extra=1.0)
    assert {n: config.encoder.halting.rounds(n, 8) for n in (1, 4, 5, 14, 99)} == {1: 2, 4: 3, 5: 4, 14: 8, 99: 8}
    depth = count_budget(config, Assumptions(source_length=4, target_length=6)).depth
    assert str(depth["encoder"]) == "3 of 8 rounds (by length)"
    assert str(depth["decoder"]) == "8 of 8 rounds (no halting)"
    plain = config.model_copy(update={"encoder": config.encoder.model_copy(update={"halting": _none()})})
    three = plain.model_copy(update={"encoder": plain.encoder.model_copy(update={"n_steps": 3})})
    assert count_macs(config, 4, 6).total == count_macs(three, 4, 6).total
    assert count_macs(config, 99, 6).total == count_macs(plain, 99, 6).total
    with pytest.raises(ConfigError, match="the source's length decides"):
        expected_depths(config, {"encoder": 5.0}, source_length=4)


def test_rounds_a_token_are_decimal_numbers() -> None:
    config = _config(per_token=0.07)
    assert config.encoder.halting.rounds(100, 8) == 7, "not the 8 of 7.000000000000001"
    model = build_model(config)
    ids = torch.full((1, 100), 3)
    keep = torch.ones_like(ids, dtype=torch.bool)
    batch = Batch(Tokens(ids, keep), ids, keep, source=Tokens(ids, keep))
    trace = model(batch, request=("halting",)).stacks["encoder"].halting
    assert trace.executed_BTR.sum(-1).unique().tolist() == [7]


def _none() -> Any:
    return StackConfig().halting


def test_a_language_model_has_no_source_and_nothing_learns_to_halt() -> None:
    stack = StackConfig(halting=ByLengthConfig())
    with pytest.raises(ConfigError, match=r"decoder\.halting\.kind is 'length': needs a source, whose length is known"):
        LanguageModelConfig(vocab_size=9, decoder=stack)
    assert build_model(_config()).halting_thresholds() == {}
    model = {"kind": "seq2seq", "encoder": {"halting": {"kind": "length"}}}
    recipe = {"task": {"kind": "scan"}, "model": model, "training": {"halting": {"weight": 0.1}}}
    with pytest.raises(ConfigError, match="no token of this model learns when to halt"):
        check_recipe(recipe)
