"""What damaged files make of the readers in `ostinato.data.disk`, and of those that read JSON through them."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ostinato.analysis.curves import learning_curves
from ostinato.data import disk
from ostinato.data.disk import make_folder, new_folder, read_json_object, reading, sha256_of, write_json
from ostinato.data.output_files import new_file
from ostinato.data.tokenizers import load_tokenizer
from ostinato.errors import CheckpointError, DataError, OstinatoError
from ostinato.experiments.sweep.run_key import run_versions
from ostinato.system_errors import naming
from ostinato.training import checkpoint
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.records import Records
from ostinato.training.rundir import RunDirectory

needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs FIFOs and devices")
DAMAGED = {
    "cut off": b'{"a": 1',
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "deep": b"[" * 100_000,
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
    "other bytes": b"\xff\xfe\x00",
    "empty": b"",
}
READERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "versions.json": ("versions.json", run_versions),
    "data.json": ("data.json", lambda run: RunDirectory(run).data_hashes()),
    "results.json": ("results.json", lambda run: RunDirectory(run).results()),
    "changes.jsonl": ("changes.jsonl", lambda run: RunDirectory(run).recorded_changes()),
    "metrics.jsonl": ("metrics.jsonl", lambda run: learning_curves(run / "metrics.jsonl")),
    "last.json": ("last.json", lambda run: Checkpoints(run, 1).last_update()),
    "source.json": ("source.json", lambda run: load_tokenizer(run / "source.json")),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_of_a_run_is_one_line_with_its_name(tmp_path: Path, reader: str, damage: str) -> None:
    name, read = READERS[reader]
    (tmp_path / name).write_bytes(DAMAGED[damage])
    if damage == "empty" and name.endswith("jsonl"):
        read(tmp_path)  # no rows
        return
    with pytest.raises(OstinatoError) as caught:
        read(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("last.json", '{"update": "x"}'),
        ("last.json", '{"update": null}'),
        ("last.json", "{}"),
        ("data.json", '{"splits": [1]}'),
        ("data.json", '{"splits": {"train": 3}}'),
        ("versions.json", "{}"),
        ("metrics.jsonl", '{"kind": "training", "update": "x"}'),
        ("metrics.jsonl", '{"kind": "training", "update": 1, "depth": [1]}'),
        ("metrics.jsonl", '{"kind": "training", "update": 1, "nll": "x"}'),
        ("metrics.jsonl", '{"kind": "evaluation", "update": 1, "split": [1], "scores": {}}'),
        ("metrics.jsonl", '{"kind": "evaluation", "update": 1, "split": "dev", "scores": 3}'),
        ("source.json", '{"format": "ostinato-tokenizer", "version": 1, "kind": "words", "symbols": 3}'),
        ("source.json", '{"format": "ostinato-tokenizer", "version": 1, "kind": "tagging", "labels": [[1]]}'),
        ("source.json", '{"format": "ostinato-tokenizer", "version": 1, "kind": "bpe", "model": []}'),
    ],
)
def test_an_object_of_another_form_is_one_line_with_the_file_s_name(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(OstinatoError) as caught:
        READERS[name][1](tmp_path)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_the_error_is_of_the_kind_asked_for_and_ends_with_the_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a.json: cannot be read: No such file or directory; make it$"):
        read_json_object(tmp_path / "a.json", DataError, "; make it")
    with pytest.raises(CheckpointError, match=r"a.json: is damaged: KeyError\('b'\)$"), reading(tmp_path / "a.json"):
        _ = dict[str, int]()["b"]
    with pytest.raises(DataError, match="its own line"), reading(tmp_path / "a.json"):
        raise DataError("its own line")


def test_the_names_of_new_folders_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(disk, "sync", flushed.append)
    make_folder(tmp_path / "runs" / "letters")
    assert set(flushed) == {tmp_path, tmp_path / "runs"}
    flushed.clear()
    make_folder(tmp_path / "runs" / "letters")
    assert flushed == []
    with new_folder(tmp_path / "runs" / "letters" / "checkpoints" / "update-1"):
        pass
    assert tmp_path / "runs" / "letters" in flushed
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "runs", exist_ok=False)


def test_names_of_files_that_are_not_utf_8_are_written_too(tmp_path: Path) -> None:
    content = {"path": os.fsdecode(b"caf\xe9.txt"), "value": math.nan}
    write_json(tmp_path / "data.json", content)
    assert json.loads((tmp_path / "data.json").read_bytes()) == content | {"value": None}


def test_what_other_processes_write_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / ".partial-update-000003").mkdir()
    (tmp_path / ".partial-average-best-2").mkdir()
    (tmp_path / ".partial-deleting-average-best-2").mkdir()
    (tmp_path / ".partial-results.json").write_text("{")
    with new_file(tmp_path / "dev.jsonl") as file:
        file.write_text("a line\n")
        disk.remove_leftovers(tmp_path, but="average-")
    assert {path.name for path in tmp_path.iterdir()} == {"dev.jsonl", ".partial-average-best-2"}


def test_metrics_are_flushed_by_a_handle_that_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = list[int]()
    monkeypatch.setattr(os, "fsync", lambda handle: modes.append(fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE))
    records = Records(tmp_path)
    records.add({"kind": "training", "update": 1}, {"seconds": 0.5})
    records.flush()
    assert modes == [os.O_RDWR]  # Windows flushes no other


def test_half_a_line_of_timings_is_cut_off(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.mend_timings()
    for update in (1, 2):
        records.add({"kind": "training", "update": update}, {"seconds": 0.5})
    whole = records.timings.read_bytes()
    records.mend_timings()
    assert records.timings.read_bytes() == whole
    records.timings.write_bytes(whole[:-4])
    records.mend_timings()
    assert records.timings.read_bytes() == whole[: whole.index(b"\n") + 1]


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"loss": math.nan, "by": [{"perplexity": math.inf}, (1.5, -math.inf)], "n": 3})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"loss": None, "by": [{"perplexity": None}, [1.5, None]], "n": 3}


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_new_folder_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "update-000001") as folder:
            (folder / "model.json").touch()
            raise error

    with pytest.raises(type(error)):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_a_copy_on_a_full_disk_names_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def copy() -> None:
        with new_folder(tmp_path / "run") as folder, naming(folder / "results.json"):
            shutil.copyfile(archived, folder / "results.json")

    archived = tmp_path / "archive.json"
    archived.write_text("{}", encoding="utf-8")
    for system_copies in (True, False):  # Python names both files, or none
        monkeypatch.setattr(os, "sendfile", full)
        monkeypatch.setattr(shutil, "_USE_CP_SENDFILE", system_copies)
        monkeypatch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(OSError, match="No space left") as caught:
            copy()
        assert caught.value.filename == str(tmp_path / "run" / "results.json")


@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_written_through_a_link_that_somebody_made(tmp_path: Path, is_there: bool) -> None:
    mine = tmp_path / "mine.txt"
    if is_there:
        mine.write_text("mine", encoding="utf-8")
    (run := tmp_path / "run").mkdir()
    (run / ".partial-data.json").symlink_to(mine)
    write_json(run / "data.json", {"a": 1})
    assert json.loads((run / "data.json").read_bytes()) == {"a": 1}
    assert not (run / "data.json").is_symlink()
    assert mine.exists() == is_there
    assert not is_there or mine.read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("leads_somewhere", [True, False])
def test_of_a_folder_on_another_disk_the_link_alone_is_deleted(tmp_path: Path, leads_somewhere: bool) -> None:
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "run"
    folder.mkdir()
    if leads_somewhere:
        elsewhere.mkdir()
        (elsewhere / "model.json").touch()
    for name in ("update-000001", ".partial-deleting-update-000002"):
        (folder / name).symlink_to(elsewhere)
    disk.remove_folder(folder / "update-000001")
    disk.remove_leftovers(folder)
    assert list(folder.iterdir()) == []
    assert not leads_somewhere or (elsewhere / "model.json").exists()


def test_what_a_reader_on_another_machine_has_open_is_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(path: Any, *given: Any, **how: Any) -> None:  # NFS keeps an open file under another name
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(path))

    waiting = tmp_path / ".partial-deleting-average-best-2"
    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", held)
        patch.setattr(os, "unlink", held)
        for text in ("first", "second"):
            with new_folder(tmp_path / "average-best-2") as folder:
                (folder / "model.json").write_text(text)
        disk.remove_folder(tmp_path / "average-best-2")
        assert not (tmp_path / "average-best-2").exists()
        assert waiting.is_dir()
        disk.remove_leftovers(tmp_path)
        (tmp_path / ".partial-run").mkdir()
        with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "run"):  # its name must be free
            pass
    disk.remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


@needs_posix
@pytest.mark.parametrize("what", ["a device", "a FIFO", "a folder"])
def test_what_is_no_file_is_named_and_not_read(tmp_path: Path, what: str) -> None:
    path = tmp_path / "changes.jsonl"
    if what == "a device":
        path.symlink_to("/dev/zero")
    elif what == "a FIFO":
        os.mkfifo(path)
    else:
        path.mkdir()
    of_state = partial(checkpoint._read_tensors, path, "")
    for read in (RunDirectory(tmp_path).recorded_changes, partial(sha256_of, path), of_state):
        with pytest.raises(CheckpointError) as caught:
            read()
        assert str(caught.value) == f"{path}: is {what}, not a file"
