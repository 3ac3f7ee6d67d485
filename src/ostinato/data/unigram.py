"""The unigram language model of subwords (Kudo 2018, arXiv 1804.10959, section 3.2), trained in a fixed order.

A word is cut into pieces x_1 ... x_M that are drawn independently: P(x_1 ... x_M) = prod p(x_i). Starting from the
frequent substrings, two rounds of expectation maximisation over all segmentations alternate with dropping the pieces
whose loss would lower the likelihood least, until the wanted number is left. Single symbols are never dropped.

Differs from the usual trainers: every sum and every tie has one order, so that the same words give the same model in
every process (which is not so where a trainer iterates over a hash table); and the loss of a piece is its expected
count times the difference between its score and that of its best segmentation into other pieces.

Letters: A arcs (a piece at a place of a string), V nodes (places between symbols of all strings, end to end).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_LONGEST_PIECE = 16
_SEEDS_PER_PIECE = 8
_KEPT_PER_ROUND = 0.7
_EM_ROUNDS = 2
_LEAST_SYMBOL_COUNT = 0.5
_LEAST_PIECE_COUNT = 1e-12

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def train_unigram(words: Mapping[str, int], alphabet: Sequence[str], n_pieces: int) -> list[tuple[str, float]]:
    """Return at most `n_pieces` pieces with their log probabilities, the most probable first.

    Args:
        words: how often every word occurs; pieces never cross words.
        alphabet: the symbols that may occur, which are all pieces; at most `n_pieces`.
    """
    strings = sorted(words)
    counts = np.array([words[word] for word in strings], dtype=np.float64)
    pieces = _seeds(words, alphabet, n_pieces * _SEEDS_PER_PIECE)
    occurrences = np.array([max(count, 1) for count in pieces.values()], dtype=np.float64)
    scores = np.log(occurrences / occurrences.sum())
    names = list(pieces)
    n_symbols = len(alphabet)
    # One lattice cuts the words into pieces; the other cuts every piece into other pieces, for the loss without it.
    corpus, of_pieces = _Lattice.of(strings, names), _Lattice.of(names, names)
    while True:
        for _ in range(_EM_ROUNDS):
            expected = corpus.expected_counts(scores, counts)
            expected[:n_symbols] = np.maximum(expected[:n_symbols], _LEAST_SYMBOL_COUNT)
            scores = np.log(np.maximum(expected, _LEAST_PIECE_COUNT) / expected.sum())
        if len(names) <= n_pieces:
            break
        loss = expected * (scores - of_pieces.without_whole_strings().best(scores))
        loss[:n_symbols] = np.inf
        n_kept = max(n_pieces, int(len(names) * _KEPT_PER_ROUND))
        kept = np.sort(np.lexsort((np.arange(len(names)), -loss))[:n_kept])
        names, scores = [names[i] for i in kept], scores[kept]
        corpus, of_pieces = corpus.restricted_to(kept), _Lattice.of(names, names)
    order = sorted(range(len(names)), key=lambda i: (-scores[i], names[i]))
    return [(names[i], float(scores[i])) for i in order]


def _seeds(words: Mapping[str, int], alphabet: Sequence[str], n_seeds: int) -> dict[str, int]:
    """Return the alphabet, then the substrings that cover the most characters of text, with their counts."""
    found: Counter[str] = Counter()
    for word, count in words.items():
        for begin in range(len(word)):
            for end in range(begin + 1, min(begin + _LONGEST_PIECE, len(word)) + 1):
                found[word[begin:end]] += count
    longer = [piece for piece, count in found.items() if len(piece) > 1 and count > 1]
    longer.sort(key=lambda piece: (-found[piece] * len(piece), piece))
    return {piece: found[piece] for piece in [*sorted(alphabet), *longer[:n_seeds]]}


@dataclass(frozen=True, slots=True)
class _Lattice:
    """All ways to cut some strings into pieces.

    Args:
        first, last: the nodes before the first and after the last symbol of every string.
        begin_A, end_A: nodes that an arc leads from and to.
        piece_A: which piece it is.
        level_V: place of a node in its string.
    """

    first: Ints
    last: Ints
    begin_A: Ints
    end_A: Ints
    piece_A: Ints
    level_V: Ints

    @classmethod
    def of(cls, strings: Sequence[str], pieces: Sequence[str]) -> _Lattice:
        number = {piece: i for i, piece in enumerate(pieces)}
        longest = max(map(len, pieces))
        arcs = array("q")
        offset = 0
        for text in strings:
            for begin in range(len(text)):
                for end in range(begin + 1, min(begin + longest, len(text)) + 1):
                    if (piece := number.get(text[begin:end])) is not None:
                        arcs.extend((offset + begin, offset + end, piece))
            offset += len(text) + 1
        sizes = np.array([len(text) + 1 for text in strings], dtype=np.int64)
        last = np.cumsum(sizes) - 1
        first = last - sizes + 1
        columns = np.array(arcs, dtype=np.int64).reshape(-1, 3).T.copy()
        level_V = np.arange(offset) - np.repeat(first, sizes)
        return cls(first, last, columns[0], columns[1], columns[2], level_V)

    def _with_arcs(self, keep_A: Bools, piece_A: Ints) -> _Lattice:
        arcs = (self.begin_A[keep_A], self.end_A[keep_A], piece_A[keep_A])
        return _Lattice(self.first, self.last, *arcs, self.level_V)

    def restricted_to(self, kept: Ints) -> _Lattice:
        """Return the lattice over the pieces `kept`, which get new numbers in that order."""
        number = np.full(max(int(self.piece_A.max()), int(kept.max())) + 1, -1, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        piece_A = number[self.piece_A]
        return self._with_arcs(piece_A >= 0, piece_A)

    def without_whole_strings(self) -> _Lattice:
        """Return the lattice without the arcs that are a string of two symbols or more as a whole."""
        is_first = self.level_V[self.begin_A] == 0
        is_last = np.isin(self.end_A, self.last)
        keep_A = ~(is_first & is_last) | (self.end_A - self.begin_A == 1)
        return self._with_arcs(keep_A, self.piece_A)

    def best(self, scores: Floats) -> Floats:
        """Return the score of the best segmentation of every string."""
        reached_V = _propagate(np.maximum, self.first, self.begin_A, self.end_A, self.level_V, scores[self.piece_A])
        return reached_V[self.last]

    def expected_counts(self, scores: Floats, counts: Floats) -> Floats:
        """Return how often every piece is expected in `counts` copies of the strings, over all segmentations."""
        score_A = scores[self.piece_A]
        before_V = _propagate(np.logaddexp, self.first, self.begin_A, self.end_A, self.level_V, score_A)
        after_V = _propagate(np.logaddexp, self.last, self.end_A, self.begin_A, -self.level_V, score_A)
        string_V = np.repeat(np.arange(len(self.first)), self.last - self.first + 1)
        string_A = string_V[self.begin_A]
        total_A = before_V[self.last][string_A]
        share_A = np.exp(before_V[self.begin_A] + score_A + after_V[self.end_A] - total_A)
        weights_A: Floats = share_A * counts[string_A]
        return np.bincount(self.piece_A, weights=weights_A, minlength=len(scores)).astype(np.float64)


def _propagate(add: np.ufunc, origin: Ints, begin_A: Ints, end_A: Ints, level_V: Ints, score_A: Floats) -> Floats:
    """Return every node's score, from the nodes `origin` (score 0) along the arcs: the forward or backward algorithm.

    All strings are processed at once, one level after the other; `add` combines the arcs that end in one node.
    """
    reached_V = np.full(len(level_V), -np.inf)
    reached_V[origin] = 0.0
    # Sorted by level, then by end, so that a level is a slice and the arcs into one node stand side by side in it.
    order = np.lexsort((begin_A, end_A, level_V[end_A]))
    begin_A, end_A, score_A = begin_A[order], end_A[order], score_A[order]
    level_A = level_V[end_A]
    cuts = np.flatnonzero(np.diff(level_A, prepend=level_A[0] - 1, append=level_A[-1] + 1))
    for start, stop in pairwise(cuts.tolist()):
        ends = end_A[start:stop]
        groups = np.flatnonzero(np.diff(ends, prepend=-1))
        reached_V[ends[groups]] = add.reduceat(reached_V[begin_A[start:stop]] + score_A[start:stop], groups)
    return reached_V
