"""Run one sweep twice: undisturbed, and in sessions that are killed by SIGKILL at random moments and started again.

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
from contextlib import suppress
from pathlib import Path
from typing import Any

from tiny_sweeps import LONGER, LOSS, SEEN, TIME, settings

from ostinato.config.files import write_yaml
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.schedule import run_sweep

TIME_LIMIT = 300.0
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


def main() -> None:
    how, folder, n_kills, seed, n_updates, n_seeds = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:7])
    start = {"fork": fork_session, "command": command_session}[how]
    generator = random.Random(seed)
    file = write_file(folder, n_updates, n_seeds)
    assert os.waitstatus_to_exitcode(os.waitpid(start(file, folder / "undisturbed"), 0)[1]) == 0
    whole = progress(folder / "undisturbed")
    kills: list[dict[str, Any]] = []
    for number in range(n_kills):
        pid = start(file, folder / "killed")
        # By what has been done, so that a session ends neither before its kill nor always in its imports.
        wanted = (number + generator.random()) / (n_kills + 1) * whole
        while progress(folder / "killed") < wanted and not has_ended(pid):
            time.sleep(0.01)
        time.sleep(generator.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        # Started again while workers of the killed one may still be there.
        finished = len(list((folder / "killed").glob("*/results.json")))
        kills.append({"code": code, "finished": finished, "session": pid})
    pid = start(file, folder / "killed")
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    outlived = [wait_for_end(kill["session"]) for kill in kills]
    print(json.dumps({"kills": kills, "code": code, "outlived": outlived}))


if __name__ == "__main__":
    main()
