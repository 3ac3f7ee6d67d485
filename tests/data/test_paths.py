from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.paths import find_files, name_of
from ostinato.data.sources import read_examples
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.registry import build_task


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b.txt", "a.txt", "deep/er/c.txt", ".hidden/d.txt", "deep/.e.txt"):
        path = tmp_path / "texts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name} says so\n", encoding="utf-8")
    return tmp_path / "texts"


def texts(paths: str | list[str]) -> list[str]:
    return [example.target for example in read_examples(paths, DataConfig(), "language_model")]


def names(found: list[Path], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in found]


def test_a_folder_is_all_its_files_by_path_but_hidden_ones(folder: Path) -> None:
    assert names(find_files(folder), folder) == ["a.txt", "b.txt", "deep/er/c.txt"]
    assert texts(str(folder)) == ["a.txt says so", "b.txt says so", "deep/er/c.txt says so"]


def test_patterns_name_files_in_order_of_their_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names(find_files(folder / "*.txt"), folder) == ["a.txt", "b.txt"]
    assert names(find_files(folder / "**" / "[bc].txt"), folder) == ["b.txt", "deep/er/c.txt"]
    monkeypatch.chdir(folder)
    assert find_files("?.txt") == [Path("a.txt"), Path("b.txt")]
    assert texts(["b.txt", "deep", "a*"]) == ["b.txt says so", "deep/er/c.txt says so", "a.txt says so"]


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("one\n", encoding="utf-8")
    (tmp_path / "a1.txt").write_text("other\n", encoding="utf-8")
    assert texts(str(tmp_path / "a[1].txt")) == ["one"]


def test_short_names_are_those_of_files_or_of_folders(folder: Path) -> None:
    given = [folder / "a.txt", folder, folder / "*.txt", folder / "deep" / "**" / "x*", "nowhere/x.tar.gz"]
    assert [name_of(one) for one in given] == ["a", "texts", "texts", "deep", "x"]


def test_a_name_does_not_change_when_a_path_becomes_absolute(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for given in ("*.txt", "**/*.txt", ".", "deep", "deep/*", "a.txt"):
        assert name_of(given) == name_of(Path(given).absolute()), given
    assert [name_of(one) for one in ("*.txt", ".", "deep/*")] == ["texts", "texts", "deep"]


def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path: Path) -> None:
    inside = tmp_path / "exp[1]"
    inside.mkdir()
    (tmp_path / "exp1").mkdir()
    for place in (inside, tmp_path / "exp1"):
        (place / "a.txt").write_text(f"of {place.name}\n", encoding="utf-8")
    assert texts(str(inside / "*.txt")) == ["of exp[1]"]
    assert name_of(inside / "*.txt") == "exp[1]"
    with pytest.raises(DataError, match=r"b\.txt: no such file; the nearest name there is a\.txt"):
        texts(str(inside / "b.txt"))


def test_a_pattern_without_files_and_an_empty_folder_are_named_with_their_setting(folder: Path) -> None:
    (folder / "empty").mkdir()
    ref = TaskRef.model_validate({"kind": "files", "model_kind": "language_model"})
    data = DataConfig(train=str(folder / "*.jsonl"), dev=str(folder / "empty"), test=str(folder / "a.txt"))
    with pytest.raises(ConfigError) as caught:
        build_task(ref, data)
    assert str(caught.value).splitlines() == [
        f"data.train is '{folder}/*.jsonl': no file matches this pattern",
        f"data.dev is '{folder}/empty': the folder holds no files",
    ]
    with pytest.raises(DataError, match=r"\*\.jsonl: no file matches this pattern"):
        texts(str(folder / "*.jsonl"))


def test_files_of_several_kinds_are_named_with_what_to_do(folder: Path) -> None:
    (folder / "x.jsonl").write_text('{"text": "x"}\n', encoding="utf-8")
    with pytest.raises(DataError) as caught:
        texts(str(folder))
    assert "needs files of one kind, not ['json', 'text']: x.jsonl (json), a.txt (text); name those" in str(
        caught.value
    )


def test_a_folder_of_texts_is_no_parallel_text(tmp_path: Path) -> None:
    for name in ("a.en", "b.de"):
        (tmp_path / name).write_text("one\n", encoding="utf-8")
    with pytest.raises(DataError, match="plain text has no targets"):
        list(read_examples(str(tmp_path), DataConfig()))
    listed = [str(tmp_path / "a.en"), str(tmp_path / "b.de")]
    assert [example.source for example in read_examples(listed, DataConfig())] == ["one"]


def test_the_origin_of_examples_in_folders_and_patterns_is_the_folder(folder: Path) -> None:
    settings = {"kind": "files", "model_kind": "language_model", "origin_column": "set"}
    data = DataConfig(train=[str(folder / "deep"), str(folder / "*.txt"), str(folder / "a.txt")])
    task = build_task(TaskRef.model_validate(settings), data)
    assert [example.columns["set"] for example in task.examples("train")] == ["deep", "texts", "texts", "a"]


def test_patterns_leave_out_what_is_hidden_unless_they_name_it(folder: Path) -> None:
    assert names(find_files(folder / "**" / "*.txt"), folder) == ["a.txt", "b.txt", "deep/er/c.txt"]
    assert names(find_files(folder / "deep" / ".*.txt"), folder) == ["deep/.e.txt"]


def test_folders_that_are_links_are_entered_once(folder: Path) -> None:
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    (outside / "f.txt").write_text("far away\n", encoding="utf-8")
    (folder / "linked").symlink_to(outside)
    (folder / "linked again").symlink_to(outside)
    (outside / "back").symlink_to(folder)
    found = names(find_files(folder), folder)
    assert [name for name in found if not name.startswith("linked")] == ["a.txt", "b.txt", "deep/er/c.txt"]
    assert len([name for name in found if name.endswith("f.txt")]) == 1


@pytest.mark.parametrize("given", ["", "*.txt", "**/*.txt"])
def test_a_link_to_what_is_not_there_is_named_unless_it_is_hidden(folder: Path, given: str) -> None:
    (folder / ".lock.txt").symlink_to("nowhere")
    assert find_files(folder / given)
    (folder / "z.txt").symlink_to("nowhere")
    reason = "is a link to what is not there: fetch it, or remove the link"
    with pytest.raises(DataError, match=f"^{re.escape(str(folder))}/z.txt: {reason}$"):
        find_files(folder / given)


def test_a_folder_that_may_not_be_read_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refusing(path: str) -> Any:
        if Path(path).name == "er":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(DataError, match=f"^{re.escape(str(folder))}/deep/er: cannot be read: Permission denied$"):
        find_files(folder)
