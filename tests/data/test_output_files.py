"""What a user names to be written: new and regular, or replaced where that was asked for."""

from __future__ import annotations

import errno
import importlib.util
import os
import stat
import sys
from pathlib import Path

import pytest

from ostinato.data import output_files
from ostinato.data.output_files import check_new_folder, check_output, new_file, new_output_folder, write_new_text
from ostinato.errors import CheckpointError, ConfigError
from ostinato.system_errors import naming


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs FIFOs and links")


def test_a_new_file_appears_whole_with_the_permissions_of_any_other(tmp_path: Path) -> None:
    path, other = tmp_path / "new" / "a.svg", tmp_path / "other"
    with new_file(path) as partial:
        partial.write_text("x", encoding="utf-8")
        assert (partial.suffix, path.exists()) == (".svg", False)
    other.touch()
    assert path.read_text(encoding="utf-8") == "x"
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)
    assert path.stat().st_nlink == 1
    assert names(path.parent) == ["a.svg"]


def test_a_file_that_is_there_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a: is there already; --overwrite .* replaces it$"):
        write_new_text(path, "x")
    with pytest.raises(ConfigError, match="was not written by this command"):
        write_new_text(path, "x", overwrite=True, is_ours=lambda file: file.read_text(encoding="utf-8") == "ours")
    assert path.read_text(encoding="utf-8") == "mine"
    write_new_text(path, "x", overwrite=True)
    assert path.read_text(encoding="utf-8") == "x"
    assert names(tmp_path) == ["a"]


@needs_posix
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [("link", "a link"), ("broken", "a link"), ("fifo", "a FIFO"), ("folder", "a folder"), ("device", "a device")],
)
def test_what_is_no_plain_file_is_refused_in_one_line(tmp_path: Path, kind: str, reason: str, overwrite: bool) -> None:
    path, target = tmp_path / "a", tmp_path / "target"
    if kind == "link":
        target.write_text("mine", encoding="utf-8")
    if kind in ("link", "broken"):
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path = Path("/dev/full")
        if not path.is_char_device():
            pytest.skip("there is no /dev/full")
    before = path.lstat()
    with pytest.raises(ConfigError) as error:
        write_new_text(path, "x", overwrite=overwrite)
    assert str(error.value) == f"{path}: is {reason}: only a plain file is written; name another path"
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert target.exists() == (kind == "link")


@needs_posix
@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_appeared_meanwhile_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def no_links(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "no hard links here")

    if not links:
        monkeypatch.setattr(output_files.os, "link", no_links)
    path = tmp_path / "a"
    with pytest.raises(ConfigError, match="is there already"), new_file(path):
        path.write_text("theirs", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == "theirs"
    assert names(tmp_path) == ["a"]
    write_new_text(tmp_path / "b", "x")
    assert (tmp_path / "b").read_text(encoding="utf-8") == "x"
    linked = tmp_path / "c"
    with pytest.raises(ConfigError, match="is a link"), new_file(linked, overwrite=True):
        linked.symlink_to(path)
    assert path.read_text(encoding="utf-8") == "theirs"


@pytest.mark.parametrize("code", [errno.EINVAL, 45])
def test_systems_say_in_other_words_that_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(code, "no hard links here")

    monkeypatch.setattr(errno, "ENOTSUP", 45)  # of macOS, where it is not EOPNOTSUPP
    spec = importlib.util.spec_from_file_location("output_files_of_macos", output_files.__file__)
    assert spec is not None
    assert spec.loader is not None
    there = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(there)
    monkeypatch.setattr(os, "link", no_links)
    there.write_new_text(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "x"
    assert names(tmp_path) == ["a"]


def test_an_error_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), new_file(tmp_path / "a") as partial:
        partial.write_text(str(1 // 0), encoding="utf-8")
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_told_although_the_file_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    check_output(tmp_path / "a", overwrite=True)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="cannot be written: no permission"):
        check_output(tmp_path / "a", overwrite=True)


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for path in (tmp_path / "f" / "a", tmp_path / "f" / "b" / "a"):
        with pytest.raises(ConfigError, match="cannot be written"):
            check_output(path)


@needs_posix
def test_what_a_killed_process_left_goes_and_what_another_one_writes_stays(tmp_path: Path) -> None:
    left, mine = tmp_path / f".partial-{'0' * 16}.jsonl", tmp_path / ".partial-notes.jsonl"
    left.write_text("half a li", encoding="utf-8")
    mine.touch()
    with new_file(tmp_path / "a.jsonl") as first:
        assert not left.exists()
        write_new_text(tmp_path / "b.jsonl", "b")
        first.write_text("a", encoding="utf-8")
    assert sorted(names(tmp_path)) == [mine.name, "a.jsonl", "b.jsonl"]


def test_a_new_folder_appears_whole_and_what_is_there_by_then_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "models" / "mine"
    with new_output_folder(path) as partial:
        (partial / "a").write_text("x", encoding="utf-8")
        assert not path.exists()
    assert (names(path.parent), names(path)) == (["mine"], ["a"])
    with pytest.raises(CheckpointError, match="is there already, and nothing is overwritten: name a new folder"):
        check_new_folder(path)

    def fill_twice() -> None:
        with new_output_folder(tmp_path / "b") as first:
            (first / "a").write_text("first", encoding="utf-8")
            with new_output_folder(tmp_path / "b") as second:
                (second / "a").write_text("second", encoding="utf-8")

    with pytest.raises(CheckpointError, match=r"b: is there already, and nothing is overwritten: name a new folder$"):
        fill_twice()
    assert (tmp_path / "b" / "a").read_text(encoding="utf-8") == "second"
    (empty := tmp_path / "empty").mkdir()
    empty.chmod(0o750)
    with new_output_folder(empty) as partial:
        (partial / "a").touch()
    assert (names(empty), empty.stat().st_mode & 0o777) == (["a"], 0o750)
    assert sorted(names(tmp_path)) == ["b", "empty", "models"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_folder_that_fails_leaves_nothing_and_errors_name_it(tmp_path: Path, error: BaseException) -> None:
    def fill() -> None:
        with new_output_folder(path) as partial, naming(partial / "model.safetensors"):
            (partial / "config.json").touch()
            raise error

    path = tmp_path / "mine"
    with pytest.raises(type(error)):
        fill()
    assert names(tmp_path) == []
    assert not isinstance(error, OSError) or error.filename == str(path / "model.safetensors")


@needs_posix
def test_folders_of_killed_processes_go_and_what_another_one_fills_stays(tmp_path: Path) -> None:
    left = tmp_path / f".partial-{'0' * 16}"
    left.mkdir()
    (left / "model.safetensors").touch()
    with new_output_folder(tmp_path / "a") as first:
        assert not left.exists()
        with new_output_folder(tmp_path / "b"):
            assert first.is_dir()
        write_new_text(tmp_path / "c", "c")
        assert first.is_dir()
    assert sorted(names(tmp_path)) == ["a", "b", "c"]
