"""Every setting of a recipe has an effect, or is refused where another setting takes it away.

For every leaf of the schema, in recipes of several kinds, another value than the one that is there changes what a tiny
run finds (tokens, batches, initial weights, trained weights, records, scores, what it writes with its scores), or is a
named error. Settings that only say how a run is done are listed in `ostinato.training.changes`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import add_experts, add_halting, write_letters

from ostinato.config.base import Config
from ostinato.config.load import load_recipe_config
from ostinato.config.recipe import Recipe
from ostinato.config.schema import Settings, slots_of
from ostinato.data.tokenizer import EOS_ID
from ostinato.errors import OstinatoError
from ostinato.evaluation.loading import load
from ostinato.models import build_model
from ostinato.tasks.registry import task_problems
from ostinato.training import Reporter, train
from ostinato.training.changes import FREE_TO_CHANGE
from ostinato.training.prepare import prepare
from ostinato.training.rundir import RunDirectory

STACK = {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 16}}
CROSS = {"cross_attention": {"n_heads": 2}}
SHARED = {
    "n_steps": 4,
    "self_attention": {"n_heads": 2, "share": "all"},
    "ffn": {"d_ff": 16, "share": "sequence", "n_unique": 2, "activation": "gelu"},
    "positions": {"kind": "coordinates"},
    "relative": {"kind": "window", "window": 2},
    "norm": {"kind": "rms", "placement": "pre", "final": True},
}
TRAINING = {
    "n_updates": 4,
    "evaluate_every": 2,
    "save_every": 2,
    "log_every": 1,
    "schedule": {"warmup": 1},
    "optimizer": {"lr": 0.03, "weight_decay": 0.1},
}


def experts() -> Settings:
    model: Settings = {"kind": "seq2seq", "encoder": dict(STACK), "decoder": STACK | CROSS}
    add_experts(model)
    add_halting(model)
    model["encoder"]["self_attention"]["n_kv_heads"] = 1  # all that its one head allows
    return model


RECIPES: dict[str, Settings] = {
    "dense": {"model": {"kind": "seq2seq", "encoder": STACK, "decoder": STACK | CROSS}},
    "shared": {
        "model": {"kind": "seq2seq", "encoder": SHARED, "decoder": SHARED | {"cross_attention": {"n_heads": 2}}},
        "training": {
            "schedule": {"kind": "cosine", "warmup": 1},
            "optimizer": {"kind": "adam", "lr": 0.03, "weight_decay": 0.1},
        },
        "decoding": {"max_length": 6, "strategy": "beam", "beam": 3, "n_best": 2},
    },
    "experts": {"model": experts(), "training": {"balance": {"hypersphere": 0.1}, "halting": {"weight": 0.1}}},
    "texts": {
        "task": {"model_kind": "language_model"},
        "model": {"kind": "language_model", "decoder": STACK},
        "data": {"text_field": "target", "block_length": 8, "mixture": {"column": "n"}},
        "decoding": {"max_length": 6, "strategy": "sample"},
    },
    "masked": {
        "task": {"model_kind": "language_model"},
        "model": {"kind": "encoder", "encoder": STACK},
        "data": {"text_field": "target"},
        "decoding": {},
    },
    "lstm": {"model": {"kind": "lstm_seq2seq"}},
    "variant": {
        "model": {
            "kind": "seq2seq",
            "encoder": STACK,
            "decoder": {"n_steps": 2, "self_attention": {"n_heads": 2}} | CROSS,
            "ffn_variant": "shared-enc-no-dec",
        }
    },
}


def settings_of(name: str, folder: Path) -> Settings:
    given = RECIPES[name]
    return {
        "task": {"kind": "files", **given.get("task", {})},
        "data": {**write_letters(folder), "tokens_per_batch": 96, **given.get("data", {})},
        "model": {"d_model": 8, **given["model"]},
        "training": {"device": "cpu", "n_threads": 1, **TRAINING, **given.get("training", {})},
        "decoding": given.get("decoding", {"max_length": 6}),
        "evaluation": {"splits": ["test"]},
    }


VALUES: dict[str, list[Any]] = {
    "training.lr_scales": [[{"pattern": "*", "scale": 0.5}]],
    "training.optimizer.lr_scales": [[{"pattern": "*", "scale": 0.5}]],
    "training.freeze": [["*norm*", "*bias*"]],
    "training.init_except": [["*"]],
    "training.init_from": ["nowhere"],
    "training.selection.split": ["test"],
    "training.selection.metric": ["token_accuracy"],
    "evaluation.splits": [["dev"]],
    "evaluation.metrics": [["bleu"], ["token_accuracy_free"]],
    "evaluation.by": [["n"]],
    "data.mixture": [{"column": "n"}],
    "data.tokenizer.path": ["nowhere.json"],
    "data.target_tokenizer": [{"kind": "characters"}],
    "data.max_source_length": [3],
    "data.max_target_length": [3],
    "data.tokens_per_batch": [24],
    "data.block_length": [5],
    "data.tokenizer.vocab_size": [8],
    "data.tokenizer.min_count": [65],
    "training.clip_norm": [0.001],
    "training.evaluate_every": [1],
    "decoding.max_length": [2],
    "decoding.min_length": [5],
    "decoding.top_k": [1],
    "training.precision": ["bfloat16"],
    "renormalise": [False],
    "model.encoder.sparse_layer.gate.renormalise": [True],  # null is False there: one expert a token
    "decoding.min_length_ratio": [1.5],
    "training.halting.warmup": [4],
    "mean_span": [2.0],
    "data.masking.rate": [0.9],
    "n_kv_heads": [1],
    "scale": [0.3],
}
"""Values where those that are drawn by type would not show: names of things, limits that nothing meets."""

OPERATIONAL = (
    *FREE_TO_CHANGE,
    "name",
    "training.log_every",
    "training.save_every",
    "training.compile",
    "training.checkpoint_activations",
    "decoding.pack_weights",
    "decoding.static_cache",
    "data.eval_tokens_per_batch",
    "data.packed",
)
"""Beginnings of the keys of settings that decide no result: text, logging, devices, memory and speed."""
# Which examples there are decides whether these matter, and not another setting.
BY_DATA = ("data.over_length", "data.unknown", "task")
# Thresholds that four updates of a tiny model do not reach, and (stopping) ends of a search that others seldom follow:
# what they do is tested where they are used.
UNREACHED = ("eps", "floor", "training.selection.patience", "n_sampled", "decoding.stopping")


def candidates(key: str, annotation: Any, value: Any) -> Iterator[Any]:
    """Yield values that the type allows, other than the one that is there."""
    chosen = VALUES.get(key, VALUES.get(key.rpartition(".")[2]))
    if chosen is not None:
        yield from (other for other in chosen if other != value)
        return
    if get_origin(annotation) is Annotated:
        yield from candidates(key, get_args(annotation)[0], value)
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            if member is not type(None):
                yield from candidates(key, member, value)
                return
    elif get_origin(annotation) is Literal:
        yield from (option for option in get_args(annotation) if option != value)
    elif annotation is bool:
        yield not value
    elif annotation is int:
        yield 2 if value is None else 2 * value if value else 1
    elif annotation is float:
        yield 0.5 if value is None or value == 0 else 0.6 * value
    elif annotation is str:
        yield "other"


def changes(config: Config, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf of a recipe with another value; of groups of several kinds also each other kind."""
    for name, slot in slots_of(type(config)).items():
        key, value = f"{path}{name}", getattr(config, name)
        if key.startswith((*OPERATIONAL, *BY_DATA)) or name in UNREACHED or key in UNREACHED:
            continue
        if isinstance(value, Config):
            yield from ((key, {"kind": kind}) for kind in slot.nodes if kind and kind != getattr(value, "kind", ""))
            yield from changes(value, f"{key}.")
        elif slot.nodes and key not in VALUES:
            yield from ((key, {"kind": kind} if kind else {}) for kind in slot.nodes)
        elif not (name == "kind" and path != "data.tokenizer." and slot_is_single(slot.annotation)):
            yield from ((key, other) for other in candidates(key, slot.annotation, value))


