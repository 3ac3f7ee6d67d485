"""Studies of the stability of routing: over a run's checkpoints, and over runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ostinato.analysis.capture import stream
from ostinato.analysis.collectors import ExpertTotals, FirstExperts, RouterStep
from ostinato.analysis.drawing import finish, heat, line, name_axes, panels, ticks
from ostinato.analysis.routing_measures import inter_run_consistency, load_correlations, routing_fluctuation
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, no_router
from ostinato.models.checkpoint import load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ostinato.analysis.arrays import Floats, Ints

_MOST = 10


def checkpoints(subject: Subject) -> list[Path]:
    """Return the checkpoints of a run in the order they were written, ten at most, spread evenly, the last one too."""
    found = sorted(path.parent for path in (subject.run.directory / "checkpoints").glob("update-*/model.json"))
    n = min(len(found), _MOST)
    return [found[len(found) - 1 - k * len(found) // n] for k in reversed(range(n))]


def _no_two_checkpoints(subject: Subject) -> str | None:
    if (reason := no_router(subject)) is not None:
        return reason
    n = len(checkpoints(subject))
    return None if n > 1 else f"it needs two checkpoints, and {n} is kept: training.keep_last=10 keeps more"


def _over_checkpoints(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the fluctuation of every router."""
    names, experts = [], []
    for path in checkpoints(subject):
        collector, model = FirstExperts(), load_model(path, subject.model.device)
        stream(subject.run, subject.examples, [collector], model=model, on_progress=on_progress)
        names.append(path.name)
        experts.append(collector.experts())
    rows: list[list[object]] = []
    for router in dict.fromkeys(at.router for at in experts[-1]):
        for i, name in enumerate(names[:-1]):
            rows.append([router, name, *(_fluctuation(experts[i], experts[k], router) for k in (-1, i + 1))])
    columns = ("router", "checkpoint", "RF against the last", "RF against the next")
    data = [dict(zip(columns, row, strict=True)) for row in rows]
    return Finding(columns, rows, {"checkpoints": names, "routers": data}, lambda narrow: _draw(rows, narrow))


FLUCTUATION = Study(
    name="fluctuation",
    title="Routing fluctuation",
    reading=(
        "How many tokens go to another first expert at a checkpoint than at the last one (left) and than at the one "
        "before it (right), over all steps of a router; 0 is routing that has settled."
    ),
    why_not=_no_two_checkpoints,
    extra_examples=lambda subjects: sum(len(checkpoints(one)) * len(one.examples) for one in subjects),
    of_run=_over_checkpoints,
)


def _fluctuation(first: dict[RouterStep, Ints], second: dict[RouterStep, Ints], router: str) -> float:
    """Return RF over all steps of a router together."""
    steps = [at for at in first if at.router == router and at in second]
    return routing_fluctuation(*(np.concatenate([found[at] for at in steps]) for found in (first, second)))


def _draw(rows: list[list[object]], narrow: bool) -> Figure:
    figure, axes = panels(2, narrow, width=4.5)
    names = list(dict.fromkeys(str(row[1]) for row in rows))
    for i, router in enumerate(dict.fromkeys(str(row[0]) for row in rows)):
        mine = [row for row in rows if row[0] == router]
        for panel, column in zip(axes, (2, 3), strict=True):
            line(panel, i, range(len(mine)), [100 * float(str(row[column])) for row in mine], router)
    for panel, other in zip(axes, ("last", "next"), strict=True):
        ticks(panel, x=names)
        panel.set_ylim(bottom=0)
        finish(panel, "checkpoint", "tokens routed otherwise, %", f"than at the {other} checkpoint")
    return figure


def _no_common_router(subjects: Sequence[Subject]) -> str | None:
    if len(subjects) < 2:
        return "it compares runs, and one with experts was given"
    routers = [
        {
            (f"{kind}.{name}", module.n_experts)
            for kind in ("self_attention", "cross_attention", "ffn")
            for name, module in getattr(subject.model.banks, kind).items()
            if getattr(module, "router", None) is not None
        }
        for subject in subjects
    ]
    return None if set.intersection(*routers) else "no router has the same name and experts in all of the runs"


def _consistency(subjects: Sequence[Subject], on_progress: OnProgress) -> Finding:
    """Return the correlations of every router that all runs have."""
    loads = [subject.collected[ExpertTotals].loads() for subject in subjects]
    names = [subject.name for subject in subjects]
    common: dict[str, Floats] = {}
    rows: list[list[object]] = []
    for router, load_E in loads[0].items():
        if all(router in other and len(other[router]) == len(load_E) for other in loads):
            mine = [other[router] for other in loads]
            common[router] = load_correlations(mine)
            rows.append([router, len(load_E), inter_run_consistency(mine)])
    data = {router: matrix.tolist() for router, matrix in common.items()}
    columns = ("router", "experts", "IC")
    return Finding(
        columns,
        rows,
        {"runs": names, "correlations": data, "IC": {str(row[0]): row[2] for row in rows}},
        lambda narrow: _draw_matrices(common, names, narrow),
        note=f"IC counts the diagonal: {len(names)} unrelated runs reach {1 / len(names):.2f}.",
    )


CONSISTENCY = Study(
    name="consistency",
    title="Consistency of routing between runs",
    reading=(
        "How the loads of a router's experts correlate between runs (1: the same experts are busy, 0: unrelated). "
        "Expert numbers mean the same only in runs that started from the same weights."
    ),
    needs=(ExpertTotals,),
    why_not=no_router,
    why_not_together=_no_common_router,
    of_runs=_consistency,
)


def _draw_matrices(found: dict[str, Floats], names: list[str], narrow: bool) -> Figure:
    figure, axes = panels(len(found), narrow)
    for panel, (router, matrix) in zip(axes, found.items(), strict=True):
        heat(panel, matrix, "correlation of loads", vmin=-1, vmax=1)
        ticks(panel, x=names, y=names)
        name_axes(panel, "run", "run", router)
    return figure
