"""Run one sweep undisturbed, and in sessions that are killed by SIGKILL at random moments and started again.

A session may end before its kill: then the sweep is run once more in a fresh folder, until enough were killed.

Run as a program, so that the killed processes are its own children. `fork` sessions share one import of torch and do
the runs themselves; `command` sessions are real `ostinato sweep` processes with workers of their own. Prints a JSON
report. Arguments: fork or command, folder, number of kills, seed, number of updates and of seeds of the sweep.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tiny_sweeps import LONGER, LOSS, SEEN, TIME, settings

from ostinato.config.files import write_yaml
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.schedule import run_sweep

TIME_LIMIT = 300.0
MOST_FOLDERS = 8
WORKERS = 2


def write_file(folder: Path, n_updates: int, n_seeds: int) -> Path:
    """Write a sweep of three arms, one of which starts from another."""
    path = folder / "killed.yaml"
    content = settings(measures=[LOSS, SEEN, TIME, LONGER], seeds=list(range(1, n_seeds + 1)))
    content["arms"] = [*content["arms"], {"name": "next", "after": "base", "set": {"training.n_updates": 6}}]
    changes = [f"training.n_updates={n_updates}", "training.evaluate_every=10", "training.save_every=4"]
    write_yaml(content | {"name": "killed", "overrides": [*content["overrides"], *changes]}, path)
    return path


def fork_session(file: Path, store: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        os.setsid()
        run_sweep(load_sweep(file), store)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def command_session(file: Path, store: Path) -> int:
    command = [sys.executable, "-m", "ostinato", "sweep", str(file), "--store", str(store)]
    output = (store.parent / f"{store.name}.log").open("a")
    process = subprocess.Popen(
        [*command, "--workers", str(WORKERS)], stdout=output, stderr=output, start_new_session=True
    )
    return process.pid


def living(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = path.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def progress(store: Path) -> int:
    """Return how many records and results the runs of a store have."""
    n = len(list(store.glob("*/results.json")))
    for path in store.glob("*/metrics.jsonl"):
        with suppress(FileNotFoundError):  # a folder that is just being given its name
            n += path.read_bytes().count(b"\n")
    return n


def has_ended(pid: int) -> bool:
    """Return whether a child has ended; it can still be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def wait_for_end(session: int) -> float:
    """Return the seconds until the last process of a session has ended."""
    began = time.monotonic()
    while living(session):
        if time.monotonic() - began > TIME_LIMIT:
            raise TimeoutError(f"processes {living(session)} are still there")
        time.sleep(0.02)
    return time.monotonic() - began


def kill_sessions(
    start: Callable[[Path], int], store: Path, n_kills: int, whole: int, generator: random.Random
) -> list[dict[str, Any]]:
    """Kill one session of a sweep after the other until one has ended by itself; return the kills."""
    kills: list[dict[str, Any]] = []
    for number in range(n_kills):
        pid = start(store)
        # By what has been done, so that a session ends neither before its kill nor always in its imports.
        wanted = (number + generator.random()) / (n_kills + 1) * whole
        while progress(store) < wanted and not has_ended(pid):
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code == 0:
            break
        # Started again while workers of the killed one may still be there.
        kills.append({"code": code, "finished": len(list(store.glob("*/results.json"))), "session": pid})
    return kills


def main() -> None:
    how, folder, n_kills, seed, n_updates, n_seeds = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:7])
    generator = random.Random(seed)
    session = {"fork": fork_session, "command": command_session}[how]
    start = partial(session, write_file(folder, n_updates, n_seeds))
    assert os.waitstatus_to_exitcode(os.waitpid(start(folder / "undisturbed"), 0)[1]) == 0
    whole = progress(folder / "undisturbed")
    kills: list[dict[str, Any]] = []
    codes = []
    for number in range(MOST_FOLDERS):
        store = folder / f"killed-{number}"
        kills += kill_sessions(start, store, n_kills - len(kills), whole, generator)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(start(store), 0)[1]))
        if len(kills) == n_kills:
            break
    outlived = [wait_for_end(kill["session"]) for kill in kills]
    print(json.dumps({"kills": kills, "codes": codes, "outlived": outlived}))


if __name__ == "__main__":
    main()
