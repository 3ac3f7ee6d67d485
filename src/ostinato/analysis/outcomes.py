"""What became of every example in a teacher-forced pass: labels right, loss, length, multiply-accumulates."""

from __future__ import annotations

import numpy as np

from ostinato.analysis.arrays import Floats, Ints
from ostinato.analysis.capture import Seen
from ostinato.analysis.collectors import NONE
from ostinato.budget import MacCounter
from ostinato.evaluation.depth import DepthTotals, real_tokens, sentence_depths
from ostinato.evaluation.scores import score_sentences


class Outcomes:
    """Scores of every example.

    Args:
        n: examples. Memory: 48 n bytes.

    Attributes: nll_N in nats, right_N and labels_N: labels; lengths_N: real tokens of the source (of the target where
    there is none); targets_N: of the target; macs_N2: at full depth, and realised; zeros where the stacks run another
    number of rounds than their configuration says. depths: of all tokens.
    """

    request = NONE

    def __init__(self, n: int) -> None:
        self.nll_N: Floats = np.zeros(n)
        self.right_N: Ints = np.zeros(n, dtype=np.int64)
        self.labels_N, self.lengths_N, self.targets_N = (np.zeros(n, dtype=np.int64) for _ in range(3))
        self.macs_N2: Floats = np.zeros((n, 2))
        self.depths = DepthTotals()
        self._counter: MacCounter | None = None

    @property
    def token_accuracy(self) -> float:
        """Share of the labels that are right."""
        return float(self.right_N.sum() / max(self.labels_N.sum(), 1))

    @property
    def sequence_accuracy(self) -> float:
        """Share of the examples with every label right."""
        return float((self.right_N == self.labels_N).mean())

    def add(self, seen: Seen) -> None:
        """Take in one batch."""
        batch, places = seen.batch, list(seen.batch.indices)
        scores = score_sentences(seen.output.logits_BTV, batch.labels_BT, batch.loss_mask_BT)
        self.nll_N[places] = [one.nll for one in scores]
        self.right_N[places] = [one.n_right for one in scores]
        self.labels_N[places] = [one.n_labels for one in scores]
        tokens = batch.target if batch.source is None else batch.source
        self.lengths_N[places] = tokens.keep_BT.sum(1).cpu().numpy()
        self.targets_N[places] = batch.target.keep_BT.sum(1).cpu().numpy()
        rounds = seen.model.n_rounds()
        sums = sentence_depths(seen.output, batch, rounds)
        for i in range(batch.n_sentences):
            self.depths.add({name: sums_BV[i] for name, sums_BV in sums.items()})
        config = seen.model.config
        if rounds == {name: plan.n_rounds for name, plan in config.plans().items()}:
            self._counter = self._counter or MacCounter(config)
            counts = {name: sums_BV[:, :-1].long().tolist() for name, sums_BV in sums.items()}
            for name in config.recurrences():
                counts[name] = real_tokens(name, batch).sum(1, keepdim=True).tolist()
            for i, place in enumerate(places):
                self.macs_N2[place] = self._counter.count({name: found[i] for name, found in counts.items()})
