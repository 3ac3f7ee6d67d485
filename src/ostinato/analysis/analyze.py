"""Every analysis that applies to some runs: data, figures and one report in a folder."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.analysis.drawing import HOW_TO_GET_FIGURES, NARROW, can_draw, save_figure, svg_of
from ostinato.analysis.report import Section, WrittenFinding, is_report, write_report
from ostinato.analysis.studies import STUDIES, Finding, Study, Subject
from ostinato.data.example import take_evenly
from ostinato.data.output_files import check_output, new_file, write_new_text
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.loading import LoadedRun
from ostinato.tasks.registry import build_task

_SUFFIXES = (".json", ".npz", ".svg", ".png")
_LONGEST_NAME = 100
"""Characters of runs' names in a file's name, which file systems limit to 255 bytes."""


@dataclass(frozen=True, slots=True)
class Analysed:
    """The files that were written.

    Args:
        report: the HTML file. found: names of the analyses that applied. left_out: why the others did not, by name.
        files: everything, the report first.
    """

    report: Path
    found: tuple[str, ...]
    left_out: dict[str, str]
    files: tuple[Path, ...]


def choose(only: Sequence[str] | None) -> tuple[Study, ...]:
    """Return the analyses of these names, in the report's order; None: all.

    Raises:
        ConfigError: a name that is none.
    """
    names = [study.name for study in STUDIES]
    if unknown := [name for name in only or () if name not in names]:
        raise ConfigError([Problem("only", name, f"must be one of {', '.join(names)}") for name in unknown])
    return tuple(study for study in STUDIES if only is None or study.name in only)


def subjects(
    runs: Sequence[LoadedRun],
    split: str | None,
    max_examples: int,
    access: DataAccess | None = None,
    example: int | None = None,
) -> list[Subject]:
    """Return runs with the examples of their analysis, under unique names.

    Args:
        split: None: the first of each run's recipe, else the task's last. max_examples: spread evenly over it.
        example: number of the one that analyses of one example show, from 1, among those that are read; None: the one
            of median length.

    Raises:
        ConfigError: a task without the split, or an example that is not among those read. DataError: data that cannot
            be read.
    """
    found: list[Subject] = []
    for run in runs:
        task = build_task(run.recipe.task, run.recipe.data, access, trains=False)
        splits = run.recipe.evaluation.splits or [task.splits()[-1]]
        chosen = split or splits[0]
        examples = list(take_evenly(task.examples(chosen), max_examples))
        if example is not None and not 1 <= example <= len(examples):
            reason = f"must be from 1 to {len(examples)}, the examples that are read (--max-examples) of {chosen}"
            raise ConfigError([Problem("example", example, reason)])
        by = run.recipe.evaluation.by
        name = stem = run.directory.resolve().name
        taken, number = {subject.name for subject in found}, 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        place = None if example is None else example - 1
        found.append(Subject(name, run, examples, tuple(task.by if by is None else by), chosen, place))
    return found


@dataclass(frozen=True, slots=True)
class Survey:
    """All findings, before they are written.

    Args:
        found: the analyses that apply, with their findings. reasons: why an analysis does not apply to some or all of
            the runs, by its name.
    """

    found: list[tuple[Study, list[Finding]]]
    reasons: dict[str, str]

    @property
    def left_out(self) -> dict[str, str]:
        """Why analyses apply to none of the runs, by name."""
        names = {study.name for study, _ in self.found}
        return {name: why for name, why in self.reasons.items() if name not in names}


def survey(
    given: Sequence[Subject],
    *,
    only: Sequence[str] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Survey:
    """Run the analyses that apply; see `analyze`.

    Raises:
        ConfigError: an unknown name.
    """
    applying, reasons = _split(choose(only), given)
    needs = [{kind for study, mine in applying if subject in mine for kind in study.needs} for subject in given]
    if on_start is not None:
        extra = sum(study.extra_examples(mine) for study, mine in applying)
        on_start(sum(len(subject.examples) for subject, kinds in zip(given, needs, strict=True) if kinds) + extra)
    for subject, kinds in zip(given, needs, strict=True):
        if kinds:
            subject.collect(kinds, on_progress)
    return Survey([(study, study.find(mine, on_progress)) for study, mine in applying], reasons)


def analyze(
    given: Sequence[Subject],
    out: Path,
    *,
    only: Sequence[str] | None = None,
    on_start: Callable[[int], None] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> Analysed:
    """Run the analyses that apply, and write their data, figures and the report into a folder.

    A folder that is there is written to again: an earlier report, and plain files of the names of its data and figures,
    are replaced, and others are left alone.

    Args:
        given: see `subjects`; the first is the one others are compared with.
        on_start: called with the number of all examples to be run. on_progress: called with the number of further ones
            done.

    Raises:
        ConfigError: an unknown name, no matplotlib, or a folder that cannot be written to: see `check_folder`.
    """
    check_folder(out)
    return write(given, survey(given, only=only, on_start=on_start, on_progress=on_progress), out)


def check_folder(out: Path) -> None:
    """Refuse what `write` would refuse, before long work.

    Raises:
        ConfigError: matplotlib is not installed; what is there is no folder; its report.html is another program's; a
            file that has the name of one of an analysis is a link, a device or a folder.
    """
    if not can_draw():
        raise ConfigError(HOW_TO_GET_FIGURES)
    if os.path.lexists(out) and not out.is_dir():
        raise ConfigError(f"{out}: is there already and is no folder; name another one")
    check_output(out / "report.html", overwrite=True, is_ours=is_report)
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        if path.suffix in _SUFFIXES and any(path.name.startswith(f"{study.name}-") for study in STUDIES):
            check_output(path, overwrite=True)


def write(given: Sequence[Subject], surveyed: Survey, out: Path) -> Analysed:
    """Write data, figures and the report of findings into a folder.

    Raises:
        ConfigError: no matplotlib, or see `check_folder`.
    """
    check_folder(out)
    out.mkdir(parents=True, exist_ok=True)
    sections, files = [], []
    for study, findings in surveyed.found:
        shown = [_write(finding, study, out) for finding in findings]
        files += [path for one in shown for path in (one.svg, one.png, *one.data)]
        sections.append(Section(study, shown, surveyed.reasons.get(study.name, "")))
    report = write_report(out / "report.html", given, sections, surveyed.left_out)
    names = tuple(study.name for study, _ in surveyed.found)
    return Analysed(report, names, surveyed.left_out, (report, *files))


def _split(
    studies: Sequence[Study], given: Sequence[Subject]
) -> tuple[list[tuple[Study, list[Subject]]], dict[str, str]]:
    """Return the studies that apply, each with its runs, and by name why one does not apply to some or all of them."""
    applying, reasons = [], {}
    for study in studies:
        why_not: dict[str, str] = {}
        for subject in given:
            if (reason := study.why_not(subject)) is not None:
                why_not[subject.name] = reason
        mine = [subject for subject in given if subject.name not in why_not]
        texts = [f"{name}: {reason}" for name, reason in why_not.items()]
        if len(given) > 1 and not mine and len(set(why_not.values())) == 1:
            texts = [f"all runs: {why_not[given[0].name]}"]
        together = study.why_not_together(mine) if mine else None
        if together is not None:
            texts.append(together)
        elif mine:
            applying.append((study, mine))
        if texts:
            reasons[study.name] = "; ".join(texts)
    return applying, reasons


def _write(finding: Finding, study: Study, out: Path) -> WrittenFinding:
    """Write numbers, arrays and the figure of a finding."""
    stem = out / f"{study.name}-{_file_name(finding.runs, of_one=study.of_runs is None)}"
    table = {"columns": finding.columns, "rows": finding.rows}
    content = {"analysis": study.name, "runs": finding.runs, "note": finding.note, "table": table} | finding.data
    text = json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    data = [stem.with_name(f"{stem.name}.json")]
    write_new_text(data[0], text + "\n", overwrite=True)
    if finding.arrays:
        data.append(stem.with_name(f"{stem.name}.npz"))
        with new_file(data[1], overwrite=True) as partial:
            np.savez_compressed(partial, **finding.arrays)  # type: ignore[arg-type]
    figure = finding.draw(False)
    # Its last suffix is replaced, and a run's name may have a dot.
    svg, png = save_figure(figure, data[0], overwrite=True)
    narrow = svg_of(finding.draw(True)) if figure.get_figwidth() > NARROW else ""
    return WrittenFinding(finding, svg, png, data, narrow)


def _file_name(runs: str, *, of_one: bool) -> str:
    """Return a name for files about these runs; of every run another one.

    Args:
        of_one: it is one run's name, else all runs' with blanks between them.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", runs)
    if len(name) <= _LONGEST_NAME and name == (runs if of_one else runs.replace(" ", "-")):
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(runs.encode()).hexdigest()[:8]}"


def _finite(value: Any) -> Any:
    """Return a value that JSON can hold: infinities and NaN become None."""
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
