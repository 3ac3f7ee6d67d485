"""One of several processes that talks to the others, leaves them, and writes its threads before and after that.

leaving_worker.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from ostinato.training.processes import Processes, leave


def names_of_threads() -> list[str]:
    return [comm.read_text().strip() for comm in Path("/proc/self/task").glob("*/comm")]


def main() -> None:
    processes = Processes.from_environment()
    processes.barrier()
    torch.distributed.all_reduce(torch.ones(3))
    processes.gather(processes.rank)
    before = names_of_threads()
    leave()
    path = Path(sys.argv[1]) / f"threads-{processes.rank}.json"
    path.write_text(json.dumps([before, names_of_threads()]))


if __name__ == "__main__":
    main()
