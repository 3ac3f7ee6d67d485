"""The compiled kernels: C files of ours, made into a library by the machine's own compiler when first wanted.

The library lies in the cache folder, under a name that tells its sources, the compiler's options and the processor, so
that it is made once a machine. It is loaded by ctypes and knows nothing of torch; made by GCC it shares torch's OpenMP
threads, because both ask the loader for the same library. Without a compiler, or where anything fails, plain code runs.

What is loaded can do whatever this process can. So a library is only taken from a folder that nobody else may write to;
without one it is compiled anew, in a folder of this process. Beside it stands its SHA-256: a damaged one is made again.
A new one is first loaded in a process of its own. A compiler that fails, or hangs, is tried once a day; once a process
without such a folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from ostinato.folders import cache_folder

_log = logging.getLogger(__name__)
_SOURCES = Path(__file__).parent
_OPTIONS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-lm")
_TIMEOUT_S = 60.0  # compiling takes seconds, on a machine that is busy with other work many times as long
_LOCK_TIMEOUT_S = 4 * _TIMEOUT_S
_MAKING = ".making-"
_REMEMBERED_S = 24 * 3600.0
SIGNATURES = {
    "few_rows": "pppnn",
    "read_cache": "ppnnpnnpn",
    "chain": "pnpppppnnn",
    "full_attention": "pnn",
    "large_product": "pn",
    "grouped_products": "pn",
    "row_products": "pnppnpnnn",
    "draw_kept": "pnpn",
    "drop": "ppfpnn",
    "add_dropped": "pppfpnn",
    "drop_relu": "ppfnn",
    "drop_relu_gradient": "ppfpnn",
    "act_enter": "ppnpfnppp",
    "act_after": "pppnppnn",
    "stick_halt": "ppnpfpppppn",
    "rounds": "pnnpppppnnn",
    "log_probs": "pppnnpnn",
    "highest": "ppnnnnpppn",
}
"""What the functions of the library take, in order: p an address, n a count, f a number."""
_PROBE = "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); [getattr(library, name) for name in sys.argv[2:]]"


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
        compiler = _compiler()
        cache = cache_folder()
        folder = cache / "kernels"
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            shared = next((one for one in (cache, folder) if not _is_private(one)), None)
            why_not = shared and f"others may write to {shared}"
        except OSError as error:  # a home that is read-only, as in containers
            why_not = f"{error.filename} cannot be made ({error.strerror}); OSTINATO_CACHE names another folder"
        if why_not:
            # What is mapped stays when its file is deleted.
            with tempfile.TemporaryDirectory(prefix="ostinato-kernels-") as own:
                found = ctypes.CDLL(str(_made(Path(own), compiler)))
            return found, f"compiled, for this process only: {why_not}"
        path = _made(folder, compiler)
        return ctypes.CDLL(str(path)), f"compiled, {path}"
    except Exception as error:  # Of any kind: there is plain code for all of it.
        reason = str(error).strip() or type(error).__name__
        why = f"none; training and decoding on a CPU are slower: {reason.splitlines()[0]}"
        _log.info("compiled kernels: %s", why)
        return None, why


def _compiler() -> list[str]:
    """Return the command of the C compiler.

    Raises:
        OSError: there is none.
    """
    found = shlex.split(os.environ.get("CC", "")) or [name for name in ("gcc", "cc", "clang") if shutil.which(name)][:1]
    if platform.system() != "Linux" or not found:
        raise OSError("they need Linux and a C compiler (cc, gcc, clang, or CC)")
    return found


def _is_private(path: Path) -> bool:
    """Return whether nobody but this user (and root) may change what stands in a folder, or a file."""
    found = path.stat()
    if found.st_uid not in (os.getuid(), 0) or (found.st_mode & 0o002 and not _is_sticky_folder(found)):
        return False
    return not found.st_mode & 0o020 or _is_sticky_folder(found) or _is_own_group(found.st_gid)


def _is_sticky_folder(found: os.stat_result) -> bool:
    """Return whether only owners may rename or delete what stands there, as in /tmp."""
    return bool(found.st_mode & 0o1000) and bool(found.st_mode & 0o040000)


def _is_own_group(group: int) -> bool:
    """Return whether a group is this user alone, as distributions make one for each."""
    import grp
    import pwd

    try:
        user, found = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return user.pw_gid == group and user.pw_name == found.gr_name and set(found.gr_mem) <= {user.pw_name}


def _made(folder: Path, compiler: Sequence[str]) -> Path:
    """Return the library's file, compiled now where the folder has none, or a damaged one.

    Raises:
        OSError: nowhere to write; or the compiler failed, now or before.
    """
    from filelock import FileLock

    key = hashlib.sha256(repr((compiler, _OPTIONS, platform.machine(), platform.libc_ver(), _processor())).encode())
    for source in sorted([*_SOURCES.glob("*.h"), *_SOURCES.glob("*.c")]):
        key.update(source.read_bytes())
    path = folder / f"kernels-{key.hexdigest()[:16]}.so"
    note = path.with_suffix(".json")
    if _is_whole(path, note):
        return path
    with FileLock(folder / "lock", timeout=_LOCK_TIMEOUT_S):
        if _is_whole(path, note):  # another process was faster
            return path
        for left in folder.glob(f"{_MAKING}*"):  # of a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_MAKING, dir=folder) as scratch:
            made = Path(scratch) / path.name
            try:
                _run([*compiler, *map(str, sorted(_SOURCES.glob("*.c"))), "-o", str(made), *_OPTIONS], scratch)
                _run([sys.executable, "-I", "-S", "-c", _PROBE, str(made), *SIGNATURES], scratch)
            except OSError as error:
                _replace(note, json.dumps({"failed": str(error)}).encode(), scratch)
                raise
            # The library is whole on the disk before the note says that it is.
            content = made.read_bytes()
            _replace(path, content, scratch)
            _replace(note, json.dumps({"sha256": hashlib.sha256(content).hexdigest()}).encode(), scratch)
    return path


def _replace(path: Path, content: bytes, scratch: str) -> None:
    """Write a file that other processes find whole, or not at all."""
    written = Path(scratch) / "written"
    with written.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever the umask: what others may write is not read
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


def _is_whole(path: Path, note: Path) -> bool:
    """Return whether a library is the one that its note tells of, and nobody else may have written either.

    Raises:
        OSError: the note says that the compiler failed.
    """
    if not note.is_file() or not _is_private(note):
        return False
    try:
        found = json.loads(note.read_bytes())
    except (RecursionError, ValueError):
        return False
    if not isinstance(found, dict):
        return False
    if "failed" in found:
        if time.time() - note.stat().st_mtime > _REMEMBERED_S:
            return False
        raise OSError(f"{found['failed']} (tried again after a day, or once {note} is deleted)")
    if not path.is_file() or not _is_private(path):
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == found.get("sha256")


def _run(command: Sequence[str], scratch: str) -> None:
    """Run a command, its temporary files in the scratch folder.

    Raises:
        OSError: it cannot be started, it failed, or it takes too long: then it is killed with all that it started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | {"TMPDIR": scratch},
        start_new_session=True,
    )
    try:
        _, said = process.communicate(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise OSError(f"{command[0]} did not end within {_TIMEOUT_S:g} s") from None
    if process.returncode:
        lines = said.strip().splitlines() or [f"exit code {process.returncode}"]
        raise OSError(f"{command[0]}: {lines[-1 if command[0] == sys.executable else 0]}")


def _processor() -> list[str]:
    """Return what the processor can do: machines that share a cache folder may differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return [platform.processor()]
    return sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})
