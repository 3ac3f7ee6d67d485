"""Rounds by sentence: every sentence of a batch is what it is alone, with its own number of rounds."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import (
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    sentences,
)
from contract import assert_all_equal, assert_equal, gradients, weights_of
from ostinato.config.halting import NoHaltingConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.errors import ConfigError
from ostinato.models import build_model
from ostinato.nn import Execution, RoundsByLength, RoundsBySentence
from ostinato.nn.experts import Routed
from ostinato.nn.why_not import why_not_by_sentence


@draws(60)
@given(st.data())
def test_outputs_and_gradients_are_those_of_sentences_alone(data: st.DataObject) -> None:
    config = data.draw(any_architecture(fully_shared=True, halting=st.just(NoHaltingConfig())))
    model = random_model(config)
    stacks = [name for name, stack in model.stacks.items() if why_not_by_sentence(stack) is None]
    batch: list[Sentence] = data.draw(sentences(config))
    padded = data.draw(st.sampled_from([right_padded, left_padded]))(batch)
    rounds = {name: tuple(data.draw(st.integers(1, 5)) for _ in batch) for name in stacks}
    last, recompute = data.draw(st.sampled_from([None, 1, 2, 3])), data.draw(st.booleans())
    if recompute:
        model.train()  # nothing is dropped; noise would be drawn anew
        model.banks.start.eval()
        for module in model.modules():
            if isinstance(module, Routed):  # sampled experts would be drawn anew, too
                module.eval()
    with model.execution(
        rounds={name: RoundsBySentence(given_) for name, given_ in rounds.items()},
        gradient_rounds=last,
        recompute=recompute,
    ):
        output = model(padded)
        logits = [row[keep] for row, keep in zip(output.logits_BTV, padded.target.keep_BT, strict=True)]
        weights = weights_of(batch, logits[0].shape[1])
        found = gradients(model, logits, weights)
    for name, asked in rounds.items():
        trace = output.stacks[name].halting
        assert trace is not None
        keep_BT = padded.target.keep_BT if name == "decoder" or padded.source is None else padded.source.keep_BT
        executed = [set(row[keep].sum(-1).tolist()) for row, keep in zip(trace.executed_BTR, keep_BT, strict=True)]
        assert executed == [{n} for n in asked]
    total = {name: torch.zeros_like(gradient) for name, gradient in found.items()}
    for i, sentence in enumerate(batch):
        own = {name: asked[i] for name, asked in rounds.items()}
        with model.execution(rounds=own, gradient_rounds=last):
            alone = model(right_padded([sentence])).logits_BTV[0]
        assert_equal(logits[i], alone, f"logits of sentence {i}")
        for name, gradient in gradients(model, [alone], [weights[i]]).items():
            total[name] = total[name] + gradient
    assert_all_equal(found, total)


def config_of(**stack: object) -> LanguageModelConfig:
    decoder = {"n_steps": 2, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    return LanguageModelConfig.model_validate({"vocab_size": 9, "d_model": 8, "decoder": decoder | stack})


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ({"positions": {"kind": "coordinates"}}, "the signal of the decoder tells rounds apart"),
        ({"halting": {"kind": "act"}}, "the tokens of the decoder halt by a rule of their own"),
        ({"n_steps": 1, "segments": [{"repeats": 2, "keys": "first"}]}, "read keys of earlier ones, in which some"),
    ],
)
def test_rounds_that_are_not_alike_are_refused(stack: dict[str, object], expected: str) -> None:
    model = build_model(config_of(**stack))
    with pytest.raises(ConfigError, match=expected), model.execution(rounds={"decoder": RoundsBySentence((1, 2))}):
        model(torch.full((2, 3), 4))


def test_every_sentence_needs_a_number() -> None:
    model = build_model(config_of())
    with (
        model.execution(rounds={"decoder": RoundsBySentence((1, 2))}),
        pytest.raises(ValueError, match="rounds are given for 2 sentences, and there are 3"),
    ):
        model(torch.full((3, 3), 4))


def test_what_all_rounds_share_keeps_its_gradient_where_the_first_have_none() -> None:
    """Keys of the memory and biases of positions: by hand, the last round starts from what the others left."""
    segments = [{"repeats": 3, "state": {"kind": "zeros"}, "inject": {"kind": "add"}}]
    sub_layers = {"self_attention": {"n_heads": 2}, "cross_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    decoder = {"n_steps": 1, "segments": segments, "relative": {"kind": "buckets", "n_buckets": 4}} | sub_layers
    encoder = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    sizes = {"source_vocab_size": 9, "target_vocab_size": 9, "d_model": 8, "dropout": 0.0}
    model = random_model(Seq2SeqConfig.model_validate(sizes | {"encoder": encoder, "decoder": decoder}))
    source, target = torch.randint(4, 9, (2, 6)), torch.randint(4, 9, (2, 5))
    weights = [torch.randn(2, 5, 9, dtype=torch.float64)]
    with model.execution(gradient_rounds=1):
        found = gradients(model, [model(source, target).logits_BTV], weights)
    with torch.no_grad(), model.execution(rounds={"decoder": 2}):
        left = model(source, target, request=("rounds",)).stacks["decoder"].left[-1]
    model.banks.start["decoder_0"].forward = lambda entry, positions: left
    with model.execution(rounds={"decoder": 1}):
        assert_all_equal(found, gradients(model, [model(source, target).logits_BTV], weights))
    assert float(found["source_weight"].abs().max()) > 0


@pytest.mark.parametrize("rounds", [RoundsBySentence((0, 2)), RoundsBySentence((-3, 2)), RoundsByLength(math.nan),
                                    RoundsByLength(-1.0), RoundsByLength(1.0, math.inf)])  # fmt: skip
def test_numbers_of_rounds_that_cannot_be_are_refused(rounds: RoundsByLength | RoundsBySentence) -> None:
    with pytest.raises(ConfigError, match=r"rounds\.decoder is Rounds"):
        Execution(rounds={"decoder": rounds})


@pytest.mark.parametrize("settings", [{}, {"strategy": "beam", "beam": 2}])
def test_a_search_refuses_rounds_by_sentence_of_the_decoder(settings: dict[str, object]) -> None:
    stack = {"n_steps": 2, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    model = build_model(LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": stack}))
    ids = torch.tensor([[5, 6], [7, 8]])
    execution = Execution(rounds={"decoder": RoundsBySentence((1, 2))})
    assert model(ids, execution=execution).logits_BTV.shape == (2, 2, 9)
    with pytest.raises(ConfigError, match=r"rounds\.decoder is 'by sentence': a search gives all its sentences one"):
        model.generate(ids, execution=execution, max_length=3, **settings)
