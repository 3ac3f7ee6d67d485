"""Studies of the stability of routing: over a run's checkpoints, and over runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ostinato.analysis.capture import stream
from ostinato.analysis.collectors import ExpertStates, ExpertTotals, FirstExperts, RouterStep
from ostinato.analysis.curves import METRICS, learning_curves
from ostinato.analysis.drawing import common_legend, finish, heat, line, name_axes, panels, ticks, whole_numbers
from ostinato.analysis.routing_measures import inter_run_consistency, load_correlations, routing_fluctuation
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, no_router, untrained
from ostinato.models.checkpoint import checkpoint_folders, load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ostinato.analysis.arrays import Floats, Ints

_MOST = 10


def checkpoints(subject: Subject) -> list[Path]:
    """Return the checkpoints of a run in the order of their updates, ten at most, spread evenly, the last one too."""
    found = list(checkpoint_folders(subject.run.directory / "checkpoints").values())
    n = min(len(found), _MOST)
    return [found[len(found) - 1 - k * len(found) // n] for k in reversed(range(n))]


def _no_two_checkpoints(subject: Subject) -> str | None:
    n = len(checkpoints(subject))
    return None if n > 1 else f"it needs two checkpoints, and {n} is kept: training.keep_last=10 keeps more"


_COLUMNS = ("router", "checkpoint", "RF against the last", "RF against the next")


def _over_checkpoints(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the fluctuation of every router."""
    names, experts = [], []
    for path in checkpoints(subject):
        collector, model = FirstExperts(), load_model(path, subject.model.device, verify=subject.run.verified)
        stream(subject.run, subject.examples, [collector], model=model, on_progress=on_progress)
        names.append(path.name)
        experts.append(collector.experts())
    rows: list[list[object]] = []
    for router in dict.fromkeys(at.router for at in experts[-1]):
        for i, name in enumerate(names[:-1]):
            rows.append([router, name, *(_fluctuation(experts[i], experts[k], router) for k in (-1, i + 1))])
    data = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
    return Finding(_COLUMNS, rows, {"checkpoints": names, "routers": data}, lambda narrow: _draw(rows, narrow))


FLUCTUATION = Study(
    name="fluctuation",
    title="Routing fluctuation",
    reading=(
        "How many tokens go to another first expert (of every head, where each has its own) at a checkpoint than at "
        "the last one (left) and than at the next one (right), over all steps of a router; 0 is routing that has "
        "settled."
    ),
    columns=_COLUMNS,
    why_not_model=no_router,
    why_not_run=_no_two_checkpoints,
    extra_examples=lambda subjects: sum(len(checkpoints(one)) * len(one.examples) for one in subjects),
    of_run=_over_checkpoints,
)


def _fluctuation(first: dict[RouterStep, Ints], second: dict[RouterStep, Ints], router: str) -> float:
    """Return RF over all steps of a router together; NaN where no token reached it at one of the checkpoints."""
    steps = [at for at in first if at.router == router and at in second]
    if not steps:
        return float("nan")
    return routing_fluctuation(*(np.concatenate([found[at] for at in steps]) for found in (first, second)))


def _draw(rows: list[list[object]], narrow: bool) -> Figure:
    figure, axes = panels(2, narrow)
    names = list(dict.fromkeys(str(row[1]) for row in rows))
    for i, router in enumerate(dict.fromkeys(str(row[0]) for row in rows)):
        mine = [row for row in rows if row[0] == router]
        for panel, column in zip(axes, (2, 3), strict=True):
            line(panel, i, range(len(mine)), [100 * float(str(row[column])) for row in mine], router)
    for panel, other in zip(axes, ("last", "next"), strict=True):
        ticks(panel, x=names)
        panel.set_ylim(bottom=0)
        finish(panel, "checkpoint", "tokens routed otherwise, %", f"than at the {other} checkpoint")
    common_legend(figure, axes)
    return figure


def _common_routers(subjects: Sequence[Subject]) -> set[str]:
    """Return the routers that all models have, with as many experts."""
    routers = [{(name, one.n_experts) for name, one in subject.model.routers().items()} for subject in subjects]
    return {name for name, _ in set.intersection(*routers)}


def _no_common_router(subjects: Sequence[Subject]) -> str | None:
    if len(subjects) < 2:
        return "it compares runs, and one with experts was given"
    return None if _common_routers(subjects) else "no router has the same name and experts in all of the runs"


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
    why_not_model=no_router,
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


@dataclass(frozen=True, slots=True)
class _Moment:
    """What the routers of a run did after an update: RC by router (a mean over its steps), first experts, loads."""

    update: int
    collapse: dict[str, float]
    experts: dict[RouterStep, Ints]
    loads: dict[str, Floats]


