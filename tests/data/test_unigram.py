from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from math import exp, log

import numpy as np
import pytest

from ostinato.data.unigram import _Lattice, train_unigram

WORDS = {"abab": 5, "abc": 3, "cab": 2, "b": 1}
PIECES = ["a", "b", "c", "ab", "bc", "aba", "cab"]
SCORES = np.log(np.array([0.2, 0.15, 0.1, 0.3, 0.1, 0.05, 0.1]))


def segmentations(word: str) -> Iterator[list[int]]:
    """All ways to write a word in PIECES."""
    if not word:
        yield []
    for i, piece in enumerate(PIECES):
        if word.startswith(piece):
            for rest in segmentations(word.removeprefix(piece)):
                yield [i, *rest]


def test_expected_counts_are_those_of_all_segmentations() -> None:
    expected = np.zeros(len(PIECES))
    for word, count in WORDS.items():
        ways = list(segmentations(word))
        weights = [exp(sum(SCORES[i] for i in way)) for way in ways]
        for way, weight in zip(ways, weights, strict=True):
            for i in way:
                expected[i] += count * weight / sum(weights)
    lattice = _Lattice.of(list(WORDS), PIECES)
    got = lattice.expected_counts(SCORES, np.array(list(WORDS.values()), dtype=np.float64))
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_the_best_segmentation_without_the_whole_string_is_that_of_all_segmentations() -> None:
    expected = [
        max(sum(SCORES[i] for i in way) for way in segmentations(piece) if len(way) > 1 or len(piece) == 1)
        for piece in PIECES
    ]
    got = _Lattice.of(PIECES, PIECES).without_whole_strings().best(SCORES)
    np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_a_restricted_lattice_is_the_lattice_of_fewer_pieces() -> None:
    kept = np.array([0, 1, 2, 3, 6])
    counts = np.ones(len(WORDS))
    fewer = [PIECES[i] for i in kept]
    got = _Lattice.of(list(WORDS), PIECES).restricted_to(kept).expected_counts(SCORES[kept], counts)
    np.testing.assert_allclose(got, _Lattice.of(list(WORDS), fewer).expected_counts(SCORES[kept], counts), rtol=1e-12)


def test_trained_pieces_are_a_distribution_that_keeps_all_symbols() -> None:
    words = {" walking": 9, " talking": 7, " walked": 5, " talked": 5, " king": 1}
    pieces = train_unigram(words, sorted(set("".join(words)) | {"#"}), 20)
    names = [name for name, _ in pieces]
    assert len(names) == len(set(names)) == 20
    assert set("".join(words)) | {"#"} <= set(names)
    assert sum(exp(score) for _, score in pieces) == pytest.approx(1.0, abs=1e-6)
    assert [score for _, score in pieces] == sorted((score for _, score in pieces), reverse=True)
    assert any(len(name) >= 4 for name in names)
    assert dict(pieces)["#"] < log(0.05)


def test_few_words_give_fewer_pieces_than_asked_for() -> None:
    assert {name for name, _ in train_unigram({"ab": 2}, ["a", "b"], 100)} == {"a", "b", "ab"}


def test_training_does_not_depend_on_the_process() -> None:
    program = (
        "from ostinato.data.unigram import train_unigram\n"
        "words = {str(i * i): i % 7 + 1 for i in range(400)}\n"
        "print(train_unigram(words, '0123456789', 60))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
