"""The command, in several processes, of which the last one is killed in its third update."""

from __future__ import annotations

import os
import signal
import sys

from ostinato.cli import main
from ostinato.training.session import Session

KILLED_IN = 3
_one_update = Session._update


def _killed(session: Session) -> object:
    if session.progress.update == KILLED_IN - 1 and session.processes.rank == session.processes.world_size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return _one_update(session)


if __name__ == "__main__":
    Session._update = _killed  # type: ignore[method-assign, assignment]
    main(sys.argv[1:])
