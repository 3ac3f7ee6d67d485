"""Looped language models."""

from __future__ import annotations

from family import LEFT, PLAIN, RIGHT, Family, Variant
from torch import Tensor

from ostinato.data.batch import Batch
from ostinato.interop.names.looped import ouro
from ostinato.models import Model


def rounds(n: int, name: str, *checks: str, float32: float | None = None) -> Variant:
    """Return a call with another number of rounds."""
    return Variant(name, call={"n_steps": n}, checks=("numbers", "cached", "rows", *checks), float32=float32)


def exits_at(threshold: float) -> Variant:
    """Return a call in which tokens stop, their states going on through all rounds, as in the class."""

    def run(model: Model, batch: Batch) -> Tensor:
        rule = model.stacks["decoder"].halting.at(threshold)
        rule.freezes = False  # type: ignore[misc]
        before, model.stacks["decoder"].halting = model.stacks["decoder"].halting, rule
        try:
            output = model(batch)
        finally:
            model.stacks["decoder"].halting = before
        return output.logits_BTV  # type: ignore[no-any-return]

    return Variant(f"threshold_{threshold}", run=run, checks=("numbers", "rows"))


FAMILIES = [
    Family(
        "ouro",
        "looped/ouro-toy",
        ouro,
        variants=(
            PLAIN,
            LEFT,
            RIGHT,
            *(rounds(n, f"round_{n}") for n in (1, 2, 3)),
            exits_at(0.5),
            exits_at(0.9),
        ),
        float32=5e-5,
    ),
]
