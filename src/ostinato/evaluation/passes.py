"""The passes of a model over one batch of an evaluation: teacher-forced, and, where asked for, decoding."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.budget import MacCounter, SentenceMacs, expected_depths
from ostinato.budget.out_of_memory import noting_plan
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import EncoderConfig, ModelConfig
from ostinato.data.batch import Batch, TextSize
from ostinato.decoding import Hypothesis, search
from ostinato.decoding.search import OnStep
from ostinato.decoding.work import batch_key
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.depth import real_tokens, sentence_depths
from ostinato.evaluation.oracle import Oracle, execution_of, oracle_pass
from ostinato.evaluation.readout import read_out
from ostinato.evaluation.routing import RoutingTotals, routing_sums
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


@dataclass(frozen=True, slots=True)
class BatchResult:
    """Results of one batch, on the host.

    Args:
        scores, outputs: of every sentence, as of `SentenceResult`. depths: by stack, `[B, V]`.
        halting: stacks in which tokens may halt. routing: by router, see `ostinato.evaluation.routing.routing_sums`.
        decoding_seconds: of the search alone.
    """

    scores: list[SentenceScores]
    outputs: Sequence[Hypothesis | None]
    depths: dict[str, Tensor]
    halting: frozenset[str]
    routing: dict[str, Tensor]
    decoding_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Passes:
    """The `ostinato.decoding.work.Work` of an evaluation: the passes over one batch.

    Args:
        decoding: None: nothing is decoded. metrics: decoded metrics, for the message where there is no source.
        on_step: called before every token that is decoded, see `ostinato.decoding.search`; in this process only.
        oracle: whose rounds are those in which labels are first right; with heads that are read, nothing is decoded.
    """

    decoding: DecodingConfig | None
    metrics: tuple[str, ...] = ()
    n_steps: int | None = None
    on_step: OnStep | None = None
    oracle: Oracle | None = None

    def __call__(self, model: Model, item: Batch) -> BatchResult:
        """Return the results of a batch."""
        batch = item.to(model.device)
        with noting_plan(model.config, batch.shape, beam=self.decoding.beam if self.decoding else 1):
            output = (
                model(batch, n_steps=self.n_steps)
                if self.oracle is None
                else oracle_pass(model, self.oracle, batch, self.n_steps)
            )
            scores = score_sentences(output.logits_BTV, batch.labels_BT, batch.loss_mask_BT)
            depths = sentence_depths(output, batch, self.rounds(model))
            began = time.perf_counter()
            outputs = self._decode(model, output, batch)
            seconds = time.perf_counter() - began
        halting = frozenset(name for name, stack in output.stacks.items() if stack.halting is not None)
        return BatchResult(scores, outputs, depths, halting, routing_sums(output.by_router()), seconds)

    def rounds(self, model: Model) -> dict[str, int]:
        """Return how many rounds every stack runs at most: those asked for, else those of the model's execution."""
        if self.n_steps is None:
            return model.n_rounds()
        return {name: one.rounds for name, one in expected_depths(model.config, n_steps=self.n_steps).items()}

    def _decode(self, model: Model, output: ModelOutput, batch: Batch) -> Sequence[Hypothesis | None]:
        if self.decoding is None:
            return [None] * batch.n_sentences
        config = model.config
        if isinstance(config, EncoderConfig) and config.reads != "masked":
            return read_out(config, output.logits_BTV, batch)
        if not batch.has_sources:
            reason = "texts have no source to decode from: they are measured by loss, perplexity and token_accuracy"
            if not self.metrics:  # outputs are asked for, as by --predictions
                raise ConfigError(f"no outputs can be written: {reason}")
            raise ConfigError([Problem("evaluation.metrics", list(self.metrics), f"{reason}, so leave the list empty")])
        return search(model, batch, self.decoding, n_steps=self.n_steps, on_step=self.on_step)

    def pack(self, result: BatchResult) -> dict[str, Any]:
        """Return a result as what JSON can hold."""
        return {
            "scores": [astuple(one) for one in result.scores],
            "outputs": [None if one is None else asdict(one) for one in result.outputs],
            "depths": {stack: sums_BV.tolist() for stack, sums_BV in result.depths.items()},
            "halting": sorted(result.halting),
            "routing": {router: sums_V.tolist() for router, sums_V in result.routing.items()},
            "decoding_seconds": result.decoding_seconds,
        }

    def unpack(self, packed: dict[str, Any]) -> BatchResult:
        """Return the result that was packed."""
        return BatchResult(
            scores=[SentenceScores(*one) for one in packed["scores"]],
            outputs=[None if one is None else Hypothesis(**one) for one in packed["outputs"]],
            depths={stack: torch.tensor(sums, dtype=torch.float64) for stack, sums in packed["depths"].items()},
            halting=frozenset(packed["halting"]),
            routing={router: torch.tensor(sums, dtype=torch.float64) for router, sums in packed["routing"].items()},
            decoding_seconds=packed["decoding_seconds"],
        )

    def key(self, item: Batch) -> str:
        """Return what tells a batch from others."""
        return batch_key(item, asked=(self.decoding, self.n_steps, self.oracle))


