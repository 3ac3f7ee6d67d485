"""Realised depth: how many rounds a token took part in, on average over the real tokens of all examples."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.data.batch import Batch
from ostinato.models.output import ModelOutput


class DepthTotals:
    """Executed rounds and real tokens of every stack; teacher-forced passes are added one by one.

    Args:
        rounds: of every stack, which each token runs where none can halt.
    """

    def __init__(self, rounds: Mapping[str, int]) -> None:
        self._rounds = dict(rounds)
        self._executed = dict.fromkeys(rounds, 0)
        self._tokens = dict.fromkeys(rounds, 0)

    def add(self, output: ModelOutput, batch: Batch) -> None:
        """Count one pass; padding is none of it."""
        for name, stack in output.stacks.items():
            tokens = batch.source if name == "encoder" and batch.source is not None else batch.target
            n_tokens = int(tokens.keep_BT.sum())
            self._tokens[name] += n_tokens
            if stack.halting is None:
                self._executed[name] += n_tokens * self._rounds[name]
            else:
                self._executed[name] += int((stack.halting.executed_BTR & tokens.keep_BT[..., None]).sum())

    def compute(self) -> dict[str, float]:
        """Return the mean depth of every stack that saw a token."""
        return {name: self._executed[name] / n for name, n in self._tokens.items() if n}
