from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ostinato.data.batch import Batch
from ostinato.data.batching import TrainingBatches, evaluation_batches
from ostinato.data.collate import Row
from ostinato.errors import CheckpointError, DataError


def rows_of(lengths: list[tuple[int, int]]) -> list[Row]:
    return [Row([4] * n, [5] * m, {"name": f"row {i}"}, i) for i, (n, m) in enumerate(lengths)]


some_rows = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60).map(rows_of)
MANY_ROWS = rows_of([(i * 7 % 37, i * 11 % 23) for i in range(500)])


def numbers(batches: list[Batch]) -> list[int]:
    return [i for batch in batches for i in batch.indices]


def check_budget(batch: Batch, tokens_per_batch: int) -> None:
    assert batch.source is not None
    width = max(batch.source.ids_BT.shape[1], batch.target.ids_BT.shape[1])
    assert batch.n_sentences == 1 or batch.n_sentences * width <= tokens_per_batch


@given(some_rows, st.integers(1, 200), st.integers(0, 3))
def test_an_epoch_holds_every_row_once_within_the_budget(rows: list[Row], tokens_per_batch: int, seed: int) -> None:
    batches = TrainingBatches(rows, tokens_per_batch, seed)
    for epoch in range(3):
        drawn = [next(batches)]
        assert batches.epoch == epoch
        drawn += islice(batches, batches.n_batches - 1)
        assert batches.epoch == epoch
        assert sorted(numbers(drawn)) == list(range(len(rows)))
        for batch in drawn:
            check_budget(batch, tokens_per_batch)
            for i, name in zip(batch.indices, batch.columns["name"], strict=True):
                assert name == f"row {i}"


@given(some_rows, st.integers(1, 200), st.integers(0, 40), st.integers(1, 20))
def test_a_restored_place_gives_the_same_batches(rows: list[Row], tokens_per_batch: int, n_before: int, n: int) -> None:
    batches = TrainingBatches(rows, tokens_per_batch, 1)
    for _ in range(n_before):
        next(batches)
    state = batches.state()
    expected = list(islice(batches, n))
    again = TrainingBatches(rows, tokens_per_batch, 1)
    next(again)
    again.restore(state)
    assert again.state() == state
    for one, other in zip(expected, islice(again, n), strict=True):
        assert one.indices == other.indices
        assert torch.equal(one.labels_BT, other.labels_BT)
    assert again.state() == batches.state()


def test_epochs_and_seeds_differ_and_equal_seeds_agree() -> None:
    def first_epochs(seed: int) -> tuple[list[int], list[int]]:
        batches = TrainingBatches(MANY_ROWS, 200, seed)
        first = list(islice(batches, batches.n_batches))
        second = [next(batches)]
        return numbers(first), numbers(second + list(islice(batches, batches.n_batches - 1)))

    assert first_epochs(3) == first_epochs(3)
    assert first_epochs(3) != first_epochs(4)
    assert first_epochs(3)[0] != first_epochs(3)[1]


def test_rows_meet_other_rows_in_every_epoch() -> None:
    batches = TrainingBatches(MANY_ROWS, 200, 1)
    first = {batch.indices for batch in islice(batches, batches.n_batches)}
    second = {next(batches).indices} | {batch.indices for batch in islice(batches, batches.n_batches - 1)}
    assert len({frozenset(b) for b in first} & {frozenset(b) for b in second}) < len(first) / 10


def test_rows_of_similar_length_are_together() -> None:
    batches = TrainingBatches(MANY_ROWS, 400, 1)
    drawn = list(islice(batches, batches.n_batches))
    real = sum(MANY_ROWS[i].length for i in numbers(drawn))
    padded = sum(len(batch.indices) * max(MANY_ROWS[i].length for i in batch.indices) for batch in drawn)
    assert real / padded > 0.9
    lengths = [max(MANY_ROWS[i].length for i in batch.indices) for batch in drawn]
    assert lengths != sorted(lengths)
    assert lengths != sorted(lengths, reverse=True)


@pytest.mark.slow
def test_the_order_depends_on_no_process_and_no_global_generator() -> None:
    program = (
        "from ostinato.data.batching import TrainingBatches\nfrom ostinato.data.collate import Row\n"
        "rows = [Row([4] * (i * 7 % 37), [5] * (i * 11 % 23), {}, i) for i in range(500)]\n"
        "batches = TrainingBatches(rows, 200, 5)\n"
        "print([i for _ in range(40) for i in next(batches).indices])"
    )
    command = [sys.executable, "-c", program]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    other = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    np.random.seed(1)  # noqa: NPY002 (the global generator is what must not matter)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    batches = TrainingBatches(MANY_ROWS, 200, 5)
    here = [i for _ in range(40) for i in next(batches).indices]
    assert other.strip() == str(here)
    assert torch.equal(torch.get_rng_state(), before)


def test_another_run_s_place_is_refused() -> None:
    state = TrainingBatches(MANY_ROWS, 200, 5).state()
    with pytest.raises(CheckpointError, match="seed was 5 when the checkpoint was written, and is 6 now"):
        TrainingBatches(MANY_ROWS, 200, 6).restore(state)
    with pytest.raises(CheckpointError, match=r"tokens_per_batch was 200 .* is 100 now"):
        TrainingBatches(MANY_ROWS, 100, 5).restore(state)
    with pytest.raises(CheckpointError, match=r"n_rows was 500 .* is 499 now"):
        TrainingBatches(MANY_ROWS[1:], 200, 5).restore(state)
    with pytest.raises(CheckpointError, match="n_tokens was"):
        TrainingBatches([*MANY_ROWS[1:], Row([4] * 99, [])], 200, 5).restore(state)


def test_training_needs_rows() -> None:
    with pytest.raises(DataError, match="there are no training examples"):
        TrainingBatches([], 100, 1)


@given(some_rows, st.integers(1, 200), st.integers(1, 70))
def test_evaluation_gives_every_row_once_within_the_budget(rows: list[Row], tokens_per_batch: int, window: int) -> None:
    drawn = list(evaluation_batches(iter(rows), tokens_per_batch, window=window))
    assert sorted(numbers(drawn)) == list(range(len(rows)))
    for batch in drawn:
        check_budget(batch, tokens_per_batch)
        assert len({i // window for i in batch.indices}) == 1


def test_evaluation_reads_no_more_than_a_window_ahead() -> None:
    n_read = 0

    def stream() -> Iterator[Row]:
        nonlocal n_read
        for row in MANY_ROWS:
            n_read += 1
            yield row

    n_given = 0
    for batch in evaluation_batches(stream(), 100, window=50):
        assert n_read - n_given <= 50
        n_given += batch.n_sentences
    assert n_given == 500


def test_evaluation_of_nothing_is_nothing() -> None:
    assert list(evaluation_batches([], 100)) == []
