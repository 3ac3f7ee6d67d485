"""Study of what a run costs, part by part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from ostinato.analysis.canvas import COLOURS
from ostinato.analysis.drawing import columns_of, finish, panels
from ostinato.analysis.latency import part_latencies, threads_and_device
from ostinato.analysis.outcomes import Outcomes
from ostinato.analysis.studies.base import EachRun, Finding, OnProgress, Subject
from ostinato.budget import count_macs, count_parameters

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REST = "everything else"


@dataclass(slots=True)
class Part:
    """What one part costs: stored parameters, multiply-accumulates of a pass over a mean example at full and at
    realised depth, and milliseconds an example; None: not a part of this count."""

    parameters: int = 0
    full: int = 0
    realised: int = 0
    milliseconds: float = 0.0


class Costs(EachRun):
    """Parameters, multiply-accumulates, realised depth and latency by part."""

    name = "budget"
    title = "Budget by part"
    reading = (
        "For every part what it stores, what a pass over an example of mean lengths executes at full depth (pale) and "
        "at the depth tokens realised (full colour), and how long it takes; then the rounds they took part in, of all."
    )
    needs = (Outcomes,)

    def why_not(self, subject: Subject) -> str | None:
        """Return None: it applies to all models with steps."""
        return None

    def of_run(self, subject: Subject, on_progress: OnProgress) -> Finding:
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
        names = ("part", "parameters", "M MACs, full depth", "M MACs, realised", "ms an example")
        is_pair = subject.model.config.has_two_sides
        sides = f"{lengths[0]} source and {lengths[1]} target" if is_pair else str(lengths[1])
        note = (
            f"Latency: teacher-forced passes over {latency.n} examples in batches, on "
            f"{threads_and_device(subject.model)}; parts are timed in passes of their own, so that their sum exceeds "
            f"the whole pass (last row). MACs: {sides} tokens. {_REST.capitalize()}: embeddings, norms, positions, "
            "output, halting."
        )
        return Finding(subject.name, names, rows, data, lambda: _draw_parts(parts, rounds), note=note)


def _parts(subject: Subject, lengths: tuple[int, int], depth: dict[str, float]) -> dict[str, Part]:
    config, halting = subject.model.config, subject.model.halting_thresholds()
    realised = {name: mean for name, mean in depth.items() if name in halting}
    counts = [
        count_parameters(config).by_part,
        count_macs(config, *lengths).by_part,
        count_macs(config, *lengths, expected_depth=realised).by_part,
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


def _draw_parts(parts: dict[str, Part], rounds: dict[str, tuple[int, float]]) -> Figure:
    figure, axes = panels(4, width=4.4, height=0.9 + 0.3 * len(parts), columns=2)
    names, at = list(parts), np.arange(len(parts))
    series = (
        ("parameters, thousands", [one.parameters / 1e3 for one in parts.values()]),
        ("M MACs an example", [one.realised / 1e6 for one in parts.values()]),
        ("ms an example", [one.milliseconds for one in parts.values()]),
    )
    halts = any(mean < of for of, mean in rounds.values())
    for i, (panel, (label, values)) in enumerate(zip(axes, series, strict=False)):
        if i == 1 and halts:
            panel.barh(at, [one.full / 1e6 for one in parts.values()], color=COLOURS[5], label="full depth")
        panel.barh(at, values, color=COLOURS[0], label="realised" if i == 1 and halts else None)
        _name_bars(panel, names if not i % columns_of(figure) else [""] * len(names), label)
    stacks = list(rounds)
    if halts:
        axes[3].barh(range(len(stacks)), [of for of, _ in rounds.values()], 0.5, color=COLOURS[5], label="of the plan")
    means = [mean for _, mean in rounds.values()]
    axes[3].barh(range(len(stacks)), means, 0.5, color=COLOURS[0], label="realised" if halts else None)
    axes[3].set_ylim(-0.8, max(len(stacks), 3) - 0.2)
    _name_bars(axes[3], stacks, "rounds a token takes part in, mean")
    return figure


def _name_bars(axes: Axes, names: Sequence[str], label: str) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    finish(axes, label, "", legend=False)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2)


COSTS = Costs()
