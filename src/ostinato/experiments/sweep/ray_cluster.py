"""Jobs as tasks of Ray, each with its CPUs and GPUs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ostinato.cluster.ray_connection import check_fits, connect, resources
from ostinato.experiments.sweep.cluster_executor import attempt_on_node
from ostinato.experiments.sweep.executors import Job, Status
from ostinato.version import __version__


class RayCluster:
    """A `Cluster` of Ray.

    Args:
        address: see `ostinato.cluster.ray_connection.connect`. n_cpus: of a Ray of its own. n_gpus: of every job.

    Raises:
        ConfigError: Ray is not installed, or does not answer.
    """

    def __init__(self, address: str | None = None, *, n_cpus: int = 1, n_gpus: float = 0) -> None:
        self.address, self.n_gpus = address, n_gpus
        self._ray, self._disconnect = connect(address, n_cpus)
        # What is started again, and how often, the executor decides.
        self._attempt = self._ray.remote(max_retries=0)(attempt_on_node)

    def start(self, job: Job, events: Path) -> _RayTask:
        """Give a job to Ray, which starts it where its CPUs and GPUs are free.

        Raises:
            ConfigError: they will never be.
        """
        n_cpus = job.recipe.training.n_threads or job.n_threads or 1
        check_fits(self._ray, self.address, n_cpus, self.n_gpus)
        task = self._attempt.options(name=job.name, **resources(n_cpus, self.n_gpus))
        return _RayTask(self._ray, task.remote(job, events, __version__, os.getcwd()))  # noqa: PTH109

    def stop(self) -> None:
        """End the connection, if it was made here."""
        self._disconnect()


class _RayTask:
    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def done(self) -> bool:
        return bool(self._ray.wait([self._reference], timeout=0)[0])

    def result(self) -> tuple[Status, str]:
        found: tuple[Status, str] = self._ray.get(self._reference)
        return found

    def cancel(self) -> None:
        self._ray.cancel(self._reference, force=True)
