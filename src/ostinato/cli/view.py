"""`ostinato view`: a page to look inside finished runs."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.options import (
    STORE,
    AccessOption,
    CheckpointOption,
    DeviceOption,
    InputOption,
    NoVerifyOption,
    StoreOption,
    read_inputs,
)
from ostinato.cli.output import print_line

HostOption = Annotated[
    str, typer.Option(help="Address to listen at. Any other than 127.0.0.1 lets other machines use the page.")
]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")]
BrowserOption = Annotated[bool, typer.Option("--no-browser", help="Open no browser.")]


def view(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|SWEEP",
            help="Run directories, and sweeps by name or file, whose finished runs are taken; two runs can stand side "
            "by side.",
        ),
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    no_browser: BrowserOption = False,
    checkpoint: CheckpointOption = None,
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    store: StoreOption = STORE,
    given: InputOption = None,
    access: AccessOption = None,
) -> None:
    """Look inside runs on a web page of this machine.

    Type a sentence or pick an example, and see what the model writes, how many rounds every token takes, which experts
    it is sent to, where attention looks, what would be predicted after every round, and what it costs. Nothing leaves
    the machine. Ctrl-C ends it.
    """
    from ostinato.evaluation.loading import check_run, load
    from ostinato.training.threads import cpu_threads
    from ostinato.viewer.serve import address_of, check_installed, listen, open_browser, serve, told

    check_installed()
    from ostinato.viewer.chosen import choose_runs

    chosen = choose_runs(runs, store, access, read_inputs(given), finished=True)
    for one in chosen:
        check_run(one.directory)
    bound = listen(host, port)
    with bound:
        from ostinato.viewer.opened import open_runs
        from ostinato.viewer.schema import Limits
        from ostinato.viewer.server import view_app

        loaded = {
            one.name: load(one.directory, checkpoint=checkpoint, device=device, verify=not no_verify) for one in chosen
        }
        limits = Limits()
        opened = open_runs(loaded, limits, access)
        address = address_of(bound, host)

        def started() -> None:
            print_line(told("serving", list(opened), address, host))
            if not no_browser:
                open_browser(address)

        # With as many threads as it was trained with: more are slower for small models, above all beside other work.
        with cpu_threads(loaded[chosen[0].name].recipe.training.n_threads):
            try:
                serve(view_app(opened, limits, host), bound, started)
            finally:
                for run in opened.values():
                    run.close()
