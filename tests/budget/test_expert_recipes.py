"""The recipes of the Sparse Universal Transformer and of X-MoE have the sizes and costs that the papers print."""

from __future__ import annotations

import pytest
import torch

from ostinato.budget import count_macs, count_parameters
from ostinato.config.model import ModelConfig
from ostinato.config.recipe import Recipe
from ostinato.models.parts import build_sub_layer
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model

MILLION = 1e6


def model_of(name: str, *overrides: str) -> ModelConfig:
    return size_model(load_recipe(name, overrides)).model


def block(parts: dict[str, int], stack: str, n_norms: int) -> float:
    """Millions of a stack's parameters without halting, its norms and half of the two window tables included."""
    own = sum(n for part, n in parts.items() if part.startswith(f"{stack}.") and part != f"{stack}.halting")
    return round((own + n_norms * 2 * 512 + parts["positions"] / 2) / MILLION, 1)


def test_the_sparse_universal_transformer_has_its_published_size() -> None:
    base, big = (count_parameters(model_of(f"sut/{size}")) for size in ("base", "big"))
    assert (block(base.by_part, "encoder", 2), block(base.by_part, "decoder", 3)) == (19.7, 26.6)
    assert base.by_part["embeddings"] / MILLION == pytest.approx(19.15, abs=0.005)
    # Tables 1 and 2: 66 M and 110 M; table 2 without halting: 65 M.
    assert (base.stored, big.stored) == (65_997_824, 110_148_608)
    # A map with a bias, and two outputs without.
    gates = [base.by_part[f"{stack}.halting"] for stack in ("encoder", "decoder")]
    assert gates == [512 * 512 + 512 + 2 * 512] * 2
    assert int((base.stored - sum(gates)) / MILLION) == 65
    without = [f"model.{stack}.halting={{kind: none}}" for stack in ("encoder", "decoder")]
    without.append("training.halting.weight=0")
    assert count_parameters(model_of("sut/base", *without)).stored == base.stored - sum(gates)


def test_the_sparse_universal_transformer_costs_its_published_macs() -> None:
    # Table 1: 787 M at 10 + 10 tokens, for base and big alike, without scores and window scores. Their code makes keys
    # and values of the source anew at all 6 decoder steps, 2 d I multiply-accumulates a source token with I = 4 heads
    # of 64; ours once, since the steps share one set. That is the whole difference.
    ours = count_macs(model_of("sut/base"), 10, 10)
    keys_values_again = (6 - 1) * 10 * 2 * 512 * (4 * 64)
    assert round(ours.without_attention / MILLION, 1) == 774.6
    assert round(keys_values_again / MILLION, 1) == 13.1
    assert round((ours.without_attention + keys_values_again) / MILLION, 1) == 787.7
    # Gates of d^2 + 2 d weights: asked after rounds 1 to 5 of 6.
    assert ours.by_part["encoder.halting"] == ours.by_part["decoder.halting"] == 5 * 10 * (512**2 + 2 * 512)


@pytest.mark.parametrize(
    ("size", "parameters", "macs", "published"), [("base", 64, 1999.7, 1998), ("big", 105, 3718.2, 3707)]
)
def test_the_dense_universal_transformers_beside_it_have_the_published_size_and_cost(
    size: str, parameters: int, macs: float, published: int
) -> None:
    # Table 1, counted as above: 64 M and 105 M parameters, 1998 M and 3707 M multiply-accumulates.
    model = model_of(f"sut/dense-{size}")
    ours = count_macs(model, 10, 10)
    assert round(count_parameters(model).stored / MILLION) == parameters
    counted_as_theirs = (ours.without_attention + (6 - 1) * 10 * 2 * model.d_model**2) / MILLION
    assert round(counted_as_theirs, 1) == macs
    assert macs == pytest.approx(published, rel=0.004)


@pytest.mark.parametrize("size", ["base", "big"])
def test_the_published_recipes_pay_for_depth_and_score_the_mean_of_the_five_best(size: str) -> None:
    for recipe in (load_recipe(f"sut/{size}"), load_recipe(f"sut/dense-{size}")):
        assert recipe.training.halting.weight == 1e-4
        assert (recipe.evaluation.checkpoint, recipe.training.keep_best) == ("best:5", 5)
        assert recipe.evaluation.metrics == ["bleu", "bleu_compounds_split", "chrf"]
        assert [row.metric for row in recipe.reference] == ["bleu_compounds_split"]


