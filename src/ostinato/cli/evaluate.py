"""`ostinato evaluate`: a finished run on splits of its task."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from ostinato.cli.options import (
    AccessOption,
    AddressOption,
    BatchExecutorOption,
    BeamOption,
    CachedRoundsOption,
    CheckpointOption,
    DeviceOption,
    ExitOption,
    ExitScopeOption,
    GpusOption,
    HaltingThresholdOption,
    JobsOption,
    JournalOption,
    JsonOption,
    NoVerifyOption,
    OracleOption,
    OverwriteOption,
    RoundLengthsOption,
    RunArgument,
    SetOption,
    StepsOption,
    run_settings,
)
from ostinato.cli.output import print_json, print_line, print_stderr
from ostinato.cli.results import print_published, print_splits, scored_splits


def evaluate(
    run: RunArgument,
    split: Annotated[
        list[str] | None, typer.Option(help="Split to score, may be repeated; default: the recipe's.")
    ] = None,
    checkpoint: CheckpointOption = None,
    no_verify: NoVerifyOption = False,
    n_steps: StepsOption = None,
    threshold: HaltingThresholdOption = None,
    exit: ExitOption = None,
    exit_scope: ExitScopeOption = "token",
    oracle: OracleOption = None,
    round_lengths: RoundLengthsOption = None,
    cached_rounds: CachedRoundsOption = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Column to break scores down by, may be repeated; default: the recipe's, else the task's.",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Metric, may be repeated; default: the recipe's, else the task's.")
    ] = None,
    beam: BeamOption = None,
    settings: SetOption = None,
    max_examples: Annotated[
        int | None, typer.Option(min=1, help="Number of examples, spread evenly over the split.")
    ] = None,
    predictions: Annotated[
        Path | None,
        typer.Option(help="Write every output to this new file, as JSON lines in the split's order (for one split)."),
    ] = None,
    overwrite: OverwriteOption = False,
    device: DeviceOption = "auto",
    jobs: JobsOption = 1,
    executor: BatchExecutorOption = "local",
    address: AddressOption = None,
    gpus: GpusOption = 0,
    journal: JournalOption = None,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Score a run on splits of its task.

    Loss, perplexity, token accuracy and the task's metrics, each also by metadata column; published numbers of the
    recipe stand below, beside those measured here.
    """
    from ostinato.evaluation import PredictionWriter
    from ostinato.evaluation.loading import load
    from ostinato.evaluation.workers import Jobs
    from ostinato.kernels import keep_freed_memory
    from ostinato.tasks.registry import build_task

    keep_freed_memory()
    workers = Jobs(jobs, executor, address, gpus, journal)
    writes = None if predictions is None else PredictionWriter(predictions, overwrite=overwrite)
    if writes is not None:
        writes.check()
        if journal is not None and predictions is not None and journal.resolve() == predictions.resolve():
            raise typer.BadParameter("they name one file", param_hint="--journal, --predictions")
    loaded = load(
        run,
        checkpoint=checkpoint,
        device=device,
        verify=not no_verify,
        overrides=run_settings(settings, beam=beam),
        halting_threshold=threshold,
        exit=exit,
        exit_scope=exit_scope,
        round_lengths=round_lengths,
        cached_rounds=cached_rounds,
    )
    splits = scored_splits(loaded, split)
    if predictions is not None and len(splits) > 1:
        raise typer.BadParameter(f"there are {len(splits)} splits: choose one with --split", param_hint="--predictions")
    # Before the first split is scored: all that are to be.
    task = build_task(loaded.recipe.task, loaded.recipe.data, access, trains=False)
    task.check_files(splits)
    for name in splits if len(splits) > 1 else ():  # nor is one scored in vain, because another cannot be
        loaded.check(name, by=by or None, max_examples=max_examples, oracle=oracle, access=access)
    decoding: dict[str, Any] = {} if beam is None else {"beam": beam}
    if (search := loaded.decoding(**decoding)).n_best > 1 or search.token_scores:
        kept = "--predictions holds one output of every example and its score"
        print_stderr(f"decoding.n_best and token_scores change nothing here: {kept} (ostinato generate --json has all)")
    question = {
        "splits": splits,
        "beam": beam,
        "n_steps": n_steps,
        "metrics": metric,
        "predictions": writes is not None,
        **({} if oracle is None else {"oracle": oracle}),
    }
    with writes or nullcontext() as writer, workers.runner(loaded, **question) as runner:
        results = {
            name: loaded.evaluate(
                name,
                n_steps=n_steps,
                metrics=metric or None,
                by=by or None,
                max_examples=max_examples,
                predictions=writer,
                access=access,
                runner=runner,
                oracle=oracle,
                **decoding,
            )
            for name in splits
        }
    for note in (found["data_note"] for found in results.values() if "data_note" in found):
        print_stderr(note)
    if beam is not None and not any("decoding" in found for found in results.values()):
        print_stderr("--beam: no metric reads what the model writes: nothing was decoded")
    if json:
        mean_of = {"mean_of": loaded.mean_of} if loaded.mean_of else {}
        print_json({name: found | mean_of for name, found in results.items()})
    else:
        print_splits(results, task.forced)
        if line := loaded.mean_line:
            print_line(line)
        if oracle is None:
            print_published(loaded.recipe.reference, task.config, results)
