"""A run that ends at any of its operations on files goes on to what it would have been undisturbed.

`kill`: a SIGKILL before every operation, and in the middle of every write. `power`: what was not flushed is lost before
every operation, once in all files, once also of the names in folders. The run goes on from every different state that
this leaves: a flush, for one, leaves what there was before.

Run as a program, this file does the cases and prints a report.
"""

from __future__ import annotations

import gc
import json
import pickle
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crash_points import Points
from file_operations import FileOperations, flush_nothing
from forks import forked, needs_fork, report_of
from lossy_disk import LossyDisk, Tree, tree_of, write_tree

LEAST = {"new": 240, "recovered": 40, "longer": 150}
"""Crash points of a run from its beginning, of one that goes on after it was killed, and of one made longer."""
KINDS = {"open", "write", "half write", "fsync", "save", "half save", "rename", "unlink", "mkdir", "rmdir"}
N_UPDATES, LONGER = 5, 7


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("how", ["kill", "power"])
def test_a_run_that_ends_at_any_operation_on_a_file_goes_on_like_an_undisturbed_one(tmp_path: Path, how: str) -> None:
    report = report_of(__file__, tmp_path, how)
    print(json.dumps({name: report[name] for name in ("points", "killed", "cases")}))
    assert report["failed"] == []
    for scenario, least in LEAST.items():
        n_points = sum(report["points"][scenario].values())
        assert n_points >= least
        assert report["killed"].get(scenario, n_points) == n_points
        assert report["cases"][scenario] >= n_points // 3
    assert set(report["points"]["new"]) >= KINDS
    assert "truncate" in report["points"]["recovered"]


class Scenario:
    """A session that begins with a state of the disk.

    Args:
        root: the folder in which the run's directory is, and below which operations are seen; beside it lie notes.
        expected: of the run after an undisturbed session. until: the last point begins so; None: all are cases.
    """

    def __init__(
        self, root: Path, start: Tree, recipe: Any, expected: dict[str, Any], until: str | None = None
    ) -> None:
        self.root, self.start, self.recipe, self.expected = root, start, recipe, expected
        self.log, self.saved, self.trace = (root.with_name(name) for name in ("log", "saved", "trace"))
        self.failed: list[str] = []
        self.points, self.states = self._traced()
        if until is not None:
            n_points = next(n for n, point in enumerate(self.points, 1) if point.startswith(until))
            self.points, self.states = self.points[:n_points], self.states[:n_points]

    def _traced(self) -> tuple[list[str], list[tuple[int, Tree, Tree]]]:
        """Do the session undisturbed; return its points, and what was saved and what is left without power at each."""

        def session() -> None:
            states: list[tuple[int, Tree, Tree]] = []

            def look() -> None:
                states.append((self._saved(), disk.without_contents(), disk.without_names()))

            disk = LossyDisk(self.root)
            points = Points(self.root, look=look, disk=disk)
            FileOperations(self.root, points.before).install()
            self._train()
            look()
            self.trace.write_bytes(pickle.dumps((points.names, states)))

        self._begin(self.start)
        ended = forked(session, self.log)
        assert ended.code == 0, ended.text
        assert _content(self.root) == self.expected
        return pickle.loads(self.trace.read_bytes())

    def killed(self) -> tuple[int, int]:
        """Kill the session at every point; return the number of kills, and of the states of the disk they left."""
        n_killed, seen = 0, set()
        for at, point in enumerate(self.points, 1):
            self._begin(self.start)

            def session(at: int = at) -> None:
                FileOperations(self.root, Points(self.root, at).before).install()
                self._train()

            ended = forked(session, self.log)
            n_killed += ended.code == -signal.SIGKILL
            state = pickle.dumps((self._saved(), _content(self.root)))
            if state not in seen:
                seen.add(state)
                self._go_on(f"killed at {at} {point}", self._saved())
        return n_killed, len(seen)

    def left_by_loss_of_power(self) -> int:
        """Go on from every different state that a loss of power leaves; return their number."""
        from trained_runs import OF_SESSIONS

        found: dict[bytes, tuple[str, Tree, int]] = {}
        for at, (saved, *trees) in enumerate(self.states):
            for what, tree in zip(("contents", "names"), trees, strict=True):
                own = {name: value for name, value in tree.items() if Path(name).name not in OF_SESSIONS}
                point = f"{what} lost at {at + 1} {self.points[at] if at < len(self.points) else 'its end'}"
                # The last of equal states, where most was said to be saved.
                found[pickle.dumps(own)] = point, tree, saved
        for point, tree, saved in found.values():
            self._begin(tree)
            self._go_on(point, saved)
        return len(found)

    def _begin(self, tree: Tree) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        write_tree(tree, self.root)
        self.saved.write_text("0")

    def _saved(self) -> int:
        return int(self.saved.read_text())

    def _train(self) -> None:
        from ostinato.training import Reporter, train

        note = self.saved

        class Saved(Reporter):
            def on_save(self, update: int, directory: Path) -> None:
                note.write_text(str(update))

        train(self.recipe, self.root / "run", resume=True, reporter=Saved())

    def _go_on(self, point: str, saved: int) -> None:
        """Load what is left of the run, and go on with it; note what is not as promised."""

        def session() -> None:
            from ostinato.errors import OstinatoError
            from ostinato.evaluation.loading import load

            checkpoints = self.root / "run" / "checkpoints"
            last = checkpoints / "last.json"
            left = json.loads(last.read_text())["update"] if last.is_file() else 0
            assert left >= saved, f"update {saved} was saved, {left} is left"
            for role in ("best", "last"):
                try:
                    load(self.root / "run", checkpoint=role, device="cpu")
                except OstinatoError:
                    assert not last.is_file() or not (checkpoints / f"{role}.json").is_file()
            self._train()

        ended = forked(session, self.log)
        if ended.code:
            self.failed.append(f"{point}: {ended.text[-600:]}")
        elif (found := _content(self.root)) != self.expected:
            names = [name for name in found | self.expected if found.get(name) != self.expected.get(name)]
            self.failed.append(f"{point}: other content of {names}")


