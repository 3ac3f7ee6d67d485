"""Beam search in plain Python: every step ranks all continuations, with one call a hypothesis."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ostinato.config.decoding import LengthPenaltyConfig
from ostinato.decoding import length_penalty

EOS = 2


def plain_beam(
    next_log_p: Callable[[list[int]], Tensor], beam: int, limit: int, penalty: LengthPenaltyConfig
) -> tuple[list[int], float]:
    """Return the best output and its score, from log-probabilities of the token after a prefix."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, limit + 1):
        candidates = [
            (log_prob + p, [*ids, token])
            for log_prob, ids in live
            for token, p in enumerate(next_log_p(ids).tolist())
            if token >= EOS
        ]
        candidates.sort(key=lambda c: -c[0])
        for log_prob, ids in candidates[:beam]:
            if ids[-1] == EOS:
                finished.append((log_prob / length_penalty(penalty, length), ids[:-1]))
        live = [c for c in candidates if c[1][-1] != EOS][:beam]
    if not finished:
        finished = [(live[0][0] / length_penalty(penalty, limit), live[0][1])]
    score, ids = max(finished, key=lambda f: f[0])
    return ids, score
