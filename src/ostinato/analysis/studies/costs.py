"""Study of the costs of a run, part by part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from ostinato.analysis.collectors import Outcomes
from ostinato.analysis.drawing import COLOURS, FONT, columns_of, finish, panels
from ostinato.analysis.latency import part_latencies, threads_and_device
from ostinato.analysis.studies.base import Finding, OnProgress, Study, Subject
from ostinato.budget import count_macs, count_parameters, stacks_with_depth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REST = "everything else"


@dataclass(slots=True)
class Part:
    """Costs of one part: stored parameters, multiply-accumulates of a pass over a mean example at full and at realised
    depth, and milliseconds an example."""

    parameters: int = 0
    full: int = 0
    realised: int = 0
    milliseconds: float = 0.0


_COLUMNS = ("part", "parameters", "M MACs, full depth", "M MACs, realised", "ms an example")


def _costs(subject: Subject, on_progress: OnProgress) -> Finding:
    """Return the costs of every part."""
    found: Outcomes = subject.collected[Outcomes]
    lengths = max(1, round(found.lengths_N.mean())), max(1, round(found.targets_N.mean()))
    depth = {name: n["mean"] for name, n in found.depths.compute().items()}
    latency = part_latencies(subject.run, subject.examples)
    parts = _parts(subject, lengths, depth)
    for name, seconds in latency.by_part.items():
        parts.setdefault(name, Part()).milliseconds = 1e3 * seconds / latency.n
    parts.setdefault(_REST, Part()).milliseconds = 1e3 * latency.rest / latency.n
    rows: list[list[object]] = [
        [name, one.parameters, one.full / 1e6, one.realised / 1e6, one.milliseconds] for name, one in parts.items()
    ]
    totals = [sum(getattr(one, name) for one in parts.values()) for name in ("parameters", "full", "realised")]
    rows.append(["all", totals[0], totals[1] / 1e6, totals[2] / 1e6, 1e3 * latency.per_example])
    rounds = {name: (stack.plan.n_rounds, depth[name]) for name, stack in subject.model.stacks.items()}
    data = {
        "lengths": {"source": lengths[0], "target": lengths[1]},
        "rounds": {name: {"plan": of, "realised": mean} for name, (of, mean) in rounds.items()},
        "parts": {name: asdict(one) for name, one in parts.items()},
        "milliseconds_an_example": 1e3 * latency.per_example,
    }
    is_pair = subject.model.config.has_two_sides
    sides = f"{lengths[0]} source and {lengths[1]} target" if is_pair else str(lengths[1])
    note = (
        f"Latency: teacher-forced passes over {latency.n} examples in batches, on "
        f"{threads_and_device(subject.model)}; parts are timed in passes of their own, so that their sum exceeds "
        f"the whole pass (last row). MACs: {sides} tokens. {_REST.capitalize()}: embeddings, norms, positions, "
        "output, halting."
    )
    return Finding(_COLUMNS, rows, data, lambda narrow: _draw_parts(parts, rounds, narrow), note=note)


COSTS = Study(
    name="budget",
    title="Budget by part",
    reading=(
        "For every part what it stores, what a pass over an example of mean lengths executes at full depth (pale) and "
        "at the depth tokens realised (full colour), and how long it takes; then the rounds they took part in, of all."
    ),
    columns=_COLUMNS,
    needs=(Outcomes,),
    of_run=_costs,
)


def _parts(subject: Subject, lengths: tuple[int, int], depth: dict[str, float]) -> dict[str, Part]:
    config = subject.model.config
    by_length = [name for name, stack in config.stacks().items() if stack.halting.kind == "length"]
    # Rounds by length are counted as those of other rules: all of them, and as many as ran in the mean.
    exits = dict.fromkeys(by_length, False) | dict(subject.model.exits())
    realised = {name: depth[name] for name in stacks_with_depth(config, exits) if name in depth}
    counts = [
        count_parameters(config).by_part,
        count_macs(config, *lengths, exits=dict.fromkeys(by_length, False)).by_part,
        count_macs(config, *lengths, expected_depth=realised, exits=exits).by_part,
    ]
    parts: dict[str, Part] = {}
    for field, by_part in zip(("parameters", "full", "realised"), counts, strict=True):
        for name, n in by_part.items():
            part = parts.setdefault(_group(name, subject.model.stacks), Part())
            setattr(part, field, getattr(part, field) + n)
    if _REST in parts:  # last
        parts[_REST] = parts.pop(_REST)
    return parts


def _group(part: str, stacks: Collection[str]) -> str:
    """Return the sub-layer that a count's part belongs to: ``encoder.ffn.router`` to ``encoder.ffn``."""
    stack, _, rest = part.partition(".")
    kind = rest.split(".")[0]
    return f"{stack}.{kind}" if rest and kind != "halting" and (stack in stacks or stack == "shared") else _REST


def _draw_parts(parts: dict[str, Part], rounds: dict[str, tuple[int, float]], narrow: bool) -> Figure:
    figure, axes = panels(4, narrow, height=0.9 + 0.3 * len(parts), columns=2)
    across = columns_of(figure)
    halts = any(mean < planned for planned, mean in rounds.values())
    full = [one.full / 1e6 for one in parts.values()] if halts else None
    series = (
        ("parameters, thousands", [one.parameters / 1e3 for one in parts.values()], None),
        ("M MACs an example", [one.realised / 1e6 for one in parts.values()], full),
        ("ms an example", [one.milliseconds for one in parts.values()], None),
    )
    for i, (label, values, at_full_depth) in enumerate(series):
        # Panels beside each other have the same rows, which only the first of them names.
        names = [""] * len(parts) if i % across else list(parts)
        _draw_bars(axes[i], names, label, values, at_full_depth, "full depth")
    planned = [float(planned) for planned, _ in rounds.values()] if halts else None
    means = [mean for _, mean in rounds.values()]
    _draw_bars(axes[3], list(rounds), "rounds a token takes part in, mean", means, planned, "of the plan", height=0.5)
    axes[3].set_ylim(max(len(rounds), 3) - 0.2, -0.8)
    return figure


def _draw_bars(
    axes: Axes,
    names: Sequence[str],
    label: str,
    values: Sequence[float],
    full: Sequence[float] | None,
    full_label: str,
    *,
    height: float = 0.8,
) -> None:
    """Draw horizontal bars, the first at the top; in front of pale bars of the values at full depth where given."""
    at = np.arange(len(names))
    if full is not None:
        axes.barh(at, full, height, color=COLOURS[5], label=full_label)
    axes.barh(at, values, height, color=COLOURS[0], label=None if full is None else "realised")
    axes.set_yticks(at, names, fontsize=FONT)
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=5)
    finish(axes, label, "")
    if full is not None:
        axes.legend(fontsize=FONT, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)
