from __future__ import annotations

import pytest

from ostinato.data.example import Example, fingerprint, take_evenly


def test_the_fingerprint_is_that_of_one_json_line_per_example() -> None:
    # printf '["a b","c",{"k":1,"z":"\\u00e9"}]\n[null,"text",{}]\n' | sha256sum
    examples = [Example("a b", "c", {"z": "é", "k": 1}), Example(None, "text")]
    digest, n_examples = fingerprint(iter(examples))
    assert n_examples == 2
    assert digest == "1e9c0169c5cac80e5df7c4c8202c4a5f18cb549f5e1ee542577122d09b841b51"


def test_the_fingerprint_sees_every_part_and_the_order() -> None:
    base = [Example("a", "b", {"c": 1}), Example("d", "e")]
    others = [
        base[::-1],
        base[:1],
        [Example("a b", "", {"c": 1}), base[1]],
        [Example(None, "b", {"c": 1}), base[1]],
        [Example("a", "b", {"c": "1"}), base[1]],
    ]
    digests = {fingerprint(examples)[0] for examples in [base, *others]}
    assert len(digests) == 6


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
