"""Study of where routed tokens lie: a map in the plane, coloured by expert (X-MoE, figure 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ostinato.analysis.arrays import Floats
from ostinato.analysis.collectors import RoutedSample, Sample
from ostinato.analysis.drawing import COLOURS, FONT, name_axes, panels
from ostinato.analysis.planar import HOW_TO_GET_UMAP, can_umap, class_purity, pca_plane, umap_plane
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, no_router
from ostinato.models.build import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARKS = "o^sDvP*X"
_FEWEST = 20
_MOST_ROUTERS = 3


class Map(NamedTuple):
    """Routed states of one router in the plane."""

    router: str
    stack: str
    space: str
    points_N2: Floats
    sample: Sample
    purity: float
    chance: float


_COLUMNS = ("router", "stack", "space", "tokens", "neighbours of the same expert", "by chance")


def _token_map(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the maps of the first routers, and how pure experts are among neighbours."""
    project, name = (umap_plane, "UMAP, hyperbolic") if can_umap() else (pca_plane, "PCA")
    sample: RoutedSample = subject.collected[RoutedSample]
    found = [(key, one) for key, one in sample.samples.items() if len(one.states_ND) >= _FEWEST]
    maps = [
        Map(router, stack, space, project(rows_ND), one, *class_purity(rows_ND, one.experts_N))
        for (router, stack), one in found[:_MOST_ROUTERS]
        for space, rows_ND in _spaces(subject.model, router, one.states_ND)
    ]
    rows: list[list[object]] = [[m.router, m.stack, m.space, len(m.points_N2), m.purity, m.chance] for m in maps]
    arrays = {f"{m.router}.{m.stack}.{m.space}_N2": m.points_N2 for m in maps}
    arrays |= {f"{m.router}.{m.stack}.experts_N": m.sample.experts_N for m in maps}
    arrays |= {f"{m.router}.{m.stack}.steps_N": m.sample.steps_N for m in maps}
    told = "" if can_umap() else f" {HOW_TO_GET_UMAP}."
    left = f" The first {_MOST_ROUTERS} of {len(found)} routers." if len(found) > _MOST_ROUTERS else ""
    none = "" if maps else f" No router saw {_FEWEST} tokens, the fewest that are drawn."
    note = f"{name}, of a seeded sample over all steps of a router.{left}{none}{told} Neighbours: the 10 nearest."
    return Finding(
        _COLUMNS,
        rows,
        {"projection": name, "maps": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]},
        lambda narrow: _draw(maps, name, narrow),
        arrays,
        note,
    )


TOKEN_MAP = Study(
    name="token-map",
    title="Map of routed tokens",
    reading=(
        "A mark is a token as it enters a router, its colour and shape the first expert it is sent to (by the first "
        "head, where each has its own); left in the space of the model's states, right in the one in which the router "
        "tells experts apart: tokens of one expert that lie together are alike. Distances between far groups mean "
        "little."
    ),
    columns=_COLUMNS,
    needs=(RoutedSample,),
    why_not_model=no_router,
    of_run=_token_map,
)


def _spaces(model: Model, router: str, states_ND: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return the states by the name of their space, and, where the router projects them, the projected states, too."""
    found = [("hidden", states_ND)]
    with torch.no_grad():
        projected = model.routers()[router].router.projected(torch.from_numpy(states_ND).to(model.device))
    if projected is not None:
        found.append(("projected", projected.float().cpu().numpy()))
    return found


def _draw(maps: list[Map], name: str, narrow: bool) -> Figure:
    if not maps:
        figure, (empty,) = panels(1, narrow, height=1.2)
        empty.text(0.5, 0.5, "too few tokens", ha="center", va="center", fontsize=8)
        empty.set_axis_off()
        return figure
    figure, axes = panels(len(maps), narrow, height=3.6, columns=2)
    for panel, one in zip(axes, maps, strict=True):
        experts = np.unique(one.sample.experts_N)
        for expert in experts:
            x, y = one.points_N2[one.sample.experts_N == expert].T
            colour, mark = COLOURS[expert % len(COLOURS)], _MARKS[expert // len(COLOURS) % len(_MARKS)]
            dots = panel.scatter(x, y, 7, color=colour, marker=mark, linewidths=0, alpha=0.7, label=str(expert))
            dots.set_rasterized(True)  # thousands of marks as paths are slow to show
        panel.set_aspect("equal", adjustable="datalim")
        side: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5), "ncols": 1 + len(experts) // 16}
        panel.legend(title="expert", fontsize=FONT, title_fontsize=FONT, markerscale=2, frameon=False, **side)
        space = name.split(",")[0]
        name_axes(panel, f"{space} 1 (no unit)", f"{space} 2 (no unit)", f"{one.router}, {one.stack}: {one.space}")
    return figure
