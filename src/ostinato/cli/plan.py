"""`ostinato plan`: what a recipe's depth looks like and costs, before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ostinato.cli.measure import (
    BatchSizesOption,
    BeamsOption,
    Measured,
    MeasuredLinesOption,
    MeasureOption,
    RoundsOption,
    ThreadsOption,
    Timing,
    measure_recipes,
    print_measured,
    with_measured,
)
from ostinato.cli.options import (
    DeviceOption,
    ExpectedDepthOption,
    JsonOption,
    MirrorOption,
    SourceVocabOption,
    TargetVocabOption,
    split_settings,
)

if TYPE_CHECKING:
    from ostinato.experiments.compare.plans import PlannedRecipe


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "Example: ostinato plan scan/transformer scan/universal model.encoder.n_steps=6"
    app.command("plan", epilog=example)(plan)


def plan(
    context: typer.Context,
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]",
            help="Recipes to compare (names, YAML files, run directories), and settings to change in all of them.",
            show_default=False,
        ),
    ],
    source_vocab: SourceVocabOption = None,
    target_vocab: TargetVocabOption = None,
    source_length: Annotated[
        int, typer.Option(min=1, help="Source tokens to count for, where there are sources.")
    ] = 32,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens, or a text's, to count for.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Sentences to count bytes for.")] = 1,
    beam: Annotated[int, typer.Option(min=1, help="Hypotheses a sentence to count the cache for.")] = 1,
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Precision of training to count activations for.")
    ] = "float32",
    expected_depth: ExpectedDepthOption = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative difference up to which budgets match the first recipe's.")
    ] = 0.01,
    measure: MeasureOption = False,
    batch_sizes: BatchSizesOption = "1",
    beams: BeamsOption = "1,5",
    rounds: RoundsOption = 5,
    threads: ThreadsOption = None,
    device: DeviceOption = "auto",
    jsonl: MeasuredLinesOption = None,
    mirror: MirrorOption = None,
    json: JsonOption = False,
) -> None:
    """Draw a recipe's depth, and count what it costs.

    Parameters, multiply-accumulates and bytes. Several recipes stand side by side: where they differ, and whether their
    budgets match the first one's. Vocabulary sizes come from the options, the recipe, or the task's data where that is
    generated or already fetched. With --measure the same models take turns at the same work, on random weights.
    """
    from ostinato.budget import Assumptions
    from ostinato.cli.output import print_json
    from ostinato.data.registry import DataAccess
    from ostinato.experiments.compare.plans import as_dicts, plan_recipes

    names, settings = split_settings(recipes)
    if not names:
        raise typer.BadParameter("name at least one recipe", param_hint="RECIPE")
    timing = Timing.of(batch_sizes, beams, rounds, threads, device) if measure else None
    if not measure and (named := Timing.options_given(context)):
        raise typer.BadParameter("is for timing: add --measure", param_hint=" ".join(named))
    planned = plan_recipes(
        names,
        settings,
        assumptions=Assumptions(
            source_length, target_length, batch_size, beam, precision, expected_depth=_depths(expected_depth or [])
        ),
        access=DataAccess.default(mirror),
        source_vocab=source_vocab,
        target_vocab=target_vocab,
    )
    measured = None if timing is None else measure_recipes(planned, timing, source_length, target_length, jsonl)
    if json:
        print_json(with_measured(as_dicts(planned, tolerance), measured))
        return
    _print(planned, measured, tolerance)


def _print(planned: Sequence[PlannedRecipe], measured: Sequence[Measured] | None, tolerance: float) -> None:
    from ostinato.cli.budgets import print_budgets, print_differences
    from ostinato.cli.drawing import draw_recipe
    from ostinato.cli.output import say

    for one in planned:
        draw_recipe(one)
        say()
    print_budgets(planned)
    if len(planned) > 1:
        print_differences(planned, tolerance)
    if measured is not None:
        print_measured(measured)


def _depths(given: list[str]) -> dict[str, float]:
    """Return the depths that `encoder=4.5` names by stack."""
    found = {}
    for text in given:
        stack, _, rounds = text.partition("=")
        try:
            found[stack.strip()] = float(rounds)
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not STACK=ROUNDS", param_hint="--expected-depth") from None
    return found
