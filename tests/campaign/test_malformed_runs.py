"""Every file of a trained run damaged in every way, and every command that reads runs asked about it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from damage import ENDLESS, NO_FILES, OTHER_CONTENTS, flips, put, put_no_file, remove, truncations
from promises import Asker
from tiny_files import SETTINGS, write_pairs

from ostinato.config.load import check_recipe
from ostinato.training import train

pytestmark = pytest.mark.slow

READERS: dict[str, list[object]] = {
    "evaluate": ["evaluate", "RUN", "--max-examples", 2],
    "generate": ["generate", "RUN", "LINES", "--json"],
    "table": ["table", "RUN"],
    "plan": ["plan", "RUN"],
}
"""Commands that only read a run, and are quick."""
OTHERS: dict[str, list[object]] = {
    "compare": ["compare", "RUN", "WHOLE"],
    "compare losses": ["compare", "RUN", "WHOLE", "--match", "loss", "--split", "dev"],
    "analyze": ["analyze", "RUN", "--only", "learning", "--only", "pareto", "--out", "OUT", "--max-examples", 2],
    "tune-threshold": ["tune-threshold", "RUN", "--split", "dev", "--max-examples", 2],
    "resume": ["train", "RUN", "--resume"],
    "resume for longer": ["train", "RUN", "--resume", "training.n_updates=3"],
    "average": ["evaluate", "RUN", "--checkpoint", "last:2", "--max-examples", 2],
    "last": ["evaluate", "RUN", "--checkpoint", "last", "--max-examples", 2],
    "sweep": ["sweep", "SWEEP", "--take", "RUN", "--store", "OUT", "--dry-run"],
    "init_from": ["train", "RUN", "training.init_from=RUN", "--run-dir", "OUT"],
    "data": ["data", "show", "RUN"],
    "table of two": ["table", "RUN", "WHOLE", "--markdown"],
}
"""Commands that write, or read more of it."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run with two checkpoints, a threshold and stored outputs; its data and a sweep beside it."""
    folder = tmp_path_factory.mktemp("runs")
    settings = SETTINGS | {"data": SETTINGS["data"] | write_pairs(folder)}
    train(check_recipe(settings), folder / "whole")
    (folder / "lines.txt").write_text("a b\nb c d\n")
    (folder / "sweep.yaml").write_text(f"name: mine\narms: [{{name: a, recipe: {folder / 'whole'}}}]\n")
    return folder / "whole"


@pytest.fixture
def asker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asker:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Asker(capsys)


def words(command: list[object], run: Path, whole: Path) -> list[str]:
    """Return a command's words, with the files that it is about."""
    places = {"RUN": run, "WHOLE": whole, "OUT": run.parent / "out", "LINES": whole.parent / "lines.txt"}
    places["SWEEP"] = whole.parent / "sweep.yaml"
    found = [str(places.get(str(word), word)) for word in command]
    return [word.replace("=RUN", f"={run}") for word in found]


def copied(whole: Path, folder: Path) -> Path:
    """Return a copy of a run, in the place of the last one."""
    run = folder / "run"
    for path in (run, folder / "out"):
        remove(path)
    shutil.copytree(whole, run)
    return run


def files_of(run: Path) -> list[str]:
    """Return what a run holds that is read again, by relative path."""
    found = sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())
    return [name for name in found if not name.startswith(".") and "threshold-curve" not in name]


def damages(content: bytes, seed: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield what may become of a file; None: it is gone."""
    yield "gone", None
    yield from truncations(content, 2)
    yield from flips(content, 1, seed)
    for what in random.Random(seed).sample(sorted(OTHER_CONTENTS), 4):
        yield what, OTHER_CONTENTS[what]


def test_every_command_on_every_damage(asker: Asker, whole: Path, tmp_path: Path) -> None:
    """Whatever lies in a run, commands that only read it change nothing, and each says in a line what is wrong."""
    draw = random.Random(11)
    for command in OTHERS.values():
        asker.ask("whole", *words(command, copied(whole, tmp_path), whole), codes=[0])
    for command in READERS.values():
        asker.ask("whole", *words(command, whole, whole), codes=[0], unchanged=[whole])
    for place, name in enumerate(files_of(whole)):
        content = (whole / name).read_bytes()
        run = copied(whole, tmp_path)
        for turn, (what, damaged) in enumerate(damages(content, seed=place)):
            put(run / name, damaged)
            case = f"{name}, {what}"
            asker.ask(case, *words(READERS[draw.choice(sorted(READERS))], run, whole), unchanged=[run])
            if turn % 3 == place % 3:
                other = draw.choice(sorted(OTHERS))
                asker.ask(f"{other}: {case}", *words(OTHERS[other], run, whole))
                run = copied(whole, tmp_path)
        for what in (*NO_FILES, *ENDLESS):
            put_no_file(run / name, what)
            asker.ask(f"{name}, {what}", *words(READERS[draw.choice(sorted(READERS))], run, whole), unchanged=[run])
    asker.conclude(least=220)


def test_one_bit_of_a_file_with_a_hash_is_refused_by_all_who_read_it(asker: Asker, whole: Path, tmp_path: Path) -> None:
    checkpoint = json.loads((whole / "checkpoints" / "last.json").read_text())["directory"]
    readers = {
        "model.safetensors": ["evaluate", "generate", "compare", "resume for longer", "tune-threshold", "init_from"],
        "state.safetensors": ["resume for longer"],
    }
    for place, (name, commands) in enumerate(readers.items()):
        run = copied(whole, tmp_path)
        path = run / "checkpoints" / checkpoint / name
        for i, (what, damaged) in enumerate(flips(path.read_bytes(), 50, seed=place)):
            put(path, damaged)
            command = commands[i % len(commands)]
            asker.ask(f"{name}, {what}", *words((READERS | OTHERS)[command], run, whole), codes=[2])
    asker.conclude(least=100)


def test_folders_of_a_run_that_are_gone_or_files(asker: Asker, whole: Path, tmp_path: Path) -> None:
    folders = [path.relative_to(whole).as_posix() for path in sorted(whole.rglob("*")) if path.is_dir()]
    for name in [*folders, "."]:
        for content in (None, b"", b"{}"):
            run = copied(whole, tmp_path)
            put(run / name if name != "." else run, content)
            for command in (*READERS.values(), OTHERS["compare"], OTHERS["resume"]):
                asker.ask(f"{name}: {content!r}", *words(command, run, whole))
    asker.conclude(least=60)
