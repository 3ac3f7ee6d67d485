"""Tokens that stop by a criterion, one at a time, from the equations of `ostinato.nn.exits`; nothing is learned."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from reference.halting import States, Whole


class Stopping(Whole):
    """The state after the first round whose confidence reaches the threshold.

    Args:
        is_sequence: the mean confidence of all tokens decides for all of them.
        predict: from the states of all tokens, those that have stopped among them, to their logits.
    """

    def __init__(
        self,
        criterion: str,
        threshold: float,
        first: States,
        n_rounds: int,
        predict: Callable[[States], Tensor],
        *,
        is_sequence: bool,
    ) -> None:
        super().__init__(len(first))
        self.criterion, self.threshold, self.n_rounds, self.predict = criterion, threshold, n_rounds, predict
        self.is_sequence = is_sequence
        self._before = first
        self._probs_before: Tensor | None = None
        self._unchanged = [0] * len(first)

    def begin(self, r: int, states: States) -> bool:
        """Note what enters the round."""
        self._before = list(states)
        return super().begin(r, states)

    def finish(self, r: int, states: States) -> None:
        """Ask who stops after round r."""
        running = [t for t, runs in enumerate(self.runs) if runs]
        is_last = r == self.n_rounds
        found = [0.0] * len(states) if is_last else self._confidences(r, states)
        found = [min(max(c, 0.0), 1.0) for c in found]
        if self.is_sequence:
            found = [sum(found) / len(found)] * len(found)
        for t in running:
            stops = self.threshold < 1 and found[t] >= self.threshold
            self.weights[t].append(torch.tensor(float(stops or is_last), dtype=states[t].dtype))
            self.runs[t] = not (stops or is_last)

    def _confidences(self, r: int, states: States) -> list[float]:
        if self.criterion in ("change", "cosine"):
            return [self._of_states(g, h) for g, h in zip(self._before, states, strict=True)]
        probs_TV = torch.softmax(self.predict(states).detach(), -1)
        before_TV, self._probs_before = self._probs_before, probs_TV
        return [self._of_predictions(t, p, None if before_TV is None else before_TV[t]) for t, p in enumerate(probs_TV)]

    def _of_states(self, before_D: Tensor, after_D: Tensor) -> float:
        g, h = before_D.detach(), after_D.detach()
        if self.criterion == "cosine":
            return float((g * h).sum() / (g.norm() * h.norm()))
        return float(1 - (h - g).norm() / h.norm())

    def _of_predictions(self, t: int, p: Tensor, before: Tensor | None) -> float:
        highest = torch.log(torch.tensor(float(len(p))))
        if self.criterion == "margin":
            first, second = sorted(p.tolist())[-1:-3:-1]
            return first - second
        if self.criterion == "certainty":
            return float(1 - _entropy(p) / highest)
        if before is None:
            return 0.0
        if self.criterion == "settled":
            return float(1 - (_entropy(p) - _entropy(before)).abs() / highest)
        if self.criterion == "agreement":
            return float(torch.exp(-(before * (before / p).log()).sum()))
        assert self.criterion == "stable"
        self._unchanged[t] = self._unchanged[t] + 1 if p.argmax() == before.argmax() else 0
        return 1 - 1 / (1 + self._unchanged[t])


def _entropy(p: Tensor) -> Tensor:
    return -(p * p.log()).sum()