def _moments(subject: Subject, on_progress: OnProgress) -> Iterator[_Moment]:
    """Yield the moments of a run: before training, then every checkpoint."""
    saved = checkpoints(subject)
    for path in (None, *saved):
        update = 0 if path is None else int(path.name.removeprefix("update-"))
        seed, device = subject.run.recipe.seed, subject.model.device
        model = (
            untrained(subject.model, seed) if path is None else load_model(path, device, verify=subject.run.verified)
        )
        states, first, totals = ExpertStates(), FirstExperts(), subject.collector(ExpertTotals)
        assert isinstance(totals, ExpertTotals)
        stream(subject.run, subject.examples, [states, first, totals], model=model, on_progress=on_progress)
        by_router: dict[str, list[float]] = {}
        for at, moments in states.moments.items():
            if moments.n and not np.isnan(value := moments.collapse()):
                by_router.setdefault(at.router, []).append(value)
        collapse = {router: float(np.mean(values)) for router, values in by_router.items()}
        yield _Moment(update, collapse, first.experts(), totals.loads())


def _over_time(subjects: Sequence[Subject], on_progress: OnProgress) -> Finding:
    """Return RC, RF and IC of every router at every checkpoint."""
    found = {subject.name: list(_moments(subject, on_progress)) for subject in subjects}
    common = _common_routers(subjects) if len(subjects) > 1 else set()
    at_update = [{moment.update: moment for moment in moments} for moments in found.values()]
    names = ("run", "router", "update", *_RF, "RC", *(["IC"] if common else []))
    rows: list[list[object]] = []
    for run, moments in found.items():
        last = moments[-1]
        for router in moments[0].loads:
            for i, moment in enumerate(moments):
                others = (last, moments[i + 1]) if moment is not last else (None, None)
                changes = [None if o is None else _fluctuation(moment.experts, o.experts, router) for o in others]
                row: list[object] = [run, router, moment.update, *changes, moment.collapse.get(router)]
                if common:
                    there = [mine[moment.update].loads for mine in at_update if moment.update in mine]
                    loads = [of_run[router] for of_run in there if router in of_run]
                    has_all = router in common and len(loads) == len(subjects)
                    row.append(inter_run_consistency(loads) if has_all else None)
                rows.append(row)
    temperature = {}
    for subject in subjects:
        path = subject.run.directory / METRICS
        curves = learning_curves(path).temperature if path.is_file() else {}
        if curves:
            temperature[subject.name] = {router: [list(point) for point in line_] for router, line_ in curves.items()}
    data = {"points": [dict(zip(names, row, strict=True)) for row in rows], "temperature": temperature}
    note = (
        "Update 0: the weights that the run's seed gives, before training and before training.init_from. RC: mean over "
        "a router's steps."
    )
    if common:
        note += f" IC counts the diagonal: {len(subjects)} unrelated runs reach {1 / len(subjects):.2f}."
    return Finding(names, rows, data, lambda narrow: _draw_over_time(names, rows, temperature, narrow), note=note)


_RF = ("RF against the last", "RF against the next")
_LABELS = {
    _RF[0]: "RF against the last, %",
    _RF[1]: "RF against the next, %",
    "RC": "RC (no unit)",
    "IC": "IC (no unit)",
}

OVER_TIME = Study(
    name="routing-over-time",
    title="Routing over training",
    reading=(
        "By update, from before training (0): how many tokens change their first expert until the last and until the "
        "next checkpoint (RF); how far the states of an expert's tokens have fallen together (RC, lower is more); how "
        "alike runs use their experts (IC, several runs); and the temperatures of hypersphere routers."
    ),
    columns=("run", "router", "update", *_RF, "RC", "IC"),
    why_not_model=no_router,
    why_not_run=_no_two_checkpoints,
    extra_examples=lambda subjects: sum((1 + len(checkpoints(one))) * len(one.examples) for one in subjects),
    of_runs=_over_time,
)


def _draw_over_time(
    names: Sequence[str], rows: list[list[object]], temperature: dict[str, dict[str, list[list[float]]]], narrow: bool
) -> Figure:
    shown = [name for name in _LABELS if name in names]
    figure, axes = panels(len(shown) + bool(temperature), narrow)
    groups = list(dict.fromkeys((str(row[0]), str(row[1])) for row in rows))
    many = len({run for run, _ in groups}) > 1
    for i, (run, router) in enumerate(groups):
        mine = [row for row in rows if (row[0], row[1]) == (run, router)]
        label = f"{run}, {router}" if many else router
        for panel, name in zip(axes, shown, strict=False):
            place = names.index(name)
            points = [(row[2], float(str(row[place]))) for row in mine if row[place] is not None]
            x, y = [update for update, _ in points], [100 * value if name in _RF else value for _, value in points]
            line(panel, i, x, y, label)  # type: ignore[arg-type]
        if measured := temperature.get(run, {}).get(router):
            line(axes[-1], i, [at for at, _ in measured], [value for _, value in measured], label)
    labels = [_LABELS[name] for name in shown] + ["temperature (no unit)"] * bool(temperature)
    for panel, label in zip(axes, labels, strict=True):
        whole_numbers(panel)
        finish(panel, "update", label)
    common_legend(figure, axes)
    return figure
