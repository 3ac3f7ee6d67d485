"""The processes of one run: which rows of a batch each has, and the collective operations between them.

Every process has all the data and knows every batch; it computes a share of the rows. Sums over all rows are
all-reduced (`Processes.with_all_reduced`), so that each process does the same update; who holds the model, and how
gradients are added up, says `ostinato.training.parallel`. Rank 0 alone evaluates and writes; it broadcasts what the
others need to know of that.

A launcher sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in the environment (torchrun and
`accelerate launch` alike). Without WORLD_SIZE, or with 1, no process group is made, and every method is the identity.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ostinato.data.batch import Batch
from ostinato.errors import ConfigError, Problem, TrainingError, see
from ostinato.evaluation.loading import resolve_device
from ostinato.nn.balance import Sum, no_reduction

T = TypeVar("T")

_REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TIMEOUT = timedelta(days=365)
"""How long a process waits for rank 0, which may prepare data or evaluate for hours. A process that has ended is
noticed at once."""


@dataclass(frozen=True, slots=True)
class Processes:
    """This process, number `rank` (from 0) of the `world_size` processes of its run."""

    rank: int = 0
    world_size: int = 1

    @classmethod
    def from_environment(cls) -> Self:
        """Join the process group that a launcher started; wait until all processes have joined.

        A process group that the caller has made with `torch.distributed.init_process_group` is used as it is.

        Raises:
            ConfigError: the launcher's variables are incomplete.
        """
        if not dist.is_available():
            return cls()
        if not dist.is_initialized():
            if os.environ.get("WORLD_SIZE", "1") == "1":
                return cls()
            _init_process_group()
        found = cls(dist.get_rank(), dist.get_world_size())
        if found.is_distributed:  # made now, so that from here on a process that ends is noticed by the others
            with communicating():
                _control_group(dist.group.WORLD)
        return found

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the process that evaluates, writes and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether there is more than one process."""
        return self.world_size > 1

    def device(self, name: str) -> torch.device:
        """Return this process's device; the processes of a machine take its GPUs in turn.

        Raises:
            ConfigError: the device is not there, or several processes cannot communicate from it.
        """
        is_named = name.startswith("cuda:")
        if self.is_distributed and name in ("auto", "cuda") and torch.cuda.is_available():
            local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
            name = f"cuda:{local_rank % torch.cuda.device_count()}"
        device = resolve_device(name)
        if not self.is_distributed or device.type == "cpu":
            return device
        if device.type != "cuda":
            raise ConfigError([Problem("training.device", name, "several processes need 'cuda' or 'cpu'")])
        if is_named and _n_local() > 1 and _have_own_gpus():
            reason = "every process of this machine would have that GPU, which NCCL refuses: use cuda"
            raise ConfigError([Problem("training.device", name, reason)])
        torch.cuda.set_device(device)
        return device

    def shard(self, batch: Batch) -> Batch:
        """Return this process's rows of a batch, every `world_size`-th of them; there may be none."""
        return batch.rows(self._rows) if self.is_distributed else batch

    def share(self, of_rows: Sequence[T]) -> Sequence[T]:
        """Return what belongs to this process's rows, of what every row of a batch has."""
        return of_rows[self._rows]

    @property
    def _rows(self) -> slice:
        return slice(self.rank, None, self.world_size)

    def with_all_reduced(self, compute: Callable[[Sum], T]) -> T:
        """Return `compute(all_reduce)`, a function of sums over all processes; every process has to call this.

        The result is the same in all processes, and its gradient goes to this process's part of the sums alone: the
        gradients of the processes add up to that of one process that has all rows.

        Args:
            compute: calls its argument, which all-reduces a tensor, in the same order in every process. It is called
                twice, so that all its tensors travel in one message: first to collect them, none of which may depend on
                an earlier sum, then with their sums.
        """
        if not self.is_distributed:
            return compute(no_reduction)
        tensors: list[Tensor] = []

        def collect(tensor: Tensor) -> Tensor:
            tensors.append(tensor)
            return tensor

        local_result = compute(collect)
        if not tensors:
            return local_result
        flat: Tensor = _AllReduce.apply(torch.cat([tensor.reshape(-1) for tensor in tensors]))  # type: ignore[no-untyped-call]
        sums = iter(torch.split(flat, [tensor.numel() for tensor in tensors]))
        return compute(lambda tensor: next(sums).view_as(tensor))

    def broadcast(self, compute: Callable[[], T]) -> T:
        """Call `compute` in rank 0 alone and return its result in every process, however long that takes.

        Results travel as JSON: torch's own collectives of objects pickle them.
        """
        if not self.is_distributed:
            return compute()
        result = compute() if self.is_main else None
        content_N = _as_bytes(result) if self.is_main else torch.empty(0, dtype=torch.uint8)
        length, group = torch.tensor([len(content_N)]), _control_group(dist.group.WORLD)
        with communicating():
            dist.broadcast(length, src=0, group=group)
            content_N = content_N if self.is_main else torch.empty(int(length), dtype=torch.uint8)
            dist.broadcast(content_N, src=0, group=group)
        return result if self.is_main else _from_bytes(content_N)  # type: ignore[return-value]

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Run the body of a `with` in rank 0, then in the others; no process leaves it before all are done."""
        if not self.is_main:
            self.barrier()
        yield
        if self.is_main:
            self.barrier()
        self.barrier()

    def barrier(self) -> None:
        """Wait until every process has called this, however long that takes."""
        self.all_reduce_any(False)

    def gather(self, value: T) -> list[T]:
        """Return every process's value, which JSON can hold, in rank 0, by rank, and an empty list in the others."""
        if not self.is_distributed:
            return [value]
        own_N, group = _as_bytes(value), _control_group(dist.group.WORLD)
        lengths_P = torch.zeros(self.world_size, dtype=torch.long)
        lengths_P[self.rank] = len(own_N)
        with communicating():
            dist.all_reduce(lengths_P, group=group)
            # What is gathered is of one length.
            padded_N = torch.nn.functional.pad(own_N, (0, int(lengths_P.max()) - len(own_N)))
            found = [torch.empty_like(padded_N) for _ in range(self.world_size)] if self.is_main else None
            dist.gather(padded_N, found, dst=0, group=group)
        return [_from_bytes(one_N[:n]) for one_N, n in zip(found or (), lengths_P.tolist(), strict=False)]

    def all_reduce_any(self, value: bool) -> bool:
        """Return whether the value is True in any process."""
        if not self.is_distributed:
            return value
        count = torch.tensor(float(value))
        with communicating():
            dist.all_reduce(count, group=_control_group(dist.group.WORLD))
        return bool(count)

    def broadcast_weights(self, model: nn.Module) -> None:
        """Give every process the weights of rank 0."""
        if not self.is_distributed:
            return
        for tensor in model.state_dict().values():
            with communicating():
                dist.broadcast(tensor, src=0)


