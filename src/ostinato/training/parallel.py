"""How the processes of a run hold the model and add up its gradients: `training.parallel`.

| kind | parameters, gradients, optimiser | gradients are added up |
|---|---|---|
| none | whole in every process | after the backward pass, of whatever parameters have one (`gradients`) |
| ddp | whole in every process | while the backward pass goes on, by torch's DistributedDataParallel |
| fsdp | a part in every process | for every parameter set, by torch's fully_shard (`sharding`) |

Hooks of ddp and fsdp pair up the processes' collectives by their order alone. So all processes build the same graph:
they run the same rounds (`Execution.any_process`), and one without rows runs a hidden one (`Batch.hidden_row`), of
which every parameter gets a gradient of zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ostinato.config.training import DdpConfig, ParallelConfig, TrainingConfig
from ostinato.data.disk import new_folder
from ostinato.models import Model, save_model
from ostinato.models.losses import LossSums, SecondPass
from ostinato.models.output import ModelOutput
from ostinato.nn.halting import NoHalting
from ostinato.training.gradients import all_reduce_gradients
from ostinato.training.optim import optimizer_tensors
from ostinato.training.processes import Processes, all_reduce, communicating

Computed = tuple[ModelOutput, LossSums, SecondPass | None]
"""What a batch's passes through a model give, see `ostinato.training.update`."""


class Parallel:
    """Kind none, and a single process.

    Attributes:
        runs_alike: all processes build the same graph.
        saves_alone: rank 0 has all that a checkpoint holds, but for the others' random states.
    """

    runs_alike = False
    saves_alone = True

    def __init__(self, model: Model, processes: Processes) -> None:
        self.model, self.processes = model, processes

    def run(self, compute: Callable[[], Computed]) -> Computed:
        """Return what a function makes of passes through the model."""
        return compute()

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss."""
        loss.backward()  # type: ignore[no-untyped-call]

    def add_up(self, numbers_V: Tensor) -> Tensor:
        """Return numbers added up over the processes, and see that the gradients are."""
        if not self.processes.is_distributed:
            return numbers_V
        return all_reduce_gradients(self.model.parameters(), numbers_V)

    def norm(self) -> Tensor:
        """Return the norm of the whole gradient, once it is added up."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        return get_total_norm(gradients) if gradients else torch.zeros((), device=self.model.device)

    def clip(self, norm: Tensor, most: float) -> None:
        """Scale the gradient, whose norm is given, down to a norm."""
        clip_grads_with_norm_(self.model.parameters(), most, norm)

    def whole_model(self) -> Model | None:
        """Return a model with all weights, to be evaluated; in rank 0 at least. All processes call this."""
        return self.model

    def new_folder(self, path: Path) -> AbstractContextManager[Path]:
        """Return a new folder to fill, see `ostinato.data.disk.new_folder`."""
        return new_folder(path)

    def save(self, folder: Path, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Write the model, and return what is left to be written of its optimiser, by the names of
        `optimizer_tensors`."""
        save_model(self.model, folder)
        return optimizer_tensors(self.model, optimizer)


class Call(nn.Module):
    """A module whose forward is any function: DDP and FSDP, which hook a module's forward, then see what it runs."""

    def __init__(self, **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, compute: Callable[..., Any], *tensors: Tensor | None) -> Any:
        """Return what a function of some tensors computes."""
        return compute(*tensors)


def run_through(call: nn.Module, compute: Callable[[], Computed]) -> Computed:
    """Compute inside the forward of `call`, whose output is then the loss: DDP's and FSDP's hooks hang on both."""
    found: list[Computed] = []

    def loss() -> Tensor:
        found.append(compute())
        return found[0][1].loss

    hooked = call(loss)
    output, sums, second = found[0]
    return output, replace(sums, loss=hooked), second


class Ddp(Parallel):
    """Kind ddp. Gradients are sums, as the loss is a mean over the labels of all processes; torch's are means."""

    runs_alike = True

    def __init__(self, model: Model, processes: Processes, config: DdpConfig) -> None:
        super().__init__(model, processes)
        with communicating(computes=True):
            self._replica = DistributedDataParallel(
                Call(model=model),
                init_sync=False,
                static_graph=True,
                bucket_cap_mb=config.bucket_mib,
            )
        # A lambda, because torch wants annotations of its own at a function.
        self._replica.register_comm_hook(None, lambda _, bucket: _summed(bucket.buffer()))

    def run(self, compute: Callable[[], Computed]) -> Computed:
        """See `Parallel`."""
        with communicating(computes=True):
            return run_through(self._replica, compute)

    def backward(self, loss: Tensor) -> None:
        """See `Parallel`.

        The gradients of every batch of an update are sent: with a static graph torch's `no_sync` fails in the first
        update, and passes that go by its module are counted as uses of the parameters.
        """
        earlier = [(parameter, parameter.grad) for parameter in self.model.parameters()]
        for parameter, _ in earlier:
            parameter.grad = None
        with communicating(computes=True):
            super().backward(loss)
        for parameter, gradient in earlier:
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def add_up(self, numbers_V: Tensor) -> Tensor:
        """See `Parallel`."""
        all_reduce(numbers_V)
        return numbers_V


def _summed(gradients_N: Tensor) -> torch.futures.Future[Tensor]:
    sent: Any = dist.all_reduce(gradients_N, async_op=True)
    return sent.get_future().then(lambda done: done.value()[0])  # type: ignore[no-any-return]


def replicated(model: Model, processes: Processes, config: ParallelConfig) -> Parallel:
    """Return how processes that all hold the whole model train it, by `training.parallel`; one needs nothing."""
    if processes.is_distributed and isinstance(config, DdpConfig):
        return Ddp(model, processes, config)
    return Parallel(model, processes)


def why_not_ddp(model: Model, config: TrainingConfig) -> str | None:
    """Return why it depends on data, or on the update, what an update of a model computes; None: it does not."""
    if any(not isinstance(stack.halting, NoHalting) for stack in model.stacks.values()):
        return "it depends on the tokens of this model how many rounds are run"
    if config.draws_rounds or config.round_loss.kind == "drawn":
        return "the rounds of an update are drawn"
    return None
