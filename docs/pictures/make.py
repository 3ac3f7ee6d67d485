"""The three pictures of docs/concepts.md: `python docs/pictures/make.py` writes bank.svg, plan.svg and halting.svg."""

from __future__ import annotations

from pathlib import Path

from ostinato.analysis.drawing import COLOURS, new_figure
from ostinato.plan import assign

HERE = Path(__file__).parent


def cells(axes, left, bottom, labels, colours, width=1.0):
    """Draw one row of boxes."""
    for i, (label, colour) in enumerate(zip(labels, colours, strict=True)):
        box = {"boxstyle": "square,pad=0.3", "facecolor": colour, "edgecolor": "white"}
        axes.text(left + i * width, bottom, label, ha="center", va="center", fontsize=9, color="white", bbox=box)


def bank() -> None:
    """Draw stored sets of weights, and the steps that use them."""
    figure = new_figure(6.4, 2.0)
    axes = figure.subplots()
    cells(axes, 2, 1, ["A", "B"], COLOURS[:2], 3)
    axes.text(-1.6, 1, "bank: what is stored", va="center", ha="right", fontsize=9)
    names = ["A", "B", "A", "B", "A", "B"]
    cells(axes, 1, 0, names, [COLOURS["AB".index(name)] for name in names])
    axes.text(-1.6, 0, "plan: what every step uses", va="center", ha="right", fontsize=9)
    for i, name in enumerate(names):
        axes.plot([2 + 3 * "AB".index(name), 1 + i], [0.75, 0.25], color="gray", linewidth=0.7)
    axes.set(xlim=(-5.5, 7), ylim=(-0.5, 1.5))
    axes.axis("off")
    figure.savefig(HERE / "bank.svg")


def plan() -> None:
    """Draw plans of six steps by name."""
    figure = new_figure(6.4, 2.8)
    axes = figure.subplots()
    rows = {
        "individual: a layer a step": assign("individual", 6, None),
        "all: one layer, six times": assign("all", 6, None),
        "cycle of 3: A B C A B C": assign("cycle", 6, 3),
        "sequence of 3: A A B B C C": assign("sequence", 6, 3),
        "prelude, core four times, coda": (0, 1, 1, 1, 1, 2),
    }
    for place, (name, sets) in enumerate(rows.items()):
        cells(axes, 1, -place, ["ABCDEF"[i] for i in sets], [COLOURS[i] for i in sets])
        axes.text(-0.2, -place, name, va="center", ha="right", fontsize=9)
    axes.set(xlim=(-5.5, 7), ylim=(-4.6, 0.6))
    axes.axis("off")
    figure.savefig(HERE / "plan.svg")


def halting() -> None:
    """Draw which tokens take part in which rounds."""
    figure = new_figure(6.4, 2.4)
    axes = figure.subplots()
    words, depths = ["the", "cat", "that", "the", "dogs", "saw", "sleeps"], [1, 2, 3, 1, 3, 4, 5]
    for column, (word, depth) in enumerate(zip(words, depths, strict=True)):
        axes.text(column, -0.9, word, ha="center", fontsize=9)
        for one in range(5):
            colour = COLOURS[0] if one < depth else "#dddddd"
            axes.bar(column, 0.8, 0.9, one - 0.4, color=colour)
    axes.set(xlim=(-2.6, 7), ylim=(-1.1, 4.6))
    for one in range(5):
        axes.text(-0.7, one, f"round {one + 1}", ha="right", va="center", fontsize=8)
    axes.axis("off")
    figure.savefig(HERE / "halting.svg")


if __name__ == "__main__":
    bank()
    plan()
    halting()
