"""What a model does with one sentence: depths, halting, experts, predictions by round, surprisal and cost.

Predictions after a round are the logit lens: the states that leave the round, read as the output is. Where the model
says what its output would be if a round were the last ("rounds" in `ostinato.nn.Stack`), that is read, with all that
follows the loop. In stacks whose tokens halt by the stack's own rule (but for routers that choose tokens) the states
themselves are read, through the final norm; a token that takes no part any more keeps its last state.

    surprisal of a label = -log2 p(label), in bits, teacher-forced
    cost at full depth: every token runs all rounds of the plan
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.analysis.capture import CapturedBatch
from ostinato.analysis.collectors import OneExample, SubLayerKey
from ostinato.budget import MacCounter
from ostinato.data.collate import AnyRow
from ostinato.data.symbols import LabelTokenizer
from ostinato.decoding import Hypothesis, inference
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.depth import sentence_depths, token_depths
from ostinato.evaluation.passes import sentence_macs
from ostinato.evaluation.readout import read_out, text_of
from ostinato.evaluation.timing import Stopwatch
from ostinato.models import Encoder, Model
from ostinato.nn.types import StackOutput
from ostinato.plan import Plan
from ostinato.viewer.calls import Call
from ostinato.viewer.opened import OpenRun
from ostinato.viewer.reading import Given, batch_of, given, output_text, read_row, with_output, write
from ostinato.viewer.schema import (
    Attention,
    AttentionPlace,
    AttentionRequest,
    Cost,
    ExpertsView,
    HaltingView,
    Inspection,
    LabelView,
    Predictions,
    Sentence,
    StackView,
    TokenView,
    Written,
)
from ostinato.viewer.writing import written

BEST = 5
"""Predictions of a label after a round."""
_LAPS, _SHORT_S = 2, 0.02
"""A pass is timed twice where the first time is below 0.02 s, else once; the one that was shown warmed up."""
_DIGITS = 4
_FULL: dict[str, Any] = {"halting": False, "halting_threshold": None, "exit": None, "exit_scope": "token", "rounds": {}}


@dataclass(frozen=True, slots=True)
class _Read:
    """A row with what the model wrote, if it did."""

    found: Given
    row: AnyRow
    output: Written | None


def inspect(opened: OpenRun, sentence: Sentence, call: Call) -> Inspection:
    """Return what a run's model does with a sentence.

    Raises:
        ConfigError: a request that is not possible of this run. DataError: a text that cannot be read, or is too long.
        ClientGone, TimeLimitError: see `Call.check`.
    """
    model = opened.run.model
    with model.execution(**opened.execution(sentence)), inference(model):
        read = _read(opened, sentence, call)
        batch = batch_of(opened, read.row)
        output = model(batch, request=_request(model))
        call.check()
        captured = CapturedBatch(model, batch, output)
        predictions = _predictions(opened, read.found, captured, call)
        stacks = [_stack(opened, captured, name) for name in output.stacks]
        written_ = read.output or _of_head(opened, read.found, captured)
        cost = _cost(captured, call)
        return Inspection(
            run=opened.name,
            source=read.found.example.source,
            answer=read.found.answer,
            output=written_,
            right=None if written_ is None else read.found.is_right(written_.text),
            thresholds=model.halting_thresholds(),
            stacks=stacks,
            predictions=predictions,
            cost=cost,
        )


def attention(opened: OpenRun, request: AttentionRequest, call: Call) -> Attention:
    """Return the weights of one sub-layer's attention in the pass that `inspect` shows; means over a token's experts.

    Raises:
        ConfigError: no such attention. And all that `inspect` raises.
    """
    model, seen = opened.run.model, OneExample(0)
    with model.execution(**opened.execution(request)), inference(model):
        read = _read(opened, request, call)
        batch = batch_of(opened, read.row)
        captured = CapturedBatch(model, batch, model(batch, request=seen.request))
        seen.add(captured)
        loop = _loop(captured, request.stack)
    key = SubLayerKey(request.stack, request.step, request.kind)
    weights = {own: found for stack in seen.stacks.values() for own, found in stack.weights.items()}
    if key not in weights:
        reason = "there is no such attention in this pass; it has " + ", ".join(f"{k.stack} {k}" for k in weights)
        raise ConfigError([Problem("step", f"{key.stack} {key.step} {key.kind}", reason)])
    over = _looked_at(key)
    executed = seen.stacks[request.stack].executed_TR
    ran = None if executed is None or request.step not in loop else executed[:, loop[request.step]]
    rows = [
        [None if ran is not None and not ran[t] else [round(w, _DIGITS) for w in row] for t, row in enumerate(head)]
        for head in weights[key].tolist()
    ]
    return Attention(
        run=opened.name,
        stack=request.stack,
        step=request.step,
        kind=request.kind,
        queries=[opened.subject.text(request.stack, i) for i in seen.stacks[request.stack].ids_T],
        keys=[opened.subject.text(over, i) for i in seen.stacks[over].ids_T],
        weights=rows,
    )


def _read(opened: OpenRun, sentence: Sentence, call: Call) -> _Read:
    """Return the row that is looked at; what the model writes is searched for where the request does not hold it."""
    found = given(opened, sentence)
    row = read_row(opened, sentence, found)
    config = opened.run.model.config
    if not config.generates or sentence.reads == "answer":
        if config.generates and not found.knows_answer and not opened.run.reads_prompts:
            raise ConfigError([Problem("reads", "answer", "the answer to one's own text is not known")])
        return _Read(found, row, None)
    if sentence.output_ids is not None:
        whole = with_output(opened, row, sentence.output_ids)
        text = output_text(opened, row, sentence.output_ids)
        output = Written(text=text, ids=sentence.output_ids, finished=True, score=None, ms=None)
        return _Read(found, whole, output)
    began = time.perf_counter()
    best: Hypothesis = write(opened, sentence, row, call, lambda ids: None)
    seconds = time.perf_counter() - began
    return _Read(found, with_output(opened, row, best.ids), written(opened, row, best, 1000 * seconds))


def _request(model: Model) -> frozenset[str]:
    """Return the captures that predictions by round are made of."""
    if not model.stacks:
        return frozenset()
    name, last = list(model.stacks.items())[-1]
    has_own_rule = name in model.halting_stacks() - model.exits().keys() and not last.halting.chooses_tokens
    return frozenset({"residual"} if has_own_rule else {"rounds"})


def _plan(captured: CapturedBatch, stack: str) -> Plan:
    """Return the plan that ran."""
    return captured.model.stacks[stack].plan.with_rounds(captured.model.n_rounds()[stack])


def _predictions(opened: OpenRun, found: Given, captured: CapturedBatch, call: Call) -> Predictions:
    """Return the most probable predictions after every round, and those of the output."""
    batch, model, output = captured.batch, captured.model, captured.output
    last = list(output.stacks)[-1] if output.stacks else None
    states = {} if last is None else _states_by_round(captured, last)
    names, ids, probabilities = [], list[Tensor](), list[Tensor]()

    def add(name: str, logits_BLV: Tensor) -> Tensor:
        call.check()
        log_probs_LV = logits_BLV[0].float().log_softmax(-1)
        best = log_probs_LV.topk(min(BEST, log_probs_LV.shape[-1]))
        names.append(name)
        ids.append(best.indices)
        probabilities.append(best.values.exp())
        return log_probs_LV

    for number, of_round in states.items():
        add(str(number), model.read(of_round(), batch))
    log_probs_LV = add("output", output.logits_BTV)
    labels = batch.labels_BT[0]
    counts = batch.loss_mask_BT[0] & (labels >= 0)
    bits = -log_probs_LV.gather(1, labels.clamp_min(0)[:, None])[:, 0] / math.log(2)
    places = _columns(captured, len(labels))
    knows = found.knows_answer or not isinstance(opened.run.tokenizers.target, LabelTokenizer)
    views = [
        LabelView(
            column=column,
            text=_label_text(opened, captured, int(label)) if is_label and knows else None,
            bits=round(float(bit), _DIGITS) if is_label and knows else None,
        )
        for column, label, is_label, bit in zip(places, labels, counts.tolist(), bits, strict=True)
    ]
    ids_LRK, probabilities_LRK = torch.stack(ids, 1).tolist(), torch.stack(probabilities, 1).tolist()
    shown = {i for by_round in ids_LRK for best in by_round for i in best}
    return Predictions(
        stack=last,
        rounds=names,
        labels=views,
        ids=ids_LRK,
        probabilities=[[[round(p, _DIGITS) for p in best] for best in by_round] for by_round in probabilities_LRK],
        texts={i: _label_text(opened, captured, i) for i in sorted(shown)},
    )


def _states_by_round(captured: CapturedBatch, name: str) -> dict[int, Callable[[], Tensor]]:
    """Return for each 1-based round of a stack's loop a function that makes what is read of it."""
    stack: StackOutput = captured.output.stacks[name]
    if stack.rounds:
        return dict(enumerate(stack.rounds, 1))
    norm = captured.model.stacks[name].final_norm
    found: dict[int, Callable[[], Tensor]] = {}
    states_BTD: Tensor | None = None
    for segment in _plan(captured, name).segments:
        for step in segment.steps:
            for use in step.uses:
                left_BTD = stack.captures.get((name, step.index, use.kind, "residual"))
                if left_BTD is None:
                    continue
                if states_BTD is not None and segment.is_loop:
                    left_BTD = torch.where(captured.ran(name, step.round)[..., None], left_BTD, states_BTD)
                states_BTD = left_BTD
            if segment.is_loop and states_BTD is not None:
                found[step.round + 1] = _normed(states_BTD, norm)
    return found


