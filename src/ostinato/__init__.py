"""Transformers that spend parameters and compute unevenly over depth.

Importing the package imports no torch: the public names below are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ostinato.version import __version__

if TYPE_CHECKING:
    from ostinato.evaluation.loading import LoadedRun, load
    from ostinato.models import LanguageModel, Seq2Seq

_HOMES = {
    "LanguageModel": "ostinato.models.language_model",
    "LoadedRun": "ostinato.evaluation.loading",
    "Seq2Seq": "ostinato.models.seq2seq",
    "load": "ostinato.evaluation.loading",
}

__all__ = ["LanguageModel", "LoadedRun", "Seq2Seq", "__version__", "load"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ostinato' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
