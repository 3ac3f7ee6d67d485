"""Small models, one for everything that a GPU would punish in a way of its own, and batches with padding for them."""

from __future__ import annotations

import random
from typing import Any

import torch

from ostinato.config.model import EncoderConfig, ModelConfig, Seq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.data.collate import LabelledRow, collate
from ostinato.models import Model, build_model
from ostinato.nn.halting import NoHalting

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


def plan(name: str, dropout: float = 0.0, n_rounds: int = ROUNDS) -> Seq2SeqConfig:
    """Return an encoder-decoder model both of whose stacks follow a plan."""
    stack = {"n_steps": n_rounds, "self_attention": _ATTENTION, "ffn": _FEED_FORWARD} | PLANS[name]
    cross = {"cross_attention": stack["self_attention"]}
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY}
    return Seq2SeqConfig.model_validate(
        {"d_model": 8, "dropout": dropout, "encoder": stack, "decoder": stack | cross, **sizes}
    )


def model_of(name: str, dropout: float = 0.0, n_rounds: int = ROUNDS) -> Model:
    """Return the model, the same weights every time."""
    torch.manual_seed(0)
    return build_model(plan(name, dropout, n_rounds))


def is_dense(model: Model) -> bool:
    """Return whether a model is made of stacks without experts in which all tokens take part in all rounds."""
    stacks = model.stacks.values()
    return (
        bool(stacks)
        and all(isinstance(one.halting, NoHalting) for one in stacks)
        and not any(True for _ in model.routed())
    )


def ragged_batch(n: int = 6, seed: int = 0, longest: int = 9) -> Batch:
    """Return sequences of different lengths and what they are backwards."""
    draw = random.Random(seed)
    rows = [[draw.randrange(4, VOCABULARY) for _ in range(draw.randint(2, longest))] for _ in range(n)]
    return Batch.from_lists(rows, [row[::-1] for row in rows])


def batch_of(config: ModelConfig) -> Batch:
    """Return two sequences of different lengths with what the model reads and predicts, of ids below 8."""
    rows = [[4, 5, 6, 7], [6, 5]]
    if not isinstance(config, EncoderConfig):
        return Batch.from_lists(rows, rows, joins_pairs=config.joins_pairs)
    labels = {"classification": lambda ids: [1], "span": lambda ids: [2, 3]}.get(config.head.kind, lambda ids: ids)
    if config.max_words is not None:
        return collate([LabelledRow([], labels(ids), facts=[ids, ids[:1]]) for ids in rows])
    n_prefix = 1 if config.head.kind == "span" else None
    return collate([LabelledRow([1, *ids, 2], labels([1, *ids, 2]), n_prefix=n_prefix) for ids in rows])
