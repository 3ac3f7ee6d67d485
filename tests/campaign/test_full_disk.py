"""A disk that is full at any point of a training: one line, nothing lost, and the run goes on when there is room.

`tmpfs`: a real disk of so many pages, mounted where no other process sees it: it goes with this one. `injected`: an
error of the system at points that are spread evenly over all operations on files; a full disk stays full, and lets only
deletions pass. Run as a program, this file does the cases and prints a report.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from file_operations import FileOperations, Operation, flush_nothing
from forks import Ended, forked, needs_fork, report_of
from safetensors import SafetensorError

CASES = {errno.ENOSPC: 20, errno.EDQUOT: 6, errno.EROFS: 6, errno.EMFILE: 6}
N_SIZES = 20
WHAT_TO_DO = {
    errno.ENOSPC: "the disk is full: make room there",
    errno.EDQUOT: "your quota is used up",
    errno.EROFS: "write to another folder",
    errno.EMFILE: "ulimit -n",
}
"""By the error, what the line says after the system's own words."""
OWN_NAMESPACE = ("unshare", "--mount", "--map-root-user")
NEEDS_NO_ROOM = ("unlink", "rmdir", "truncate", "chmod")


def _may_mount(folder: Path) -> bool:
    """Return whether this process may mount a tmpfs over a folder in a mount namespace of its own."""
    if shutil.which("unshare") is None:
        return False
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    return subprocess.run([*OWN_NAMESPACE, *mount], capture_output=True).returncode == 0


@pytest.mark.slow
@needs_fork
def test_a_disk_that_is_full_at_twenty_points_is_one_line_and_the_run_goes_on_when_there_is_room(
    tmp_path: Path,
) -> None:
    if not _may_mount(tmp_path):
        pytest.skip("this process may not mount a tmpfs")
    report = report_of(__file__, tmp_path, "tmpfs", within=OWN_NAMESPACE)
    print(json.dumps(report))
    assert report["failed"] == []
    assert report["cases"] == {"ENOSPC": N_SIZES}
    assert report["files"] >= 5


@pytest.mark.slow
@needs_fork
def test_what_the_system_refuses_at_any_point_is_one_line_and_the_run_goes_on(tmp_path: Path) -> None:
    report = report_of(__file__, tmp_path, "injected")
    print(json.dumps(report))
    assert report["failed"] == []
    assert report["cases"] == {errno.errorcode[code]: n for code, n in CASES.items()}
    assert report["files"] >= 10


class Refusing:
    """Fails from the n-th operation on (from 1) that the error can come from, as the system and libraries fail."""

    def __init__(self, code: int, at: int | None) -> None:
        self.code, self.at, self.n = code, at, 0

    def before(self, operation: Operation) -> None:
        if operation.kind in NEEDS_NO_ROOM or (self.code == errno.EMFILE and operation.kind not in ("open", "save")):
            return
        self.n += 1
        if self.at is None or self.n < self.at:
            return
        reason = os.strerror(self.code)
        if operation.half is not None and self.code in (errno.ENOSPC, errno.EDQUOT):
            operation.half()
        if operation.kind == "save":
            raise SafetensorError(f"Error while serializing: I/O error: {reason} (os error {self.code})")
        if operation.kind in ("write", "fsync"):
            raise OSError(self.code, reason)
        raise OSError(self.code, reason, str(operation.source or operation.path))


