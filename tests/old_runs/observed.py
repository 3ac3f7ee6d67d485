"""What is observed of a run: logits of a batch, generated outputs, and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ostinato.data.batch import Batch, Tokens
from ostinato.evaluation.loading import LoadedRun

BEAMS = (1, 4)
TIMES = ("seconds", "decoding_seconds")


@dataclass(frozen=True)
class Observed:
    """What a run gives.

    Args:
        logits: of the batch. inputs: what text was generated from. outputs: beam -> text and score of each output.
        scores: of the split `test`, without its times.
    """

    logits: Tensor
    inputs: list[str]
    outputs: dict[str, list[dict[str, Any]]]
    scores: dict[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return all but the logits as JSON holds it."""
        return {"inputs": self.inputs, "outputs": self.outputs, "scores": self.scores}


def observe(run: LoadedRun, batch: Batch, inputs: Sequence[str]) -> Observed:
    with torch.no_grad():
        logits = run.model.eval()(batch).logits_BTV
    outputs = {}
    for beam in BEAMS if inputs else ():
        found = run.generations(inputs, beam=beam, min_length=3, max_length=8)
        outputs[str(beam)] = [
            {name: value for name, value in asdict(one).items() if name in ("text", "score", "finished", "n_tokens")}
            for one in found
        ]
    return Observed(logits, list(inputs), outputs, numbers(run.evaluate("test")))


def numbers(scores: dict[str, Any]) -> dict[str, Any]:
    """Return scores without the times that were measured."""
    return {
        key: numbers(value) if isinstance(value, dict) else value for key, value in scores.items() if key not in TIMES
    }


def pack(batch: Batch) -> dict[str, Tensor]:
    """Return the tensors of a batch by name."""
    found = {
        "target.ids": batch.target.ids_BT,
        "target.keep": batch.target.keep_BT,
        "labels": batch.labels_BT,
        "loss": batch.loss_BT,
        "places": batch.places_BL,
        "prefix_lengths": batch.prefix_lengths_B,
    }
    if batch.source is not None:
        found |= {"source.ids": batch.source.ids_BT, "source.keep": batch.source.keep_BT}
    return {name: tensor.contiguous() for name, tensor in found.items() if tensor is not None}


def unpack(tensors: dict[str, Tensor]) -> Batch:
    """Return the batch of its tensors."""
    source = None
    if "source.ids" in tensors:
        source = Tokens(tensors["source.ids"], tensors["source.keep"])
    return Batch(
        Tokens(tensors["target.ids"], tensors["target.keep"]),
        tensors["labels"],
        tensors["loss"],
        source,
        tensors.get("places"),
        tensors.get("prefix_lengths"),
    )
