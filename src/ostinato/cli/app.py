"""Puts the commands together, and turns errors into lines and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from ostinato.cli import (
    analyze,
    average,
    claims,
    compare,
    data,
    demo,
    doctor,
    evaluate,
    family,
    generate,
    match,
    plan,
    plot,
    recipes,
    solve,
    sweep,
    table,
    train,
    transfer,
    tune_threshold,
)
from ostinato.cli.output import complain
from ostinato.errors import OstinatoError
from ostinato.version import __version__

INTERRUPTED = 130
_DEBUG = "--debug"

app = typer.Typer(
    name="ostinato",
    help="Transformers that spend parameters and compute unevenly over depth.",
    epilog="Start with: ostinato recipes; ostinato train algorithmic/copy-universal",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ostinato {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error; works anywhere.")] = False,
) -> None:
    """Hold the options that belong to no command."""


for _command in (
    train,
    evaluate,
    analyze,
    compare,
    generate,
    tune_threshold,
    average,
    plan,
    family,
    solve,
    recipes,
    sweep,
    table,
    plot,
    transfer,
    claims,
    doctor,
    demo,
):
    _command.register(app)
app.add_typer(data.app, name="data")
app.add_typer(match.app, name="match")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 done; 1 a run that could not go on, or lines that could not be read while the others were; 2 wrong
    use, settings or data; 130 interrupted.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Taken out here so that it may stand before or after the command.
    debug = _DEBUG in given
    try:
        app([argument for argument in given if argument != _DEBUG], prog_name="ostinato")
    except OstinatoError as error:
        if debug:
            raise
        complain(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        if debug or error.filename is None:
            raise
        complain(f"{error.filename}: {error.strerror}")
        sys.exit(1)
    except KeyboardInterrupt:
        complain("interrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # The parser turns an interrupt inside a command into this code, without a word.
        if end.code == INTERRUPTED:
            complain("interrupted")
        raise
