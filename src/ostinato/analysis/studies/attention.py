"""Studies of attention: entropy and mass by step, and the weights of one example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ostinato.analysis.arrays import Floats
from ostinato.analysis.collectors import SHORT, AttentionSums, AttentionTotals, OneExample, SubLayerKey
from ostinato.analysis.drawing import (
    MAP,
    columns_of,
    common_legend,
    finish,
    line,
    name_axes,
    panels,
    scale,
    ticks,
    whole_numbers,
)
from ostinato.analysis.maps import attention_entropy
from ostinato.analysis.studies.base import MARKS, Finding, OnProgress, Study, Subject
from ostinato.models.build import Model

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ostinato.plan import Plan

_MOST_MODULES, _MOST_HEADS = 4, 4


def _no_attention(model: Model) -> str | None:
    kinds = {use.kind for stack in model.stacks.values() for use in stack.plan.uses()}
    return None if kinds - {"ffn"} else "its model has no attention"


_COLUMNS = (
    "stack",
    "sub-layer",
    "queries",
    "entropy, nats",
    "on itself",
    "on the first key",
    "on the last key",
    "on marked places",
)


def _attention(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return entropy and masses of every sub-layer."""
    totals: AttentionTotals = subject.collected[AttentionTotals]
    sums = {module: found for module, found in totals.sums.items() if found.n}
    rows: list[list[object]] = []
    data = []
    for module, found in sums.items():
        own = found.own_H / found.n if module.kind == "self_attention" else None
        values = {
            "entropy_nats": (found.entropy_H / found.n).tolist(),
            "mass_on_itself": None if own is None else own.tolist(),
            "mass_on_first": (found.first_H / found.n).tolist(),
            "mass_on_last": (found.last_H / found.n).tolist(),
            "mass_on_marked": (found.marked_H / found.n_marked).tolist() if found.n_marked else None,
        }
        data.append({"stack": module.stack, "step": module.step, "kind": module.kind, "n": found.n} | values)
        means = [None if v is None else float(np.mean(v)) for v in values.values()]
        rows.append([module.stack, str(module), found.n, *means])
    n_marks = sum(map(len, subject.marks().values()))
    note = ""
    if n_marks:
        note = f"Marked: the {n_marks:,} places of the sources that the column {MARKS} names (supporting facts)."
    else:
        rows = [row[:-1] for row in rows]
    return Finding(
        _COLUMNS if n_marks else _COLUMNS[:-1],
        rows,
        {"by_head": data},
        lambda narrow: _draw_sums(sums, narrow),
        note=note,
    )


ATTENTION = Study(
    name="attention",
    title="Attention by step",
    reading=(
        "A line is a head, a point the mean over all queries of a step: the lower the entropy, the fewer keys a query "
        "looks at. The table adds how much weight lies on the token itself, the first and the last key, and where the "
        "data mark places of the source (supporting facts), panels show how much lies on those."
    ),
    columns=_COLUMNS,
    needs=(AttentionTotals,),
    why_not_model=_no_attention,
    of_run=_attention,
)


def _draw_sums(sums: dict[SubLayerKey, AttentionSums], narrow: bool) -> Figure:
    entropies: dict[tuple[str, str], dict[int, Floats]] = {}
    marked: dict[tuple[str, str], dict[int, Floats]] = {}
    for module, found in sums.items():
        group = module.stack, module.kind
        entropies.setdefault(group, {})[module.step] = found.entropy_H / found.n
        if found.n_marked:
            marked.setdefault(group, {})[module.step] = 100 * found.marked_H / found.n_marked
    figure, axes = panels(len(entropies) + len(marked), narrow)
    for panel, (group, by_step) in zip(axes, [*entropies.items(), *marked.items()], strict=True):
        is_marked = by_step is marked.get(group)
        label = "weight on marked places, %" if is_marked else "entropy, nats"
        _draw_heads(panel, group, by_step, label)
        panel.set_ylim(0, 102 if is_marked else None)
    common_legend(figure, axes)
    return figure


