"""Studies of similarity: between the sub-layers of one run, and between runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ostinato.analysis.arrays import Floats
from ostinato.analysis.capture import stream
from ostinato.analysis.collectors import SentenceVectors, SubLayerKey
from ostinato.analysis.drawing import common_legend, finish, heat, line, name_axes, panels, ticks
from ostinato.analysis.similarity import (
    chance_level,
    checkerboard,
    cka_matrix,
    linear_cka,
    local_neighbourhood_similarity,
    normalise,
)
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, not_comparable, untrained

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_UNTRAINED = "untrained"
_FEWEST = 20
"""Fewest sentences for which either measure is meaningful."""
Pairs = dict[str, dict[SubLayerKey, tuple[float, float]]]


def _too_few_examples(subject: Subject) -> str | None:
    n = len(subject.examples)
    return None if n >= _FEWEST else f"{n} examples are too few: it needs {_FEWEST}"


_COLUMNS = ("stack", "residual", "sub-layers", "CKA of neighbours", "checkerboard score")


def _self_similarity(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the matrices before and after the residual, by stack."""
    vectors: SentenceVectors = subject.collected[SentenceVectors]
    found: dict[tuple[str, str], tuple[list[str], Floats]] = {}
    for stack in subject.model.stacks:
        for where, kept in (("after", vectors.after), ("before", vectors.before)):
            mine = {str(module): rows for module, rows in kept.items() if module.stack == stack}
            found[stack, where] = list(mine), cka_matrix(list(mine.values()))
    rows: list[list[object]] = []
    for (stack, where), (names, matrix) in found.items():
        neighbours = float(np.diagonal(matrix, 1).mean()) if len(names) > 1 else float("nan")
        rows.append([stack, where, len(names), neighbours, checkerboard(matrix)])
    data = {f"{s}_{w}": {"sub_layers": n, "cka": m.tolist()} for (s, w), (n, m) in found.items()}
    return Finding(
        _COLUMNS,
        rows,
        {"n": len(subject.examples), "matrices": data},
        lambda narrow: _draw_matrices(found, narrow),
        {f"{stack}_{where}_MM": matrix for (stack, where), (_, matrix) in found.items()},
    )


SELF_SIMILARITY = Study(
    name="self-similarity",
    title="Similarity of the sub-layers of a run",
    reading=(
        "CKA of every sub-layer's states with every other's, in the order they run: bright near the diagonal only is a "
        "stack that keeps changing its states, bright all over one that repeats itself, a checkerboard one whose "
        "sub-layers are more like their second neighbours than like their next ones."
    ),
    columns=_COLUMNS,
    needs=(SentenceVectors,),
    why_not_run=_too_few_examples,
    of_run=_self_similarity,
)


def _draw_matrices(found: dict[tuple[str, str], tuple[list[str], Floats]], narrow: bool) -> Figure:
    figure, axes = panels(len(found), narrow, height=3.2)
    for panel, ((stack, where), (names, matrix)) in zip(axes, found.items(), strict=True):
        heat(panel, matrix, "CKA", vmin=0, vmax=1)
        ticks(panel, x=names, y=names)
        name_axes(panel, "sub-layer", "sub-layer", f"{stack}, {where} the residual")
    return figure


def _between_runs(subjects: Sequence[Subject], on_progress: OnProgress) -> Finding:
    """Return the similarities of all runs to the first one, after and before the residual."""
    baseline, others = subjects[0], subjects[1:]
    vectors = {subject.name: subject.collected[SentenceVectors] for subject in others}
    fresh = _UNTRAINED
    while fresh in vectors:  # a run may have that name
        fresh += " model"
    vectors[fresh] = SentenceVectors(len(baseline.examples))
    # Not the weights that the first run began with, which its seed draws.
    model = untrained(baseline.model, seed=int(baseline.run.recipe.seed == 0))
    mine = baseline.collected[SentenceVectors]
    stream(baseline.run, baseline.examples, [vectors[fresh]], model=model, on_progress=on_progress)
    raw: dict[str, Pairs] = {
        "after": {name: _compare(mine.after, theirs.after) for name, theirs in vectors.items()},
        "before": {name: _compare(mine.before, theirs.before) for name, theirs in vectors.items()},
    }
    seeds = [s.name for s in others if s.model.config == baseline.model.config]
    n = len(baseline.examples)
    columns = ("run", "residual", "stack", "sub-layers", "CKA", "LNS", "CKA / other seeds", "LNS / other seeds")
    rows = [[row[0], where, *row[1:]] for where, pairs in raw.items() for row in _rows(pairs, seeds)]
    by_module = {
        where: {
            name: [
                {"stack": key.stack, "sub_layer": str(key), "cka": cka, "lns": lns} for key, (cka, lns) in found.items()
            ]
            for name, found in pairs.items()
        }
        for where, pairs in raw.items()
    }
    told = f"Other seeds of {baseline.name}: {', '.join(seeds)}."
    if not seeds:
        told = "None of the runs is the first one's model from another seed, so nothing is normalised."
    return Finding(
        columns,
        rows,
        {"baseline": baseline.name, "n": n, "chance_lns": chance_level(n), "seeds": seeds} | by_module,
        lambda narrow: _draw_lines(raw, list(baseline.model.stacks), n, narrow),
        note=f"{told} {n:,} sentences; LNS of unrelated models: {chance_level(n):.3f}.",
        runs=f"against {baseline.name}",
    )


