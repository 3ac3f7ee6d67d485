"""Plain twin of cached decoding: token after token, with what the loop's rounds left of earlier ones.

Tokens are fed in steps. Round r of a step reads of the tokens of earlier steps what their last round q with
q = r (mod n_kept) left, and of the tokens of its own step their keys of round r itself. In rounds after it has stopped
a token leaves the keys of what it looks like then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor

from architectures import Sentence
from ostinato.models import Seq2Seq
from ostinato.plan import Plan, Segment
from reference.halting import States, Whole
from reference.sub_layers import Model
from reference.twin import StackTwin, embedded, logits_of

Left = dict[tuple[bool, int], list[Any]]
"""What sub-layers read of the tokens so far: of attention or not, by place of the cache."""


def cached_twin(model: Model, sentence: Sentence, ends: Sequence[int], n_kept: int | None) -> list[Tensor]:
    """Return the logits after the last token of every step, `[V]` each.

    Args:
        ends: of every step how many tokens have been fed with it. n_kept: None: all rounds.
    """
    memory: States | None = None
    if isinstance(model, Seq2Seq):
        assert sentence.source is not None
        encoder = StackTwin(model, "encoder", sentence.source, is_causal=False)
        memory, _ = encoder.run(embedded(model, model.source_embedding, sentence.source), None)
    n_prefix = sentence.n_prefix if getattr(model.config, "mask", "causal") == "prefix" else None
    left: Left = {}
    found = []
    for start, end in pairwise([0, *ends]):
        ids = sentence.target[:end]
        stack = CachedTwin(model, ids, n_prefix, start, n_kept, left)
        states, _ = stack.run(embedded(model, model.target_embedding, ids), None, memory)
        found.append(logits_of(model, states[-1:])[0])
    return found


class CachedTwin(StackTwin):
    """One step of the decoder over the tokens so far, of which the first ones were fed before.

    Args:
        n_before: so many. left: by place of the cache what attention or a convolution reads of them; of the step's own
            tokens it is added.
    """

    _fills = True

    def __init__(
        self,
        model: Model,
        ids: Sequence[int],
        n_prefix: int | None,
        n_before: int,
        n_kept: int | None,
        left: Left,
    ) -> None:
        super().__init__(model, "decoder", ids, is_causal=True, n_prefix=n_prefix)
        self._n_before, self._n_kept, self._left, self._is_trial = n_before, n_kept, left, False
        self._plan = self._config.plan("decoder")
        self._n_a_round = len(next(self._plan.loop.rounds()))

    def _with_earlier(self, columns: list[Any], *, is_attention: bool) -> list[Any]:
        # Of convolutions every round has a place.
        place, earlier = (is_attention, self._place() if is_attention else self._at.index), list[Any]()
        if self._n_before:
            earlier = self._left[place][: self._n_before]
        everything = [*earlier, *columns[self._n_before :]]
        if not self._is_trial:
            self._left[place] = everything
        return everything

    def _place(self) -> int:
        """Where the step of the plan that runs writes what it leaves: in the first rounds, where some are kept."""
        at = self._at
        if not self._plan.segments[at.segment].is_loop or self._n_kept is None:
            return at.index
        return at.index - (at.round - at.round % self._n_kept) * self._n_a_round

    def _rule(self, plan: Plan, states: States, predict: Callable[[States], Tensor]) -> Whole:
        n, before = self._n_before, states[: self._n_before]
        later = super()._rule(plan, states[n:], lambda left: predict([*before, *left])[n:])
        return _OfLater(later, n)

    def _predict(self, segments: Sequence[Segment], states: States, memory: States | None) -> Tensor:
        at, self._is_trial = self._at, True
        found = super()._predict(segments, states, memory)
        self._at, self._is_trial = at, False
        return found


class _OfLater(Whole):
    """A rule of the tokens of one step; those before them run no more."""

    def __init__(self, rule: Whole, n_before: int) -> None:
        self._rule, self._n, self.hides = rule, n_before, rule.hides
        self._is_over = False

    @property
    def runs(self) -> list[bool]:  # type: ignore[override]
        # Who goes on changing once it has halted does so to the end: later tokens look at it.
        own = self._rule.runs
        stays = self._is_over and getattr(self._rule, "freezes", True)
        return [False] * self._n + ([False] * len(own) if stays else own)

    def begin(self, r: int, states: States) -> bool:
        self._is_over = not self._rule.begin(r, states[self._n :])
        return not self._is_over

    def enter(self, r: int, states: States) -> None:
        if not self._is_over:
            self._rule.enter(r, states[self._n :])

    def finish(self, r: int, states: States) -> None:
        if not self._is_over:
            later = states[self._n :]
            self._rule.finish(r, later)
            states[self._n :] = later

    def seen(self, t: int, x_D: Tensor) -> Tensor:
        return x_D if t < self._n else self._rule.seen(t - self._n, x_D)

    def output(self, states: States) -> States:
        return [*states[: self._n], *self._rule.output(states[self._n :])]
