"""A process that tokenises units for `ostinato.data.packs.make`: ``python -m ostinato.data.packs.worker``.

It reads JSON lines from its standard input, first what all units have in common, then a unit a line, and answers every
unit with a line: {}, {"error": message}, or number, text and file of an error of the operating system. It ends with its
input, or with the process that started it. It imports no torch.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from ostinato.data.packs.data_sets import DataSetSource, RowRange
from ostinato.data.packs.files import FilePart, FileSource
from ostinato.data.packs.shards import TOKENIZERS
from ostinato.data.packs.source import Unit
from ostinato.data.packs.unit import Work
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import OstinatoError
from ostinato.system_errors import system_error

SOURCES: TypeAdapter[Any] = TypeAdapter(FileSource | DataSetSource)
PARTS: TypeAdapter[tuple[FilePart | RowRange, ...]] = TypeAdapter(tuple[FilePart | RowRange, ...])
"""How a source, and parts of a unit, are sent as JSON."""
_LOOKS_EVERY = 0.2
"""Seconds between two looks at whether the other process is still there."""


def main() -> None:
    """Do what standard input says."""
    logging.disable(logging.WARNING)  # the other process has said it
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    common = json.loads(sys.stdin.readline())
    folder, source = Path(common["folder"]), SOURCES.validate_python(common["source"])
    work = Work(folder, source, Tokenizers.load(folder / TOKENIZERS))
    for line in sys.stdin:
        given = json.loads(line)
        answer: dict[str, Any] = {}
        try:
            work.do(given["number"], Unit(PARTS.validate_python(given["parts"]), 0))
        except OstinatoError as error:
            answer = {"error": str(error)}
        except Exception as error:
            if (found := system_error(error)) is None:
                raise
            # A full disk, say: the other process says so as if it had happened there.
            answer = {"errno": found.errno, "strerror": found.strerror, "filename": str(found.filename or folder)}
        print(json.dumps(answer), flush=True)  # noqa: T201, the other process reads it


def _end_with(parent: int) -> None:
    """End this process when the one that started it has been killed, whose successor may be at the same unit soon."""
    while os.getppid() == parent:
        time.sleep(_LOOKS_EVERY)
    os._exit(1)


if __name__ == "__main__":
    main()
