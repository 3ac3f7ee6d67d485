"""What a measurement was made on: enough to read it by, nothing that identifies a machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ostinato.version import __version__, source_commit


@dataclass(frozen=True, slots=True)
class Environment:
    """Hardware and software of a measurement.

    Args:
        device: cpu, or the name of the accelerator. cpu: the processor's name.
        cores: that this process may use. threads: that torch uses.
        system: operating system and architecture.
        commit: of this library's source, "-dirty" where it was changed since; None: not known.
    """

    device: str
    cpu: str
    cores: int
    threads: int
    system: str
    python: str
    torch: str
    ostinato: str = __version__
    commit: str | None = None


def describe_environment(device: torch.device) -> Environment:
    """Return what is measured on now, with the number of threads torch uses now."""
    return Environment(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        cpu=cpu_name(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        commit=source_commit(),
    )


def versions_of(environment: Mapping[str, Any]) -> str:
    """Return in words which software a measurement was of, given its environment as data."""
    commit, _, dirty = (environment.get("commit") or "").partition("-")
    at = f" at {commit[:8]}" if commit else ""
    at += ", changed" if dirty else ""
    return f"torch {environment['torch']}, Python {environment['python']}, ostinato {environment['ostinato']}{at}"


def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name as the system gives it."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
