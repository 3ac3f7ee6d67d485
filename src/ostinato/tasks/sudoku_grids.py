"""Sudoku: solving, drawing puzzles with one solution, their symmetries, and which puzzles are the same up to these.

A grid of size n has n rows of n cells with digits 1 .. n, 0 for an empty cell; cells are listed row by row. Every digit
stands once in every row, column and box. Boxes of 4x4 are 2x2, of 6x6 two rows by three columns, of 9x9 3x3; rows of
the same boxes are a band, columns of the same boxes a stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Literal, NamedTuple

_MOST_TRIED = 1000
"""Digits that are tried to find out whether a cell may be emptied; a few searches in thousands would take minutes."""

GridSize = Literal[4, 6, 9]
Cells = tuple[int, ...]


class _UndecidedError(Exception):
    """A search has tried as many digits as it may."""


class Layout(NamedTuple):
    """Where the cells of a grid are.

    Args:
        size: rows, columns, digits. height, width: rows and columns of a box.
        units: for every cell its row, its column and its box, as numbers of cells.
    """

    size: int
    height: int
    width: int
    units: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]


@cache
def layout(size: GridSize) -> Layout:
    """Return the layout of a size."""
    height, width = {4: (2, 2), 6: (2, 3), 9: (3, 3)}[size]

    def box(place: int) -> tuple[int, int]:
        return place // size // height, place % size // width

    places = range(size * size)
    units = tuple(
        (
            tuple(other for other in places if other // size == place // size),
            tuple(other for other in places if other % size == place % size),
            tuple(other for other in places if box(other) == box(place)),
        )
        for place in places
    )
    return Layout(size, height, width, units)


def candidates(cells: Sequence[int], place: int, grid: Layout) -> list[int]:
    """Return the digits, in order, that no other cell of a cell's row, column and box has."""
    taken = {cells[other] for unit in grid.units[place] for other in unit if other != place}
    return [digit for digit in range(1, grid.size + 1) if digit not in taken]


def naked_singles(cells: Sequence[int], grid: Layout) -> list[int]:
    """Fill cells that only one digit is left for, until there is none: no guess, and no other rule."""
    filled, changed = list(cells), True
    while changed:
        changed = False
        for place, digit in enumerate(filled):
            if not digit and len(left := candidates(filled, place, grid)) == 1:
                filled[place], changed = left[0], True
    return filled


def solutions(
    cells: Sequence[int], grid: Layout, digits: Sequence[int] = (), most_tried: int | None = None
) -> Iterator[Cells]:
    """Yield every solution, by trying the digits of the cell that has the fewest candidates.

    Args:
        digits: in which order they are tried; none: ascending.
        most_tried: digits that are tried at most, or an error ends the search; None: any number.
    """
    filled = list(cells)
    # Digits that are taken, a bit each, by row, column and box of every cell: three lists that cells share.
    lines = [[0] * grid.size for _ in range(3)]
    where = [_lines_of(place, grid) for place in range(len(filled))]

    def put(place: int, bit: int) -> None:
        for line, number in zip(lines, where[place], strict=True):
            line[number] ^= bit

    for place, digit in enumerate(filled):
        if digit:
            if any(line[number] & 1 << digit for line, number in zip(lines, where[place], strict=True)):
                return
            put(place, 1 << digit)
    rows, columns, boxes = lines
    n_tried = 0
    every, order = (2 << grid.size) - 2, digits or range(1, grid.size + 1)

    def search(empty: list[int]) -> Iterator[Cells]:
        nonlocal n_tried
        if not empty:
            yield tuple(filled)
            return
        best, fewest, left = -1, grid.size + 1, 0
        for place in empty:
            row, column, box = where[place]
            free = every & ~(rows[row] | columns[column] | boxes[box])
            if (n := free.bit_count()) < fewest:
                best, fewest, left = place, n, free
                if n <= 1:
                    break
        others = [place for place in empty if place != best]
        for digit in order:
            if left & 1 << digit:
                n_tried += 1
                if most_tried is not None and n_tried > most_tried:
                    raise _UndecidedError
                filled[best] = digit
                put(best, 1 << digit)
                yield from search(others)
                put(best, 1 << digit)

    yield from search([place for place, digit in enumerate(filled) if not digit])


