"""`ostinato solve`: the value of a setting at which a recipe's model costs what another one does."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ostinato.cli.completion import recipe_names_and_setting_keys
from ostinato.cli.options import (
    AccessOption,
    DeviceOption,
    JsonOption,
    SourceVocabOption,
    TargetVocabOption,
    options_given,
    split_settings,
    words_of,
)
from ostinato.cli.output import number, print_json, print_line, print_stderr, print_table, print_wide

if TYPE_CHECKING:
    from ostinato.budget.solver import Solution
    from ostinato.config.recipe import Recipe
    from ostinato.experiments.compare.matched_models import Wanted

_LENGTHS = ("source_length", "target_length")
_SEARCH = (*_LENGTHS, "batch_size", "beam")
_BEAR_ON: dict[str, tuple[str, ...]] = {
    "parameters": ("rounding",),
    "active": ("rounding",),
    "macs": ("rounding", *_LENGTHS),
    "macs_per_generated_token": ("rounding", *_LENGTHS),
    "bytes": ("rounding", *_SEARCH),
    "cache": ("rounding", *_SEARCH),
    "latency": (*_SEARCH, "threads", "device"),
}
"""What can be matched, and the options that change what it comes to."""
_RECORDED = ("rounding", *_SEARCH, "tolerance", "threads", "device", "source_vocab", "target_vocab")
"""Options that stand in the command which a written recipe names, where they are not at their default."""


def solve(
    context: typer.Context,
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE [REFERENCE] [KEY=VALUE]",
            help="The recipe, the one it should cost as much as (default: the recipe itself, of the settings "
            "given here only with those of data and task), and settings to change in the recipe.",
            autocompletion=recipe_names_and_setting_keys,
        ),
    ],
    free: Annotated[
        str,
        typer.Option(
            help="The setting to solve: d_ff, d_attn, d_model, n_steps, n_experts, expert_width, d_ff+d_attn (at their "
            "ratio), or any integer setting of the model outside lists such as segments, by the end of its path "
            "(decoder.ffn.d_ff)."
        ),
    ] = "d_ff",
    match: Annotated[
        str,
        typer.Option(
            help=f"What is to be equal: {', '.join(_BEAR_ON)}. Several, with commas between them: a model for each of "
            "them, side by side with the reference."
        ),
    ] = "parameters",
    target: Annotated[float | None, typer.Option(min=0, help="A number to match, in place of a reference.")] = None,
    rounding: Annotated[
        Literal["nearest", "down"], typer.Option(help="nearest, or down: never more than the reference.")
    ] = "nearest",
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens, for MACs, bytes and latency.")] = 32,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens, for MACs, bytes and latency.")] = 32,
    batch_size: Annotated[int, typer.Option(min=1, help="Sentences at once, for bytes and latency.")] = 1,
    beam: Annotated[int, typer.Option(min=1, help="Beam width, for bytes and latency.")] = 1,
    tolerance: Annotated[
        float,
        typer.Option(
            min=0,
            help="Relative tolerance: latency is searched up to it; a count that is further off is reported as such.",
        ),
    ] = 0.05,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads, for latency.")] = None,
    device: DeviceOption = "auto",
    source_vocab: SourceVocabOption = None,
    target_vocab: TargetVocabOption = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the solved recipe.")] = None,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Solve a setting so that a model costs as much as another.

    Counts are matched by the nearest integer; a message follows where that is further off than the tolerance. Latency
    is measured on this machine, on random weights. Where no value fits the reason is named.
    """
    from ostinato.budget import Assumptions, lengths_without_positions
    from ostinato.experiments.compare.matched_models import Wanted, match_model
    from ostinato.experiments.results import assumptions_of
    from ostinato.tasks.recipes import check_derived, load_recipe, write_derived
    from ostinato.tasks.vocabulary import size_model

    if write is not None:
        check_derived(write)
    names, overrides = split_settings(recipes)
    if not 1 <= len(names) <= 2:
        raise typer.BadParameter("name one recipe, and at most one reference", param_hint="RECIPE [REFERENCE]")
    if target is not None and len(names) == 2:
        raise typer.BadParameter("give a reference or a number, not both", param_hint="--target")

    matches: list[Any] = [name.strip() for name in match.split(",")]
    if unknown := [name for name in matches if name not in _BEAR_ON]:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(_BEAR_ON)}", param_hint="--match")
    bearing = {name for one in matches for name in _BEAR_ON[one]}
    of_others = dict.fromkeys(name for names in _BEAR_ON.values() for name in names if name not in bearing)
    if named := options_given(context, of_others):
        raise typer.BadParameter(f"has no effect on {match}", param_hint=named)

    def sized(name: str, settings: list[str]) -> Recipe:
        recipe = load_recipe(name, settings)
        model = size_model(recipe, access, source=source_vocab, target=target_vocab).model
        return recipe.model_copy(update={"model": model})

    # A recipe beside itself reads the same data, whose vocabulary is part of what models cost.
    of_data = [one for one in overrides if one.startswith(("data.", "task."))] if len(names) == 1 else []
    reference = None if target is not None else sized(names[-1], of_data)
    recipe = sized(names[0], overrides)
    if bearing.issuperset(_LENGTHS):
        assumed = Assumptions(source_length, target_length)
        notes = dict.fromkeys(  # a recipe beside itself has no line twice
            f"{name}: {line}"
            for name, one in ((names[0], recipe), (names[-1], reference))
            if one is not None
            for line in lengths_without_positions(one.model, assumptions_of(one, assumed))
        )
        for note in notes:
            print_stderr(note)
    wanted = Wanted(
        free=free,
        match=matches[0],
        source_length=source_length,
        target_length=target_length,
        rounding=rounding,
        batch_size=batch_size,
        beam=beam,
        device=device,
        threads=threads,
        tolerance=tolerance,
    )
    if len(matches) > 1:
        if reference is None or write is not None:
            raise typer.BadParameter("several matches need a reference, and write no recipe", param_hint="--match")
        all_wanted = [replace(wanted, match=one) for one in matches]
        rows = _side_by_side(recipe, reference, all_wanted)
        if json:
            print_json({"recipe": names[0], "reference": names[-1], "free": free, "models": rows})
        else:
            _print_side_by_side(names, rows)
        return
    if reference is not None:
        target = wanted.cost(reference)(reference.model)
    assert target is not None
    found = match_model(recipe.model, target, wanted, recipe)
    if write is not None:
        goal_option = [] if reference is not None else ["--target", f"{target:.15g}"]
        options = ["--free", free, "--match", match, *goal_option]
        options += words_of(context, _RECORDED)
        write_derived(
            write,
            names[0],
            overrides=overrides,
            model=found.values,
            description=f"{names[0]} with {', '.join(f'{key} {value}' for key, value in found.values.items())}",
            command=shlex.join(["ostinato", "solve", *names, *overrides, *options]),
        )
    if json:
        print_json(_as_dict(names, found, match, reference, tolerance))
        return
    _print(names, found, match, reference, tolerance, rounding)
    if write is not None:
        print_line(f"wrote {write}")


