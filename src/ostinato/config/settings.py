"""Every setting of a recipe with its type, default, unit and meaning, read from the configuration's types.

The meaning of a setting is the text below its field in the source. Without one it is the documentation of a class: for
a group of settings that of the group, for a `kind` that of the group it stands in.
"""

from __future__ import annotations

import ast
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from itertools import pairwise
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from ostinato.config.schema import Slot, describe, slots_of
from ostinato.errors import ConfigError, Problem

OpenKinds = Mapping[str, Mapping[str, type[BaseModel]]]
"""By key, the kinds of a group whose settings are checked elsewhere (the task's)."""
PLACE = "N"
"""Stands in a key for a place in a list, which is 0, 1, ..."""

_NAMES_BY_UNIT = {
    "tokens": "block_length eval_tokens_per_batch kernel_in kernel_out max_answer_length max_distance max_length "
    "max_source_length max_target_length max_words mean_span min_length original_length random_offset reach "
    "tokens_per_batch window "
    "decoding.top_k task.bucket task.long_lengths task.long_min_length task.long_max_length",
    "tokens per source token": "max_length_ratio min_length_ratio",
    "units": "delta_rank d_embedding d_ff d_head d_model d_router gate_width shared_d_ff",
    "changes": "gradient_repeats",
    "MiB": "bucket_mib",
    "rows": "n_token_types offset source_vocab_size target_vocab_size vocab_size",
    "updates": "capacity_warmup evaluate_every log_every n_updates off_updates ramp save_every warmup",
    "steps": "after n_steps steps_per_round",
    "rounds": "cached_rounds gradient_rounds least most n_rounds repeats training.rate",
    "experts": "k n_experts n_sampled top_k",
    "examples": "max_examples n_eval n_pairs n_train",
    "checkpoints": "keep_best keep_last",
    "parameter sets": "n_unique",
    "heads": "n_heads n_kv_heads",
    "labels": "n_labels",
    "layers": "n_layers",
    "buckets": "n_buckets",
    "threads": "n_threads",
    "batches": "accumulate",
    "evaluations": "patience",
    "occurrences": "min_count",
    "hypotheses": "beam",
    "outputs": "n_best",
    "probability": "dropout",
    "share": "capacities dev_fraction final_fraction keep label_smoothing random rate",
    "digits": "task.stage_length",
    "levels": "max_nesting stage_nesting",
    "facts": "max_facts",
    "functions": "max_functions",
    "hops": "far_max_hops max_hops",
    "operators": "max_operators max_test_operators",
    "symbols": "n_rest",
    "cells": "givens least_path",
    "places a side": "larger_sizes task.size",
    "forms": "augmentations",
    "nouns": "max_attractors train_nouns",
}
_UNITS = {name: unit for unit, names in _NAMES_BY_UNIT.items() for name in names.split()}
"""By the name of the setting, or by the group at the top and the name."""


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting, or one group of settings.

    Args:
        key: dotted. accepts: what it may hold, in words.
        default: as it is written in a recipe; None where the setting must be given, or is a group without kinds.
        unit: of its numbers; None where they have none. meaning: see the module.
        kinds: of a `kind` that chooses between groups of settings, what each of them is.
        only_with: the kinds that have the setting, by the key of the `kind` that decides; empty where all have it.
    """

    key: str
    accepts: str
    default: str | None
    unit: str | None
    meaning: str
    kinds: dict[str, str]
    only_with: dict[str, list[str]]


def list_settings(root: type[BaseModel], open_kinds: OpenKinds) -> list[SettingInfo]:
    """Return the settings of a configuration in the order of its fields, a group before what is in it.

    A key is there several times where its default or its meaning depends on a kind.
    """
    found: dict[str, list[SettingInfo]] = {}
    for setting in _walk(root, root(), "", {}, open_kinds):
        found.setdefault(setting.key, []).append(setting)
    n_kinds = {key: len(alike[0].kinds) for key, alike in found.items()}
    return [merged for alike in found.values() for merged in _merge(alike, n_kinds)]


def find_settings(settings: Sequence[SettingInfo], wanted: str) -> list[SettingInfo]:
    """Return the settings that a key, the beginning or a part of one, or a word means.

    Raises:
        ConfigError: nothing of that name, with the nearest keys.
    """
    parts = [PLACE if part.isdecimal() else part for part in wanted.split(".")]
    key = f"{'.'.join(parts)}."
    if found := [s for s in settings if f"{s.key}.".startswith(key)]:
        return found
    if found := [s for s in settings if f".{key}" in f".{s.key}."]:
        return found
    for word in (wanted.casefold(), wanted.casefold().replace("_", " ")):
        if found := [s for s in settings if word in f"{s.key} {s.meaning} {s.kinds}".casefold()]:
            return found
    by_name = {s.key.rpartition(".")[2]: s.key for s in reversed(settings)}
    near = [by_name[name] for name in get_close_matches(parts[-1], by_name, n=3)]
    if len(parts) > 1:
        near = get_close_matches(wanted, [s.key for s in settings], n=3) + near
    hint = f"; nearest: {', '.join(list(dict.fromkeys(near))[:3])}" if near else " (`ostinato settings` lists all)"
    raise ConfigError([Problem("KEY", wanted, f"no setting has this name{hint}")])


def _walk(
    node: type[BaseModel], defaults: BaseModel | None, path: str, chosen: dict[str, list[str]], open_kinds: OpenKinds
) -> Iterator[SettingInfo]:
    """Yield what is in a group.

    Args:
        defaults: the group as it is by default; None where it is not there by default, or is of another kind.
        chosen: the kind of every group on the way, by the key of the `kind`.
    """
    texts: dict[str, str] = {}
    for base in reversed(node.__mro__):
        if issubclass(base, BaseModel):
            texts |= _texts_of_module(base.__module__).get(base.__name__, {})
    for name, slot in slots_of(node).items():
        key, field = path + name, node.model_fields[name]
        value = slot.default if defaults is None else getattr(defaults, name)
        text = field.description or texts.get(name, "")
        nodes = open_kinds.get(key, slot.nodes)
        if nodes:
            yield from _walk_group(SettingInfo(key, "", None, None, text, {}, chosen), slot, value, open_kinds)
        elif key not in chosen:  # such a `kind` is among the settings of the group around it
            meaning = text or (_documentation(node) if name == "kind" else "")
            default = None if value is PydanticUndefined else _as_yaml(value)
            accepts = describe(slot.annotation, slot.metadata)
            is_number = "an integer" in accepts or "a number" in accepts
            unit = _UNITS.get(f"{key.partition('.')[0]}.{name}", _UNITS.get(name)) if is_number else None
            yield SettingInfo(key, accepts, default, unit, meaning, {}, chosen)


def _walk_group(group: SettingInfo, slot: Slot, value: object, open_kinds: OpenKinds) -> Iterator[SettingInfo]:
    """Yield a group, the kind where there are several, and what is in each kind.

    Args:
        group: its key, and the text below its field.
        value: its default.
    """
    nodes, is_union = open_kinds.get(group.key, slot.nodes), slot.is_union or group.key in open_kinds
    accepts = "a list of groups of settings" if get_origin(slot.annotation) is list else "a group of settings"
    below = f"{group.key}.{PLACE}." if get_origin(slot.annotation) is list else f"{group.key}."
    accepts += ", or null" if type(None) in get_args(slot.annotation) else ""
    meaning = group.meaning or ("" if is_union else _documentation(next(iter(nodes.values()))))
    yield replace(group, accepts=accepts, default=_as_yaml(value) if value in (None, []) else None, meaning=meaning)
    if is_union:
        kinds = {kind: _documentation(inner).partition("\n\n")[0] for kind, inner in nodes.items()}
        accepts = f"one of {', '.join(kinds)}"
        default = getattr(value, "kind", None)
        yield replace(group, key=f"{below}kind", accepts=accepts, default=default, meaning=meaning, kinds=kinds)
    for kind, inner in nodes.items():
        chosen = {**group.only_with, f"{below}kind": [kind]} if is_union else group.only_with
        yield from _walk(inner, value if type(value) is inner else None, below, chosen, open_kinds)


def _merge(alike: Sequence[SettingInfo], n_kinds: Mapping[str, int]) -> Iterator[SettingInfo]:
    """Yield settings of one key; those that differ only in the kinds they are with become one.

    Args:
        n_kinds: how many kinds there are, by the key of the `kind`.
    """
    by_text: dict[tuple[object, ...], list[SettingInfo]] = {}
    for setting in alike:
        by_text.setdefault((setting.accepts, setting.default, setting.unit, setting.meaning), []).append(setting)
    for same in by_text.values():
        kinds = {key: dict.fromkeys(kind for s in same for kind in s.only_with[key]) for key in same[0].only_with}
        only_with = {key: list(found) for key, found in kinds.items() if len(found) < n_kinds[key]}
        yield replace(same[0], only_with=only_with)


def _as_yaml(value: object) -> str:
    """Return a value as it is written in a recipe; texts without quotes."""
    return value if isinstance(value, str) and value else json.dumps(value)


def _documentation(node: type[BaseModel]) -> str:
    return inspect.cleandoc(node.__doc__ or "")


@cache
def _texts_of_module(module: str) -> dict[str, dict[str, str]]:
    """Return the texts below the fields of every class in a module's source: Python does not keep them."""
    classes = [n for n in ast.parse(inspect.getsource(sys.modules[module])).body if isinstance(n, ast.ClassDef)]
    return {one.name: dict(_texts_in(one.body)) for one in classes}


def _texts_in(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                yield name, inspect.cleandoc(words)