def test_twice_as_many_experts_cost_no_more_than_their_routers_scores() -> None:
    base, big = (count_macs(model_of(f"sut/{size}"), 10, 10) for size in ("base", "big"))
    differing = {part for part in base.by_part if base.by_part[part] != big.by_part[part]}
    assert base.by_part.keys() == big.by_part.keys()
    assert differing == {part for part in base.by_part if part.endswith(".router")}
    assert big.total - base.total == 5 * 6 * 10 * 24 * 512


@pytest.mark.parametrize(
    ("name", "published", "router"), [("dense", 277.1, None), ("smoe", 730.6, 24_576), ("x-moe", 730.6, 12_801)]
)
def test_x_moe_has_its_published_sizes(name: str, published: float, router: int | None) -> None:
    count = count_parameters(model_of(f"x-moe/{name}"))
    assert round(count.stored / MILLION, 1) == published
    assert count.by_part.get("encoder.sparse_layer.router") == router
    if router is not None:
        # 32 experts of 3 feed-forwards, of which a token runs one: 14.17 M of 453.5 M.
        assert round(count.by_part["encoder.sparse_layer"] / MILLION, 1) == 453.5
        dense = count_parameters(model_of("x-moe/dense"))
        assert round((count.active - router - dense.active) / MILLION, 2) == 14.17


def test_a_token_of_x_moe_runs_a_sixth_more_than_the_dense_model() -> None:
    dense, sparse = (count_macs(model_of(f"x-moe/{name}"), 0, 512) for name in ("dense", "x-moe"))
    without_output = dense.without_attention - dense.by_part["output"]
    assert sparse.by_part["encoder.sparse_layer"] / without_output == pytest.approx(0.167, abs=0.001)


@pytest.mark.parametrize(("kind", "temperature"), [("softmax", 0.3), ("sigmoid", 0.07)])
@pytest.mark.parametrize("name", ["x-moe/x-moe", "x-moe/small/x-moe", "x-moe/small/tuned-x-moe", "x-moe/wmt10/x-moe"])
def test_every_gate_of_x_moe_comes_with_its_own_temperatures(name: str, kind: str, temperature: float) -> None:
    recipe = load_recipe(name, [f"model.encoder.sparse_layer.gate.kind={kind}"])
    sparse = recipe.model.stacks()["encoder"].sparse_layer
    assert sparse is not None
    assert (sparse.gate.kind, sparse.temperature) == (kind, temperature)
    # None: the balance loss takes the temperature that its router starts from.
    assert recipe.training.balance.temperature is None
    assert recipe.training.balance.hypersphere == 0.01
    plain = load_recipe(name)
    assert count_parameters(_sized(recipe)) == count_parameters(_sized(plain))


@pytest.mark.parametrize("name", ["x-moe/small/smoe", "x-moe/small/x-moe"])
@pytest.mark.parametrize("changes", [[], ["model.encoder.sparse_layer.gate.kind=topk_softmax"]])
def test_two_experts_of_a_token_share_a_gate_of_1(name: str, changes: list[str]) -> None:
    """X-MoE, section 2.1: exp(s_k) over the sum of exp(s_j) of the chosen alone."""
    recipe = load_recipe(name, ["model.encoder.sparse_layer.top_k=2", *changes])
    sparse = recipe.model.stacks()["encoder"].sparse_layer
    assert sparse is not None
    torch.manual_seed(0)
    layer = build_sub_layer(sparse, recipe.model.d_model, "xavier", 1, 1e-5)
    h = torch.randn(7, recipe.model.d_model)
    scores = layer.router(h) / layer.router.temperature()
    chosen, best = scores.topk(2, dim=1)
    first = torch.sigmoid(chosen[:, 0] - chosen[:, 1])
    decision = layer.route(h)
    assert torch.equal(decision.experts_NK, best)
    torch.testing.assert_close(decision.gates_NK, torch.stack([first, 1 - first], 1), atol=1e-5, rtol=0)


def _sized(recipe: Recipe) -> ModelConfig:
    return size_model(recipe, source=1000, target=1000).model
