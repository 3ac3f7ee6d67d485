"""A plan drawn in the terminal: one column for each step, one row for each kind of sub-layer.

The rounds of a segment have the same weights: its steps are drawn once, with how often they run. A sparse layer, which
stands between two steps of the settings, is a column of its own with the mark S.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ostinato.cli.drawing_rounds import training_of_rounds
from ostinato.cli.drawing_settings import lines_of, other_settings
from ostinato.cli.output import STANDARD_OUTPUT, console, print_line, readable_width
from ostinato.system_errors import naming

if TYPE_CHECKING:
    from rich.text import Text

    from ostinato.config.experts import SparseLayerConfig
    from ostinato.config.loops import SegmentConfig, StateConfig
    from ostinato.config.stack import StackConfig
    from ostinato.config.sub_layers import SubLayerConfig
    from ostinato.experiments.compare.plans import PlannedRecipe
    from ostinato.plan import Kind, Plan, Step

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red", "bright_cyan", "bright_yellow", "bright_green")
_ABSENT = "-"
_SPARSE = "S"
_GAP = "  "
_WHOSE_KEYS = {
    "first": "all rounds read the keys and values of the first",
    "all": "a round reads the keys and values of all rounds up to it",
}


def draw_recipe(planned: PlannedRecipe) -> None:
    """Write a recipe's sizes, its stacks step by step, and how deep they are assumed to run."""
    from ostinato.experiments.compare.plans import shared_banks

    sized = planned.sized
    sizes = f"{sized.target:,}" if sized.source is None else f"{sized.source:,} source, {sized.target:,} target"
    print_line(f"{planned.name}: width {sized.model.d_model}")
    print_line(f"vocabulary {sizes} ({sized.origin})")
    others, width = other_settings(planned.model), readable_width()
    for line in lines_of(others[""], "", width):
        print_line(line)
    for name, plan in sized.model.plans().items():
        stack = sized.model.stacks()[name]
        print_line(f"\n{name}: {_about(plan, stack)}")
        kept = planned.budget.assumptions.cached_rounds if name == "decoder" else None
        of_rounds = *_loops(stack), *_halting(stack, plan.n_rounds), *_kept(kept, plan.n_rounds)
        for line in (*of_rounds, *_sizes(stack, planned.model.d_model)):
            print_line(_GAP + line)
        for line in lines_of(others[name], _GAP, width):
            print_line(line)
        for drawn in drawing(plan, [kind for kind, _ in stack.sub_layers()], width):
            with naming(STANDARD_OUTPUT):
                console().print(drawn, soft_wrap=True)
    for name, recurrence in sized.model.recurrences().items():
        layers = "1 layer" if recurrence.n_layers == 1 else f"{recurrence.n_layers} layers"
        ways = ", read both ways" if recurrence.n_directions == 2 else ""
        attention = "" if recurrence.score == "none" else f", attention to the source ({recurrence.score} score)"
        print_line(f"\n{name}: {layers} of LSTM{ways}{attention}; no steps of depth")
    print_line()
    if words := list(training_of_rounds(planned.training)):
        print_line(f"in training: {'; '.join(words)}")
    for kind, bank, stacks in shared_banks(sized.model):
        print_line(f"{kind}: bank '{bank}' serves {' and '.join(stacks)} with the same sets")
    if depths := planned.budget.depth:
        print_line("depth: " + ", ".join(f"{name} {depth}" for name, depth in depths.items()))
    if any(depth.halting != "none" for depth in planned.budget.depth.values()):
        print_line("depth is assumed, for MACs; bytes are those of all rounds (--expected-depth, docs/budgets.md)")
    if experts := planned.budget.experts:
        print_line(
            "experts a token: "
            + ", ".join(f"{part} {chosen.top_k} of {chosen.n_experts}" for part, chosen in experts.items())
        )


def _about(plan: Plan, stack: StackConfig) -> str:
    """Return the settings of a stack that hold for all its steps."""
    rounds = "" if plan.n_rounds == len(plan.steps) else f" in {plan.n_rounds} rounds"
    norm = {"layer": "LayerNorm", "rms": "RMSNorm"}[stack.norm.kind]
    tables = {use.position for use in plan.uses() if use.position is not None}
    relative: str = stack.relative.kind
    if relative in ("window", "buckets"):
        relative += " (one table)" if len(tables) == 1 else f" ({len(tables)} tables)"
    steps = "1 step" if len(plan.steps) == 1 else f"{len(plan.steps)} steps"
    if stack.segments:
        steps += f" ({' + '.join(_segment(one) for one in stack.segments)})"
    return f"{steps}{rounds}, {stack.norm.placement}-{norm}, positions {stack.positions.kind}, relative {relative}"


def _segment(segment: SegmentConfig) -> str:
    """Return how many steps a segment has and how often they run: "4 x 3"; of two states "(16 x 3 + 16) x 2"."""
    times = [f"{one.n_steps} x {one.repeats}" if one.repeats > 1 else str(one.n_steps) for one in segment.states]
    steps = f"({' + '.join(times)})" if times else str(segment.n_steps)
    return f"{steps} x {segment.repeats}{' fixed' if segment.fixed else ''}" if segment.repeats else steps


