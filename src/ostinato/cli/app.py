"""Puts the commands together, and turns errors into lines and exit codes."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli import data, exporting, importing
from ostinato.cli.advise import advise
from ostinato.cli.analyze import analyze
from ostinato.cli.claims import claims, reproduce
from ostinato.cli.compare import compare
from ostinato.cli.convert import convert
from ostinato.cli.demo import demo
from ostinato.cli.doctor import doctor
from ostinato.cli.evaluate import evaluate
from ostinato.cli.family import family
from ostinato.cli.generate import generate
from ostinato.cli.help import GroupedCommand, GroupedCommands
from ostinato.cli.lm_eval import lm_eval
from ostinato.cli.output import print_line, print_stderr, rank
from ostinato.cli.plan import plan
from ostinato.cli.plot import plot
from ostinato.cli.settings import recipes, settings
from ostinato.cli.solve import solve
from ostinato.cli.sweep import sweep
from ostinato.cli.table import table
from ostinato.cli.train import train
from ostinato.cli.tune_threshold import tune_threshold
from ostinato.cli.view import view
from ostinato.cli.watch import watch
from ostinato.errors import OstinatoError
from ostinato.loggers import errors_only
from ostinato.system_errors import describe_failure
from ostinato.version import __version__

INTERRUPTED = 130
_WRONG_USE = 2
_DEBUG = "--debug"
_RUN, _LOOK, _COMPARE = "Run", "Look inside", "Compare"
_COUNT, _LABORATORY, _DATA = "Count", "Experiments", "Data and settings"
_EXCHANGE = "Exchange"

_COMMANDS = (
    (_RUN, demo, "ostinato demo --run-dir runs/demo"),
    (_RUN, advise, "ostinato advise mine.jsonl --params 1M --hours 0.5"),
    (_RUN, train, "ostinato train scan/universal task.split=length training.n_updates=4000 --run-dir runs/mine"),
    (_RUN, generate, "echo 'jump twice' | ostinato generate runs/x --beam 4"),
    (_LOOK, evaluate, "ostinato evaluate runs/x --split gen --by category --beam 4"),
    (_LOOK, analyze, "ostinato analyze runs/x runs/x-seed-2 --only similarity --out analysis"),
    (_LOOK, tune_threshold, "ostinato tune-threshold runs/x --split dev --max-drop 0.002"),
    (_LOOK, view, "ostinato view runs/x runs/x-seed-2"),
    (_LOOK, watch, "ostinato watch runs/x digits"),
    (_LOOK, lm_eval, "ostinato lm-eval runs/x --split test n_steps=8 halting_threshold=0.9"),
    (_COMPARE, compare, "ostinato compare runs/baseline runs/one-wide --split test"),
    (_COMPARE, table, "ostinato table runs/scan-* --jsonl docs/results/scan.jsonl"),
    (_COMPARE, plot, "ostinato plot digits --x macs --y longer"),
    (_COUNT, plan, "ostinato plan scan/transformer scan/universal model.encoder.n_steps=6"),
    (_COUNT, family, "ostinato family depth/41m --depths 1..9 --write family-41m"),
    (_COUNT, solve, "ostinato solve lm/universal lm/transformer model.decoder.n_steps=8 --free d_ff"),
    (_LABORATORY, sweep, "ostinato sweep digits --workers 2"),
    (_LABORATORY, claims, "ostinato claims --paper x-moe"),
    (_LABORATORY, reproduce, "ostinato reproduce one-wide-ffn/decoding-speed"),
    (_EXCHANGE, convert, "ostinato convert runs/dense model.decoder.ffn.share=all --run-dir runs/shared"),
    (_DATA, recipes, "ostinato recipes"),
    (_DATA, settings, "ostinato settings model.encoder.ffn"),
    (_DATA, doctor, "ostinato doctor"),
)
"""Every command with its group in `--help` and an example; a command is called as its function."""

_REMOVED = {
    "average": "give --checkpoint best:N or --checkpoint last:N to a command that reads a run, such as evaluate",
    "match": "ostinato compare RUN... --match perplexity, or --match loss",
    "transfer": "ostinato table RUN... --by COLUMN",
}
"""What replaced the commands of earlier versions."""

app = typer.Typer(
    name="ostinato",
    cls=GroupedCommands,
    help="Transformers that spend parameters and compute unevenly over depth.",
    epilog="Start with: ostinato recipes; ostinato train algorithmic/copy-universal",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"ostinato {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option(_DEBUG, help="Show the traceback of an error; works anywhere.")] = False,
) -> None:
    """Hold the options that belong to no command."""


for _group, _command, _example in _COMMANDS:
    app.command(cls=GroupedCommand, epilog=f"Example: {_example}", rich_help_panel=_group)(_command)
app.add_typer(data.app, name="data", rich_help_panel=_DATA)
app.add_typer(importing.app, name="import", rich_help_panel=_EXCHANGE)
app.add_typer(exporting.app, name="export", rich_help_panel=_EXCHANGE)


@cache
def root_command() -> Any:
    """Return all commands under one. They are put together once: that takes a tenth of a second."""
    return typer.main.get_command(app)


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Take SIGTERM, which batch systems send, as Ctrl-C: what is half written is removed."""
    is_main = threading.current_thread() is threading.main_thread()  # no other thread may set handlers
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Exit codes: 0 done; 1 a run that could not go on (a full disk, no memory), or lines that could not be read while the
    others were; 2 wrong use, settings or data; 130 interrupted (Ctrl-C, SIGTERM).
    """
    # Imports make objects that stay. By default the garbage collector goes through all of them after every 70,000 new
    # ones, as long as they grow by a quarter: a large part of the time to the first update. So it does that less often.
    gc.set_threshold(*gc.get_threshold()[:2], 100)
    silenced = ["ostinato"] if rank() else []  # of several processes the first one says what is to be known
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Taken out here so that it may stand before or after the command.
    debug = _DEBUG in given
    words = [argument for argument in given if argument != _DEBUG]
    if words and words[0] in _REMOVED:
        print_stderr(f"there is no command {words[0]} any more: {_REMOVED[words[0]]}")
        sys.exit(_WRONG_USE)
    if sys.stdin is None:  # closed by who started us: it is read as empty
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
    try:
        with _terminated_like_interrupted(), errors_only(*silenced):
            root_command()(words, prog_name="ostinato")
    except OstinatoError as error:
        if debug:
            raise
        print_stderr(str(error))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print_stderr("interrupted")
        sys.exit(INTERRUPTED)
    except SystemExit as end:
        # The parser turns an interrupt inside a command into this code, without a word.
        if end.code == INTERRUPTED:
            print_stderr("interrupted")
        raise
    except Exception as error:
        line = None if debug else describe_failure(error, words)
        if line is None:
            raise
        print_stderr(line)
        sys.exit(1)
