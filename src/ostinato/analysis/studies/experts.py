"""Studies of experts: how they are used, which tokens they are for, and whether states collapse onto them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ostinato.analysis.arrays import Floats
from ostinato.analysis.collectors import ExpertStates, ExpertTotals, RouterStep
from ostinato.analysis.drawing import (
    DIVERGING,
    common_legend,
    finish,
    heat,
    line,
    name_axes,
    panels,
    ticks,
    whole_numbers,
)
from ostinato.analysis.routing_measures import expert_information, expert_token_pmi, top_tokens
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, no_router

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN_TOKENS, _TOP = 30, 8
_LARGEST_PMI = 3.0


_COLUMNS = ("router", "stack", "step", "experts", "load entropy / log E", "H(e|h), nats", "dead experts")


def _experts(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return what every router did at every step."""
    totals: ExpertTotals = subject.collected[ExpertTotals]
    found = {at: total.compute()[at.router] for at, total in sorted(totals.totals.items())}
    rows: list[list[object]] = []
    for at, use in found.items():
        even = math.log(len(use["load"]))
        entropies = [use["load_entropy"] / even, use["row_entropy"]]
        rows.append([at.router, at.stack, at.step, len(use["load"]), *entropies, use["n_dead"]])
    data = [{"router": s.router, "stack": s.stack, "step": s.step} | use for s, use in found.items()]
    return Finding(_COLUMNS, rows, {"by_step": data}, lambda narrow: _draw_load(found, narrow))


EXPERTS = Study(
    name="experts",
    title="Use of experts",
    reading=(
        "A row is a router at one step, a column an expert; even use is the same colour everywhere, a dark cell an "
        "expert few tokens are sent to. In the table, load entropy near 1 is even use and H(e|h) near 0 sharp choice."
    ),
    columns=_COLUMNS,
    needs=(ExpertTotals,),
    why_not_model=no_router,
    of_run=_experts,
)


def _draw_load(found: dict[RouterStep, dict[str, Any]], narrow: bool) -> Figure:
    routers = list(dict.fromkeys(at.router for at in found))
    figure, axes = panels(len(routers), narrow)
    for panel, router in zip(axes, routers, strict=True):
        mine = {at: use for at, use in found.items() if at.router == router}
        heat(panel, [100 * np.array(use["load"]) for use in mine.values()], "share of choices, %", vmin=0)
        ticks(panel, y=[f"{at.stack} {at.step}" for at in mine])
        whole_numbers(panel)
        name_axes(panel, "expert", "step", router)
    return figure


_TOKEN_COLUMNS = ("router", "stack", "expert", "choices", "information, nats", "tokens of the highest PMI")


def _expert_tokens(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the information by router and stack, and every expert's tokens."""
    totals: ExpertTotals = subject.collected[ExpertTotals]
    counts = {key: counts_VE for key, counts_VE in totals.tokens.items() if counts_VE.sum() > 0}
    rows: list[list[object]] = []
    data, together = [], []
    for (router, stack), counts_VE in counts.items():
        best = [[subject.text(stack, int(t)) for t in one] for one in top_tokens(counts_VE, _TOP)]
        told = expert_information(counts_VE).tolist()
        used = counts_VE.sum(0).tolist()
        mean = float(np.average(told, weights=used))
        together.append(f"{router} of the {stack} {mean:.3g}")
        rows += [[router, stack, e, int(used[e]), told[e], "  ".join(one)] for e, one in enumerate(best)]
        data.append(
            {"router": router, "stack": stack, "information": told, "mutual_information": mean, "top_tokens": best}
        )
    arrays = {f"{router}.{stack}_counts_VE": counts_VE for (router, stack), counts_VE in counts.items()}
    return Finding(
        _TOKEN_COLUMNS,
        rows,
        {"routers": data},
        lambda narrow: _draw_pmi(subject, counts, narrow),
        arrays,
        "Counted over all steps of a stack that share the router. The mean over experts, weighted by choices, is the "
        f"mutual information of tokens and experts, in nats: {'; '.join(together)}.",
    )


EXPERT_TOKENS = Study(
    name="expert-tokens",
    title="Tokens by expert",
    reading=(
        "Rows are the most frequent tokens, columns experts: orange (negative) where a token goes there less often "
        "than tokens do on average, purple (positive) where more often; 0 is no preference. The table names each "
        "expert's own tokens, and says what being sent to it tells about a token: 0 where it takes all alike."
    ),
    columns=_TOKEN_COLUMNS,
    needs=(ExpertTotals,),
    why_not_model=no_router,
    of_run=_expert_tokens,
)


def _draw_pmi(subject: Subject, counts: dict[tuple[str, str], Floats], narrow: bool) -> Figure:
    figure, axes = panels(len(counts), narrow, height=4.4)
    for panel, ((router, stack), counts_VE) in zip(axes, counts.items(), strict=True):
        seen = np.flatnonzero(counts_VE.sum(1))
        often = seen[np.argsort(-counts_VE.sum(1)[seen], kind="stable")[:_SHOWN_TOKENS]]
        pmi = np.clip(expert_token_pmi(counts_VE)[often], -_LARGEST_PMI, _LARGEST_PMI)
        heat(panel, pmi, "PMI, nats (cut at 3)", cmap=DIVERGING, vmin=-_LARGEST_PMI, vmax=_LARGEST_PMI)
        ticks(panel, y=[subject.text(stack, int(token)) for token in often])
        whole_numbers(panel)
        name_axes(panel, "expert", "token", f"{router}, {stack}")
    return figure


_COLLAPSE_COLUMNS = ("router", "stack", "step", "states", "experts used", "RC", "effective rank")


def _collapse(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return both numbers for every router and step."""
    states: ExpertStates = subject.collected[ExpertStates]
    rows: list[list[object]] = []
    for at, moments in sorted(states.moments.items()):
        if moments.n:
            used = int((moments.counts_C > 0).sum())
            rows.append([*at, moments.n, used, moments.collapse(), moments.effective_rank()])
    data = [dict(zip(_COLLAPSE_COLUMNS, row, strict=True)) for row in rows]
    return Finding(
        _COLLAPSE_COLUMNS,
        rows,
        {"d_model": subject.model.config.d_model, "by_step": data},
        lambda narrow: _draw_collapse(rows, narrow),
        note="A state's class is the first expert it is sent to (by the first head, where each has its own). "
        "RC is blank where one expert gets all.",
    )


COLLAPSE = Study(
    name="collapse",
    title="Representation collapse",
    reading=(
        "Left: RC = Tr(W B+) by step: the lower, the more the states of an expert's tokens fall together. Right: how "
        "many directions the states use, of the model's width."
    ),
    columns=_COLLAPSE_COLUMNS,
    needs=(ExpertStates,),
    why_not_model=no_router,
    of_run=_collapse,
)


def _draw_collapse(rows: list[list[Any]], narrow: bool) -> Figure:
    figure, (left, right) = panels(2, narrow)
    groups = list(dict.fromkeys((row[0], row[1]) for row in rows))
    for i, (router, stack) in enumerate(groups):
        mine = [row for row in rows if (row[0], row[1]) == (router, stack)]
        steps = [row[2] for row in mine]
        line(left, i, steps, [row[5] for row in mine], f"{router}, {stack}")
        line(right, i, steps, [row[6] for row in mine], None)
    left.set_yscale("log")
    for axes, name in ((left, "RC (no unit)"), (right, "effective rank, directions")):
        whole_numbers(axes)
        finish(axes, "step", name)
    common_legend(figure, [left, right])
    return figure
