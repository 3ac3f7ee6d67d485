"""`ostinato lm-eval`: a run scored by the evaluation harness lm-eval."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import (
    AccessOption,
    CheckpointOption,
    DeviceOption,
    JsonOption,
    NoVerifyOption,
    RunArgument,
    SetOption,
)
from ostinato.cli.output import number, print_json, print_stderr, print_table
from ostinato.cli.results import describe_threshold, scored_splits
from ostinato.loggers import errors_only


def threshold(value: str) -> float | str:
    """Return a halting threshold, which may be the trained one."""
    return value if value == "trained" else float(value)


_OF_MODEL: dict[str, Any] = {"n_steps": int, "halting_threshold": threshold, "exit": str, "exit_scope": str}
_OF_HARNESS = {"batch_size": int, "limit": float, "num_fewshot": int}


def lm_eval(
    run: RunArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help=f"{', '.join(_OF_MODEL)}; {', '.join(_OF_HARNESS)}."),
    ] = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            help="A YAML file, which can run code and fetch data: give only those that you trust; or a name that "
            "lm-eval knows. May be repeated. Default: the run's own task."
        ),
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(help="Split of the run's own task, may be repeated; default: the recipe's.")
    ] = None,
    checkpoint: CheckpointOption = None,
    no_verify: NoVerifyOption = False,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Score a run by the evaluation harness lm-eval.

    KEY=VALUE is n_steps, halting_threshold, exit or exit_scope of the model, or batch_size, limit or num_fewshot of
    lm-eval. Tasks are files of your own, or `ostinato export lm-eval`'s; names are of tasks that come with lm-eval,
    which downloads their data.
    """
    from ostinato.errors import ConfigError, see
    from ostinato.evaluation.loading import load

    try:
        from ostinato.hf.harness import score
    except ImportError as error:
        raise ConfigError(f"lm-eval is not here ({error}): pip install 'ostinato[lm-eval]'{see('lm-eval')}") from error
    from ostinato.hf.harness_tasks import write_tasks

    if tasks and split:
        raise typer.BadParameter("is for the run's own task: leave out --tasks", param_hint="--split")
    how = _read(arguments or [])
    if not tasks and how.get("num_fewshot"):
        raise typer.BadParameter("'num_fewshot': the run's own task shows no examples: give it with --tasks")
    n_steps = how.pop("n_steps", None)
    execution = {name: how.pop(name) for name in _OF_MODEL if name in how}
    loaded = load(
        run, checkpoint=checkpoint, device=device, verify=not no_verify, overrides=settings or [], **execution
    )
    if line := describe_threshold(loaded):
        print_stderr(line)
    with tempfile.TemporaryDirectory() as folder:
        if not tasks:
            splits = scored_splits(loaded, split)
            tasks = [str(file) for file in write_tasks(loaded, Path(folder) / "tasks", splits, access)]
        with errors_only("lm_eval"):  # it warns of models that are loaded already
            found = score(loaded, tasks, n_steps=n_steps, **how)
    results = found["results"]
    # Of a group of tasks lm-eval has a mean, and no count.
    counts = {name: found["n-samples"].get(name, {}).get("effective") for name in results}
    if json:
        print_json({name: {**values, "n": counts[name]} for name, values in results.items()})
        return
    rows = [
        (name, key.partition(",")[0], number(value), "" if counts[name] is None else str(counts[name]))
        for name, values in results.items()
        for key, value in values.items()
        if "," in key
    ]
    print_table(("task", "metric", "value", "documents"), rows)


def _read(arguments: list[str]) -> dict[str, Any]:
    """Return the values of KEY=VALUE arguments."""
    known = _OF_MODEL | _OF_HARNESS
    found: dict[str, Any] = {}
    for text in arguments:
        key, _, value = text.partition("=")
        if key not in known:
            raise typer.BadParameter(f"'{text}' must be KEY=VALUE with a KEY of {', '.join(known)}")
        try:
            found[key] = known[key](value)
        except ValueError as error:
            raise typer.BadParameter(f"'{text}': {value!r} is no {known[key].__name__}") from error
    for key, least in (("batch_size", 1), ("num_fewshot", 0)):
        if found.get(key, least) < least:
            raise typer.BadParameter(f"'{key}={found[key]}': must be {least} or more")
    limit = found.get("limit")
    if limit is not None and not 0 < limit < math.inf:
        raise typer.BadParameter(f"'limit={limit:g}': must be a number of examples, or a share of them")
    return found | ({"limit": int(limit)} if limit is not None and limit >= 1 else {})
