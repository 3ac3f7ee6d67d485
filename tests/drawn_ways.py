"""Ways to run a drawn model that training knows nothing of: criteria by which tokens stop, kept rounds of its cache.

They follow from the model: a draw would turn every model after it into another one.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from typing import Any

from ostinato.errors import ConfigError
from ostinato.models import Model
from ostinato.nn.execution import CRITERIA_AT_TEST

THRESHOLDS = (0.0, 0.02, 0.1, 0.3, 0.6, 0.9, 1.0)
KEPT = (1, 2, 3)


def exit_of(model: Model) -> dict[str, Any]:
    """Return a criterion that the model's tokens can stop by, with its scope and a threshold; empty: there is none."""
    choose = random.Random(repr(model.config))
    threshold = choose.choice(THRESHOLDS)
    ways = [
        {"exit": criterion, "exit_scope": scope, "halting_threshold": threshold}
        for criterion, scope in product(CRITERIA_AT_TEST, ("token", "sequence"))
    ]
    possible = [way for way in ways if _can(model, way)]
    return choose.choice(possible) if possible else {}


def kept_of(model: Model) -> dict[str, Any]:
    """Return how many rounds of its loop the model's cache keeps; empty: it keeps all."""
    n_kept = random.Random(repr(model.config)).choice(KEPT)
    return {"cached_rounds": n_kept} if _can(model, {"cached_rounds": n_kept}) else {}


def _can(model: Model, way: dict[str, Any]) -> bool:
    try:
        model.checked(replace(model.current_execution, **way))
    except ConfigError:
        return False
    return True
