"""Published files: their addresses and hashes, their download, and a cache of those that were checked.

A file has an address that always means the same bytes (repository, commit, path) and their SHA-256. A file enters the
cache when its size and hash are right, and its hash is checked again whenever it is read, so that a damaged disk or an
interrupted download cannot change a result. `DataAccess.fetch` alone opens sockets.

Some large files could not be downloaded when their address was written down here: they have no SHA-256. Such a file is
only downloaded where the user trusts what comes (`--trust`), or copied from a folder of the user's own. The hash of
that first copy is stored beside it, and every later one has to be the same; the task that reads the file checks its
content (number of rows, and wherever there is a rule for the targets, every target).
"""

from __future__ import annotations

import http.client
import lzma
import os
import tarfile
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path
from typing import IO, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from ostinato.data.disk import check_plain, json_object, reading, refetch_hint, sha256_of, stored_hash, stored_hash_path
from ostinato.errors import DataError, MissingFileError, on_one_line, see
from ostinato.folders import cache_folder

_BASE = "https://raw.githubusercontent.com"
_CHUNK = 1 << 20
_MOST_BYTES = 4 << 30
"""Where the size of a file is not known: more than that is none of the published files."""
_STALE_AFTER_S = 24 * 3600.0
_HEAD = 1024
_MIRROR_HINT = (
    "without a network, use --mirror DIR_OR_URL (or OSTINATO_MIRROR): a copy laid out as <owner>/<repo>/<commit>/<path>"
    + see("tasks")
)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One published file.

    Args:
        repo: owner and name, ``owner/name``.
        commit: full hash of the commit, so that the address always means the same bytes.
        path: path inside the repository.
        sha256: of the bytes, in lower-case hexadecimal; None: not known, see above.
        n_bytes: their number; None: not known.
        n_rows: examples it holds; None where it holds none, or where the task counts them otherwise.
        licence: what the publisher states.
        url: address of a file outside the repository; the repository is then the one that links to it.
    """

    repo: str
    commit: str
    path: str
    sha256: str | None
    n_bytes: int | None
    n_rows: int | None
    licence: str
    url: str | None = None

    @property
    def key(self) -> str:
        """Return the place of the file below a base address, a mirror or a cache.

        ``owner/name/commit/path``, or for a file with an address of its own ``host/path``.
        """
        return self.url.partition("://")[2] if self.url else f"{self.repo}/{self.commit}/{self.path}"

    @property
    def address(self) -> str:
        """Return where the file is published."""
        return self.url or f"{_BASE}/{quote(self.key)}"


def published_files(
    repo: str, commit: str, licence: str, path: str, table: Mapping[str, tuple[int | None, int | None, str | None]]
) -> dict[str, RemoteFile]:
    """Return the files of one repository by name.

    Args:
        path: of every file, `{}` in the place of its name.
        table: rows, bytes and SHA-256 by name.
    """
    return {
        name: RemoteFile(repo, commit, path.format(name), sha256, n_bytes, n_rows, licence)
        for name, (n_rows, n_bytes, sha256) in table.items()
    }


class _InterruptedError(Exception):
    """A transfer that may succeed when it is tried again."""


@dataclass(frozen=True, slots=True)
class DataAccess:
    """Gets published files, from the cache where it has them.

    Args:
        cache: folder of checked files, made when needed; several processes may share it.
        mirror: folder or http(s) address with the publisher's layout, used instead of it; None: the publisher.
        timeout_s: seconds without a byte before a transfer counts as interrupted.
        n_retries: further attempts after an interrupted transfer.
        pause_s: seconds before the first of them; it doubles each time.
        trust: whether the first download of a file without a known SHA-256 is taken for the published one. A mirror
            that is a folder needs no trust: its files are the user's own copies.
        task: what `ostinato data fetch` is to fetch, for messages.
    """

    cache: Path
    mirror: str | None = None
    timeout_s: float = 30.0
    n_retries: int = 2
    pause_s: float = 0.5
    trust: bool = False
    task: str = "TASK"

    @classmethod
    def default(cls, mirror: str | None = None) -> DataAccess:
        """Use OSTINATO_CACHE or the platform's cache folder, and `mirror` or else OSTINATO_MIRROR."""
        return cls(cache_folder() / "data", mirror or os.environ.get("OSTINATO_MIRROR") or None)

    def offline(self) -> DataAccess:
        """Return the same without a network: with the cache as the mirror, a file that is not in it is missing."""
        return replace(self, mirror=str(self.cache)) if self.mirror is None or _is_remote(self.mirror) else self

    def cached(self, file: RemoteFile) -> Path | None:
        """Return the path of a file that is in the cache and sound; opens no socket."""
        path, expected = self.cache / file.key, self.known_hash(file)
        if expected is None or not path.is_file() or file.n_bytes not in (None, path.stat().st_size):
            return None
        return path if sha256_of(path) == expected else None

    def is_here(self, file: RemoteFile) -> bool:
        """Return whether a file is in the cache or in a mirror that is a folder, checked or not; opens no socket."""
        origin = self._origin(file)
        in_mirror = not _is_remote(origin) and Path(origin).is_file()
        return in_mirror or (self.cache / file.key).is_file()

    def known_hash(self, file: RemoteFile) -> str | None:
        """Return the SHA-256 a file must have: the published one, or that of its first copy; None before it."""
        return file.sha256 or stored_hash(self.cache / file.key)

    def fetch(self, file: RemoteFile) -> Path:
        """Return the path of the checked file, after a download where the cache lacks it or holds it damaged.

        Raises:
            MissingFileError: the file is not there, the transfer was interrupted each time, or a download without a
                known hash is not trusted; names the address.
            DataError: the bytes are other ones (names the address, the expected and the received hash), are more than
                the known size, or are a web page.
        """
        if (path := self.cached(file)) is not None:
            return path
        origin = self._origin(file)
        if _is_remote(origin) and not self.trust and self.known_hash(file) is None:
            raise MissingFileError(
                f"{origin}: no SHA-256 of {file.path} is known to check a download with: `ostinato data fetch "
                f"{self.task} --trust` takes what comes and stores its hash; or give a folder with a copy you "
                "checked: --mirror DIR"
            )
        path = self.cache / file.key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            _remove_stale(path)
            # No other thread or process writes to a file of this name.
            part = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.part")
            try:
                self._transfer(file, part)
                n_bytes, digest, expected = part.stat().st_size, sha256_of(part), self.known_hash(file)
                if file.n_bytes not in (None, n_bytes) or expected not in (None, digest):
                    size = "" if file.n_bytes is None else f"{file.n_bytes} bytes with "
                    raise DataError(
                        f"{self._origin(file)}: not the published file {file.path}: expected {size}SHA-256 {expected}, "
                        f"got {n_bytes} bytes with {digest}; nothing was kept"
                    )
                if file.sha256 is None:
                    stored_hash_path(path).write_bytes(f"{digest}\n".encode("ascii"))
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or error
            raise DataError(f"{path}: cannot be written ({reason}); OSTINATO_CACHE names another folder") from error
        return path

    def _origin(self, file: RemoteFile) -> str:
        if self.mirror is None:
            return file.address
        if _is_remote(self.mirror):
            return f"{self.mirror.removesuffix('/')}/{quote(file.key)}"
        return str(Path(self.mirror).expanduser() / file.key)

    def _transfer(self, file: RemoteFile, part: Path) -> None:
        origin = self._origin(file)
        if not _is_remote(origin):
            check_plain(Path(origin), MissingFileError)
            with ExitStack() as stack:
                try:
                    source = stack.enter_context(Path(origin).open("rb"))
                except OSError as error:
                    reason = f"not in the mirror ({error.strerror or error}); {_MIRROR_HINT}"
                    raise MissingFileError(f"{origin}: {reason}") from error
                stream = stack.enter_context(part.open("wb"))
                try:
                    _copy_body(source, stream, origin, file, is_page=False)
                except _InterruptedError as error:
                    raise MissingFileError(f"{origin}: cannot be read: {error}; {_MIRROR_HINT}") from error
            return
        for attempt in range(self.n_retries + 1):
            try:
                _download(origin, file, part, self.timeout_s)
                return
            except _InterruptedError as error:
                if attempt == self.n_retries:
                    tries = f"{attempt + 1} attempts" if attempt else "1 attempt"
                    raise MissingFileError(f"{origin}: no download after {tries}: {error}; {_MIRROR_HINT}") from error
                time.sleep(self.pause_s * 2**attempt)


