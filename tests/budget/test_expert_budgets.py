"""What experts cost, by hand: stored, touched, executed, multiplied, kept and held."""

from __future__ import annotations

from typing import Any

import pytest

from ostinato.budget import count_budget, count_bytes, count_macs, count_parameters
from ostinato.budget.compare import differing_plans, differing_settings
from ostinato.budget.sizes import chosen_experts
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig

D, F, I, E, K = 6, 10, 8, 5, 2  # d_model, d_ff, two heads of four, experts, experts a token
EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": E, "k": K, "bias": False}
FFN: dict[str, Any] = EXPERTS | {"d_ff": F}
ATTENTION: dict[str, Any] = EXPERTS | {"n_heads": 2, "d_head": 4}
DENSE: dict[str, Any] = {"n_heads": 2, "d_head": 4, "bias": False}
LINEAR = E * D
OUTPUT = 7 * D


def _model(n_steps: int = 1, **settings: Any) -> LanguageModelConfig:
    stack = {"n_steps": n_steps, "self_attention": {"share": "none"}, "ffn": {"share": "none"}, "norm": {"kind": "rms"}}
    return LanguageModelConfig.model_validate({"d_model": D, "vocab_size": 7, "decoder": stack | settings})


def _pair(**decoder: Any) -> Seq2SeqConfig:
    rows = {"d_model": D, "source_vocab_size": 7, "target_vocab_size": 7}
    stack = {"n_steps": 2, "self_attention": DENSE, "ffn": {"d_ff": F}}
    return Seq2SeqConfig.model_validate(rows | {"encoder": stack, "decoder": stack | decoder})


def test_of_a_mixture_of_feed_forwards_all_are_stored_and_k_are_touched() -> None:
    count = count_parameters(_model(ffn=FFN))
    assert count.by_part["decoder.ffn"] == E * 2 * D * F
    assert count.by_part["decoder.ffn.router"] == LINEAR
    assert count.active == K * 2 * D * F + LINEAR + D + OUTPUT
    assert count.executed == count.active + D
    biased = count_parameters(_model(ffn=FFN | {"bias": True, "activation": "geglu"}))
    assert biased.by_part["decoder.ffn"] == E * (3 * D * F + 2 * F + D)


def test_steps_that_share_experts_touch_k_each_and_no_more_than_there_are() -> None:
    touched = [count_parameters(_model(n, ffn=FFN | {"share": "all"})).active - D - OUTPUT for n in (1, 2, 3, 7)]
    assert touched == [min(E, n * K) * 2 * D * F + LINEAR for n in (1, 2, 3, 7)]
    shared = _model(2, ffn=FFN | {"share": "all"})
    two, seven = count_parameters(shared), count_parameters(shared, n_steps=7)
    assert (seven.stored, seven.active) == (two.stored, touched[-1] + D + OUTPUT)
    assert seven.executed - two.executed == 5 * (K * 2 * D * F + LINEAR + D)


def test_experts_of_attention_own_queries_and_outputs_and_share_keys_and_values() -> None:
    count = count_parameters(_model(self_attention=ATTENTION))
    assert count.by_part["decoder.self_attention"] == E * 2 * D * I + 2 * D * I
    assert count.active == K * 2 * D * I + 2 * D * I + LINEAR + D + OUTPUT
    biased = count_parameters(_model(self_attention=ATTENTION | {"bias": True}))
    assert biased.stored - count.stored == E * (I + D) + 2 * I
    tables = _model(self_attention=ATTENTION, relative={"kind": "window", "window": 3})
    assert count_parameters(tables).by_part["positions"] == I * 7


def test_a_generated_token_touches_no_projection_of_the_memory_of_experts_either() -> None:
    dense, sparse = (count_parameters(_pair(cross_attention=c | {"share": "all"})) for c in (DENSE, ATTENTION))
    assert sparse.active - dense.active == min(E, 2 * K) * 2 * D * I + LINEAR - 2 * D * I


@pytest.mark.parametrize(
    ("router", "parameters", "macs"),
    [
        ({"kind": "linear"}, E * D, E * D),
        ({"kind": "mlp"}, D * D + D + E * D, D * D + E * D),
        ({"kind": "hypersphere"}, 2 * D + 2 * E + 1, 2 * D + 2 * E),
        ({"kind": "hypersphere", "d_router": 3, "learn_temperature": False}, 3 * D + 3 * E + 1, 3 * D + 3 * E),
        ({"kind": "hypersphere", "project": False}, E * D + 1, E * D),
    ],
)
def test_a_router_is_a_part_of_its_own(router: dict[str, Any], parameters: int, macs: int) -> None:
    config = _model(2, ffn=FFN | {"router": router})
    assert count_parameters(config).by_part["decoder.ffn.router"] == 2 * parameters
    assert count_macs(config, 0, 9).by_part["decoder.ffn.router"] == 2 * 9 * macs
    assert count_bytes(config, 0, 9).by_part["activations"]["decoder.ffn.router"] > 0


def test_one_expert_alone_has_no_router_and_costs_what_a_dense_sub_layer_costs() -> None:
    one: dict[str, Any] = {"n_experts": 1, "k": 1}
    single = _model(self_attention=ATTENTION | one, ffn=FFN | one)
    dense = _model(self_attention=DENSE, ffn={"d_ff": F, "bias": False})
    ours, theirs = count_parameters(single), count_parameters(dense)
    assert (ours.stored, ours.active, ours.executed) == (theirs.stored, theirs.active, theirs.executed)
    assert ours.by_part == theirs.by_part
    assert count_macs(single, 0, 9) == count_macs(dense, 0, 9)
    assert chosen_experts(single) == {}


