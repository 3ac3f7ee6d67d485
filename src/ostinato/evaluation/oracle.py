"""The oracle: in how few rounds a model's answers are right, if one knew them. It reads the labels: nothing is decoded.

    depth = the first round whose readout is right,  argmax_v p_t(v) = label;  the last one where none is

of every label, or of whole sentences: the first round with all labels right. Answers and depths are those of one pass
in which every token of the stack that the output is read from runs all rounds; other stacks run as they do. So no
number of rounds up to that, each read out by itself, has a higher share of right labels (sentences), and no rule that
chooses for every label (sentence) one of the rounds' readouts has, however it decides. Tokens that stop one by one and
are then frozen are seen by others as they stopped, which those of such a pass are not: to these rules it is a
yardstick, and no strict bound. Nor is it one to a model whose rule mixes rounds (ACT, stick-breaking): the weighted sum
of their states may be right where none of them is.

A token that has no label (of a source, of a text of which a part is hidden) runs as many rounds as the deepest label of
its sentence; where a sentence has no label, all. Multiply-accumulates are those of tokens that stop after these rounds
(`ostinato.budget.macs`), without anything that decides it.

A head that gives a sentence one answer (classification, span), and a loop of several states, whose tokens cannot stop
one by one, know whole sentences only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ostinato.budget.depth import expected_depths
from ostinato.config.model import EncoderConfig
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError, Problem, see
from ostinato.evaluation.threshold import Tuning, point_of
from ostinato.models import Model, ModelOutput
from ostinato.nn.execution import ExitScope, RoundsByLength
from ostinato.nn.halting import NoHalting
from ostinato.nn.shapes import Bool, Float, Int
from ostinato.nn.types import HaltingTrace

_OF_SENTENCES = ("classification", "span")


@dataclass(frozen=True, slots=True)
class Oracle:
    """Whose rounds are chosen.

    Args:
        stack: the one that the output is read from. scope: "token": every label for itself; "sequence": all labels of a
            sentence together.
    """

    stack: str
    scope: ExitScope


def why_no_oracle(model: Model) -> str | None:
    """Return why no round of a model can be chosen; None: one can."""
    if not model.stacks:
        return "this model has no rounds"
    name, stack = list(model.stacks.items())[-1]
    if stack.halting.chooses_tokens:
        return f"routers choose the tokens of every round of the {name}, and are part of what this model computes"
    if model.n_rounds()[name] == 1:
        return f"the {name}, which the output is read from, runs one round: there is nothing to choose"
    return None


def oracle_of(model: Model, scope: ExitScope) -> Oracle:
    """Return the oracle of a model: as asked for, or of sentences where its tokens have no answer of their own.

    Raises:
        ConfigError: the model has no rounds to choose from, or other stacks of it halt by what was chosen.
    """
    if reason := why_no_oracle(model):
        raise ConfigError([Problem("oracle", scope, reason + see("halting"))])
    name, stack = list(model.stacks.items())[-1]
    config = model.config
    is_whole = isinstance(config, EncoderConfig) and config.head.kind in _OF_SENTENCES
    oracle = Oracle(name, "sequence" if is_whole or stack.plan.loop.phases else scope)
    current, changes = model.current_execution, execution_of(model, oracle)
    # A criterion of predictions stops tokens of this stack only; a threshold by itself is that of all rules.
    others = set(model.halting_thresholds() if current.exit is None else model.exits()) - {name}
    if others and any(
        getattr(current, key) not in (None, changes[key]) for key in ("exit", "halting_threshold") if key in changes
    ):
        reason = (
            f"takes the place of the threshold or criterion that is chosen, by which tokens of the "
            f"{' and '.join(sorted(others))} halt, too: evaluate by the trained ones (--halting-threshold trained)"
        )
        raise ConfigError([Problem("oracle", scope, reason + see("halting"))])
    return oracle


def execution_of(model: Model, oracle: Oracle) -> dict[str, Any]:
    """Return as what changes of its `Execution` a model runs all rounds of the oracle's stack, others as they do."""
    current, stack = model.current_execution, model.stacks[oracle.stack]
    by_rules: dict[str, Any] = {"exit": None, "exit_scope": "token"}
    if current.exit is not None:
        by_rules["halting_threshold"] = None
    runs_all = isinstance(stack.halting, NoHalting) and not isinstance(current.rounds.get(oracle.stack), RoundsByLength)
    if runs_all or stack.plan.loop.phases:
        return by_rules
    # A criterion takes the place of the stack's rule, and stops nobody; one of predictions does so in this stack only.
    criterion = "change" if stack.readout is None else "certainty"
    return {"exit": criterion, "exit_scope": "token", "halting_threshold": 1.0}


