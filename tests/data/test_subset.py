from __future__ import annotations

import pytest

from ostinato.data.subset import take_evenly


def test_items_are_spread_evenly_over_all_in_their_order() -> None:
    assert take_evenly(range(10), 5) == [0, 2, 4, 6, 8]
    assert take_evenly(range(10), 4) == [0, 2, 5, 7]
    assert take_evenly(iter("abcdefg"), 3) == ["a", "c", "e"]
    assert take_evenly(range(10), 1) == [0]


@pytest.mark.parametrize("size", [1, 7, 100, 13552])
def test_no_part_of_a_split_has_more_than_its_share(size: int) -> None:
    for n in {1, size // 3, size // 2, size - 1, size} - {0}:
        taken = list(take_evenly(range(size), n))
        gaps = {later - earlier for earlier, later in zip(taken, [*taken[1:], size], strict=True)}
        assert len(taken) == n
        assert gaps <= {size // n, -(-size // n)}


def test_all_are_taken_where_there_are_no_more_or_no_number_is_given() -> None:
    assert list(take_evenly(iter([1, 2, 3]), 3)) == list(take_evenly([1, 2, 3], 9)) == [1, 2, 3]
    stream = iter([1, 2, 3])
    assert take_evenly(stream, None) is stream


def test_a_part_of_those_taken_is_what_would_have_been_taken_of_all() -> None:
    assert take_evenly(list(take_evenly(range(13552), 4000)), 1000) == take_evenly(range(13552), 1000)