SINGLE_PROCESS = Processes()


class Interrupts:
    """Defers Ctrl-C in the body of a `with`, so that all processes of a run stop after the same update, and save it.

    SIGTERM, which batch systems send before they take a machine away, is treated alike. A second one of either, or one
    within `at_once`, raises KeyboardInterrupt where the process is.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._is_pending = self._is_at_once = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # No other thread may set signal handlers.
            for number in (signal.SIGINT, signal.SIGTERM):
                # A sweep's workers ignore Ctrl-C, and still do; None: a handler that is not Python's.
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._previous_handlers[number] = signal.signal(number, self._on_interrupt)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending or self._is_at_once:
            raise KeyboardInterrupt
        self._is_pending = True

    def is_pending(self) -> bool:
        """Return whether any process was interrupted; all of them call this, and get the same."""
        return self._processes.all_reduce_any(self._is_pending)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Defer nothing inside, for an evaluation may take hours, nor what came just before it in a single process."""
        if self._is_pending and not self._processes.is_distributed:
            raise KeyboardInterrupt
        self._is_at_once = True
        try:
            yield
        finally:
            self._is_at_once = False


def all_reduce(values: Tensor) -> None:
    """Replace a tensor on the run's device by its sum over all processes, in place; there must be several processes.

    Raises:
        TrainingError: another process cannot be reached.
    """
    with communicating():
        dist.all_reduce(values)


class _AllReduce(torch.autograd.Function):
    """All-reduce whose gradient is this process's own: each process differentiates its part of the sum."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


@contextmanager
def communicating(*, computes: bool = False) -> Iterator[None]:
    """Turn the errors of a failed collective operation into a TrainingError that says what it means.

    Args:
        computes: other work is done inside, too, whose errors stay what they are.
    """
    try:
        yield
    except RuntimeError as error:
        is_of_others = isinstance(error, dist.DistError) or any(name in str(error) for name in ("gloo", "NCCL"))
        if computes and not is_of_others:
            raise
        raise TrainingError(
            "the other processes of this run cannot be reached, so this one ends; one of them has probably failed, and "
            "says itself why (--debug shows what was seen here)"
        ) from error


def _as_bytes(value: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(content_N: Tensor) -> Any:
    return json.loads(content_N.numpy().tobytes())


def _n_local() -> int:
    """Return the number of processes of this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _have_own_gpus() -> bool:
    """Return whether NCCL is used, which wants a GPU for each process; gloo also works between some that share one."""
    return dist.is_nccl_available() and _n_local() <= torch.cuda.device_count()


def _init_process_group() -> None:
    """Join the process group that the environment describes; leave it when the interpreter ends."""
    missing = [name for name in _REQUIRED if not os.environ.get(name)]
    if missing:
        reason = f"{', '.join(missing)} not set: start several processes with torchrun, or unset WORLD_SIZE"
        reason += see("several-processes")
        raise ConfigError([Problem("environment variable WORLD_SIZE", os.environ["WORLD_SIZE"], reason)])
    try:
        with communicating():
            dist.init_process_group("cpu:gloo,cuda:nccl" if _have_own_gpus() else "gloo")
    except TrainingError as error:
        if "EADDRINUSE" not in str(error.__cause__):
            raise
        reason = "another program has this port: name a free one, the same for all processes"
        raise ConfigError([Problem("environment variable MASTER_PORT", os.environ["MASTER_PORT"], reason)]) from error
    atexit.register(leave)


def leave() -> None:
    """Leave the process group and end its threads.

    They end with the last reference to a group, of which FSDP keeps one until the interpreter ends. A thread that
    wants the interpreter's lock by then ends the process: "terminate called without an active exception".
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    _control_group.cache_clear()


@cache
def _control_group(world: dist.ProcessGroup) -> dist.ProcessGroup:
    """Return the group for objects, flags and barriers: on the host, and without the default timeout of minutes."""
    return dist.new_group(backend="gloo", timeout=_TIMEOUT)  # type: ignore[no-any-return]