def _side_by_side(recipe: Recipe, reference: Recipe, wanted: Sequence[Wanted]) -> list[dict[str, Any]]:
    """Return what the reference costs, and for everything that is to be matched the solved model and what it costs;
    `reason` where there is none."""
    from ostinato.budget.free import WithoutEffect
    from ostinato.budget.solver import OutOfReach
    from ostinato.experiments.compare.matched_models import match_model

    costs = {one.match: one.cost(recipe) for one in wanted}
    of_reference: dict[str, Any] = {one.match: one.cost(reference)(reference.model) for one in wanted}
    rows = [{"match": None, **of_reference}]
    for one in wanted:
        # What was measured of the reference is what is matched and shown: it is not measured again.
        try:
            found = match_model(recipe.model, rows[0][one.match], one, recipe)
        except (OutOfReach, WithoutEffect) as error:
            rows.append({"match": one.match, "reason": "; ".join(problem.reason for problem in error.problems)})
            continue
        own = {name: cost(found.config) for name, cost in costs.items() if name != one.match}
        values = {f"model.{key}": value for key, value in found.values.items()}
        rows.append({"match": one.match, "values": values, one.match: found.achieved} | own)
    return rows


def _print_side_by_side(names: list[str], rows: list[dict[str, Any]]) -> None:
    matches = [name for name in rows[0] if name != "match"]
    lines = [[f"{names[-1]} (reference)", "", *(number(rows[0][name]) for name in matches)]]
    for row in rows[1:]:
        values = " ".join(f"{key}={value}" for key, value in row.get("values", {}).items())
        shares = []
        for name in matches:
            beside = f" ({row[name] / rows[0][name]:.3g} x)" if name in row and rows[0][name] else ""
            shares.append(f"{number(row[name])}{beside}" if name in row else "")
        lines.append([f"{names[0]}, equal {row['match']}", values, *shares])
    print_wide(["model", "solved", *("latency, s" if name == "latency" else name for name in matches)], lines)
    for row in rows:
        if "reason" in row:
            print_line(f"equal {row['match']}: {row['reason']}")


def _as_dict(
    names: list[str], found: Solution, match: str, reference: Recipe | None, tolerance: float
) -> dict[str, Any]:
    return {
        "recipe": names[0],
        "reference": names[-1] if reference is not None else None,
        "free": found.free,
        "match": match,
        "values": {f"model.{key}": value for key, value in found.values.items()},
        "target": found.target,
        "achieved": found.achieved,
        "residual": found.residual,
        "is_within": found.is_within(tolerance),
        "parts": _parts(found, reference),
    }


def _parts(found: Solution, reference: Recipe | None) -> dict[str, dict[str, int]]:
    """Return the stored parameters by part, of what was found and of the reference."""
    from ostinato.budget import count_parameters

    models = {"solved": found.config} | ({} if reference is None else {"reference": reference.model})
    counts = {name: count_parameters(model) for name, model in models.items()}
    return {name: {"stored": count.stored, **count.by_part} for name, count in counts.items()}


def _why_this_one(match: str, rounding: str) -> str:
    """Say in what way a value is the best one that is further off than the tolerance."""
    if match == "latency":  # the search is coarse, and no two readings are alike
        return "this is the nearest of those that were measured, and another search may find another"
    if rounding == "down":
        return "this is the nearest value that does not cost more"
    return "this is the nearest value"


def _print(
    names: list[str], found: Solution, match: str, reference: Recipe | None, tolerance: float, rounding: str
) -> None:
    values = " ".join(f"model.{key}={value}" for key, value in found.values.items())
    print_line(f"{names[0]}: {values}")
    relative = f" ({100 * found.residual / found.target:+.3g} %)" if found.target else ""
    achieved, wanted, residual = (number(n) for n in (found.achieved, found.target, found.residual))
    print_line(f"{match}: {achieved}, wanted {wanted}, residual {residual}{relative}")
    if not found.is_within(tolerance):
        print_line(f"not within {100 * tolerance:g} %: {_why_this_one(match, rounding)}")
    parts = _parts(found, reference)
    rows = dict.fromkeys(part for counted in parts.values() for part in counted)
    columns = ["parameters", *("solved" if name == "solved" else names[-1] for name in parts)]
    print_table(columns, [[row, *(counted.get(row, 0) for counted in parts.values())] for row in rows])
