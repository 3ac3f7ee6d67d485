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

from ostinato.config.data import DataConfig
from ostinato.data.batch import Batch, TextSize
from ostinato.data.batching import TrainingBatches, evaluation_batches
from ostinato.data.collate import LabelledRow, Row, collate
from ostinato.data.example import Example
from ostinato.data.rows import encode_examples
from ostinato.data.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizers
from ostinato.errors import CheckpointError, DataError

EXAMPLES = [Example("a b", "x"), Example("a b c d", "x y"), Example("a", "x y x y x", {"k": 1})]
TOKENIZERS = Tokenizers.train(DataConfig(), EXAMPLES)


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


def test_collated_rows_hold_their_ids_between_begin_and_end_symbols() -> None:
    batch = collate([Row([7, 8, 9], [5], {"k": 1}, 4), Row([6], [9, 8], {"j": "x"}, 2)])
    assert batch.source is not None
    assert batch.source.ids_BT.tolist() == [[7, 8, 9, EOS_ID], [6, EOS_ID, PAD_ID, PAD_ID]]
    assert batch.source.keep_BT.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.target.ids_BT.tolist() == [[BOS_ID, 5, PAD_ID], [BOS_ID, 9, 8]]
    assert batch.labels_BT.tolist() == [[5, EOS_ID, PAD_ID], [9, 8, EOS_ID]]
    assert batch.loss_mask_BT.tolist() == batch.target.keep_BT.tolist() == [[True, True, False], [True, True, True]]
    assert batch.source.ids_BT.dtype == batch.labels_BT.dtype == torch.int64
    assert batch.indices == (4, 2)
    assert batch.columns == {"k": [1, None], "j": [None, "x"]}
    assert batch.n_labels == 5


def test_a_language_model_s_rows_have_no_source() -> None:
    batch = collate([Row(None, [5, 6]), Row(None, [])])
    assert batch.source is None
    assert batch.target.ids_BT.tolist() == [[BOS_ID, 5, 6], [BOS_ID, PAD_ID, PAD_ID]]
    with pytest.raises(DataError, match="1 of 2 rows have a source"):
        collate([Row(None, [5]), Row([4], [5])])
    with pytest.raises(DataError, match="at least one row"):
        collate([])


def test_joined_rows_are_one_sequence_whose_labels_begin_at_the_begin_symbol() -> None:
    rows = [Row([7, 8, 9], [5], {"k": 1}, 4, is_joined=True), Row([6], [9, 8], {}, 2, is_joined=True)]
    batch = collate(rows)
    assert batch.source is None
    assert batch.has_sources
    assert batch.prefix_lengths_B is not None
    assert batch.prefix_lengths_B.tolist() == [4, 2]
    assert batch.target.ids_BT.tolist() == [[7, 8, 9, EOS_ID, BOS_ID, 5], [6, EOS_ID, BOS_ID, 9, 8, PAD_ID]]
    assert batch.target.keep_BT.tolist() == [[True] * 6, [True] * 5 + [False]]
    labels = [row[counts].tolist() for row, counts in zip(batch.labels_BT, batch.loss_mask_BT, strict=True)]
    assert labels == [[5, EOS_ID], [9, 8, EOS_ID]]
    assert batch.loss_mask_BT.tolist() == [[False] * 4 + [True] * 2, [False] * 2 + [True] * 3 + [False]]
    assert batch.n_labels == 5
    assert [row.length for row in rows] == [6, 5]
    assert batch.target.ids_BT.shape == (2, max(row.length for row in rows))
    with pytest.raises(DataError, match="1 of 2 rows are one sequence"):
        collate([Row([4], [5], is_joined=True), Row([4], [5])])


@pytest.mark.parametrize("chosen", [slice(0, None, 2), slice(1, None, 2), slice(4, None, 5)])
def test_some_rows_of_a_batch_are_those_rows_with_all_that_belongs_to_them(chosen: slice) -> None:
    apart = [Row([7] * n, [5] * n, {"k": n}, n, size=TextSize(n, n)) for n in (1, 2, 3)]
    joined = [Row([7] * n, [5] * n, {"k": n}, n, is_joined=True) for n in (1, 2, 3)]
    ids = [BOS_ID, 7, 8, EOS_ID]
    labelled = [LabelledRow(ids[: n + 1], [0] * n, list(range(n)), columns={"k": n}, index=n) for n in (1, 2, 3)]
    for rows in (apart, joined, labelled):
        whole = collate(rows)
        found, numbers_B = whole.rows(chosen), list(range(3))[chosen]
        assert found.n_sentences == len(numbers_B)
        assert (found.indices, found.columns["k"]) == (tuple(n + 1 for n in numbers_B), [n + 1 for n in numbers_B])
        assert found.sizes == tuple(whole.sizes[n] for n in numbers_B if whole.sizes)
        for name in ("labels_BT", "loss_mask_BT", "places_BL", "prefix_lengths_B"):
            one, other = getattr(found, name), getattr(whole, name)
            assert one is other is None or torch.equal(one, other[numbers_B]), name
        for one, other in ((found.target, whole.target), (found.source, whole.source)):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert torch.equal(one.ids_BT, other.ids_BT[numbers_B])
                assert torch.equal(one.keep_BT, other.keep_BT[numbers_B])


