"""The wheel: what is in it, and that a typed program runs with it."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="building a wheel needs hatchling: pip install -e '.[dev]'")

ROOT = Path(__file__).parents[1]
PROGRAM = Path(__file__).with_name("typed_program.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    options = ["--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(ROOT)], check=True)
    (found,) = folder.glob("ostinato-*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what is in the wheel, and the libraries of this one."""
    home = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    (site,) = home.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    (site / "libraries.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    return home / "bin" / "python"


def test_everything_that_is_no_code_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        there = set(content.namelist())
    own = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "ostinato").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc", ".so")
    }
    assert own <= there
    assert {"ostinato/py.typed", "ostinato/viewer/page/view.js", "ostinato/recipes/parity/looped.yaml"} <= own


def test_a_typed_program_is_accepted_and_runs(python: Path, tmp_path: Path) -> None:
    strict = ["--strict", "--cache-dir", str(tmp_path / "cache"), "--python-executable", str(python)]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *strict, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True
    )
    assert checked.stdout == "Success: no issues found in 1 source file\n", checked.stdout + checked.stderr
    where = "import ostinato; print(ostinato.__file__)"
    found = subprocess.run([python, "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout).is_relative_to(python.parents[1])
    ran = subprocess.run([python, PROGRAM, tmp_path], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_the_source_distribution_has_what_its_tests_and_commands_read() -> None:
    from hatchling.builders.sdist import SdistBuilder

    there = {Path(one.distribution_path).as_posix() for one in SdistBuilder(str(ROOT)).recurse_included_files()}
    ours = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if ours.returncode:
        pytest.skip("no clone")
    assert set(ours.stdout.split("\n")) - there <= {"", "pyproject.toml", ".gitignore"}  # which are always in it
