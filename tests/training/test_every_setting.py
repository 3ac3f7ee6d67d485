"""Every setting of a recipe has an effect, or is refused where another setting takes it away.

In recipes of several kinds, another value than the one that is there changes what a tiny run finds (tokens, batches,
initial weights, trained weights, records, scores, what it writes with its scores), or is a named error. Every setting
of the schema varies in at least one of them, but for those that are listed below as deciding no result, or as tested
elsewhere. Settings that only say how a run is done are listed in `ostinato.training.changes`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
import torch
from pydantic import BaseModel
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

TEXTS: Settings = {"task": {"model_kind": "language_model"}, "data": {"text_field": "target"}}
LOOP: Settings = {
    "repeats": 2,
    "state": {"kind": "noise", "std": 0.3},
    "inject": {"kind": "linear"},
    "norms": "by_round",
    "delta_rank": 1,
}
STATES: list[Settings] = [
    {"name": "low", "repeats": 2, "state": {"kind": "zeros"}, "adds": ["high", "input"]},
    {"name": "high", "state": {"kind": "learned"}, "adds": ["low"]},
]
HEADS: Settings = {"kind": "head_experts", "n_heads": 2, "n_kv_heads": 2, "d_head": 4, "n_experts": 3, "dropout": 0.1}
GROUPS: dict[str, Settings] = {
    "segments": {
        "data": {"max_target_length": 8},
        "model": {
            "kind": "seq2seq",
            "encoder": {
                "n_steps": 2,
                "self_attention": {"n_heads": 2},
                "ffn": {"kind": "separable_conv", "d_ff": 8, "dropout": 0.1},
                "segments": [{}, LOOP],
                "norm": {"placement": "pre"},
                "positions": {"kind": "none"},
                "relative": {"kind": "rotary", "scaling": {"kind": "llama3", "original_length": 8}},
            },
            "decoder": STACK
            | CROSS
            | {
                "segments": [{"n_steps": 2, "repeats": 2, "states": STATES}],
                "positions": {"kind": "learned", "max_length": 8},
                "relative": {"kind": "buckets", "n_buckets": 4, "max_distance": 4},
                "value_embeddings": {"gate_width": 4},
            },
        },
        "training": {
            "rounds": {"kind": "uniform", "most": 3, "ramp": 2},
            "optimizer": {"lr": 0.03, "lr_scales": [{"pattern": "*ffn*", "scale": 0.5}]},
        },
    },
    "chosen tokens": {
        "model": {
            "kind": "language_model",
            "decoder": {
                "n_steps": 2,
                "segments": [{"n_steps": 2, "repeats": 3}],
                "self_attention": HEADS,
                "ffn": {"d_ff": 16},
                "relative": {
                    "kind": "by_step",
                    "settings": [{"kind": "rotary", "scaling": {"kind": "linear"}}, {"kind": "none"}],
                    "pattern": [0, 1],
                },
                "halting": {"kind": "select", "z": 0.1},
            },
        },
        "training": {"halting": {"weight": 0.1}, "rounds": {"kind": "poisson", "rate": 3.0, "ramp": 2}},
        **TEXTS,
    },
    "exits": {
        "model": {
            "kind": "language_model",
            "decoder": STACK
            | {
                "n_steps": 1,
                "segments": [{"repeats": 3}],
                "relative": {"kind": "alibi"},
                "halting": {"kind": "exit", "threshold": 0.6, "freeze_halted_state": False},
            },
            "output": {"transform": {}},
        },
        "training": {
            "rounds": {"kind": "lognormal_poisson", "rate": 9.0, "most": 4, "ramp": 2},
            "round_loss": {"kind": "weights", "weights": [0.5, 0.5]},
        },
        **TEXTS,
    },
    "rounds by length": {
        "model": {
            "kind": "seq2seq",
            "encoder": {
                "n_steps": 1,
                "segments": [{"repeats": 4, "state": {"kind": "learned"}, "inject": {"kind": "add"}}],
                "self_attention": {"n_heads": 2},
                "ffn": {"d_ff": 16},
                "halting": {"kind": "length", "per_token": 0.5},
            },
            "decoder": STACK | CROSS,
        },
    },
    "rounds by token": {
        "task": {"kind": "classification"},
        "data": {"target_field": "n"},
        "model": {
            "kind": "encoder",
            "head": {"kind": "classification", "pooling": "mean"},
            "encoder": STACK
            | {"n_steps": 1, "segments": [{"repeats": 3}], "halting": {"kind": "token_choice", "z": 0.1}},
        },
        "training": {"halting": {"weight": 0.1}},
        "decoding": {},
    },
    "facts": {
        "task": {"kind": "classification", "pair_field": "target"},
        "data": {"target_field": "n"},
        "model": {
            "kind": "encoder",
            "embedder": {"kind": "facts"},
            "head": {"kind": "classification", "pooling": "mean"},
            "encoder": STACK | {"self_attention": {"kind": "experts", "n_experts": 2, "n_heads": 2, "d_head": 4}},
        },
        "decoding": {},
    },
    # Of square maps, which alone it has, xavier and unit_scaling are the same.
    "lstm, texts": {"model": {"kind": "lstm_language_model", "init": "normal"}, **TEXTS},
}
"""Groups of settings that those above do not have: here the settings vary that do not above."""


def settings_of(name: str, folder: Path) -> Settings:
    given = (RECIPES | GROUPS)[name]
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
    "data.mixture.weights": [{"1": 1.0, "2": 1.0, "3": 1.0, "4": 1.0, "5": 1.0, "6": 1.0}],
    "training.freeze_except": [["*bias*"]],
    "training.optimizer.lr_scales.0.pattern": ["*norm*"],
    "training.round_loss.weights": [[1.0]],
    "model.decoder.relative.pattern": [[1, 0]],
    "gradient_repeats": [[1]],
    "capacities": [[1.0, 0.3]],
    "adds": [["input"]],
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
BY_DATA = ("data.over_length", "data.unknown", "task", "data.train.", "data.dev.", "data.test.")
# Thresholds that four updates of a tiny model do not reach, and (stopping) ends of a search that others seldom follow:
# what they do is tested where they are used.
UNREACHED = ("eps", "floor", "training.selection.patience", "n_sampled", "decoding.stopping", "max_answer_length")


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


Setting = tuple[type[BaseModel], str]
"""A setting of the schema: the configuration that has it, and its name there."""


def is_exempt(key: str) -> bool:
    """Return whether a setting is not varied: see the lists above."""
    return key.startswith((*OPERATIONAL, *BY_DATA)) or bool({key, key.rpartition(".")[2]} & set(UNREACHED))


def settings_of_schema(node: type[BaseModel], path: str = "") -> Iterator[Setting]:
    """Yield every setting that can be varied below a configuration, of every kind that a group may have."""
    for name, slot in slots_of(node).items():
        key = f"{path}{name}"
        if is_exempt(key) or slot_is_single(slot.annotation):
            continue
        if not (isinstance(slot.default, Config) and list(slot.nodes) == [""]):  # else its settings alone can vary
            yield node, name
        for inner in slot.nodes.values():
            yield from settings_of_schema(inner, f"{key}.")


def changes(config: Config, path: str = "") -> Iterator[tuple[Setting, str, Any]]:
    """Yield every leaf of a recipe with another value; of groups of several kinds also each other kind."""
    for name, slot in slots_of(type(config)).items():
        key, value, setting = f"{path}{name}", getattr(config, name), (type(config), name)
        if is_exempt(key):
            continue
        groups = value if isinstance(value, list) and slot.nodes else []
        for place, group in enumerate(groups):
            yield setting, key, value[:place] + value[place + 1 :]
            yield from changes(group, f"{key}.{place}.")
        if isinstance(value, Config):
            kinds = (kind for kind in slot.nodes if kind and kind != getattr(value, "kind", ""))
            yield from ((setting, key, {"kind": kind}) for kind in kinds)
            yield from changes(value, f"{key}.")
        elif slot.nodes and key not in VALUES and not groups:
            yield from ((setting, key, {"kind": kind} if kind else {}) for kind in slot.nodes)
        elif not (name == "kind" and path != "data.tokenizer." and slot_is_single(slot.annotation)):
            yield from ((setting, key, other) for other in candidates(key, slot.annotation, value))


def slot_is_single(annotation: Any) -> bool:
    """Return whether a setting has one value only: of a kind, the group around it chooses."""
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def put(settings: Settings, key: str, value: Any) -> Settings:
    """Return settings with one more; a group of another kind takes the place of the group."""
    name, _, rest = key.partition(".")
    if not rest:
        return settings | {name: value}
    if isinstance(below := settings.get(name), list):
        place, _, rest = rest.partition(".")
        return settings | {name: [put(one, rest, value) if str(n) == place else one for n, one in enumerate(below)]}
    return settings | {name: put(dict(below or {}), rest, value)}


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


def varied(folder: Path) -> dict[str, tuple[Recipe, list[tuple[Setting, str, Any]]]]:
    """Return every recipe and what varies in it: of `GROUPS` the settings that vary in none before it."""
    found, seen = {}, set[Setting]()
    for name in RECIPES | GROUPS:
        recipe = load_checked(settings_of(name, folder / name))
        own = [change for change in changes(recipe) if name in RECIPES or change[0] not in seen]
        seen |= {setting for setting, _, _ in own}
        found[name] = (recipe, own)
    return found


def test_every_setting_of_the_schema_varies_in_some_recipe(tmp_path: Path) -> None:
    tried = {setting for _, own in varied(tmp_path).values() for setting, _, _ in own}
    left = set(settings_of_schema(Recipe)) - tried
    assert sorted(f"{node.__name__}.{name}" for node, name in left) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES | GROUPS)
def test_every_setting_has_an_effect_or_is_refused(name: str, tmp_path: Path) -> None:
    settings = settings_of(name, tmp_path / name)
    recipe, own = varied(tmp_path)[name]
    early, late = before_training(recipe, tmp_path), of_a_run(recipe, tmp_path)
    assert before_training(recipe, tmp_path / "again") == early
    assert of_a_run(recipe, tmp_path / "again") == late
    useless, n_tried = [], 0
    for number, (_, key, value) in enumerate(own):
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
    assert n_tried > (80 if name in RECIPES else 0)
    assert useless == []
