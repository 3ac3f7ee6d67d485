"""Several processes that do the batches of an evaluation or of generation: of this machine, or actors of Ray.

Each holds the model once. Batches go to them pickled and results come back as JSON, so that no tensor is shared. At
most three batches a process are under way, so that memory does not grow with the split.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import torch

from ostinato.cluster.processes import end_with_parent
from ostinato.cluster.ray_connection import check_fits, connect, resources
from ostinato.data.disk import reading, sha256_of
from ostinato.decoding import inference
from ostinato.decoding.work import BatchRunner, InThisProcess, Item, Result, Work
from ostinato.errors import CheckpointError, ConfigError, OstinatoError, on_one_line
from ostinato.evaluation.journal import Journal, question_of
from ostinato.evaluation.loading import LoadedRun
from ostinato.kernels import keep_freed_memory
from ostinato.models import Model
from ostinato.models.checkpoint import load_model
from ostinato.nn.execution import Execution

_AHEAD = 3
"""Batches under way for every process: one that it does, one that waits for it, and one whose result waits."""
_RESTARTS = 3
KEPT = "what was done is lost, but for what --journal FILE keeps"


class WorkerDiedError(OstinatoError):
    """A process that did batches has died."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a worker gets its model, and how it runs.

    Args:
        checkpoint: its directory, which was verified. model_sha256: of its model.json, which says which weights
            are beside it. n_threads: CPU threads of a worker.
    """

    checkpoint: Path
    model_sha256: str
    device: str
    execution: Execution
    packs_weights: bool
    n_threads: int


class BatchWorker:
    """Does what it is sent; lives in the worker.

    Args:
        place: of this worker among those of its machine: they share the GPUs there are.
    """

    def __init__(self, source: ModelSource, place: int = 0) -> None:
        self._source, self._place = source, place

    @cached_property
    def model(self) -> Model:
        """The model, read for the first batch: of an error in an actor's constructor Ray does not tell the reason.

        Raises:
            CheckpointError: the checkpoint is not there any more, or another, as a mean that was made anew.
        """
        source, device = self._source, self._source.device
        torch.set_num_threads(source.n_threads)
        if device == "cuda" and torch.cuda.device_count() > 1:
            device = f"cuda:{self._place % torch.cuda.device_count()}"
        path = source.checkpoint / "model.json"
        with reading(path):
            is_other = sha256_of(path) != source.model_sha256
        if is_other:
            reason = "was replaced after the model was loaded, and its workers need the same: start again"
            raise CheckpointError(f"{source.checkpoint}: {reason}")
        model = load_model(source.checkpoint, device, source.execution, verify=False)
        # For as long as the worker lives: weights are packed once.
        self._stack = ExitStack()
        self._stack.enter_context(inference(model, packs_weights=source.packs_weights))
        return model

    def do(self, sent: bytes) -> str:
        """Do one batch."""
        work, item = pickle.loads(sent)
        return json.dumps(work.pack(work(self.model, item)))


class _Workers:
    """A `BatchRunner` over workers that take what is sent and return futures."""

    def __init__(self, n_jobs: int, send: Callable[[bytes], Future[str]]) -> None:
        self.n_ahead = _AHEAD * n_jobs
        self._send = send

    def submit(self, work: Work[Item, Result], item: Item) -> Callable[[], Result]:
        future = self._send(pickle.dumps((work, item)))
        return lambda: work.unpack(json.loads(future.result()))


class _FixedExecution:
    """A `BatchRunner` that refuses batches of a model that runs otherwise than its workers and its journal know."""

    def __init__(self, runner: BatchRunner, run: LoadedRun) -> None:
        self.n_ahead = runner.n_ahead
        self._runner, self._run, self._execution = runner, run, run.model.current_execution

    def submit(self, work: Work[Item, Result], item: Item) -> Callable[[], Result]:
        if self._run.model.current_execution != self._execution:
            raise ConfigError("the model runs otherwise than when its runner began: open one inside `model.execution`")
        return self._runner.submit(work, item)


def model_source(run: LoadedRun, n_jobs: int) -> ModelSource:
    """Return what workers need to do what a loaded run does; they share out this process's CPU threads."""
    share = max(1, torch.get_num_threads() // n_jobs)
    device, packs_weights = run.model.device, run.recipe.decoding.pack_weights
    # On cuda:1 and up all workers use that GPU; with cuda and cuda:0 they are spread over the GPUs there are.
    name = str(device) if device.index else device.type
    execution = run.model.current_execution
    return ModelSource(run.checkpoint.absolute(), run.hashes[0], name, execution, packs_weights, share)


@contextmanager
def processes(source: ModelSource, n_jobs: int) -> Iterator[BatchRunner]:
    """Yield a runner of so many processes of this machine, which end with this one.

    Raises:
        WorkerDiedError: inside, where one of them is killed.
    """
    context = get_context("spawn")
    places = context.Value("i", 0)
    with ProcessPoolExecutor(n_jobs, context, _start_process, (source, places)) as pool:
        try:
            yield _Workers(n_jobs, lambda sent: pool.submit(_do, sent))
        except BrokenProcessPool as error:
            raise WorkerDiedError(f"a process of --jobs was killed, maybe for lack of memory: {KEPT}") from error
        finally:
            pool.shutdown(cancel_futures=True)


_WORKER: list[BatchWorker] = []
"""That of this process."""


def _start_process(source: ModelSource, places: Any) -> None:
    end_with_parent()
    keep_freed_memory()
    with places.get_lock():
        _WORKER.append(BatchWorker(source, places.value))
        places.value += 1


def _do(sent: bytes) -> str:
    return _WORKER[0].do(sent)


@contextmanager
def ray_actors(
    source: ModelSource, n_jobs: int, *, address: str | None = None, n_gpus: float = 0
) -> Iterator[BatchRunner]:
    """Yield a runner of so many actors of Ray. One whose node dies is started on another, and does its batches again.

    Args:
        source: its checkpoint is in a folder that all nodes see, its device one that actors have.
        address: see `ostinato.cluster.ray_connection`.
        n_gpus: of every actor.

    Raises:
        ConfigError: Ray is not installed, does not answer, or will never have what they take.
        WorkerDiedError: inside, where an actor died too often.
    """
    ray, disconnect = connect(address, n_jobs * source.n_threads)
    actors: list[Any] = []
    under_way = [0] * n_jobs

    def send(sent: bytes) -> Future[str]:
        least = min(range(n_jobs), key=under_way.__getitem__)
        under_way[least] += 1
        future: Future[str] = actors[least].do.remote(sent).future()
        future.add_done_callback(lambda _: under_way.__setitem__(least, under_way[least] - 1))
        return future

    try:
        check_fits(ray, address, source.n_threads, n_gpus, n_jobs)
        kind = ray.remote(max_restarts=_RESTARTS, max_task_retries=_RESTARTS)(BatchWorker)
        actors += [kind.options(**resources(source.n_threads, n_gpus)).remote(source) for _ in range(n_jobs)]
        yield _Workers(n_jobs, send)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise WorkerDiedError(f"an actor of Ray has died: {on_one_line(error)[:200]}; {KEPT}") from error
    finally:
        for actor in actors:
            ray.kill(actor)
        disconnect()


@dataclass(frozen=True, slots=True)
class Jobs:
    """Who does the batches of an evaluation or of generation.

    Args:
        n: processes; 1 of this machine: this one. executor: this machine, or Ray. address, n_gpus: of Ray, see
            `ray_actors`. journal: a file that keeps what is done, see `ostinato.evaluation.journal`.

    Raises:
        ConfigError: settings that do not fit together.
    """

    n: int = 1
    executor: Literal["local", "ray"] = "local"
    address: str | None = None
    n_gpus: float = 0
    journal: Path | None = None

    def __post_init__(self) -> None:
        for option, given in (("--address", self.address), ("--gpus", self.n_gpus)):
            if given and self.executor != "ray":
                raise ConfigError(f"{option}: belongs to --executor ray")

    @contextmanager
    def runner(self, run: LoadedRun, **settings: Any) -> Iterator[BatchRunner]:
        """Yield the runner for a loaded run; `settings`: those of the work that the run does not say, for the journal.

        Workers and journal are told once how the model runs.

        Raises:
            ConfigError, DataError: see `Journal`; inside, ConfigError for a model that runs otherwise meanwhile.
            All that `processes` and `ray_actors` raise.
        """
        with ExitStack() as stack:
            runner: BatchRunner = InThisProcess(run.model)
            source = model_source(run, self.n)
            if self.executor == "ray":
                source = replace(source, device="cuda" if self.n_gpus else "cpu")
                actors = ray_actors(source, self.n, address=self.address, n_gpus=self.n_gpus)
                runner = stack.enter_context(actors)
            elif self.n > 1:
                runner = stack.enter_context(processes(source, self.n))
            if self.journal is not None:
                question = question_of(run, source.device.partition(":")[0], **settings)
                runner = stack.enter_context(Journal(self.journal, question, runner))
            yield runner if self == Jobs() else _FixedExecution(runner, run)
