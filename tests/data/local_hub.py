"""A hub of data sets on this machine, which answers what `datasets` and `huggingface_hub` ask for public data.

The address of a hub is read when they are imported: programs that are to use this one get it as HF_ENDPOINT.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class LocalHub(ThreadingHTTPServer):
    """Serves one data set.

    Args:
        name: owner and name. files: of its only commit, by their paths. commit: its hash.
    """

    daemon_threads = True

    def __init__(self, name: str, files: dict[str, bytes], commit: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name, self.files, self.commit = name, files, commit
        self.refuses: set[str] = set()
        """Files that are listed, but whose contents are not given."""
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def entry(self, path: str) -> dict[str, Any]:
        content = self.files[path]
        return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def tree(self, below: str, is_deep: bool) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for path in self.files:
            if path.startswith(below):
                head, is_folder, _ = path[len(below) :].partition("/")
                if is_folder:
                    found[below + head] = {"type": "directory", "path": below + head, "oid": "0" * 40, "size": 0}
                if is_deep or not is_folder:
                    found[path] = self.entry(path)
        return list(found.values())


@contextmanager
def local_hub(name: str, files: dict[str, bytes], commit: str = "a" * 40) -> Iterator[LocalHub]:
    """Serve a data set while the block runs."""
    with LocalHub(name, files, commit) as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: LocalHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        hub, (_, _, path, query, _) = self.server, urlsplit(self.path)
        hub.asked.append(path)
        path = unquote(path)
        about = f"/api/datasets/{hub.name}"
        tree, contents = f"{about}/tree/{hub.commit}", f"/datasets/{hub.name}/resolve/"
        if path in (about, f"{about}/revision/main", f"{about}/revision/{hub.commit}"):
            siblings = [{"rfilename": name, "size": len(content)} for name, content in hub.files.items()]
            self._json({"id": hub.name, "sha": hub.commit, "private": False, "siblings": siblings, "tags": []})
        elif path == tree or path.startswith(f"{tree}/"):
            below = path[len(tree) + 1 :]
            self._json(hub.tree(f"{below}/" if below else "", parse_qs(query).get("recursive") == ["true"]))
        elif path.startswith(contents) and (name := path[len(contents) :].partition("/")[2]) in hub.files:
            self._content(name)
        else:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound" if path.startswith(contents) else "RepoNotFound"})

    do_HEAD = do_GET

    def _content(self, name: str) -> None:
        if name in self.server.refuses:
            self._send(403, b"not for you", {})
            return
        content, status, headers = self.server.files[name], 200, {"X-Repo-Commit": self.server.commit}
        headers |= {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "Accept-Ranges": "bytes"}
        if wanted := self.headers.get("Range"):
            first, last = wanted.removeprefix("bytes=").split("-")
            end = min(int(last), len(content) - 1) if last else len(content) - 1
            headers["Content-Range"] = f"bytes {first}-{end}/{len(content)}"
            content, status = content[int(first) : end + 1], 206
        self._send(status, content, headers)

    def _json(self, content: Any) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
