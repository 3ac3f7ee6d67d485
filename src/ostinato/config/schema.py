"""What the types of a configuration say: which keys there are, which kinds, and in words what each key may hold."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

PathTuple = tuple[str | int, ...]
Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Slot:
    """What may stand under one key.

    Args:
        annotation: its type, without the metadata of an outer `Annotated`.
        metadata: bounds and patterns of that outer `Annotated`.
        nodes: the configurations it may hold, by kind; a single one without kinds is under the empty name.
        is_union: True where `kind` chooses between several configurations.
        is_mixed: True where a configuration may stand, or a plain value such as text.
        default: its default value; `PydanticUndefined` where it must be given.
    """

    annotation: Any
    metadata: tuple[Any, ...]
    nodes: dict[str, type[BaseModel]]
    is_union: bool
    is_mixed: bool
    default: Any

    @property
    def default_kind(self) -> str | None:
        """The kind of the default value; None where there is none."""
        return getattr(self.default, "kind", None)


@cache
def slots_of(node: type[BaseModel]) -> dict[str, Slot]:
    """Return what every field of a configuration may hold. It is worked out once: a recipe asks hundreds of times."""
    return {name: _slot_of(field) for name, field in node.model_fields.items()}


def _slot_of(field: FieldInfo) -> Slot:
    held, held_in = field.annotation, [field]
    if get_origin(held) is list:
        (held,) = get_args(held)
        if get_origin(held) is Annotated:
            held, *held_in = get_args(held)
    is_union = any(getattr(m, "discriminator", None) is not None for m in held_in)
    nodes = {kind_of(m) if is_union else "": m for m in _members(held) if _is_node(m)}
    default = field.get_default(call_default_factory=True, validated_data={})
    plain = [m for m in _members(held) if not _is_node(m) and m is not type(None)]
    is_mixed = bool(nodes) and not is_union and bool(plain)
    return Slot(field.annotation, tuple(field.metadata), nodes, is_union, is_mixed, default)


def kind_of(node: type[BaseModel]) -> str:
    """Return the value of `kind` that chooses this configuration."""
    return str(get_args(node.model_fields["kind"].annotation)[0])


def values_of(node: type[BaseModel], name: str) -> list[str]:
    """Return the kinds of a group, or the values of a setting that takes one of a few, in the order of the types."""
    slot = slots_of(node)[name]
    return list(slot.nodes) if slot.is_union else [str(value) for value in get_args(slot.annotation)]


def is_open(node: type[BaseModel]) -> bool:
    """Return True for a configuration whose `kind` chooses further keys that are checked elsewhere (the task)."""
    return node.model_config.get("extra") == "allow"


def keeps_on_change(node: type[BaseModel]) -> bool:
    """Return True for a configuration whose settings mean the same in every kind that has them."""
    return bool(getattr(node, "keeps_common_settings", False))


def are_alike(node: type[BaseModel], old: Settings, new: Settings) -> bool:
    """Return False where two kinds of a group mean other things by the rest of its settings (`alike` of the group)."""
    alike: tuple[frozenset[str], ...] = getattr(node, "alike", ())
    if not alike or "kind" not in new:
        return True
    before = old.get("kind", node.model_fields["kind"].default)
    return before == new["kind"] or any({before, new["kind"]} <= kinds for kinds in alike)


def dotted(path: PathTuple) -> str:
    """Return a path as the user writes it."""
    return ".".join(map(str, path))


def child(slot: Slot, value: object) -> type[BaseModel] | None:
    """Return the configuration that `value` is meant to be, None where no such kind exists."""
    if not slot.is_union:
        return slot.nodes.get("")
    kind = value.get("kind", slot.default_kind) if isinstance(value, dict) else None
    return slot.nodes.get(str(kind))


def map_groups(
    settings: Settings, node: type[BaseModel], change: Callable[[Settings, type[BaseModel]], Settings]
) -> Settings:
    """Return settings with `change(group, its configuration)` in place of every group, outer groups first."""

    def below(value: Any, slot: Slot) -> Any:
        if isinstance(value, list):
            return [below(item, slot) for item in value]
        inner = child(slot, value) if isinstance(value, dict) else None
        return value if inner is None else map_groups(value, inner, change)

    slots = slots_of(node)
    changed = change(settings, node)
    return {key: below(value, slots[key]) if key in slots else value for key, value in changed.items()}


def leaves(settings: Settings, path: str = "", free: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every setting that is not a group of settings, by dotted path.

    Args:
        free: paths of groups whose keys are names of the user's own: one with a dot in a name is yielded as it is.
    """
    for key, value in settings.items():
        has_dots = f"{path}{key}" in free and isinstance(value, dict) and any("." in name for name in value)
        if isinstance(value, dict) and value and not has_dots:
            yield from leaves(value, f"{path}{key}.", free)
        else:
            yield f"{path}{key}", value


