"""Plain `--help` in groups: commands and options by the panel they name (`rich_help_panel`).

Typer draws panels as boxes, with another library that takes as long to import as all the rest, and cuts long words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class GroupedCommand(TyperCommand):
    """A command whose options stand in groups: each panel, then those that name none.

    Numbers must be finite: NaN is neither below nor above a limit and would pass it, and infinity passes where one side
    has none. Paths must not be empty: an empty one, as of an unset shell variable, would be the current folder.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        words = list(args)
        rest = super().parse_args(ctx, args)
        given: Any = {} if ctx.resilient_parsing else self.make_parser(ctx).parse_args(words)[0]
        parameters: Any = self.get_params(ctx)
        for parameter in parameters:
            value = ctx.params.get(parameter.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise typer.BadParameter(f"{value} is not a finite number", ctx=ctx, param=parameter)
            is_path = any(isinstance(one, Path) for one in _listed(value))
            if is_path and "" in _listed(given.get(parameter.name)):
                raise typer.BadParameter("is empty: name a file or folder", ctx=ctx, param=parameter)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the groups of options."""
        rows: list[tuple[str, tuple[str, str]]] = []
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is not None:
                unnamed = "Arguments" if parameter.param_type_name == "argument" else "Options"
                rows.append((getattr(parameter, "rich_help_panel", None) or unnamed, record))
        _write_sections(formatter, rows, last="Options")


class GroupedCommands(TyperGroup):
    """The commands in groups, each with the first line of its documentation."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the groups of commands."""
        rows: list[tuple[str, tuple[str, str]]] = []
        width = max(map(len, self.commands))
        for name, command in self.commands.items():
            panel = getattr(command, "rich_help_panel", None) or "Commands"
            rows.append((panel, (name.ljust(width), command.get_short_help_str(formatter.width - width - 6))))
        _write_sections(formatter, rows)


def _listed(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _write_sections(formatter: Any, rows: Iterable[tuple[str, tuple[str, str]]], last: str = "") -> None:
    """Write rows under the titles they name, in the order in which titles first appear."""
    sections: dict[str, list[tuple[str, str]]] = {}
    for title, row in rows:
        sections.setdefault(title, []).append(row)
    for title in sorted(sections, key=lambda title: title == last):
        with formatter.section(title):
            formatter.write_dl(sections[title])