def test_multiply_accumulates_are_those_of_the_chosen_experts() -> None:
    relative = {"kind": "window", "window": 3}
    found = count_macs(_model(self_attention=ATTENTION, ffn=FFN, relative=relative), 0, 9).by_part
    assert found == {
        "decoder.self_attention.router": 9 * LINEAR,
        "decoder.self_attention.projections": 9 * (2 * K * D * I + 2 * D * I),
        "decoder.self_attention.scores": 9 * 2 * K * I * 9,
        "decoder.self_attention.positions": 9 * K * I * 7,
        "decoder.ffn.router": 9 * LINEAR,
        "decoder.ffn": 9 * K * 2 * D * F,
        "output": 9 * OUTPUT,
    }


def test_keys_and_values_of_the_memory_are_made_once_a_set_whatever_k_is() -> None:
    found = count_macs(_pair(cross_attention=ATTENTION | {"share": "all"}), 11, 9)
    assert found.by_part["decoder.cross_attention.projections"] == 11 * 2 * D * I + 2 * 9 * 2 * K * D * I
    assert found.by_part["decoder.cross_attention.scores"] == 2 * 9 * 2 * K * I * 11
    assert found.total == 11 * found.per_source_token + 9 * found.per_target_token


@pytest.mark.parametrize("router", ["linear", "mlp", "hypersphere"])
def test_more_experts_cost_more_in_the_router_only(router: str) -> None:
    def at(n: int) -> dict[str, int]:
        more = {
            "n_experts": n,
            "router": {"kind": router, "d_router": 4} if router == "hypersphere" else {"kind": router},
        }
        layer = {"after": 1, "d_ff": F, "k": K} | more
        config = _model(2, self_attention=ATTENTION | more, ffn=FFN | more, sparse_layer=layer)
        return count_macs(config, 0, 9).by_part

    few, many = at(4), at(64)
    assert few.keys() == many.keys()
    assert {part for part in few if few[part] != many[part]} == {
        "decoder.self_attention.router",
        "decoder.ffn.router",
        "decoder.sparse_layer.router",
    }
    # From 4 to 64 experts, at two steps of a sub-layer each.
    assert many["decoder.ffn.router"] - few["decoder.ffn.router"] == 2 * 9 * 60 * (4 if router == "hypersphere" else D)


def test_a_sparse_layer_is_a_part_of_its_own_with_a_norm_in_every_sub_layer_of_an_expert() -> None:
    layer = {"after": 2, "n_experts": E, "k": K, "n_layers": 3, "d_ff": F}
    config = _model(2, ffn={"d_ff": F, "bias": False}, sparse_layer=layer)
    count, macs = count_parameters(config), count_macs(config, 0, 9)
    assert count.by_part["decoder.sparse_layer"] == E * 3 * (2 * D * F + F + D + 2 * D)
    assert count.by_part["decoder.sparse_layer.router"] == LINEAR
    assert count.by_part["norms"] == 2 * D
    assert macs.by_part["decoder.sparse_layer"] == 9 * K * 3 * 2 * D * F
    assert macs.by_part["decoder.ffn"] == 9 * 2 * 2 * D * F


def test_experts_are_held_in_decoding_as_one_would_be() -> None:
    held = count_bytes(_model(2, self_attention=ATTENTION), 0, 9, batch_size=2, beam=3).by_part["cache"]
    assert held == count_bytes(_model(2, self_attention=DENSE), 0, 9, batch_size=2, beam=3).by_part["cache"]


def test_activations_grow_with_k_and_hardly_with_the_number_of_experts() -> None:
    def kept(n_experts: int, k: int) -> int:
        ffn = FFN | {"n_experts": n_experts, "k": k, "d_ff": 64}
        return count_bytes(_model(2, ffn=ffn), 0, 50, batch_size=8).by_part["activations"]["decoder.ffn"]

    assert kept(64, 2) == kept(8, 2)
    assert kept(8, 4) == 2 * kept(8, 2)


def test_a_budget_states_how_many_experts_a_token_is_assumed_to_get() -> None:
    layer = {"after": 1, "n_experts": 4, "k": 1}
    config = _pair(cross_attention=ATTENTION, sparse_layer=layer)
    assert count_budget(config).as_dict()["assumptions"]["experts"] == {
        "decoder.cross_attention": {"k": K, "n_experts": E},
        "decoder.sparse_layer": {"k": 1, "n_experts": 4},
    }
    assert str(chosen_experts(config)["decoder.cross_attention"]) == "2 of 5 experts"
    assert count_budget(_pair(cross_attention=DENSE)).as_dict()["assumptions"]["experts"] == {}


def test_a_sparse_layer_is_a_difference_of_its_own_and_moves_no_other_row() -> None:
    layer: dict[str, Any] = {"after": 1, "d_ff": F, "n_experts": 4, "k": 1}
    ffn = {"d_ff": F}
    models: dict[str, ModelConfig] = {
        "dense": _model(2, ffn=ffn),
        "linear": _model(2, ffn=ffn, sparse_layer=layer),
        "cosine": _model(2, ffn=ffn, sparse_layer=layer | {"router": {"kind": "hypersphere"}}),
    }
    where = {"linear": "after 1 of 2", "cosine": "after 1 of 2"}
    assert differing_plans(models) == {"decoder.sparse_layer": where}
    settings = differing_settings(models)
    assert settings["model.decoder.sparse_layer"] == {"dense": None, "linear": "there", "cosine": "there"}
    assert settings["model.decoder.sparse_layer.router.kind"] == {"linear": "linear", "cosine": "hypersphere"}
    assert "model.decoder.sparse_layer.after" not in settings
