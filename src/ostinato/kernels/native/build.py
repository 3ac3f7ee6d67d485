"""The compiled kernels: C files of ours, made into a library by the machine's own compiler when first wanted.

The library lies in the cache folder, under a name that tells its sources, the compiler's options and the processor, so
that it is made once a machine. It is loaded by ctypes and knows nothing of torch; it shares torch's OpenMP threads,
because both ask the loader for the same library. Without a compiler, or where anything fails, plain code runs.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

from ostinato.folders import cache_folder

_log = logging.getLogger(__name__)
_SOURCES = Path(__file__).parent
_OPTIONS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-lm")
_TIMEOUT_S = 120.0


def library() -> ctypes.CDLL | None:
    """Return the compiled kernels; None where there are none, and why is in the log."""
    return _loaded()[0]


def described() -> str:
    """Return where the compiled kernels are, or why there are none."""
    return _loaded()[1]


@lru_cache(maxsize=1)
def _loaded() -> tuple[ctypes.CDLL | None, str]:
    if os.environ.get("OSTINATO_NATIVE") == "0":
        return None, "switched off (OSTINATO_NATIVE=0)"
    try:
        path = _made()
        return ctypes.CDLL(str(path)), f"compiled, {path}"
    except Exception as error:  # Of any kind: there is plain code for all of it.
        said = (error.stderr or "") if isinstance(error, subprocess.CalledProcessError) else ""
        reason = str(said).strip() or str(error).strip() or type(error).__name__
        why = f"none, decoding on a CPU is slower: {reason.splitlines()[0]}"
        _log.info("compiled kernels: %s", why)
        return None, why


def _made() -> Path:
    """Return the library's file, compiled now where the cache has none.

    Raises:
        OSError: no compiler, or nowhere to write. SubprocessError: the compiler failed.
    """
    compiler = (
        shlex.split(os.environ.get("CC", "")) or [name for name in ("gcc", "cc", "clang") if shutil.which(name)][:1]
    )
    if platform.system() != "Linux" or not compiler:
        raise OSError("they need Linux and a C compiler (cc, gcc, clang, or CC)")
    folder = cache_folder() / "kernels"
    key = hashlib.sha256(repr((compiler, _OPTIONS, platform.machine(), _processor())).encode())
    for source in sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.c")]):
        key.update(source.read_bytes())
    path = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            # Under a name of its own first: other processes find all of it, or nothing.
            made = Path(scratch) / path.name
            sources = map(str, sorted(_SOURCES.glob("*.c")))
            command = [*compiler, *sources, "-o", str(made), *_OPTIONS]
            subprocess.run(command, check=True, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S)
            made.replace(path)
    return path


def _processor() -> list[str]:
    """Return what the processor can do: machines that share a cache folder may differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
