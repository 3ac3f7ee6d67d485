"""A recipe over tiny files of its own, and what stops its training before the first update."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ostinato.errors import TrainingError
from ostinato.training.session import Session

SIZES = {"train": 24, "dev": 8, "test": 8}
STACK: dict[str, Any] = {"n_steps": 2, "self_attention": {"n_heads": 2, "share": "all"}}
SETTINGS: dict[str, Any] = {
    "task": {"kind": "files"},
    "data": {"tokens_per_batch": 64},
    "model": {
        "kind": "seq2seq",
        "d_model": 8,
        "encoder": STACK | {"ffn": {"d_ff": 8, "share": "all"}, "halting": {"kind": "act"}},
        "decoder": STACK
        | {
            "cross_attention": {"n_heads": 2},
            "ffn": {"kind": "experts", "n_experts": 3, "top_k": 2, "d_ff": 4, "router": {"kind": "hypersphere"}},
            "relative": {"kind": "buckets"},
        },
    },
    "training": {
        "n_updates": 2,
        "evaluate_every": 1,
        "save_every": 1,
        "keep_last": 2,
        "log_every": 1,
        "schedule": {"warmup": 2},
        "device": "cpu",
        "n_threads": 1,
        "selection": {"max_examples": 4},
    },
    "decoding": {"max_length": 6},
    "evaluation": {"splits": ["test"], "by": ["n"]},
}
BEGAN = "training began"


def write_pairs(folder: Path) -> dict[str, str]:
    """Write the three splits, letters and the same letters backwards, and return their settings."""
    draw = random.Random(0)
    paths = {}
    for split, size in SIZES.items():
        pairs = [{"source": "a b c d", "target": "d c b a", "n": 4}]
        for _ in range(size - 1):
            letters = [draw.choice("abcd") for _ in range(draw.randint(1, 5))]
            pairs.append({"source": " ".join(letters), "target": " ".join(reversed(letters)), "n": len(letters)})
        paths[split] = str(folder / f"{split}.jsonl")
        Path(paths[split]).write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return paths


def end_where_training_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run be made, with all that is checked before its first update, and end there with an error of its own."""

    def end(session: Session) -> None:
        raise TrainingError(BEGAN)

    monkeypatch.setattr(Session, "run", end)
