"""`ostinato compare`: finished runs on the same references, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import BeamOption, CheckpointOption, DeviceOption, JsonOption, MirrorOption


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compare", epilog="Example: ostinato compare runs/baseline runs/one-wide --split test")(compare)


def compare(
    systems: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run directories, or files written by `ostinato evaluate --predictions`; the first is the reference. "
            "Or files written by --jsonl, to be shown again.",
            show_default=False,
        ),
    ],
    split: Annotated[
        list[str] | None,
        typer.Option("--split", help="Split, may be repeated; default: the first recipe's.", show_default=False),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", help="Metric, may be repeated; default: the first recipe's.", show_default=False),
    ] = None,
    checkpoint: CheckpointOption = "best",
    beam: BeamOption = None,
    max_examples: Annotated[int | None, typer.Option(min=1, help="Compare on so many, spread evenly.")] = None,
    samples: Annotated[int, typer.Option(help="Samples of the bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 12345,
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens of the pass whose MACs are counted.")] = 16,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens of that pass.")] = 16,
    fresh: Annotated[bool, typer.Option("--fresh", help="Decode again what runs keep from before.")] = False,
    jsonl: Annotated[Path | None, typer.Option("--jsonl", help="Write the rows to this file as well.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    device: DeviceOption = "auto",
    mirror: MirrorOption = None,
    json: JsonOption = False,
) -> None:
    """Compare finished runs on the same references.

    Scores and differences with bootstrap intervals, sizes, costs and speeds. A difference is claimed only where its
    95 % interval excludes 0. Outputs are kept in the run directories.
    """
    from ostinato.cli.output import complain, print_json
    from ostinato.data.registry import DataAccess
    from ostinato.experiments.compare.paired import compare as compare_systems
    from ostinato.experiments.compare.systems import Choices
    from ostinato.experiments.results import write_rows

    choices = Choices(
        splits=split,
        metrics=metric,
        checkpoint=checkpoint,
        max_examples=max_examples,
        decoding=None if beam is None else {"beam": beam},
        n_samples=samples,
        seed=seed,
        lengths=(source_length, target_length),
        fresh=fresh,
        device=device,
        access=DataAccess.default(mirror),
    )
    rows = compare_systems(systems, choices, on_line=complain)
    if jsonl is not None:
        write_rows(rows, jsonl)
    if json:
        print_json(rows)
        return
    _print(rows, markdown)


def _print(rows: list[dict[str, Any]], markdown: bool) -> None:
    from ostinato.cli.output import print_table, say
    from ostinato.experiments.compare import paired_tables
    from ostinato.experiments.results import markdown as as_markdown

    for columns, lines in (paired_tables.score_table(rows), paired_tables.cost_table(rows)):
        if markdown:
            say(as_markdown(columns, lines))
        else:
            print_table(columns, lines)
    for line in paired_tables.notes(rows):
        say(line)
