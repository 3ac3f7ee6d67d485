"""`ostinato doctor`: versions, devices, and what is missing."""

from __future__ import annotations

from typing import Any

import typer

from ostinato.cli.options import JsonOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", epilog="Example: ostinato doctor")(doctor)


def doctor(json: JsonOption = False) -> None:
    """Show versions, devices, and what is missing."""
    from ostinato.cli.health import examine
    from ostinato.cli.output import print_json, print_table, say

    found = examine()
    if json:
        print_json(found)
    else:
        print_table(["package", "version", "needed for"], _package_rows(found))
        print_table(["device", "what it is"], [(name, text) for name, text in found["devices"].items()])
        print_table(["compiled kernels", "state"], [(name, text) for name, text in found["kernels"].items()])
        print_table(["data", "where"], [(name, text) for name, text in found["data"].items()])
        for line in found["advice"]:
            say(line)
        say("everything needed is there" if found["ok"] else "something needed is missing")
    if not found["ok"]:
        raise typer.Exit(1)


def _package_rows(found: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(p["name"], p["version"] or "missing", p["needed_for"]) for p in found["packages"]]
