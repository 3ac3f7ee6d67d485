"""How output is searched for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from ostinato.config.base import Config, Count, Positive, Size, SizeOrZero, inert
from ostinato.errors import Problem


def with_strategy(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of `DecodingConfig` in which `beam` alone also chooses the strategy that it needs."""
    found = dict(chosen)
    if "strategy" not in found and "beam" in found:
        found["strategy"] = "beam" if found["beam"] != 1 else "greedy"
    elif found.get("strategy") in ("greedy", "sample"):
        found.setdefault("beam", 1)
    return found


_ONLY_WITH = {"beam": {"stopping"}, "sample": {"temperature", "top_k", "seed"}}
"""Settings of one strategy."""


class LengthPenaltyConfig(Config):
    """Score of a finished hypothesis of n tokens (the end symbol included) and log-probability s.

    none: s.   gnmt: s / ((5 + n) / 6)^alpha  (Wu et al. 2016, eq. 14).   exponent: s / n^alpha  (fairseq's lenpen).
    """

    kind: Literal["none", "gnmt", "exponent"] = "gnmt"
    alpha: Annotated[float, Field(ge=0, le=10)] = 0.6
    """0: no penalty; larger values favour longer outputs."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """An exponent of nothing."""
        if self.kind == "none":
            yield from inert(self, path, f"has no effect with {path}kind=none: remove it", but={"kind"})


class DecodingConfig(Config):
    """Greedy, sampled or beam search; at most max_length + max_length_ratio * source tokens are generated, and at least
    min_length + min_length_ratio * source tokens, the end symbol included, where that is no more."""

    page: ClassVar[str] = "decoding"
    """See `Config.page`."""
    strategy: Literal["greedy", "sample", "beam"] = "greedy"
    """greedy: the most probable token. sample: a token drawn from the model's distribution. beam: beam search."""
    beam: Size = 1
    """Hypotheses of a sentence that a beam search keeps."""
    n_best: Size = 1
    """Outputs of a source that are returned, best first; a beam search only."""
    length_penalty: LengthPenaltyConfig = LengthPenaltyConfig()
    """How the scores of finished hypotheses of different lengths are compared."""
    stopping: Literal["bound", "count"] = "bound"
    """A beam search of a sentence ends. bound: when no live hypothesis can still beat the worst of the `n_best` best
    finished ones, were all its further tokens certain; with a length penalty this may run to the length limit.
    count: also as soon as `beam` hypotheses have finished (fairseq's rule; cheaper)."""
    max_length: SizeOrZero = 256
    """Tokens generated at most: max_length + max_length_ratio * source tokens."""
    max_length_ratio: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Tokens generated at most, for every source token, beside max_length."""
    min_length: SizeOrZero = 0
    """Tokens generated at least: min_length + min_length_ratio * source tokens."""
    min_length_ratio: Annotated[float, Field(ge=0, le=1000)] = 0.0
    """Tokens generated at least, for every source token, beside min_length."""
    token_scores: bool = False
    """Whether outputs carry the log-probability of every token."""
    temperature: Positive = 1.0
    """What logits are divided by before sampling."""
    top_k: Size | None = None
    """Sampling draws from so many of the most probable tokens; None: from all."""
    seed: Count = 0
    """Seed of sampling."""
    cached_rounds: Size | None = None
    """Rounds of a loop whose keys and values are kept for later tokens, where its rounds share all weights: an
    approximation; None: all. 1: all rounds read what the last one left of earlier tokens (Ouro, at decoding)."""
    static_cache: bool = False
    """Keep the sizes of all tensors from token to token, and on CUDA record a step as a graph and replay it: fewer
    launches, for rows of sentences that have stopped and for columns that are empty. Tokens must not halt."""
    pack_weights: bool = True
    """On a CPU, search with compiled kernels and with copies of the weights in the form it multiplies by fastest, in as
    much memory again. False: plain products."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A beam is for beam search, and a search must be allowed to write something."""
        for only, names in _ONLY_WITH.items():
            if self.strategy != only:
                others = type(self).model_fields.keys() - names
                yield from inert(self, path, f"has no effect without {path}strategy={only}: remove it", but=others)
        if (self.strategy == "beam") != (self.beam > 1):
            yield Problem(f"{path}beam", self.beam, f"must be above 1 with {path}strategy=beam, and 1 otherwise")
        if self.n_best > self.beam:
            yield Problem(f"{path}n_best", self.n_best, f"must be at most {path}beam = {self.beam}")
        if self.min_length > self.max_length and self.min_length_ratio >= self.max_length_ratio:
            reason = f"no output is as long: {path}max_length is {self.max_length}"
            yield Problem(f"{path}min_length", self.min_length, reason)
        if self.max_length == 0 and self.max_length_ratio == 0.0:
            yield Problem(f"{path}max_length", 0, f"or {path}max_length_ratio must be above 0")