class Trainings:
    """Trainings by the command line into a folder that fails, and then does not.

    Args:
        disk: the folder of the run. beside: of all else.
    """

    def __init__(self, disk: Path, beside: Path) -> None:
        from trained_runs import small_recipe

        from ostinato.config.load import dump_recipe

        self.disk, self.run, self.log, self.recipe = disk, disk / "run", beside / "log", beside / "recipe.yaml"
        dump_recipe(small_recipe(beside / "data", n_updates=4), self.recipe)
        self.cases: Counter[str] = Counter()
        self.files: set[str] = set()
        self.failed: list[str] = []
        done = self.train()
        assert done.code == 0, done.text
        self.expected = self._content()
        shutil.rmtree(self.run)

    def train(self, first: Callable[[], object] = lambda: None) -> Ended:
        from ostinato.cli.app import main

        def session() -> None:
            first()
            main(["train", str(self.recipe), "--run-dir", str(self.run), "--resume", "--json"])

        return forked(session, self.log)

    def case(self, code: int, where: object, first: Callable[[], object], mend: Callable[[], object]) -> None:
        """Train until it is refused, then to the end."""
        name = errno.errorcode[code]
        self.cases[name] += 1
        refused = self.train(first)
        file, _, rest = refused.text.partition(": ")
        self.files.add(Path(file).name)
        is_said = rest.startswith(os.strerror(code)) and WHAT_TO_DO[code] in rest and refused.text.count("\n") == 1
        if refused.code != 1 or not is_said or not Path(file).is_relative_to(self.disk) or ".partial-" in file:
            self.failed.append(f"{name} at {where}: exit code {refused.code}: {refused.text[-900:]}")
        mend()
        done = self.train()
        if done.code or self._content() != self.expected:
            self.failed.append(f"{name} at {where}, then resumed: exit code {done.code}: {done.text[-900:]}")
        shutil.rmtree(self.run)

    def _content(self) -> dict[str, Any]:
        from trained_runs import content

        return content(self.run)


def spread(n: int, highest: int) -> Sequence[int]:
    """Return so many numbers from 1 to the highest, spread evenly."""
    return [1 + (highest - 1) * i // (n - 1) for i in range(n)]


def inject(trainings: Trainings, note: Path) -> None:
    """Refuse at points of all errors."""

    def refuse(code: int, at: int | None = None) -> None:
        refusing = Refusing(code, at)

        def before(operation: Operation) -> None:
            refusing.before(operation)
            note.write_text(str(refusing.n))

        FileOperations(trainings.disk, before).install()

    for code, n_cases in CASES.items():
        assert trainings.train(lambda code=code: refuse(code)).code == 0  # type: ignore[misc]
        shutil.rmtree(trainings.run)
        for at in spread(n_cases, int(note.read_text())):
            trainings.case(code, at, lambda code=code, at=at: refuse(code, at), lambda: None)  # type: ignore[misc]


def fill(trainings: Trainings) -> None:
    """Give the disk less than the run takes, from nothing to almost enough."""
    page = os.sysconf("SC_PAGESIZE")

    def resize(n_pages: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={n_pages * page}", "tmpfs", str(trainings.disk)], check=True)

    note = trainings.log.with_name("pages")
    note.write_text("0")

    def look(operation: Operation) -> None:
        status = os.statvfs(trainings.disk)
        note.write_text(str(max(int(note.read_text()), status.f_blocks - status.f_bfree)))

    assert trainings.train(lambda: FileOperations(trainings.disk, look).install()).code == 0
    shutil.rmtree(trainings.run)
    for n_pages in spread(N_SIZES, int(note.read_text()) - 1):
        resize(n_pages)
        trainings.case(errno.ENOSPC, f"{n_pages} pages", lambda: None, lambda: resize(10_000))


def main() -> None:
    from trained_runs import with_known_source

    folder, how = Path(sys.argv[1]), sys.argv[2]
    with_known_source()
    disk, beside = folder / "disk", folder / "beside"
    disk.mkdir()
    beside.mkdir()
    gc.freeze()  # forks share what they do not touch
    if how == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    else:
        flush_nothing()
    trainings = Trainings(disk, beside)
    if how == "tmpfs":
        fill(trainings)
    else:
        inject(trainings, beside / "n_operations")
    print(json.dumps({"cases": trainings.cases, "files": len(trainings.files), "failed": trainings.failed}))


if __name__ == "__main__":
    main()
