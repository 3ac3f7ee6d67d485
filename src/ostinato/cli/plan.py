"""`ostinato plan`: a recipe's plan and budget, counted before anything is built; and timings, if asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ostinato.cli.completion import recipe_names_and_setting_keys
from ostinato.cli.drawing import draw_recipe
from ostinato.cli.options import (
    AccessOption,
    ExpectedDepthOption,
    JsonOption,
    OverwriteOption,
    SourceVocabOption,
    TargetVocabOption,
    options_given,
    split_settings,
)
from ostinato.cli.output import (
    check_output_file,
    compact,
    print_json,
    print_line,
    print_stderr,
    print_wide,
    write_rows_to,
)

if TYPE_CHECKING:
    from ostinato.experiments.compare.plans import PlannedRecipe
    from ostinato.experiments.timing.latency import Timer
    from ostinato.experiments.timing.workloads import Workload

Measured = dict[str, Any]
"""One recipe's timings: environment, and workloads: a row for each, see `ostinato.experiments.timing.speed.row`."""
_COUNTED, _TIMING = "What is counted", "Timing"
_OF_TIMING = ("batch_sizes", "beams", "rounds", "threads", "device", "jsonl")


def plan(
    context: typer.Context,
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]",
            help="Recipes to compare (names, YAML files, run directories), and settings to change in all of them.",
            autocompletion=recipe_names_and_setting_keys,
        ),
    ],
    source_vocab: SourceVocabOption = None,
    target_vocab: TargetVocabOption = None,
    source_length: Annotated[
        int, typer.Option(min=1, help="Source tokens, where there are sources.", rich_help_panel=_COUNTED)
    ] = 32,
    target_length: Annotated[
        int, typer.Option(min=1, help="Target tokens, or a text's.", rich_help_panel=_COUNTED)
    ] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Sentences, for bytes.", rich_help_panel=_COUNTED)] = 1,
    beam: Annotated[int, typer.Option(min=1, help="Beam width, for the cache.", rich_help_panel=_COUNTED)] = 1,
    precision: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Precision of training, for activations; default: the recipe's.", rich_help_panel=_COUNTED),
    ] = None,
    expected_depth: ExpectedDepthOption = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N,N",
            help="Bytes a process, where so many share the model and the batch (training.parallel.kind: fsdp).",
            rich_help_panel=_COUNTED,
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative difference up to which budgets match the first recipe's.")
    ] = 0.01,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Time updates, passes and decoding too, on random weights and random ids.",
            rich_help_panel=_TIMING,
        ),
    ] = False,
    batch_sizes: Annotated[
        str, typer.Option(metavar="N,N", help="Sentences of a timed call.", rich_help_panel=_TIMING)
    ] = "1",
    beams: Annotated[
        str, typer.Option(metavar="N,N", help="Beams of timed decoding; 1 is greedy.", rich_help_panel=_TIMING)
    ] = "1,5",
    rounds: Annotated[
        int, typer.Option(min=1, help="Timed calls of each kind, not rounds of depth.", rich_help_panel=_TIMING)
    ] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads of timed calls.", rich_help_panel=_TIMING)
    ] = None,
    device: Annotated[
        str, typer.Option(help="Device of timed calls: auto, cpu, cuda, cuda:1, mps.", rich_help_panel=_TIMING)
    ] = "auto",
    jsonl: Annotated[
        Path | None,
        typer.Option(help="Write what was measured to this new file, a row a line.", rich_help_panel=_TIMING),
    ] = None,
    overwrite: OverwriteOption = False,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Draw a recipe's depth, and count what it costs.

    Parameters, multiply-accumulates and bytes. Several recipes stand side by side: where they differ, and whether their
    budgets match the first one's. Vocabulary sizes come from the options, the recipe, or the task's data where that is
    generated or already fetched. With --measure the same models take turns at the same work, on random weights.
    """
    from dataclasses import asdict

    from ostinato.budget import Assumptions, lengths_without_positions
    from ostinato.experiments.compare.plans import as_dicts, plan_recipes, rank_bytes, short_names

    names, settings = split_settings(recipes)
    if not names:
        raise typer.BadParameter("name at least one recipe", param_hint="RECIPE")
    if not measure and (named := options_given(context, _OF_TIMING)):
        raise typer.BadParameter("is for timing: add --measure", param_hint=named)
    check_output_file(jsonl, overwrite)
    sizes, widths = _numbers(batch_sizes, "--batch-sizes"), _numbers(beams, "--beams")
    counts = [] if ranks is None else _numbers(ranks, "--ranks")
    planned = plan_recipes(
        names,
        settings if precision is None else [*settings, f"training.precision={precision}"],
        assumptions=Assumptions(
            source_length, target_length, batch_size, beam, expected_depth=_depths(expected_depth or [])
        ),
        access=access,
        source_vocab=source_vocab,
        target_vocab=target_vocab,
    )
    for one in planned:
        for line in lengths_without_positions(one.model, one.budget.assumptions):
            print_stderr(f"{one.name}: {line}")
    measured: list[Measured] = []
    if measure:
        from ostinato.experiments.timing.latency import Timer, workloads

        lengths = max(one.timed_lengths for one in planned)  # all recipes take turns at the same work
        if silent := [one.name for one in planned if not one.model.generates]:
            if named := options_given(context, ["beams"]):
                raise typer.BadParameter(f"is for decoding, and {silent[0]} writes no text", param_hint=named)
            write = "writes" if len(silent) == 1 else "write"
            print_stderr(f"decoding is not timed: {', '.join(silent)} {write} no text")
            widths = []
        measured = _measure(planned, Timer(device, threads), workloads(sizes, widths, *lengths), rounds)
        if jsonl is not None:
            rows = [row | {"environment": one["environment"]} for one in measured for row in one["workloads"]]
            write_rows_to(jsonl, rows, overwrite)
    if json:
        plans = as_dicts(planned, tolerance)
        of_ranks = [{"ranks": [asdict(rank_bytes(one, n)) for n in counts]} if counts else {} for one in planned]
        print_json([one | of_ranks[i] | ({"measured": measured[i]} if measured else {}) for i, one in enumerate(plans)])
        return
    for one in planned:
        draw_recipe(one)
        print_line()
    _print_budgets(planned)
    if counts:
        _print_ranks(planned, counts)
    if len(planned) > 1:
        _print_differences(planned, tolerance)
    if measured:
        _print_measured(short_names([one.name for one in planned]), measured)


def _measure(planned: Sequence[PlannedRecipe], timer: Timer, work: Sequence[Workload], rounds: int) -> list[Measured]:
    """Time recipes in turns, and announce every kind of call on standard error."""
    from dataclasses import asdict

    from ostinato.evaluation.timing import Effort
    from ostinato.experiments.timing.speed import measure_models
    from ostinato.experiments.timing.workloads import TimedModel

    candidates = [
        TimedModel(one.name, one.model, one.training, one.budget.assumptions.cached_rounds) for one in planned
    ]
    found = measure_models(timer, candidates, work, Effort(rounds=rounds), lambda plan: print_stderr(str(plan)))
    environment = asdict(timer.environment())
    for candidate, rows in zip(candidates, found.values(), strict=True):
        for row in rows:
            if row["workload"]["kind"] == "decoding":
                row["workload"]["cached_rounds"] = candidate.cached_rounds
    return [{"environment": environment, "workloads": rows} for rows in found.values()]


def _print_budgets(planned: Sequence[PlannedRecipe]) -> None:
    """Write parameters, multiply-accumulates and bytes, one column a recipe."""
    from ostinato.experiments.compare.plans import short_names

    names, budgets = short_names([one.name for one in planned]), [one.budget for one in planned]
    # A decoder-only model of pairs is counted for both lengths together: the others say what they are.
    a = next((b for b in budgets if b.has_two_sides), budgets[0]).assumptions
    parameters, macs, sizes = [b.parameters for b in budgets], [b.macs for b in budgets], [b.bytes for b in budgets]
    # What papers state is exact.
    rows = [["stored", *(f"{p.stored:,}" for p in parameters)], *_parts([p.by_part for p in parameters])]
    rows.append(_row("active", (p.active for p in parameters)))
    rows.append(_row("executed", (p.executed for p in parameters)))
    print_wide(["parameters", *names], rows, right=True)

    rows = [_row("total", (m.total for m in macs)), *_parts([m.by_part for m in macs])]
    if any(b.has_two_sides for b in budgets):
        title = f"MACs ({a.source_length} source, {a.target_length} target tokens)"
        rows.append(_row("per source token", (m.per_source_token for m in macs)))
        rows.append(_row("per target token", (m.per_target_token for m in macs)))
    else:
        # Of pairs that are read as one sequence those of both sides, of texts fewer.
        lengths = dict.fromkeys(str(b.assumptions.target_length) for b in budgets)
        title = f"MACs ({' and '.join(lengths)} tokens)"
        rows.append(_row("per token", (m.per_token for m in macs)))
    rows.append(_row("per generated token", (m.per_generated_token for m in macs)))
    if any(b.kaplan_flops is not None for b in budgets):
        cells = ("" if b.kaplan_flops is None else compact(b.kaplan_flops) for b in budgets)
        rows.append(["C_forward, FLOPs per token", *cells])
    print_wide([title, *names], rows, right=True)

    rows = [_row("weights", (s.weights for s in sizes), 1024)]
    for title, kind in (("activations in training", "activations"), ("cache in decoding", "cache")):
        rows.append(_row(title, (sum(s.by_part[kind].values()) for s in sizes), 1024))
        rows += _parts([s.by_part[kind] for s in sizes], 1024)
    precisions = dict.fromkeys(b.assumptions.precision for b in budgets)
    sentences = "1 sentence" if a.batch_size == 1 else f"{a.batch_size} sentences"
    print_wide([f"bytes ({sentences}, beam {a.beam}, {' and '.join(precisions)})", *names], rows, right=True)


def _print_ranks(planned: Sequence[PlannedRecipe], counts: Sequence[int]) -> None:
    """Write what every process holds, a table a recipe, a column a number of processes."""
    from ostinato.experiments.compare.plans import rank_bytes, short_names

    for name, one in zip(short_names([one.name for one in planned]), planned, strict=True):
        found, batch = [rank_bytes(one, n) for n in counts], one.budget.assumptions.batch_size
        mean = "" if one.training.ema_decay is None else " and mean of weights"
        rows = [
            _row(title, (getattr(rank, key) for rank in found), 1024)
            for title, key in (
                ("parameters", "parameters"),
                ("gradients", "gradients"),
                (f"optimiser's moments{mean}", "optimizer"),
                ("gathered in an update", "gathered"),
                ("activations", "activations"),
                ("all of these", "total"),
            )
        ]
        rows.append(["sentences", *(str(-(-batch // n)) for n in counts)])
        columns = ("1 process" if n == 1 else f"{n} processes" for n in counts)
        print_wide([f"bytes a process of {name}", *columns], rows, right=True)


def _print_differences(planned: Sequence[PlannedRecipe], tolerance: float) -> None:
    """Write the settings and plans that differ, and whether budgets match the first recipe's."""
    from ostinato.budget.compare import differing_plans, differing_settings, signed
    from ostinato.experiments.compare.plans import budget_matches, short_names

    full = [one.name for one in planned]
    names, models = short_names(full), {one.name: one.model for one in planned}
    for title, found in (("settings", differing_settings(models)), ("plans", differing_plans(models))):
        if found:
            rows = [[key, *(_setting(row, name) for name in full)] for key, row in found.items()]
            print_wide([f"{title} that differ", *names], rows)
        else:
            print_line(f"{title} that differ: none")
    rows, matches = [], budget_matches(planned, tolerance)
    for name, short in zip(full, names, strict=True):
        row = [short]
        for budget, by_name in matches.items():
            found_match = by_name[name]
            verdict = f"{'yes' if found_match.is_within else 'no'} ({signed(found_match)})"
            base = 1024 if budget == "bytes" else 1000
            row += [compact(found_match.figure, base), "reference" if name == full[0] else verdict]
        rows.append(row)
    within = f"within {tolerance:.3g}" if tolerance < 0.001 else f"within {100 * tolerance:g} %"
    print_wide(["recipe", "parameters", within, "MACs", within, "bytes", within], rows)


