"""Halting of pairs in combinations that no family has: what is asked beside a pass changes nothing of it, and sentences
that end early fill the caches of loops of several states."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from ostinato.config.model import Seq2SeqConfig
from ostinato.models import Model, build_model
from ostinato.models.base import as_batch

STACK: dict[str, Any] = {"self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
SOURCE = torch.randint(4, 12, (2, 5), generator=torch.Generator().manual_seed(1))
TARGET = torch.randint(4, 12, (2, 6), generator=torch.Generator().manual_seed(2))


def pair_model(encoder: dict[str, Any], decoder: dict[str, Any]) -> Model:
    torch.manual_seed(0)
    sizes = {"d_model": 8, "source_vocab_size": 12, "target_vocab_size": 12, "dropout": 0.0}
    return build_model(Seq2SeqConfig.model_validate(sizes | {"encoder": encoder, "decoder": decoder}))


@pytest.mark.parametrize("kind", ["stick_breaking", "act", "exit"])
def test_to_ask_for_rounds_changes_neither_costs_nor_traces(kind: str) -> None:
    encoder = STACK | {"n_steps": 3, "halting": {"kind": kind}}
    model = pair_model(encoder, STACK | {"n_steps": 3, "cross_attention": {"n_heads": 2, "share": "all"}}).train()
    found = []
    for request in ((), ("rounds",)):
        output = model(SOURCE, TARGET, request=request).stacks["encoder"]
        model.zero_grad()
        costs = [] if output.depth_cost is None else [output.depth_cost]
        for cost in costs:
            cost.backward()
        gradients = [p.grad.clone() for p in model.banks.halting.parameters() if p.grad is not None]
        trace = output.halting
        assert trace is not None
        torch.testing.assert_close(trace.weights_BTR.sum(-1), torch.ones(2, 5))
        found.append([*gradients, *costs, trace.weights_BTR, trace.executed_BTR])
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("keys", ["own", "all"])
@pytest.mark.parametrize("beam", [1, 3])
def test_sentences_that_end_early_fill_the_caches_of_several_states(keys: str, beam: int) -> None:
    states = [
        {"name": "low", "n_steps": 1, "adds": ["high", "input"], "state": {"kind": "zeros"}},
        {"name": "high", "n_steps": 1, "adds": ["low"], "state": {"kind": "input"}},
    ]
    segment = {"n_steps": 2, "repeats": 3, "inject": {"kind": "none"}, "keys": keys, "states": states}
    own = {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}, "norm": {"placement": "pre"}}
    decoder = own | {"n_steps": 2, "segments": [segment], "positions": {"kind": "sinusoidal"}}
    decoder |= {"cross_attention": {"n_heads": 2}, "halting": {"kind": "length", "per_token": 0.0, "extra": 2.0}}
    model = pair_model(own | {"n_steps": 1}, decoder).eval()
    given = {"max_length": 6, "strategy": "beam" if beam > 1 else "greedy", "beam": beam}
    found = model.generate(SOURCE, **given)
    with model.execution(compaction="never"):
        assert model.generate(SOURCE, **given) == found
    with torch.no_grad():
        whole_BTV = model(SOURCE, TARGET).logits_BTV
        cache = model.encode(as_batch(SOURCE, None, TARGET, None))
        for place in range(TARGET.shape[1]):
            step_BV = model.step(TARGET[:, place : place + 1], cache)
            torch.testing.assert_close(step_BV, whole_BTV[:, place], rtol=0, atol=1e-5)


def test_a_model_can_be_pickled() -> None:
    model = pair_model(STACK | {"n_steps": 2}, STACK | {"n_steps": 2, "cross_attention": {"n_heads": 2}}).eval()
    again = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        assert torch.equal(again(SOURCE, TARGET).logits_BTV, model(SOURCE, TARGET).logits_BTV)
