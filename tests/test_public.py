"""The public face: names that need no deep import, and models that take plain tensors."""

from __future__ import annotations

import copy
import pkgutil
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import BaseModel

import ostinato
import ostinato.nn
from ostinato.config.schema import slots_of
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.nn.halting import NoHalting

SIZES = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}


@pytest.mark.parametrize("package", [ostinato, ostinato.nn])
def test_every_public_name_is_there_and_listed(package: object) -> None:
    for name in package.__all__:  # type: ignore[attr-defined]
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        package.other  # type: ignore[attr-defined]  # noqa: B018


def test_every_configuration_that_a_recipe_reaches_is_a_public_name() -> None:
    reached, left = set[type[BaseModel]](), list[type[BaseModel]]([ostinato.Recipe])
    while left:
        if (node := left.pop()) not in reached:
            reached.add(node)
            left += [inner for slot in slots_of(node).values() for inner in slot.nodes.values()]
    assert len(reached) > 80
    assert [node.__name__ for node in reached if getattr(ostinato, node.__name__, None) is not node] == []
    assert {node.__name__ for node in reached} <= set(ostinato.__all__)


def test_every_module_with_parameters_is_a_public_name_of_nn() -> None:
    modules = {
        name
        for found in pkgutil.iter_modules(ostinato.nn.__path__, "ostinato.nn.")
        for name, one in vars(import_module(found.name)).items()
        if isinstance(one, type) and issubclass(one, torch.nn.Module) and one.__module__ == found.name
    }
    bases = {"Injection", "RelativePositions", "Routed", "Router"}
    without = {"Alibi", "BesideInjection", "InputState", "NoiseState", "ZeroState"}
    holders = {"SeveralStates", "_Sum"}  # they only hold modules that are public
    assert modules - set(ostinato.nn.__all__) == bases | without | holders


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


@pytest.mark.untyped
def test_lists_and_arrays_in_place_of_tensors_are_named() -> None:
    lm = ostinato.build_model(ostinato.LanguageModelConfig(d_model=8, vocab_size=9, decoder=SIZES))
    sizes = {"source_vocab_size": 9, "target_vocab_size": 9}
    pairs = ostinato.build_model(ostinato.Seq2SeqConfig(d_model=8, encoder=SIZES, decoder=SIZES, **sizes))
    with pytest.raises(
        DataError, match=r"^ids must be a tensor, got list: torch.tensor makes .* Batch.from_lists pads"
    ):
        lm.generate([[1, 5, 6]])
    with pytest.raises(DataError, match=r"^source ids must be a tensor, got ndarray"):
        pairs.generate(ids().numpy())
    with pytest.raises(DataError, match=r"^target ids must be a tensor, got list"):
        pairs(ids(), ids().tolist())
    with pytest.raises(DataError, match=r"^the mask of ids must be a tensor, got list"):
        lm(ids(), keep=mask().tolist())
    with pytest.raises(DataError, match=r"^loss takes a batch with labels, got Tensor: Batch.from_lists makes one"):
        lm.loss(ids())


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


LOOP = {"n_steps": 4, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}


@pytest.mark.parametrize("kind", [ostinato.LanguageModelConfig, ostinato.Seq2SeqConfig])
def test_an_execution_is_given_to_generate_and_leaves_the_model_as_it_is(kind: type) -> None:
    torch.manual_seed(3)
    of_one = kind is ostinato.LanguageModelConfig
    sizes = {"vocab_size": 9} if of_one else {"source_vocab_size": 9, "target_vocab_size": 9, "encoder": LOOP}
    decoder = LOOP if of_one else LOOP | {"cross_attention": LOOP["self_attention"]}
    model = ostinato.build_model(kind(d_model=8, decoder=decoder, **sizes)).eval()
    sampled = {"strategy": "sample", "seed": 1, "max_length": 12}
    rounds = dict.fromkeys(model.stacks, 1)
    shallow, whole = (model.generate(ids(), **sampled, n_steps=n) for n in (1, None))
    assert shallow != whole
    assert model.generate(ids(), **sampled, execution=ostinato.Execution(rounds=rounds)) == shallow
    with model.execution(rounds=rounds):
        assert model.generate(ids(), **sampled) == shallow
        assert model.generate(ids(), **sampled, execution=ostinato.Execution()) == whole
    seen: list[ostinato.Execution] = []
    model.register_forward_pre_hook(lambda *given: seen.append(model.current_execution))
    batch = ostinato.Batch.from_lists(ids().tolist(), None if of_one else ids().tolist())
    model.loss(batch, halting=ostinato.DepthCostConfig(off_updates=9), update=1)
    assert seen == [model.current_execution]
    with pytest.raises(ConfigError, match="no token of this model can halt"):
        model.generate(ids(), execution=ostinato.Execution(halting_threshold=0.5))


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