def _content(root: Path) -> dict[str, Any]:
    from trained_runs import content

    return content(root / "run")


def scenarios(folder: Path) -> Iterator[tuple[str, Scenario]]:
    from trained_runs import small_recipe

    root = folder / "root"
    recipe, longer = (small_recipe(folder / "data", n_updates=n) for n in (N_UPDATES, LONGER))

    def ended(start: Tree, recipe: Any, kill_at: int | None = None) -> Tree:
        """Return what a session leaves that is not disturbed, or killed at a point."""
        from ostinato.training import train

        def session() -> None:
            if kill_at is not None:
                FileOperations(root, Points(root, kill_at).before).install()
            train(recipe, root / "run", resume=True)

        shutil.rmtree(root, ignore_errors=True)
        write_tree(start, root)
        done = forked(session, folder / "log")
        assert done.code == (0 if kill_at is None else -signal.SIGKILL), done.text
        return tree_of(root)

    whole = ended({}, recipe)
    expected = _content(root)
    new = Scenario(root, {}, recipe, expected)
    yield "new", new
    # Killed when a third checkpoint is whole, but no pointer names it: it and what was recorded since go again.
    place = [n for n, point in enumerate(new.points, 1) if point == "rename run/checkpoints/last.json"][2]
    killed = ended({}, recipe, kill_at=place)
    yield "recovered", Scenario(root, killed, recipe, expected, until="rename run/checkpoints/last.json")
    ended(whole, longer)
    yield "longer", Scenario(root, whole, longer, _content(root))


def main() -> None:
    from trained_runs import with_known_source

    folder, how = Path(sys.argv[1]), sys.argv[2]
    with_known_source()
    flush_nothing()
    gc.freeze()  # forks share what they do not touch
    report: dict[str, Any] = {"points": {}, "killed": {}, "cases": {}, "failed": []}
    for name, scenario in scenarios(folder):
        report["points"][name] = Counter(point.rpartition(" ")[0] for point in scenario.points)
        if how == "kill":
            report["killed"][name], report["cases"][name] = scenario.killed()
        else:
            report["cases"][name] = scenario.left_by_loss_of_power()
        report["failed"] += [f"{name}: {failure}" for failure in scenario.failed]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
