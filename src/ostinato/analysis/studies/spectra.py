"""Study of the singular values of feed-forward maps, trained and at random initialisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from ostinato.analysis.arrays import Floats
from ostinato.analysis.drawing import common_legend, finish, line, panels
from ostinato.analysis.spectrum import cumulative_share, effective_rank, excess_area, singular_values
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject, untrained
from ostinato.models.build import Model
from ostinato.nn.experts import ExpertMaps
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.separable import SeparableConv

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Name = tuple[str, str]


_COLUMNS = (
    "set",
    "map",
    "matrices",
    "K",
    "effective rank / K",
    "the same before training",
    "area",
    "area before training",
)


def _spectra(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return values and effective ranks; of experts, means over those that are not zero, None where all are."""
    trained, random = _values(subject.model), _values(untrained(subject.model, subject.run.recipe.seed))
    rows: list[list[object]] = []
    for name, values_EK in trained.items():
        K = values_EK.shape[1]
        numbers = [
            (float(np.mean([effective_rank(v) for v in of]) / K), float(np.mean([excess_area(v) for v in of])))
            if len(of)
            else (None, None)
            for of in (values_EK, random[name])
        ]
        (rank, area), (rank_0, area_0) = numbers
        rows.append([*name, len(values_EK), K, rank, rank_0, area, area_0])
    data = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
    arrays = {
        f"{when}_{name}_{part}_EK": values_EK
        for when, values in (("trained", trained), ("random", random))
        for (name, part), values_EK in values.items()
    }
    return Finding(
        _COLUMNS,
        rows,
        {"maps": data},
        lambda narrow: _draw(trained, random, narrow),
        arrays,
        "Area: between the line and the straight one of equal singular values. Of experts: means over those that are "
        "not zero; where all are, as maps that start at zero before training, there is no number and no line. "
        "Before training: the weights that the run's seed gives, before training.init_from.",
    )


SPECTRA = Study(
    name="spectra",
    title="Spectra of feed-forward maps",
    reading=(
        "The share of a map's singular values that the greatest i of K make up: the further a line bends above that of "
        "the same map before training (gray), the fewer directions the map uses."
    ),
    columns=_COLUMNS,
    why_not_model=lambda model: None if _maps(model) else "its model has no feed-forward",
    of_run=_spectra,
)


def _maps(model: Model) -> dict[Name, list[torch.Tensor]]:
    """Return the matrices of every feed-forward by parameter set and part: one, or one an expert."""
    found: dict[Name, list[torch.Tensor]] = {}
    for path, module in model.banks.ffn.named_modules():
        parts: dict[str, list[torch.Tensor]] = {}
        if isinstance(module, FeedForward):
            up = module.up.weight.chunk(2) if module.is_gated else (module.up.weight,)
            parts = {"gate": [up[0]], "up": [up[-1]], "down": [module.down.weight]}
        elif isinstance(module, SeparableConv):
            parts = {"gate": [], "up": [module.up.weight], "down": [module.down.weight]}
        elif isinstance(module, ExpertMaps):
            ups = module.up_EDF.chunk(2, 2) if module.is_gated else (module.up_EDF,)
            parts = {"gate": list(ups[0]), "up": list(ups[-1]), "down": list(module.down_EFD)}
        if parts and not getattr(module, "is_gated", False):
            parts.pop("gate")
        found |= {(path, part): matrices for part, matrices in parts.items()}
    return found


def _values(model: Model) -> dict[Name, Floats]:
    """Return the singular values of every map, `[E, K]`, E its matrices that are not zero: those have no shares."""
    found = {}
    for name, matrices in _maps(model).items():
        values_EK = np.stack([singular_values(weight.detach().cpu().double().numpy()) for weight in matrices])
        found[name] = values_EK[values_EK.any(1)]
    return found


def _draw(trained: dict[Name, Floats], random: dict[Name, Floats], narrow: bool) -> Figure:
    parts = list(dict.fromkeys(part for _, part in trained))
    figure, axes = panels(len(parts), narrow)
    for panel, part in zip(axes, parts, strict=True):
        mine = [name for name in trained if name[1] == part]
        for i, name in enumerate(mine):
            for of, is_trained in ((random, False), (trained, True)):
                if not len(of[name]):
                    continue
                shares = np.mean([cumulative_share(values) for values in of[name]], 0)
                at = np.arange(1, len(shares) + 1) / len(shares)
                if is_trained:
                    line(panel, i, at, shares, name[0])
                    panel.lines[-1].set_marker("")
                else:
                    panel.plot(at, shares, color="gray", linewidth=1, label="before training")
        panel.plot([0, 1], [0, 1], ":", color="black", linewidth=0.8, label=None)
        finish(panel, "i / K", "cumulative share", part)
    common_legend(figure, axes)
    return figure
