"""A task of letters to be written backwards, small enough for a run to take a second."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.config.training import BALANCE_LOSSES
from ostinato.training import Reporter

SIZES = {"train": 60, "dev": 10, "test": 10}


def write_letters(folder: Path) -> dict[str, str]:
    """Write the three splits and return their settings."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    paths = {}
    for split, size in SIZES.items():
        pairs = []
        for _ in range(size):
            letters = [generator.choice("abcdef") for _ in range(generator.randint(1, 6))]
            pairs.append({"source": " ".join(letters), "target": " ".join(reversed(letters)), "n": len(letters)})
        # Every letter is in the training split, whatever was drawn.
        if split == "train":
            pairs[0] = {"source": "a b c d e f", "target": "f e d c b a", "n": 6}
        paths[split] = str(folder / f"{split}.jsonl")
        Path(paths[split]).write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    return paths


BALANCE = {"switch": 0.01, "hypersphere": 0.01, "mutual_information": 0.02, "z": 0.001, "importance": 0.01}
BALANCE |= {"sequence_entropy": 0.01}
assert tuple(BALANCE) == BALANCE_LOSSES
ROUTERS = ["self_attention.encoder_0", "ffn.encoder_sparse", "ffn.encoder_0", "ffn.decoder_0"]


def add_experts(model: dict[str, Any]) -> None:
    """Give an encoder-decoder model every kind of routed sub-layer, router, and what is random in them."""
    hypersphere = {"kind": "hypersphere", "temperature": 0.5, "d_router": 4}
    attention = {"kind": "experts", "n_experts": 3, "n_heads": 1, "d_head": 4, "share": "all", "bias": True}
    model["encoder"] = model["encoder"] | {
        "n_steps": 2,
        "self_attention": attention | {"router": hypersphere, "gate": {"kind": "sigmoid"}},
        "ffn": {"kind": "experts", "n_experts": 4, "d_ff": 8, "dropout": 0.1, "share": "all"},
        "sparse_layer": {"after": 1, "n_experts": 3, "top_k": 1, "n_layers": 2, "d_ff": 8},
    }
    router, gate = {"kind": "mlp", "dropout": 0.2}, {"n_sampled": 1}
    experts = {"kind": "experts", "n_experts": 5, "top_k": 2, "d_ff": 8, "router": router, "gate": gate}
    model["decoder"] = model["decoder"] | {"ffn": experts}


HALTING = {"weight": 0.05, "off_updates": 3, "warmup": 4}
ROUNDS = {"encoder": 3, "decoder": 4}


def add_halting(model: dict[str, Any]) -> None:
    """Give each stack of an encoder-decoder model a halting rule of its own, both with something random in them."""
    act = {"kind": "act", "initial_bias": -0.5}
    stick_breaking = {"kind": "stick_breaking", "threshold": 0.8, "dropout": 0.1}
    model["encoder"] = model["encoder"] | {"n_steps": ROUNDS["encoder"], "halting": act}
    model["decoder"] = model["decoder"] | {"n_steps": ROUNDS["decoder"], "halting": stick_breaking}


def tiny_recipe(
    data_folder: Path, *, kind: str = "seq2seq", experts: bool = False, halting: bool = False, **training: Any
) -> Recipe:
    """Return a recipe over the letters: one step of depth in each stack, dropout and accumulation on.

    With `experts` the model has the `ROUTERS`, in two rounds of the encoder and one of the decoder, and all `BALANCE`
    losses are on. With `halting` the stacks have `ROUNDS`, after which tokens may halt, and depth costs what `HALTING`
    says.
    """
    stack = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 16, "dropout": 0.1}}
    model: dict[str, Any] = {"kind": kind, "d_model": 8, "dropout": 0.1, "decoder": stack}
    data: dict[str, Any] = {**write_letters(data_folder), "tokens_per_batch": 48}
    task = {"kind": "files", "model_kind": kind}
    if kind == "seq2seq":
        model["encoder"] = stack
        model["decoder"] = stack | {"cross_attention": {"n_heads": 2}}
    else:
        data["text_field"] = "target"
    if experts:
        add_experts(model)
    if halting:
        add_halting(model)
    settings = (
        {
            "n_updates": 12,
            "accumulate": 2,
            "log_every": 4,
            "evaluate_every": 6,
            "save_every": 3,
            "label_smoothing": 0.1,
            "device": "cpu",
            "n_threads": 1,
            "optimizer": {"lr": 0.01, "weight_decay": 0.01},
            "schedule": {"kind": "inverse_sqrt", "warmup": 4},
        }
        | ({"balance": BALANCE} if experts else {})
        | ({"halting": HALTING} if halting else {})
    )
    return check_recipe(
        {
            "name": "letters",
            "task": task,
            "data": data,
            "model": model,
            "training": settings | training,
            "decoding": {"max_length": 8},
            "evaluation": {"splits": ["test"], "by": ["n"] if kind == "seq2seq" else []},
        }
    )


def records(directory: Path, kind: str) -> list[dict[str, Any]]:
    """Return the records of one kind in a run's metrics.jsonl."""
    lines = (directory / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def last_checkpoint(directory: Path) -> Path:
    """Return the folder last.json names."""
    pointer = json.loads((directory / "checkpoints" / "last.json").read_text(encoding="utf-8"))
    return directory / "checkpoints" / str(pointer["directory"])


def weights(directory: Path) -> bytes:
    """Return the bytes of the last checkpoint's weights."""
    return (last_checkpoint(directory) / "model.safetensors").read_bytes()


class StopAt(Reporter):
    """Ends a run, as a crash would, at its record of an update."""

    def __init__(self, update: int) -> None:
        self.update = update

    def on_update(self, record: dict[str, Any]) -> None:
        if record["update"] == self.update:
            raise KeyboardInterrupt