def slot_is_single(annotation: Any) -> bool:
    """Return whether a kind has one value only: then the group around it chooses."""
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def put(settings: Settings, key: str, value: Any) -> Settings:
    """Return settings with one more; a group of another kind takes the place of the group."""
    name, _, rest = key.partition(".")
    if not rest:
        return settings | {name: value}
    return settings | {name: put(dict(settings.get(name) or {}), rest, value)}


def load_checked(settings: Settings) -> Recipe:
    """Return a recipe, checked with what its task reads."""
    return load_recipe_config(settings, extra_problems=lambda r: task_problems(r.task.settings(), r.data))


def digest(tree: Any) -> Any:
    """Return something comparable of what holds tensors."""
    if isinstance(tree, dict):
        return {key: digest(value) for key, value in tree.items()}
    return tree.tolist() if isinstance(tree, torch.Tensor) else tree


def before_training(recipe: Recipe, folder: Path) -> Any:
    """Return tokens, the first batches, the plans and the initial weights."""
    prepared = prepare(recipe, RunDirectory(folder / "prepared"), False, None)
    torch.manual_seed(recipe.seed)
    model = build_model(prepared.recipe.model)
    first = [next(prepared.batches) for _ in range(2)]
    batches = [(b.target.ids_BT.tolist(), b.labels_BT.tolist(), b.loss_mask_BT.tolist(), b.indices) for b in first]
    plans = {name: repr(plan) for name, plan in prepared.recipe.model.plans().items()}
    return batches, plans, digest(model.state_dict()), str(prepared.tokenizers.source.vocab_size)


