"""Serving an application in a thread of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve at a port that is free; give the address."""
    import uvicorn

    from ostinato.viewer.serve import address_of, listen

    with listen("127.0.0.1", 0) as bound:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield address_of(bound, "127.0.0.1")
        server.should_exit = True
        thread.join(10)
