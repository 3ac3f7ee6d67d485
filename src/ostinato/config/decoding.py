"""How output is searched for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Config
from ostinato.errors import Problem

Size = Annotated[int, Field(ge=1)]


class LengthPenaltyConfig(Config):
    """Score of a finished hypothesis of n tokens (the end symbol included) and log-probability s.

    none: s.   gnmt: s / ((5 + n) / 6)^alpha  (Wu et al. 2016, eq. 14).   exponent: s / n^alpha  (fairseq's lenpen).
    """

    kind: Literal["none", "gnmt", "exponent"] = "gnmt"
    alpha: Annotated[float, Field(ge=0)] = 0.6
    """Strength of the penalty; 0: none."""


class DecodingConfig(Config):
    """Greedy, sampled or beam search; at most max_length + max_length_ratio * source tokens are generated, and at least
    min_length + min_length_ratio * source tokens, the end symbol included, where that is no more."""

    strategy: Literal["greedy", "sample", "beam"] = "greedy"
    """greedy: the most probable token. sample: a token drawn at random. beam: beam search."""
    beam: Size = 1
    """Hypotheses that are kept for a source."""
    n_best: Size = 1
    """Outputs of a source that are given back, best first; a beam search only."""
    length_penalty: LengthPenaltyConfig = LengthPenaltyConfig()
    """How finished hypotheses of different lengths are compared."""
    stopping: Literal["bound", "count"] = "bound"
    """A beam search of a sentence ends. bound: when no live hypothesis can still beat the worst of the `n_best` best
    finished ones, were all its further tokens certain; with a length penalty this may run to the length limit.
    count: also as soon as `beam` hypotheses have finished (fairseq's rule; cheaper)."""
    max_length: Annotated[int, Field(ge=0)] = 256
    """Longest output, the end symbol included; max_length_ratio * source tokens are added."""
    max_length_ratio: Annotated[float, Field(ge=0)] = 0.0
    """Tokens added to max_length for each token of the source."""
    min_length: Annotated[int, Field(ge=0)] = 0
    """Shortest output, the end symbol included; min_length_ratio * source tokens are added."""
    min_length_ratio: Annotated[float, Field(ge=0)] = 0.0
    """Tokens added to min_length for each token of the source."""
    token_scores: bool = False
    """Whether outputs carry the log-probability of every token."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """sample: log-probabilities are divided by it; below 1 is sharper."""
    top_k: Size | None = None
    """sample: only so many of the most probable tokens are drawn from; None: all."""
    seed: Annotated[int, Field(ge=0)] = 0
    """sample: of the draws."""
    pack_weights: bool = True
    """On a CPU, search with compiled kernels and with copies of the weights in the form it multiplies by fastest, in as
    much memory again. False: plain products."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A beam is for beam search, and a search must be allowed to write something."""
        if (self.strategy == "beam") != (self.beam > 1):
            yield Problem(f"{path}beam", self.beam, f"must be above 1 with {path}strategy=beam, and 1 otherwise")
        if self.n_best > self.beam:
            yield Problem(f"{path}n_best", self.n_best, f"must be at most {path}beam = {self.beam}")
        if self.min_length > self.max_length and self.min_length_ratio >= self.max_length_ratio:
            reason = f"no output is as long: {path}max_length is {self.max_length}"
            yield Problem(f"{path}min_length", self.min_length, reason)
        if self.max_length == 0 and self.max_length_ratio == 0.0:
            yield Problem(f"{path}max_length", 0, f"or {path}max_length_ratio must be above 0")
