"""The public face: names that need no deep import, and models that take plain tensors."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

import ostinato
import ostinato.nn
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import CheckpointError, ConfigError, DataError

SIZES = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}


@pytest.mark.parametrize("package", [ostinato, ostinato.nn])
def test_every_public_name_is_there_and_listed(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        package.other  # type: ignore[attr-defined]  # noqa: B018


def ids(n: int = 3, length: int = 5) -> torch.Tensor:
    return torch.randint(4, 9, (n, length), generator=torch.Generator().manual_seed(n))


def mask() -> torch.Tensor:
    return torch.arange(5) < torch.tensor([5, 3, 4])[:, None]


def test_a_language_model_and_an_encoder_take_ids_and_a_mask() -> None:
    lm = ostinato.build_model(ostinato.LanguageModelConfig(d_model=8, vocab_size=9, decoder=SIZES)).eval()
    encoder = ostinato.build_model(ostinato.EncoderConfig(d_model=8, vocab_size=9, encoder=SIZES)).eval()
    for model in (lm, encoder):
        batch = Batch(Tokens(ids(), mask()), ids(), mask())
        assert torch.equal(model(ids(), keep=mask()).logits_BTV, model(batch).logits_BTV)
        whole = Batch(Tokens(ids(), torch.ones_like(mask())), ids(), mask())
        assert torch.equal(model(ids()).logits_BTV, model(whole).logits_BTV)


@pytest.mark.parametrize("kind", [ostinato.Seq2SeqConfig, ostinato.LstmSeq2SeqConfig])
def test_an_encoder_decoder_takes_both_sides(kind: type) -> None:
    stacks = {} if kind is ostinato.LstmSeq2SeqConfig else {"encoder": SIZES, "decoder": SIZES}
    model = ostinato.build_model(kind(d_model=8, source_vocab_size=9, target_vocab_size=9, **stacks)).eval()
    source, target = ids(), ids(length=4)
    batch = Batch(Tokens(target, torch.ones(3, 4, dtype=torch.bool)), target, None, source=Tokens(source, mask()))  # type: ignore[arg-type]
    assert torch.equal(model(source, target, keep=mask()).logits_BTV, model(batch).logits_BTV)
    with pytest.raises(DataError, match="needs a source and a target"):
        model(source)


def test_what_is_no_ids_or_no_mask_of_them_is_named() -> None:
    model = ostinato.build_model(ostinato.LanguageModelConfig(d_model=8, vocab_size=9, decoder=SIZES))
    with pytest.raises(DataError, match=r"ids must be whole numbers \[B, T\], got torch.float32 of shape \(3, 5\)"):
        model(ids().float())
    with pytest.raises(DataError, match=r"of shape \(5,\)"):
        model(ids()[0])
    batch = Batch(Tokens(ids(), mask()), ids(), mask())
    with pytest.raises(DataError, match="go with token ids"):
        model(batch, keep=mask())
    with pytest.raises(DataError, match=r"must have their shape \(3, 5\), got \(3, 4\)"):
        model(ids(), keep=mask()[:, 1:])


def test_an_execution_is_given_to_a_call_or_set_for_a_block() -> None:
    stack = SIZES | {"self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    halting = {"kind": "act", "initial_bias": 0.0}
    config = ostinato.LanguageModelConfig(d_model=8, vocab_size=9, decoder=stack | {"n_steps": 4, "halting": halting})
    model = ostinato.build_model(config).eval()
    never, early = ostinato.Execution(halting=False), ostinato.Execution(halting_threshold=0.0)
    assert model(ids(), execution=never).stacks["decoder"].halting is None
    plain = model(ids()).logits_BTV
    with model.execution(early):
        assert model.halting_thresholds() == {"decoder": 0.0}
        inside = model(ids())
        assert torch.equal(model(ids(), execution=never).logits_BTV, model(ids(), execution=never).logits_BTV)
    assert torch.equal(inside.logits_BTV, model(ids(), execution=early).logits_BTV)
    assert inside.stacks["decoder"].halting is not None
    assert inside.stacks["decoder"].halting.executed_BTR.sum(-1).max() == 1
    assert torch.equal(model(ids()).logits_BTV, plain)
    assert model.halting_thresholds() == {"decoder": pytest.approx(0.99)}


def test_an_execution_that_makes_no_sense_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match="must lie in"):
        ostinato.Execution(halting_threshold=2.0)
    config = ostinato.LanguageModelConfig(d_model=8, vocab_size=9, decoder=SIZES)
    with pytest.raises(ConfigError, match="no token of this model can halt"):
        ostinato.build_model(config, ostinato.Execution(halting_threshold=0.5))
    model = ostinato.build_model(config)
    with pytest.raises(ConfigError, match="its stacks are: decoder"):
        model(ids(), execution=ostinato.Execution(rounds={"encoder": 3}))


def test_a_parameter_set_that_is_replaced_in_its_bank_is_used() -> None:
    stack = SIZES | {"norm": {"placement": "pre"}, "relative": {"kind": "rotary"}}
    model = ostinato.build_model(ostinato.LanguageModelConfig(d_model=8, vocab_size=9, decoder=stack)).eval()
    before = model(ids()).logits_BTV
    for bank in ("ffn", "norm", "relative"):
        for name, old in getattr(model.banks, bank).items():
            new = ostinato.nn.Rotary(4, 10.0) if bank == "relative" else copy.deepcopy(old)
            for parameter in new.parameters():
                parameter.data *= 1.5
            getattr(model.banks, bank)[name] = new
            after = model(ids()).logits_BTV
            assert not torch.equal(after, before), (bank, name)
            before = after


def test_what_wraps_a_model_is_refused_before_anything_is_replaced(tmp_path: Path) -> None:
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    model = ostinato.build_model(
        ostinato.LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": stack})
    )
    ostinato.save_model(model, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(CheckpointError, match="DataParallel is no model of this library: save what it wraps"):
        ostinato.save_model(torch.nn.DataParallel(model), tmp_path)  # type: ignore[arg-type]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
