"""Figures: made and saved without a screen, and the parts that several of them share.

matplotlib is imported when a figure is drawn.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from ostinato.config.files import say_once
from ostinato.data.output_files import check_output, new_file
from ostinato.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9")
"""Okabe and Ito's palette: distinct for all common kinds of colour vision."""
MAP = "cividis"
"""Colour map of matrices, which looks alike to all common kinds of colour vision."""
DIVERGING = "PuOr"
LOOKS = ("-", "--", ":", "-.")
WIDE, NARROW = 7.2, 3.45
"""Greatest widths of figures in inches: that of a printed page, and that of a narrow screen (375 pixels)."""
FONT = 7
"""Smallest size of letters in points: figures are shown and printed at the widths above or larger, never smaller."""
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
HOW_TO_GET_FIGURES = "figures need matplotlib: pip install 'matplotlib>=3.8'"


def can_draw() -> bool:
    """Return whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this width and height in inches.

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
    text = StringIO()
    with _fonts_of(figure):
        figure.savefig(text, format="svg", dpi=150)
    return text.getvalue()


def check_figure(path: Path, *, overwrite: bool = False) -> tuple[Path, Path]:
    """Return the files that `save_figure` writes.

    Raises:
        ConfigError: they cannot be written; see `ostinato.data.output_files`.
    """
    stem = path.stem if path.suffix in (".svg", ".png", ".json") else path.name  # which may have a dot
    files = path.with_name(f"{stem}.svg"), path.with_name(f"{stem}.png")
    for file in files:
        check_output(file, overwrite=overwrite)
    return files


def save_figure(figure: Figure, path: Path, *, overwrite: bool = False) -> tuple[Path, Path]:
    """Write and return `path`.svg and `path`.png, new files; with `overwrite` plain files of these names are replaced.

    Raises:
        ConfigError: they cannot be written; see `ostinato.data.output_files`.
    """
    written = check_figure(path, overwrite=overwrite)
    for file in written:
        with new_file(file, overwrite=overwrite) as partial, _fonts_of(figure):
            figure.savefig(partial, dpi=150)
        figure.set_layout_engine("none")  # Laying out takes longest: once is enough.
    return written


@cache
def _fonts_with(letters: frozenset[int]) -> tuple[list[str], set[int]]:
    """Return fonts of this machine that have these letters, and the letters that none has."""
    from matplotlib import font_manager

    families, lacking = [], set(letters)
    for font in font_manager.fontManager.ttflist:
        if not lacking:
            break
        if font.name.startswith("Last Resort"):  # whose letters are boxes
            continue
        with suppress(OSError, RuntimeError):  # the list of fonts may be older than the fonts
            if found := lacking & font_manager.get_font(font.fname).get_charmap().keys():
                families.append(font.name)
                lacking -= found
    return families, lacking


@contextmanager
def _fonts_of(figure: Figure) -> Iterator[None]:
    """Have texts drawn in fonts of this machine where matplotlib's own lacks their letters (Chinese, Hindi, ...)."""
    from matplotlib import font_manager
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    letters = {ord(letter) for text in texts for letter in text.get_text() if not letter.isspace()}
    foreign = letters - font_manager.get_font(font_manager.findfont("DejaVu Sans")).get_charmap().keys()
    families, lacking = _fonts_with(frozenset(foreign))
    if families:
        for text in texts:
            text.set_fontfamily(["DejaVu Sans", *families])
    with warnings.catch_warnings():
        if lacking:
            some = " ".join(map(chr, sorted(lacking)[:10]))
            say_once(f"no font here has {some}: boxes in figures; install one of that script (Noto has them all)")
            warnings.filterwarnings("ignore", "Glyph .* missing from font")
        yield