@pytest.mark.parametrize("kind", ["act", "stick_breaking", "exit", "select", "token_choice"])
def test_a_gate_and_a_table_of_positions_that_are_replaced_in_their_banks_are_used(kind: str) -> None:
    torch.manual_seed(0)
    stack = LOOP | {"positions": {"kind": "learned", "max_length": 5}, "halting": {"kind": kind}}
    stack["halting"] |= {"threshold": 0.5} if kind == "exit" else {}
    config = ostinato.LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": stack})
    model = ostinato.build_model(config).eval()
    batch = ostinato.Batch.from_lists(ids(length=4).tolist())
    for bank in (model.banks.halting, model.banks.positions):
        new = copy.deepcopy(bank["decoder"])
        for parameter in new.parameters():
            parameter.data += torch.randn_like(parameter)
        before = model(batch).logits_BTV
        bank["decoder"] = new
        other = ostinato.build_model(config).eval()
        other.load_state_dict(model.state_dict())
        assert torch.equal(model(batch).logits_BTV, other(batch).logits_BTV)
        assert not torch.equal(model(batch).logits_BTV, before)
        assert model.generate(ids(length=2), max_length=3) == other.generate(ids(length=2), max_length=3)


@pytest.mark.untyped
@pytest.mark.parametrize("n", [np.int64(2), torch.tensor(2)])
def test_numbers_of_rounds_may_be_those_of_numpy_and_torch(n: object) -> None:
    model = ostinato.build_model(ostinato.LanguageModelConfig(d_model=8, vocab_size=9, decoder=LOOP)).eval()
    expected, found = (model(ids(), n_steps=given, request=["rounds"]).stacks["decoder"] for given in (2, n))
    assert torch.equal(found.states_BTD, expected.states_BTD)
    assert len(found.rounds) == 2
    execution = ostinato.Execution(rounds={"decoder": n})
    assert execution == ostinato.Execution(rounds={"decoder": 2})
    assert torch.equal(model(ids(), execution=execution).logits_BTV, model(ids(), n_steps=2).logits_BTV)
    with model.execution(execution):
        assert model.n_rounds() == {"decoder": 2}
    for wrong in (2.0, torch.tensor(2.0), "2", None):
        with pytest.raises(ConfigError, match=r"rounds\.decoder is .*: must be a whole number"):
            ostinato.Execution(rounds={"decoder": wrong})


@pytest.mark.untyped
def test_as_many_rounds_as_a_tensor_says_have_norms_deltas_and_gradients_of_their_own() -> None:
    torch.manual_seed(0)
    loop = {"n_steps": 1, "repeats": 4, "norms": "by_round", "delta_rank": 2}
    stack = {"n_steps": 1, "segments": [loop], "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    config = {"d_model": 8, "vocab_size": 9, "decoder": stack}
    model = ostinato.build_model(ostinato.LanguageModelConfig.model_validate(config)).eval()
    for parameter in model.parameters():  # deltas begin at 0
        parameter.data += 0.1 * torch.randn_like(parameter)
    found = []
    for n in (3, torch.tensor(3)):
        output = model(ids(), n_steps=n, execution=ostinato.Execution(gradient_rounds=1))
        output.logits_BTV.square().sum().backward()
        found.append([output.logits_BTV, *(p.grad for p in model.parameters() if p.grad is not None)])
        model.zero_grad(set_to_none=True)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.untyped
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


@pytest.mark.untyped
def test_rounds_that_are_no_whole_number_are_named() -> None:
    shared = {"n_steps": 2, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    model = ostinato.build_model(
        ostinato.LanguageModelConfig.model_validate({"d_model": 8, "vocab_size": 9, "decoder": shared})
    )
    for wrong in (torch.tensor(3.0), [1, 2], "4", 2.5, True):
        with pytest.raises(ConfigError, match=r"n_steps is .*must be a whole number"):
            model(torch.tensor([[1, 4]]), n_steps=wrong)


def test_a_rule_that_was_put_in_place_of_a_gate_is_not_given_one() -> None:
    halting = {"kind": "act", "freeze_halted_state": True}
    shared = {"n_steps": 2, "self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 8, "share": "all"}}
    config = {"d_model": 8, "vocab_size": 9, "decoder": shared | {"halting": halting}}
    stack = ostinato.build_model(ostinato.LanguageModelConfig.model_validate(config)).stacks["decoder"]
    stack.halting = NoHalting()
    (loop,) = stack.program(None, ostinato.nn.Execution())
    assert loop.rule is stack.halting
