"""Every family computes what its reference does: the same weights, ids and masks, the same logits and gradients.

At the end a table of families and checks is printed.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase

import pytest
import torch
from family import FLOAT32, FLOAT64, GRADIENTS, Family, Variant, families, numbers, row
from torch import Tensor

from ostinato.budget import count_parameters
from ostinato.data.batch import Batch
from ostinato.interop import from_ours, to_ours
from ostinato.kernels import packing
from ostinato.models import Model
from ostinato.nn.positions import sinusoids

FAMILIES = families()
Note = Callable[[str, object], None]


@pytest.fixture
def family(request: pytest.FixtureRequest, record_property: Note) -> Family:
    found = FAMILIES[request.param]
    record_property("family", f"{found.fixture} (class)")
    return found


def checked(check: str, *, of: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for every family that has variants with a check, `of`, and show it in the table as `check`."""

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        names = [name for name, one in FAMILIES.items() if of is None or one.with_check(of)]
        return pytest.mark.check(check)(pytest.mark.parametrize("family", names, indirect=True)(test))

    return decorated


@pytest.fixture(autouse=True)
def _note_check(request: pytest.FixtureRequest, record_property: Note) -> None:
    for mark in request.node.iter_markers("check"):
        record_property("check", mark.args[0])


@pytest.mark.sampled
@checked("names")
def test_weights_go_to_ours_and_back_unchanged(family: Family) -> None:
    model, table, theirs = family.model(torch.float32), family.table(family.config()), family.weights()
    parameters = dict(model.named_parameters())
    ours = to_ours(table, theirs, {name: p.shape for name, p in parameters.items()})
    assert all(torch.equal(ours[name], p) for name, p in parameters.items())
    back = from_ours(table, ours)
    for name, x in theirs.items():
        if name not in table.tied and not any(fnmatchcase(name, pattern) for pattern in table.ignored):
            assert torch.equal(back[name], x), name
    assert back.keys() <= theirs.keys()
    again = to_ours(table, back)
    assert all(torch.equal(again[name], x) for name, x in ours.items())
    assert count_parameters(family.config()).stored == sum(p.numel() for p in parameters.values())


@checked("float64", of="numbers")
def test_logits_in_float64(family: Family) -> None:
    model = family.model()
    for variant in family.with_check("numbers"):
        with torch.no_grad():
            found = variant.logits(model, family.batch(variant))
        assert found.dtype == torch.float64
        assert_close(family, variant, found, family.expected(variant, "float64"))


@pytest.mark.sampled
@checked("float32", of="numbers")
def test_logits_in_float32(family: Family) -> None:
    model = family.model(torch.float32)
    for variant in family.with_check("numbers"):
        with torch.no_grad():
            found = variant.logits(model, family.batch(variant))
        assert_close(family, variant, found, family.expected(variant, "float32"))


@pytest.mark.sampled
@checked("gradients", of="gradients")
def test_gradients_of_the_sum_of_squares_of_all_logits(family: Family) -> None:
    for variant in family.with_check("gradients"):
        found, expected = family.gradients(variant), family.expected_gradients(variant)
        assert expected
        for name, gradient in expected.items():
            gap = (found[name] - gradient).abs().max() / gradient.abs().max()
            assert gap < GRADIENTS, f"{variant.name}, {name}: {gap}"


# In float32 kernels that were compiled for decoding run where they know the model.
@pytest.mark.sampled
@checked("cached", of="cached")
@pytest.mark.parametrize(
    ("dtype", "is_prefilled"),
    [
        pytest.param(torch.float64, True, id="float64-prefilled"),
        pytest.param(torch.float32, False, id="float32"),
        pytest.param(torch.float64, False, id="float64", marks=pytest.mark.slow),
        pytest.param(torch.float32, True, id="float32-prefilled", marks=pytest.mark.slow),
    ],
)
def test_step_by_step_with_a_cache_as_at_once(family: Family, dtype: torch.dtype, is_prefilled: bool) -> None:
    if not family.config().generates:
        pytest.skip("writes nothing")
    model = family.model(dtype)
    for variant in family.with_check("cached"):
        batch = family.batch(variant)
        first = batch.target.ids_BT.shape[1] // 2 if is_prefilled else 1
        with torch.no_grad(), packing(dtype == torch.float32):
            at_once = variant.logits(model, batch)
            found = step_by_step(model, batch, variant, first)
        real = batch.target.keep_BT[:, first - 1 :]
        gap = (found - at_once[:, first - 1 :])[real].abs().max()
        assert gap <= family.within(variant, dtype), f"{variant.name}: {gap}"


@pytest.mark.sampled
@checked("rows", of="rows")
@pytest.mark.parametrize("side", ["left", pytest.param("right", marks=pytest.mark.slow)])
def test_a_sentence_alone_as_among_eight(family: Family, side: str) -> None:
    model = family.model()
    calls = {(str(variant.call), variant.run, variant.by_column): variant for variant in family.with_check("rows")}
    for variant in calls.values():
        batch = family.eight(variant, side)
        with torch.no_grad():
            among = variant.logits(model, batch)
            for i, real in enumerate(batch.target.keep_BT):
                alone = variant.logits(model, row(batch, i))
                gap = (alone[0] - among[i, real]).abs().max()
                assert gap <= FLOAT64, f"{variant.name}, row {i}: {gap}"


def assert_close(family: Family, variant: Variant, found: Tensor, expected: Tensor) -> None:
    """Compare logits at real tokens, in the precision that they were found in."""
    batch, allowed = family.batch(variant), family.within(variant, found.dtype)
    gap = float((found - expected)[batch.target.keep_BT].abs().max())
    assert gap <= allowed, f"{variant.name}: largest difference {gap:.2e}, allowed {allowed:.2e}"


def step_by_step(model: Model, batch: Batch, variant: Variant, first: int) -> Tensor:
    """Return the logits after column `first` and every later one, with a cache."""
    cache = model.encode(batch, **variant.call)  # type: ignore[operator]
    ids, keep = batch.target.ids_BT, batch.target.keep_BT
    found = [model.step(ids[:, :first], cache, keep[:, :first])]  # type: ignore[operator]
    for t in range(first, ids.shape[1]):
        found.append(model.step(ids[:, t : t + 1], cache, keep[:, t : t + 1]))  # type: ignore[operator]
    return torch.stack(found, 1)


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_stored_sinusoids_are_those_that_are_made(stack: str) -> None:
    stored = numbers("marian")[f"weights/model.{stack}.embed_positions.weight"]
    torch.testing.assert_close(sinusoids(torch.arange(len(stored)), stored.shape[1], in_halves=True), stored)


def test_which_references_are_in_float32_further_than_1e_5_from_themselves_in_float64() -> None:
    """docs/families.md names them. What is compared with smaller weights (test_classes.py, test_twins.py) is not."""
    inexact = {
        name
        for name, family in FAMILIES.items()
        if any(family.float32_gap(variant) > FLOAT32 for variant in family.with_check("numbers"))
    }
    assert inexact == {"huginn", "loopformer", "ouro", "t5-gated", "trm"}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_fixture_holds_what_its_record_asks_for(name: str) -> None:
    family, held = FAMILIES[name], numbers(name)
    for variant in family.variants:
        assert f"{variant.inputs}ids" in held
        assert "numbers" not in variant.checks or f"float64/{variant.name}/logits" in held
    wanted = {key.split("/")[1] for key in held if key.startswith("rounded/") and "/grad/" in key}
    assert wanted == {variant.name for variant in family.with_check("gradients")}
