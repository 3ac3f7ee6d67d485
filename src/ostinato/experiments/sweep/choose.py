"""The executor of a sweep by its name and settings, which are those of `ostinato sweep` and `ostinato advise`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ostinato.errors import ConfigError
from ostinato.experiments.sweep.cluster_executor import ClusterExecutor
from ostinato.experiments.sweep.executors import Executor
from ostinato.experiments.sweep.pool import LocalPool
from ostinato.experiments.sweep.ray_cluster import RayCluster
from ostinato.experiments.sweep.slurm_cluster import SlurmCluster, read_parameters

ExecutorName = Literal["local", "ray", "slurm"]


@dataclass(frozen=True, slots=True)
class ExecutorChoice:
    """Where jobs are done.

    Args:
        workers: jobs at once; None: 1 on this machine, and all of them at a cluster, which has a queue of its own.
        n_gpus: of every job, at a cluster; Ray also divides one. address: of Ray, see
            `ostinato.cluster.ray_connection`. slurm: `KEY=VALUE`, parameters of submitit.

    Raises:
        ConfigError: a setting that the executor does not have.
    """

    name: ExecutorName = "local"
    workers: int | None = None
    n_gpus: float = 0
    address: str | None = None
    slurm: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option, given, only in (
            ("--address", self.address, ("ray",)),
            ("--slurm", self.slurm, ("slurm",)),
            ("--gpus", self.n_gpus, ("ray", "slurm")),
        ):
            if given and self.name not in only:
                raise ConfigError(f"{option}: belongs to --executor {' or '.join(only)}, not to {self.name}")
        if self.name == "slurm" and not float(self.n_gpus).is_integer():
            raise ConfigError(f"--gpus: {self.n_gpus} is no whole number, as SLURM needs")

    def make(self, store: Path) -> Executor:
        """Return the executor for runs in a store.

        Raises:
            ConfigError: its library is not installed, or its cluster does not answer or is not there.
        """
        if self.name == "local":
            return LocalPool(self.workers or 1)  # also for one: what kills a run does not kill the sweep
        if self.name == "ray":
            n_cpus = max(self.workers or 1, os.cpu_count() or 1)  # a run may have several; `most` bounds the runs
            return ClusterExecutor(RayCluster(self.address, n_cpus=n_cpus, n_gpus=self.n_gpus), most=self.workers)
        parameters = read_parameters(self.slurm)
        cluster = SlurmCluster(store, n_gpus=int(self.n_gpus), parameters=parameters)
        return ClusterExecutor(cluster, most=self.workers)
