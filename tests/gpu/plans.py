"""Small models, one for everything that a GPU would punish in a way of its own, and batches with padding for them."""

from __future__ import annotations

import random
from typing import Any

import torch

from ostinato.config.model import Seq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.models import Model, build_model

VOCABULARY, ROUNDS = 19, 2
_SHARED: dict[str, Any] = {"share": "all"}
_ATTENTION: dict[str, Any] = {"n_heads": 2}
_FEED_FORWARD: dict[str, Any] = {"d_ff": 16}
_EXPERTS: dict[str, Any] = {"kind": "experts", "n_experts": 4, "top_k": 2, "d_ff": 8}
_LOOP: dict[str, Any] = {"self_attention": _ATTENTION | _SHARED, "ffn": _FEED_FORWARD | _SHARED}
PLANS: dict[str, dict[str, Any]] = {
    "dense": {},
    "shared": _LOOP | {"positions": {"kind": "coordinates"}},
    "experts": {"ffn": _EXPERTS},
    "act": _LOOP | {"halting": {"kind": "act"}},
    "stick_breaking": _LOOP | {"halting": {"kind": "stick_breaking", "threshold": 0.6}},
}
HALTING = ("act", "stick_breaking")


def plan(name: str, dropout: float = 0.0) -> Seq2SeqConfig:
    """Return an encoder-decoder model both of whose stacks follow a plan."""
    stack = {"n_steps": ROUNDS, "self_attention": _ATTENTION, "ffn": _FEED_FORWARD} | PLANS[name]
    cross = {"cross_attention": stack["self_attention"]}
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY}
    return Seq2SeqConfig.model_validate(
        {"d_model": 8, "dropout": dropout, "encoder": stack, "decoder": stack | cross, **sizes}
    )


def model_of(name: str, dropout: float = 0.0) -> Model:
    """Return the model, the same weights every time."""
    torch.manual_seed(0)
    return build_model(plan(name, dropout))


def ragged_batch(n: int = 6, seed: int = 0, longest: int = 9) -> Batch:
    """Return sequences of different lengths and what they are backwards."""
    draw = random.Random(seed)
    rows = [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(2, longest))] for _ in range(n)]
    return Batch.from_lists(rows, [row[::-1] for row in rows])
