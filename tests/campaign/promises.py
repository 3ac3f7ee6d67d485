"""What holds of every call of the command line, whatever it is given: an exit code, some short lines, and nothing else.

Calls are made in this process, one after the other. An `Asker` counts them and keeps what was broken, so that one test
shows everything that a sweep found.
"""

from __future__ import annotations

import gc
import signal
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
from damage import snapshot

from ostinato.cli import main

CODES = (0, 1, 2)
"""Done; a run that could not go on, or lines that could not be read; wrong use, settings or data."""
_MOST_LINES, _MOST_LETTERS = 40, 12_000
_HANG_S = 120
"""A guard against what never ends, and no bound: a call takes a fraction of a second."""


class Outcome(NamedTuple):
    """Of one call."""

    code: int
    out: str
    err: str


class Asker:
    """Calls the command line and notes what it should not have done.

    Args:
        capture: of standard output and error.
    """

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture
        self.n_cases = 0
        self.broken: list[str] = []

    def ask(
        self, case: str, *arguments: object, codes: Sequence[int] = CODES, unchanged: Sequence[Path] = ()
    ) -> Outcome:
        """Call the command line as a case of its own.

        Args:
            codes: those that are right. unchanged: files and folders that the call must leave as they are.
        """
        self.n_cases += 1
        before = [snapshot(path) for path in unchanged]
        self._capture.readouterr()
        failure, code = "", -1
        try:
            with _ended_where_it_hangs():
                main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            where = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
        out, err = self._capture.readouterr()
        for complaint in [failure] if failure else self._complaints(code, err, codes):
            self.note(case, arguments, complaint)
        for path, held in zip(unchanged, before, strict=True):
            if (found := snapshot(path)) != held:
                changed = sorted(name for name in found.keys() | held if found.get(name) != held.get(name))
                self.note(case, arguments, f"changed {path.name}: {', '.join(changed)[:200]}")
        return Outcome(code, out, err)

    def note(self, case: str, arguments: Sequence[object], complaint: str) -> None:
        """Keep a complaint."""
        self.broken.append(f"{case}: {' '.join(map(str, arguments))[:160]}: {complaint}")

    def _complaints(self, code: int, err: str, codes: Sequence[int]) -> Iterator[str]:
        if code not in codes:
            yield f"exit code {code}, not one of {codes}: {err[:200]!r}"
        if code and not err.strip():
            yield f"exit code {code} without a word"
        if len(err) > _MOST_LETTERS or err.count("\n") > _MOST_LINES:
            yield f"{len(err)} letters on {err.count(chr(10))} lines of standard error: {err[:200]!r}"
        if "Traceback" in err:
            yield f"a traceback on standard error: {err[-300:]!r}"
        if odd := sorted({one for one in err if not one.isprintable() and one != "\n"}):
            yield f"{odd[:5]} on standard error: {err[:200]!r}"

    def conclude(self, least: int) -> None:
        """Assert that nothing was broken, in so many cases or more, and say how many there were."""
        gc.collect()
        with self._capture.disabled():
            print(f"{self.n_cases} cases, {len(self.broken)} broken promises")
        assert not self.broken, f"{len(self.broken)} of {self.n_cases}:\n" + "\n".join(self.broken)
        assert self.n_cases >= least


@contextmanager
def _ended_where_it_hangs() -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"nothing came of it in {_HANG_S} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(_HANG_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
