"""The processes of one run: which one this is, what of a batch is its, and how they talk.

Every process holds the model, the optimiser and all the data, and knows every batch; it computes a share of the rows.
What has to be known of all rows is summed (`Processes.with_sums`, `ostinato.training.gradients`), so that each of them
does the same update. The first process alone evaluates and writes; what the others need to know of it, it tells them.

A launcher says in the environment who is who (torchrun and `accelerate launch` alike: RANK, WORLD_SIZE, LOCAL_RANK,
MASTER_ADDR, MASTER_PORT). Without WORLD_SIZE, or with 1, nothing here is set up, and every method is the identity.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ostinato.data.batch import Batch
from ostinato.errors import ConfigError, Problem, TrainingError
from ostinato.evaluation.loading import resolve_device
from ostinato.nn.balance import Sum, all_here

T = TypeVar("T")

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PATIENCE = timedelta(days=365)
"""How long a process waits for the first one, which may prepare data or evaluate for hours. One that has ended is
noticed at once."""


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among those of its run, number `rank` of `size`, from 0."""

    rank: int = 0
    size: int = 1

    @classmethod
    def of_environment(cls) -> Self:
        """Meet the processes that a launcher started with this one; wait until all are there.

        Those of a process that has called `torch.distributed.init_process_group` itself are taken as they are.

        Raises:
            ConfigError: the launcher's variables are incomplete.
        """
        if not dist.is_available():
            return cls()
        if not dist.is_initialized():
            if os.environ.get("WORLD_SIZE", "1") == "1":
                return cls()
            _meet()
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_first(self) -> bool:
        """Whether this is the process that evaluates, writes and prints."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there is no other."""
        return self.size == 1

    def device(self, name: str) -> torch.device:
        """Return this process's device: of the GPUs of a machine each process takes its own, in turn.

        Raises:
            ConfigError: it is not there, or it is none that several processes can talk from.
        """
        if not self.is_alone and name in ("auto", "cuda") and torch.cuda.is_available():
            local = int(os.environ.get("LOCAL_RANK", self.rank))
            name = f"cuda:{local % torch.cuda.device_count()}"
        device = resolve_device(name)
        if self.is_alone or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise ConfigError([Problem("training.device", name, "several processes need 'cuda' or 'cpu'")])
        torch.cuda.set_device(device)
        return device

    def share(self, batch: Batch) -> Batch:
        """Return this process's rows of a batch, every `size`-th of them; there may be none."""
        return batch if self.is_alone else batch.rows(slice(self.rank, None, self.size))

    def with_sums(self, compute: Callable[[Sum], T]) -> T:
        """Return a function of sums over all processes, which every process calls for.

        The function is the same in all of them, and its gradient goes to this one's part of the sums alone: the
        gradients of the processes add up to that of one process that has all rows.

        Args:
            compute: is given what makes a sum of this process's part of it, and calls that alike in every process. It
                is called twice, so that all sums are sent at once: first to learn the parts, none of which may depend
                on a sum, then with the sums.
        """
        if self.is_alone:
            return compute(all_here)
        parts: list[Tensor] = []

        def note(part: Tensor) -> Tensor:
            parts.append(part)
            return part

        found = compute(note)
        if not parts:
            return found
        flat: Tensor = _Sum.apply(torch.cat([part.reshape(-1) for part in parts]))  # type: ignore[no-untyped-call]
        sums = iter(torch.split(flat, [part.numel() for part in parts]))
        return compute(lambda part: next(sums).view_as(part))

    def from_first(self, make: Callable[[], T]) -> T:
        """Let the first process alone make something, and return it in all; they wait as long as it takes."""
        if self.is_alone:
            return make()
        box: list[Any] = [make() if self.is_first else None]
        with _talking():
            dist.broadcast_object_list(box, src=0, group=_control(dist.group.WORLD), device=torch.device("cpu"))
        return box[0]  # type: ignore[no-any-return]

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """Let the first process be through with what is inside before the others begin it, and all before any go on."""
        if not self.is_first:
            self.meet()
        yield
        if self.is_first:
            self.meet()
        self.meet()

    def meet(self) -> None:
        """Wait until all processes are here, as long as it takes."""
        self.any(False)

    def gather(self, value: T) -> list[T]:
        """Return every process's value in the first one, by rank, and nothing in the others."""
        if self.is_alone:
            return [value]
        found: list[Any] | None = [None] * self.size if self.is_first else None
        with _talking():
            dist.gather_object(value, found, dst=0, group=_control(dist.group.WORLD))
        return found or []

    def any(self, value: bool) -> bool:
        """Return whether it is so in any process."""
        if self.is_alone:
            return value
        number = torch.tensor(float(value))
        with _talking():
            dist.all_reduce(number, group=_control(dist.group.WORLD))
        return bool(number)

    def take_weights(self, model: nn.Module) -> None:
        """Give every process the first one's weights."""
        if self.is_alone:
            return
        for tensor in model.state_dict().values():
            with _talking():
                dist.broadcast(tensor, src=0)


ALONE = Processes()


@contextmanager
def _talking() -> Iterator[None]:
    """Say what it means where the others cannot be reached.

    Raises:
        TrainingError: it is so.
    """
    try:
        yield
    except RuntimeError as error:
        raise TrainingError(
            "the other processes of this run cannot be reached, so this one ends; one of them has probably failed, and "
            "says itself why (--debug shows what was seen here)"
        ) from error


def sum_in_place(values: Tensor) -> None:
    """Replace values on the device of the run by their sum over all processes, which there must be several of.

    Raises:
        TrainingError: the others cannot be reached.
    """
    with _talking():
        dist.all_reduce(values)


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        sum_in_place(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _meet() -> None:
    """Join the group that the environment names; it is left when the interpreter ends."""
    missing = [name for name in _NEEDED if not os.environ.get(name)]
    if missing:
        reason = f"{', '.join(missing)} not set: start several processes with torchrun, or unset WORLD_SIZE"
        raise ConfigError([Problem("environment variable WORLD_SIZE", os.environ["WORLD_SIZE"], reason)])
    n_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # NCCL wants a GPU for each process; gloo also talks between processes that share one.
    has_own_gpus = dist.is_nccl_available() and n_local <= torch.cuda.device_count()
    with _talking():
        dist.init_process_group("cpu:gloo,cuda:nccl" if has_own_gpus else "gloo")
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


@cache
def _control(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the group in which processes wait for each other: on the host, and without a limit of time."""
    return dist.new_group(backend="gloo", timeout=_PATIENCE)  # type: ignore[no-any-return]
