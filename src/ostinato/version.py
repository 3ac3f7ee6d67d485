"""The version and the content of the source, on their own so that every layer may know them."""

from __future__ import annotations

import hashlib
from pathlib import Path

__version__ = "0.2.0"
PACKAGE = Path(__file__).parent
LEARNING = (
    *("plan.py", "config", "kernels", "nn", "data", "metrics", "models", "tasks"),
    *("decoding", "evaluation", "training"),
)
"""The parts of the package that decide what a run learns and scores."""


def source_hash(parts: tuple[str, ...]) -> str:
    """Return SHA-256 of the source files (Python, C) of parts of the package, with their names."""
    digest = hashlib.sha256()
    for part in sorted(parts):
        path = PACKAGE / part
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.suffix in (".py", ".c", ".h"):
                content = hashlib.sha256(file.read_bytes()).hexdigest()
                digest.update(f"{file.relative_to(PACKAGE).as_posix()} {content}\n".encode())
    return digest.hexdigest()


def source_commit() -> str | None:
    """Return the commit of the source tree that runs, "-dirty" where it was changed since; None without one."""
    import subprocess  # few commands ask, and all are started with this module

    command = ["git", "-C", str(PACKAGE), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        tracked = [*command[:3], "ls-files", "--error-unmatch", "__init__.py"]
        is_tracked = subprocess.run(tracked, capture_output=True, timeout=10)
        if is_tracked.returncode:  # installed somewhere inside another project's repository
            return None
        found = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None if found.returncode == 0 else None
