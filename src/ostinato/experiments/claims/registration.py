"""Whether claims were there before what was found: checked in the history of the claims' repository.

An outcome says when the first of its runs began, and the hash of the claim that it was judged by. It counts where

    the newest commit of the claim's file that is not later than that moment has this hash, and
    the file has it today: neither effect nor runs have changed since, and
    the sweep that it names, where it names one, had the same arms and measures at that moment, of those that count, and
    no earlier outcome of its name has the same arm and seed where the claim or the settings of its arms were others: a
    threshold or a setting that is changed after a result needs seeds of its own. Counts and timings have no seeds, and
    outcomes of before claims were registered are pilots.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ostinato.config.claim import SweepSource
from ostinato.config.files import parse_yaml, read_yaml, shipped_files
from ostinato.errors import ConfigError
from ostinato.experiments.claims.design import named_by
from ostinato.experiments.claims.files import (
    Claim,
    Outcome,
    list_claims,
    outcome_path,
    read_outcome,
    registered_hash,
    with_variants,
)


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit that changed a file, and what the file held after it; None where it was deleted."""

    name: str
    seconds: int
    text: str | None


def check_outcomes(directory: Path, paper: str | None = None) -> dict[str, str | None]:
    """Return for every claim that has an outcome in a folder why that outcome does not count, None where it does.

    Args:
        directory: of outcomes, in the git repository in which the claims are.

    Raises:
        ConfigError: there is no git, or the folder is in no repository, in another one's, or in one without its
            history.
    """
    if not _git(directory, "ls-files", "--", "."):  # installed somewhere inside another project's repository
        reason = "the git repository around it does not have this folder: run the check in a checkout of the library"
        raise ConfigError(f"{directory}: {reason}")
    if _git(directory, "rev-parse", "--is-shallow-repository").strip() == "true":
        raise ConfigError(f"{directory}: the repository has no history (git fetch --unshallow)")
    found = {}
    for claim in with_variants(claim for claim in list_claims() if paper in (None, claim.config.paper)):
        outcome = read_outcome(claim, [directory])
        if outcome is not None:
            found[claim.name] = why_not_registered(claim, outcome, directory)
    return found


def why_not_registered(claim: Claim, outcome: Outcome, directory: Path) -> str | None:
    """Say why an outcome does not count; None where its claim was there before its runs, and is there unchanged.

    Raises:
        ConfigError: there is no git, or the files are in no repository.
    """
    head = outcome.head
    if "began" not in head:
        return "does not say when its runs began"
    if head["registered"] != claim.registered:
        return "the claim has changed since its runs"
    began = datetime.fromisoformat(head["began"])
    versions = list(_history(claim.path))
    before = [one for one in versions if one.seconds <= began.timestamp()]
    if not before:
        return f"its runs began {began:%Y-%m-%d %H:%M} UTC, before the claim was committed"
    # The newest comes first.
    newest = before[0]
    if newest.text is None or _hash_of(newest.text, claim) != head["registered"]:
        return f"its runs began {began:%Y-%m-%d %H:%M} UTC, when the claim said otherwise ({newest.name[:7]})"
    source = claim.config.source
    if isinstance(source, SweepSource) and isinstance(source.sweep, str):
        path = shipped_files("sweeps").get(source.sweep, Path(source.sweep))
        then = [one for one in _history(path) if one.seconds <= began.timestamp()]
        if not then or then[0].text is None:
            return f"its runs began before the sweep {source.sweep} was committed"
        committed = parse_yaml(then[0].text, Path(f"{path} of {then[0].name[:7]}"))
        if _named_settings(committed, claim) != _named_settings(read_yaml(path), claim):
            return f"what it names of the sweep {source.sweep} has changed since its runs ({then[0].name[:7]})"
    own = _seeds_of(outcome.rows)
    for commit in _history(outcome_path(claim, directory)):
        first, *rows = (json.loads(line) for line in (commit.text or "{}").splitlines())
        if "registered" not in first:  # of before claims were registered: a pilot
            continue
        both = own & _seeds_of(rows)
        if both and any(first.get(key) != head.get(key) for key in ("registered", "settings")):
            arm, seed = min(both)
            return f"{arm} with seed {seed} was judged by another claim or settings before ({commit.name[:7]})"
    return None


def _seeds_of(rows: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return the arms and seeds of trained runs."""
    return {(row["arm"], str(row["seed"])) for row in rows if row.get("key")}


def _hash_of(text: str, claim: Claim) -> str | None:
    """Return what a claim's file registered, given its text; None where it was no YAML."""
    try:
        return registered_hash(parse_yaml(text, claim.path), claim.variant)
    except ConfigError:
        return None


def _named_settings(settings: dict[str, Any], claim: Claim) -> dict[str, Any]:
    """Return what a claim is computed from in a sweep's file: what all arms have, its own arms, and its measures.

    It is read as it was written: an old file need not fit today's settings (`named_part` is the same of a parsed one).
    """
    named = named_by([*claim.config.expect, *claim.config.controls])
    source = claim.config.source
    assert isinstance(source, SweepSource)
    compared = [one for one in source.compared if (one.arm, one.name) in named]
    arms = {arm for arm, _ in named} | {arm for one in compared for arm in one.others}
    waiting = list(arms)
    by_name = {arm["name"]: arm for arm in settings["arms"]}
    while waiting:
        after = by_name.get(waiting.pop(), {}).get("after")
        if after is not None and after not in arms:
            arms.add(after)
            waiting.append(after)
    measures = [
        {key: value for key, value in measure.items() if key != "arms"}
        for measure in settings.get("measures", [])
        if any(own == measure["name"] or own.startswith(f"{measure['name']}.") for _, own in named)
    ]
    common = {key: settings.get(key) for key in ("recipe", "overrides", "seeds")}
    return common | {"arms": [by_name.get(name) for name in sorted(arms)], "measures": measures}


def _history(path: Path) -> Iterator[_Commit]:
    """Yield the commits that changed a file, the newest first."""
    log = _git(path.parent, "log", "--format=%H %ct", "--", path.name)
    for name, seconds in (line.split() for line in log.splitlines()):
        try:
            text = _git(path.parent, "show", f"{name}:./{path.name}")
        except ConfigError:  # deleted by this commit
            text = None
        yield _Commit(name, int(seconds), text)


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"git cannot be run ({error.strerror}): the check reads the history of the claims") from error
    if done.returncode:
        raise ConfigError(f"{folder}: the history of the claims cannot be read: {done.stderr.strip()}")
    return done.stdout
