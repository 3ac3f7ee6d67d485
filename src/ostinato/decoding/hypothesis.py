"""What a search returns, and how it is scored."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ostinato.config.decoding import LengthPenaltyConfig


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One output.

    Args:
        ids: what was generated, without the begin and end symbols and without a forced prefix.
        score: `log_prob` divided by the length penalty.
        log_prob: sum of the model's own log-probabilities (temperature 1, whole vocabulary), the end symbol's included.
        finished: False where the length limit cut it before its end symbol.
        token_log_probs: of every token generated, the end symbol's last; None unless asked for (`token_scores`). They
            are differences of float32 sums, whose rounding they carry.
    """

    ids: list[int]
    score: float
    log_prob: float
    finished: bool
    token_log_probs: list[float] | None = None

    @property
    def n_tokens(self) -> int:
        """Tokens generated, the end symbol included."""
        return len(self.ids) + self.finished


def length_penalty(config: LengthPenaltyConfig, n_tokens: int) -> float:
    """Return the number that the log-probability of n generated tokens (end symbol included) is divided by.

    none: 1.   gnmt: ((5 + n) / 6)^alpha  (Wu et al. 2016, eq. 14).   exponent: n^alpha.

    It never falls as n grows, so a hypothesis of log-probability s <= 0 that may still grow to m tokens scores at most
    s / length_penalty(m): the bound of the stopping rule.
    """
    if config.kind == "none":
        return 1.0
    base = (5.0 + n_tokens) / 6.0 if config.kind == "gnmt" else float(n_tokens)
    return math.pow(base, config.alpha)
