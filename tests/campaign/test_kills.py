"""A training, a sweep and an evaluation that are killed again and again end like undisturbed ones.

A point is an operation on files, the middle of a write, a prediction or an event of a sweep, drawn with a seed: the
clock has no part in it. Run as a program, this file does the cases and prints a report.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from crash_points import Points
from file_operations import FileOperations, Operation, flush_nothing
from forks import Ended, forked, needs_fork, report_of
from lossy_disk import tree_of, write_tree

N_KILLS = {"training": 28, "sweep": 16, "evaluation": 16}
IN_A_ROW = 3
"""Kills before the work is done to its end, and compared."""
N_POINTS_OF_SWEEP = 160
"""At an even one all workers die, at that operation of theirs; at an odd one the sweep, at an eighth as many events."""

Work = Callable[[], object]


@pytest.mark.slow
@needs_fork
def test_what_is_killed_at_sixty_random_points_ends_like_undisturbed_work(tmp_path: Path) -> None:
    report = report_of(__file__, tmp_path, 1)
    print(json.dumps(report))
    assert report["failed"] == []
    assert report["kills"] == N_KILLS
    assert sum(report["kills"].values()) == 60
    assert {at % 2 for at in report["points"]["sweep"]} == {0, 1}
    for name, n_kills in N_KILLS.items():
        assert report["compared"][name] >= n_kills // IN_A_ROW
        assert len(set(report["points"][name])) >= n_kills // 2


class Kills:
    """Work that is killed, and done again.

    Args:
        root: what the work changes; beside it lies its log. work: told to go on, does what is left. killed: does the
            same in a process that is killed at its n-th point. n_points: to draw from.
    """

    def __init__(self, root: Path, work: Work, killed: Callable[[int], object], n_points: Callable[[], int]) -> None:
        self.root, self.work, self.killed = root, work, killed
        self._start = tree_of(root)
        self.ended(work)
        self.expected = self._content()
        self._begin()
        self.n_points = n_points()
        self.points: list[int] = []
        self.n_compared = 0
        self.failed: list[str] = []

    def ended(self, work: Work, codes: tuple[int, ...] = (0,)) -> Ended:
        """Do work in a process; return when it and all it started have ended."""
        reading, writing = os.pipe()
        ended = forked(work, self.root.with_name("log"))
        os.close(writing)
        os.read(reading, 1)  # its end comes when the last process that has the other side has ended
        os.close(reading)
        assert ended.code in codes, ended.text
        return ended

    def run(self, n_kills: int, generator: random.Random) -> None:
        """Kill so many times."""
        self._begin()
        while len(self.points) < n_kills:
            at = generator.randint(1, self.n_points)
            ended = self.ended(lambda at=at: self.killed(at), (-signal.SIGKILL, 1, 0))  # type: ignore[misc]
            if is_killed := "SIGKILL" in ended.text or ended.code == -signal.SIGKILL:
                self.points.append(at)
            assert is_killed or ended.code == 0, ended.text
            if not is_killed or len(self.points) % IN_A_ROW == 0 or len(self.points) == n_kills:
                self._compare()

    def _compare(self) -> None:
        self.ended(self.work)
        found = self._content()
        names = [name for name in found | self.expected if found.get(name) != self.expected.get(name)]
        if names:
            self.failed.append(f"after kills at {self.points[-IN_A_ROW:]}: other content of {names}")
        self.n_compared += 1
        self._begin()

    def _begin(self) -> None:
        shutil.rmtree(self.root)
        write_tree(self._start, self.root)

    def _content(self) -> dict[str, Any]:
        from trained_runs import content

        # Of a sweep's store, beside its runs: locks, and what is kept to be computed once.
        return {n: x for n, x in content(self.root).items() if not n.startswith(("store/locks", "store/data-hashes"))}


def in_a_process_of_points(root: Path, work: Work, folder: Path) -> Kills:
    """Return work that one process does, with a point at every operation on files and every prediction."""
    note = folder / "n_points"

    def watched(at: int | None = None) -> Points:
        from ostinato.evaluation.predictions import PredictionWriter

        points = Points(root, at)
        FileOperations(root, points.before).install()
        write = PredictionWriter.__call__

        def called(self: PredictionWriter, record: dict[str, Any]) -> None:
            points.before(Operation("prediction", self.path))
            write(self, record)

        PredictionWriter.__call__ = called  # type: ignore[method-assign]
        work()
        return points

    def n_points() -> int:
        kills_free = forked(lambda: note.write_text(str(len(watched().names))), folder / "log")
        assert kills_free.code == 0, kills_free.text
        return int(note.read_text())

    return Kills(root, work, watched, n_points)


def training(folder: Path) -> Kills:
    from tiny_runs import tiny_recipe

    from ostinato.training import train

    root = folder / "root"
    root.mkdir()
    settings = {"n_updates": 8, "log_every": 2, "save_every": 3, "evaluate_every": 4}
    recipe = tiny_recipe(folder / "data", experts=True, halting=True, **settings)
    return in_a_process_of_points(root, lambda: train(recipe, root / "run", resume=True), folder)


def evaluation(folder: Path) -> Kills:
    """Return an evaluation of the mean of two checkpoints, which is not there yet, with all its predictions."""
    from trained_runs import small_recipe

    from ostinato.cli.app import main
    from ostinato.training import train

    root = folder / "root"
    root.mkdir()
    run, out = root / "run", root / "out" / "predictions.jsonl"
    done = forked(lambda: train(small_recipe(folder / "data", n_updates=4), run), folder / "log")
    assert done.code == 0, done.text
    command = ["evaluate", run, "--split", "train", "--device", "cpu", "--checkpoint", "best:2"]

    def work() -> None:
        with suppress(SystemExit):  # the command line ends so; what it has not written is missed
            main([*map(str, command), "--predictions", str(out), "--overwrite"])

    return in_a_process_of_points(root, work, folder)


def sweep(folder: Path) -> Kills:
    """Return a sweep with two workers: half of the time it is killed itself, half of the time its workers are."""
    sys.path.append(str(Path(__file__).parents[1] / "experiments" / "sweep"))
    from multiprocessing import get_context

    from tiny_sweeps import LONGER, LOSS, SEEN, settings

    from ostinato.experiments.sweep import pool
    from ostinato.experiments.sweep.files import load_sweep
    from ostinato.experiments.sweep.pool import LocalPool
    from ostinato.experiments.sweep.schedule import SweepError, run_sweep
    from ostinato.experiments.sweep.watch import Event, Watcher

    pool.get_context = lambda how: get_context("fork")  # type: ignore[assignment,return-value]  torch is imported
    root = folder / "root"
    root.mkdir()
    content = settings(measures=[LOSS, SEEN, LONGER], seeds=[1])
    content["arms"] = [*content["arms"], {"name": "next", "after": "base", "set": {"training.n_updates": 4}}]
    changes = ["training.n_updates=6", "training.evaluate_every=3", "training.save_every=2"]
    planned = load_sweep(content | {"overrides": [*content["overrides"], *changes]})

    class Deadly(Watcher):
        def __init__(self, kill_at: int) -> None:
            self.kill_at, self.n = kill_at, 0

        def on_event(self, event: Event) -> None:
            self.n += 1
            if self.n == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def work(watcher: Watcher | None = None) -> None:
        try:
            run_sweep(planned, root / "store", executor=LocalPool(2), watcher=watcher)
        except SweepError as error:
            print(error)
            sys.exit(1)

    def killed(at: int) -> None:
        if at % 2:
            work(Deadly(at // 8 + 1))
        else:
            FileOperations(root, Points(root, at).before).install()  # each worker has its own points
            work()

    return Kills(root, work, killed, lambda: N_POINTS_OF_SWEEP)


def main() -> None:
    from trained_runs import with_known_source

    folder, seed = Path(sys.argv[1]), int(sys.argv[2])
    with_known_source()
    flush_nothing()
    gc.freeze()  # forks share what they do not touch
    report: dict[str, Any] = {"kills": {}, "compared": {}, "points": {}, "failed": []}
    for name, make in {"training": training, "sweep": sweep, "evaluation": evaluation}.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        (folder / name).mkdir()
        kills = make(folder / name)
        kills.run(N_KILLS[name], random.Random(seed))
        report["kills"][name], report["compared"][name] = len(kills.points), kills.n_compared
        report["points"][name] = kills.points
        report["failed"] += [f"{name}: {failure}" for failure in kills.failed]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
