"""Models against plain twins written from the published equations: those of which no reference class runs here, and
those of whose class the stored numbers leave out padding, most gradients and some numbers of rounds.

Every check runs at 1, 2, 4 and 8 rounds where the number is free; some of them are slow tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from equations import hrm, loopformer, trm
from torch import Tensor
from twins import TWINS, Twin, drawn_ids, eight_rows, weights

from ostinato.data.batch import Batch, Tokens
from ostinato.kernels import packing
from ostinato.models import Model
from ostinato.nn.execution import Execution
from ostinato.tasks.recipes import load_recipe

Note = Callable[[str, object], None]
WITHIN = {torch.float64: 1e-10, torch.float32: 1e-5}
IN_BOTH = pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float64, id="float64"), pytest.param(torch.float32, id="float32", marks=pytest.mark.slow)],
)


WRITING = {name: twin for name, twin in TWINS.items() if twin.labels is None and not twin.trains}
"""Those that are decoded: a router that chooses the best of a sentence, as in training, knows them at its end only."""


def cells(*fast: int, of: Mapping[str, Twin] = TWINS) -> Any:
    """Run a test for every twin and each of its numbers of rounds: those named at once, the others as slow tests."""
    found = [
        pytest.param(name, n, id=f"{name}-{n}", marks=[] if n in fast or len(twin.rounds) == 1 else pytest.mark.slow)
        for name, twin in of.items()
        for n in twin.rounds
    ]
    return pytest.mark.parametrize(("name", "rounds"), found)


@pytest.fixture(autouse=True)
def _in_the_table(request: pytest.FixtureRequest, record_property: Note) -> None:
    for mark in request.node.iter_markers("check"):
        named = request.node.callspec.params
        record_property("family", f"{named['name'].removesuffix(', in training')} (twin of the specification)")
        record_property("check", mark.args[0])
        record_property("rounds", named["rounds"])


@pytest.mark.sampled
@pytest.mark.check("float64")
@cells(1, 2, 4, 8)
def test_logits_and_costs_are_those_of_the_equations(name: str, rounds: int) -> None:
    twin, ids = TWINS[name], drawn_ids()
    model = twin.model()
    expected, cost = twin.expected(model, ids, rounds)
    output = model(ids, n_steps=twin.asked(rounds))
    torch.testing.assert_close(output.logits_BTV, expected, rtol=0, atol=1e-10)
    if cost is not None:
        torch.testing.assert_close(cost_of(output), cost.double(), rtol=0, atol=1e-10)
    assert float(expected.detach().std()) > 0.1


@pytest.mark.sampled
@pytest.mark.check("float32")
@cells(4)
def test_logits_in_float32(name: str, rounds: int) -> None:
    twin, ids = TWINS[name], drawn_ids()
    with torch.no_grad():
        expected, _ = twin.expected(twin.model(), ids, rounds)
        found = twin.model(torch.float32)(ids, n_steps=twin.asked(rounds)).logits_BTV
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.sampled
@pytest.mark.check("all gradients")
@cells(1, 4)
def test_all_gradients_are_those_of_the_equations(name: str, rounds: int) -> None:
    twin, ids = TWINS[name], drawn_ids()
    model = twin.model()
    expected, cost = twin.expected(model, ids, rounds)
    output = model(ids, n_steps=twin.asked(rounds))
    found, wanted = output.logits_BTV.square().sum(), expected.square().sum()
    if cost is not None:
        found, wanted = found + 100 * cost_of(output), wanted + 100 * cost
    assert_same_gradients(model, found, wanted)


@pytest.mark.sampled
@pytest.mark.check("cached")
@IN_BOTH
@cells(4, of=WRITING)
def test_cached_steps_are_the_equations_of_everything_so_far(name: str, rounds: int, dtype: torch.dtype) -> None:
    twin, ids = TWINS[name], drawn_ids()
    model = twin.model(dtype)
    # In float32 kernels that were compiled for decoding run where they know the model.
    with torch.no_grad(), packing(dtype == torch.float32):
        steps = step_by_step(model, ids, twin.asked(rounds))
        expected, _ = twin.expected(model, ids, rounds)
    torch.testing.assert_close(steps, expected, rtol=0, atol=WITHIN[dtype])


@pytest.mark.sampled
@pytest.mark.check("rows")
@pytest.mark.parametrize("side", ["left", "right"])
@IN_BOTH
@cells(2, 16)
def test_a_sentence_alone_as_among_eight_with_padding(name: str, rounds: int, dtype: torch.dtype, side: str) -> None:
    twin, (batch, rows) = TWINS[name], eight_rows(side)
    model = twin.model(dtype)
    with torch.no_grad():
        logits = model(batch, n_steps=twin.asked(rounds)).logits_BTV
        for among, keep, ids in zip(logits, batch.target.keep_BT, rows, strict=True):
            alone, _ = twin.expected(model, ids, rounds)
            torch.testing.assert_close(among[keep], alone[0], rtol=0, atol=WITHIN[dtype])


@pytest.mark.check("padded gradients")
@pytest.mark.parametrize("side", ["left", "right"])
@cells(16)
def test_all_gradients_of_eight_sentences_with_padding(name: str, rounds: int, side: str) -> None:
    twin, (batch, rows) = TWINS[name], eight_rows(side)
    model = twin.model()
    found = model(batch, n_steps=twin.asked(rounds)).logits_BTV[batch.target.keep_BT].square().sum()
    alone = [twin.expected(model, ids, rounds)[0].square().sum() for ids in rows]
    assert_same_gradients(model, found, torch.stack(alone).sum())


@pytest.mark.parametrize("compaction", ["auto", "never"])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("rounds", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "equations"), [("hrm", hrm), ("trm", trm)])
def test_the_gradient_of_puzzle_models_goes_through_what_is_published(
    name: str, equations: Callable[..., Tensor], rounds: int, recompute: bool, compaction: Any
) -> None:
    model, ids = TWINS[name].model().train(), drawn_ids()
    training = load_recipe(f"looped/{name}-toy").training.rounds
    assert training.gradient_rounds == 1
    assert training.gradient_repeats == ([1] if name == "hrm" else None)
    cut = Execution(
        gradient_rounds=training.gradient_rounds,
        gradient_repeats=tuple(training.gradient_repeats or ()) or None,
        recompute=recompute,
        compaction=compaction,
    )
    logits = model(ids, n_steps=rounds, execution=cut).logits_BTV
    expected = equations(weights(model), ids, rounds, is_cut=True)
    assert_same_gradients(model, logits.square().sum(), expected.square().sum())


def test_all_gradients_of_rounds_of_unequal_length() -> None:
    model, ids, path = TWINS["loopformer"].model(), drawn_ids(), (0.5, 0.125, 0.375)
    logits = model(ids, execution=Execution(paths={"decoder": path})).logits_BTV
    expected = loopformer(weights(model), ids, 3, path)
    assert_same_gradients(model, logits.square().sum(), expected.square().sum())


def cost_of(output: Any) -> Tensor:
    """Return the cost of depth of a model with one stack."""
    (stack,) = output.stacks.values()
    return stack.depth_cost


def step_by_step(model: Model, ids: Tensor, rounds: int | None) -> Tensor:
    """Return the logits behind every token, each read with a cache of those before."""
    keep = torch.ones_like(ids, dtype=torch.bool)
    cache = model.encode(Batch(Tokens(ids, keep), ids, keep), n_steps=rounds)
    return torch.stack([model.step(ids[:, t : t + 1], cache) for t in range(ids.shape[1])], 1)


def assert_same_gradients(model: Model, found: Tensor, wanted: Tensor) -> None:
    """Compare the gradients of two numbers with respect to all parameters."""
    parameters = weights(model)
    expected = torch.autograd.grad(wanted, list(parameters.values()), allow_unused=True, materialize_grads=True)
    found.backward()
    for (name, parameter), gradient in zip(parameters.items(), expected, strict=True):
        scale = float(gradient.abs().max()) or 1.0
        ours = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(ours / scale, gradient / scale, rtol=0, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