def with_oracle(tuning: Tuning, model: Model, metric: str, evaluate: Callable[[ExitScope], dict[str, Any]]) -> Tuning:
    """Return a sweep over thresholds with the point of the oracle beside it, where the model has one.

    Args:
        model: whose rules are the trained ones meanwhile. metric: of the result.
        evaluate: measures the model by an oracle of labels or of sentences (`ostinato.evaluation.evaluate`).
    """
    if why_no_oracle(model):
        return tuning
    with model.execution(halting_threshold=None, exit=None, exit_scope="token"):
        result = evaluate("sequence" if tuning.exit_scope == "sequence" else "token")
    own = result["oracle"]["stack"]
    depths = expected_depths(model.config, n_steps=model.n_rounds(), exits=[own])
    stacks = dict.fromkeys((*tuning.trained.skipped, own))
    point = point_of(None, metric, result, {name: depths[name] for name in stacks})
    return replace(tuning, oracle=point, oracle_metric=metric)


def row_name(tuning: Tuning, model: Model) -> str:
    """Return what tables call the oracle: with its metric where that is another, and whether it bounds the model."""
    notes = [] if tuning.oracle_metric == tuning.metric else [str(tuning.oracle_metric)]
    if list(model.stacks.values())[-1].halting.mixes:
        notes.append("no bound")
    return f"oracle ({', '.join(notes)})" if notes else "oracle"


def oracle_pass(model: Model, oracle: Oracle, batch: Batch, n_steps: int | None = None) -> ModelOutput:
    """Return a teacher-forced pass whose logits are those of the chosen rounds, and their trace.

    Args:
        n_steps: rounds to run instead of the plans' own.
    """
    with model.execution(**execution_of(model, oracle)):
        output = model(batch, n_steps=n_steps, request=("rounds",))
        rounds = output.stacks[oracle.stack].rounds
        logits_BLV, depth_BL = _first_right(model, rounds, batch, oracle.scope)
    depth_BT = _of_tokens(depth_BL, batch, oracle.scope, len(rounds))
    chosen = replace(output.stacks[oracle.stack], halting=_trace(depth_BT, len(rounds)))
    return ModelOutput(logits_BLV, output.stacks | {oracle.stack: chosen})


def _first_right(
    model: Model, rounds: Sequence[Callable[[], Tensor]], batch: Batch, scope: ExitScope
) -> tuple[Float[Tensor, "B L V"], Int[Tensor, "B L"]]:
    """Return for every label the logits of its round, and which round that is, from 1."""
    labels_BL, counts_BL = batch.labels_BT, batch.loss_mask_BT
    open_BL, depth_BL = torch.ones_like(counts_BL), torch.zeros_like(labels_BL)
    chosen_BLV: Tensor | None = None
    for number, states in enumerate(rounds, 1):
        logits_BLV = model.read(states(), batch)
        chosen_BLV = logits_BLV if chosen_BLV is None else torch.where(open_BL[..., None], logits_BLV, chosen_BLV)
        depth_BL = torch.where(open_BL, number, depth_BL)
        # An ignored label counts as right, so that a sentence is right when all its other labels are.
        right_BL = (logits_BLV.argmax(-1) == labels_BL) | ~counts_BL
        if scope == "sequence":
            right_BL = right_BL.all(1, keepdim=True).expand_as(right_BL)
        right_BL = right_BL & counts_BL.any(1, keepdim=True)  # what has no label runs all rounds
        open_BL = open_BL & ~right_BL
        if not bool(open_BL.any()):
            break
    assert chosen_BLV is not None  # a stack has a round
    return chosen_BLV, depth_BL


def _of_tokens(depth_BL: Int[Tensor, "B L"], batch: Batch, scope: ExitScope, n_rounds: int) -> Int[Tensor, "B T"]:
    """Return the rounds of every token, given those of the labels."""
    counts_BL, keep_BT = batch.loss_mask_BT, batch.target.keep_BT
    deepest_B = torch.where(counts_BL, depth_BL, 0).amax(1)
    deepest_B = torch.where(deepest_B == 0, n_rounds, deepest_B)
    depth_BT = deepest_B[:, None].repeat(1, keep_BT.shape[1])
    if scope == "token":
        rows, labels = counts_BL.nonzero(as_tuple=True)
        columns = labels if batch.places_BL is None else batch.places_BL[rows, labels]
        depth_BT[rows, columns] = depth_BL[rows, labels]
    return depth_BT


def _trace(depth_BT: Int[Tensor, "B T"], n_rounds: int) -> HaltingTrace:
    rounds_R = torch.arange(1, n_rounds + 1, device=depth_BT.device)
    executed_BTR: Bool[Tensor, "B T R"] = rounds_R <= depth_BT[..., None]
    last_BTR = (rounds_R == depth_BT[..., None]).float()
    return HaltingTrace(last_BTR, executed_BTR.float(), executed_BTR, last_BTR)