BETWEEN_RUNS = Study(
    name="similarity",
    title="Similarity between runs",
    reading=(
        "CKA and local neighbourhood similarity of each run's sub-layers with the first run's, after and before the "
        "residual (the states, and what a sub-layer adds to them): lines of runs from another seed show what 'the "
        "same' looks like, the untrained model what nothing learnt does."
    ),
    needs=(SentenceVectors,),
    why_not_run=_too_few_examples,
    why_not_together=not_comparable,
    extra_examples=lambda subjects: len(subjects[0].examples),  # of one pass of the untrained model
    of_runs=_between_runs,
)


def _compare(
    mine: dict[SubLayerKey, Floats], theirs: dict[SubLayerKey, Floats]
) -> dict[SubLayerKey, tuple[float, float]]:
    """Return CKA and LNS of the sub-layers that both have.

    Where a stack of one lacks sub-layers, the states after every step are compared as a whole, under the first model's
    last sub-layer of the step; where the numbers of steps differ, those after the last step only.
    """
    found: dict[SubLayerKey, tuple[float, float]] = {}
    for stack in dict.fromkeys(module.stack for module in mine):
        left, right = ([m for m in states if m.stack == stack] for states in (mine, theirs))
        if not right:
            continue
        for a, b in pairs_of_stack(left, right):
            x, y = mine[a], theirs[b]
            found[a] = linear_cka(x, y), local_neighbourhood_similarity(x, y)
    return found


def pairs_of_stack(left: list[SubLayerKey], right: list[SubLayerKey]) -> list[tuple[SubLayerKey, SubLayerKey]]:
    """Return the pairs of sub-layers that are compared in one stack of two models."""
    if left == right:
        return [(module, module) for module in left]
    last_left, last_right = ({module.step: module for module in modules} for modules in (left, right))
    if last_left.keys() == last_right.keys():
        return [(module, last_right[step]) for step, module in last_left.items()]
    return [(left[-1], right[-1])]


def _rows(raw: Pairs, seeds: list[str]) -> list[list[object]]:
    """Return means over the sub-layers of every run's every stack, and the same in units of the other seeds."""
    rows: list[list[object]] = []
    for name, found in raw.items():
        for stack in dict.fromkeys(module.stack for module in found):
            modules = [module for module in found if module.stack == stack]
            values = np.array([found[module] for module in modules])
            ratios: list[float | None] = [None, None]
            if seeds:
                seeds_SM2 = np.array([[raw[seed][module] for module in modules] for seed in seeds])
                for i in range(2):  # CKA, LNS
                    if (seeds_SM2[..., i].mean(0) > 0).all() and np.isfinite(values[:, i]).all():
                        ratios[i] = normalise(values[:, i].tolist(), seeds_SM2[..., i]).mean
            rows.append([name, stack, len(modules), *values.mean(0).tolist(), *ratios])
    return rows


def _draw_lines(raw: dict[str, Pairs], stacks: list[str], n: int, narrow: bool) -> Figure:
    figure, axes = panels(4 * len(stacks), narrow, columns=2)
    rows = [(stack, where) for stack in stacks for where in raw]
    for row, (stack, where) in enumerate(rows):
        # The untrained model has all of the first run's sub-layers, in the order they run.
        names = [str(module) for module in [*raw[where].values()][-1] if module.stack == stack]
        for column, measure in enumerate(("CKA", "LNS")):
            panel = axes[2 * row + column]
            for i, (run, found) in enumerate(raw[where].items()):
                mine = [(names.index(str(m)), pair[column]) for m, pair in found.items() if m.stack == stack]
                line(panel, i, [x for x, _ in mine], [y for _, y in mine], run)
            if measure == "LNS":
                panel.axhline(chance_level(n), color="gray", linewidth=1, label="chance")
            ticks(panel, x=names)
            panel.set_ylim(0, 1.02)
            finish(panel, "sub-layer", f"{measure} (no unit)", f"{stack}, {where} the residual")
    common_legend(figure, axes)
    return figure
