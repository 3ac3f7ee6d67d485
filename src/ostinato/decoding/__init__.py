"""One cached search loop, and generation of text with it."""

from __future__ import annotations

from ostinato.decoding.beams import Hypothesis, length_penalty
from ostinato.decoding.search import Decodable, inference, search, search_n_best

__all__ = ["Decodable", "Hypothesis", "inference", "length_penalty", "search", "search_n_best"]
