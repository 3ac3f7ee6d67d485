"""Contract 1: without sharing, experts and halting a model is the plain Transformer; sharing is tied weights.

Every model the configuration can express is compared with its plain per-token twin in logits and all gradients.
"""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import given, seed
from hypothesis import strategies as st
from torch import Tensor, nn

from architectures import (
    BOS,
    EOS,
    Model,
    Sentence,
    any_architecture,
    draws,
    left_padded,
    random_model,
    right_padded,
    sentences,
)
from contract import assert_all_equal, assert_equal, gradients, gradients_with_costs, real_logits, weights_of
from haltings import selects
from loops import LOOPS, looped
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.positions import CoordinatesConfig, NoSignalConfig
from ostinato.config.stack import DecoderConfig, NormConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError
from ostinato.models import Seq2Seq, build_model
from ostinato.nn.types import HaltingTrace
from reference.halting import Act, Whole
from reference.twin import twin, twin_with_depths
from running import run_as
from traits import all_traits, traits

IS_WHOLE = "OSTINATO_ALL_DRAWS" in os.environ
LEAST_DRAWN = 200 if IS_WHOLE else 20
"""Models that are compared whatever they cover; of `make test-all` further ones that have what none before had, nor any
of `loops.LOOPS`, which are compared with their twins in test_contract_loops.py."""
FIRST = {"seq2seq": 2 * LEAST_DRAWN // 3, "language_model": LEAST_DRAWN - 2 * LEAST_DRAWN // 3}
FURTHER = {"seq2seq": 10, "language_model": 6}
"""Models in one series of draws: in the first, and in those after it. They are short, because what a series covers is
known in the next one only."""
MOST_SERIES = 60


def compare_with_twin(data: st.DataObject, config: Seq2SeqConfig | LanguageModelConfig) -> None:
    """Draw sentences for a model, and compare logits, depths and gradients."""
    batch = data.draw(sentences(config, max_sentences=2, max_length=5))
    pad = data.draw(st.sampled_from([right_padded, left_padded]))
    check_twin(random_model(config, seed=data.draw(st.integers(0, 99))), batch, pad(batch))


def check_twin(model: Model, batch: list[Sentence], padded: Batch) -> None:
    """Compare logits, depths and gradients."""
    output = model(padded)
    logits = [row[keep] for row, keep in zip(output.logits_BTV, padded.target.keep_BT, strict=True)]
    expected, depths = (list(values) for values in zip(*(twin_with_depths(model, s) for s in batch), strict=True))
    for i, (found, wanted) in enumerate(zip(logits, expected, strict=True)):
        assert_equal(found, wanted, f"logits of sentence {i}")
    weights = weights_of(batch, logits[0].shape[1])
    costs, expected_costs = [], []
    for name, stack in output.stacks.items():
        tokens = padded.source if name == "encoder" else padded.target
        of_stack = [one[name] for one in depths]
        assert tokens is not None
        assert_same_depths(stack.halting, tokens.keep_BT, of_stack)
        if stack.depth_cost is not None:
            costs.append(stack.depth_cost)
            expected_costs.append(torch.stack([c for one in of_stack for c in one.costs() or ()]).mean())
    for found, wanted in zip(costs, expected_costs, strict=True):
        assert_equal(found, wanted, "cost of depth")
    weights += [torch.tensor(2.0 + i) for i in range(len(costs))]
    assert_all_equal(gradients(model, logits + costs, weights), gradients(model, expected + expected_costs, weights))


def test_every_model_equals_its_per_token_twin_in_logits_depths_and_all_gradients() -> None:
    covered = {trait for name in LOOPS for trait in traits(looped(name))}
    n_drawn = 0

    def check(data: st.DataObject, kind: str) -> None:
        nonlocal n_drawn
        config = data.draw(any_architecture(kind=kind))
        if known is not None and not traits(config) - known:
            return
        compare_with_twin(data, config)
        n_drawn += 1
        covered.update(traits(config))

    known: set[str] | None = None  # the same for all draws of a series, which may come again
    for series in range(MOST_SERIES if IS_WHOLE else 1):
        for kind, n in (FURTHER if series else FIRST).items():
            known = set(covered) if series else None
            draws(n, quick=n)(seed(series)(given(st.data(), st.just(kind))(check)))()
        if not all_traits() - covered:
            break
    assert n_drawn >= 0.9 * LEAST_DRAWN  # hypothesis may come back to what it has drawn
    assert all_traits() - covered == set() or not IS_WHOLE


@pytest.mark.skipif("OSTINATO_DEVICE" not in os.environ, reason="for a device: the test above compares more of them")
@pytest.mark.device
@draws(40)
@given(st.data())
def test_drawn_models_equal_their_twins(data: st.DataObject) -> None:
    compare_with_twin(data, data.draw(any_architecture()))


def assert_same_depths(trace: HaltingTrace | None, keep_BT: Tensor, expected: list[Whole]) -> None:
    """Compare what every token did and what its rounds weigh; rounds after a sentence's last weigh nothing."""
    if trace is None:
        assert all(not any(one.weights) for one in expected)
        return
    assert not bool(trace.executed_BTR[~keep_BT].any())
    assert bool((trace.weights_BTR[~keep_BT] == 0).all())
    for executed_BR, weights_BR, keep_B, one in zip(
        trace.executed_BTR, trace.weights_BTR, keep_BT, expected, strict=True
    ):
        assert executed_BR[keep_B].sum(-1).tolist() == (one.updates if isinstance(one, Act) else one.n_executed)
        for found_R, wanted in zip(weights_BR[keep_B], one.weights, strict=True):
            padding = found_R.new_zeros(len(found_R) - len(wanted))
            assert_equal(found_R, torch.cat([torch.stack(wanted), padding]), "weights of rounds")


def test_the_first_sub_layer_may_stand_in_a_later_step() -> None:
    """Then it is that one which has no norm of what it reads."""
    norm = {"placement": "pre", "first": False}
    stack = {"n_steps": 2, "self_attention": {"share": [None, 0], "n_heads": 1}, "ffn": {"d_ff": 4}, "norm": norm}
    stack["ffn"]["share"] = "none"  # type: ignore[index]
    config = {"d_model": 4, "dropout": 0.0, "vocab_size": 7, "decoder": stack}
    model, sentence = random_model(LanguageModelConfig.model_validate(config)), Sentence(None, [1, 3, 5])
    assert_equal(model(right_padded([sentence])).logits_BTV[0], twin(model, sentence), "logits")


@pytest.mark.device
@pytest.mark.parametrize("halts", [False, True], ids=["fixed depth", "halting"])
@draws(20, quick=5)
@given(data=st.data())
def test_recomputed_steps_have_the_same_gradients_of_logits_and_costs_of_depth(
    halts: bool, data: st.DataObject
) -> None:
    def is_wanted(config: Seq2SeqConfig | LanguageModelConfig) -> bool:
        return halts == any(stack.halting.kind != "none" for stack in config.stacks().values())

    config = data.draw(any_architecture().filter(is_wanted))
    check_recomputed(random_model(config).train(), data.draw(sentences(config)))


def check_recomputed(model: Model, batch: list[Sentence]) -> None:
    """Compare gradients where steps are recomputed, and where they are not."""
    found = {}
    for enabled in (False, True):
        run_as(model, recompute=enabled)
        torch.manual_seed(5)  # of what is dropped, of noise and of sampled experts
        found[enabled] = gradients_with_costs(model, right_padded(batch))
    assert_all_equal(found[True], found[False])


@pytest.mark.device
@draws(20, quick=8)
@given(st.data())
def test_depth_at_call_time_is_the_model_of_that_depth(data: st.DataObject) -> None:
    config = data.draw(any_architecture(fully_shared=True))
    batch = data.draw(sentences(config))
    n_rounds = data.draw(st.integers(1, 4))
    model = random_model(config)
    expected = [twin(model, s, n_rounds) for s in batch]
    for found, wanted in zip(real_logits(model, right_padded(batch), n_rounds), expected, strict=True):
        assert_equal(found, wanted, f"{n_rounds} rounds")
    if selects(config):
        return  # a model with more rounds has more routers
    if any(
        one.norms == "by_round" or one.vectors or one.delta_rank or one.modulation.kind == "by_round"
        for stack in config.stacks().values()
        for one in stack.segments
    ):
        return  # a model of more rounds has more that belongs to one of them
    deeper = random_model(_with_rounds(config, n_rounds))
    missing = {n for n, _ in model.named_parameters()} ^ {n for n, _ in deeper.named_parameters()}
    assert not missing
    deeper.load_state_dict(model.state_dict())
    for found, wanted in zip(
        real_logits(model, right_padded(batch), n_rounds), real_logits(deeper, right_padded(batch)), strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def _with_rounds(config: Seq2SeqConfig | LanguageModelConfig, n_rounds: int) -> Seq2SeqConfig | LanguageModelConfig:
    """Return the same fully shared model with another number of rounds in its configuration."""
    stacks = {}
    for name, stack in config.stacks().items():
        if stack.segments:
            own = [s if s.repeats is None else s.model_copy(update={"repeats": n_rounds}) for s in stack.segments]
            stacks[name] = stack.model_copy(update={"segments": own})
            continue
        update: dict[str, object] = {"n_steps": n_rounds * stack.steps_per_round}
        for kind, sub in stack.sub_layers():
            if isinstance(sub.share, list):
                share = sub.share[: stack.steps_per_round] * n_rounds
                update[kind] = sub.model_copy(update={"share": share})
        if (values := stack.value_embeddings) is not None and isinstance(values.share, list):
            share = values.share[: stack.steps_per_round] * n_rounds
            update["value_embeddings"] = values.model_copy(update={"share": share})
        stacks[name] = stack.model_copy(update=update)
    return config.model_copy(update=stacks)


# --- the Transformer of torch ----------------------------------------------------------------------------------------

D, H, F, V = 12, 3, 20, 11


@pytest.mark.parametrize("placement", ["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_without_sharing_a_model_is_the_transformer_of_torch(placement: str, activation: str) -> None:
    stack = {
        "n_steps": 3,
        "self_attention": AttentionConfig(n_heads=H),
        "ffn": DenseFeedForwardConfig(d_ff=F, activation=activation),  # type: ignore[arg-type]
        "norm": NormConfig(placement=placement),  # type: ignore[arg-type]
        "positions": NoSignalConfig(),
    }
    model = random_model(
        Seq2SeqConfig(
            d_model=D,
            dropout=0.0,
            source_vocab_size=V,
            target_vocab_size=V,
            encoder=StackConfig(**stack),  # type: ignore[arg-type]
            decoder=DecoderConfig(cross_attention=AttentionConfig(n_heads=H), **stack),  # type: ignore[arg-type]
        )
    )
    assert isinstance(model, Seq2Seq)
    batch = right_padded([Sentence([4, 5, 6, 7, EOS], [BOS, 8, 9]), Sentence([4, EOS], [BOS, 5, 6, 7, 10])])
    assert batch.source is not None
    reference = _torch_transformer(model, is_pre=placement == "pre", activation=activation)
    states_BTD = reference(
        model.embed(batch.source.ids_BT, model.source_embedding),
        model.embed(batch.target.ids_BT, model.target_embedding),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(batch.target.ids_BT.shape[1]).isinf(),
        src_key_padding_mask=~batch.source.keep_BT,
        tgt_key_padding_mask=~batch.target.keep_BT,
        memory_key_padding_mask=~batch.source.keep_BT,
    )
    expected = states_BTD @ model.output_projection.T
    for i, found in enumerate(real_logits(model, batch)):
        assert_equal(found, expected[i][batch.target.keep_BT[i]], f"logits of sentence {i}")


def _torch_transformer(model: Seq2Seq, *, is_pre: bool, activation: str) -> nn.Transformer:
    """Return torch's Transformer holding a copy of the model's weights, layer by layer."""
    options = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": is_pre}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(D, H, F, **options),  # type: ignore[arg-type]
        3,
        norm=nn.LayerNorm(D) if is_pre else None,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(D, H, F, **options),  # type: ignore[arg-type]
        3,
        norm=nn.LayerNorm(D) if is_pre else None,
    )
    reference = nn.Transformer(D, H, custom_encoder=encoder, custom_decoder=decoder, batch_first=True).double()
    banks = model.banks
    for stack, layers in (("encoder", encoder.layers), ("decoder", decoder.layers)):
        for step, layer in enumerate(layers):
            name = f"{stack}_{step}"
            _copy_attention(layer.self_attn, banks.self_attention[name])
            norms = [f"self_attention_{name}", f"ffn_{name}"]
            if stack == "decoder":
                _copy_attention(layer.multihead_attn, banks.cross_attention[name])
                norms.insert(1, f"cross_attention_{name}")
            for number, norm in enumerate(norms, start=1):
                getattr(layer, f"norm{number}").load_state_dict(banks.norm[norm].state_dict())
            layer.linear1.load_state_dict(banks.ffn[name].up.state_dict())  # type: ignore[union-attr]
            layer.linear2.load_state_dict(banks.ffn[name].down.state_dict())  # type: ignore[union-attr]
        if is_pre:
            final = encoder.norm if stack == "encoder" else decoder.norm
            assert final is not None
            final.load_state_dict(banks.norm[f"final_{stack}"].state_dict())
    return reference.train()  # the fast path of evaluation would hide differences behind another kernel


def _copy_attention(torch_attention: nn.Module, ours: nn.Module) -> None:
    state = ours.state_dict()
    torch_attention.load_state_dict(
        {
            "in_proj_weight": state["qkv.weight"],
            "in_proj_bias": state["qkv.bias"],
            "out_proj.weight": state["out.weight"],
            "out_proj.bias": state["out.bias"],
        }
    )


# --- sharing is tied weights -----------------------------------------------------------------------------------------


def _universal(share: str) -> Model:
    sub = {"share": share}
    stack = {
        "n_steps": 3,
        "self_attention": AttentionConfig(n_heads=2, **sub),  # type: ignore[arg-type]
        "ffn": DenseFeedForwardConfig(d_ff=10, **sub),  # type: ignore[arg-type]
        "positions": CoordinatesConfig(),
    }
    config = Seq2SeqConfig(
        d_model=8,
        dropout=0.0,
        source_vocab_size=V,
        target_vocab_size=V,
        encoder=StackConfig(**stack),  # type: ignore[arg-type]
        decoder=DecoderConfig(cross_attention=AttentionConfig(n_heads=2, **sub), **stack),  # type: ignore[arg-type]
    )
    return random_model(config)


def test_a_universal_transformer_is_a_transformer_with_tied_weights() -> None:
    universal, individual = _universal("all"), _universal("individual")
    tied = dict(universal.state_dict())
    individual.load_state_dict({name: tied[_first_set(name)] for name in individual.state_dict()})
    batch = [Sentence([4, 5, 6, EOS], [BOS, 8, 9]), Sentence([4, EOS], [BOS, 5, 6, 7, 10])]
    shared, separate = (real_logits(model, right_padded(batch)) for model in (universal, individual))
    for found, wanted in zip(shared, separate, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    weights = weights_of(batch, V)
    summed: dict[str, Tensor] = {}
    for name, gradient in gradients(individual, separate, weights).items():
        first = _first_set(name)
        summed[first] = summed[first] + gradient if first in summed else gradient
    assert_all_equal(gradients(universal, shared, weights), {n: summed[n] for n, _ in universal.named_parameters()})


def _first_set(name: str) -> str:
    """Return the name that a parameter of step 0, 1 or 2 has where all steps share one set."""
    return name.replace("coder_1", "coder_0").replace("coder_2", "coder_0")


def test_one_step_is_one_layer_whatever_the_scheme() -> None:
    batch = right_padded([Sentence(None, [BOS, 4, 5, 6])])
    logits = []
    for share in ("individual", "all", "cycle"):
        unique = {"n_unique": 1} if share == "cycle" else {}
        sub = {"share": share, **unique}
        config = LanguageModelConfig(
            d_model=8,
            dropout=0.0,
            vocab_size=V,
            decoder=StackConfig(
                n_steps=1,
                self_attention=AttentionConfig(n_heads=2, **sub),  # type: ignore[arg-type]
                ffn=DenseFeedForwardConfig(d_ff=10, **sub),  # type: ignore[arg-type]
            ),
        )
        torch.manual_seed(0)
        logits.append(build_model(config)(batch).logits_BTV)
    torch.testing.assert_close(logits[1], logits[0], rtol=0, atol=0)
    torch.testing.assert_close(logits[2], logits[0], rtol=0, atol=0)


@pytest.mark.parametrize("bank", ["both", "encoder"])
def test_stacks_with_one_bank_of_attention_must_agree_on_its_window(bank: str) -> None:
    def config(encoder_window: int, decoder_window: int) -> Seq2SeqConfig:
        attention = {"n_heads": 2, "bank": bank}
        stack = {"n_steps": 2, "self_attention": attention, "ffn": {"d_ff": 4}}
        return Seq2SeqConfig.model_validate(
            {
                "d_model": 8,
                "encoder": stack | {"relative": {"kind": "window", "window": encoder_window}},
                "decoder": stack | {"relative": {"kind": "window", "window": decoder_window}},
            }
        )

    assert config(2, 2).decoder.relative == config(2, 2).encoder.relative
    with pytest.raises(ConfigError, match=rf"decoder\.relative\.window is 3: .*bank '{bank}'.*is 2"):
        config(2, 3)


def test_texts_of_a_source_that_a_separator_ends_do_not_see_each_other() -> None:
    config = Seq2SeqConfig.model_validate({"d_model": 8, "source_vocab_size": 6, "target_vocab_size": 6})
    model = random_model(config.model_copy(update={"source_separator_id": 4}))
    batch = [Sentence([4, 2], [1], None), Sentence([3, 5, 4, 2, 4], [1, 3], None)]
    check_twin(model, batch, right_padded(batch))
