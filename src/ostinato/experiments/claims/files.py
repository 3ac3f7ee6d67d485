"""Claims of the papers by name: their files, and the outcomes of running them.

A claim is `claims/<paper>/<name>.yaml`, written by hand and committed before its first run. Its outcome is
`<paper>/<name>.jsonl` in a folder of outcomes, written by `ostinato reproduce` only: a first line with verdict, date,
command, versions and every number with its interval beside its band, then the rows it was computed from. The outcomes
that come with the library lie beside the claims. `ostinato.experiments.claims.staleness` says whether an outcome is
still of its claim and of today's code, `registration` whether the claim was there before it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ostinato.config.claim import ClaimConfig
from ostinato.config.files import find_file, read_yaml, say_once, shipped_directory, shipped_files
from ostinato.config.load import check_settings
from ostinato.data.disk import hash_of
from ostinato.data.output_files import write_new_text
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.experiments.results import read_rows

State = Literal["supported", "contradicted", "inconclusive", "void", "not run", "stale"]
STATES: tuple[State, ...] = get_args(State)
_FOLDER = "claims"
_DESCRIPTIVE = {"name", "where", "statement", "limits", "minutes", "gpu", "inputs", "description"}
"""What may be reworded after the first run."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim and the file it is in; `variant`: the name of the variant that this is, None for the claim itself."""

    config: ClaimConfig
    path: Path
    variant: str | None = None

    @property
    def name(self) -> str:
        """`<paper>/<name>`."""
        return f"{self.config.paper}/{self.config.name}"

    @property
    def registered(self) -> str:
        """SHA-256 of what is run and what is expected, as the file says it."""
        return registered_hash(read_yaml(self.path), self.variant)


def registered_hash(settings: Mapping[str, Any], variant: str | None = None) -> str:
    """Return SHA-256 of the settings in a claim's file, without those that only describe it."""
    content = {key: value for key, value in settings.items() if key not in _DESCRIPTIVE}
    if variant is not None:
        content["variant"] = settings.get(variant)
    return hash_of(content)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What `ostinato reproduce` found.

    Args:
        head: verdict, numbers, controls, what each arm chose (tuning), registered (hash of the claim), began (when the
            first of its runs did), date, command, versions, and what `staleness` compares: settings, fingerprints.
        rows: {arm, seed, values}, one an arm and seed; those of a control's own runs also have its name.
    """

    head: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def verdict(self) -> State:
        """Return what was found when the claim was run: supported, contradicted, inconclusive or void."""
        return self.head["verdict"]  # type: ignore[no-any-return]

    @property
    def made_with(self) -> str:
        """Return version and commit of the library it was made with."""
        versions = self.head["versions"]
        commit, _, dirty = (versions.get("commit") or "").partition("-")
        return ", ".join(filter(None, (versions["ostinato"], commit[:7] + (f"-{dirty}" if dirty else ""))))


def claims_directory() -> Path:
    """Return the folder of the claims that come with the library."""
    return shipped_directory(_FOLDER)


def list_claims() -> list[Claim]:
    """Return the claims that come with the library, by paper and name."""
    return [load_claim(name) for name in shipped_files(_FOLDER)]


def with_variants(claims: Iterable[Claim]) -> Iterator[Claim]:
    """Yield every claim, and after it its variant, where it has one."""
    for claim in claims:
        yield claim
        if claim.config.gpu is not None:
            yield variant(claim, "gpu")


def load_claim(name_or_path: str | Path) -> Claim:
    """Return a claim by its name, or from a YAML file.

    Raises:
        ConfigError: nothing of that name, with the nearest ones; all that is wrong with the file; or a file of the
            user's own with the name of a claim of the library, whose outcome it would replace.
    """
    path = find_file(_FOLDER, name_or_path, "claim")
    settings = read_yaml(path)
    settings.setdefault("name", path.stem)
    claim = Claim(check_settings(settings, ClaimConfig), path)
    shipped = shipped_files(_FOLDER).get(claim.name)
    if shipped is not None and not shipped.samefile(path):
        reason = f"is a claim of the library, whose outcome {path} would replace: give yours a name of its own"
        raise ConfigError([Problem("name", claim.name, reason)])
    return claim


def variant(claim: Claim, name: str) -> Claim:
    """Return a claim as its variant says, for now `gpu`: settings that replace those of the claim, by dotted keys.

    Its limits are its own, or none.

    Raises:
        ConfigError: there is no such variant, or a key that does not exist.
    """
    changes = claim.config.gpu if name == "gpu" else None
    if changes is None:
        known = "gpu" if claim.config.gpu is not None else "none"
        raise ConfigError([Problem("variant", name, f"{claim.name} has {known}")])
    settings = claim.config.model_dump(mode="json", exclude={"gpu"})
    settings["limits"] = ""  # those of the claim are of its size
    for key, value in changes.items():
        _replace(settings, key, value)
    settings["name"] = f"{claim.config.name}-{name}"
    return Claim(check_settings(settings, ClaimConfig), claim.path, name)


def command(claim: Claim) -> str:
    """Return the command that runs a claim again; files are the user's own, and are named only."""
    inputs = "".join(f" --input {name}=..." for name in claim.config.inputs)
    chosen = "" if claim.variant is None else f" --variant {claim.variant}"
    name = claim.name.removesuffix(f"-{claim.variant}")
    # A name finds claims of the library only.
    found = name if name in shipped_files(_FOLDER) else shlex.quote(str(claim.path))
    return f"ostinato reproduce {found}{chosen}{inputs}"


def outcome_path(claim: Claim, directory: Path) -> Path:
    """Return where a claim's outcome lies in a folder of outcomes."""
    return directory / claim.config.paper / f"{claim.config.name}.jsonl"


def read_outcome(claim: Claim, directories: Sequence[Path]) -> Outcome | None:
    """Return the outcome in the first folder that has one, None where none has.

    One of 0.1.0, which knew no verdicts, is none: a line says so, and the next one replaces it.

    Raises:
        DataError: a file that is no outcome.
    """
    for directory in directories:
        path = outcome_path(claim, directory)
        if path.is_file():
            try:
                head, *rows = read_rows(path)
                if "holds" not in head or "verdict" in head:
                    return Outcome(
                        {**head, "registered": str(head.get("registered")), "verdict": str(head["verdict"])}, rows
                    )
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{path}: is no outcome of a claim: {error!r}") from error
            say_once(f"{path}: was written by version 0.1.0 and does not count: `ostinato reproduce` replaces it")
    return None


def write_outcome(claim: Claim, outcome: Outcome, directory: Path) -> Path:
    """Write an outcome, whole or not at all, in place of an earlier one; return its file.

    Raises:
        ConfigError: a link, device or folder stands at its place.
    """
    path = outcome_path(claim, directory)
    lines = [json.dumps(line, ensure_ascii=False) for line in (outcome.head, *outcome.rows)]
    write_new_text(path, "\n".join(lines) + "\n", overwrite=True)
    return path


def _replace(settings: Any, key: str, value: Any) -> None:
    """Set what a dotted key names; numbers are places in lists."""
    *parents, last = key.split(".")
    part = last
    try:
        for part in parents:
            settings = settings[int(part)] if isinstance(settings, list) else settings[part]
        part = last
        settings[int(last) if isinstance(settings, list) else last] = value
    except (KeyError, IndexError, ValueError, TypeError) as error:
        raise ConfigError([Problem("gpu", key, f"the claim has no {part!r} there")]) from error