def _normed(states_BTD: Tensor, norm: Any) -> Callable[[], Tensor]:
    def made() -> Tensor:
        normed_BTD: Tensor = states_BTD if norm is None else norm(states_BTD)
        return normed_BTD

    return made


def _columns(captured: CapturedBatch, n_labels: int) -> list[int | None]:
    """Return the column of every label; None of a label of the whole sentence, or of a span."""
    batch = captured.batch
    if captured.model.config.reads in ("classification", "span"):
        return [None] * n_labels
    return list(range(n_labels)) if batch.places_BL is None else batch.places_BL[0].tolist()


def _label_text(opened: OpenRun, captured: CapturedBatch, label: int) -> str:
    """Return the text of a label: of a token, a label's name, or of a span the token in that column."""
    reads, tokenizer = captured.model.config.reads, opened.run.tokenizers.target
    if reads == "span":
        return opened.subject.text("encoder", captured.batch.target.ids_BT[0, label].tolist())
    if isinstance(tokenizer, LabelTokenizer):
        return tokenizer.labels[label]
    return opened.subject.text("decoder" if captured.model.config.generates else "encoder", label)


def _of_head(opened: OpenRun, found: Given, captured: CapturedBatch) -> Written | None:
    """Return the output of a model that reads labels; None of others."""
    model = captured.model
    if not isinstance(model, Encoder) or model.config.reads == "masked":
        return None
    (best,) = read_out(model.config, captured.output.logits_BTV, captured.batch)
    text = text_of(model.config, best.ids, found.example, opened.run.tokenizers, opened.run.recipe.data)
    return Written(text=text, ids=best.ids, finished=True, score=best.score, ms=None)


