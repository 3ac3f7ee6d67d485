"""A plan drawn in the terminal: one column a step, one row a kind of sub-layer, the same set the same mark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ostinato.cli.output import console, readable_width, say

if TYPE_CHECKING:
    from rich.text import Text

    from ostinato.config.model import StackConfig
    from ostinato.experiments.side_by_side import PlannedRecipe
    from ostinato.plan import Kind, Plan

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green")
_ABSENT = "-"
_GAP = "  "


def draw_recipe(planned: PlannedRecipe) -> None:
    """Write a recipe's sizes, its stacks step by step, and how deep they are assumed to run."""
    from ostinato.experiments.side_by_side import shared_banks

    sized = planned.sized
    sizes = f"{sized.target:,}" if sized.source is None else f"{sized.source:,} source, {sized.target:,} target"
    say(f"{planned.name}: width {sized.model.d_model}")
    say(f"vocabulary {sizes} ({sized.origin})")
    for name, plan in sized.model.plans().items():
        stack = sized.model.stacks()[name]
        say(f"\n{name}: {_about(plan, stack)}")
        say(_GAP + ", ".join(_sizes(stack, planned.model.d_model)))
        for line in drawing(plan, [kind for kind, _ in stack.sub_layers()], readable_width()):
            console().print(line, soft_wrap=True)
    say()
    for kind, bank, stacks in shared_banks(sized.model):
        say(f"{kind}: bank '{bank}' serves {' and '.join(stacks)} with the same sets")
    say("depth: " + ", ".join(f"{name} {depth}" for name, depth in planned.budget.depth.items()))


def _about(plan: Plan, stack: StackConfig) -> str:
    """Return a stack's sizes and what belongs to no single step."""
    rounds = "" if plan.n_rounds == len(plan.steps) else f" in {plan.n_rounds} rounds"
    norm = {"layer": "LayerNorm", "rms": "RMSNorm"}[stack.norm.kind]
    tables = {use.position for use in plan.uses() if use.position is not None}
    relative: str = stack.relative.kind
    if relative in ("window", "buckets"):
        relative += " (one table)" if len(tables) == 1 else f" ({len(tables)} tables)"
    steps = "1 step" if len(plan.steps) == 1 else f"{len(plan.steps)} steps"
    return f"{steps}{rounds}, {stack.norm.placement}-{norm}, positions {stack.positions.kind}, relative {relative}"


def _sizes(stack: StackConfig, d_model: int) -> Iterator[str]:
    """Yield the widths of every kind of sub-layer that is there."""
    from ostinato.config.model import AttentionConfig, SeparableConvConfig

    for kind, sub in stack.sub_layers():
        if all(index is None for index in sub.sets(stack.n_steps)):
            continue
        if isinstance(sub, AttentionConfig):
            yield f"{kind} {sub.n_heads} heads x {sub.head_width(d_model)}"
        elif isinstance(ffn := stack.ffn, SeparableConvConfig):
            yield f"{kind} {ffn.kind} of kernels {ffn.kernel_in} and {ffn.kernel_out} x {ffn.d_ff:,}"
        else:
            yield f"{kind} {ffn.activation} x {ffn.d_ff:,}"


def drawing(plan: Plan, kinds: Sequence[Kind], width: int) -> Iterator[Text]:
    """Yield the lines of one stack; where its steps are too many for the width, they go on in another block."""
    rows = [_row(plan, kind) for kind in kinds]
    heads = [str(step.index + 1) for step in plan.steps]
    rounds = [str(step.round + 1) for step in plan.steps]
    norms_width = max(len(norms) for *_, norms in rows)
    cell = max(len(mark) for marks in (heads, rounds, *(marks for _, _, marks, _ in rows)) for mark in marks)
    label = [max(len("round"), *(len(kind) for kind, *_ in rows)), max(len("bank"), *(len(row[1]) for row in rows))]
    room = width - sum(label) - norms_width - 3 * len(_GAP)
    n = max(1, room // (cell + len(_GAP)))
    has_rounds = plan.n_rounds != len(plan.steps)
    for start in range(0, len(heads), n):
        if start:
            yield _line("", "", [], "", label, cell)
        part = slice(start, start + n)
        yield _line("step", "bank", heads[part], "norms", label, cell, is_head=True)
        if has_rounds:
            yield _line("round", "", rounds[part], "", label, cell, is_head=True)
        for kind, bank, marks, norms in rows:
            yield _line(kind, bank, marks[part], norms, label, cell)


def _row(plan: Plan, kind: Kind) -> tuple[str, str, list[str], str]:
    """Return a kind, its bank, the mark of every step, and how its norms are spread."""
    cells = [("", _ABSENT) if name is None else name.rsplit("_", 1) for name in plan.row(kind)]
    banks = sorted({bank for bank, _ in cells if bank})
    norms = {(use.weights, use.norm) for use in plan.uses() if use.kind == kind}
    words = "with weights" if len(norms) == len(plan.names(kind)) else "one per step"
    return kind, "/".join(banks), [mark for _, mark in cells], words if banks else ""


def _line(
    kind: str, bank: str, marks: Sequence[str], norms: str, widths: Sequence[int], cell: int, *, is_head: bool = False
) -> Text:
    from rich.text import Text

    line = Text(f"{_GAP}{kind.ljust(widths[0])}{_GAP}{bank.ljust(widths[1])}", style="dim" if is_head else "")
    for mark in marks:
        style = "dim" if is_head or mark == _ABSENT else _COLOURS[int(mark) % len(_COLOURS)]
        line.append(f"{_GAP}{mark.rjust(cell)}", style=style)
    line.append(f"{_GAP}{norms}", style="dim")
    line.rstrip()
    return line
