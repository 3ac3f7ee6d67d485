"""Parts that several figures share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from ostinato.analysis.canvas import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAP = "cividis"
"""Made to look alike to all common kinds of colour vision."""
DIVERGING = "PuOr"
LOOKS = ("-", "--", ":", "-.")
NARROW = 3.9
"""Inches of a narrow figure, at most."""
_is_narrow: ContextVar[bool] = ContextVar("is_narrow", default=False)


@contextmanager
def narrow() -> Iterator[None]:
    """Lay figures out for a narrow screen: half as many panels side by side."""
    token = _is_narrow.set(True)
    try:
        yield
    finally:
        _is_narrow.reset(token)


def panels(n: int, *, width: float = 3.6, height: float = 3.0, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """Return a figure of n panels in rows; see `narrow`."""
    if _is_narrow.get():
        columns = max(1, columns // 2)
        width = min(width, NARROW / columns)
    across = min(n, columns)
    down = -(-n // across)
    figure = new_figure(max(width * across, 3.6), height * down)
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for spare in axes[n:]:
        spare.set_axis_off()
    return figure, axes[:n]


def heat(axes: Axes, values: ArrayLike, label: str, *, cmap: str = MAP, **limits: Any) -> None:
    """Draw a matrix with a scale beside it."""
    axes.imshow(values, aspect="auto", interpolation="nearest", cmap=cmap, **limits)
    scale([axes], label)


def scale(axes: Sequence[Axes], label: str) -> None:
    """Draw one scale for all panels, which hold matrices drawn with the same limits."""
    figure: Any = axes[0].figure
    figure.colorbar(axes[0].images[0], ax=list(axes), label=label, shrink=0.9 if len(axes) == 1 else 0.3)


def ticks(axes: Axes, x: Sequence[str] | None = None, y: Sequence[str] | None = None, *, size: int = 7) -> None:
    """Name the rows and columns of a matrix; names that would not fit are left out evenly."""
    for names, set_ticks, rotation in ((x, axes.set_xticks, 90), (y, axes.set_yticks, 0)):
        if names is not None:
            every = max(-(-len(names) // 40), 1)
            set_ticks(range(0, len(names), every), list(names)[::every], fontsize=size, rotation=rotation)


def line(axes: Axes, i: int, x: ArrayLike, y: ArrayLike, label: str | None) -> None:
    """Draw the i-th line of a panel, told apart by colour and by stroke."""
    look = LOOKS[i // len(COLOURS) % len(LOOKS)]
    axes.plot(x, y, look, marker=".", color=COLOURS[i % len(COLOURS)], linewidth=1.3, label=label)


def columns_of(figure: Figure) -> int:
    """Return how many panels stand side by side."""
    specs = [axes.get_subplotspec() for axes in figure.axes]
    return max((spec.get_gridspec().ncols for spec in specs if spec is not None), default=1)


def whole_numbers(axes: Axes) -> None:
    """Mark no fractions of a step on the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))


def finish(axes: Axes, x: str, y: str, title: str = "", *, legend: bool = True) -> None:
    """Name the axes of a panel of lines or bars."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=7, frameon=False)
