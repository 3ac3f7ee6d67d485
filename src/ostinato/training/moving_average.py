"""A mean of the weights over the updates of a run, which is what the run evaluates, selects, saves and exports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ostinato.errors import CheckpointError
from ostinato.models import Model


class MovingAverage:
    """An exponential moving average of a model's trained weights, in float32 as they are.

        m_0 = w_0,    m_u = decay m_(u-1) + (1 - decay) w_u

    w_u are the weights after update u, w_0 those that training starts from: nothing corrects for the start, as in TRM's
    public code (arXiv 2510.04871). A parameter set that many steps share is one parameter and has one mean; frozen
    parameters have none. Over about 1 / (1 - decay) updates the mean forgets what it was.

    Args:
        model: its weights are w_0, or (a checkpoint of such a run) the mean, see `resume`.
        decay: of `training.ema_decay`; None: there is no mean, and nothing here does anything.
    """

    def __init__(self, model: Model, decay: float | None) -> None:
        averaged = {} if decay is None else {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._trained = averaged
        self._means = [parameter.detach().clone() for parameter in averaged.values()]
        self._blend = None if decay is None else get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]

    def update(self) -> None:
        """Take in the weights after an update."""
        if self._blend is not None:
            self._blend(self._means, list(self._trained.values()), 0)

    @contextmanager
    def shown(self) -> Iterator[dict[str, Tensor]]:
        """Let the model have its mean inside the block; give the weights that it trains, by name (none without one).

        Nothing is copied: parameters point to the mean's memory, and back when the block ends.
        """
        trained = {name: parameter.data for name, parameter in self._trained.items()}
        for parameter, mean in zip(self._trained.values(), self._means, strict=True):
            parameter.data = mean
        try:
            yield trained
        finally:
            for name, weights in trained.items():
                self._trained[name].data = weights

    @torch.no_grad()
    def resume(self, trained: dict[str, Tensor]) -> None:
        """Go on from a checkpoint, whose model is the mean, and the weights that were trained beside it.

        Raises:
            CheckpointError: they are not those of this model's trained parameters.
        """
        found, wanted = (
            {name: tuple(one.shape) for name, one in them.items()} for them in (trained, dict(self._trained))
        )
        if found != wanted:
            differing = sorted(name for name in found | wanted if found.get(name) != wanted.get(name))
            raise CheckpointError(f"the weights beside the mean are not those of the model: {', '.join(differing[:3])}")
        for name, weights in trained.items():
            self._trained[name].copy_(weights)
