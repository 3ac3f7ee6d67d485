"""Sudoku of 4x4, 6x6 or 9x9 cells: a digit for every cell, so that every row, column and box has each digit once."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Literal

from ostinato.config.base import Count, Size, SizeOrZero
from ostinato.data.example import Example
from ostinato.errors import Problem
from ostinato.tasks.base import Task, TaskConfig, split_of
from ostinato.tasks.sudoku_grids import Cells, GridSize, draw_puzzle, layout, naked_singles, shuffled, signature

_EMPTY = "."
_GIVENS: dict[GridSize, tuple[int, int, tuple[int, ...]]] = {
    4: (6, 10, (6, 8, 10)),
    6: (10, 30, (10, 12, 16)),
    9: (25, 70, (26, 30, 36)),
}
"""By size the fewest givens that are soon found, the most with which there are puzzles for every split, the default."""


class SudokuConfig(TaskConfig):
    """Settings of generated Sudoku."""

    kind: Literal["sudoku"] = "sudoku"
    size: GridSize = 6
    """Rows, columns and digits; boxes are 2x2, 2x3 (two rows, three columns) or 3x3."""
    givens: list[Size] | None = None
    """Cells that are given, of which every puzzle draws one number: fewer are harder. None: 6, 8 or 10 of 4x4, 10, 12
    or 16 of 6x6, 26, 30 or 36 of 9x9."""
    augmentations: SizeOrZero = 0
    """Further forms of every puzzle in train, by symmetries that are drawn."""
    n_train: Size = 1000
    """Puzzles in train, without their further forms."""
    n_eval: Size = 200
    """Puzzles in dev, and in test."""
    seed: Count = 0
    """Of the data; independent of the seed of training."""

    @property
    def of_train(self) -> tuple[str, ...]:
        """The number of puzzles, and their further forms."""
        return ("n_train", "augmentations")

    @property
    def n_givens(self) -> tuple[int, ...]:
        """The numbers of givens that are drawn from."""
        return _GIVENS[self.size][2] if self.givens is None else tuple(self.givens)

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Numbers of givens with which puzzles are found."""
        yield from super().problems(path)
        fewest, most, _ = _GIVENS[self.size]
        if not self.n_givens or not fewest <= min(self.n_givens) <= max(self.n_givens) <= most:
            reason = f"must be numbers from {fewest} to {most} with {path}size = {self.size}"
            yield Problem(f"{path}givens", self.givens, reason)


class SudokuTask(Task):
    """Sudoku, generated: a digit for every cell of a puzzle that has one solution, by a solver.

    Example of 4x4: `1 . . 4  . 4 1 .  2 . 4 .  . 3 . 1` has the labels `1 2 3 4  3 4 1 2  2 1 4 3  4 3 2 1`.
    Splits: train (`n_train` puzzles, each followed by `augmentations` further forms), dev and test (`n_eval` each). A
    random solved grid is emptied cell by cell as long as it has one solution, down to a number of `givens`, which is
    drawn. No puzzle of a split is one of another's after renaming digits, exchanging bands, stacks, rows of a band and
    columns of a stack, or (square boxes) rows and columns: a signature that these do not change decides the split.
    Inside a split puzzles may repeat, of 4x4 often. Every split depends on `seed` and not on the others' sizes.
    Tokens: words; the cells row by row, a digit or `.` where it is to be found. Every cell has a label, also the
    givens.
    Metric: exact match (all cells of a puzzle right) and tag accuracy (cells right), by the number of givens. Beside
    them belongs what needs no model (`ostinato data baselines`): `by_word` copies the givens, `naked_singles` fills
    cells for which one digit is left until there are none, and all others with 1: it solves what needs no search and no
    other rule.
    Selection: dev.
    Departures: HRM and TRM (arXiv 2506.21734, 2510.04871) use 9x9 puzzles of a published collection that were chosen to
    be hard for solvers, 1,000 of them in 1,000 forms each. These here are drawn, most are much easier, and no score on
    them compares with a published one.
    """

    config: SudokuConfig
    answers = "tags"
    metrics = ("exact_match", "tag_accuracy")
    by = ("givens",)

    def _examples(self, split: str) -> Iterator[Example]:
        config, grid = self.config, layout(self.config.size)
        rng = Random(f"{config.seed}/sudoku/{split}/{config.size}/{config.n_givens}")
        forms = Random(f"{config.seed}/sudoku/forms/{config.size}")
        n_left = config.n_train if split == "train" else config.n_eval
        while n_left:
            n_givens = rng.choice(config.n_givens)
            puzzle, solution = draw_puzzle(rng, n_givens, grid)
            if split_of(signature(puzzle, grid)) != split:
                continue
            n_left -= 1
            for number in range(1 + config.augmentations if split == "train" else 1):
                cells, answer = shuffled(puzzle, solution, forms, grid) if number else (puzzle, solution)
                yield Example(_text(cells), _text(answer), {"givens": n_givens})

    def rules(self, source: str) -> dict[str, str]:
        """Return what single candidates give, 1 where they give nothing."""
        cells = [0 if word == _EMPTY else int(word) for word in source.split()]
        filled = naked_singles(cells, layout(self.config.size))
        return {"naked_singles": " ".join(str(digit or 1) for digit in filled)}


def _text(cells: Cells) -> str:
    return " ".join(str(digit) if digit else _EMPTY for digit in cells)
