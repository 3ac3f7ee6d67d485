"""An update whose loss or gradient is not finite: what is saved of it, and what the user is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ostinato.data.batch import Batch
from ostinato.training.update import Gradient

_SHOWN_INDICES = 20


@dataclass(frozen=True, slots=True)
class Failure:
    """An update, what it was made of, and the split of its batches."""

    update: int
    gradient: Gradient
    batches: Sequence[Batch]
    split: str

    @property
    def loss(self) -> float:
        """Mean over the labels."""
        return sum(self.gradient.losses) / self.gradient.n_labels

    def report(self) -> dict[str, Any]:
        """Return what failed.json holds."""
        return {
            "update": self.update,
            "split": self.split,
            "loss": repr(self.loss),
            "grad_norm": repr(self.gradient.norm),
            "batches": [
                {"loss_sum": repr(loss), "is_finite": math.isfinite(loss), "indices": list(batch.indices)}
                for loss, batch in self._parts()
            ],
        }

    def message(self, directory: Path) -> str:
        """Return what is said; `directory` holds the state before the update."""
        suspects = [batch for loss, batch in self._parts() if not math.isfinite(loss)] or self.batches
        indices = [index for batch in suspects for index in batch.indices]
        more = f", ... ({len(indices)} in all)" if len(indices) > _SHOWN_INDICES else ""
        shown = ", ".join(map(str, indices[:_SHOWN_INDICES])) + more
        return (
            f"update {self.update}: the loss is {self.loss} and the norm of its gradient {self.gradient.norm}; the run "
            f"stops. The batch holds the examples {shown} of {self.split} (0-based). The state before this update and "
            f"all indices are in {directory}. Likely causes: a learning rate that is too high (training.optimizer.lr), "
            "too few warm-up updates, or no clipping"
        )

    def _parts(self) -> list[tuple[float, Batch]]:
        return list(zip(self.gradient.losses, self.batches, strict=True))
