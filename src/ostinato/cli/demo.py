"""`ostinato demo`: the main job in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", epilog="Example: ostinato demo --run-dir runs/demo")(demo)


def demo(
    run_dir: Annotated[Path, typer.Option("--run-dir", help="Where to write.")] = Path("runs/demo"),
) -> None:
    """Train a Transformer and a Universal Transformer of equal size, and compare them beyond their training data."""
    from ostinato.cli.output import console
    from ostinato.experiments.demo import run_demo
    from ostinato.training.reporter import make_reporter

    run_demo(run_dir, make_reporter(console()))