def _download(address: str, file: RemoteFile, part: Path, timeout_s: float) -> None:
    request = Request(address, headers={"User-Agent": "ostinato", "Accept-Encoding": "identity"})
    try:
        with urlopen(request, timeout=timeout_s) as response, part.open("wb") as stream:
            announced = response.headers.get("Content-Length")
            is_page = response.headers.get_content_type() == "text/html"
            n_received = _copy_body(response, stream, address, file, is_page)
    except HTTPError as error:
        with error:
            if error.code >= 500 or error.code in (408, 429):
                raise _InterruptedError(f"HTTP status {error.code} ({error.reason})") from error
            raise MissingFileError(f"{address}: HTTP status {error.code} ({error.reason}); {_MIRROR_HINT}") from error
    except URLError as error:
        raise _InterruptedError(str(error.reason)) from error
    except (ValueError, http.client.InvalidURL) as error:
        raise DataError(f"{address}: no usable address: {error}; {_MIRROR_HINT}") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:  # while the headers were read
        raise _InterruptedError(str(error) or type(error).__name__) from error
    if announced is not None and announced.isdecimal() and n_received != int(announced):
        raise _InterruptedError(f"the connection ended after {n_received} of {announced} bytes")


def _copy_body(response: BinaryIO, stream: BinaryIO, address: str, file: RemoteFile, is_page: bool) -> int:
    """Copy the body of a response, or a mirror's file, and return its size.

    An error of reading, which is the network's or the mirror's, becomes an interruption; one of writing, which is the
    cache's, does not.

    Args:
        is_page: whether the response says that it is HTML.

    Raises:
        DataError: a web page in the place of a file, or more bytes than the file has.
    """
    n_received, n_most = 0, _MOST_BYTES if file.n_bytes is None else file.n_bytes
    while True:
        try:
            chunk = response.read(_CHUNK)
        except http.client.IncompleteRead as error:
            raise _InterruptedError(f"the connection ended after {n_received + len(error.partial)} bytes") from error
        except (OSError, http.client.HTTPException) as error:
            raise _InterruptedError(f"{error or type(error).__name__} after {n_received} bytes") from error
        if not n_received:
            _refuse_page(address, file, chunk[:_HEAD], is_page)
        if not chunk:
            return n_received
        n_received += len(chunk)
        if n_received > n_most:
            raise DataError(f"{address}: more than the {n_most} bytes that {file.path} may have; nothing was kept")
        stream.write(chunk)


