"""The command line: one file per command, which parses, calls and prints.

Nothing heavy is imported before a command runs, so that every `--help` is immediate.
"""

from __future__ import annotations

from ostinato.cli.app import main

__all__ = ["main"]
