from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ostinato.data.disk import sha256_of
from ostinato.data.lines import bad_line
from ostinato.data.registry import DataAccess, RemoteFile, open_member, read_split_numbers
from ostinato.errors import DataError

if sys.platform != "win32":
    import resource

UPSTREAM = Path(__file__).parents[3] / "shared" / "data" / "upstream"
BODY = bytes(range(256)) * 800
FILE = RemoteFile(
    "someone/some data", "c0ffee", "folder/train.tsv", hashlib.sha256(BODY).hexdigest(), len(BODY), 3, "MIT"
)

Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@contextmanager
def serving(*answers: Answer) -> Iterator[tuple[str, list[str]]]:
    """Serve one answer per request, the last one again and again; yield the address and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            answers[min(len(asked), len(answers)) - 1](self)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def send(body: bytes, *, announced: int | None = None, status: int = 200) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body) if announced is None else announced))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def access_to(base: str | None, cache: Path) -> DataAccess:
    return DataAccess(cache, base, timeout_s=30.0, n_retries=2, pause_s=0.01)


def files_below(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def error_of(access: DataAccess, file: RemoteFile = FILE) -> str:
    with pytest.raises(DataError) as caught:
        access.fetch(file)
    return str(caught.value)


def test_a_download_is_cached_under_its_repository_commit_and_path(tmp_path: Path) -> None:
    with serving(send(BODY)) as (base, asked):
        path = access_to(base, tmp_path).fetch(FILE)
    assert path == tmp_path / "someone/some data/c0ffee/folder/train.tsv"
    assert path.read_bytes() == BODY
    assert asked == ["/someone/some%20data/c0ffee/folder/train.tsv"]
    assert files_below(tmp_path) == [FILE.key]


def test_the_publisher_s_address_names_repository_commit_and_path() -> None:
    assert FILE.address == "https://raw.githubusercontent.com/someone/some%20data/c0ffee/folder/train.tsv"


def test_a_file_without_a_published_hash_has_to_stay_as_it_came_first(tmp_path: Path) -> None:
    unknown = replace(FILE, sha256=None, n_bytes=None)
    with serving(send(BODY), send(BODY[:-1] + b"?"), send(BODY)) as (base, asked):
        access = access_to(base, tmp_path)
        assert access.known_hash(unknown) is None
        message = error_of(access, unknown)
        assert message.startswith(f"{base}/someone/some%20data")
        assert "folder/train.tsv" in message
        assert "--trust" in message
        assert "--mirror" in message
        assert "\n" not in message
        assert (asked, files_below(tmp_path)) == ([], [])
        path = replace(access, trust=True).fetch(unknown)
        assert access.known_hash(unknown) == FILE.sha256
        assert access.fetch(unknown) == path
        assert len(asked) == 1
        path.write_bytes(b"damaged")
        assert access.cached(unknown) is None
        assert f"expected SHA-256 {FILE.sha256}" in error_of(access, unknown)
        assert access.fetch(unknown).read_bytes() == BODY
    assert len(asked) == 3


def test_the_hash_of_a_first_copy_is_read_whatever_ends_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = replace(FILE, sha256=None, n_bytes=None)
    monkeypatch.setattr(Path, "write_text", None)  # which ends lines as the system does, and another one may read it
    with serving(send(BODY)) as (base, _):
        access = access_to(base, tmp_path)
        path = replace(access, trust=True).fetch(unknown)
    stored = path.with_name(f"{path.name}.sha256")
    assert stored.read_bytes() == f"{FILE.sha256}\n".encode()
    stored.write_bytes(f"{FILE.sha256}\r\n".encode())  # as earlier versions wrote it on Windows
    assert access.known_hash(unknown) == FILE.sha256
    assert access.cached(unknown) == path


@pytest.mark.parametrize("damage", [b"", b"\xb2" + b"c" * 63 + b"\n", b"c" * 40 + b"\n", b"<html>"])
def test_a_damaged_hash_of_a_first_copy_is_none(tmp_path: Path, damage: bytes) -> None:
    unknown = replace(FILE, sha256=None, n_bytes=None)
    with serving(send(BODY)) as (base, asked):
        access = access_to(base, tmp_path)
        path = replace(access, trust=True).fetch(unknown)
        path.with_name(f"{path.name}.sha256").write_bytes(damage)
        assert access.known_hash(unknown) is None
        assert access.cached(unknown) is None
        assert "--trust" in error_of(access, unknown)
        assert len(asked) == 1
        assert replace(access, trust=True).fetch(unknown) == path
        assert access.known_hash(unknown) == FILE.sha256


def test_a_file_outside_a_repository_has_an_address_of_its_own(tmp_path: Path) -> None:
    outside = replace(FILE, url="https://data.example/folder/all.tar.gz")
    assert (outside.address, outside.key) == (outside.url, "data.example/folder/all.tar.gz")
    (tmp_path / "mirror/data.example/folder").mkdir(parents=True)
    (tmp_path / "mirror" / outside.key).write_bytes(BODY)
    path = DataAccess(tmp_path / "cache", str(tmp_path / "mirror")).fetch(outside)
    assert path == tmp_path / "cache" / outside.key


def test_a_cached_file_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(send(BODY)) as (base, asked):
        access_to(base, tmp_path).fetch(FILE)
        access_to(base, tmp_path).fetch(FILE)
        assert len(asked) == 1
    monkeypatch.setattr(socket, "socket", None)
    assert access_to(None, tmp_path).fetch(FILE).read_bytes() == BODY


def test_a_damaged_cached_file_is_fetched_again(tmp_path: Path) -> None:
    with serving(send(BODY)) as (base, asked):
        path = access_to(base, tmp_path).fetch(FILE)
        path.write_bytes(BODY[:-1] + b"?")
        assert access_to(base, tmp_path).cached(FILE) is None
        assert access_to(base, tmp_path).fetch(FILE).read_bytes() == BODY
        assert len(asked) == 2


def test_an_interrupted_download_is_tried_again(tmp_path: Path) -> None:
    with serving(send(BODY[:1000], announced=len(BODY)), send(BODY)) as (base, asked):
        assert access_to(base, tmp_path).fetch(FILE).read_bytes() == BODY
    assert len(asked) == 2
    assert files_below(tmp_path) == [FILE.key]


def test_a_download_that_is_always_cut_off_leaves_nothing(tmp_path: Path) -> None:
    with serving(send(BODY[:1000], announced=len(BODY))) as (base, asked):
        message = error_of(access_to(base, tmp_path))
    assert len(asked) == 3
    assert f"{base}/someone/some%20data" in message
    assert f"1000 of {len(BODY)} bytes" in message
    assert "--mirror" in message
    assert files_below(tmp_path) == []


def test_a_stalled_download_ends_after_the_timeout(tmp_path: Path) -> None:
    released = threading.Event()

    def stall(handler: BaseHTTPRequestHandler) -> None:
        send(BODY[:10], announced=len(BODY))(handler)
        handler.wfile.flush()
        released.wait(60)

    with serving(stall) as (base, _):
        message = error_of(replace(access_to(base, tmp_path), n_retries=0, timeout_s=0.3))
        released.set()
    assert "timed out" in message
    assert "1 attempt:" in message
    assert files_below(tmp_path) == []


def test_a_connection_that_closes_before_the_headers_is_an_interruption(tmp_path: Path) -> None:
    with serving(lambda handler: None, send(BODY)) as (base, asked):
        assert access_to(base, tmp_path).fetch(FILE).read_bytes() == BODY
    assert len(asked) == 2


def test_a_missing_file_is_an_error_at_once(tmp_path: Path) -> None:
    with serving(send(b"nothing here", status=404)) as (base, asked):
        message = error_of(access_to(base, tmp_path))
    assert len(asked) == 1
    assert f"{base}/someone/some%20data/c0ffee/folder/train.tsv: HTTP status 404" in message
    assert "--mirror" in message
    assert files_below(tmp_path) == []


def test_a_server_in_trouble_is_asked_again(tmp_path: Path) -> None:
    with serving(send(b"", status=503), send(BODY)) as (base, asked):
        assert access_to(base, tmp_path).fetch(FILE).read_bytes() == BODY
    assert len(asked) == 2


@pytest.mark.parametrize("wrong", [BODY[:-1] + b"?", BODY[:-1], b""])
def test_other_bytes_name_the_file_and_both_hashes(tmp_path: Path, wrong: bytes) -> None:
    with serving(send(wrong)) as (base, asked):
        message = error_of(access_to(base, tmp_path))
    assert len(asked) == 1
    assert "folder/train.tsv" in message
    assert f"expected {len(BODY)} bytes with SHA-256 {FILE.sha256}" in message
    assert f"got {len(wrong)} bytes with {hashlib.sha256(wrong).hexdigest()}" in message
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("sha256", [FILE.sha256, None])
@pytest.mark.parametrize("page", [b"<html>log in first</html>", b"\xef\xbb\xbf\n <!DocType HTML><p>log in"])
def test_a_web_page_in_the_place_of_a_file_is_refused(tmp_path: Path, page: bytes, sha256: str | None) -> None:
    unknown = replace(FILE, sha256=sha256, n_bytes=None)
    with serving(send(page)) as (base, _):
        message = error_of(replace(access_to(base, tmp_path / "cache"), trust=True), unknown)
    assert "a web page came in the place of folder/train.tsv" in message
    original = tmp_path / "mirror" / FILE.key
    original.parent.mkdir(parents=True)
    original.write_bytes(page)
    assert "a web page" in error_of(access_to(str(tmp_path / "mirror"), tmp_path / "cache"), unknown)
    assert files_below(tmp_path / "cache") == []


def test_what_calls_itself_a_web_page_is_refused_but_for_files_that_are_one(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "text/html; charset=utf-8")
        handler.end_headers()
        handler.wfile.write(BODY)

    with serving(answer) as (base, _):
        access = access_to(base, tmp_path)
        assert "a web page" in error_of(access)
        assert files_below(tmp_path) == []
        assert access.fetch(replace(FILE, path="page.html")).read_bytes() == BODY


def test_a_download_stops_beyond_the_known_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.data.registry._CHUNK", 1000)
    ended = threading.Event()

    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(BODY)
        except OSError:
            ended.set()

    with serving(endless) as (base, asked):
        message = error_of(access_to(base, tmp_path))
        assert ended.wait(5)
        assert f"more than the {len(BODY)} bytes" in message
        monkeypatch.setattr("ostinato.data.registry._MOST_BYTES", 5000)
        unknown = replace(FILE, sha256=None, n_bytes=None)
        assert "more than the 5000 bytes" in error_of(replace(access_to(base, tmp_path), trust=True), unknown)
    assert len(asked) == 2
    assert files_below(tmp_path) == []


def test_a_folder_is_the_user_s_own_copy_and_needs_no_trust(tmp_path: Path) -> None:
    original = tmp_path / "mirror" / FILE.key
    original.parent.mkdir(parents=True)
    original.write_bytes(BODY)
    access = access_to(str(tmp_path / "mirror"), tmp_path / "cache")
    unknown = replace(FILE, sha256=None, n_bytes=None)
    assert access.fetch(unknown).read_bytes() == BODY
    assert access.known_hash(unknown) == FILE.sha256


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("damage", ["cut off", "other bytes", "no archive"])
def test_a_broken_archive_is_one_line_that_says_what_to_delete(tmp_path: Path, damage: str, is_stored: bool) -> None:
    archive, text = tmp_path / "all.tar.gz", tmp_path / "text"
    text.write_bytes(random.Random(0).randbytes(100_000))
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(text, "text")
    whole = archive.read_bytes()
    cut, other = whole[:50_000], whole[:50_000] + b"\xff" * 60_000
    archive.write_bytes({"cut off": cut, "other bytes": other, "no archive": b"nothing"}[damage])
    stored = "0" * 64 if is_stored else f"{'0' * 64}  all.tar.gz"
    archive.with_name("all.tar.gz.sha256").write_text(f"{stored}\n")
    with pytest.raises(DataError, match="not a sound tar archive") as caught, open_member(archive, "text") as stream:
        stream.read()
    message = str(caught.value)
    assert message.startswith(f"{archive}: ")
    assert "\n" not in message
    assert ("delete it and all.tar.gz.sha256" in message) is is_stored
    assert ("delete it" in str(bad_line(archive, 3, "no tab"))) is is_stored


@pytest.mark.parametrize("form", ["gz", "bz2", "xz", ""])
def test_an_archive_that_is_damaged_anywhere_is_its_content_or_one_line(tmp_path: Path, form: str) -> None:
    archive, text, draws = tmp_path / "all.tar", tmp_path / "text", random.Random(0)
    text.write_bytes(draws.randbytes(30_000))
    with tarfile.open(archive, f"w:{form}") as tar:
        tar.add(text, "text")
    whole, lines = archive.read_bytes(), set()
    for number in range(60):
        place = draws.randrange(len(whole))
        other = whole[:place] + bytes([whole[place] ^ 1 << draws.randrange(8)]) + whole[place + 1 :]
        archive.write_bytes(whole[:place] if number % 2 else other)
        try:
            with open_member(archive, "text") as stream:
                stream.read()
        except DataError as error:
            lines.add(str(error))
    assert lines
    assert all(line.startswith(f"{archive}: ") and "\n" not in line for line in lines)


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"aIdxs": 3}', '{"aIdxs": ["x"]}', "[" * 100_000])
def test_damaged_lists_of_splits_in_an_archive_name_it_and_the_file(tmp_path: Path, content: str) -> None:
    archive, lists = tmp_path / "all.tar", tmp_path / "mcd1.json"
    lists.write_text(content, encoding="utf-8")
    with tarfile.open(archive, "w") as tar:
        tar.add(lists, "splits/mcd1.json")
    with pytest.raises(DataError, match=r"^\S+all\.tar: splits/mcd1\.json: is damaged: .*"):
        read_split_numbers(archive, "splits/mcd1.json", ["a"])


def test_a_refused_connection_names_the_address_and_the_mirror_option(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{unused.getsockname()[1]}"
    message = error_of(access_to(base, tmp_path))
    assert message.startswith(base)
    assert "3 attempts" in message
    assert "refused" in message
    assert "--mirror" in message


@pytest.mark.parametrize("base", ["http://127.0.0.1:port", "http://a\tb"])
def test_an_unusable_mirror_address_is_a_named_error(tmp_path: Path, base: str) -> None:
    message = error_of(replace(access_to(base, tmp_path), n_retries=0))
    assert message.startswith(base.replace("\t", "\\t"))
    assert files_below(tmp_path) == []


def test_threads_that_fetch_the_same_file_all_get_it_whole(tmp_path: Path) -> None:
    def slowly(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        for start in range(0, len(BODY), 50_000):
            handler.wfile.write(BODY[start : start + 50_000])
            time.sleep(0.01)

    got: list[bytes] = []
    with serving(slowly) as (base, asked):
        access = access_to(base, tmp_path)
        threads = [threading.Thread(target=lambda: got.append(access.fetch(FILE).read_bytes())) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert got == [BODY] * 4
    assert 1 <= len(asked) <= 4
    assert files_below(tmp_path) == [FILE.key]


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path) -> None:
    folder = (tmp_path / FILE.key).parent
    folder.mkdir(parents=True)
    old, new = folder / ".train.tsv.1-1.part", folder / ".train.tsv.2-2.part"
    for part in (old, new):
        part.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 24 * 3600,) * 2)
    with serving(send(BODY)) as (base, _):
        access_to(base, tmp_path).fetch(FILE)
    assert not old.exists()
    assert new.exists()


def test_a_folder_can_be_the_mirror(tmp_path: Path) -> None:
    original = tmp_path / "mirror" / FILE.key
    original.parent.mkdir(parents=True)
    original.write_bytes(BODY)
    path = DataAccess(tmp_path / "cache", str(tmp_path / "mirror")).fetch(FILE)
    assert path.read_bytes() == BODY
    original.write_bytes(b"other")
    other = DataAccess(tmp_path / "cache_2", str(tmp_path / "mirror"))
    assert f"{original}: not the published file" in error_of(other)
    assert files_below(tmp_path / "cache_2") == []


def test_a_file_that_the_mirror_lacks_is_named(tmp_path: Path) -> None:
    message = error_of(DataAccess(tmp_path, str(tmp_path / "nowhere")))
    assert message.startswith(str(tmp_path / "nowhere" / FILE.key))
    assert "OSTINATO_MIRROR" in message


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file where the folder should be")
    message = error_of(access_to("http://127.0.0.1:9", blocked))
    assert str(blocked) in message
    assert "OSTINATO_CACHE" in message


def test_the_environment_names_cache_and_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path))
    monkeypatch.setenv("OSTINATO_MIRROR", "/there")
    assert DataAccess.default() == DataAccess(tmp_path / "data", "/there")
    assert DataAccess.default("/here").mirror == "/here"
    monkeypatch.setenv("OSTINATO_MIRROR", "")
    assert DataAccess.default().mirror is None


def test_without_the_environment_the_platform_s_cache_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OSTINATO_CACHE", raising=False)
    for platform, variable in (("linux", "XDG_CACHE_HOME"), ("win32", "LOCALAPPDATA")):
        monkeypatch.setattr("sys.platform", platform)
        monkeypatch.setenv(variable, str(tmp_path / platform))
        assert DataAccess.default().cache == tmp_path / platform / "ostinato" / "data"
    monkeypatch.setattr("sys.platform", "darwin")
    assert DataAccess.default().cache == Path.home() / "Library" / "Caches" / "ostinato" / "data"


@pytest.mark.skipif(not UPSTREAM.exists(), reason="the copy of the published files is not here")
def test_published_files_are_fetched_from_a_mirror_folder(tmp_path: Path) -> None:
    entries = [e for e in json.loads((UPSTREAM / "MANIFEST.json").read_text()) if e["bytes"] < 40_000][:10]
    assert len(entries) == 10
    access = DataAccess(tmp_path, str(UPSTREAM))
    for entry in entries:
        file = RemoteFile(entry["repo"], entry["commit"], entry["path"], entry["sha256"], entry["bytes"], None, "")
        assert sha256_of(access.fetch(file)) == entry["sha256"]
    assert len(files_below(tmp_path)) == 10


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of processes")
def test_a_cache_that_is_full_is_named_and_not_the_mirror(tmp_path: Path) -> None:
    (original := tmp_path / "mirror" / FILE.key).parent.mkdir(parents=True)
    original.write_bytes(BODY)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        message = error_of(DataAccess(tmp_path / "cache", str(tmp_path / "mirror")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    place = tmp_path / "cache" / FILE.key
    assert message == f"{place}: cannot be written (File too large); OSTINATO_CACHE names another folder"
    assert files_below(tmp_path / "cache") == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs FIFOs")
def test_a_fifo_in_a_mirror_is_named_and_not_waited_for(tmp_path: Path) -> None:
    (original := tmp_path / "mirror" / FILE.key).parent.mkdir(parents=True)
    os.mkfifo(original)
    message = error_of(DataAccess(tmp_path / "cache", str(tmp_path / "mirror")))
    assert message == f"{original}: is a FIFO, not a file"