def _is_remote(address: str) -> bool:
    return address.startswith(("http://", "https://"))


def _refuse_page(address: str, file: RemoteFile, head: bytes, is_page: bool) -> None:
    """Refuse a web page, such as the log-in of a network, in the place of a file that is none."""
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    is_page = is_page or begin.startswith((b"<!doctype html", b"<html"))
    if is_page and not file.path.lower().endswith((".html", ".htm")):
        raise DataError(
            f"{address}: a web page came in the place of {file.path}; nothing was kept (does the network ask for a "
            f"log-in?); {_MIRROR_HINT}"
        )


def _remove_stale(path: Path) -> None:
    """Remove unfinished downloads of killed processes: those that nothing was written to for a day."""
    for part in path.parent.glob(f".{escape(path.name)}.*.part"):
        try:
            if time.time() - part.stat().st_mtime > _STALE_AFTER_S:
                part.unlink()
        except FileNotFoundError:  # another process removed it
            continue


@contextmanager
def open_member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    """Open the first file of a tar archive, compressed or not, whose path ends with `name`, as a stream of bytes.

    Raises:
        DataError: no sound archive, or no such file in it; names those that are there.
    """
    try:
        with tarfile.open(archive) as tar:
            members = [member for member in tar.getmembers() if member.isfile()]
            found = next((member for member in members if f"/{member.name}".endswith(f"/{name}")), None)
            stream = tar.extractfile(found) if found is not None else None
            if stream is None:
                there = ", ".join(member.name for member in members[:20]) or "nothing"
                raise DataError(f"{archive}: holds no file {name}; there is {there}")
            yield stream
    except (tarfile.TarError, EOFError, OSError, zlib.error, lzma.LZMAError) as error:  # OSError: of bzip2, too
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"{archive}: cannot be read: {error.strerror}") from error
        raise DataError(f"{archive}: not a sound tar archive: {on_one_line(error)}{refetch_hint(archive)}") from error


def read_split_numbers(archive: Path, member: str, splits: Iterable[str]) -> dict[str, list[int]]:
    """Return the numbers of the examples of splits, from a JSON file of an archive with a list `<split>Idxs` for each.

    Raises:
        DataError: no such archive or file, or other content.
    """
    where, hint = f"{archive}: {member}", refetch_hint(archive)
    with open_member(archive, member) as stream:
        text = stream.read()
    with reading(where, DataError, hint):
        record = json_object(text, where, DataError, hint)
        return {split: [int(number) for number in record[f"{split}Idxs"]] for split in splits}