def _stack(opened: OpenRun, captured: CapturedBatch, name: str) -> StackView:
    """Return what the tokens of a stack did."""
    stack, n_rounds = captured.output.stacks[name], captured.model.n_rounds()[name]
    texts = [opened.subject.text(name, i) for i in captured.ids(name)[0].tolist()]
    trace = stack.halting
    halting = None
    rounds_T, depth_T = [n_rounds] * len(texts), [float(n_rounds)] * len(texts)
    if trace is not None:
        rounds_T, depth_T = (found_BT[0].tolist() for found_BT in token_depths(trace))
        halting = HaltingView(
            probability=_rounded(trace.probs_BTR[0]),
            remaining=_rounded(trace.remaining_BTR[0]),
            ran=trace.executed_BTR[0].tolist(),
        )
    return StackView(
        name=name,
        rounds=n_rounds,
        tokens=[
            TokenView(text=text, rounds=r, depth=round(d, _DIGITS))
            for text, r, d in zip(texts, rounds_T, depth_T, strict=True)
        ],
        halting=halting,
        experts=_experts(captured, name, len(texts)),
        attention=_attention_places(captured, name),
    )


def _rounded(values: Tensor) -> list[list[float]]:
    return [[round(value, _DIGITS) for value in row] for row in values.float().tolist()]