def _loops(stack: StackConfig) -> Iterator[str]:
    """Yield what segments have beside their steps."""
    for number, segment in enumerate(stack.segments, 1):
        state, inject = segment.state.kind, segment.inject.kind
        words = [] if state == "input" else [f"starts from {_start(segment.state)}"]
        words += [] if inject == "none" else [f"its input enters every round ({inject})"]
        words += [_WHOSE_KEYS[segment.keys]] if segment.keys in _WHOSE_KEYS else []
        words += ["norms of every round"] if segment.norms == "by_round" else []
        words += ["a vector for every round"] if segment.vectors else []
        words += [f"maps of every round changed by rank {segment.delta_rank}"] if segment.delta_rank else []
        modulated = {"none": [], "by_round": ["of every round"], "by_time": ["made of the times of a round"]}
        words += [f"gates and scales {how}" for how in modulated[segment.modulation.kind]]
        words += ["a norm after every round"] if segment.round_norm else []
        words += ["a map at the end"] if segment.end_map else []
        words += {"none": [], "own": ["a norm at the end"], "final": ["the final norm at the end"]}[segment.end_norm]
        if words:
            yield f"segment {number}: {', '.join(words)}"
        for one in segment.states:
            words = [f"starts from {_start(one.state)}", f"adds {' and '.join(one.adds)}"]
            words += ["a norm behind its steps"] if one.norm else []
            yield f"segment {number}, state {one.name}: {', '.join(words)}"


def _start(state: StateConfig) -> str:
    """Return what a state is before the first round."""
    if state.kind == "noise":
        return f"noise of deviation {state.std:.3g}"
    if state.kind == "learned" and state.std is not None:
        return f"a learned vector of deviation {state.std:.3g}"
    return {"input": "its input", "learned": "a learned vector", "zeros": "zeros"}[state.kind]


def _kept(n_kept: int | None, n_rounds: int) -> Iterator[str]:
    """Yield of how many rounds decoding keeps keys and values, where not of all."""
    if n_kept is not None and n_kept < n_rounds:
        yield f"decoding keeps the keys and values of {n_kept} of {n_rounds} rounds"


def _halting(stack: StackConfig, n_rounds: int) -> Iterator[str]:
    """Yield the halting rule and its settings; nothing where tokens do not halt."""
    from ostinato.config.halting import (
        ActConfig,
        ByLengthConfig,
        ExitConfig,
        SelectConfig,
        StickBreakingConfig,
        TokenChoiceConfig,
    )

    match stack.halting:
        case StickBreakingConfig() as rule:
            yield f"halting stick_breaking (threshold {rule.threshold:g})"
        case ActConfig() as rule:
            words = [f"epsilon {rule.epsilon:g}", rule.mix]
            words += [] if rule.scope == "token" else [f"{rule.scope} probability"]
            words += [] if rule.freeze_halted_state else ["halted states go on"]
            words += [] if rule.force_remainder_at_max else ["no remainder at the last round"]
            yield f"halting act ({', '.join(words)})"
        case ExitConfig() as rule:
            more = "" if rule.freeze_halted_state else ", tokens that stopped go on"
            yield f"exit by a learned gate (threshold {rule.threshold:g}{more})"
        case SelectConfig() as rule:
            shares = ("all" if one is None else f"{one:.3g}" for one in rule.capacities_of(n_rounds))
            among = "those chosen before" if rule.among == "chosen" else "all"
            yield f"a router chooses among {among}: {', '.join(shares)} of the tokens (threshold {rule.threshold:g})"
        case TokenChoiceConfig():
            yield "a router gives every token a number of rounds"
        case ByLengthConfig() as rule:
            yield f"rounds by length (ceil({rule.per_token:g} n {rule.extra:+g}))"


def _sizes(stack: StackConfig, d_model: int) -> Iterator[str]:
    """Yield the widths of the sub-layers that exist: dense ones in one line, each one of experts in its own."""
    from ostinato.config.experts import RoutedConfig

    dense: list[str] = []
    routed: list[str] = []
    for kind, sub in stack.sub_layers():
        if not sub.is_absent:
            has_experts = isinstance(sub, RoutedConfig)
            (routed if has_experts else dense).append(f"{kind} {_experts(sub, _width(sub, d_model))}")
    if dense:
        yield ", ".join(dense)
    if (tables := stack.value_tables()) is not None:
        marks = " ".join(_ABSENT if table is None else str(table) for table in tables)
        yield f"values of tokens by step, from tables {marks}"
    yield from routed
    if (layer := stack.sparse_layer) is not None:
        width = f"{layer.n_layers} feed-forwards of {layer.activation} x {layer.d_ff:,}"
        yield f"{_SPARSE}: sparse layer after step {layer.after}, {_experts(layer, width)}"


