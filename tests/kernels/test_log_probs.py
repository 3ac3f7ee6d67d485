"""Log-probabilities, and the highest of many numbers, found in one look or by blocks, against plain ones."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.kernels import highest, log_probs, native
from ostinato.training.threads import cpu_threads

MODULE = sys.modules[highest.__module__]


def small_blocks(patch: pytest.MonkeyPatch, width: int) -> None:
    patch.setattr(MODULE, "_BLOCK", width)
    patch.setattr(MODULE, "_LEAST_IN_BLOCKS", 0)


@pytest.mark.parametrize("is_compiled", [True, False])
@given(st.integers(1, 4), st.integers(8, 300), st.integers(1, 8), st.integers(1, 16), st.integers(0, 99), st.booleans())
def test_it_finds_what_ranking_everything_finds(
    is_compiled: bool, n_rows: int, n_numbers: int, n: int, width: int, seed: int, has_ties: bool
) -> None:
    make = torch.Generator().manual_seed(seed)
    x = torch.randn(n_rows, n_numbers, generator=make)
    x = x.round() if has_ties else x
    x[:, :: 1 + seed % 7] = -torch.inf
    with pytest.MonkeyPatch.context() as patch, cpu_threads(1 + seed % 3):
        if not is_compiled:
            patch.setattr(native, "takes", lambda *_: False)
        small_blocks(patch, width)
        values, parts, columns = highest(x[:, None], n, torch.zeros(n_rows, 1))
    assert torch.equal(values, x.topk(n, dim=1).values)
    assert torch.equal(x.gather(1, columns), values)
    assert not parts.any()
    assert all(len(set(row)) == n for row in columns.tolist())


@pytest.mark.skipif(native.library() is None, reason="no C compiler here")
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 99))
def test_compiled_kernels_return_the_first_of_equal_numbers(n_numbers: int, n: int, seed: int) -> None:
    x = torch.randn(3, n_numbers, generator=torch.Generator().manual_seed(seed)).round()
    x[1] = -torch.inf
    values, _, columns = native.highest(x[:, None], min(n, n_numbers), torch.zeros(3, 1))
    expected = x.sort(dim=1, descending=True, stable=True)
    assert torch.equal(values, expected.values[:, : min(n, n_numbers)])
    assert torch.equal(columns, expected.indices[:, : min(n, n_numbers)])


@pytest.mark.parametrize("n", [1, 2, 5])
@given(st.integers(5, 100), st.data())
def test_what_is_no_number_is_the_highest_as_it_is_to_torch(n: int, n_numbers: int, data: st.DataObject) -> None:
    x = torch.arange(2.0 * n_numbers).view(2, n_numbers)
    where = data.draw(st.sets(st.integers(0, n_numbers - 1), max_size=4))
    x[1, list(where)] = torch.nan
    values, _, columns = highest(x[:, None], n, torch.zeros(2, 1))
    torch.testing.assert_close(values, x.topk(n, dim=1).values, equal_nan=True, rtol=0, atol=0)
    assert set(columns[1, : min(n, len(where))].tolist()) <= where or not where


@pytest.mark.parametrize("n", [0, 9])
def test_more_than_there_are_is_what_it_is_to_torch(n: int) -> None:
    x, nothing = torch.randn(2, 1, 8), torch.zeros(2, 1)
    if n:
        with pytest.raises(RuntimeError, match="out of range"):
            highest(x, n, nothing)
    else:
        assert highest(x, n, nothing)[0].shape == (2, 0)


def test_rows_with_gaps_and_numbers_that_want_gradients_are_ranked_by_torch() -> None:
    x = torch.randn(6, 40)
    assert torch.equal(highest(x.t()[:, None], 2, torch.zeros(40, 1))[0], x.t().topk(2).values)
    x.requires_grad_(True)
    highest(x[:, None], 1, torch.zeros(6, 1))[0].sum().backward()
    assert x.grad is not None
    assert x.grad.count_nonzero() == 6


@pytest.mark.parametrize("is_compiled", [True, False])
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 100), st.data())
def test_what_is_added_to_a_part_counts(
    is_compiled: bool, n_rows: int, n_parts: int, n_numbers: int, data: st.DataObject
) -> None:
    make = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    x = torch.randn(n_rows, n_parts, n_numbers, generator=make)
    added = torch.randn(n_rows, n_parts, generator=make) * data.draw(st.sampled_from([0.1, 10.0]))
    added[0, -1] = data.draw(st.sampled_from([0.0, -torch.inf]))
    total = (x + added[:, :, None]).flatten(1)
    n = data.draw(st.integers(1, min(12, total.shape[1])))
    with pytest.MonkeyPatch.context() as patch, cpu_threads(data.draw(st.integers(1, 3))):
        if not is_compiled:
            patch.setattr(native, "takes", lambda *_: False)
        small_blocks(patch, 8)
        values, parts, columns = highest(x.clone(), n, added)
    assert torch.equal(values, total.topk(n, dim=1).values)
    assert torch.equal(total.gather(1, parts * n_numbers + columns), values)
    assert int(columns.max()) < n_numbers
    assert all(len(set(row)) == n for row in (parts * n_numbers + columns).tolist())


@pytest.mark.parametrize("is_compiled", [True, False])
def test_numbers_that_differ_are_ranked_where_their_sums_do_not(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, added = torch.tensor([[[1.0, 1.0 + 2**-20, 1.0 - 2**-20]]]), torch.tensor([[-1000.0]])
    assert float(x.max() + added) == float(x.min() + added)
    if not is_compiled:
        monkeypatch.setattr(native, "takes", lambda *_: False)
    assert highest(x, 3, added)[2].tolist() == [[1, 0, 2]]


@given(st.integers(1, 4), st.integers(1, 9000), st.sampled_from([0.1, 3.0, 40.0]), st.integers(0, 99))
def test_log_probabilities_are_those_of_float64(n_rows: int, n_numbers: int, scale: float, seed: int) -> None:
    logits = torch.randn(n_rows, n_numbers, generator=torch.Generator().manual_seed(seed)) * scale
    logits[0, n_numbers // 2 :: 3] = -torch.inf
    logits[0, 0] = -5.0
    added = torch.randn(n_rows, 1, generator=torch.Generator().manual_seed(seed))
    with cpu_threads(1 + seed % 3):
        x, c = log_probs(logits.clone(), added)
    assert c.shape == added.shape
    found = x + (c - added)
    torch.testing.assert_close(found.double(), torch.log_softmax(logits.double(), -1), atol=2e-5, rtol=1e-6)
    twin = torch.log_softmax(logits, -1)
    torch.testing.assert_close(found, twin, atol=2e-5, rtol=1e-6)


def test_a_row_in_which_a_number_is_none_has_no_log_probabilities() -> None:
    logits = torch.zeros(3, 20)
    logits[1, 7] = torch.nan
    x, c = log_probs(logits, torch.zeros(3))
    found = x + c[:, None]
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()


@pytest.mark.parametrize("is_compiled", [True, False])
def test_columns_that_never_are_chosen_take_part_in_the_sums(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.randn(5, 30)
    logits[:, 3] = 2.0
    expected = torch.log_softmax(logits, dim=-1) + 1.0
    expected[:, [3, 29]] = -torch.inf
    if not is_compiled:
        monkeypatch.setattr(native, "takes", lambda *_: False)
    x, c = log_probs(logits, torch.ones(1, 5), (3, 29))
    torch.testing.assert_close(x + c.t(), expected)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("column", [30, 99])
def test_columns_that_are_not_there_are_an_error(
    is_compiled: bool, column: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(native, "takes", lambda *_: False)
    with pytest.raises(IndexError):
        log_probs(torch.zeros(5, 30), torch.zeros(5), (3, column))
