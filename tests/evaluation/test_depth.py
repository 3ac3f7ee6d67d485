from __future__ import annotations

from typing import Any

import pytest
import torch
from toy_task import DATA, letter_examples, letter_tokenizers, tiny_seq2seq

from architectures import BOS, Sentence, right_padded
from ostinato.config.decoding import DecodingConfig
from ostinato.config.stack import StackConfig
from ostinato.evaluation import evaluate
from ostinato.evaluation.depth import DepthTotals, describe, sentence_depths
from ostinato.models.output import ModelOutput
from ostinato.nn.types import HaltingTrace, StackOutput

GREEDY = DecodingConfig(max_length=8)


def _output(executed_by_stack: dict[str, list[list[list[int]]]]) -> ModelOutput:
    stacks: dict[str, StackOutput] = {}
    for name, executed in executed_by_stack.items():
        executed_BTR = torch.tensor(executed).bool()
        probs_BTR = torch.zeros(executed_BTR.shape)
        weights_BTR = torch.zeros(executed_BTR.shape)
        weights_BTR[..., 0], weights_BTR[..., -1] = 0.25, 0.75
        trace = HaltingTrace(probs_BTR, 1 - probs_BTR, executed_BTR, weights_BTR)
        stacks[name] = StackOutput(torch.zeros(*executed_BTR.shape[:2], 4), halting=trace)
    return ModelOutput(torch.zeros(*stacks["decoder"].states_BTD.shape[:2], 9), stacks)


def _describe(sums: dict[str, torch.Tensor]) -> dict[str, Any]:
    totals = DepthTotals()
    totals.add({name: sums_BV.sum(0) for name, sums_BV in sums.items()})
    return totals.compute()


def test_depth_is_the_mean_of_executed_rounds_over_real_tokens() -> None:
    rounds = {"encoder": 3, "decoder": 4}
    batch = right_padded([Sentence([4, 2], [BOS, 5, 6]), Sentence([2], [BOS])])
    encoder = [[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 1]]]
    decoder = [[[1, 0, 0]] * 3, [[1, 1, 1], [1, 1, 1], [1, 1, 1]]]
    found = _describe(sentence_depths(_output({"encoder": encoder, "decoder": decoder}), batch, rounds))
    # Two real source tokens and one: 2 + 1 + 3 rounds. Three real target tokens and one: 3 + 3.
    assert {name: numbers["mean"] for name, numbers in found.items()} == {"encoder": 6 / 3, "decoder": 6 / 4}
    assert found["encoder"]["histogram"] == [1, 1, 1]
    # The loop ended after three rounds of four.
    assert found["decoder"]["histogram"] == [3, 0, 1, 0]
    assert found["decoder"]["percentiles"] == {"50": 1, "90": 3, "99": 3}
    # The weights are those of a round 1 that is left with 1/4, and the rest in the last one.
    assert found["encoder"]["expected"] == pytest.approx((1 / 4 + 3 / 4 * 3), rel=1e-6)


def test_an_expected_depth_is_a_mean_of_rounds_also_where_their_weights_do_not_add_up_to_one() -> None:
    """The listing of UT does not force the remainder: a token's weights may add up to 0.1 or to 0."""
    batch = right_padded([Sentence([2], [BOS, 5, 6])])
    output = _output({"encoder": [[[1, 1]]], "decoder": [[[1, 1]] * 3]})
    trace = output.stacks["decoder"].halting
    assert trace is not None
    trace.weights_BTR[0] = torch.tensor([[0.05, 0.05], [0.0, 0.1], [0.0, 0.0]])
    found = _describe(sentence_depths(output, batch, {"encoder": 2, "decoder": 2}))
    assert found["decoder"]["expected"] == pytest.approx((1.5 + 2 + 2) / 3)
    assert found["decoder"]["mean"] == 2


def test_percentiles_are_depths_that_so_many_tokens_do_not_exceed() -> None:
    assert describe([50, 40, 0, 9, 1, 300.0])["percentiles"] == {"50": 1, "90": 2, "99": 4}
    assert describe([0, 0, 7, 21.0]) == {
        "mean": 3.0,
        "expected": 3.0,
        "percentiles": {"50": 3, "90": 3, "99": 3},
        "histogram": [0, 0, 7],
    }
    assert describe([0, 0, 0.0])["percentiles"] == {}


def test_where_no_token_halts_the_depth_is_the_rounds_that_ran() -> None:
    tokenizers = letter_tokenizers()
    model = tiny_seq2seq(tokenizers.target.vocab_size)
    own = {name: plan.n_rounds for name, plan in model.config.plans().items()}
    examples = letter_examples(5)
    result = evaluate(model, examples, tokenizers, data=DATA, decoding=GREEDY, metrics=[])
    assert result["depth"] == pytest.approx(own)
    deeper = model.config.model_copy(
        update={name: _shared(stack, n_steps=2) for name, stack in model.config.stacks().items()}
    )
    shared = type(model)(deeper)
    result = evaluate(shared, examples, tokenizers, data=DATA, decoding=GREEDY, metrics=[], n_steps=5)
    assert result["depth"] == {"encoder": 5.0, "decoder": 5.0}


def _shared(stack: StackConfig, n_steps: int) -> StackConfig:
    subs = {kind: sub.model_copy(update={"share": "all"}) for kind, sub in stack.sub_layers()}
    return stack.model_copy(update={"n_steps": n_steps, **subs})
