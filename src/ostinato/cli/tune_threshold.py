"""`ostinato tune-threshold`: how early the tokens of a trained model may halt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import (
    AccessOption,
    BeamOption,
    CheckpointOption,
    DeviceOption,
    ExitOption,
    ExitScopeOption,
    JsonOption,
    NoVerifyOption,
    RunArgument,
)
from ostinato.cli.output import compact, print_json, print_line, print_table, progress_bar

if TYPE_CHECKING:
    from ostinato.evaluation.threshold import Tuning
    from ostinato.models import Model


def tune_threshold(
    run: RunArgument,
    split: Annotated[str, typer.Option(help="Split to measure on; choose another one than you report.")] = "dev",
    max_drop: Annotated[float, typer.Option(help="Largest drop of the metric, as a share of a perfect score.")] = 0.002,
    thresholds: Annotated[
        str | None, typer.Option(metavar="X,Y,...", help="Thresholds in [0, 1]; default: 0.999 to 0.1.")
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric that may drop; default: the task's first metric, token_accuracy for texts."),
    ] = None,
    exit: ExitOption = None,
    exit_scope: ExitScopeOption = "token",
    checkpoint: CheckpointOption = None,
    no_verify: NoVerifyOption = False,
    beam: BeamOption = None,
    max_examples: Annotated[
        int | None, typer.Option(min=1, help="Number of examples, spread evenly over the split.")
    ] = None,
    device: DeviceOption = "auto",
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Choose how early tokens may halt, without training.

    Runs a split at several halting thresholds, and keeps with the run the one of the fewest multiply-accumulates whose
    score is within --max-drop of that at the trained threshold. `evaluate` and `generate` then use it. With --exit the
    thresholds are those of a criterion, which needs no training; models whose routers choose tokens (select,
    token_choice), and loops of several states, cannot stop by one. Beside them stands an oracle, which takes every
    label from the first round that has it right.
    """
    from ostinato.evaluation.loading import load
    from ostinato.evaluation.oracle import why_no_oracle
    from ostinato.experiments.compare import thresholds as logic

    try:
        wanted = logic.THRESHOLDS if thresholds is None else [float(part) for part in thresholds.split(",")]
    except ValueError:
        reason = f"'{thresholds}' is no list of numbers: 0.9,0.5"
        raise typer.BadParameter(reason, param_hint="--thresholds") from None
    loaded = load(run, checkpoint=checkpoint, device=device, verify=not no_verify, halting_threshold="trained")
    found: list[Tuning] = []  # as it was measured, then with the files that were written
    try:
        with progress_bar("thresholds", not json) as (set_total, advance):
            set_total(len(wanted) + 1 + (why_no_oracle(loaded.model) is None))
            written = logic.tune_threshold(
                loaded,
                split,
                thresholds=wanted,
                max_drop=max_drop,
                metric=metric,
                max_examples=max_examples,
                access=access,
                exit=exit,
                exit_scope=exit_scope,
                on_point=lambda point: advance(1),
                on_measured=found.append,
                **({} if beam is None else {"beam": beam}),
            )
            found.append(written)
    finally:  # what was measured is shown also where it cannot be written
        if found and json:
            print_json(found[-1].as_dict() | {"files": [str(path) for path in found[-1].files]})
        elif found:
            _print(found[-1], loaded.model)
            if line := loaded.mean_line:
                print_line(line)


def _print(found: Tuning, model: Model) -> None:
    from ostinato.analysis.drawing import HOW_TO_GET_FIGURES, can_draw
    from ostinato.evaluation.oracle import row_name

    stacks = list((found.oracle or found.trained).skipped)
    rows: list[list[object]] = []
    for point in (*found.points, *([found.oracle] if found.oracle else [])):
        name = "trained" if point.threshold is None else f"{point.threshold:g}"
        if point is found.oracle:
            name = row_name(found, model)
        realised = point.macs["realised"]
        rows.append(
            [
                f"{name} *" if point is found.chosen else name,
                f"{point.score:.4g}",
                *(f"{100 * point.skipped[stack]:.1f} %" if stack in point.skipped else "" for stack in stacks),
                compact(round(realised)),
                f"{100 * realised / point.macs['full']:.1f} %",
                f"{point.seconds:.2f}",
            ]
        )
    skipped = (f"{stack} skipped" for stack in stacks)
    columns = [found.heading, found.metric, *skipped, "MACs", "of full depth", "seconds"]
    print_table(columns, rows, title=f"{found.split}: {found.n:,} examples, {found.checkpoint}", right=True)
    if found.files:  # else nothing was stored that others could use
        print_line(_verdict(found))
    for path in found.files:
        print_line(f"wrote {path}")
    if not can_draw():
        print_line(f"no curve was drawn: {HOW_TO_GET_FIGURES}")


def _verdict(found: Tuning) -> str:
    chosen, trained = found.chosen, found.trained
    if chosen.threshold is None:
        return (
            f"chosen: the trained threshold; no cheaper one has a {found.metric} within {found.max_drop:g} of its own"
        )
    part = chosen.macs["realised"] / trained.macs["realised"]
    by = "" if found.exit is None else f" of {found.exit}"
    return (
        f"chosen: {chosen.threshold:g}{by}, with {found.metric} {chosen.score:.4g} (trained: {trained.score:.4g}) and "
        f"{100 * part:.1f} % of the trained threshold's MACs; evaluate and generate use it "
        "(--halting-threshold trained: they do not)"
    )