def _draw_heads(panel: Axes, group: tuple[str, str], by_step: dict[int, Floats], label: str) -> None:
    """Draw a line per head over the steps of one kind of attention in one stack; steps may differ in heads."""
    n_heads = max(len(values_H) for values_H in by_step.values())
    for head in range(n_heads):
        steps = [step for step, values_H in by_step.items() if head < len(values_H)]
        line(panel, head, steps, [by_step[step][head] for step in steps], f"head {head + 1}")
    panel.set_xlim(-0.5, max(by_step) + 0.5)
    whole_numbers(panel)
    stack, kind = group
    finish(panel, "step", label, f"{stack}, {kind.replace('_', '-')}")


_EXAMPLE_COLUMNS = ("stack", "sub-layer", "heads", "queries", "keys")


def _attention_example(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the weights of all steps and heads; the figure shows the first of each."""
    example: OneExample = subject.collected[OneExample]
    texts = {n: [subject.text(n, token) for token in stack.ids_T] for n, stack in example.stacks.items()}
    weights = {module: found for stack in example.stacks.values() for module, found in stack.weights.items()}
    arrays = {f"{m.stack}_{m.step}_{SHORT[m.kind]}_HTS": found for m, found in weights.items()}
    shown = {m: _of_queries_that_ran(subject, example, m, found) for m, found in weights.items()}
    rows: list[list[object]] = [[m.stack, str(m), *found.shape] for m, found in weights.items()]
    note = f"{subject.which()}: the figure shows up to {_MOST_MODULES} sub-layers a stack and "
    return Finding(
        _EXAMPLE_COLUMNS,
        rows,
        {"example": subject.shown(), "tokens": texts, "arrays": list(arrays)},
        lambda narrow: _draw_weights(shown, texts, narrow),
        arrays,
        note + f"{_MOST_HEADS} heads, spread evenly over depth; the data hold all.",
    )


def _of_queries_that_ran(subject: Subject, example: OneExample, module: SubLayerKey, weights_HTS: Floats) -> Floats:
    """Return weights without those of queries that had halted before the step: NaN."""
    executed_TR = example.stacks[module.stack].executed_TR
    if executed_TR is None:
        return weights_HTS
    ran_T = executed_TR[:, subject.model.stacks[module.stack].plan.steps[module.step].round] > 0
    found: Floats = np.where(ran_T[:, None], weights_HTS, np.nan)
    return found


ATTENTION_EXAMPLE = Study(
    name="attention-example",
    title="Attention in one example",
    reading=(
        "A panel is a sub-layer and a head, a row a query, a column the key it looks at: bright is much weight, white "
        "a token that had halted. Sub-layers are numbered by step, sa is self-attention, ca cross-attention."
    ),
    columns=_EXAMPLE_COLUMNS,
    needs=(OneExample,),
    why_not_model=_no_attention,
    of_run=_attention_example,
)


_QUESTION_COLUMNS = ("round", "entropy, nats", "most on", "weight", "on marked places")


def _question_attention(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the weights of the last query in every round that it ran, by head."""
    example: OneExample = subject.collected[OneExample]
    name, plan = _reader(subject.model)
    stack = example.stacks[name]
    texts = [subject.text(name, token) for token in stack.ids_T]
    marked = subject.marks().get(subject.shown(), [])
    rounds: list[int] = []
    weights: list[Floats] = []
    for step in plan.loop.steps:
        found = stack.weights.get(SubLayerKey(name, step.index, "self_attention"))
        if found is not None and (stack.executed_TR is None or stack.executed_TR[-1, step.round]):
            rounds.append(step.round + 1)
            weights.append(found[:, -1])
    rows: list[list[object]] = []
    for round_, weights_HS in zip(rounds, weights, strict=True):
        mean_S, most = weights_HS.mean(0), int(weights_HS.mean(0).argmax())
        row: list[object] = [round_, float(attention_entropy(weights_HS).mean()), texts[most], float(mean_S[most])]
        rows.append([*row, float(mean_S[marked].sum())] if marked else row)
    note = f"{subject.which()}, in the {name}: the row of its last query, {texts[-1]!r}."
    if marked:
        note += f" Marked by an asterisk: what the column {MARKS} names."
    labels = [f"{text} *" if i in marked else text for i, text in enumerate(texts)]
    return Finding(
        _QUESTION_COLUMNS if marked else _QUESTION_COLUMNS[:-1],
        rows,
        {"example": subject.shown(), "query": texts[-1], "keys": texts, "marked": marked, "rounds": rounds},
        lambda narrow: _draw_rows(weights, rounds, labels, narrow),
        # Where the steps of a stack differ in heads, a mean over heads is all that they have in common.
        {f"{name}_RHS": np.stack(weights)} if len({w.shape for w in weights}) == 1 else {},
        note,
    )


def _reader(model: Model) -> tuple[str, Plan]:
    """Return the stack that reads the source (of a model with one stack that one), and its plan."""
    name, stack = next(iter(model.stacks.items()))
    return name, stack.plan


def _no_self_attention(model: Model) -> str | None:
    name, plan = _reader(model)
    has_one = any(use.kind == "self_attention" for step in plan.loop.steps for use in step.uses)
    return None if has_one else f"the rounds of its {name} have no self-attention"


QUESTION_ATTENTION = Study(
    name="question-attention",
    title="Attention of the last position by round",
    reading=(
        "What the last position of the source looks at in every round: the question, where a source is facts and a "
        "question (bAbI), else its end symbol or last token. A panel is a head, a column a round, a row a key; bright "
        "is much weight. Rounds that the position did not run are left out."
    ),
    columns=_QUESTION_COLUMNS,
    needs=(OneExample,),
    why_not_model=_no_self_attention,
    of_run=_question_attention,
)


def _draw_rows(weights: Sequence[Floats], rounds: list[int], keys: list[str], narrow: bool) -> Figure:
    n_heads = min(max(len(weights_HS) for weights_HS in weights), _MOST_HEADS)
    figure, axes = panels(n_heads, narrow, height=1.0 + 0.17 * len(keys), columns=2)
    across = columns_of(figure)
    for head, panel in enumerate(axes):
        # A round without this head is left empty.
        columns = [w[head] if head < len(w) else np.full(len(keys), np.nan) for w in weights]
        panel.imshow(np.array(columns).T, aspect="auto", interpolation="nearest", cmap=MAP, vmin=0, vmax=1)
        ticks(panel, y=[] if head % across else keys)
        panel.set_xticks(range(len(rounds)), [str(round_) for round_ in rounds], fontsize=7)
        name_axes(panel, "round", "" if head % across else "key", f"head {head + 1}")
    scale(axes, "weight")
    return figure


def _draw_weights(weights: dict[SubLayerKey, np.ndarray], texts: dict[str, list[str]], narrow: bool) -> Figure:
    chosen: list[SubLayerKey] = []
    for stack in texts:
        mine = [module for module in weights if module.stack == stack]
        n = min(len(mine), _MOST_MODULES)
        chosen += [mine[k * len(mine) // n] for k in range(n)]
    shown = [(module, head) for module in chosen for head in range(min(len(weights[module]), _MOST_HEADS))]
    figure, axes = panels(len(shown), narrow, height=2.35, columns=_MOST_HEADS)
    across = columns_of(figure)
    for i, (panel, (module, head)) in enumerate(zip(axes, shown, strict=True)):
        keys = texts["encoder" if module.kind == "cross_attention" else module.stack]
        panel.imshow(weights[module][head], aspect="auto", interpolation="nearest", cmap=MAP, vmin=0, vmax=1)
        # Queries are the same for all heads beside each other.
        is_first = not head or not i % across
        ticks(panel, x=keys, y=texts[module.stack] if is_first else [])
        name_axes(panel, "key", "query" if is_first else "", f"{module.stack} {module}\nhead {head + 1}")
    scale(axes, "weight")
    return figure
