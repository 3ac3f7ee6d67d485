"""Jobs as jobs of SLURM, by submitit; its "local" cluster starts them as processes of this machine.

Submitit hands function and result over as pickles, in a folder of the store: who can write there can run code as the
user whose jobs read them. What it runs is `attempt_on_node`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ostinato.config.files import parse_overrides
from ostinato.errors import ConfigError, on_one_line, see
from ostinato.experiments.sweep.cluster_executor import RefusedError, attempt_on_node
from ostinato.experiments.sweep.executors import Job, Status
from ostinato.version import __version__

HOW_TO_GET = f"--executor slurm needs submitit: pip install 'ostinato[slurm]'{see('clusters')}"
FOLDER = "submitit"
"""Folder of the store with what submitit writes: scripts, pickles, and the output of every job."""
_OPTION = "--slurm"
_TIMEOUT_MIN = 24 * 60
_MOST_REQUEUES = 1000
_ONE_PROCESS = "a run is one process on one node"
_NOT_ITS_OWN = {
    "cpus_per_task": "--threads or training.n_threads says it",
    "gpus_per_node": "--gpus says it",
    "array_parallelism": "jobs are no array; --workers says how many run at once",
    "name": "a job has the name of its run",
    "job_name": "a job has the name of its run",
    **dict.fromkeys(("nodes", "tasks_per_node", "ntasks_per_node"), _ONE_PROCESS),
}
"""Parameters of submitit, without `slurm_`, that are not asked of its user, and why."""
_NO_PLAIN_TEXT = re.compile(r"""(0|[1-9]\d*)(\.\d+)?|true|false|null|[\[{'"].*""", re.IGNORECASE | re.DOTALL)


class _Attempt:
    """What a job calls. Where SLURM ends it for its time or for a job before it, it is put into the queue again."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __call__(self) -> tuple[Status, str]:
        return attempt_on_node(*self.given)

    def checkpoint(self) -> Any:
        """Return what is done when the job goes on: the same, as the run goes on from its last checkpoint."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class SlurmCluster:
    """A `Cluster` of SLURM.

    Args:
        store: of the runs. n_gpus: of every job.
        parameters: of submitit, such as {"slurm_partition": "gpu", "timeout_min": 600}; cluster: slurm or local.

    Raises:
        ConfigError: submitit is not installed, there is no SLURM here, it does not know a parameter, or one would
            have no effect.
    """

    def __init__(self, store: Path, *, n_gpus: int = 0, parameters: Mapping[str, Any] | None = None) -> None:
        try:
            import submitit
        except ImportError as error:
            raise ConfigError(HOW_TO_GET) from error
        given = {"timeout_min": _TIMEOUT_MIN} | dict(parameters or {})
        name = given.pop("cluster", "slurm")
        if name not in ("slurm", "local"):
            raise ConfigError(f"{_OPTION}: cluster={name} must be slurm or local")
        for key in given:
            if reason := _NOT_ITS_OWN.get(key.removeprefix("slurm_")):
                raise ConfigError(f"{_OPTION}: {key} cannot be given: {reason}")
        # A run that is longer than its job goes on in the next one, as often as it takes.
        requeues = {f"{name}_max_num_timeout": _MOST_REQUEUES}
        try:
            self._executor = submitit.AutoExecutor(store.absolute() / FOLDER, cluster=name, **requeues)
            self._executor.update_parameters(gpus_per_node=n_gpus, **given)
        except (AssertionError, NameError, RuntimeError, TypeError, ValueError) as error:
            reason = on_one_line(error)
            raise ConfigError(f"{_OPTION}: {reason}") from error

    def start(self, job: Job, events: Path) -> _SlurmTask:
        """Put a job into the queue.

        Raises:
            RefusedError: SLURM does not take it.
        """
        n_cpus = job.recipe.training.n_threads or job.n_threads or 1
        self._executor.update_parameters(cpus_per_task=n_cpus, name=f"ostinato-{job.directory.name}")
        given = (job, events, __version__, os.getcwd())  # noqa: PTH109
        try:
            return _SlurmTask(self._executor.submit(_Attempt(*given)))
        except RuntimeError as error:  # submitit's FailedJobError: what sbatch says
            raise RefusedError(f"{_OPTION}: the job was refused: {on_one_line(error)}") from error

    def stop(self) -> None:
        """Nothing is left to be done."""


class _SlurmTask:
    def __init__(self, job: Any) -> None:
        self._job = job

    def done(self) -> bool:
        return bool(self._job.done())

    def result(self) -> tuple[Status, str]:
        found: tuple[Status, str] = self._job.result()
        return found

    def cancel(self) -> None:
        self._job.cancel(check=False)


def read_parameters(texts: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of submitit that `KEY=VALUE` texts give, plain decimal numbers as numbers.

    Raises:
        ConfigError: a text of another form.
    """
    for text in texts:
        if "=" not in text:
            raise ConfigError(f"{_OPTION}: {text!r} is no KEY=VALUE, such as slurm_partition=gpu or timeout_min=600")
    return parse_overrides([_quoted(*text.split("=", 1)) for text in texts])


def _quoted(key: str, value: str) -> str:
    """Return an override whose value is a text, unless it is plainly something else.

    YAML takes 10:00:00 for a number of base 60, 007 for one of base 8, and 1e5 for 100000.0.
    """
    value = value.strip()
    return f"{key}={value}" if not value or _NO_PLAIN_TEXT.fullmatch(value) else f"{key}={json.dumps(value)}"
