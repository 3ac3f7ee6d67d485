"""Speed studies: groups of arms timed on the same work in the same rounds, one row of data an arm and workload.

A study is a list of groups. The first arm of a group is what the others are compared with; arms of different groups
are not timed in the same rounds and are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import monotonic
from typing import Any

from ostinato.budget import count_macs, count_parameters
from ostinato.config.common import SequenceModelConfig
from ostinato.config.model import ModelConfig
from ostinato.evaluation.timing import Effort
from ostinato.experiments.latency import Announcement, Laboratory, Measurement
from ostinato.experiments.spread import speed_ratio
from ostinato.experiments.workloads import Candidate, Workload
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model
from ostinato.version import __version__

_BACKWARD = 3
"""A pass with its backward costs three times the pass: gradients of inputs and of weights are a product each."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One variant of a study: a recipe, and what is changed in it."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Arms that are timed together on each of the workloads; the first is the baseline."""

    name: str
    arms: tuple[Arm, ...]
    workloads: tuple[Workload, ...]


@dataclass(frozen=True, slots=True)
class Study:
    """Groups of arms.

    Args:
        vocabulary: rows of every vocabulary; None: what the recipes say.
        effort: for every workload of every group; its seconds are for the whole study, and what a workload leaves
            of its share is the later ones'.
        precision: of updates, whatever the recipes say.
    """

    name: str
    groups: tuple[Group, ...]
    vocabulary: int | None = None
    effort: Effort = field(default_factory=Effort)
    precision: str = "float32"

    def run(
        self, laboratory: Laboratory, on_plan: Callable[[Announcement], None] = lambda announcement: None
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows, workload by workload.

        Row: study, group, recipe, overrides; name, workload, median_s, low_s, high_s, n, disturbed, tokens_per_s,
        seconds (see `Measurement`); stacks: {name: {n_steps, d_ff or None}}; parameters (stored); macs: {call,
        per_source_token, per_generated_token}; speed: {baseline, value, low, high, verdict}; version, environment.

        Raises:
            ConfigError: recipes, settings or workloads that cannot be used.
        """
        began, left = monotonic(), sum(len(group.workloads) for group in self.groups)
        for group in self.groups:
            candidates = [self._candidate(arm) for arm in group.arms]
            for workload in group.workloads:
                effort = self.effort
                if effort.seconds is not None:
                    effort = replace(effort, seconds=max(0.0, effort.seconds - (monotonic() - began)) / left)
                found = laboratory.measure(candidates, [workload], effort, on_plan)
                yield from self._rows(group, candidates, list(found), laboratory)
                left -= 1

    def _rows(
        self, group: Group, candidates: list[Candidate], found: list[Measurement], laboratory: Laboratory
    ) -> Iterator[dict[str, Any]]:
        described = {"version": __version__, "environment": asdict(laboratory.environment())}
        for arm, candidate, measurement in zip(group.arms, candidates, found, strict=True):
            head = {"study": self.name, "group": group.name, "recipe": arm.recipe, "overrides": list(arm.overrides)}
            yield head | row(measurement, candidate.model, found[0]) | described

    def _candidate(self, arm: Arm) -> Candidate:
        recipe = load_recipe(arm.recipe, [*arm.overrides, f"training.precision={self.precision}"])
        sized = size_model(recipe, source=self.vocabulary, target=self.vocabulary)
        return Candidate(arm.name, sized.model, recipe.training)


def measure_models(
    laboratory: Laboratory,
    candidates: Sequence[Candidate],
    work: Sequence[Workload],
    effort: Effort,
    on_plan: Callable[[Announcement], None] = lambda announcement: None,
) -> dict[str, list[dict[str, Any]]]:
    """Return a row for every workload, by candidate; speeds are against the first one, `precision` is an update's."""
    by_name: dict[str, list[dict[str, Any]]] = {candidate.name: [] for candidate in candidates}
    found = list(laboratory.measure(candidates, work, effort, on_plan))
    for place, measurement in enumerate(found):
        number = place % len(candidates)
        candidate = candidates[number]
        of_updates = measurement.workload.kind == "update"
        precision = candidate.training.precision if of_updates else "float32"
        by_name[candidate.name].append(
            row(measurement, candidate.model, found[place - number]) | {"precision": precision}
        )
    return by_name