def sentence_macs(
    counter: MacCounter, config: ModelConfig, depths: Mapping[str, Tensor], batch: Batch
) -> list[SentenceMacs]:
    """Return the multiply-accumulates of every sentence of a pass, from its depths (`sentence_depths`)."""
    counts = {stack: sums_BV[:, :-1].long().tolist() for stack, sums_BV in depths.items()}
    for name in config.recurrences():
        counts[name] = real_tokens(name, batch).sum(1, keepdim=True).tolist()
    return [counter.count({name: found[i] for name, found in counts.items()}) for i in range(batch.n_sentences)]


class PassTotals:
    """What the passes of one evaluation come to: of every sentence, and totals that are not by sentence.

    Args:
        passes: what is done with every batch.
    """

    def __init__(self, model: Model, passes: Passes) -> None:
        self.model, self.passes = model, passes
        self.halting: set[str] = set()
        """Stacks in which tokens may halt."""
        self._routing = RoutingTotals()
        oracle = passes.oracle
        exits = model.exits() if oracle is None else {oracle.stack: False}
        self._counter = MacCounter(model.config, n_steps=passes.rounds(model), exits=exits)
        self._decoding_seconds = 0.0

    def add(self, batch: Batch, result: BatchResult) -> list[SentenceResult]:
        """Count the results of one batch; return those of every sentence, in the batch's order."""
        self.halting |= result.halting
        self._routing.add(result.routing)
        self._decoding_seconds += result.decoding_seconds
        macs = sentence_macs(self._counter, self.model.config, result.depths, batch)
        sentences = []
        for i in range(batch.n_sentences):
            sums = {stack: sums_BV[i] for stack, sums_BV in result.depths.items()}
            size = batch.sizes[i] if batch.sizes else None
            sentences.append(SentenceResult(result.scores[i], sums, macs[i], result.outputs[i], size))
        return sentences

    def compute(self) -> dict[str, Any]:
        """Return the results over all sentences; see `ostinato.evaluation.evaluate`."""
        found: dict[str, Any] = {}
        decoding = self.passes.decoding
        if decoding is not None and self.model.config.generates:
            found |= {"decoding_seconds": self._decoding_seconds, "decoding": decoding.model_dump(mode="json")}
            if (n_kept := self.model.current_execution.cached_rounds) is not None:
                found["cached_rounds"] = n_kept
        if routed := self._routing.compute():
            found["routing"] = routed
        execution, oracle = self.model.current_execution, self.passes.oracle
        if oracle is not None:
            found["oracle"] = {"stack": oracle.stack, "scope": oracle.scope}
        if self.halting - ({oracle.stack} if oracle else set()):
            found["halting_threshold"] = self._thresholds()
        if execution.paths:
            found["round_lengths"] = {name: list(path) for name, path in execution.paths.items()}
        if oracle is None and (exits := self.model.exits()):
            found["exit"] = {"criterion": execution.exit, "scope": execution.exit_scope, "needs_predictions": exits}
        return found

    def _thresholds(self) -> dict[str, float]:
        """Return the thresholds by which tokens halted; none of the stack whose rounds an oracle chose."""
        oracle = self.passes.oracle
        if oracle is None:
            return self.model.halting_thresholds()
        with self.model.execution(**execution_of(self.model, oracle)):
            return {name: own for name, own in self.model.halting_thresholds().items() if name != oracle.stack}
