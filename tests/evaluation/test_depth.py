from __future__ import annotations

import pytest
import torch
from toy_task import DATA, letter_examples, letter_tokenizers, tiny_seq2seq

from architectures import BOS, Sentence, right_padded
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import StackConfig
from ostinato.evaluation import evaluate
from ostinato.evaluation.depth import DepthTotals
from ostinato.models.output import ModelOutput
from ostinato.nn.types import HaltingTrace, StackOutput

GREEDY = DecodingConfig(max_length=8)


def _output(executed_by_stack: dict[str, list[list[list[int]]]]) -> ModelOutput:
    stacks: dict[str, StackOutput] = {}
    for name, executed in executed_by_stack.items():
        executed_BTR = torch.tensor(executed).bool()
        probs_BTR = torch.zeros(executed_BTR.shape)
        trace = HaltingTrace(probs_BTR, 1 - probs_BTR, executed_BTR)
        stacks[name] = StackOutput(torch.zeros(*executed_BTR.shape[:2], 4), halting=trace)
    return ModelOutput(torch.zeros(*stacks["decoder"].states_BTD.shape[:2], 9), stacks)


def test_depth_is_the_mean_of_executed_rounds_over_real_tokens() -> None:
    totals = DepthTotals({"encoder": 3, "decoder": 3})
    batch = right_padded([Sentence([4, 2], [BOS, 5, 6]), Sentence([2], [BOS])])
    encoder = [[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [1, 1, 1]]]
    decoder = [[[1, 0, 0]] * 3, [[1, 1, 1], [1, 1, 1], [1, 1, 1]]]
    totals.add(_output({"encoder": encoder, "decoder": decoder}), batch)
    # Two real source tokens and one: 2 + 1 + 3 rounds. Three real target tokens and one: 3 + 3.
    assert totals.compute() == {"encoder": 6 / 3, "decoder": 6 / 4}
    again = right_padded([Sentence([2], [BOS])])
    totals.add(_output({"encoder": [[[1, 0, 0]]], "decoder": [[[1, 1, 0]]]}), again)
    assert totals.compute() == {"encoder": 7 / 4, "decoder": 8 / 5}


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