def panels(
    n: int, narrow: bool, *, width: float = WIDE / 2, height: float = 3.0, columns: int = 2
) -> tuple[Figure, list[Axes]]:
    """Return a figure of n panels in rows; those of the last row share its width.

    Args:
        narrow: for a narrow screen: half as many panels side by side.
        width, height: of a panel; no figure is wider than its page (`WIDE`, `NARROW`).
    """
    across = min(n, max(1, columns // 2) if narrow else columns)
    down = -(-n // across)
    page = NARROW if narrow else WIDE
    figure = new_figure(min(max(width * across, NARROW), page), height * down)
    of_last = n - across * (down - 1)
    grid = figure.add_gridspec(down, math.lcm(across, of_last))
    axes = []
    for i in range(n):
        row, place = divmod(i, across)
        span = grid.ncols // (across if row < down - 1 else of_last)
        axes.append(figure.add_subplot(grid[row, place * span : (place + 1) * span]))
    return figure, axes


def heat(axes: Axes, values: ArrayLike, label: str, *, cmap: str = MAP, **limits: Any) -> None:
    """Draw a matrix with a scale beside it."""
    axes.imshow(values, aspect="auto", interpolation="nearest", cmap=cmap, **limits)
    scale([axes], label)


def scale(axes: Sequence[Axes], label: str) -> None:
    """Draw one scale for all panels, which hold matrices drawn with the same limits."""
    figure: Any = axes[0].figure
    # As high as a panel and at most three inches, however many panels there are.
    shrink = 0.9 if len(axes) == 1 else min(0.9, 3 / figure.get_figheight())
    bar = figure.colorbar(axes[0].images[0], ax=list(axes), shrink=shrink)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=FONT)


def without_math(text: str) -> str:
    """Return a text as matplotlib draws it as it is: between two dollars it reads TeX."""
    return text.replace("$", r"\$")


def ticks(axes: Axes, x: Sequence[str] | None = None, y: Sequence[str] | None = None) -> None:
    """Name the rows and columns of a matrix; names that would not fit are left out evenly."""
    figure: Any = axes.figure
    place = axes.get_position()
    for names, set_ticks, rotation, inches in (
        (x, axes.set_xticks, 90, place.width * figure.get_figwidth()),
        (y, axes.set_yticks, 0, place.height * figure.get_figheight()),
    ):
        if names is not None:
            # Scales and names beside the panel take a fifth of it or more; a name is as high as its letters are large.
            every = max(math.ceil(len(names) * 1.3 * FONT / 72 / (0.8 * inches)), 1)
            shown = [without_math(name) for name in names[::every]]
            set_ticks(range(0, len(names), every), shown, fontsize=FONT, rotation=rotation)


def line(axes: Axes, i: int, x: ArrayLike, y: ArrayLike, label: str | None) -> None:
    """Draw the i-th line of a panel, with a colour and a stroke of its own."""
    look = LOOKS[i // len(COLOURS) % len(LOOKS)]
    axes.plot(x, y, look, marker=".", color=COLOURS[i % len(COLOURS)], linewidth=1.3, label=label)


def columns_of(figure: Figure) -> int:
    """Return how many panels stand side by side in the first row."""
    places = [axes.get_subplotspec() for axes in figure.axes]
    return max(len({place.colspan.start for place in places if place is not None and place.rowspan.start == 0}), 1)


def whole_numbers(axes: Axes) -> None:
    """Put ticks at whole numbers only on the horizontal axis."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))


def in_units(axis: Axis) -> None:
    """Write the ticks of large counts in thousands (K), millions (M) and so on: 10M; smaller numbers as they are."""
    from matplotlib.ticker import FuncFormatter

    low, high = axis.get_view_interval()
    if max(abs(low), abs(high)) < 10_000:
        return

    def text(value: float, _: object) -> str:
        unit = next((found for found in _UNITS if abs(value) >= found[0]), None)
        return f"{value:g}" if unit is None else f"{value / unit[0]:g}{unit[1]}"

    axis.set_major_formatter(FuncFormatter(text))


def name_axes(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Label the axes of a panel, and give it a title."""
    axes.set_xlabel(without_math(x), fontsize=8)
    axes.set_ylabel(without_math(y), fontsize=8)
    axes.set_title(without_math(title), fontsize=9)
    axes.tick_params(which="both", labelsize=FONT)


def finish(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Label the axes of a panel of lines or bars; its lines are named by `common_legend`."""
    name_axes(axes, x, y, title)
    axes.spines[["top", "right"]].set_visible(False)


def legend_label(name: str) -> str:
    """Return a name of the user's as a label: what begins with "_" is in no legend of matplotlib's."""
    return f" {name}" if name.startswith("_") else name


def common_legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """Draw one legend for all panels below them, as wide as the figure, with every label once."""
    found = {label: handle for panel in axes for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    if not found:
        return
    # A letter of this size is about 4 points wide, and a sample of the line takes 40.
    room = 72 * figure.get_figwidth() / (40 + 4 * max(map(len, found)))
    columns = max(1, min(int(room), len(found)))
    labels = [without_math(label) for label in found]
    figure.legend(list(found.values()), labels, loc="outside lower center", ncols=columns, fontsize=FONT, frameon=False)
