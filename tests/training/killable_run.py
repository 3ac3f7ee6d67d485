"""Train one recipe twice: undisturbed, and in sessions that are killed by SIGKILL and resumed.

Run as a program, so that the killed processes are its own children: it imports torch once and forks every session.
Prints a JSON report. Arguments: folder, number of updates, of kills, how many of them inside a save, seed.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch._dynamo  # noqa: F401  every optimiser imports it: once here instead of in every session
from tiny_runs import tiny_recipe

from ostinato.config.recipe import Recipe
from ostinato.data import disk
from ostinato.training import Reporter, train

SYNCS_PER_SAVE = 10
TIME_LIMIT = 120.0


class _Beat(Reporter):
    """Tells the parent about every record (every second update)."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def on_update(self, record: dict[str, Any]) -> None:
        os.write(self.pipe, b"u")


def recipe(folder: Path, n_updates: int) -> Recipe:
    return tiny_recipe(
        folder, experts=True, halting=True, n_updates=n_updates, log_every=2, save_every=3, evaluate_every=5
    )


def _hang_inside_save(pipe: int, nth: int) -> None:
    """Stop for good before the n-th flush of this session's checkpoints, and tell the parent."""
    original, count = disk.sync, 0

    def sync(path: Path) -> None:
        nonlocal count
        count += "checkpoints" in path.parts
        if count == nth:
            os.write(pipe, b"S")
            time.sleep(TIME_LIMIT)
        original(path)

    disk.sync = sync


def _session(folder: Path, n_updates: int, name: str, hang_at: int | None) -> tuple[int, int]:
    """Fork a session; return its process id and the pipe it beats on."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 1
    try:
        if hang_at is not None:
            _hang_inside_save(writing, hang_at)
        train(recipe(folder, n_updates), folder / name, resume=True, reporter=_Beat(writing))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait_for(pipe: int, n_records: int | None) -> str:
    """Read beats until `n_records` records or a save that hangs; return why it ended."""
    seen, deadline = 0, time.monotonic() + TIME_LIMIT
    while time.monotonic() < deadline:
        if not select.select([pipe], [], [], 1.0)[0]:
            continue
        beat = os.read(pipe, 1)
        if not beat:
            return "ended"
        if beat == b"S":
            return "saving"
        seen += 1
        if seen == n_records:
            return "records"
    return "timeout"


def main() -> None:
    folder, n_updates, n_kills, n_in_save, seed = Path(sys.argv[1]), *map(int, sys.argv[2:6])
    generator = random.Random(seed)
    pid, pipe = _session(folder, n_updates, "undisturbed", None)
    assert _wait_for(pipe, None) == "ended"
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    plan = [SYNCS_PER_SAVE + generator.randint(1, SYNCS_PER_SAVE) for _ in range(n_in_save)] + [None] * (
        n_kills - n_in_save
    )
    generator.shuffle(plan)
    kills: list[dict[str, Any]] = []
    for hang_at in [*plan, "finish"]:
        where = hang_at if isinstance(hang_at, int) else None
        pid, pipe = _session(folder, n_updates, "killed", where)
        if hang_at == "finish":
            wait = _wait_for(pipe, None)
        else:
            # Every session lives through a save, so that the next one has something new to go on from.
            wait = _wait_for(pipe, None if where else generator.randint(2, 4))
            time.sleep(0 if where else generator.uniform(0, 0.02))
            os.kill(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(pipe)
        saved = json.loads((folder / "killed" / "checkpoints" / "last.json").read_text())["update"]
        kills.append({"wait": wait, "code": code, "saved": saved})
    print(json.dumps(kills))


if __name__ == "__main__":
    main()
