"""Measured speed as rows of data: size and counted cost beside the times, and the speed against a baseline; its table.

Only what was timed in the same rounds is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ostinato.budget import count_macs, count_parameters
from ostinato.config.common import SequenceModelConfig
from ostinato.config.model import ModelConfig
from ostinato.evaluation.timing import Effort
from ostinato.experiments.timing.environment import versions_of
from ostinato.experiments.timing.latency import Measurement, Timer, TimingPlan
from ostinato.experiments.timing.spread import speed_ratio
from ostinato.experiments.timing.workloads import TimedModel, Workload

_BACKWARD = 3
"""A pass with its backward costs three times the pass: gradients of inputs and of weights are a product each."""


def measure_models(
    timer: Timer,
    candidates: Sequence[TimedModel],
    work: Sequence[Workload],
    effort: Effort,
    on_plan: Callable[[TimingPlan], None] = lambda plan: None,
) -> dict[str, list[dict[str, Any]]]:
    """Return a row for every workload, by candidate; speeds are against the first one, `precision` is an update's."""
    by_name: dict[str, list[dict[str, Any]]] = {candidate.name: [] for candidate in candidates}
    found = list(timer.measure(candidates, work, effort, on_plan))
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
    # A stack without feed-forwards has no width.
    stacks = {
        name: {"n_steps": stack.n_steps, "d_ff": None if stack.ffn.is_absent else stack.ffn.d_ff}
        for name, stack in model.stacks().items()
    }
    found = measurement.row() | {
        "stacks": stacks,
        "parameters": count_parameters(model).stored,
        "macs": workload_macs(model, measurement.workload),
    }
    if baseline is not None:
        ratio = speed_ratio(measurement.seconds, baseline.seconds)
        found["speed"] = {"baseline": baseline.name} | ratio.row()
    return found


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
    lines: list[list[object]] = []
    for row in rows:
        macs, speed = row["macs"], row.get("speed") or {}
        counts = macs["per_source_token"] / 1e6, macs["per_generated_token"] / 1e6, macs["call"] / 1e9
        quartiles = f"{row['low_s'] * 1e3:.1f}-{row['high_s'] * 1e3:.1f}"
        line = [work_name(row), row["name"], row["parameters"], *map(_short, counts), _short(row["median_s"] * 1e3)]
        line += [quartiles, _short(row["tokens_per_s"])]
        is_compared = speed.get("baseline", row["name"]) != row["name"]
        line += [speed["value"], f"{speed['low']:.3f}-{speed['high']:.3f}"] if is_compared else [None, None]
        lines.append([*line, row["n"], row["disturbed"]])
    if len(set(groups)) < 2:
        return columns, lines
    return ["group", *columns], [[group, *line] for group, line in zip(groups, lines, strict=True)]


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
        f"{versions_of(machine)}"
    )
