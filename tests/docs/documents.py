"""Reading the project's documents: fenced blocks, command lines, links and tables."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(path for folder in ("docs", "docs/results") for path in sorted((ROOT / folder).glob("*.md"))),
]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block of a page; `line` is where it begins."""

    page: Path
    line: int
    language: str
    body: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def why_not_run(self) -> str | None:
        """Return the reason that the block gives in its first line, None where it is to be run."""
        found = re.match(r"# not run by the tests: (.+)", self.body)
        return found[1] if found else None


class Command(NamedTuple):
    """One `ostinato` call of a document; `stdin` is what an `echo` before it writes."""

    arguments: list[str]
    stdin: str | None = None

    def __str__(self) -> str:
        return shlex.join(["ostinato", *self.arguments])


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of one language."""
    return [body for name, body in _FENCE.findall(path.read_text(encoding="utf-8")) if name == language]


def page_blocks(path: Path) -> list[Block]:
    """Return all fenced blocks, those that stand in lists too, in order."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [
        Block(path, text.count("\n", 0, one.start()) + 1, one[2], re.sub(rf"^{one[1]}", "", one[3], flags=re.MULTILINE))
        for one in found
    ]


def shell_lines(path: Path) -> list[str]:
    """Return every line of the shell blocks, without comments and empty lines."""
    lines = [re.sub(r"\s+#.*|^#.*", "", line).strip() for body in blocks(path, "sh") for line in body.splitlines()]
    return [line for line in lines if line]


def commands(path: Path) -> list[Command]:
    """Return the `ostinato` calls of the shell blocks, in order."""
    found = []
    for line in shell_lines(path):
        stdin = None
        if echo := re.match(r"echo '([^']*)' \| (.*)", line):
            stdin, line = f"{echo[1]}\n", echo[2]
        if line.startswith("ostinato "):
            found.append(Command(shlex.split(line)[1:], stdin))
    return found


def prose(path: Path) -> str:
    """Return a document without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> list[str]:
    """Return where the links of a document lead."""
    return _LINK.findall(prose(path))


def anchors(path: Path) -> set[str]:
    """Return the anchors of a document's headings, as web sites make them."""
    titles = re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def rows(path: Path) -> list[list[str]]:
    """Return the cells of every table's every row."""
    lines = [line for line in prose(path).splitlines() if line.startswith("|") and not line.startswith("|--")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
