"""One update: the gradient of one or several batches, clipping, and the optimiser's step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ostinato.config.training import TrainingConfig
from ostinato.data.batch import Batch
from ostinato.models import Model
from ostinato.models.output import ModelOutput
from ostinato.training.balance import balance_loss
from ostinato.training.depth import DepthObservation, depth_cost, observe_depth
from ostinato.training.losses import LossSums, count_labels, label_smoothed_loss
from ostinato.training.optim import learning_rate, set_learning_rate
from ostinato.training.routing import Observation, observe, rounds_of

_Observations = tuple[Observation | None, DepthObservation | None]


@dataclass(frozen=True, slots=True)
class Gradient:
    """What one update is made of; the gradient itself is in the parameters.

    Args:
        norm_scalar, norm: of the whole gradient before clipping, on the device and as a number.
        losses, nlls: summed over the counted labels of every batch, in nats; smoothed, and plain.
        n_labels: labels that count, over all batches.
        routing: what the routers did in the last batch (`ostinato.training.routing`); None where there are none, or
            nobody asked.
        depth: how deep tokens went in it (`ostinato.training.depth`); None where none could halt, or nobody asked.
    """

    norm_scalar: Tensor
    norm: float
    losses: list[float]
    nlls: list[float]
    n_labels: int
    routing: dict[str, Any] | None = None
    depth: dict[str, Any] | None = None

    @property
    def is_finite(self) -> bool:
        """True where neither a loss nor the norm is infinite or NaN."""
        return all(map(math.isfinite, [self.norm, *self.losses, *self.nlls]))


class Updater:
    """Does updates of a model, which must be in training mode.

    Args:
        model, optimizer: what is updated.
        config: its loss, clipping, precision, and schedule.
    """

    def __init__(self, model: Model, optimizer: torch.optim.Optimizer, config: TrainingConfig):
        self.model, self.optimizer, self.config = model, optimizer, config
        # Of training passes alone: evaluations and decoding have many more shapes.
        self._run: Callable[[Batch], ModelOutput] = torch.compile(model) if config.compile else model

    def accumulate(self, batches: Sequence[Batch], update: int | None = None, *, observed: bool = False) -> Gradient:
        """Add the gradient of the mean loss over the labels of all batches, which may be on any device.

        Args:
            update: 1, 2, ..., which decides whether tokens halt and what depth costs; None: as at the end of training.
            observed: also return what routers and halting rules did in the last batch.
        """
        n_labels, n = count_labels(batches), len(batches)
        update = self.config.n_updates if update is None else update
        sums: list[LossSums] = []
        observations: _Observations = (None, None)
        self.model.set_halting(update > self.config.halting.off_updates)
        try:
            for number, batch in enumerate(batches, 1):
                is_observed = observed and number == n
                found, observations = self._backward(batch.to(self.model.device), n_labels, update, is_observed)
                sums.append(found)
        finally:
            self.model.set_halting(True)
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        numbers = [norm, *(s.loss.detach() for s in sums), *(s.nll for s in sums)]
        tensors = [torch.stack([value.float() for value in numbers])]
        tensors += [observation.values_V for observation in observations if observation is not None]
        # The one moment of an update at which the host waits for the device.
        values = torch.cat(tensors).tolist()
        left = iter(values[1 + 2 * n :])
        routing, depth = (
            None if observation is None else observation.record(list(islice(left, len(observation.values_V))))
            for observation in observations
        )
        return Gradient(norm, values[0], values[1 : 1 + n], values[1 + n : 1 + 2 * n], n_labels, routing, depth)

    def apply(self, gradient: Gradient, update: int) -> float:
        """Clip the gradient, do the optimiser's step of update 1, 2, ..., and forget the gradient.

        Returns:
            The learning rate that was used.
        """
        config = self.config
        if config.clip_norm is not None and gradient.norm > config.clip_norm:
            clip_grads_with_norm_(self.model.parameters(), config.clip_norm, gradient.norm_scalar)
        d_model = self.model.config.d_model
        rate = learning_rate(config.optimizer, config.schedule, update, config.n_updates, d_model)
        set_learning_rate(self.optimizer, rate)
        self.optimizer.step()
        self.model.project_routers()
        self.optimizer.zero_grad(set_to_none=True)
        return rate

    def _backward(self, batch: Batch, n_labels: int, update: int, observed: bool) -> tuple[LossSums, _Observations]:
        """Add one batch's part of the gradient of the mean loss over the update's `n_labels` labels.

        Returns:
            The sums of the losses, and where it is observed, what routers and halting rules did.
        """
        with self._precision():
            output = self._run(batch)
        sums = label_smoothed_loss(output.logits_BTV, batch.labels_BT, batch.loss_BT, self.config.label_smoothing)
        loss = sums.loss / n_labels
        config, routings, temperatures = self.config, output.by_router(), self.model.balance_temperatures()
        # Means of their own: a batch counts by its part of the update's labels.
        part, weight = batch.n_labels / n_labels, config.halting.weight_at(update)
        if (balance := balance_loss(routings, config.balance, temperatures)) is not None:
            loss = loss + balance * part
        if weight and (cost := depth_cost(output)) is not None:
            loss = loss + cost * (weight * part)
        loss.backward()  # type: ignore[no-untyped-call]
        if not observed:
            return sums, (None, None)
        routing = observe(routings, config.balance, temperatures, rounds_of(self.model))
        return sums, (routing, observe_depth(self.model, output, batch, weight))

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16)
