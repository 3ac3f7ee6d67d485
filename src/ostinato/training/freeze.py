"""Patterns of the names of parameters, and freezing by them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from torch import nn

from ostinato.errors import ConfigError, Problem

_KEY, _EXCEPT = "training.freeze", "training.freeze_except"


def freeze(model: nn.Module, patterns: Sequence[str], but: Sequence[str] = ()) -> list[str]:
    """Freeze the parameters whose name matches a pattern (`*` stands for anything), and return their names.

    Gradients still flow through them: the balance loss of a frozen router reaches the states below it.

    Args:
        but: patterns of those that train nevertheless.

    Raises:
        ConfigError: every pattern that matches nothing; or nothing is left to train.
    """
    names = [name for name, _ in model.named_parameters()]
    for key, given in ((_KEY, patterns), (_EXCEPT, but)):
        check_patterns(
            key, given, names, lambda pattern: f" of the model; others do: {', '.join(_similar(pattern, names))}"
        )
    frozen = [name for name in names if matches(name, patterns) and not matches(name, but)]
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError([Problem(_KEY, list(patterns), "match every parameter: nothing is left to train")])
    return frozen


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(
    key: str, patterns: Iterable[str], names: Sequence[str], where: Callable[[str], str] = lambda _: " of the model"
) -> None:
    """Raise a ConfigError that holds every pattern of a setting that matches no name; `where` ends its reason."""
    problems = [
        Problem(key, pattern, f"matches no parameter{where(pattern)}")
        for pattern in patterns
        if not any(fnmatchcase(name, pattern) for name in names)
    ]
    if problems:
        raise ConfigError(problems)


def _similar(pattern: str, names: Iterable[str]) -> list[str]:
    """Return some patterns that match a parameter, those like the given one first."""
    known: dict[str, None] = {}
    for name in names:
        *groups, last = name.split(".")
        known |= dict.fromkeys([*(f"*.{group}.*" for group in groups[1:]), f"*.{last}" if groups else last])
    return get_close_matches(pattern, known, n=3, cutoff=0.7) or list(known)[:3]
