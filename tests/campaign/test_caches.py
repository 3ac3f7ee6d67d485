"""Caches that others have written to, and those that were damaged at many points."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from damage import NO_FILES, OTHER_CONTENTS, flips, put, put_no_file, truncations

from ostinato.data.disk import sha256_of, stored_hash_path
from ostinato.data.registry import DataAccess, RemoteFile
from ostinato.errors import DataError
from ostinato.kernels.native import library

pytestmark = pytest.mark.slow
needs_kernels = pytest.mark.skipif(library() is None, reason="no C compiler here")

PLANTED = """
#include <fcntl.h>
__attribute__((constructor)) static void planted(void) { creat("MARK", 0600); }
"""
BODY = bytes(range(256)) * 100
FILE = RemoteFile("someone/data", "c0ffee", "train.tsv", hashlib.sha256(BODY).hexdigest(), len(BODY), 3, "MIT")


class Kernels:
    """A process of its own with a cache folder, see kernels_again.py; what kills it is seen here.

    Its compiler copies a library that was compiled once, so that a hundred are made in seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.cache = folder / "cache"
        made, compiler = folder / "made.so", folder / "cc"
        environment = os.environ | {"OSTINATO_CACHE": str(folder / "first"), "OSTINATO_NATIVE": "1"}
        self._process = self._started(environment)
        assert self.again().startswith("True")
        self.close()
        shutil.copy(next((folder / "first").rglob("*.so")), made)
        compiler.write_text(f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {made} "$2"\n')
        compiler.chmod(0o700)
        self._process = self._started(environment | {"OSTINATO_CACHE": str(self.cache), "CC": str(compiler)})
        assert self.again().startswith("True")
        self.folder = self.cache / "kernels"
        (self.path,), (self.note,) = self.folder.glob("*.so"), self.folder.glob("*.json")
        self.whole, self.noted = self.path.read_bytes(), self.note.read_bytes()

    @staticmethod
    def _started(environment: dict[str, str]) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("kernels_again.py")
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, str(script)], stdin=pipe, stdout=pipe, text=True, env=environment)

    def again(self) -> str:
        """Take the library from the cache again, and return whether there is one, and what is said of it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("again\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        assert said.startswith(("True", "False")), said
        return said

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[Kernels]:
    found = Kernels(tmp_path)
    yield found
    found.close()


def say(capsys: pytest.CaptureFixture[str], n_cases: int, least: int) -> None:
    with capsys.disabled():
        print(f"{n_cases} cases")
    assert n_cases >= least


@needs_kernels
def test_a_library_or_note_damaged_anywhere_is_made_again(kernels: Kernels, capsys: pytest.CaptureFixture[str]) -> None:
    n_cases = 0
    for path, content, n in ((kernels.path, kernels.whole, 40), (kernels.note, kernels.noted, 10)):
        for what, damaged in [*truncations(content, n), *flips(content, n, seed=n), *OTHER_CONTENTS.items()]:
            put(path, damaged)
            said = kernels.again()
            assert said.startswith(f"True compiled, {kernels.folder}"), (path.name, what, said)
            assert (kernels.path.read_bytes(), kernels.note.read_bytes()) == (kernels.whole, kernels.noted), what
            n_cases += 1
        for what in NO_FILES:
            put_no_file(path, what)
            assert "compiled" in kernels.again() or what == "a folder", what
            put(path, content)
            n_cases += 1
    assert not list(kernels.folder.glob(".making-*"))
    say(capsys, n_cases, 120)


@needs_kernels
def test_a_planted_library_is_never_loaded_from_where_others_may_write(
    kernels: Kernels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, source, planted = tmp_path / "mark", tmp_path / "planted.c", tmp_path / "planted.so"
    source.write_text(PLANTED.replace("MARK", str(mark)))
    compiler = next(found for name in ("gcc", "cc", "clang") if (found := shutil.which(name)))
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(planted)], check=True)
    note = json.dumps({"sha256": sha256_of(planted)}).encode()

    def plant() -> None:
        put(kernels.path, planted.read_bytes())
        put(kernels.note, note)
        for path, mode in (
            (kernels.path, 0o600),
            (kernels.note, 0o600),
            (kernels.cache, 0o700),
            (kernels.folder, 0o700),
        ):
            path.chmod(mode)
            if os.getuid() == 0:
                os.chown(path, 0, 0)

    places = [kernels.cache, kernels.folder, kernels.path, kernels.note]
    n_cases = 0
    for place in places:
        own = stat.S_IMODE(place.stat().st_mode)
        for more in (0o002, 0o022, 0o020, 0o007, 0o077):
            if more & 0o002 == 0 and os.getuid() != 0:
                continue  # a group of this user alone may write
            plant()
            place.chmod(own | more)
            if more & 0o002 == 0:
                os.chown(place, 0, 12345)
            kernels.again()
            assert not mark.exists(), (place, oct(more))
            n_cases += 1
        if os.getuid() == 0:
            plant()
            os.chown(place, 12345, 12345)
            kernels.again()
            assert not mark.exists(), (place, "somebody else's")
            n_cases += 1
    plant()
    kernels.again()
    assert mark.exists()  # what is planted does run where nobody else may have put it: the other cases show something
    say(capsys, n_cases, 12)


@needs_kernels
def test_a_library_of_another_hash_or_without_our_functions_is_not_used(
    kernels: Kernels, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = kernels.whole + b"more"
    for content in (other, kernels.whole[:-1] + b"\1", b"\x7fELF" + kernels.whole[4:-8]):
        put(kernels.path, content)
        assert kernels.again().startswith("True")
        assert kernels.path.read_bytes() == kernels.whole
    say(capsys, 3, 3)


def test_a_damaged_copy_in_the_cache_is_fetched_again_or_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    original = tmp_path / "mirror" / FILE.key
    original.parent.mkdir(parents=True)
    original.write_bytes(BODY)
    n_cases = 0
    for file in (FILE, replace(FILE, sha256=None, n_bytes=None)):
        access = DataAccess(tmp_path / f"cache-{file.sha256}", str(tmp_path / "mirror"))
        lonely = replace(access, mirror=str(tmp_path / "nothing"))
        cached = access.fetch(file)
        for what, damaged in [*truncations(BODY, 15), *flips(BODY, 20, seed=1), *OTHER_CONTENTS.items()]:
            put(cached, damaged)
            assert access.cached(file) is None, what
            with pytest.raises(DataError) as caught:
                lonely.fetch(file)
            assert "\n" not in str(caught.value)
            assert access.fetch(file).read_bytes() == BODY, what
            n_cases += 1
        for what in NO_FILES:
            put_no_file(cached, what)
            assert access.cached(file) is None, what
            try:
                assert access.fetch(file).read_bytes() == BODY, what
            except DataError as error:
                assert "\n" not in str(error)  # noqa: PT017
            put(cached, BODY)
            n_cases += 1
    say(capsys, n_cases, 100)


def test_a_damaged_copy_in_a_mirror_never_enters_the_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = tmp_path / "mirror" / FILE.key
    original.parent.mkdir(parents=True)
    access = DataAccess(tmp_path / "cache", str(tmp_path / "mirror"))
    n_cases = 0
    for what, damaged in [*truncations(BODY, 15), *flips(BODY, 20, seed=2), *OTHER_CONTENTS.items()]:
        put(original, damaged)
        with pytest.raises(DataError) as caught:
            access.fetch(FILE)
        assert "\n" not in str(caught.value)
        assert not [path for path in access.cache.rglob("*") if path.is_file()], what
        n_cases += 1
    say(capsys, n_cases, 45)


def test_a_damaged_hash_of_a_first_copy_is_no_hash(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    original = tmp_path / "mirror" / FILE.key
    original.parent.mkdir(parents=True)
    original.write_bytes(BODY)
    access = DataAccess(tmp_path / "cache", str(tmp_path / "mirror"))
    remote = replace(access, mirror="http://127.0.0.1:9", n_retries=0)
    file = replace(FILE, sha256=None, n_bytes=None)
    stored = stored_hash_path(access.fetch(file))
    whole = stored.read_bytes()
    n_cases = 0
    for what, damaged in [*truncations(whole[:-1], 6), *flips(whole[:-1], 20, seed=3), *OTHER_CONTENTS.items()]:
        put(stored, damaged)
        assert access.cached(file) is None, what
        with pytest.raises(DataError) as caught:
            remote.fetch(file)
        assert "\n" not in str(caught.value)
        try:
            assert access.fetch(file).read_bytes() == BODY, what
        except DataError as error:
            assert "\n" not in str(error)  # noqa: PT017
        put(stored, whole)
        n_cases += 1
    say(capsys, n_cases, 40)
