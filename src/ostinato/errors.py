"""The errors a user can meet: one type per kind, each printed as plain lines by the command line (exit code 2)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_MOST_LINES, _LONGEST_LINE, _LONGEST_VALUE = 30, 2000, 300
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that a terminal obeys, without the line break and the tab."""


def shortened(text: str, longest: int) -> str:
    """Return a text whose middle is left out where it has more than so many characters."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... ({len(text) - 2 * half:,} characters left out) ... {text[-half:]}"


def without_middle_lines(text: str, most: int = 4) -> str:
    """Return a text; where it has more than so many lines, such as a traceback, the first and the last of them."""
    lines = text.splitlines()
    return text if len(lines) <= most else f"{lines[0]}\n  ...\n{lines[-1]}"


def on_one_line(error: object) -> str:
    """Return a message without its line breaks."""
    return " ".join(str(error).split())


def printable(text: str) -> str:
    """Return a text in which characters that a terminal obeys, or cannot show, are escapes such as \\x1b."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode("ascii") for one in text)


def without_controls(text: str) -> str:
    """Return a text that may be written to a terminal as it is otherwise: control characters are escapes."""
    return _CONTROLS.sub(lambda found: printable(found[0]), text)


def see(page: str) -> str:
    """Return the end of a message on whose subject the documentation has a page, by its name in the folder docs."""
    return f" (docs/{page}.md)"


class OstinatoError(Exception):
    """Base of every error whose message is meant for the user; the command line prints it without a traceback.

    What it quotes may be anything: long lines are shortened in their middle, of many lines the first are kept, and
    control characters are escaped.
    """

    exit_code = 2

    def __init__(self, message: str = "") -> None:
        lines = str(message).split("\n")
        kept = [printable(shortened(line, _LONGEST_LINE)) for line in lines[:_MOST_LINES]]
        if left_out := len(lines) - len(kept):
            kept.append(f"... ({left_out:,} lines left out)")
        super().__init__("\n".join(kept))


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration.

    Args:
        key: dotted path of the setting, for example ``model.encoder.ffn.d_ff``.
        value: what was given, as the user would write it.
        reason: what is valid there, and the likely fix.
    """

    key: str
    value: object
    reason: str

    def __str__(self) -> str:
        return f"{self.key} is {shortened(repr(self.value), _LONGEST_VALUE)}: {self.reason}"


class Inert(Problem):
    """A setting that another makes useless: an error in a recipe, left out where a program stored it."""


class ConfigError(OstinatoError):
    """A configuration that cannot be used; ``problems`` holds every reason, ``str()`` is one line for each."""

    def __init__(self, problems: Iterable[Problem] | str) -> None:
        self.problems: tuple[Problem, ...] = () if isinstance(problems, str) else tuple(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(map(str, self.problems)))


class DataError(OstinatoError):
    """Data that cannot be read or used: names file, line and reason."""


class MissingFileError(DataError):
    """A published file that is not where it is looked for, or cannot be reached; it names the address."""


class CheckpointError(OstinatoError):
    """A run directory or checkpoint that cannot be read, or does not fit the model."""


class TrainingError(OstinatoError):
    """A run that cannot go on, for example after a non-finite loss."""

    exit_code = 1