def _experts(captured: CapturedBatch, name: str, n_tokens: int) -> list[ExpertsView]:
    """Return the choices of every router of a stack, in the order they were made."""
    rounds = {step.index: step.round for segment in _plan(captured, name).segments for step in segment.steps}
    found = []
    for routing in captured.output.stacks[name].routings:
        chosen: list[list[int] | None] = [None] * n_tokens
        gates: list[list[float] | None] = [None] * n_tokens
        counted_N = routing.weight_N > 0
        rows = zip(
            routing.rows_N[counted_N].tolist(),
            routing.experts_NK[counted_N].tolist(),
            _rounded(routing.gates_NK[counted_N]),
            strict=True,
        )
        for column, experts, own_gates in rows:
            chosen[column], gates[column] = experts, own_gates
        found.append(
            ExpertsView(
                router=routing.router,
                step=routing.step,
                round=rounds[routing.step],
                n_experts=routing.probs_NE.shape[1],
                n_heads=routing.n_heads,
                chosen=chosen,
                gates=gates,
            )
        )
    return found


def _attention_places(captured: CapturedBatch, name: str) -> list[AttentionPlace]:
    """Return the attention that can be asked for, of the rounds that ran."""
    banks, found = captured.model.banks, []
    for segment in _plan(captured, name).segments:
        for step in segment.steps:
            if segment.is_loop and not bool(captured.ran(name, step.round).any()):
                continue
            for use in step.uses:
                if use.kind == "ffn":
                    continue
                module = banks.set_of(use)
                over = _looked_at(SubLayerKey(name, step.index, use.kind))
                place = {"step": step.index, "round": step.round, "kind": use.kind}
                found.append(AttentionPlace(**place, n_heads=int(module.n_heads), over=over))
    return found


def _looked_at(key: SubLayerKey) -> str:
    return "encoder" if key.kind == "cross_attention" else key.stack


def _loop(captured: CapturedBatch, stack: str) -> dict[int, int]:
    """Return the rounds of the steps in which tokens may halt; none of a stack that there is not."""
    if stack not in captured.model.stacks:
        return {}
    return {step.index: step.round for step in _plan(captured, stack).loop.steps}


def _cost(captured: CapturedBatch, call: Call) -> Cost:
    """Return multiply-accumulates and milliseconds of a pass as it ran, and of one at full depth."""
    model, batch = captured.model, captured.batch
    rounds = model.n_rounds()
    sums = sentence_depths(captured.output, batch, rounds)
    (now,) = sentence_macs(MacCounter(model.config, n_steps=rounds, exits=model.exits()), model.config, sums, batch)
    with model.execution(**_FULL):
        full_rounds = model.n_rounds()
    lengths = {name: int(captured.keep(name).sum()) for name in model.config.readers()}
    everyone = {name: [0] * (full_rounds.get(name, 1) - 1) + [n] for name, n in lengths.items()}
    full = MacCounter(model.config, n_steps=full_rounds).count(everyone)
    stopwatch = Stopwatch(model.device)

    def timed(changes: Mapping[str, Any]) -> float:
        laps: list[float] = []
        with model.execution(**changes):
            while len(laps) < (_LAPS if sum(laps) < _SHORT_S else 1):
                call.check()
                laps.append(stopwatch.time(lambda: model(batch)).seconds)
        return 1000 * min(laps)

    return Cost(macs=now.realised, macs_full=full.full, ms=timed({}), ms_full=timed(_FULL))
