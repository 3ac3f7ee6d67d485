"""Looped language models."""

from __future__ import annotations

from typing import Any

from family import LEFT, PLAIN, RIGHT, Family, Variant
from torch import Tensor

from ostinato.data.batch import Batch
from ostinato.interop.names.looped import hrm_text, huginn, loopformer, ouro, parcae, trm
from ostinato.models import Model
from ostinato.nn.execution import Execution


def rounds(n: int, name: str) -> Variant:
    """Return a call with another number of rounds."""
    return Variant(name, call={"n_steps": n})


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


def learns_from(n: int, last: int, name: str) -> Variant:
    """Return a call whose gradient goes through the last rounds only."""
    return cut_at(name, n, gradient_rounds=last)


def cut_at(name: str, n: int | None = None, **gradient: Any) -> Variant:
    """Return a call whose gradient does not go through all of the rounds."""
    return Variant(name, call={"n_steps": n, "execution": Execution(**gradient)}, checks=("gradients",))


def along(name: str, *path: float) -> Variant:
    """Return a call whose rounds take steps of these lengths."""
    checks = ("numbers", "cached", "rows", *(["gradients"] if len(set(path)) > 1 else []))
    return Variant(name, call={"execution": Execution(paths={"decoder": path})}, checks=checks)


# The reference starts from zeros, which its configuration cannot say: its call can.
CORE = "{n_steps: 2, repeats: 4, state: {kind: zeros}, inject: {kind: linear}, end_norm: final}"
ZEROS = f"model.decoder.segments=[{{n_steps: 1}}, {CORE}, {{n_steps: 1}}]"
DECAYING = "{n_steps: 2, repeats: 8, state: {kind: zeros}, inject: {kind: decay}, end_map: true}"
DECAYING_FROM_ZEROS = f"model.decoder.segments=[{{n_steps: 2, end_norm: own}}, {DECAYING}, {{n_steps: 2}}]"

FAMILIES = [
    Family(
        "huginn",
        "looped/huginn-toy",
        huginn,
        variants=(
            *(rounds(n, f"rounds_{n}") for n in (1, 2, 4, 8)),
            learns_from(4, 4, "rounds_4_all"),
            learns_from(4, 2, "rounds_2_2"),
        ),
        settings=(ZEROS,),
    ),
    Family(
        "loopformer",
        "looped/loopformer-toy",
        loopformer,
        variants=(
            along("path_8_equal", *(8 * [1 / 8])),
            along("path_4_equal", *(4 * [1 / 4])),
            along("path_quarter_quarter_half", 1 / 4, 1 / 4, 1 / 2),
        ),
        # The class leaves eps to torch, which takes that of the numbers' type: in float64 another than the recipe's.
        in_float64=("model.decoder.norm.eps=2.220446049250313e-16",),
    ),
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
    ),
    Family(
        "parcae",
        "looped/parcae-toy",
        parcae,
        variants=(
            *(rounds(n, f"rounds_{n}") for n in (2, 4, 8)),
            learns_from(4, 4, "rounds_4_all"),
            learns_from(4, 2, "rounds_2_2"),
        ),
        settings=(DECAYING_FROM_ZEROS,),
        # Its eps of queries and keys is torch's, as above.
        in_float64=("model.decoder.self_attention.qk_norm_eps=2.220446049250313e-16",),
    ),
    Family(
        "hrm-text",
        "looped/hrm-text-toy",
        hrm_text,
        variants=(
            Variant("plain"),
            LEFT,
            RIGHT,
            # As published: through the last low phase of the first round, and the last two of the second.
            cut_at("plain", gradient_repeats=(1, 2)),
            Variant("full_gradient", checks=("gradients",)),
        ),
    ),
    Family(
        "trm",
        "looped/trm-toy",
        trm,
        variants=(
            Variant("segment_1"),
            # The second pass goes on from the states of the first: twice as many rounds.
            rounds(6, "segment_2"),
            learns_from(3, 1, "segment_1"),
        ),
        # Theirs has no bias, as a masked head has none.
        settings=(
            "model.head.kind=masked",
            "model.tie_embeddings=none",
            "task={kind: files, model_kind: language_model}",
            "training.selection={metric: loss, mode: min}",
        ),
    ),
]
