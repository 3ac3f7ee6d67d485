"""The passes of a model over one batch of an evaluation: teacher-forced, and, where asked for, decoding."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ostinato.budget import MacCounter, SentenceMacs, expected_depths
from ostinato.budget.out_of_memory import noting_plan
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import EncoderConfig, ModelConfig
from ostinato.data.batch import Batch, TextSize
from ostinato.decoding import Hypothesis, search
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.depth import real_tokens, sentence_depths
from ostinato.evaluation.readout import read_out
from ostinato.evaluation.routing import RoutingTotals
from ostinato.evaluation.scores import SentenceScores, score_sentences
from ostinato.models import Model, ModelOutput


@dataclass(frozen=True, slots=True)
class SentenceResult:
    """Results of one sentence.

    Args:
        scores: teacher-forced. depths: by stack, see `ostinato.evaluation.depth.depth_sums`. macs: of the
            teacher-forced pass. output: what was decoded, or read off the head; None where neither was asked for.
            size: of a text whose every token is a label.
    """

    scores: SentenceScores
    depths: Mapping[str, Tensor]
    macs: SentenceMacs
    output: Hypothesis | None
    size: TextSize | None = None


def sentence_macs(
    counter: MacCounter, config: ModelConfig, depths: Mapping[str, Tensor], batch: Batch
) -> list[SentenceMacs]:
    """Return the multiply-accumulates of every sentence of a pass, from its depths (`sentence_depths`)."""
    counts = {stack: sums_BV[:, :-1].long().tolist() for stack, sums_BV in depths.items()}
    for name in config.recurrences():
        counts[name] = real_tokens(name, batch).sum(1, keepdim=True).tolist()
    return [counter.count({name: found[i] for name, found in counts.items()}) for i in range(batch.n_sentences)]


class Passes:
    """Runs the passes of one evaluation, and keeps totals that are not by sentence.

    Args:
        decoding: None: nothing is decoded. metrics: decoded metrics, for the message where there is no source.
    """

    def __init__(
        self, model: Model, decoding: DecodingConfig | None, metrics: Sequence[str], n_steps: int | None
    ) -> None:
        self.model, self.decoding, self.metrics, self.n_steps = model, decoding, metrics, n_steps
        self.halting: set[str] = set()
        """Stacks in which tokens may halt."""
        self._rounds = {name: found.rounds for name, found in expected_depths(model.config, n_steps=n_steps).items()}
        self._routing = RoutingTotals()
        self._counter = MacCounter(model.config, n_steps=n_steps, exits=model.exits())
        self._decoding_seconds = 0.0

    def run(self, batch: Batch) -> list[SentenceResult]:
        """Return the results of every sentence of a batch, in the batch's order."""
        with noting_plan(self.model.config, batch.shape, beam=self.decoding.beam if self.decoding else 1):
            return self._run(batch)

    def _run(self, batch: Batch) -> list[SentenceResult]:
        output = self.model(batch, n_steps=self.n_steps)
        scores = score_sentences(output.logits_BTV, batch.labels_BT, batch.loss_mask_BT)
        depths = sentence_depths(output, batch, self._rounds)
        self.halting |= {name for name, stack in output.stacks.items() if stack.halting is not None}
        self._routing.add(output)
        outputs = self._decode(output, batch)
        macs = sentence_macs(self._counter, self.model.config, depths, batch)
        results = []
        for i in range(batch.n_sentences):
            sums = {stack: sums_BV[i] for stack, sums_BV in depths.items()}
            size = batch.sizes[i] if batch.sizes else None
            results.append(SentenceResult(scores[i], sums, macs[i], outputs[i], size))
        return results

    def _decode(self, output: ModelOutput, batch: Batch) -> list[Hypothesis] | list[None]:
        if self.decoding is None:
            return [None] * batch.n_sentences
        config = self.model.config
        if isinstance(config, EncoderConfig) and config.reads != "masked":
            return read_out(config, output.logits_BTV, batch)
        if not batch.has_sources:
            reason = (
                "texts have no source to decode from: they are measured by loss, perplexity and token_accuracy, "
                "so leave the list empty"
            )
            raise ConfigError([Problem("evaluation.metrics", list(self.metrics), reason)])
        began = time.perf_counter()
        outputs = search(self.model, batch, self.decoding, n_steps=self.n_steps)
        self._decoding_seconds += time.perf_counter() - began
        return outputs

    def result(self) -> dict[str, Any]:
        """Return the results over all sentences; see `ostinato.evaluation.evaluate`."""
        found: dict[str, Any] = {}
        if self.decoding is not None and self.model.config.generates:
            found |= {"decoding_seconds": self._decoding_seconds, "decoding": self.decoding.model_dump(mode="json")}
        if routed := self._routing.compute():
            found["routing"] = routed
        if self.halting:
            found["halting_threshold"] = self.model.halting_thresholds()
        if exits := self.model.exits():
            execution = self.model.current_execution
            found["exit"] = {"criterion": execution.exit, "scope": execution.exit_scope, "needs_predictions": exits}
        return found
