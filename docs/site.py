"""Hooks of the documentation site (`make docs`): the home page, the reference pages, links that leave these pages.

The home page is README.md. Settings and commands are written from the code, so that they cannot fall behind it. Pages
link to files of the repository, which the site does not have: there only their names are left.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import ostinato
from ostinato.cli.app import root_command
from ostinato.config.data import DataConfig
from ostinato.config.recipe import Recipe
from ostinato.config.settings import list_settings
from ostinato.tasks.catalog import protocol
from ostinato.tasks.registry import TASKS

ROOT = Path(__file__).parents[1]
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from README.md and from the code."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    made = {
        "index.md": readme.replace("](docs/", "]("),
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "reference/tasks.md": tasks_page(),
    }
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Leave the text alone of links to files that are not part of the site."""
    folder = Path(page.file.src_uri).parent

    def kept(match: re.Match[str]) -> str:
        target = match[3].partition("#")[0]
        if match[1] or not target or "://" in target:
            return match[0]
        parts: list[str] = []
        for part in (folder / target).as_posix().split("/"):
            if part == ".." and parts and parts[-1] != "..":
                parts.pop()
            elif part not in (".", ""):
                parts.append(part)
        inside = "/".join(parts)
        if inside in files.src_uris:
            return match[0]
        if f"{inside}/README.md" in files.src_uris:
            return match[0].replace(match[3], f"{target.rstrip('/')}/README.md")
        return match[2]

    return _LINK.sub(kept, markdown)


def settings_page() -> str:
    """Return every setting of a recipe: type, default, meaning."""
    lines = [
        "# Settings",
        "",
        "Every setting of a recipe, as `ostinato settings` shows them; written from the code.",
        "",
    ]
    group = ""
    for one in list_settings(Recipe, {"task": {kind: task.config_type for kind, task in TASKS.items()}}):
        if (head := one.key.partition(".")[0]) != group:
            group = head
            lines += ["", f"## {group}", "", "| setting | holds | default | meaning |", "|---|---|---|---|"]
        default = "" if one.default is None else f"`{one.default}`"
        kinds = "; ".join(f"with {key}={' or '.join(values)}" for key, values in one.only_with.items())
        unit = f" Unit: {one.unit}." if one.unit else ""
        meaning = f"{one.meaning}{unit}{f' ({kinds})' if kinds else ''}"
        lines.append(row(f"`{one.key}`", f"`{one.accepts}`", default, meaning))
    return "\n".join(lines) + "\n"


def row(*cells: object) -> str:
    """Return a row of a table."""
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def commands_page() -> str:
    """Return the help of every command."""
    lines = ["# Commands", "", "Every command with its options, as `--help` shows them; written from the code.", ""]

    # By what parameters say they are: typer may bring classes of its own in the place of click's.
    def add(command: Any, name: str, depth: int) -> None:
        context = command.context_class(command, info_name=name)
        lines.extend([f"{'#' * depth} {name}", "", (command.help or "").split("\f")[0].strip(), ""])
        kinds = {kind: [p for p in command.params if p.param_type_name == kind] for kind in ("argument", "option")}
        options = [p for p in kinds["option"] if p.name != "help" and not p.hidden]
        arguments = kinds["argument"]
        if arguments or options:
            lines.extend(["| argument or option | meaning |", "|---|---|"])
        for parameter in (*arguments, *options):
            shown = parameter.get_help_record(context) or (parameter.human_readable_name, "")
            lines.append(row(f"`{shown[0].strip()}`", shown[1]))
        lines.append("")
        for child, found in getattr(command, "commands", {}).items():
            add(found, f"{name} {child}", depth + 1)

    root = root_command()
    for child, found in getattr(root, "commands", {}).items():
        add(found, f"ostinato {child}", 2)
    return "\n".join(lines) + "\n"


def tasks_page() -> str:
    """Return the protocol of every task, its splits, metrics and files."""
    lines = ["# Tasks", "", "The protocol of every task, as `ostinato data show` prints it; written from the code.", ""]
    for kind, found in TASKS.items():
        task = found(found.config_type(kind=kind), DataConfig(train=str(ROOT / "README.md")))
        lines += [f"## {kind}", "", "```text", protocol(found), "```", ""]
        for title, listed in (("splits", task.splits()), ("decoded metrics", task.metrics), ("by", task.by)):
            lines += [f"- {title}: {', '.join(f'`{name}`' for name in listed)}"] if listed else []
        for file in task.files():
            size = f"{file.n_bytes:,} bytes" if file.n_bytes else "size not known"
            lines.append(f"- file: {file.url or f'{file.repo}/{file.path}'}, {size}, {file.licence}")
        lines.append("")
    return "\n".join(lines) + "\n"


def python_page() -> str:
    """Return the public names with their docstrings."""
    lines = ["# Python", "", "The names of `import ostinato`; written from their docstrings.", ""]
    for name in sorted(ostinato.__all__):
        found = getattr(ostinato, name)
        module = getattr(found, "__module__", None)
        if module is not None:
            lines += [f"::: {module}.{name}", ""]
    return "\n".join(lines) + "\n"
