"""Make the runs of this folder: train them, and write down what the code that trained them makes of them.

    cd tests/old_runs && python make.py

It was run once, at commit f012f00 (version 0.1.0, before its restructuring), and stays to show where the files come
from: it calls settings and modules by the names they had then, and need not run with later code. Runs that later code
makes would only show that this code agrees with itself.

    trained/    run directories as training left them, but for paths of the texts and the weights of halting gates
    expected/   outputs and scores of every run (JSON), and a batch with its logits (safetensors)
    texts/      what the runs on files were trained on
"""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from observed import numbers, observe, pack
from ostinato.experiments.thresholds import tune_threshold
from safetensors.torch import save_file

from ostinato import load
from ostinato.config.load import check_recipe
from ostinato.data.batch import Batch
from ostinato.data.batching import evaluation_batches
from ostinato.data.rows import encode_rows
from ostinato.evaluation.loading import LoadedRun
from ostinato.experiments.results import read_rows
from ostinato.models import save_model
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task
from ostinato.training import Reporter, train

DIGITS = {
    "task": {
        "kind": "algorithmic",
        "operation": "reverse",
        "max_length": 5,
        "long_max_length": 6,
        "n_train": 60,
        "n_eval": 8,
    },
    "data": {"tokenizer": {"kind": "words"}, "tokens_per_batch": 64},
    "decoding": {"max_length": 8},
}
FILES = {split: f"texts/{split}.txt" for split in ("train", "dev", "test")}
LABELLED = {split: f"texts/{split}.jsonl" for split in ("train", "dev", "test")}
TEXTS = {
    "task": {"kind": "files", "model_kind": "language_model"},
    "data": {**FILES, "tokenizer": {"kind": "characters"}, "tokens_per_batch": 128},
    "decoding": {"max_length": 8},
}
LABELS = {"task": {"kind": "classification"}, "data": {**LABELLED, "tokenizer": {"kind": "words"}}}
TRAINING = {
    "n_updates": 48,
    "evaluate_every": 24,
    "save_every": 24,
    "log_every": 12,
    "device": "cpu",
    "n_threads": 1,
    "optimizer": {"lr": 0.02, "weight_decay": 0.01},
    "schedule": {"kind": "inverse_sqrt", "warmup": 4},
}
ATTENTION = {"n_heads": 2}
FFN = {"d_ff": 16, "dropout": 0.1}
SHARED = {"share": "all"}


def stack(*, cross: bool = False, attention: dict[str, Any] = ATTENTION, **settings: Any) -> dict[str, Any]:
    found = {"n_steps": 1, "self_attention": attention, "ffn": FFN, **settings}
    return found | ({"cross_attention": attention} if cross else {})


def seq2seq(encoder: dict[str, Any], decoder: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"kind": "seq2seq", "d_model": 8, "dropout": 0.1, "encoder": encoder, "decoder": decoder, **settings}


def sparse_stack(router: dict[str, Any], *, cross: bool = False, **ffn: Any) -> dict[str, Any]:
    """Return three rounds of one set of weights: experts everywhere, and halting by stick-breaking."""
    chosen = {"kind": "experts", "n_experts": 3, "k": 2, "router": router, **SHARED}
    return stack(
        cross=cross,
        attention=chosen | {"n_heads": 1, "d_head": 4},
        n_steps=3,
        ffn=chosen | {"d_ff": 8, "dropout": 0.1} | ffn,
        relative={"kind": "window", "window": 2},
        positions={"kind": "none"},
        halting={"kind": "stick_breaking", "threshold": 0.9},
    )


