"""The halting threshold that was chosen for a run after training, stored in a file in the run's directory.

It is chosen for one checkpoint, because other weights halt after other rounds. A run that is loaded at another
checkpoint has its trained thresholds.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ostinato.config.halting import ActConfig, StickBreakingConfig
from ostinato.data.disk import write_json
from ostinato.errors import CheckpointError
from ostinato.models import Model

FILE, FORMAT = "halting-threshold.json", 1

TRAINED = "trained"
"""Stands for every stack's own threshold, as its configuration says."""


@dataclass(frozen=True, slots=True)
class TunedThreshold:
    """A chosen threshold, and how it was chosen.

    Args:
        threshold: of all stacks in which tokens halt; None: their trained ones.
        checkpoint: its name. split, metric, max_drop: the metric of the split fell by at most max_drop.
    """

    threshold: float | None
    checkpoint: str
    split: str
    metric: str
    max_drop: float


def write_tuned(directory: Path, tuned: TunedThreshold) -> Path:
    """Store a chosen threshold with a run, in place of an earlier one; return the file."""
    path = directory / FILE
    write_json(path, {"format": FORMAT} | asdict(tuned))
    return path


def read_tuned(directory: Path) -> TunedThreshold | None:
    """Return a run's chosen threshold, None where there is none.

    Raises:
        CheckpointError: it cannot be read.
    """
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {content['format']!r} is not {FORMAT}, the one this version reads")
        tuned = TunedThreshold(**{field.name: content[field.name] for field in fields(TunedThreshold)})
        if tuned.threshold is not None and not 0.0 <= tuned.threshold <= 1.0:
            raise ValueError(f"threshold {tuned.threshold!r} does not lie in [0, 1]")
    except (OSError, ValueError, KeyError, TypeError) as error:
        advice = "remove it, or choose again with ostinato tune-threshold"
        raise CheckpointError(f"{path}: cannot be read: {error!r}; {advice}") from error
    return tuned


def trained_thresholds(model: Model) -> dict[str, float]:
    """Return the thresholds of a model's configuration, by stack in which tokens halt."""
    found: dict[str, float] = {}
    for name, stack in model.config.stacks().items():
        match stack.halting:
            case StickBreakingConfig(threshold=threshold):
                found[name] = threshold
            case ActConfig(epsilon=epsilon):
                found[name] = 1.0 - epsilon
    return found


def threshold_origin(model: Model, tuned: TunedThreshold | None) -> str:
    """Say where the thresholds in force come from: trained, tuned, or given (by an option, or by a program)."""
    present = model.halting_thresholds()
    if _all_equal(present, trained_thresholds(model)):
        return TRAINED
    if (
        tuned is not None
        and tuned.threshold is not None
        and _all_equal(present, dict.fromkeys(present, tuned.threshold))
    ):
        return "tuned"
    return "given"


def _all_equal(present: dict[str, float], wanted: dict[str, float]) -> bool:
    # Up to rounding: ACT stores 1 - threshold.
    return all(math.isclose(present[name], wanted[name], abs_tol=1e-12) for name in present)
