"""A bar for work whose output goes elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(total: Callable[[], int | None], wanted: bool = True) -> Iterator[Callable[[int], None] | None]:
    """Yield what is to be told of how many more are done, and draw that on standard error.

    Nothing is drawn, and None yielded, where standard error is no terminal, or standard output is one too: what is
    written shows how far it is.

    Args:
        total: asked only where something is drawn; None where nobody knows.
    """
    if not wanted or not sys.stderr.isatty() or sys.stdout.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), BarColumn(), MofNCompleteColumn(), TextColumn("lines"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total())
        yield lambda n: progress.advance(task, n)
