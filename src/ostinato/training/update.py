"""One update: the gradient of one or several batches, clipping, and the optimiser's step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ostinato.budget.out_of_memory import noting_plan
from ostinato.config.training import ConsistencyConfig, TrainingConfig
from ostinato.data.batch import Batch
from ostinato.evaluation.depth import real_tokens
from ostinato.models import Model
from ostinato.models.base import TokenModel
from ostinato.models.losses import (
    LossSums,
    SecondPass,
    TokenShares,
    add_auxiliary,
    balance_loss,
    depth_cost,
    label_smoothed_loss,
    loss_of_rounds,
    requested,
    states_apart,
)
from ostinato.models.output import ByRouter, ModelOutput
from ostinato.nn.execution import Execution, RoundsBySentence
from ostinato.nn.halting import NoHalting
from ostinato.training.depth import DepthObservation, observe_depth
from ostinato.training.optim import learning_rate, set_learning_rate
from ostinato.training.parallel import Parallel
from ostinato.training.processes import SINGLE_PROCESS
from ostinato.training.rounds import (
    draw_round_of_loss,
    draw_rounds,
    draw_shorter,
    rounds_of_stacks,
    shorter_execution,
)
from ostinato.training.routing import RoutingObservation, observe_routing, rounds_of

_Observations = tuple[DepthObservation | None, RoutingObservation | None]


@dataclass(frozen=True, slots=True)
class Gradient:
    """Losses and norm of the gradient of one update; the gradient itself is in the parameters' `grad`.

    Args:
        norm_scalar, norm: of the whole gradient before clipping, on the device and as a number.
        losses, nlls: summed over the counted labels of every batch, in nats; smoothed, and plain.
        n_labels: labels that count, over all batches.
        routing: what the routers did in the last batch (`ostinato.training.routing`); None where there are none, or the
            update is not recorded.
        depth: how deep tokens went in it (`ostinato.training.depth`); None where none could halt, or the update is not
            recorded.
        consistency: the losses of the pass with fewer rounds, over all batches, raw and weighted; None without one.
    """

    norm_scalar: Tensor
    norm: float
    losses: list[float]
    nlls: list[float]
    n_labels: int
    routing: dict[str, Any] | None = None
    depth: dict[str, Any] | None = None
    consistency: dict[str, dict[str, float]] | None = None

    @property
    def is_finite(self) -> bool:
        """True where neither a loss nor the norm is infinite or NaN."""
        of_second = self.consistency["losses"].values() if self.consistency else ()
        return all(map(math.isfinite, [self.norm, *self.losses, *self.nlls, *of_second]))


def execution_of(config: TrainingConfig) -> Execution:
    """Return how a model runs in training, and in the evaluations of its run."""
    return Execution(
        compaction=config.compaction,
        expert_backend=config.expert_backend,
        dropout_draws=config.dropout_draws,
        recompute=config.checkpoint_activations,
    )


class Updater:
    """Does updates of a model, which must be in training mode.

    Args:
        model, optimizer: what is updated.
        config: its loss, clipping, precision, and schedule.
        seed: of the run, from which `config.rounds`, `config.round_loss` and `config.consistency` draw.
        parallel: the processes that do every update together, each with its share of the rows, and how they hold the
            model; None: this one alone.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        config: TrainingConfig,
        seed: int = 1,
        parallel: Parallel | None = None,
    ):
        self.seed = seed
        self.parallel = parallel or Parallel(model, SINGLE_PROCESS)
        self.processes = self.parallel.processes
        self.model, self.optimizer, self.config = model, optimizer, config
        # Only training passes are compiled: evaluation and decoding have many more shapes.
        # Lengths are dynamic, and every batch is taken for a padded one: with a graph for each length, or for batches
        # with and without padding, an epoch would be spent compiling. Halting reads numbers between rounds, and a graph
        # ends there: each stretch is compiled by itself.
        halts = any(not isinstance(stack.halting, NoHalting) for stack in model.stacks.values())
        self._run: Callable[..., ModelOutput] = (
            torch.compile(model, dynamic=True, fullgraph=not halts) if config.compile else model
        )

    def accumulate(self, batches: Sequence[Batch], update: int | None = None, *, observed: bool = False) -> Gradient:
        """Add the gradient of the mean loss over the labels of all batches, which may be on any device.

        All processes are given the same batches and return the same.

        Args:
            update: 1, 2, ..., which decides whether tokens halt and what depth costs; None: as at the end of training.
            observed: also return what routers and halting rules did in the last batch.
        """
        n_labels, n = sum(batch.n_labels for batch in batches), len(batches)
        update = self.config.n_updates if update is None else update
        sums: list[LossSums] = []
        second_V = torch.zeros(2, device=self.model.device) if self.config.consistency.is_there else None
        observations: _Observations = (None, None)
        drawn = draw_rounds(self.config.rounds, self.seed, update, sum(batch.n_sentences for batch in batches))
        halts, first, cut = update > self.config.halting.off_updates, 0, self.config.rounds
        for number, batch in enumerate(batches, 1):
            own: int | RoundsBySentence | None = None if isinstance(drawn, tuple) else drawn
            if isinstance(drawn, tuple):
                of_batch = drawn[first : first + batch.n_sentences]
                own = self._rounds_by_sentence(of_batch)
                first += batch.n_sentences
            rounds = rounds_of_stacks(self.model, own)
            with (
                self.model.execution(
                    halting=halts,
                    left_out=self.config.halting.left_out_at(update),
                    rounds=rounds,
                    gradient_rounds=cut.gradient_rounds,
                    gradient_repeats=None if cut.gradient_repeats is None else tuple(cut.gradient_repeats),
                    any_process=self.processes.all_reduce_any if self.parallel.runs_alike else None,
                ),
                self._noting_plan(batch),
            ):
                found, second, observations = self._backward(batch, n_labels, update, observed and number == n)
            sums.append(found)
            if second_V is not None and second is not None:
                second_V = second_V + torch.stack(second).detach().float()
        depth, routing = observations
        numbers_V = torch.stack([*(s.loss.detach().float() for s in sums), *(s.nll.float() for s in sums)])
        if others := [x for x in (second_V, None if depth is None else depth.values_V) if x is not None]:
            numbers_V = torch.cat([numbers_V, *others])
        numbers_V = self.parallel.add_up(numbers_V)
        norm_scalar = self.parallel.norm()
        tensors = [norm_scalar[None].float(), numbers_V, *([] if routing is None else [routing.values_V])]
        # All numbers come to the host in one copy, for which a process waits (docs/gpu.md says for what else it does).
        values = iter(torch.cat(tensors).tolist())
        norm, losses, nlls = next(values), list(islice(values, n)), list(islice(values, n))
        consistency = None
        if second_V is not None:
            consistency = _record_of_second(list(islice(values, 2)), self.config.consistency)
        depths, routed = (
            None if observation is None else observation.record(list(islice(values, len(observation.values_V))))
            for observation in observations
        )
        return Gradient(norm_scalar, norm, losses, nlls, n_labels, routed, depths, consistency)

    def _rounds_by_sentence(self, of_batch: Sequence[int]) -> RoundsBySentence | None:
        """Return the rounds of this process's sentences of a batch; a hidden row has one."""
        own = tuple(self.processes.share(of_batch))
        if self.parallel.runs_alike:
            return RoundsBySentence(own or (1,), least=max(of_batch))
        return RoundsBySentence(own) if own else None

    def _noting_plan(self, batch: Batch) -> AbstractContextManager[None]:
        """Have errors of memory say what the plan counts for a batch; of several processes each has a share of it."""
        n_kept = 3 if self.config.ema_decay is None else 4  # gradient, Adam's two moments, and a mean
        return noting_plan(
            self.model.config,
            batch.shape,
            state_bytes=lambda: n_kept * sum(p.nbytes for p in self.model.parameters() if p.requires_grad),
            precision=self.config.precision,
            checkpoint_activations=self.config.checkpoint_activations,
            n_predictions=self.config.round_loss.n_predictions(self.model.config.plans()),
        )

    def apply(self, gradient: Gradient, update: int) -> float:
        """Clip the gradient, do the optimiser's step of update 1, 2, ..., and forget the gradient.

        Returns:
            The learning rate that was used.
        """
        config = self.config
        if config.clip_norm is not None and gradient.norm > config.clip_norm:
            self.parallel.clip(gradient.norm_scalar, config.clip_norm)
        d_model = self.model.config.d_model
        rate = learning_rate(config.optimizer, config.schedule, update, config.n_updates, d_model)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.model.project_routers()
        self.optimizer.zero_grad(set_to_none=True)
        return rate

    def _backward(
        self, whole: Batch, n_labels: int, update: int, observed: bool
    ) -> tuple[LossSums, SecondPass | None, _Observations]:
        """Add this process's part of one batch's part of the gradient of the mean loss over the update's labels.

        Returns:
            The sums of the losses of this process's rows; their part of the means over the update of what a pass with
            fewer rounds adds; and, where `observed`, what routers and halting rules did with all rows.
        """
        config, model, processes = self.config, self.model, self.processes
        shard = processes.shard(whole)
        shares = _token_shares(shard, whole, model) if processes.is_distributed else None
        if not shard.n_sentences and self.parallel.runs_alike:
            shard = whole.hidden_row()
        batch = shard.to(model.device)
        batch = batch.as_padded() if config.compile else batch
        output, sums, second = self.parallel.run(lambda: self._forward(batch, update))
        loss = sums.loss / n_labels
        routings, temperatures = output.by_router(), model.balance_temperatures()
        if processes.is_distributed:
            routings = _add_empty_routings(routings, model)
        # These losses are means over the batch: each batch counts by its share of the update's labels.
        label_share, weight = whole.n_labels / n_labels, config.halting.weight_at(update)
        balance = processes.with_all_reduced(
            lambda all_reduce: balance_loss(routings, config.balance, temperatures, all_reduce)
        )
        loss = add_auxiliary(loss, balance, depth_cost(output, shares) if weight else None, weight, label_share)
        if second is not None and batch.n_sentences:
            share = label_share * (1.0 if shares is None else shares[list(model.stacks)[-1]])
            loss = loss + second.states * (config.consistency.states * share)
            second = SecondPass(second.loss / n_labels, second.states * share)
        if loss.requires_grad:  # not where this process has no rows
            self.parallel.backward(loss)
        if not observed:
            return sums, second, (None, None)
        rounds, now = rounds_of(model), model.router_temperatures()
        routing = processes.with_all_reduced(
            lambda all_reduce: observe_routing(routings, config.balance, temperatures, rounds, now, all_reduce)
        )
        return sums, second, (observe_depth(model, output, batch, weight, shares), routing)

    def _forward(self, batch: Batch, update: int) -> tuple[ModelOutput, LossSums, SecondPass | None]:
        """Return the model's output for a batch, and the losses; for a batch without rows an empty output and zeros.

        Returns:
            Also the losses of a second pass; None without one.
        """
        if not batch.n_sentences:
            zero = torch.zeros((), device=self.model.device)
            return ModelOutput(zero.new_zeros(0, 0, 0)), LossSums(zero, zero), None
        config = self.config
        is_float32 = config.precision == "float32"
        with nullcontext() if is_float32 else torch.autocast(self.model.device.type, dtype=torch.bfloat16):
            output = self._run(batch, request=requested(config.round_loss))
            draw = draw_round_of_loss(config.round_loss, self.seed, update)
            sums = loss_of_rounds(self.model.read, output, batch, config.round_loss, config.label_smoothing, draw)
            sums, second = self._with_shorter(batch, update, output, sums)
        # The logits are not read again: dropping them frees their memory before the backward pass, whose first
        # gradients are as large.
        return replace(output, logits_BTV=output.logits_BTV.new_empty(0, 0, 0)), sums, second

    def _with_shorter(
        self, batch: Batch, update: int, output: ModelOutput, sums: LossSums
    ) -> tuple[LossSums, SecondPass | None]:
        """Return the losses with those of a pass through fewer rounds, and the losses of that pass."""
        config, model = self.config, self.model
        paths = draw_shorter(model, model.n_rounds(), self.seed, update) if config.consistency.is_there else {}
        if not paths:
            return sums, None
        with model.execution(**shorter_execution(model, paths)):
            shorter = self._run(batch)
        own = label_smoothed_loss(shorter.logits_BTV, batch.labels_BT, batch.loss_mask_BT, config.label_smoothing)
        second = SecondPass(own.loss, states_apart(output, shorter, batch.target.keep_BT))
        return LossSums(sums.loss + config.consistency.loss * own.loss, sums.nll), second


def _record_of_second(means: Sequence[float], config: ConsistencyConfig) -> dict[str, dict[str, float]] | None:
    """Return the record of these means over an update; None of zeros, which no pass with fewer rounds leaves."""
    if not any(means):
        return None
    losses = dict(zip(SecondPass._fields, means, strict=True))
    weighted = {name: weight * losses[name] for name in losses if (weight := getattr(config, name))}
    return {"losses": losses, "weighted": weighted}


def _add_empty_routings(routings: ByRouter, model: TokenModel) -> ByRouter:
    """Return the routings with one without rows added for every use of a router, in the order of the model's plans.

    Processes that all-reduce balance losses have to know the same routers in the same order, also those that none of a
    process's own rows reached.
    """
    empty: ByRouter = {}
    for routing in model.no_routings():
        empty.setdefault(routing.router, []).append(routing)
    return {router: [*mine, *routings.get(router, ())] for router, mine in empty.items()}


def _token_shares(shard: Batch, batch: Batch, model: TokenModel) -> TokenShares:
    """Return by stack what share of a batch's real tokens a process's shard of it has."""
    return {
        name: float(real_tokens(name, shard).sum()) / float(real_tokens(name, batch).sum()) for name in model.stacks
    }
