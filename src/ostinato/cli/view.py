"""`ostinato view`: a page to look inside finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ostinato.cli.options import AccessOption, CheckpointOption, DeviceOption, NoVerifyOption
from ostinato.cli.output import print_line

HostOption = Annotated[
    str, typer.Option(help="Address to listen at. Any other than 127.0.0.1 lets other machines use the page.")
]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0: any that is free.")]
BrowserOption = Annotated[bool, typer.Option("--no-browser", help="Open no browser.")]


def view(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run directories; two of them can stand side by side.")
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8765,
    no_browser: BrowserOption = False,
    checkpoint: CheckpointOption = None,
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    access: AccessOption = None,
) -> None:
    """Look inside runs on a web page of this machine.

    Type a sentence or pick an example, and see what the model writes, how many rounds every token takes, which experts
    it is sent to, where attention looks, what would be predicted after every round, and what it costs. Nothing leaves
    the machine. Ctrl-C ends it.
    """
    from ostinato.evaluation.loading import check_run, load
    from ostinato.training.threads import cpu_threads
    from ostinato.viewer.serve import address_of, check_installed, listen, open_browser, serve

    check_installed()
    for path in runs:
        check_run(path)
    bound = listen(host, port)
    with bound:
        from ostinato.viewer.opened import open_runs
        from ostinato.viewer.schema import Limits
        from ostinato.viewer.server import view_app

        loaded = [load(run, checkpoint=checkpoint, device=device, verify=not no_verify) for run in runs]
        limits = Limits()
        opened = open_runs(loaded, limits, access)
        address = address_of(bound, host)

        def started() -> None:
            print_line(f"serving {', '.join(opened)} at {address} (Ctrl-C ends it)")
            if not no_browser:
                open_browser(address)

        # With as many threads as it was trained with: more are slower for small models, above all beside other work.
        with cpu_threads(loaded[0].recipe.training.n_threads):
            serve(view_app(opened, limits, host), bound, started)
        for one in opened.values():
            one.close()
