"""`ostinato family`: models of other depths with the parameters of a recipe's."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ostinato.cli.options import (
    AccessOption,
    JsonOption,
    OverridesArgument,
    RecipeArgument,
    SourceVocabOption,
    TargetVocabOption,
    words_of,
)
from ostinato.cli.output import number, print_json, print_line, print_wide

if TYPE_CHECKING:
    from ostinato.budget.family import Family
    from ostinato.config.recipe import Recipe

_HELD = {"exact": "stored parameters", "paper": "matrices and embeddings, without norms, biases and tables"}


def family(
    context: typer.Context,
    base: RecipeArgument,
    overrides: OverridesArgument = None,
    depths: Annotated[str, typer.Option(help="Depths of the arms: 1..12, or 1,2,4, or both.")] = "1..12",
    stack: Annotated[str | None, typer.Option(help="The stack that deepens; default: all together.")] = None,
    count: Annotated[
        Literal["exact", "paper"] | None,
        typer.Option(
            help="What is equal. exact: stored parameters. paper: without norms, biases and tables (Petty et al. "
            "2024). Default: paper where norms are next to nothing and there are no biases, as in depth/41m."
        ),
    ] = None,
    rounding: Annotated[
        Literal["nearest", "down"], typer.Option(help="nearest, or down: never more parameters than the base.")
    ] = "nearest",
    n_ctx: Annotated[
        int | None, typer.Option(min=1, help="Tokens that MACs assume; default: the recipe's longest.")
    ] = None,
    source_vocab: SourceVocabOption = None,
    target_vocab: TargetVocabOption = None,
    write: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a recipe for each arm.")] = None,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Trade depth for feed-forward width at equal parameters.

    For every depth the feed-forwards are made as wide as the recipe's own parameters allow. Depths at which attention
    and embeddings alone cost more are named with the reason. MACs are those of one token (encoder-decoder models: of
    one source and one target token).
    """
    from ostinato.budget.family import make_family
    from ostinato.tasks.recipes import load_recipe
    from ostinato.tasks.vocabulary import size_model

    given = overrides or []
    wanted = parse_depths(depths)
    recipe = load_recipe(base, given)
    sized = size_model(recipe, access, source=source_vocab, target=target_vocab)
    found = make_family(
        sized.model,
        wanted,
        stack=stack,
        counting=count,
        rounding=rounding,
        n_ctx=n_ctx or _longest(recipe),
    )
    options = ["--depths", depths, "--rounding", rounding]
    options += words_of(context, ("stack", "count", "n_ctx", "source_vocab", "target_vocab"))
    files = [] if write is None else _write(write, base, given, found, options)
    if json:
        print_json(_as_dict(recipe.name, found, files))
        return
    _print(recipe.name, found)
    for path in files:
        print_line(f"wrote {path}")


def _longest(recipe: Recipe) -> int:
    """Return the most tokens that a recipe's model reads on a side; a source and its target may be one."""
    from ostinato.tasks.registry import task_config

    data, model = recipe.data, recipe.model
    if model.has_two_sides:
        return max(data.max_source_length, data.max_target_length)
    of_target = data.max_target_length * (model.generates or model.reads == "masked")
    of_source = data.max_source_length * (task_config(recipe.task).has_sources or not of_target)
    return data.block_length or of_target + of_source


def parse_depths(text: str) -> list[int]:
    """Return the depths in a text such as `1..3,6`: 1, 2, 3, 6."""
    from ostinato.config.base import MOST

    depths: dict[int, None] = {}
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        try:
            low, high = int(first), int(last if dots else first)
        except ValueError:
            low, high = 0, 0
        if dots and low > high >= 1:
            raise typer.BadParameter(f"the range '{part}' is empty: from low to high, 1..12", param_hint="--depths")
        if low < 1 or high > MOST:
            raise typer.BadParameter(f"'{part}' is no depth: 1..12, or 1,2,4", param_hint="--depths")
        depths |= dict.fromkeys(range(low, high + 1))
    return list(depths)


def _write(folder: Path, base: str, overrides: list[str], found: Family, options: list[str]) -> list[Path]:
    from ostinato.config.files import YAML_SUFFIXES
    from ostinato.tasks.recipes import write_derived

    command = shlex.join(["ostinato", "family", base, *overrides, *options])
    stem = Path(base).stem if base.endswith(YAML_SUFFIXES) else base.strip("/").replace("/", "-")
    return [
        write_derived(
            folder / f"{stem}-{arm.n_steps}-steps.yaml",
            base,
            overrides=overrides,
            model=arm.settings,
            description=f"{base} with {arm.n_steps} steps, feed-forward {arm.d_ff}, equal parameters",
            command=command,
        )
        for arm in found.arms
    ]


def _as_dict(name: str, found: Family, files: list[Path]) -> dict[str, Any]:
    keys = ("n_steps", "d_ff", "parameters", "residual", "macs")
    return {
        "base": name,
        "parameters": found.parameters,
        "count": found.counting,
        "n_ctx": found.n_ctx,
        "arms": [{key: getattr(arm, key) for key in keys} for arm in found.arms],
        "infeasible": [{"n_steps": one.n_steps, "reason": one.reason} for one in found.infeasible],
        "files": [str(path) for path in files],
    }


def _print(name: str, found: Family) -> None:
    d_model = found.base.d_model
    print_line(f"{name}: width {d_model}, {found.parameters:,} parameters; equal: {_HELD[found.counting]}")
    columns = ["n_steps", "d_ff", "d_ff / d_model", "parameters", "residual", "residual %", "MACs per token"]
    rows = []
    for arm in found.arms:
        residual = 100 * arm.residual / found.parameters
        cells = arm.n_steps, arm.d_ff, arm.d_ff / d_model, arm.parameters, arm.residual, residual, arm.macs
        rows.append([number(cell) for cell in cells])
    if rows:
        print_wide(columns, rows, right=True)
        print_line(f"MACs: at {found.n_ctx:,} tokens of context")
    for one in found.infeasible:
        print_line(one.reason)