def _width(sub: SubLayerConfig, d_model: int) -> str:
    """Return how wide a sub-layer is, or one of its experts."""
    from ostinato.config.experts import ExpertFeedForwardConfig
    from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig

    match sub:
        case AttentionConfig():
            shared = "" if sub.n_key_heads == sub.n_heads else f" on {sub.n_key_heads} of keys and values"
            return f"{sub.n_heads} heads x {sub.head_width(d_model)}{shared}"
        case SeparableConvConfig():
            return f"{sub.kind} of kernels {sub.kernel_in} and {sub.kernel_out} x {sub.d_ff:,}"
        case DenseFeedForwardConfig() | ExpertFeedForwardConfig():
            return f"{sub.activation} x {sub.d_ff:,}"
    raise TypeError(f"no width is known for {type(sub).__name__}")


def _experts(sub: SubLayerConfig | SparseLayerConfig, width: str) -> str:
    """Return the numbers of chosen and of all experts, the width of one, the router and the gate; else the width."""
    from ostinato.config.experts import HeadExpertAttentionConfig, RoutedConfig

    if isinstance(sub, HeadExpertAttentionConfig):
        chosen = f"{width}, each {sub.top_k} of {sub.n_experts} experts of values and of outputs"
    elif isinstance(sub, RoutedConfig):
        chosen = f"{sub.top_k} of {sub.n_experts} experts of {width}"
    else:
        return width
    if not sub.has_router:
        return f"1 expert of {width}"
    router = f"{sub.router.kind} router"
    if sub.router.kind == "hypersphere" and sub.router.project:
        router += f" of width {sub.router_width}"
    gate = "renormalised softmax" if sub.gate.kind == "softmax" and sub.is_renormalised else sub.gate.kind
    sampled = f", {sub.gate.n_sampled} drawn" if sub.gate.n_sampled else ""
    return f"{chosen} ({router}, {gate} gate{sampled})"


def drawing(plan: Plan, kinds: Sequence[Kind], width: int) -> Iterator[Text]:
    """Yield the lines of one stack; steps beyond the width are drawn in further blocks."""
    # Rounds that are repeated are one, drawn once.
    drawn = [(part, next(part.rounds()) if part.is_repeated else part.steps) for part in plan.segments]
    steps = [step for _, steps in drawn for step in steps]
    rows = [_row(plan, kind, steps) for kind in kinds]
    heads = [str(step.index + 1) for step in steps]
    more: dict[str, list[str]] = {}
    if any(part.is_repeated for part in plan.segments):
        more["segment"] = [str(number) for number, (_, steps) in enumerate(drawn, 1) for _ in steps]
        more["times"] = [str(part.n_rounds) for part, steps in drawn for _ in steps]
    elif plan.n_rounds != len(plan.steps):
        more["round"] = [str(step.round + 1) for step in steps]
    norms_width = max(len(norms) for *_, norms in rows)
    cell = max(len(mark) for marks in (heads, *more.values(), *(marks for _, _, marks, _ in rows)) for mark in marks)
    label = [max(map(len, (*more, *(kind for kind, *_ in rows)))), max(len("bank"), *(len(row[1]) for row in rows))]
    room = width - sum(label) - norms_width - 3 * len(_GAP)
    n = max(1, room // (cell + len(_GAP)))
    for start in range(0, len(heads), n):
        if start:
            yield _line("", "", [], "", label, cell)
        part = slice(start, start + n)
        yield _line("step", "bank", heads[part], "norms", label, cell, is_head=True)
        for name, marks in more.items():
            yield _line(name, "", marks[part], "", label, cell, is_head=True)
        for kind, bank, marks, norms in rows:
            yield _line(kind, bank, marks[part], norms, label, cell)


def _row(plan: Plan, kind: Kind, steps: Sequence[Step]) -> tuple[str, str, list[str], str]:
    """Return a kind, its bank, the mark of every step that is drawn, and how its norms are spread."""
    names = plan.row(kind)
    cells = [("", _ABSENT) if (name := names[step.index]) is None else name.rsplit("_", 1) for step in steps]
    banks = sorted({bank for bank, _ in cells if bank})
    # A sparse layer brings norms of its own.
    norms = {(use.weights, norm) for use in plan.uses() if use.kind == kind for norm in use.norms}
    # Norms are named after what they are shared with; that rounds have their own is said of their segment.
    words = "with weights" if all(norm.startswith(f"{kind}_{weights}") for weights, norm in norms) else "one per step"
    marks = [mark if mark == _ABSENT or mark.isdigit() else _SPARSE for _, mark in cells]
    return kind, "/".join(banks), marks, words if norms else ""


def _line(
    kind: str, bank: str, marks: Sequence[str], norms: str, widths: Sequence[int], cell: int, *, is_head: bool = False
) -> Text:
    from rich.text import Text

    line = Text(f"{_GAP}{kind.ljust(widths[0])}{_GAP}{bank.ljust(widths[1])}", style="dim" if is_head else "")
    for mark in marks:
        if mark.isdigit() and not is_head:
            style = _COLOURS[int(mark) % len(_COLOURS)]  # The same colour for the same set.
        else:
            style = "bold" if mark == _SPARSE else "dim"
        line.append(f"{_GAP}{mark.rjust(cell)}", style=style)
    line.append(f"{_GAP}{norms}", style="dim")
    line.rstrip()
    return line
