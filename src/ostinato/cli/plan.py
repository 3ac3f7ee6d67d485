"""`ostinato plan`: what a recipe's depth looks like and costs, before anything is built."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.options import JsonOption, MirrorOption

if TYPE_CHECKING:
    from ostinato.budget import MacCount, ParameterCount
    from ostinato.plan import Kind, Plan
    from ostinato.tasks.vocabulary import SizedModel


def register(app: typer.Typer) -> None:
    """Add the command."""
    example = "Example: ostinato plan scan/transformer scan/universal model.encoder.n_steps=6"
    app.command("plan", epilog=example)(plan)


def plan(
    recipes: Annotated[
        list[str],
        typer.Argument(
            metavar="RECIPE [KEY=VALUE]",
            help="Recipes to compare (names, YAML files, run directories), and settings to change in all of them.",
            show_default=False,
        ),
    ],
    source_vocab: Annotated[int | None, typer.Option(min=1, help="Rows of the source vocabulary.")] = None,
    target_vocab: Annotated[int | None, typer.Option(min=1, help="Rows of the target vocabulary.")] = None,
    source_length: Annotated[int, typer.Option(min=1, help="Source tokens to count MACs for.")] = 32,
    target_length: Annotated[int, typer.Option(min=1, help="Target tokens to count MACs for.")] = 32,
    mirror: MirrorOption = None,
    json: JsonOption = False,
) -> None:
    """Draw a recipe's depth, and count what it costs.

    Parameters and multiply-accumulates, of several recipes side by side. Vocabulary sizes come from the options, the
    recipe, or the task's data where that is generated or already fetched.
    """
    from ostinato.budget import count_macs, count_parameters
    from ostinato.cli.output import print_json
    from ostinato.data.registry import DataAccess
    from ostinato.tasks.recipes import load_recipe
    from ostinato.tasks.vocabulary import size_model

    overrides = [text for text in recipes if "=" in text]
    names = [text for text in recipes if "=" not in text]
    if not names:
        raise typer.BadParameter("name at least one recipe", param_hint="RECIPE")
    access = DataAccess.default(mirror)
    counted: list[tuple[str, SizedModel, ParameterCount, MacCount]] = []
    for name in names:
        recipe = load_recipe(name, overrides)
        sized = size_model(recipe, access, source=source_vocab, target=target_vocab)
        parameters = count_parameters(sized.model)
        counted.append((name, sized, parameters, count_macs(sized.model, source_length, target_length)))
    if json:
        print_json([_as_dict(*one) for one in counted])
        return
    for name, sized, _, _ in counted:
        _draw(name, sized)
    _compare(counted, source_length, target_length)


def _as_dict(name: str, sized: SizedModel, parameters: ParameterCount, macs: MacCount) -> dict[str, Any]:
    plans = {
        stack: [
            {"step": step.index, "round": step.round, "uses": [asdict(use) for use in step.uses]} for step in p.steps
        ]
        for stack, p in sized.model.plans().items()
    }
    return {
        "recipe": name,
        "vocabulary": {"source": sized.source, "target": sized.target, "from": sized.origin},
        "plans": plans,
        "parameters": asdict(parameters),
        "macs": asdict(macs),
    }


def _draw(name: str, sized: SizedModel) -> None:
    """Print one table a stack: a row for each kind, a column for each step."""
    from ostinato.cli.output import print_table, say

    sizes = f"{sized.target}" if sized.source is None else f"{sized.source} source, {sized.target} target"
    say(f"{name}: width {sized.model.d_model}, vocabulary {sizes} ({sized.origin})")
    for stack, drawn in sized.model.plans().items():
        kinds = list(dict.fromkeys(use.kind for use in drawn.uses()))
        columns = [stack, "bank", *(str(step.index + 1) for step in drawn.steps), "norms"]
        print_table(columns, [_row(drawn, kind) for kind in kinds])


def _row(drawn: Plan, kind: Kind) -> list[str]:
    """Return the kind, its bank, the parameter set of every step, and how norms are spread."""
    cells = [("", "-") if name is None else name.rsplit("_", 1) for name in drawn.row(kind)]
    banks = sorted({bank for bank, _ in cells if bank})
    norms = {(use.weights, use.norm) for use in drawn.uses() if use.kind == kind}
    shared = len(norms) == len(drawn.names(kind))
    return [kind, "/".join(banks), *(index for _, index in cells), "with weights" if shared else "one per step"]


def _compare(
    counted: list[tuple[str, SizedModel, ParameterCount, MacCount]], source_length: int, target_length: int
) -> None:
    """Print the counts of all recipes side by side."""
    from ostinato.cli.output import print_table

    names = [name for name, *_ in counted]
    parameters = [p for _, _, p, _ in counted]
    macs = [m for *_, m in counted]
    parts = dict.fromkeys(part for p in parameters for part in p.by_part)
    rows = [["stored", *(p.stored for p in parameters)]]
    rows += [[f"  {part}", *(p.by_part.get(part, 0) for p in parameters)] for part in parts]
    rows += [["active", *(p.active for p in parameters)], ["executed", *(p.executed for p in parameters)]]
    print_table(["parameters", *names], rows)
    mac_parts = dict.fromkeys(part for m in macs for part in m.by_part)
    rows = [["total", *(m.total for m in macs)]]
    rows += [[f"  {part}", *(m.by_part.get(part, 0) for m in macs)] for part in mac_parts]
    rows += [
        ["per source token", *(m.per_source_token for m in macs)],
        ["per target token", *(m.per_target_token for m in macs)],
        ["per generated token", *(m.per_generated_token for m in macs)],
    ]
    print_table([f"MACs ({source_length} source, {target_length} target tokens)", *names], rows)
