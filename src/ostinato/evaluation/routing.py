"""Realised routing: how the routers of a model used their experts, over all real tokens and rounds of a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ostinato.nn import balance
from ostinato.nn.types import Routing


class RoutingTotals:
    """Choices, entropies and weights of every router; teacher-forced passes are added one by one.

    A row counts by its weight: 0 for padding and halted tokens, else the mass that remains, 1 without halting.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Count the `routing_sums` of one pass."""
        for router, part in sums.items():
            self._sums[router] = self._sums[router] + part if router in self._sums else part

    def compute(self) -> dict[str, dict[str, Any]]:
        """Return by router how its experts were used.

        Returns:
            load: every expert's fraction of the choices. load_entropy: of it, in nats; log E where experts are used
            alike. row_entropy: of a token's distribution over the experts, on average. n_dead: experts that no token
            chose. experts_per_token: experts a token got each time it was routed, on average.
        """
        found = {}
        for router, sums_V in self._sums.items():
            total, row_entropy, n_rows, n_choices = sums_V[:4].tolist()
            # Divided by their own sum and not by `total`, so that they add up to 1 exactly.
            load_E = sums_V[4:] / sums_V[4:].sum().clamp_min(torch.finfo(sums_V.dtype).tiny)
            found[router] = {
                "load": load_E.tolist(),
                "load_entropy": float(torch.special.entr(load_E).sum()),
                "row_entropy": row_entropy / total if total else 0.0,
                "n_dead": int((load_E == 0).sum()),
                "experts_per_token": n_choices / n_rows if n_rows else 0.0,
            }
        return found


def routing_sums(by_router: Mapping[str, Sequence[Routing]]) -> dict[str, Tensor]:
    """Return by router what `RoutingTotals` adds up of a pass, without its padding: on the host, in float64.

    `[4 + E]`: sums of the rows' weights and of their weighted entropies (nats); rows, choices, and of every expert its
    weighted choices.
    """
    if not by_router:
        return {}
    # One after the other: joined, the probabilities of all steps would be held twice.
    sums = [torch.stack([_sums(one) for one in routings]).sum(0) for routings in by_router.values()]
    # One copy to the host per pass; float64, so that totals do not depend on the batch size.
    parts = torch.split(torch.cat(sums).cpu().double(), [len(one) for one in sums])
    return dict(zip(by_router, parts, strict=True))


def _sums(routing: Routing) -> Tensor:
    """Return weight, weighted entropies, tokens, choices, and every expert's weighted choices."""
    load = balance.load([routing])
    n_rows = (routing.weight_N > 0).sum()
    scalars = [load.total, load.total * load.row_entropy, n_rows, n_rows * routing.experts_NK.shape[1]]
    return torch.cat([torch.stack([value.to(load.total.dtype) for value in scalars]), load.total * load.fraction_E])
