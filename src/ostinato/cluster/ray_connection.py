"""The connection to a Ray cluster. Ray is optional (extra `ray`), and is imported here only."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from ostinato.errors import ConfigError, on_one_line, see

HOW_TO_GET = f"--executor ray needs Ray: pip install 'ostinato[ray]'{see('clusters')}"
_ANSWER_S = 20
"""Seconds that a cluster has to answer. Ray itself tries for some minutes."""
_CONNECT_S = 5
_OBJECT_STORE = 100 * 2**20
"""Bytes of the object store of a Ray of our own. What passes through it are settings, batches of ids and results."""
_CLIENT = "ray"


def connect(address: str | None, n_cpus: int) -> tuple[Any, Callable[[], None]]:
    """Connect this process to Ray, unless it is connected.

    Args:
        address: host:port of a cluster, ray://host:port, or auto for the one of this machine; None: RAY_ADDRESS, or
            else a Ray of this process' own on this machine, which listens to this machine only and ends with it.
        n_cpus: that a Ray of its own has to give.

    Returns:
        The module, and what ends the connection: it does nothing where the process was connected before.

    Raises:
        ConfigError: Ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        # Ray's name for "all processes of this cluster are here": it then uses 127.0.0.1 and no other interface.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(HOW_TO_GET) from error
    if ray.is_initialized():
        return ray, lambda: None
    if address not in ("local", "auto"):
        _check_answers(address)
    own = {"num_cpus": n_cpus, "object_store_memory": _OBJECT_STORE, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **(own if address == "local" else {}))
    except Exception as error:  # Ray has no class for it: ConnectionError, ValueError, RuntimeError
        reason = on_one_line(error)
        raise ConfigError(f"--address: no connection to the Ray cluster at {address}: {reason}") from error
    # Ray prints to the standard output, where answers are, that a worker died; no public setting keeps it from there.
    # What it means for the work, the callers say. A Ray without this name goes on printing.
    worker = ray._private.worker
    worker._worker_logs_enabled = False

    def disconnect() -> None:
        ray.shutdown()
        worker._worker_logs_enabled = True

    return ray, disconnect


def resources(n_cpus: float, n_gpus: float) -> dict[str, Any]:
    """Return the options of a task or an actor. One without GPUs sees none: Ray would show it all of its node."""
    hidden = {} if n_gpus else {"runtime_env": {"env_vars": {"CUDA_VISIBLE_DEVICES": ""}}}
    return {"num_cpus": n_cpus, "num_gpus": n_gpus, **hidden}


def check_fits(ray: Any, address: str | None, n_cpus: float, n_gpus: float, n_jobs: int = 1) -> None:
    """Refuse what a Ray of this process' own will never have, which would wait for it without a word.

    A cluster may grow, so that there everything is waited for.

    Args:
        n_cpus, n_gpus: of a job. n_jobs: that are there at once.

    Raises:
        ConfigError: it has too few CPUs or GPUs.
    """
    if (address or os.environ.get("RAY_ADDRESS") or "local") != "local":
        return
    there = ray.cluster_resources()
    for name, asked, cure in (("CPU", n_cpus, "--workers or fewer --threads"), ("GPU", n_gpus, "a cluster: --address")):
        has = there.get(name, 0)
        # A part is a part of one GPU: of two GPUs two jobs can have 0.6 each, and not three.
        n_fit = has // asked if asked >= 1 else has * int(1 / asked + 1e-9) if asked else n_jobs
        if n_fit < n_jobs:
            jobs = "a job takes" if n_jobs == 1 else f"{n_jobs} jobs take, each,"
            raise ConfigError(f"--executor ray: {jobs} {asked:g} {name}s, this Ray has {has:g}: {cure}")


def _check_answers(address: str) -> None:
    """Refuse an address where nothing listens, or something that is no Ray."""
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number
        host = port = None
    if not host or not port or parts.scheme not in ("", _CLIENT):
        raise ConfigError(f"--address: {address!r} is no host:port, ray://host:port or auto")
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        raise ConfigError(f"--address: nothing answers at {address} ({error}): is `ray start` done there?") from error
    if parts.scheme == _CLIENT:
        return  # Ray's client has a limit of its own
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", f"{host}:{port}"]
    try:
        answers = subprocess.run(command, capture_output=True, timeout=_ANSWER_S).returncode == 0
    except subprocess.TimeoutExpired:
        answers = False
    if not answers:
        raise ConfigError(f"--address: {address} answers, but not as a Ray cluster, within {_ANSWER_S} s")
