"""Free variables of a configuration: integer settings by name, and the configurations they lead to.

A name is the end of a dotted path: ``d_ff`` is the width of every feed-forward of the model, ``decoder.ffn.d_ff`` that
of the decoder, ``n_steps`` the depth of every stack. Every integer setting of a model can be named, but for those in
lists (``segments``, ``relative.settings``): no option and no line of a recipe sets one place of a list, so that nothing
could be done with what was found. ``d_attn`` = n_heads d_head is varied by d_head; n_heads stays. ``expert_width`` is
the width of experts only: d_ff of expert feed-forwards and sparse layers, d_head of attention with experts. Several
settings (one name found in several places, or names joined by ``+``) vary together, at the ratio they have in the
configuration.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Any

from pydantic import ValidationError

from ostinato.config.base import DEFER_CHECKS, MOST, Config, all_problems
from ostinato.config.experts import RoutedConfig
from ostinato.config.model import ModelConfig
from ostinato.config.positions import RotaryConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig
from ostinato.errors import ConfigError, Inert, Problem

Measure = Callable[[ModelConfig], float]
"""What a configuration costs: parameters, multiply-accumulates, seconds."""

ROOT = "model."
_ALIASES = {"d_attn": "d_head"}
_EXPERT_WIDTH = "expert_width"


class WithoutEffect(ConfigError):
    """A free setting changes nothing of what is to be matched."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One integer setting of a model.

    Args:
        path: dotted path below ``model``, for example ``decoder.ffn.d_ff``.
        value: what it is in the configuration (d_head: what it follows from).
        least, multiple: the values it may have are the multiples of `multiple` from `least` on,
        choices: or these alone where there are any: the numbers that divide the setting `divides`.
        is_expert_width: whether it is how wide an expert is.
    """

    path: str
    value: int
    least: int = 1
    multiple: int = 1
    is_expert_width: bool = False
    choices: tuple[int, ...] = ()
    divides: str = ""

    def has_name(self, wanted: list[str]) -> bool:
        """Return whether a name, split at its dots, is the end of the path."""
        *_, last = path = self.path.split(".")
        if self.is_expert_width and wanted[-1] == _EXPERT_WIDTH:
            wanted = [*wanted[:-1], last]
        return path[-len(wanted) :] == wanted

    def near(self, wanted: Fraction | int) -> int:
        """Return the valid value nearest to a wanted one, the smaller of two equally near."""
        if self.choices:
            return min(self.choices, key=lambda value: (abs(value - wanted), value))
        count = math.ceil(Fraction(wanted) / self.multiple - Fraction(1, 2))
        return max(count, math.ceil(Fraction(self.least, self.multiple))) * self.multiple

    def above(self, value: int) -> int:
        """Return a larger value to try: the next choice (the largest itself: there is none), or twice as much."""
        if self.choices:
            return min((one for one in self.choices if one > value), default=value)
        return max(2 * value, value + self.multiple)

    def below(self, value: int) -> int:
        """Return a smaller value to try: the choice before (the smallest itself: there is none), or half as much."""
        if self.choices:
            return max((one for one in self.choices if one < value), default=value)
        return self.near(value // 2)


@dataclass(frozen=True, slots=True)
class FreeVariable:
    """Settings that vary together; the first leads, the others keep their ratio to it as nearly as integers can."""

    settings: tuple[Setting, ...]

    @property
    def lead(self) -> Setting:
        """The setting whose value is the variable's."""
        return self.settings[0]

    def at(self, value: int) -> dict[str, int]:
        """Return the value of every setting where the first has `value`."""
        lead = self.lead
        # Where the first is 0 all are, because it has the most values; then they stay alike.
        ratios = [Fraction(s.value, lead.value) if lead.value else Fraction(1) for s in self.settings[1:]]
        others = {s.path: s.near(ratio * value) for s, ratio in zip(self.settings[1:], ratios, strict=True)}
        return {lead.path: value} | others


