"""Looped models against plain twins written from the published equations (twins.py): those of which no reference class
runs here, and those of whose class the stored numbers leave out padding, most gradients and some numbers of rounds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from twins import (
    Weights,
    cotformer,
    hrm,
    hrm_text,
    huginn,
    iso_depth,
    length,
    loopformer,
    moeut,
    ouro,
    parcae,
    relaxed,
    retrofit,
    trm,
)

from ostinato.config.model import ModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.models import Model, build_model
from ostinato.nn.execution import Execution
from ostinato.tasks.recipes import load_recipe

V = 64
TWINS: dict[str, tuple[str, str, Callable[[Weights, Tensor, int], Tensor]]] = {
    # family: recipe, its segments with a state of zeros in place of noise, twin
    "parcae": (
        "looped/parcae-toy",
        "[{n_steps: 2, end_norm: own}, {n_steps: 2, repeats: 8, state: {kind: zeros}, inject: {kind: decay}, "
        "end_map: true}, {n_steps: 2}]",
        parcae,
    ),
    "huginn": (
        "looped/huginn-toy",
        "[{n_steps: 1}, {n_steps: 2, repeats: 4, state: {kind: zeros}, inject: {kind: linear}, end_norm: final}, "
        "{n_steps: 1}]",
        huginn,
    ),
    "ouro": ("looped/ouro-toy", "", ouro),
    "loopformer": ("looped/loopformer-toy", "", loopformer),
    "trm": ("looped/trm-toy", "", trm),
    "retrofit": (
        "looped/retrofit-toy",
        "[{n_steps: 1}, {n_steps: 2, repeats: 4, state: {kind: zeros}, inject: {kind: linear}}, {n_steps: 1}]",
        retrofit,
    ),
    "iso-depth": ("looped/iso-depth-toy", "", iso_depth),
    "relaxed recursive": ("looped/relaxed-recursive-toy", "", relaxed),
    "length generalisation": ("looped/length-toy", "", length),
    "moeut": ("looped/moeut-toy", "", moeut),
    "cotformer": ("looped/cotformer-toy", "", cotformer),
    "ln-cotformer": ("looped/ln-cotformer-toy", "", cotformer),
    "hrm-text, more rounds": ("looped/hrm-text-toy", "", hrm_text),
    "hrm": ("looped/hrm-toy", "", hrm),
}


@pytest.fixture(params=TWINS)
def named(
    request: pytest.FixtureRequest, record_property: Any
) -> tuple[Model, Callable[[Weights, Tensor, int], Tensor]]:
    """Return a model in float64 with weights that hide nothing, and its twin."""
    recipe, segments, twin = TWINS[request.param]
    record_property("family", f"{request.param} (twin of the specification)")
    record_property("check", request.node.get_closest_marker("check").args[0])
    settings = [f"model.decoder.segments={segments}"] if segments else []
    settings += [f"model.n_labels={V}"] if recipe in ("looped/hrm-toy", "looped/trm-toy") else []
    config = load_recipe(recipe, ["model.dropout=0.0", f"model.vocab_size={V}", *settings]).model
    return random_model(config), twin


def random_model(config: ModelConfig) -> Model:
    """Return a model in float64 with weights that hide nothing, in evaluation mode."""
    # A model of two states runs so many layers that with greater weights it multiplies every rounding error.
    std = 0.12 if config.kind == "encoder" else 0.2
    model = build_model(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, std)
    return model.eval()


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, V, (3, 12), generator=torch.Generator().manual_seed(1))


def weights(model: Model) -> Weights:
    return dict(model.named_parameters())


@pytest.mark.check("float64")
@pytest.mark.parametrize("rounds", [1, 2, 4, 8])
def test_logits_are_those_of_the_equations(named: Any, ids: Tensor, rounds: int) -> None:
    model, twin = named
    expected = twin(weights(model), ids, rounds)
    torch.testing.assert_close(model(ids, n_steps=rounds).logits_BTV, expected, rtol=0, atol=1e-10)
    assert float(expected.detach().std()) > 0.1


@pytest.mark.check("all gradients")
@pytest.mark.parametrize("rounds", [1, 4])
def test_all_gradients_are_those_of_the_equations(named: Any, ids: Tensor, rounds: int) -> None:
    model, twin = named
    assert_same_gradients(model, model(ids, n_steps=rounds).logits_BTV, twin(weights(model), ids, rounds))


@pytest.mark.parametrize("compaction", ["auto", "never"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("rounds", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "twin"), [("hrm", hrm), ("trm", trm)])
def test_the_gradient_of_puzzle_models_goes_through_what_is_published(
    ids: Tensor, name: str, twin: Callable[..., Tensor], rounds: int, recompute: bool, compaction: Any
) -> None:
    recipe = load_recipe(f"looped/{name}-toy", ["model.dropout=0.0", f"model.vocab_size={V}", f"model.n_labels={V}"])
    model = random_model(recipe.model).train()
    training = recipe.training.rounds
    assert training.gradient_rounds == 1
    assert training.gradient_repeats == ([1] if name == "hrm" else None)
    cut = Execution(
        gradient_rounds=training.gradient_rounds,
        gradient_repeats=tuple(training.gradient_repeats or ()) or None,
        recompute=recompute,
        compaction=compaction,
    )
    logits = model(ids, n_steps=rounds, execution=cut).logits_BTV
    assert_same_gradients(model, logits, twin(weights(model), ids, rounds, is_cut=True))


@pytest.mark.check("all gradients")
def test_all_gradients_of_rounds_of_unequal_length(ids: Tensor, record_property: Any) -> None:
    record_property("family", "loopformer (twin of the specification)")
    record_property("check", "all gradients")
    model = random_model(load_recipe("looped/loopformer-toy", ["model.dropout=0.0", f"model.vocab_size={V}"]).model)
    path = (0.5, 0.125, 0.375)
    logits = model(ids, execution=Execution(paths={"decoder": path})).logits_BTV
    assert_same_gradients(model, logits, loopformer(weights(model), ids, 3, path))


def assert_same_gradients(model: Model, logits: Tensor, expected_logits: Tensor) -> None:
    """Compare the gradients of the sum of squares of all logits."""
    parameters = weights(model)
    expected = torch.autograd.grad(expected_logits.square().sum(), list(parameters.values()), allow_unused=True)
    logits.square().sum().backward()
    for (name, parameter), wanted in zip(parameters.items(), expected, strict=True):
        wanted = torch.zeros_like(parameter) if wanted is None else wanted
        scale = float(wanted.abs().max()) or 1.0
        found = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.check("cached")
@pytest.mark.parametrize("rounds", [1, 4])
def test_cached_steps_are_the_equations_of_everything_so_far(named: Any, ids: Tensor, rounds: int) -> None:
    model, twin = named
    if not model.config.generates:
        pytest.skip("writes nothing")
    keep = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        cache = model.encode(Batch(Tokens(ids, keep), ids, keep), n_steps=rounds)
        steps = torch.stack([model.step(ids[:, t : t + 1], cache) for t in range(ids.shape[1])], 1)
        torch.testing.assert_close(steps, twin(weights(model), ids, rounds), rtol=0, atol=1e-10)


@pytest.mark.check("rows")
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_and_the_rest_of_the_batch_change_nothing(named: Any, ids: Tensor, side: str) -> None:
    model, twin = named
    lengths = (12, 9, 7)
    keep = torch.stack([torch.arange(12) < n for n in lengths])
    keep = keep.flip(1) if side == "left" else keep
    positions = (keep.long().cumsum(1) - 1).clamp_min(0)
    padded = torch.where(keep, ids, 0)
    with torch.no_grad():
        logits = model(Batch(Tokens(padded, keep, positions), padded, keep)).logits_BTV
        (planned,) = model.n_rounds().values()
        for row, n in enumerate(lengths):
            alone = twin(weights(model), ids[row : row + 1][keep[row][None]][None], planned)
            torch.testing.assert_close(logits[row][keep[row]], alone[0], rtol=0, atol=1e-10)
            assert alone.shape[1] == n
