"""A metric of which 0 is the best score, and a run that is scored by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ostinato.evaluation.loading import LoadedRun
from ostinato.metrics import TokenAccuracyFree


class MinusErrors(TokenAccuracyFree):
    """Minus the share of the words that are wrong."""

    perfect = 0.0

    def score(self, totals: Sequence[float]) -> float:
        return super().score(totals) - 1.0


OWN, OURS = f"{__name__}:MinusErrors", "token_accuracy_free"


def scored_by_both(run: LoadedRun) -> LoadedRun:
    """Return a run that is scored by one of our metrics and by the one above."""
    evaluation = run.recipe.evaluation.model_copy(update={"metrics": [OURS, OWN]})
    return replace(run, recipe=run.recipe.model_copy(update={"evaluation": evaluation}))