def free_variable(config: ModelConfig, name: str, cost: Measure) -> FreeVariable:
    """Return the settings a name stands for, less those that change nothing of `cost`.

    The one with the most values leads, so that the variable is as fine as it can be.

    Args:
        name: a setting by the end of its path, or several joined by ``+``.
        cost: what the settings must have an effect on.

    Raises:
        ConfigError: a name that no setting of this model has, settings without any effect, or two of which one must
            divide the other.
    """

    def has_effect(setting: Setting) -> bool:
        """Whether another value costs something else, or is impossible without changing other settings too."""
        value = setting.near(setting.value)
        try:
            others = [one for one in setting.choices if one != value] or [setting.above(value)]
            return any(cost(with_settings(config, {setting.path: one})) != cost(config) for one in others)
        except ConfigError:
            return True

    named: dict[str, Setting] = {}
    for part in name.split("+"):
        found = _named(config, part.strip())
        effective = [setting for setting in found if has_effect(setting)]
        if not effective:
            paths = ", ".join(ROOT + setting.path for setting in found)
            reason = f"changes nothing of what is to be matched ({paths})"
            raise WithoutEffect([Problem("free", part.strip(), reason)])
        named |= {setting.path: setting for setting in effective}
    for setting in named.values():
        if setting.divides in named:
            reason = f"{ROOT}{setting.path} must divide {ROOT}{setting.divides}, so that they cannot vary together"
            raise ConfigError([Problem("free", name, reason)])
    ordered = sorted(named.values(), key=lambda s: s.value // s.multiple, reverse=True)
    return FreeVariable(tuple(ordered))


def with_settings(config: ModelConfig, values: Mapping[str, int]) -> ModelConfig:
    """Return the configuration with other values, by path below ``model``.

    Raises:
        ConfigError: a value the configuration does not allow, alone or with the others.
    """
    nested = config.model_dump()
    for path, value in values.items():
        *parents, last = path.split(".")
        node = nested
        for parent in parents:
            node = node[parent]
        node[last] = value
    # Checked from the top, so that every problem names its key in full.
    try:
        changed = type(config).model_validate(nested, context=DEFER_CHECKS)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise ConfigError(Problem(ROOT + _place(e["loc"], nested), e["input"], e["msg"]) for e in found) from error
    # What has no effect is no error here: programs put configurations together.
    if problems := [one for one in all_problems(changed, ROOT) if not isinstance(one, Inert)]:
        raise ConfigError(problems)
    return changed


def _place(location: tuple[int | str, ...], nested: Any) -> str:
    """Return the path of a validation error, without the kinds that pydantic names on the way."""
    path = []
    for key in location:
        if isinstance(nested, dict) and key in nested:
            path.append(str(key))
            nested = nested[key]
    return ".".join(path)


def _named(config: ModelConfig, name: str) -> list[Setting]:
    """Return the settings whose path ends with a name."""
    wanted = name.removeprefix(ROOT).split(".")
    wanted[-1] = _ALIASES.get(wanted[-1], wanted[-1])
    everything = list(all_settings(config))
    found = [setting for setting in everything if setting.has_name(wanted)]
    if found:
        return found
    others = [one for one in _leaves(config) if one[0].split(".")[-len(wanted) :] == wanted]
    if unset := [path for path, value, is_listed in others if not is_listed and value in (None, "parity")]:
        reason = f"has no value to start from: give it one, for example {ROOT}{unset[0]}=64"
        raise ConfigError([Problem("free", name, reason)])
    if listed := [path for path, _, is_listed in others if is_listed]:
        reason = f"stands in a list ({ROOT}{listed[0]}): only settings outside lists can be solved for"
        raise ConfigError([Problem("free", name, reason)])
    keys = list(dict.fromkeys([*(s.path.rsplit(".", 1)[-1] for s in everything), *_ALIASES]))
    keys += [_EXPERT_WIDTH] if any(s.is_expert_width for s in everything) else []
    near = get_close_matches(name, keys, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(sorted(keys))}"
    raise ConfigError([Problem("free", name, f"no integer setting of this model has that name{hint}")])


def _leaves(node: Config, path: str = "", *, is_listed: bool = False) -> Iterator[tuple[str, Any, bool]]:
    """Yield every setting that is no group: its path, its value, and whether it stands in a list."""
    for name in type(node).model_fields:
        value = getattr(node, name)
        if isinstance(value, Config):
            yield from _leaves(value, f"{path}{name}.", is_listed=is_listed)
        elif isinstance(value, list) and any(isinstance(one, Config) for one in value):
            for place, one in enumerate(value):
                yield from _leaves(one, f"{path}{name}.{place}.", is_listed=True)
        else:
            yield f"{path}{name}", value, is_listed


def all_settings(config: ModelConfig) -> Iterator[Setting]:
    """Yield every integer setting of a model that is outside lists, with the values it may have."""
    multiples = {"d_model": _model_multiple(config), "d_embedding": _embedding_multiple(config)}
    for setting in _below(config, "", config.d_model, None):
        yield replace(setting, multiple=math.lcm(setting.multiple, multiples.get(setting.path, 1)))


def _below(node: Config, path: str, d_model: int, stack: StackConfig | None) -> Iterator[Setting]:
    """Yield the integer settings of one group and of the groups in it."""
    stack = node if isinstance(node, StackConfig) else stack
    for name, field in type(node).model_fields.items():
        value = getattr(node, name)
        if isinstance(node, AttentionConfig) and name == "d_head":
            value = node.head_width(d_model)
        if isinstance(value, SpecialIds):
            continue  # names of tokens, not sizes
        if isinstance(value, Config):
            yield from _below(value, f"{path}{name}.", d_model, stack)
        elif isinstance(value, int) and not isinstance(value, bool):
            least = _limit(field.metadata, "ge", 1)
            multiple = _limit(field.metadata, "multiple_of", 1)
            # For the sake of neighbours: whole rounds, even rotary heads, heads that share those of keys evenly.
            if isinstance(node, StackConfig) and name == "n_steps":
                multiple = math.lcm(multiple, node.steps_per_round)
            if stack is not None and node is stack.self_attention and name == "d_head":
                multiple = math.lcm(multiple, _head_multiple(stack))
            if isinstance(node, AttentionConfig) and name == "n_heads":
                multiple = math.lcm(multiple, node.n_kv_heads or 1)
            choices, divides = _choices(node, name, path, d_model, stack)
            is_width = isinstance(node, RoutedConfig) and name in ("d_ff", "d_head")
            yield Setting(f"{path}{name}", value, least, multiple, is_width, choices, divides)


def _choices(
    node: Config, name: str, path: str, d_model: int, stack: StackConfig | None
) -> tuple[tuple[int, ...], str]:
    """Return the values of a setting that must divide another one, and the path of that; nothing for all others."""
    match node, name:
        case StackConfig(), "steps_per_round":
            return _divisors(node.n_steps), f"{path}n_steps"
        case AttentionConfig(), "n_kv_heads":
            return _divisors(node.n_heads), f"{path}n_heads"
        case AttentionConfig(d_head=None), "n_heads" if not node.is_absent:
            of_keys, of_width = node.n_kv_heads or 1, 1
            if stack is not None and node is stack.self_attention:
                of_width = _head_multiple(stack)
            every = (n for n in _divisors(d_model) if n <= MOST)
            return tuple(n for n in every if n % of_keys == 0 and (d_model // n) % of_width == 0), "d_model"
    return (), ""


def _divisors(number: int) -> tuple[int, ...]:
    """Return the numbers that divide another one, ascending."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def _limit(metadata: Iterable[object], name: str, default: int) -> int:
    """Return a bound that a field states, for example its `ge`."""
    return next((int(value) for m in metadata if (value := getattr(m, name, None)) is not None), default)


def _model_multiple(config: ModelConfig) -> int:
    """Return what d_model must be a multiple of: heads whose width follows from it, sine and cosine in pairs, and units
    that two directions halve."""
    wanted = [recurrence.n_directions for recurrence in config.recurrences().values()]
    for stack in config.stacks().values():
        is_signal = stack.positions.kind == "sinusoidal" and getattr(config, "d_embedding", None) is None
        wanted.append(2 if is_signal or stack.positions.kind == "coordinates" else 1)
        for kind, sub in stack.sub_layers():
            if isinstance(sub, AttentionConfig) and sub.d_head is None and not sub.is_absent:
                wanted.append(sub.n_heads * (_head_multiple(stack) if kind == "self_attention" else 1))
    return math.lcm(*wanted)


def _embedding_multiple(config: ModelConfig) -> int:
    """Return what d_embedding must be a multiple of: sine and cosine, in pairs, are added to embeddings."""
    return 2 if any(stack.positions.kind == "sinusoidal" for stack in config.stacks().values()) else 1


def _head_multiple(stack: StackConfig) -> int:
    """Return what head widths must be a multiple of, so that rotary positions turn pairs of components."""
    fractions = [Fraction(r.fraction).limit_denominator(1000) for r in stack.relatives() if isinstance(r, RotaryConfig)]
    # f K is even for K = 2 q / p, f = p / q, and for what that divides.
    return math.lcm(*(2 * f.denominator // math.gcd(2, f.numerator) for f in fractions))
