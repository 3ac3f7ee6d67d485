"""`ostinato data`: the tasks, where their data comes from, and what it looks like."""

from __future__ import annotations

from collections import defaultdict
from typing import Annotated, Any

import typer

from ostinato.cli.options import AccessOption, JsonOption, OverridesArgument, RecipeArgument, TrustOption
from ostinato.cli.output import console, number, print_columns, print_json, print_line, print_table

_MOST_OF_A_FOLDER = 20
"""Files of one folder that are listed one by one."""
EPILOG = "Example: ostinato data show scan split=length"

app = typer.Typer(
    help="List tasks, download their data, show examples.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
)

TaskArgument = Annotated[
    str, typer.Argument(metavar="TASK", help="A task's name, or a recipe: its name, YAML file or run directory.")
]
SettingsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="The task's settings (split=length); a recipe's (task.split=length)."),
]


@app.command("list", epilog="Example: ostinato data list")
def list_tasks(json: JsonOption = False) -> None:
    """List the tasks and where their data comes from."""
    from ostinato.tasks.catalog import list_tasks as tasks

    found = tasks()
    if json:
        print_json([entry.as_dict() for entry in found])
        return
    print_columns((entry.name, entry.origin, entry.summary) for entry in found)


@app.command("fetch", epilog="Example: ostinato data fetch cogs --mirror /media/usb/data")
def fetch(
    task: TaskArgument,
    settings: SettingsArgument = None,
    access: AccessOption = None,
    trust: TrustOption = False,
    json: JsonOption = False,
) -> None:
    """Download and check the files of a task."""
    from dataclasses import replace

    from ostinato.tasks.catalog import open_task

    opened = open_task(task, settings or [], replace(access, trust=trust))
    paths = {file.path: str(opened.access.fetch(file)) for file in opened.files()}
    if json:
        print_json({"task": task, "files": paths})
        return
    for name, path in paths.items():
        print_line(f"{name} -> {path}")
    if not paths:
        print_line(f"{task} needs no download")


@app.command("show", epilog=EPILOG)
def show(
    task: TaskArgument, settings: SettingsArgument = None, access: AccessOption = None, json: JsonOption = False
) -> None:
    """Print a task's protocol, sizes and examples."""
    from ostinato.tasks.catalog import describe_task, open_task

    described = describe_task(open_task(task, settings or [], access))
    if json:
        print_json(described)
    else:
        _print_task(described)


@app.command("pack", epilog="Example: ostinato data pack mine.yaml data.train='texts/*.parquet'")
def pack(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="How many tokenise at a time; default: one a CPU.")
    ] = None,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Tokenise a recipe's training split once, into files that training maps into memory.

    Run twice it finds what is there, and goes on where it was killed. Training with the same data and tokenizer reads
    it, with data.packed=always also small ones.
    """
    from ostinato.tasks.recipes import load_recipe
    from ostinato.tasks.registry import build_task
    from ostinato.training.reporter import make_reporter
    from ostinato.training.training_data import packed_data

    resolved = load_recipe(recipe, overrides or [])
    reporter = make_reporter(None if json else console())
    data = packed_data(resolved, build_task(resolved.task, resolved.data, access))
    made = data.pack(data.tokenizers(resolved, reporter.on_packing), reporter.on_packing, n_processes=processes)
    if json:
        print_json(made.describe() | {"n_tokens": made.n_tokens, "folder": str(made.folder)})
        return
    print_line(f"{number(made.n_texts)} texts, {number(made.n_tokens)} tokens: {made.folder}")


@app.command("baselines", epilog="Example: ostinato data baselines geoquery/transformer")
def baselines(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Scores for every value of a column of the examples.")
    ] = None,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Print scores of baselines without a model: the most frequent answer, the source, frequencies."""
    from ostinato.tasks.baselines import baseline_scores_by
    from ostinato.tasks.recipes import load_recipe
    from ostinato.tasks.registry import build_task
    from ostinato.training.prepare import with_splits

    resolved = load_recipe(recipe, overrides or [])
    task = build_task(resolved.task, resolved.data, access)
    splits = with_splits(resolved, task).evaluation.splits or []
    found = {split: baseline_scores_by(resolved, task, split, by) for split in splits}
    if json:
        print_json(found if by is not None else {split: scores[""] for split, scores in found.items()})
        return
    rows = [
        (split, *([] if by is None else [value]), baseline, metric, score)
        for split, of_split in found.items()
        for value, scores in of_split.items()
        for baseline, of_baseline in scores.items()
        for metric, score in of_baseline.items()
    ]
    print_table(["split", *([] if by is None else [by]), "baseline", "score", "value"], rows)


def _print_task(described: dict[str, Any]) -> None:
    print_line(f"{described['task']} ({described['origin']})")
    print_line()
    print_line(described["protocol"])
    print_line()
    published = described["published"]
    columns = ["split", "examples", *(["published"] if published else [])]
    sizes = described["sizes"] | dict.fromkeys(described["missing"], "missing")
    print_table(columns, [[s, n, *([published.get(s)] if published else [])] for s, n in sizes.items()])
    for split, paths in described["stand_ins"].items():
        print_line(f"{split}: {', '.join(paths)} (data.{split}) in the place of the published split")
    for reason in dict.fromkeys(described["missing"].values()):
        lacking = [split for split, found in described["missing"].items() if found == reason]
        print_line(f"{', '.join(lacking)}: {reason}")
    what = "sources" if described["has_sources"] else "whole texts"
    for split, found in described["overlap"].items():
        print_line(f"{split}: {number(found['n_seen_sources'])} of {number(found['n'])} {what} are in train")
    for kind, names in (("metrics", described["metrics"]), ("without decoding", described["forced"])):
        if names:
            print_line(f"{kind}: {', '.join(names)}")
    if described["by"]:
        print_line(f"reported by: {', '.join(described['by'])}")
    _print_files(described["files"])
    if described["examples"]:
        print_line()
        print_line(f"examples of {described['examples_of']}")
    for example in described["examples"]:
        print_line()
        for key, value in example.items():
            print_line(f"  {key}: {value}")


def _print_files(files: list[dict[str, Any]]) -> None:
    """Print files, those of a folder that holds many of them in one line."""
    folders: defaultdict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for file in files:
        state = ", not here" if not file["is_here"] else "" if file["is_read"] else ", not read"
        folder = file["url"] or f"{file['repo']}/{file['path'].rpartition('/')[0]}"
        folders[folder, file["commit"], file["licence"], state].append(file)
    for (folder, commit, licence, state), found in folders.items():
        end = f"{licence}{state}"
        if len(found) > _MOST_OF_A_FOLDER:
            n_bytes = sum(file["n_bytes"] or 0 for file in found)
            print_line(f"{number(len(found))} files: {folder} at {commit[:10]}, {number(n_bytes)} bytes, {end}")
            continue
        for file in found:
            where = file["url"] or f"{file['repo']}/{file['path']} at {commit[:10]}"
            size = f"{number(file['n_bytes'])} bytes" if file["n_bytes"] else "size not known"
            print_line(f"file: {where}, {size}, {end}")