def test_joined_rows_keep_to_the_budget_and_to_the_longest_length_of_each_side() -> None:
    examples = [Example("a b c", "x y"), Example("a", "y y x")]
    data = DataConfig(max_source_length=4, max_target_length=4)
    rows = list(encode_examples(examples, TOKENIZERS, data, training=True, name="train", joins_pairs=True))
    assert [row.length for row in rows] == [7, 6]
    with pytest.raises(
        DataError, match=r"the source has 4 tokens with its end symbol, but data\.max_source_length is 3"
    ):
        list(encode_examples(examples, TOKENIZERS, DataConfig(max_source_length=3), training=True, name="t"))
    many = [Row([5] * n, [6] * (n % 4), {}, n, is_joined=True) for n in range(20)]
    for batch in evaluation_batches(many, 60):
        assert batch.target.ids_BT.numel() <= 60
    texts = [Example(None, "a b")]
    (text,) = encode_examples(texts, TOKENIZERS, data, training=True, name="train", joins_pairs=True)
    assert not text.is_joined


def encode(data: DataConfig, *, training: bool, examples: list[Example] = EXAMPLES) -> list[Row]:
    return list(encode_examples(examples, TOKENIZERS, data, training=training, name="dev"))


def test_encoded_examples_keep_columns_and_numbers() -> None:
    rows = encode(DataConfig(), training=True)
    assert [row.index for row in rows] == [0, 1, 2]
    assert [row.length for row in rows] == [3, 5, 6]
    assert rows[2].columns == {"k": 1}
    assert TOKENIZERS.source.decode(rows[1].source_ids or []) == "a b c d"
    assert TOKENIZERS.target.decode(rows[1].target_ids) == "x y"


def test_a_length_equal_to_the_limit_is_allowed() -> None:
    data = DataConfig(max_source_length=5, max_target_length=6)
    assert len(encode(data, training=True)) == 3


@pytest.mark.parametrize("training", [True, False])
def test_a_longer_example_is_an_error_that_names_it(training: bool) -> None:
    with pytest.raises(DataError) as caught:
        encode(DataConfig(max_source_length=4), training=training)
    assert str(caught.value).startswith(
        "dev: example 2: the source has 5 tokens with its end symbol, but data.max_source_length is 4: "
        "raise data.max_source_length, or set data.over_length to 'truncate'"
    )
    assert ("or 'drop'" in str(caught.value)) == training
    with pytest.raises(DataError, match=r"example 3: the target has 6 .* data\.max_target_length is 5"):
        encode(DataConfig(max_target_length=5), training=training)


def test_longer_examples_are_dropped_in_training_only() -> None:
    data = DataConfig(max_source_length=4, max_target_length=5, over_length="drop")
    assert [row.index for row in encode(data, training=True)] == [0]
    with pytest.raises(DataError, match=r"example 2: .*evaluation drops nothing"):
        encode(data, training=False)


@pytest.mark.parametrize("training", [True, False])
def test_longer_examples_can_be_truncated(training: bool) -> None:
    data = DataConfig(max_source_length=4, max_target_length=5, over_length="truncate")
    rows = encode(data, training=training)
    assert TOKENIZERS.source.decode(rows[1].source_ids or []) == "a b c"
    assert TOKENIZERS.target.decode(rows[2].target_ids) == "x y x y"
    assert collate(rows).target.ids_BT.shape == (3, 5)


def test_an_unknown_symbol_names_example_and_side() -> None:
    examples = [EXAMPLES[0], Example("a q", "x")]
    with pytest.raises(DataError, match=r"^dev: example 2, source: 'q' is not among the 6 words"):
        encode(DataConfig(), training=False, examples=examples)
    rows = encode(DataConfig(unknown="replace"), training=False, examples=examples)
    assert rows[1].source_ids is not None
    assert rows[1].source_ids[1] == UNK_ID


def test_language_model_examples_have_no_source_ids() -> None:
    rows = encode(DataConfig(), training=True, examples=[Example(None, "x y")])
    assert rows[0].source_ids is None
    assert rows[0].length == 3