def row(measurement: Measurement, model: ModelConfig, baseline: Measurement | None = None) -> dict[str, Any]:
    """Return a measurement with the model's size and cost beside it, and its speed against a baseline."""
    found = measurement.row() | {
        "stacks": _sizes(model),
        "parameters": count_parameters(model).stored,
        "macs": workload_macs(model, measurement.workload),
    }
    if baseline is not None:
        ratio = speed_ratio(measurement.seconds, baseline.seconds)
        found["speed"] = {"baseline": baseline.name} | ratio.row()
    return found


def _sizes(model: ModelConfig) -> dict[str, dict[str, int | None]]:
    """Return depth and width of every stack; no width where it has no feed-forward."""
    return {
        name: {"n_steps": stack.n_steps, "d_ff": None if stack.ffn.share == "none" else stack.ffn.d_ff}
        for name, stack in model.stacks().items()
    }


def workload_macs(model: ModelConfig, workload: Workload) -> dict[str, int]:
    """Return the multiply-accumulates of one call, and of its tokens.

    call: the whole call; an update counts three times its forward pass, its optimiser nothing. A search runs the
    encoder and the begin symbol, or a language model's prompt, once a sentence, then `beam` hypotheses of
    `target_length` - 1 tokens.
    per_source_token: of one pass over the source, without the output projection. per_generated_token: of one
    hypothesis, in the middle of the target.
    """
    S, T = workload.source_length, workload.target_length
    if isinstance(model, SequenceModelConfig):
        whole, prompt = count_macs(model, 1, S + T), count_macs(model, 1, S + 1)
        before, per_source = S, (prompt.total - prompt.by_part["output"]) // (S + 1) if S else 0
        first = prompt.total - prompt.by_part["output"] * S // (S + 1)
    else:
        whole = count_macs(model, S, T)
        before, per_source = 0, whole.per_source_token
        first = S * per_source + count_macs(model, S, T, context=1).per_generated_token
    # The tokens after the first attend to 2, ..., T tokens of the target.
    token = count_macs(model, max(S, 1), S + T, context=before + (T + 2) // 2).per_generated_token
    sentence = {
        "forward": whole.total,
        "update": whole.total * _BACKWARD,
        "decoding": first + workload.beam * (T - 1) * token,
    }[workload.kind]
    return {"call": sentence * workload.batch_size, "per_source_token": per_source, "per_generated_token": token}


def speed_table(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Return headings and one line a row: speed with its quartiles, and against the baseline of the same rounds.

    Where the rows are of several groups, the first column says which.
    """
    groups = [row.get("group") for row in rows]
    columns = [
        "work",
        "model",
        "parameters",
        "M MACs per source token",
        "M MACs per generated token",
        "G MACs per call",
        "ms",
        "quartiles",
        "tokens/s",
        "speed / baseline",
        "95 % interval",
        "rounds",
        "disturbed",
    ]
    lines = [_line(row) for row in rows]
    if len(set(groups)) < 2:
        return columns, lines
    return ["group", *columns], [[group, *line] for group, line in zip(groups, lines, strict=True)]


def _line(row: dict[str, Any]) -> list[object]:
    macs, speed = row["macs"], row.get("speed") or {}
    is_compared = speed.get("baseline", row["name"]) != row["name"]
    return [
        work_name(row),
        row["name"],
        row["parameters"],
        _short(macs["per_source_token"] / 1e6),
        _short(macs["per_generated_token"] / 1e6),
        _short(macs["call"] / 1e9),
        _short(row["median_s"] * 1e3),
        f"{row['low_s'] * 1e3:.1f}-{row['high_s'] * 1e3:.1f}",
        _short(row["tokens_per_s"]),
        speed["value"] if is_compared else None,
        f"{speed['low']:.3f}-{speed['high']:.3f}" if is_compared else None,
        row["n"],
        row["disturbed"],
    ]


def work_name(row: dict[str, Any]) -> str:
    """Return what a row's calls did."""
    return str(Workload(**row["workload"]))


def _short(value: float) -> float | int:
    """Return a number that tables show without an exponent."""
    return round(value) if value >= 1000 else value


def conditions(row: dict[str, Any]) -> str:
    """Return in words what a row was measured on."""
    machine, work = row["environment"], row["workload"]
    where = "" if machine["device"] == "cpu" else f"{machine['device']}, "
    return (
        f"{work['source_length']} source and {work['target_length']} target tokens a sentence; "
        f"{where}{machine['cpu']}, {machine['threads']} of {machine['cores']} cores used, {machine['system']}, "
        f"torch {machine['torch']}, Python {machine['python']}, ostinato {machine['ostinato']}"
    )
