"""What every model returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from ostinato.nn.shapes import Float, Tensor
from ostinato.nn.types import Routing, StackOutput

ByRouter = dict[str, list[Routing]]


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """Logits, and what every stack returns beside them.

    Args:
        logits_BTV: float32 (float64 of a model in float64), for every column of the target; of an `Encoder`
            `[B, L, V]`, for its L labels.
        stacks: by name, in the order they ran.
    """

    logits_BTV: Float[Tensor, "B T V"]
    stacks: dict[str, StackOutput] = field(default_factory=dict)

    def by_router(self) -> ByRouter:
        """Return the routings of all stacks by router, in the order they happened."""
        found: ByRouter = {}
        for stack in self.stacks.values():
            for routing in stack.routings:
                found.setdefault(routing.router, []).append(routing)
        return found
