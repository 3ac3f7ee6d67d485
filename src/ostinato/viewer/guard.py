"""What every request passes: where it may come from, how large it may be, and what browsers are told of the answers.

A web site that a browser shows can send requests to this machine. It is kept out by three checks:

    Host             must be a name of this machine, so that another name that leads here (DNS rebinding) is refused
    Origin           where a browser names one, the page itself
    Sec-Fetch-Site   of the API, where a browser sends it: the page itself, or a person who typed the address

Requests with a body must be JSON, which no site may send here without being asked first.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}
LOCAL = ("localhost", "127.0.0.1", "::1")


class Guard:
    """Refuses requests before the application sees them, and adds headers to all answers.

    Args:
        names: of this machine, in small letters. any_address: any IP address, too: the server is open to others, and
            an address cannot be made to lead elsewhere.
        body: bytes of the largest request.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = LOCAL, *, any_address: bool = False, body: int) -> None:
        self._app, self._names, self._any_address, self._body = app, frozenset(names), any_address, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":  # there are no web sockets here
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in own]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refused = self._refusal(scope)
        if refused is None:
            await self._app(scope, receive, with_headers)
            return
        status, reason = refused
        content = json.dumps({"kind": "error", "error": reason}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await with_headers({"type": "http.response.start", "status": status, "headers": headers})
        await with_headers({"type": "http.response.body", "body": content})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return status and reason where a request is refused."""
        found: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts, origins = found.get("host", []), found.get("origin", [])
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return 421, "this server answers to the names of its own machine only (Host)"
        if any(origin != f"{scope.get('scheme', 'http')}://{hosts[0]}" for origin in origins):
            return 403, "requests from other sites are refused (Origin)"
        sites = found.get("sec-fetch-site", [])
        if scope["path"].startswith("/api") and any(site not in ("same-origin", "none") for site in sites):
            return 403, "requests from other sites are refused (Sec-Fetch-Site)"
        if scope["method"] == "POST":
            kind = found.get("content-type", [""])[0].partition(";")[0].strip().lower()
            if kind != "application/json":
                return 415, "requests must be JSON (Content-Type: application/json)"
            length = found.get("content-length", ["0"])[0]
            if not length.isdecimal() or len(length) > 12 or int(length) > self._body:
                return 413, f"a request may have {self._body:,} bytes"
        return None

    def _is_ours(self, host: str) -> bool:
        """Return whether a Host header names this machine; its port may be one that leads here."""
        name = host.strip().lower()
        if name.startswith("["):
            name, end, port = name[1:].partition("]")
            if not end or (port and not port.startswith(":")):
                return False
            port = port.removeprefix(":")
        else:
            name, _, port = name.partition(":")
        if port and not (port.isascii() and port.isdecimal()):
            return False
        return name in self._names or (self._any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def guarded(app: ASGIApp, host: str, **settings: Any) -> Guard:
    """Return an application behind a guard that knows the address it is served at."""
    is_local = host in LOCAL
    return Guard(app, {*LOCAL, host.lower()}, any_address=not is_local, **settings)
