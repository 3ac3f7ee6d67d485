from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the killed packings are forked processes")


def _killed(folder: Path, step: int, *how: str) -> dict[str, object]:
    script = Path(__file__).parent / "killed_packing.py"
    done = subprocess.run([sys.executable, str(script), str(folder), str(step), *how], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def test_a_packing_that_was_killed_ends_with_the_same_bytes(tmp_path: Path) -> None:
    report = _killed(tmp_path, 8)
    assert int(str(report["n_killed"])) >= 12
    assert report["wrong"] == []


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["power"]])
def test_a_packing_killed_at_any_operation_on_a_file_ends_with_the_same_bytes(tmp_path: Path, how: list[str]) -> None:
    if how and not Path("/proc/self/fd").is_dir():
        pytest.skip("the system does not say which file is flushed")
    report = _killed(tmp_path, 1, *how)
    assert report["n_killed"] == report["n_points"]
    assert report["wrong"] == []


PACKING = """
import sys
from pathlib import Path
from ostinato.data.packs import files, make, source
from ostinato.data.symbols import SymbolTokenizer
from ostinato.data.tokenizers import Tokenizers
source.UNIT_BYTES = make.UNIT_BYTES = 400_000
words = SymbolTokenizer("words", list("abcdefgh"))
given = files.FileSource((("a", Path(sys.argv[1])),), (("text", "data.text_field"),))
print(make.make_pack(given, Tokenizers(words, words), n_processes=2).folder)
"""


@pytest.mark.slow
def test_processes_of_a_killed_packing_end_with_it_and_the_next_one_finishes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a b c d e f g h\n" * 150_000, encoding="utf-8")

    def start(cache: str) -> subprocess.Popen[str]:
        environment = os.environ | {"OSTINATO_CACHE": str(tmp_path / cache)}
        command = [sys.executable, "-c", PACKING, str(path)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    killed = start("killed")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").rglob("00000?.json")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.01)
    workers = _children(killed.pid)
    assert len(workers) == 2
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    again, other = start("killed"), start("whole")
    folders = [Path(process.communicate()[0].strip()) for process in (again, other)]
    assert [process.returncode for process in (again, other)] == [0, 0]
    trees = [{one.name: one.read_bytes() for one in folder.rglob("*") if one.is_file()} for folder in folders]
    assert trees[0] == trees[1]
    assert len(trees[0]) > 15


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    path = Path(f"/proc/{pid}/task/{pid}/children")
    if not path.exists():
        pytest.skip("the system does not say which processes another one has started")
    # Started by threads, each of which has its own list.
    return [int(child) for one in path.parent.parent.glob("*/children") for child in one.read_text().split()]