def fields_below(node: type[BaseModel], path: PathTuple = ()) -> Iterator[PathTuple]:
    """Yield the path of every setting below a configuration; of several kinds the default's."""
    for name, slot in slots_of(node).items():
        yield (*path, name)
        inner = slot.nodes.get(slot.default_kind or "") if slot.is_union else slot.nodes.get("")
        if inner is not None and get_origin(slot.annotation) is not list:
            yield from fields_below(inner, (*path, name))


def free_groups(node: type[BaseModel], path: PathTuple = ()) -> Iterator[str]:
    """Yield the settings below a configuration, dotted, whose keys are names of the user's own: they may have dots."""

    def has_names(annotation: Any) -> bool:
        if get_origin(annotation) is Annotated:
            return has_names(get_args(annotation)[0])
        members = _members(annotation)
        return get_origin(annotation) is dict or (len(members) > 1 and any(map(has_names, members)))

    for name, slot in slots_of(node).items():
        if has_names(slot.annotation):
            yield dotted((*path, name))
        elif get_origin(slot.annotation) is not list:
            for inner in slot.nodes.values():
                yield from free_groups(inner, (*path, name))


def suggestions(root: type[BaseModel], node: type[BaseModel], path: PathTuple) -> list[PathTuple]:
    """Return the settings a wrong key most likely meant, best first.

    The same name deeper in the same node comes first (`model.encoder.n_heads` is
    `model.encoder.self_attention.n_heads`), then a similar name in the node, then the same name anywhere.
    """
    key, parent = str(path[-1]), path[:-1]
    if deeper := [p for p in fields_below(node, parent) if p[-1] == key]:
        return deeper
    if close := get_close_matches(key, node.model_fields, n=1):
        return [(*parent, close[0])]
    same = [p for p in fields_below(root) if p[-1] == key]
    # A key that another kind of this very group has was not meant for some other group.
    return [] if path in same else same[:3]


_PLAIN: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    type(None): "null",
    Any: "anything",
}


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Say what a type accepts, for example "an integer of at least 1, or null"."""
    if get_origin(annotation) is Annotated:
        inner, *extra = get_args(annotation)
        flat = [m for e in extra for m in (e.metadata if isinstance(e, FieldInfo) else [e])]
        return describe(inner, [*metadata, *flat])
    members = _members(annotation)
    if len(members) > 1:
        return ", or ".join(describe(member, metadata) for member in members)
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(str, args))
    if origin is list:
        return f"a list ({describe(args[0])} in each place)"
    if origin is dict:
        return "a group of names and values"
    if origin is tuple:
        return f"a list of {len(args)} ({describe(args[0])} in each place)"
    if _is_node(annotation):
        return f"a group of settings ({', '.join(annotation.model_fields)})"
    return _PLAIN.get(annotation, str(annotation)) + _bounds(metadata)


def _bounds(metadata: Sequence[Any]) -> str:
    """Return the limits among the metadata, in words."""

    def limit(name: str) -> Any:
        return next((value for m in metadata if (value := getattr(m, name, None)) is not None), None)

    words = ""
    low, above, high, below = limit("ge"), limit("gt"), limit("le"), limit("lt")
    has_low, has_high = (low, above) != (None, None), (high, below) != (None, None)
    if has_low and has_high:
        left = f"({above}" if low is None else f"[{low}"
        # Limits of what a machine can hold are easier to read as powers.
        most = f"2^{high.bit_length()} - 1" if high in (2**31 - 1, 2**63 - 1) else high
        right = f"{below})" if high is None else f"{most}]"
        words = f" in {left}, {right}"
    elif has_low:
        words = f" above {above}" if low is None else f" of at least {low}"
    elif has_high:
        words = f" below {below}" if high is None else f" of at most {high}"
    if (multiple := limit("multiple_of")) is not None:
        words += f", a multiple of {multiple}"
    if (pattern := limit("pattern")) is not None:
        words += f" matching {pattern}"
    return words


def _is_node(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union with `None` last, or the type alone."""
    if get_origin(annotation) not in (Union, types.UnionType):
        return (annotation,)
    members = get_args(annotation)
    return (*(m for m in members if m is not type(None)), *(m for m in members if m is type(None)))