def _lines_of(place: int, grid: Layout) -> tuple[int, int, int]:
    row, column = divmod(place, grid.size)
    return row, column, row // grid.height * grid.height + column // grid.width


def draw_puzzle(rng: Random, n_givens: int, grid: Layout) -> tuple[Cells, Cells]:
    """Return a puzzle with so many cells given and its one solution.

    Cells of a random solution are emptied in random order, each only where the puzzle keeps one solution: the cell's
    other digits are tried, and none of them can be completed. A cell of which that is not found out soon stays given. A
    grid that cannot be emptied so far is drawn anew.
    """
    digits = list(range(1, grid.size + 1))
    while True:
        rng.shuffle(digits)
        first = rng.sample(digits, grid.size)
        solution = next(solutions([*first, *[0] * (grid.size**2 - grid.size)], grid, digits))
        cells = list(shuffled(solution, solution, rng, grid)[0])
        solution = tuple(cells)
        n_left = len(cells)
        for place in rng.sample(range(len(cells)), len(cells)):
            if n_left == n_givens:
                return tuple(cells), solution
            digit, cells[place] = cells[place], 0
            if _may_have_another(cells, place, digit, grid):
                cells[place] = digit
            else:
                n_left -= 1


def _may_have_another(cells: list[int], place: int, digit: int, grid: Layout) -> bool:
    """Return False where a search proves that an empty cell has no other digit than that of the known solution."""
    for other in candidates(cells, place, grid):
        if other != digit:
            tried = [*cells[:place], other, *cells[place + 1 :]]
            try:
                found = next(solutions(tried, grid, most_tried=_MOST_TRIED), None)
            except _UndecidedError:
                return True
            if found is not None:
                return True
    return False


def shuffled(puzzle: Cells, solution: Cells, rng: Random, grid: Layout) -> tuple[Cells, Cells]:
    """Return a puzzle and its solution after one of the symmetries of Sudoku, drawn uniformly.

    Digits are renamed; bands, and rows inside a band, change places; so do stacks and columns inside a stack; where
    boxes are square, rows may become columns.
    """
    names = [0, *rng.sample(range(1, grid.size + 1), grid.size)]
    rows, columns = _permuted(rng, grid.size, grid.height), _permuted(rng, grid.size, grid.width)
    transposed = grid.height == grid.width and rng.random() < 0.5
    places = [
        column * grid.size + row if transposed else row * grid.size + column for row in rows for column in columns
    ]
    return tuple(names[puzzle[place]] for place in places), tuple(names[solution[place]] for place in places)


def _permuted(rng: Random, size: int, group: int) -> list[int]:
    groups = rng.sample(range(size // group), size // group)
    return [one * group + line for one in groups for line in rng.sample(range(group), group)]


def signature(puzzle: Cells, grid: Layout) -> str:
    """Return a text that is the same for all puzzles which symmetries make of each other.

    Colours of cells are refined (Weisfeiler and Leman): at first a cell is given or empty; in every round its colour is
    joined by those of its row and column (in either order), of its box, and of the cells with its digit. Nothing here
    depends on names of digits or order of lines. Different puzzles may have the same signature, but seldom do.
    """
    same_digit = {digit: [p for p, other in enumerate(puzzle) if other == digit] for digit in set(puzzle) - {0}}
    colours, seen = [int(digit > 0) for digit in puzzle], list[list[str]]()
    for _ in range(3):
        found = []
        for place, digit in enumerate(puzzle):
            row, column, box = (sorted([colours[other] for other in unit]) for unit in grid.units[place])
            alike = sorted([colours[other] for other in same_digit.get(digit, ())])
            found.append(repr((colours[place], *sorted((row, column)), box, alike)))
        seen.append(sorted(found))
        numbers = {one: number for number, one in enumerate(seen[-1])}
        colours = [numbers[one] for one in found]
    return repr(seen)
