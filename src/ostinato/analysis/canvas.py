"""Figures without a screen; matplotlib is imported when one is drawn."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by all common kinds of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
HOW_TO_GET_FIGURES = "figures need matplotlib: pip install 'matplotlib>=3.8'"


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches.

    Raises:
        ConfigError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(HOW_TO_GET_FIGURES) from error
    return Figure(figsize=(width, height), layout="constrained")


def svg_of(figure: Figure) -> str:
    """Return a figure as SVG."""
    from io import StringIO

    text = StringIO()
    figure.savefig(text, format="svg", dpi=150)
    return text.getvalue()


def save_figure(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write and return `path`.svg and `path`.png."""
    written = path.with_suffix(".svg"), path.with_suffix(".png")
    for file in written:
        figure.savefig(file, dpi=150)
        figure.set_layout_engine("none")  # as it was laid out for the first: that takes longest
    return written
