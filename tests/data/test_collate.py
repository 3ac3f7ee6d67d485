from __future__ import annotations

import pytest
import torch

from ostinato.data.batch import TextSize
from ostinato.data.collate import LabelledRow, Row, collate
from ostinato.data.tokenizer import BOS_ID, EOS_ID, PAD_ID
from ostinato.errors import DataError


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
    with torch.device("meta"):
        again = collate(rows)
    assert torch.equal(again.loss_mask_BT, batch.loss_mask_BT)
    assert again.prefix_lengths_B is not None
    assert again.prefix_lengths_B.tolist() == [4, 2]
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