def of_a_run(recipe: Recipe, folder: Path) -> Any:
    """Return what a run finds, and what it writes."""
    results = train(recipe, folder / "run", reporter=Reporter())
    weights = {
        str(path.relative_to(folder)): digest(load_file(path))
        for path in sorted((folder / "run").rglob("model.safetensors"))
    }
    echoes = ("decoding", "decoding_seconds", "seconds")  # the settings, and times
    found = {s: {k: v for k, v in scores.items() if k not in echoes} for s, scores in results["splits"].items()}
    records = (folder / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    run = load(folder / "run", device="cpu")
    texts: list[Any] = []
    for _ in range(2 if recipe.model.generates else 0):
        outputs = run.generations(["a b c", "d e", "f"])
        texts.append([(g.text, g.score, g.n_tokens, g.tokens, [(o.text, o.score) for o in g.others]) for g in outputs])
        with torch.no_grad():  # the second time outputs that ended at once do not, or the other way round
            run.model.target_weight[EOS_ID] *= -1
    return json.dumps(found, default=str), records, texts, weights


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_has_an_effect_or_is_refused(name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path / "data")
    recipe = load_checked(settings)
    early, late = before_training(recipe, tmp_path), of_a_run(recipe, tmp_path)
    assert before_training(recipe, tmp_path / "again") == early
    assert of_a_run(recipe, tmp_path / "again") == late
    useless, n_tried = [], 0
    for number, (key, value) in enumerate(changes(recipe)):
        folder = tmp_path / str(number)
        n_tried += 1
        try:
            changed = load_checked(put(settings, key, value))
            if key == "model.ffn_variant" and changed.model.stacks() == recipe.model.stacks():
                continue  # what the variant is called stands there already
            if before_training(changed, folder) == early and of_a_run(changed, folder) == late:
                useless.append(f"{key} = {value!r}")
        except OstinatoError:  # refused
            continue
    assert n_tried > 80
    assert useless == []
