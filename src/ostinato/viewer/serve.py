"""Serving an application on this machine until it is interrupted."""

from __future__ import annotations

import errno
import socket
import threading
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ostinato.errors import ConfigError, Problem, see
from ostinato.viewer.guard import LOCAL

if TYPE_CHECKING:
    from ostinato.viewer.guard import Guard

HOW_TO_GET = f"the page needs starlette and uvicorn: pip install 'ostinato[view]'{see('view')}"
_REFUSED = {
    errno.EADDRINUSE: "is in use: another one, or 0 for any that is free",
    errno.EACCES: "may not be used by this user: one above 1023, or 0 for any that is free",
}


def check_installed() -> None:
    """Raise a ConfigError where what serves the page is not installed."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise ConfigError(HOW_TO_GET) from error
    del starlette, uvicorn


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Args:
        port: 0: any that is free.

    Raises:
        ConfigError: the address is none of this machine, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError([Problem("--host", host, f"is no address of this machine ({error})")]) from error
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen()  # now: two servers may be bound to one port, and only one may listen
    except OSError as error:
        found.close()
        if error.errno in _REFUSED:
            raise ConfigError([Problem("--port", port, _REFUSED[error.errno])]) from error
        raise ConfigError([Problem("--host", host, f"cannot be listened at ({error.strerror})")]) from error
    return found


def address_of(bound: socket.socket, host: str) -> str:
    """Return the address to type into a browser."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{bound.getsockname()[1]}/"


def serve(app: Guard, bound: socket.socket, on_start: Callable[[], object]) -> None:
    """Serve an application at a bound socket until it is interrupted.

    Args:
        on_start: called once requests are answered.
    """
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                on_start()

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        limit_concurrency=512,
    )
    with bound, suppress(KeyboardInterrupt):
        Server(config).run(sockets=[bound])


def told(what: str, names: Sequence[str], address: str, host: str) -> str:
    """Return what is said once requests are answered."""
    open_to = "" if host in LOCAL else f"; all who can reach {host} can use it"
    return f"{what} {', '.join(names)} at {address} (Ctrl-C ends it{open_to})"


def open_browser(address: str) -> None:
    """Open a browser, if there is one, without waiting for it."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
