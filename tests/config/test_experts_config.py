"""What is impossible with experts is named with key, value and reason; a new kind keeps a recipe's common settings."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.config.experts import (
    ExpertAttentionConfig,
    ExpertFeedForwardConfig,
    GateConfig,
    HypersphereRouterConfig,
    LinearRouterConfig,
    MlpRouterConfig,
    RoutedConfig,
    SparseLayerConfig,
)
from ostinato.config.load import load_recipe_config
from ostinato.config.model import Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.errors import ConfigError, Problem


def problems(**settings: Any) -> list[Problem]:
    with pytest.raises(ConfigError) as error:
        RoutedConfig.model_validate(settings)
    return error.value.problems


def recipe_lines(settings: dict[str, Any], *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_recipe_config(settings, overrides)
    return str(caught.value).splitlines()


def test_a_token_cannot_have_more_experts_than_there_are() -> None:
    (problem,) = problems(n_experts=2, top_k=3)
    assert (problem.key, problem.value) == ("top_k", 3)
    assert problem.reason == "must be at most n_experts = 2"
    (problem,) = problems(n_experts=1)
    assert (problem.key, problem.value) == ("top_k", 2)


def test_no_more_experts_can_be_sampled_than_a_token_gets() -> None:
    (problem,) = problems(n_experts=4, top_k=2, gate={"n_sampled": 3})
    assert (problem.key, problem.value, problem.reason) == ("gate.n_sampled", 3, "must be at most top_k = 2")
    assert RoutedConfig(n_experts=4, top_k=2, gate=GateConfig(n_sampled=2)).gate.n_sampled == 2


@pytest.mark.parametrize(
    ("gate", "key", "value"),
    [
        ({"kind": "softmax", "renormalise": True}, "gate.renormalise", True),
        ({"kind": "topk_softmax"}, "gate.kind", "topk_softmax"),
    ],
)
def test_a_gate_that_is_always_1_is_refused_unless_there_is_no_router(
    gate: dict[str, Any], key: str, value: Any
) -> None:
    (problem,) = problems(n_experts=4, top_k=1, gate=gate)
    assert (problem.key, problem.value) == (key, value)
    assert "always has gate 1, and its router would get no gradient: use top_k of at least 2" in problem.reason
    assert not RoutedConfig.model_validate({"n_experts": 1, "top_k": 1, "gate": gate}).has_router
    assert RoutedConfig.model_validate({"n_experts": 4, "top_k": 2, "gate": gate}).has_router


def test_a_softmax_gate_is_renormalised_where_more_than_one_is_chosen_unless_said_otherwise() -> None:
    assert not RoutedConfig(n_experts=4, top_k=1).is_renormalised
    assert RoutedConfig(n_experts=4, top_k=2).is_renormalised
    assert not RoutedConfig(n_experts=4, top_k=2, gate=GateConfig(renormalise=False)).is_renormalised


def test_a_routing_space_of_one_dimension_is_refused_where_only_its_sign_would_count() -> None:
    with pytest.raises(ConfigError, match=r"d_router is 1: in one dimension every cosine is 1 or -1"):
        HypersphereRouterConfig(d_router=1)
    assert HypersphereRouterConfig(d_router=1, normalise=False).d_router == 1
    sphere = HypersphereRouterConfig()
    assert [RoutedConfig(n_experts=n, top_k=1, router=sphere).router_width for n in (2, 3, 6, 32)] == [2, 2, 3, 16]


def test_temperatures_start_where_the_gate_wants_them() -> None:
    sphere = HypersphereRouterConfig()
    assert RoutedConfig(router=sphere).temperature == 0.3
    assert RoutedConfig(router=sphere, gate=GateConfig(kind="sigmoid")).temperature == 0.07
    assert RoutedConfig(router=HypersphereRouterConfig(temperature=0.2)).temperature == 0.2
    assert RoutedConfig(router=LinearRouterConfig()).temperature == 1.0


def test_a_sparse_layer_follows_a_step_that_exists() -> None:
    with pytest.raises(ConfigError, match=r"sparse_layer\.after is 7: must be at most n_steps = 6"):
        StackConfig(sparse_layer=SparseLayerConfig(after=7))
    plan = StackConfig(n_steps=2, sparse_layer=SparseLayerConfig(after=2)).plan("encoder")
    assert [[use.weights for use in step.uses] for step in plan.steps] == [
        ["encoder_0"] * 2,
        ["encoder_1"] * 2,
        ["encoder_sparse"],
    ]
    assert [step.round for step in plan.steps] == [0, 1, 1]


def test_every_problem_of_a_recipe_is_a_line_with_its_whole_path() -> None:
    model = {
        "encoder": {
            "n_steps": 2,
            "ffn": {"kind": "experts", "n_experts": 2, "top_k": 3},
            "self_attention": {"kind": "experts", "top_k": 1, "gate": {"renormalise": True}},
            "sparse_layer": {"after": 3, "router": {"kind": "hypersphere", "d_router": 1}},
        },
        "decoder": {"cross_attention": {"kind": "experts", "n_heads": 7}},
    }
    found = recipe_lines({"model": model})
    assert sorted(line.split(": ")[0] for line in found) == [
        "model.decoder.cross_attention.n_heads is 7",
        "model.encoder.ffn.top_k is 3",
        "model.encoder.self_attention.gate.renormalise is True",
        "model.encoder.sparse_layer.after is 3",
        "model.encoder.sparse_layer.router.d_router is 1",
    ]


def test_an_unknown_router_and_a_misspelt_setting_are_named() -> None:
    ffn = {"kind": "experts", "router": {"kind": "cosine"}, "n_expert": 4}
    lines = recipe_lines({"model": {"encoder": {"ffn": ffn}}})
    assert any("model.encoder.ffn.router.kind" in line and "hypersphere" in line for line in lines)
    assert any("model.encoder.ffn.n_expert is 4: no such setting; did you mean n_experts?" in line for line in lines)


def shared(encoder: dict[str, Any], decoder: dict[str, Any], of: str = "ffn") -> Seq2SeqConfig:
    common = {"kind": "experts", "share": "all", "bank": "both"}
    sides = [{"n_steps": 2, of: common | own} for own in (encoder, decoder)]
    return Seq2SeqConfig.model_validate({"d_model": 8, "encoder": sides[0], "decoder": sides[1]})


def test_two_stacks_on_one_bank_of_experts_must_agree_on_the_experts_the_router_and_the_gate() -> None:
    assert shared({}, {}).plans()["decoder"].names("ffn") == ("both_0",)
    with pytest.raises(ConfigError) as error:
        shared({}, {"n_experts": 4, "router": {"kind": "mlp"}, "gate": {"kind": "sigmoid"}})
    serves = "the ffn bank 'both' serves both stacks, and"
    assert str(error.value).splitlines() == [
        f"decoder.ffn.gate.kind is 'sigmoid': {serves} encoder.ffn.gate.kind is 'softmax'",
        f"decoder.ffn.n_experts is 4: {serves} encoder.ffn.n_experts is 8",
        f"decoder.ffn.router.kind is 'mlp': {serves} encoder.ffn.router.kind is 'linear'",
    ]
    heads = {"n_heads": 2, "d_head": 4}
    with pytest.raises(
        ConfigError, match=r"decoder\.self_attention\.top_k is 3: the self_attention bank 'both' serves"
    ):
        shared(heads | {"top_k": 2}, heads | {"top_k": 3}, of="self_attention")


def test_a_dense_set_and_experts_cannot_be_one_set() -> None:
    with pytest.raises(ConfigError, match=r"decoder\.ffn\.kind is 'dense': the ffn bank 'both' serves both stacks"):
        shared({}, {"kind": "dense"})


def test_another_kind_on_top_of_a_recipe_keeps_what_both_kinds_have() -> None:
    dense = {"share": "cycle", "n_unique": 2, "d_ff": 48, "activation": "gelu", "bias": False, "dropout": 0.2}
    attention = {"share": "all", "n_heads": 2, "d_head": 32, "dropout": 0.3}
    settings = {"model": {"encoder": {"n_steps": 4, "ffn": dense, "self_attention": attention}}}
    overrides = ["model.encoder.ffn.kind=experts", "model.encoder.self_attention.kind=experts"]
    model = load_recipe_config(settings, [*overrides, "model.encoder.ffn.n_experts=6"]).model
    assert isinstance(model, Seq2SeqConfig)
    ffn, heads = model.encoder.ffn, model.encoder.self_attention
    assert isinstance(ffn, ExpertFeedForwardConfig)
    assert {key: getattr(ffn, key) for key in dense} == dense
    assert (ffn.n_experts, ffn.top_k, ffn.router) == (6, 2, LinearRouterConfig())
    assert isinstance(heads, ExpertAttentionConfig)
    assert {key: getattr(heads, key) for key in attention} == attention


def test_another_router_on_top_of_a_recipe_brings_its_own_settings() -> None:
    ffn = {"kind": "experts", "router": {"kind": "hypersphere", "d_router": 8}}
    model = load_recipe_config({"model": {"encoder": {"ffn": ffn}}}, ["model.encoder.ffn.router.kind=mlp"]).model
    assert isinstance(model, Seq2SeqConfig)
    assert isinstance(model.encoder.ffn, ExpertFeedForwardConfig)
    assert model.encoder.ffn.router == MlpRouterConfig()


def test_experts_go_where_attention_goes_in_a_decoder_too() -> None:
    cross = ExpertAttentionConfig(n_heads=1, d_head=4, n_experts=3, top_k=1)
    config = Seq2SeqConfig(d_model=8, encoder=StackConfig(), decoder=DecoderConfig(cross_attention=cross))
    assert config.decoder.cross_attention == cross