def recipes() -> dict[str, dict[str, Any]]:
    """Return the runs' settings by name; `sparse` is the one that is interrupted."""
    hypersphere = {"kind": "hypersphere", "d_router": 4}
    convolution = {"kind": "separable_conv", "d_ff": 16}
    pre = {"kind": "rms", "placement": "pre"}
    buckets = {"kind": "buckets", "n_buckets": 4, "max_distance": 8}
    act = {"kind": "act", "initial_bias": 0.0, "epsilon": 0.1}
    halting = {"weight": 0.01, "off_updates": 4, "warmup": 8}
    between = {"after": 1, "n_experts": 3, "n_layers": 1, "d_ff": 8, "router": hypersphere}
    rotary = {"positions": {"kind": "none"}, "relative": {"kind": "rotary"}}
    no_metrics = {"splits": ["test"], "metrics": []}
    return {
        "dense": DIGITS
        | {
            "model": seq2seq(stack(), stack(cross=True), tie_embeddings="all"),
            "training": TRAINING | {"label_smoothing": 0.1},
        },
        "sparse": DIGITS
        | {
            "model": seq2seq(
                sparse_stack(hypersphere, gate={"kind": "sigmoid"}),
                sparse_stack({"kind": "mlp", "dropout": 0.1}, cross=True, gate={"n_sampled": 1}),
            ),
            "training": TRAINING
            | {"balance": {"mutual_information": 0.01, "switch": 0.01, "z": 0.001}, "halting": halting},
        },
        "act-convolution": DIGITS
        | {
            "model": seq2seq(
                stack(ffn=convolution | SHARED | {"share_norm": False}, norm=pre, halting=act, n_steps=2),
                stack(
                    cross=True,
                    attention=ATTENTION | SHARED,
                    ffn=convolution | SHARED,
                    halting=act | {"mix": "interpolate"},
                    n_steps=4,
                    steps_per_round=2,
                    positions={"kind": "coordinates"},
                    relative=buckets,
                ),
                tie_embeddings="none",
            ),
            "data": DIGITS["data"] | {"target_tokenizer": {"kind": "characters"}},
            "training": TRAINING | {"halting": halting, "optimizer": {"kind": "adam", "lr": 0.01}},
        },
        "one-wide": DIGITS
        | {
            "model": seq2seq(
                stack(ffn={"d_ff": 8, "activation": "geglu"}, sparse_layer=between),
                stack(cross=True, ffn={"d_ff": 8, "activation": "geglu"}),
                ffn_variant="one-wide",
            ),
            "training": TRAINING | {"balance": {"hypersphere": 0.01}},
        },
        "lstm": DIGITS | {"model": {"kind": "lstm_seq2seq", "d_model": 8, "n_layers": 1}, "training": TRAINING},
        "language-model": TEXTS
        | {
            "model": {"kind": "language_model", "d_model": 8, "decoder": stack(norm={"placement": "pre"}, **rotary)},
            "data": TEXTS["data"] | {"block_length": 24},
            "training": TRAINING | {"schedule": {"kind": "cosine", "warmup": 4}},
            "evaluation": no_metrics,
        },
        "prefix-language-model": DIGITS
        | {
            "model": {"kind": "language_model", "mask": "prefix", "d_model": 8, "decoder": stack()},
            "training": TRAINING | {"accumulate": 2},
        },
        "lstm-language-model": TEXTS
        | {
            "model": {"kind": "lstm_language_model", "d_model": 8, "n_layers": 1},
            "training": TRAINING,
            "evaluation": no_metrics,
        },
        "masked": TEXTS
        | {
            "model": {"kind": "encoder", "d_model": 8, "head": {"kind": "masked"}, "encoder": stack()},
            "data": {**FILES, "tokenizer": {"kind": "bpe", "vocab_size": 270}, "block_length": 32},
            "training": TRAINING,
            "evaluation": no_metrics,
        },
        "classification": LABELS
        | {
            "model": {
                "kind": "encoder",
                "d_model": 8,
                "head": {"kind": "classification", "pooling": "mean"},
                "encoder": stack(ffn=FFN | {"activation": "gelu"}),
            },
            "training": TRAINING | {"selection": {"metric": "accuracy", "mode": "max"}},
        },
    }


def inputs(name: str, recipe: dict[str, Any]) -> list[str]:
    """Return what text is generated from; nothing for models that write none."""
    if recipe["model"]["kind"] == "encoder":
        return []
    return ["the cat", "a", "my sister likes"] if recipe["task"]["kind"] == "files" else ["1 2 3", "7", "9 0 4 4 1"]


class Interruption(Exception):
    """The end of an interrupted run."""


class Interrupting(Reporter):
    """Interrupts a run after the first record that follows a checkpoint."""

    def on_update(self, record: dict[str, Any]) -> None:
        if record["update"] > TRAINING["save_every"]:
            raise Interruption


def fixed_batch(loaded: LoadedRun) -> Batch:
    recipe = loaded.recipe
    examples = build_task(recipe.task, recipe.data, None).examples("test")
    rows = encode_rows(examples, loaded.tokenizers, recipe.data, loaded.model.config, training=False, name="test")
    return next(iter(evaluation_batches(rows, 60)))


@torch.no_grad()
def draw_gates(folder: Path) -> None:
    """Give halting gates that tell tokens apart, which a few updates do not teach them."""
    torch.manual_seed(0)
    loaded = load(folder, device="cpu")
    for unit in loaded.model.banks.halting.values():
        for name, parameter in unit.named_parameters():
            if name.endswith("weight"):
                parameter.normal_(std=0.7)
    save_model(loaded.model, loaded.checkpoint)


def relocate(folder: Path) -> None:
    """Name the files of texts from this folder on; a run has their absolute paths."""
    for file in (folder / "recipe.yaml", folder / "data.json"):
        file.write_text(file.read_text(encoding="utf-8").replace(f"{Path.cwd()}/", ""), encoding="utf-8")


def make(name: str, settings: dict[str, Any]) -> None:
    folder, expected = Path("trained") / name, Path("expected") / name
    expected.parent.mkdir(exist_ok=True)
    is_interrupted = name == "sparse"
    with suppress(Interruption):
        train(check_recipe({"name": name} | settings), folder, reporter=Interrupting() if is_interrupted else None)
    if name in ("sparse", "act-convolution"):
        draw_gates(folder)
    if name == "sparse":
        tune_threshold(load(folder, halting_threshold="trained"), thresholds=(0.8,), max_drop=1.0)
        for file in folder.glob("threshold-curve.*"):
            file.unlink()
    relocate(folder)
    loaded = load(folder, device="cpu")
    batch = fixed_batch(loaded)
    found = observe(loaded, batch, inputs(name, settings))
    contents = found.as_dict() | ({"resumed": resumed(folder)} if is_interrupted else {})
    save_file(pack(batch) | {"logits": found.logits}, expected.with_suffix(".safetensors"))
    expected.with_suffix(".json").write_text(json.dumps(contents) + "\n", encoding="utf-8")


def resumed(folder: Path) -> dict[str, Any]:
    """Return the records and scores of an interrupted run that is gone on with, in a copy."""
    with TemporaryDirectory() as elsewhere:
        copy = Path(shutil.copytree(folder, Path(elsewhere) / folder.name))
        results = train(load_recipe(copy), copy, resume=True)
        return {"records": read_rows(copy / "metrics.jsonl"), "splits": numbers(results["splits"])}


if __name__ == "__main__":
    for name, settings in recipes().items():
        make(name, settings)
