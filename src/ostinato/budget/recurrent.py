"""LSTM baselines: parameters and multiply-accumulates by formula, D = d_model, S source tokens.

    layer           4 H (D + H) + 8 H a direction, H = D / directions (torch keeps two biases); its MACs for one token
                    are its weights without the biases
    attention       general D^2, additive 2 D^2 + D, dot 0, and 2 D^2 for what is read out
    its MACs        for one target token: dot 2 D^2, general and additive 3 D^2, and 2 D for every source token it looks
                    at; additive: D^2 for every source token besides
    state           2 D numbers a layer and hypothesis

Gates, cells and tanh are element-wise and are not counted. A generated token touches the decoder, and all of attention
but the map of the memory that an additive score makes once.

Bytes that autograd keeps are an estimate, because torch's CPU kernel (oneDNN) keeps a workspace of its own layout:
15 to 22 H numbers for a token, a layer and direction, by the lengths and sizes of the batch; 18 are counted, and the
layer's input and output beside them. From 64 units a direction on that is within a fifth. LSTMs run in float32 under
autocast. Packing padded sentences keeps copies besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ostinato.budget.training_pass import FLOAT, ID, TrainingPass
from ostinato.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class RecurrentPart:
    """A part of a recurrent model.

    Args:
        reader: "encoder" or "decoder". part: what it is shown under.
        size: stored parameters. touched: by one generated token. products: MACs of a token of its side.
        per_source: MACs of a target token for every source token. memory: of a source token, once.
    """

    reader: str
    part: str
    size: int
    touched: int
    products: int
    per_source: int = 0
    memory: int = 0


def recurrent_parts(config: ModelConfig) -> Iterator[RecurrentPart]:
    """Yield the parts of a recurrent model; nothing of one that has stacks."""
    d_model = config.d_model
    for name, recurrence in config.recurrences().items():
        products = 4 * d_model * (d_model + d_model // recurrence.n_directions) * recurrence.n_layers
        size = products + 8 * d_model * recurrence.n_layers
        yield RecurrentPart(name, f"{name}.lstm", size, size, products)
        square = d_model**2
        asked = {"none": None, "dot": 0, "general": square, "additive": 2 * square + d_model}[recurrence.score]
        if asked is None:
            continue
        is_additive = recurrence.score == "additive"
        made = square if is_additive else 0
        yield RecurrentPart(
            name,
            f"{name}.attention",
            asked + 2 * square,
            asked + 2 * square - made,
            (0 if recurrence.score == "dot" else square) + 2 * square,
            per_source=2 * d_model,
            memory=made,
        )


def recurrent_bytes(run: TrainingPass) -> Counter[str]:
    """Return about what recurrences and their attention keep of a training pass, by part."""
    config, found = run.config, Counter[str]()
    for name, recurrence in config.recurrences().items():
        numbers = run.tokens(name) * config.d_model
        # 18 of the kernel's workspace and the layer's output, which is the next layer's input.
        layers = recurrence.n_layers * 19 * numbers
        found["embeddings"] += ID * run.tokens(name)
        found[f"{name}.lstm"] = FLOAT * (numbers + layers)
        if config.dropout:
            # Torch's own dropout between layers keeps numbers, ours before and behind them a byte.
            found[f"{name}.dropout"] = 2 * numbers + 2 * FLOAT * (recurrence.n_layers - 1) * numbers
        if recurrence.score != "none":
            # Queries and what they find, both states side by side, and what is read out.
            memory, pairs = run.tokens("encoder"), run.tokens("decoder") * run.lengths["encoder"]
            kept = run.width * numbers * (5 + (recurrence.score != "dot"))
            if recurrence.score == "additive":
                kept += run.width * (pairs + memory) * config.d_model + FLOAT * pairs
            else:
                kept += FLOAT * run.tokens("decoder")
            found[f"{name}.attention"] = kept
    return found