def _setting(row: Mapping[str, object], name: str) -> str:
    """Return a value as it is written in YAML; nothing where the recipe has no such setting."""
    if name not in row:
        return ""
    value = row[name]
    return json.dumps(value) if value is None or isinstance(value, bool | list) else str(value)


def _row(title: str, figures: Iterable[int], base: int = 1000) -> list[str]:
    return [title, *(compact(figure, base) for figure in figures)]


def _parts(by_part: Sequence[Mapping[str, int]], base: int = 1000) -> list[list[str]]:
    """Return one row a part, with nothing where a recipe does not have it."""
    parts = dict.fromkeys(part for one in by_part for part in one)
    return [[f"  {part}", *(compact(one[part], base) if part in one else "" for one in by_part)] for part in parts]


def _print_measured(names: Sequence[str], measured: Sequence[Measured]) -> None:
    """Write for each workload milliseconds, their quartiles, tokens per second, and the speed against the first."""
    from ostinato.experiments.timing.speed import conditions, work_name

    rows: list[list[str]] = []
    for found in zip(*(one["workloads"] for one in measured), strict=True):
        rows.append([f"{work_name(found[0])}: ms", *(f"{1e3 * row['median_s']:.1f}" for row in found)])
        rows.append(["  quartiles", *(f"{1e3 * row['low_s']:.1f}-{1e3 * row['high_s']:.1f}" for row in found)])
        rows.append(["  tokens/s", *(f"{row['tokens_per_s']:,.0f}" for row in found)])
        if len(found) > 1:
            speeds = [row["speed"] for row in found[1:]]
            ranges = (f"{s['value']:.2f} ({s['low']:.2f}-{s['high']:.2f})" for s in speeds)
            rows.append(["  times as fast as the first", "", *ranges])
        if any(row["disturbed"] for row in found):
            rows.append(["  disturbed calls", *(f"{row['disturbed']} of {row['n']}" for row in found)])
    print_wide(["measured", *names], rows, right=True)
    print_line(conditions({**measured[0]["workloads"][0], "environment": measured[0]["environment"]}))


def _numbers(text: str, option: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"{text!r} is no list of positive numbers such as 1,64", param_hint=option)
    return [int(part) for part in parts]


def _depths(given: list[str]) -> dict[str, float]:
    """Return the depths that `encoder=4.5` names by stack."""
    found = {}
    for text in given:
        stack, _, rounds = text.partition("=")
        try:
            found[stack.strip()] = float(rounds)
            if not math.isfinite(found[stack.strip()]):
                raise ValueError
        except ValueError:
            raise typer.BadParameter(f"'{text}' is not STACK=ROUNDS", param_hint="--expected-depth") from None
    return found
