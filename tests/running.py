"""Setting how a model of a test runs until the test ends: what `with model.execution(...)` does for a block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ostinato.models.base import TokenModel


def run_as(model: TokenModel, **changes: Any) -> None:
    """Run a model in another way from now on: fields of `ostinato.nn.execution.Execution`."""
    model._execution = model.checked(replace(model._execution, **changes))
