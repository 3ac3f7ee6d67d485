"""What every configuration is: frozen, typed data that refuses unknown keys and impossible combinations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from ostinato.errors import ConfigError, Inert, Problem

# Passed as pydantic context by the loader, which collects the problems of a whole recipe instead of the first node's.
DEFER_CHECKS = {"defer_checks": True}

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
MOST = 10_000
Number = Annotated[int, Field(ge=1, le=MOST)]
"""Of what is built or looped over one by one: steps, heads, experts; no more than `MOST`."""
SizeOrZero = Annotated[int, Field(ge=0, le=2**31 - 1)]
NumberOrZero = Annotated[int, Field(ge=0, le=MOST)]
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Numbers that cost nothing however large they are: seeds, and updates that others are only compared with."""
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Config(BaseModel):
    """Base of all configurations.

    A subclass states impossible combinations of its own fields, and of its children's, in `problems`. They are raised
    together when an object is built, and reported with everything else that is wrong when a file is loaded. Settings
    that another one makes useless (`Inert`) are errors in recipes only: programs make configurations of parts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)

    page: ClassVar[str] = "recipes"
    """Page of the documentation that describes a file of such settings, by its name in the folder docs."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Yield what is impossible here; `path` is the dotted path of this node with a trailing dot, or empty."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_impossible(self, info: ValidationInfo) -> Self:
        is_deferred = info.context and info.context.get("defer_checks")
        if not is_deferred and (found := [one for one in self.problems() if not isinstance(one, Inert)]):
            raise ConfigError(found)
        return self


def inert(
    config: Config, path: str, reason: str, *, but: Collection[str] = (), default: Config | None = None
) -> Iterator[Problem]:
    """Give one reason against every setting of a group, and of the groups in it, that is not at its default.

    Args:
        path: of the group, with a trailing dot. but: names that have an effect all the same.
        default: the group as it is where nothing is set; None: as its class has it.
    """
    for name, value, unset in _differing(config, default):
        if name in but:
            continue
        if isinstance(value, Config) and type(value) is type(unset):
            yield from inert(value, f"{path}{name}.", reason, default=unset)
        else:
            shown = getattr(value, "kind", "set") if isinstance(value, Config) else value
            yield Inert(f"{path}{name}", shown, reason)


NamesByClass = Mapping[type[Config], Collection[str]]
"""Names of settings by the class that has them, and whose subclasses have them."""


def changed_settings(
    config: Config, path: str = "", *, but: NamesByClass | None = None, default: Config | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield every setting that is not at its default, as a recipe would set it: dotted key, value.

    Of a group of another kind than the default's: its kind, and what differs from the defaults of that kind. A group
    without kinds that is not there by default is an empty mapping where nothing in it differs. Groups in a list have
    their place in their keys.

    Args:
        path: of the configuration, with a trailing dot, or empty.
        but: settings to leave out; of a group only its kind, or that it is there.
        default: the configuration as it is where nothing is set; None: as its class has it.
    """
    but = but or {}
    left_out = {name for owner, names in but.items() if isinstance(config, owner) for name in names}
    for name, value, unset in _differing(config, default):
        key, is_shown = f"{path}{name}", name not in left_out
        if isinstance(value, Config):
            yield from _changed_group(value, key, unset, but, is_shown=is_shown)
        elif isinstance(value, list) and any(isinstance(item, Config) for item in value):
            for place, item in enumerate(value):
                yield from _changed_group(item, f"{key}.{place}", None, but, is_shown=is_shown)
        elif is_shown:
            yield key, value


def _changed_group(
    group: Config, key: str, unset: Config | None, but: NamesByClass, *, is_shown: bool
) -> Iterator[tuple[str, Any]]:
    is_alike = type(group) is type(unset)
    inner = list(changed_settings(group, f"{key}.", but=but, default=unset if is_alike else None))
    if is_shown and not is_alike:
        if _says_class(type(group), "kind"):
            yield f"{key}.kind", getattr(group, "kind")  # noqa: B009  not every group has one
        elif not inner:
            yield key, {}
    yield from inner


def _differing(config: Config, default: Config | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, value and default of every setting of a group, groups in it included, that is not at its default."""
    for name, field in type(config).model_fields.items():
        value = getattr(config, name)
        of_class = field.get_default(call_default_factory=True, validated_data={})
        unset = of_class if default is None else getattr(default, name)
        if value != unset and not _says_class(type(config), name):
            yield name, value, unset


def _says_class(owner: type[Config], name: str) -> bool:
    """Return whether a field only says what the group is, and is no setting."""
    return name == "kind" and name in owner.model_fields and len(get_args(owner.model_fields[name].annotation)) == 1


def all_problems(config: Config, path: str = "") -> Iterator[Problem]:
    """Yield the problems of a configuration and of every configuration inside it."""
    yield from config.problems(path)
    for name in type(config).model_fields:
        child = getattr(config, name)
        if isinstance(child, Config):
            yield from all_problems(child, f"{path}{name}.")
        elif isinstance(child, list):
            for place, item in enumerate(child):
                if isinstance(item, Config):
                    yield from all_problems(item, f"{path}{name}.{place}.")
