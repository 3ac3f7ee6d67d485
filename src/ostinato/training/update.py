"""One update: the gradient of one or several batches, clipping, and the optimiser's step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ostinato.config.training import TrainingConfig
from ostinato.data.batch import Batch
from ostinato.models import LanguageModel, Seq2Seq
from ostinato.models.output import ByRouter
from ostinato.training.balance import balance_loss
from ostinato.training.losses import LossSums, count_labels, label_smoothed_loss
from ostinato.training.optim import learning_rate, set_learning_rate
from ostinato.training.routing import Observation, observe, rounds_of


@dataclass(frozen=True, slots=True)
class Gradient:
    """What one update is made of; the gradient itself is in the parameters.

    Args:
        norm_scalar, norm: of the whole gradient before clipping, on the device and as a number.
        losses, nlls: summed over the counted labels of every batch, in nats; smoothed, and plain.
        n_labels: labels that count, over all batches.
        routing: what the routers did in the last batch (`ostinato.training.routing`); None where there are none, or
            nobody asked.
    """

    norm_scalar: Tensor
    norm: float
    losses: list[float]
    nlls: list[float]
    n_labels: int
    routing: dict[str, Any] | None = None

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

    def __init__(self, model: Seq2Seq | LanguageModel, optimizer: torch.optim.Optimizer, config: TrainingConfig):
        self.model, self.optimizer, self.config = model, optimizer, config

    def accumulate(self, batches: Sequence[Batch], *, observed: bool = False) -> Gradient:
        """Add the gradient of the mean loss over the labels of all batches, which may be on any device.

        Args:
            observed: also return what the routers did in the last batch.
        """
        n_labels, n = count_labels(batches), len(batches)
        sums: list[LossSums] = []
        observation: Observation | None = None
        for batch in batches:
            routings, found = self._backward(batch.to(self.model.device), n_labels)
            sums.append(found)
        if observed:
            temperatures = self.model.balance_temperatures()
            observation = observe(routings, self.config.balance, temperatures, rounds_of(self.model))
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        numbers = [norm, *(s.loss.detach() for s in sums), *(s.nll for s in sums)]
        tensors = [torch.stack([value.float() for value in numbers])]
        # The one moment of an update at which the host waits for the device.
        values: list[float] = torch.cat(tensors if observation is None else [*tensors, observation.values_V]).tolist()
        routing = None if observation is None else observation.record(values[1 + 2 * n :])
        return Gradient(norm, values[0], values[1 : 1 + n], values[1 + n : 1 + 2 * n], n_labels, routing)

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

    def _backward(self, batch: Batch, n_labels: int) -> tuple[ByRouter, LossSums]:
        """Add one batch's part of the gradient of the mean loss over the update's `n_labels` labels.

        Returns:
            What was routed where, and the sums of the losses.
        """
        with self._precision():
            output = self.model(batch)
        sums = label_smoothed_loss(output.logits_BTV, batch.labels_BT, batch.loss_BT, self.config.label_smoothing)
        loss = sums.loss / n_labels
        routings = output.by_router()
        balance = balance_loss(routings, self.config.balance, self.model.balance_temperatures())
        if balance is not None:
            # A mean of its own: a batch counts by its part of the update's labels.
            loss = loss + balance * (batch.n_labels / n_labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return routings, sums

    def _precision(self) -> AbstractContextManager[Any]:
        if self.config.precision == "float32":
            return nullcontext()
        return torch.autocast(self.model.device.type, dtype=torch.bfloat16)
