"""Classes of the user's own that a recipe names, as `package.module:Class`."""

from __future__ import annotations

import inspect
import sys
from importlib import import_module
from pathlib import Path
from typing import TypeVar

from ostinato.errors import ConfigError, Problem

T = TypeVar("T")


def is_own(name: str) -> bool:
    """Return whether a name is that of a class of the user's own."""
    return ":" in name


def own_class(name: str, base: type[T], key: str) -> type[T]:
    """Import and return a class; its module is looked for where Python finds modules, then in the current folder.

    Args:
        name: `package.module:Class`.
        base: what it must be a subclass of.
        key: the setting that the error names.

    Raises:
        ConfigError: the module cannot be imported, has no such class, or the class lacks something.
    """
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    is_new = here not in sys.path
    if is_new:
        sys.path.append(here)
    try:
        found = getattr(import_module(module), attribute)
    except Exception as error:  # whatever the user's code raises: --debug shows where
        reason = f"cannot be imported ({type(error).__name__}: {error})"
        if not (module and attribute):
            reason += "; it must look like module:Class"
        elif isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            reason += f"; stand in the folder that has {error.name}, or add it to PYTHONPATH (this one is {here})"
        raise ConfigError([Problem(key, name, reason)]) from error
    finally:
        if is_new:
            sys.path.remove(here)
    wanted = f"{base.__module__}.{base.__qualname__}"
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError([Problem(key, name, f"must be a subclass of {wanted}")])
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise ConfigError([Problem(key, name, f"lacks what every {wanted} has: {missing}")])
    return found
