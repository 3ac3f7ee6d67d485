"""`ostinato compare`: finished runs on the same references, with intervals, or where they are equally good."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ostinato.cli.options import (
    AccessOption,
    BeamOption,
    CheckpointOption,
    DeviceOption,
    JsonOption,
    NoVerifyOption,
    OverwriteOption,
    options_given,
)
from ostinato.cli.output import check_output_file, print_json, print_line, print_stderr, print_table, write_rows_to
from ostinato.data.disk import reading
from ostinato.errors import DataError

_INTERVALS, _MATCH = "Intervals and costs", "Where runs are equally good"
_OF_INTERVALS = ("samples", "seed", "source_length", "target_length", "fresh", "jsonl", "checkpoint", "device")
_OF_LOSS = ("split", "metric", "max_examples", "beam", "points", "no_verify")
_OF_COMPARISONS = tuple(name for name in (*_OF_INTERVALS, *_OF_LOSS) if name not in ("jsonl", "points"))
"""Options that make rows; those of an earlier comparison are made."""
_OF_RUNS = ("checkpoint", "no_verify", "device", "beam", "source_length", "target_length", "fresh")
"""Options that decode and count; nothing is decoded for a file of predictions, nor known of its model."""


def compare(
    context: typer.Context,
    systems: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run directories, or files written by `ostinato evaluate --predictions`; the first is the reference. "
            "Or files written by --jsonl, to be shown again.",
        ),
    ],
    split: Annotated[
        list[str] | None, typer.Option(help="Split, may be repeated; default: the first recipe's.")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric, may be repeated; default: the first recipe's.")
    ] = None,
    max_examples: Annotated[
        int | None, typer.Option(min=1, help="Number of examples, spread evenly over the split.")
    ] = None,
    checkpoint: CheckpointOption = None,
    no_verify: NoVerifyOption = False,
    device: DeviceOption = "auto",
    beam: BeamOption = None,
    samples: Annotated[int, typer.Option(min=100, help="Samples of the bootstrap.", rich_help_panel=_INTERVALS)] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.", rich_help_panel=_INTERVALS)] = 12345,
    source_length: Annotated[
        int, typer.Option(min=1, help="Source tokens of the pass whose MACs are counted.", rich_help_panel=_INTERVALS)
    ] = 16,
    target_length: Annotated[
        int, typer.Option(min=1, help="Target tokens of that pass.", rich_help_panel=_INTERVALS)
    ] = 16,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Decode again, although the runs keep outputs of an earlier comparison.",
            rich_help_panel=_INTERVALS,
        ),
    ] = False,
    jsonl: Annotated[
        Path | None, typer.Option(help="Write the rows to this new file as well.", rich_help_panel=_INTERVALS)
    ] = None,
    overwrite: OverwriteOption = False,
    match: Annotated[
        Literal["perplexity", "loss"] | None,
        typer.Option(
            help="Compare checkpoints of equal held-out perplexity, or scores at equal held-out loss.",
            rich_help_panel=_MATCH,
        ),
    ] = None,
    points: Annotated[
        int, typer.Option(min=1, help="With --match loss: losses to compare at.", rich_help_panel=_MATCH)
    ] = 5,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Compare finished runs on the same references.

    Scores and differences with bootstrap intervals, sizes, costs and speeds. A difference is claimed only where its
    95 % interval excludes 0. Outputs are kept in the run directories.

    --match perplexity names the checkpoint of each run whose held-out perplexity is that of a shallower run at its end,
    to be fine-tuned alike: training.init_from=RUN training.init_checkpoint=CHECKPOINT. --match loss scores every saved
    checkpoint of each run on a split (default: test, exact_match), and compares the runs at equal held-out loss. Runs
    keep as many checkpoints as training.keep_last says.
    """
    from ostinato.experiments.compare import matched_runs, paired_tables
    from ostinato.experiments.compare.paired import are_rows
    from ostinato.experiments.compare.paired import compare as compare_systems
    from ostinato.experiments.compare.systems import Choices

    if json and markdown:
        raise typer.BadParameter("choose one of them", param_hint="--markdown --json")
    not_here = (*_OF_INTERVALS, *(_OF_LOSS if match == "perplexity" else ())) if match else ["points"]
    if named := options_given(context, not_here):
        raise typer.BadParameter(
            f"cannot go with --match {match}" if match else "is for --match loss", param_hint=named
        )
    if not match and are_rows(systems) and (named := options_given(context, _OF_COMPARISONS)):
        raise typer.BadParameter("has no effect on rows of an earlier comparison", param_hint=named)
    if all(path.is_file() for path in systems) and (named := options_given(context, _OF_RUNS)):
        raise typer.BadParameter("is for runs, and these are files", param_hint=named)
    check_output_file(jsonl, overwrite)
    decoding = {} if beam is None else {"beam": beam}
    shown: object
    notes: list[str] = []
    if match == "perplexity":
        shown = rows = matched_runs.match_perplexity([matched_runs.read_curve(run) for run in systems])
        names = ["reference", "run", "depth", "perplexity", "reached", "checkpoint", "own", "mismatch"]
        tables = [(names, [[row[name] for name in names] for row in rows])]
    elif match == "loss":
        splits, metrics = split or ["test"], metric or ["exact_match"]
        if len(splits) > 1 or len(metrics) > 1:
            raise typer.BadParameter("--match loss takes one split and one metric", param_hint="--split / --metric")
        options: dict[str, Any] = {"max_examples": max_examples, "access": access, "verify": not no_verify, **decoding}
        curves = [matched_runs.read_curve(run) for run in systems]
        matched_runs.check_alike(curves)
        pairs = {
            str(run): matched_runs.score_pairs(run, curve, splits[0], metrics[0], **options)
            for run, curve in zip(systems, curves, strict=True)
        }
        rows = matched_runs.match_loss(pairs, points)
        shown = {"pairs": pairs, "matched": rows}
        tables = [(["loss", *pairs], [[row["loss"], *(row["scores"][run] for run in pairs)] for row in rows])]
    else:
        choices = Choices(
            splits=split,
            metrics=metric,
            checkpoint=checkpoint,
            max_examples=max_examples,
            decoding=decoding or None,
            n_samples=samples,
            seed=seed,
            lengths=(source_length, target_length),
            fresh=fresh,
            device=device,
            verify=not no_verify,
            access=access,
        )
        shown = rows = compare_systems(systems, choices, on_line=print_stderr)
        if jsonl is not None:
            write_rows_to(jsonl, rows, overwrite)
        if not json:
            with reading(" and ".join(map(str, systems)), DataError):  # rows may come from a file
                tables = [paired_tables.score_table(rows), paired_tables.cost_table(rows)]
                notes = paired_tables.notes(rows)
    if json:
        print_json(shown)
        return
    for columns, lines in tables:
        print_table(columns, lines, markdown=markdown)
        if markdown:
            print_line()
    for line in notes:
        print_line(line)
