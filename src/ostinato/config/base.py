"""What every configuration is: frozen, typed data that refuses unknown keys and impossible combinations."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, model_validator

from ostinato.errors import ConfigError, Inert, Problem

# Passed as pydantic context by the loader, which collects the problems of a whole recipe instead of the first node's.
DEFER_CHECKS = {"defer_checks": True}

Size = Annotated[int, Field(ge=1, le=2**31 - 1)]
MOST = 10_000
Number = Annotated[int, Field(ge=1, le=MOST)]
"""Of what is built or looped over one by one: steps, heads, experts; no more than `MOST`."""
Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]


class Config(BaseModel):
    """Base of all configurations.

    A subclass states impossible combinations of its own fields, and of its children's, in `problems`. They are raised
    together when an object is built, and reported with everything else that is wrong when a file is loaded. Settings
    that another one makes useless (`Inert`) are errors in recipes only: programs make configurations of parts.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Yield what is impossible here; `path` is the dotted path of this node with a trailing dot, or empty."""
        yield from ()

    @model_validator(mode="after")
    def _refuse_impossible(self, info: ValidationInfo) -> Self:
        is_deferred = info.context and info.context.get("defer_checks")
        if not is_deferred and (found := [one for one in self.problems() if not isinstance(one, Inert)]):
            raise ConfigError(found)
        return self


def inert(config: Config, path: str, reason: str, *, but: Collection[str] = ()) -> Iterator[Problem]:
    """Give one reason against every setting of a group, and of the groups in it, that is not at its default.

    Args:
        path: of the group, with a trailing dot. but: names that have an effect all the same.
    """
    for name, field in type(config).model_fields.items():
        value, default = getattr(config, name), field.get_default(call_default_factory=True, validated_data={})
        is_class = name == "kind" and len(get_args(field.annotation)) == 1  # what the group is, and no setting
        if name in but or value == default or is_class:
            continue
        if isinstance(value, Config) and type(value) is type(default):
            yield from inert(value, f"{path}{name}.", reason)
        else:
            shown = getattr(value, "kind", "set") if isinstance(value, Config) else value
            yield Inert(f"{path}{name}", shown, reason)


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
