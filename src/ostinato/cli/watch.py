"""`ostinato watch`: a page that follows runs while they are trained."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.options import STORE, AccessOption, InputOption, StoreOption, read_inputs
from ostinato.cli.output import print_line
from ostinato.cli.view import BrowserOption, HostOption, PortOption


def watch(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|SWEEP", help="Run directories, and sweeps by name or file; none has to be there yet."
        ),
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8766,
    no_browser: BrowserOption = False,
    store: StoreOption = STORE,
    given: InputOption = None,
    access: AccessOption = None,
) -> None:
    """Follow runs on a web page as they are trained.

    Draws loss, learning rate, norm of the gradient, tokens a second, load of experts and depth of tokens, several runs
    over each other, from what the runs write into their directories. Nothing leaves the machine. Ctrl-C ends it.
    """
    from ostinato.viewer.serve import address_of, check_installed, listen, open_browser, serve, told

    check_installed()
    from ostinato.viewer.chosen import choose_runs
    from ostinato.viewer.live import Watch
    from ostinato.viewer.schema import Limits
    from ostinato.viewer.server import watch_app

    chosen = choose_runs(runs, store, access, read_inputs(given))
    bound = listen(host, port)
    with bound:
        address = address_of(bound, host)

        def started() -> None:
            print_line(told("watching", [run.name for run in chosen], address, host))
            if not no_browser:
                open_browser(address)

        serve(watch_app(Watch(chosen), Limits(), host), bound, started)
