"""A comparison's rows as tables for people, and what has to be said below them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ostinato.experiments.compare.forced import is_forced
from ostinato.tasks.checks import mode_of

Row = Mapping[str, Any]
Table = tuple[list[str], list[list[object]]]


def score_table(rows: Sequence[Row]) -> Table:
    """Return one line for every split and system: scores, and their differences to the reference's, with intervals."""
    names = _metrics(rows)
    is_one_system = all(row["system"] == row["reference"] for row in rows)
    # Scores out of 100 have two digits, shares and teacher-forced scores four.
    highest = {
        name: [h for row in rows if name in row["metrics"] if _is_finite(h := row["metrics"][name]["high"])]
        for name in names
    }
    digits = {name: 2 if max(highs, default=0) > 1 and not is_forced(name) else 4 for name, highs in highest.items()}
    columns = ["split", "system", "n"]
    for name in names:
        columns += [name] if is_one_system else [name, f"{name} - reference"]
    lines: list[list[object]] = []
    for row in rows:
        line: list[object] = [row["split"], row["system"], row["n"]]
        for name in names:
            score = row["metrics"].get(name)
            line.append(_interval(score, digits[name]) if score else "")
            if not is_one_system:
                found = score["difference"] if score else None
                line.append(f"{_interval(found, digits[name], '+')} {score['verdict']}" if found else "")
        lines.append(line)
    return columns, lines


def cost_table(rows: Sequence[Row]) -> Table:
    """Return one line for every system: size, multiply-accumulates, training, and decoding speed over all splits."""
    halts = any(row["macs"] and row["macs"].get("depth") for row in rows)
    columns = [
        *("system", "seed", "parameters", "M MACs"),
        *(["M MACs, full depth"] if halts else []),
        *("M MACs / generated token", "updates", "training s", "training tokens/s", "decoding tokens/s"),
    ]
    lines: list[list[object]] = []
    for name in dict.fromkeys(row["system"] for row in rows):
        mine = [row for row in rows if row["system"] == name]
        row = mine[0]
        counts = [_mean_macs(mine, key) for key in ("total", *(["full_depth"] if halts else []), "per_generated_token")]
        times = [row["training_seconds"], row["training_tokens_per_second"]]
        decoding = [row["decoding"] for row in mine]
        # Over all splits; not known where a split's time is not.
        is_known = all(part is not None for part in decoding)
        seconds = sum(float(part["seconds"]) for part in decoding) if is_known else 0.0
        times.append(sum(int(part["n_generated"]) for part in decoding) / max(seconds, 1e-9) if is_known else None)
        whole = [None if value is None else round(value) for value in times]
        lines.append([name, row["seed"], row["parameters"], *counts, row["n_updates"], *whole])
    return columns, lines


def notes(rows: Sequence[Row]) -> list[str]:
    """Return lines that say how the numbers were made and what they do not say."""
    if not rows:
        return []
    found = rows[0]["bootstrap"]
    tested = [score for row in rows for score in row["metrics"].values() if score["difference"] is not None]
    lines = [
        f"Intervals: {found['level']:.0%} of {found['n_samples']:,} bootstrap samples of the test sentences, seed "
        f"{found['seed']}; they do not cover how scores vary with the training seed.",
    ]
    if tested:
        lines.append(
            f"Reference: {rows[0]['reference']}. {len(tested)} differences were tested; of equal systems, about 1 in "
            f"{1 / (1 - found['level']):.0f} intervals excludes 0 by chance."
        )
    macs: Mapping[str, Any] = next((row["macs"] for row in rows if row["macs"]), {})
    if macs:
        halts = any(row["macs"] and row["macs"].get("depth") for row in rows)
        depth = "; where tokens halt, at the rounds that those of the compared sentences ran on average"
        lines.append(
            f"MACs: one forward pass over {macs['source_length']} source and {macs['target_length']} target tokens"
            f"{depth if halts else ''}."
        )
    decoding = [row["decoding"] for row in rows if row["decoding"]]
    places = dict.fromkeys(f"{part['device']}, CPU threads: {part['n_threads']}" for part in decoding)
    if places:
        lines.append(f"Decoded on: {'; '.join(places)}.")
    if any(part["settings"] != decoding[0]["settings"] for part in decoding):
        lines.append("The systems were decoded with different settings: they are in the rows (--jsonl, --json).")
    if smaller := [name for name in _metrics(rows) if mode_of(name) == "min"]:
        lines.append(f"Lower is better: {', '.join(smaller)}.")
    for name in _metrics(rows):
        signatures = dict.fromkeys(row["metrics"][name]["signature"] for row in rows if name in row["metrics"])
        lines += [f"{name}: {signature}" for signature in signatures if signature]
    return lines


def _mean_macs(rows: Sequence[Row], key: str) -> float | None:
    """Return millions of a count of a system's rows, as a mean over the sentences of all of them; None if unknown."""
    # Rows that were written before halting was counted have one number, that of all rounds.
    weighed = [(row["macs"].get(key, row["macs"]["total"]), row["n"]) for row in rows if row["macs"]]
    if len(weighed) < len(rows):
        return None
    return float(sum(n * weight for n, weight in weighed) / sum(weight for _, weight in weighed) / 1e6)


def _metrics(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row["metrics"]))


def _interval(estimate: Row, digits: int, sign: str = "") -> str:
    found = [estimate[key] for key in ("value", "low", "high")]
    value, low, high = (f"{one:{sign}.{digits}f}" if _is_finite(one) else "not finite" for one in found)
    return f"{value} [{low}, {high}]"


def _is_finite(value: float | None) -> bool:
    """Return whether a score is a number; the infinity of a perplexity stands as null in a file of rows."""
    return value is not None and math.isfinite(value)
