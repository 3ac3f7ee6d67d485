"""Banks: the parameter sets a plan refers to by name, owned by the model.

There is one bank for every kind of sub-layer, one for norms, one for tables of relative positions, and one for tables
of values; by stack one for halting units, for tables of learned positions, and for maps from embeddings to states; by
stack and segment one each for what loops have beside their steps, and one each for what rounds have of their own
(`ostinato.nn.by_round`). A set may serve many steps and more than one stack; it is one object, so it is counted,
optimised and stored once.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from ostinato.plan import Use


class Banks(nn.Module):
    """Parameter sets by kind and name. A plan's `Use` names one of a kind; steps and stacks may name the same."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attention = nn.ModuleDict()
        self.cross_attention = nn.ModuleDict()
        self.ffn = nn.ModuleDict()
        self.norm = nn.ModuleDict()
        self.relative = nn.ModuleDict()
        self.values = nn.ModuleDict()
        self.halting = nn.ModuleDict()
        self.start = nn.ModuleDict()
        self.injection = nn.ModuleDict()
        self.end_map = nn.ModuleDict()
        self.positions = nn.ModuleDict()
        self.embedding = nn.ModuleDict()
        self.delta = nn.ModuleDict()
        self.modulation = nn.ModuleDict()
        self.vectors = nn.ModuleDict()
        self.time = nn.ModuleDict()

    def set_of(self, use: Use) -> Any:
        """Return the parameter set that a use names."""
        return getattr(self, use.kind)[use.weights]
