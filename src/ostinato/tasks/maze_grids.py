"""Mazes: drawing them, their shortest paths, their symmetries, and filling of dead ends.

A maze is rows of characters: `#` a wall, `.` free, `S` the start, `G` the goal; one moves up, down, left and right. A
maze of n x n rooms has 2 n - 1 rows and columns: rooms where both numbers (from 0) are even, and between two neighbours
a wall or a passage. What is outside is wall.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from random import Random

from ostinato.errors import DataError

WALL, FREE, START, GOAL = "#.SG"
_TRIES = 10_000
Maze = tuple[str, ...]
Place = tuple[int, int]


def draw_maze(rng: Random, n: int, openings: float, least_path: int) -> tuple[Maze, list[Place]]:
    """Return a maze of n x n rooms and its shortest path, of which there is one.

    Rooms are joined to a tree by a walk that goes on to a random new neighbour and back where there is none; then every
    wall between two rooms is opened with the probability `openings`. Start and goal are drawn of the pairs of rooms
    that one shortest path joins.

    Args:
        least_path: cells on the path at least, both ends included; at most 4 n - 3, which two corners always have
            where nothing is opened.

    Raises:
        DataError: ten thousand mazes, and no such path: with many openings long paths are not the only ones.
    """
    for _ in range(_TRIES):
        cells = _joined_rooms(rng, n, openings)
        row, column = 2 * rng.randrange(n), 2 * rng.randrange(n)
        cells[row][column] = START
        maze = tuple("".join(line) for line in cells)
        steps, n_paths = _distances(maze, (row, column))
        goals = [
            place
            for place, n_steps in steps.items()
            if n_steps + 1 >= least_path and n_paths[place] == 1 and not (place[0] % 2 or place[1] % 2)
        ]
        if goals:
            row, column = rng.choice(goals)
            cells[row][column] = GOAL
            return tuple("".join(line) for line in cells), _path_back(maze, steps, (row, column))
    reason = (
        f"none of {_TRIES:,} mazes of {n} x {n} rooms has a path of {least_path} cells that is the only shortest one"
    )
    raise DataError(f"{reason}: take fewer openings, or a smaller task.least_path")


def _joined_rooms(rng: Random, n: int, openings: float) -> list[list[str]]:
    side = 2 * n - 1
    cells = [[WALL] * side for _ in range(side)]
    here = 2 * rng.randrange(n), 2 * rng.randrange(n)
    cells[here[0]][here[1]] = FREE
    walk = [here]
    while walk:
        row, column = walk[-1]
        rooms = [(row + 2 * down, column + 2 * right) for down, right in ((0, 1), (1, 0), (0, -1), (-1, 0))]
        new = [(r, c) for r, c in rooms if 0 <= r < side and 0 <= c < side and cells[r][c] == WALL]
        if not new:
            walk.pop()
            continue
        there = rng.choice(new)
        cells[there[0]][there[1]] = cells[(row + there[0]) // 2][(column + there[1]) // 2] = FREE
        walk.append(there)
    for row in range(side):
        for column in range(1 - row % 2, side, 2):  # between two rooms
            if cells[row][column] == WALL and rng.random() < openings:
                cells[row][column] = FREE
    return cells


def _around(maze: Maze, place: Place) -> Iterator[Place]:
    """Yield the neighbours of a place that are no wall."""
    row, column = place
    for r, c in ((row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)):
        if 0 <= r < len(maze) and 0 <= c < len(maze[r]) and maze[r][c] != WALL:
            yield r, c


def _distances(maze: Maze, start: Place) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return for every place that can be reached the fewest steps to it, and how many paths have so few."""
    steps, n_paths, waiting = {start: 0}, {start: 1}, deque([start])
    while waiting:
        here = waiting.popleft()
        for there in _around(maze, here):
            if there not in steps:
                steps[there], n_paths[there] = steps[here] + 1, 0
                waiting.append(there)
            if steps[there] == steps[here] + 1:
                n_paths[there] += n_paths[here]
    return steps, n_paths


def _path_back(maze: Maze, steps: dict[Place, int], goal: Place) -> list[Place]:
    path = [goal]
    while steps[path[-1]]:
        path.append(next(place for place in _around(maze, path[-1]) if steps[place] == steps[path[-1]] - 1))
    return path[::-1]


def without_dead_ends(maze: Maze) -> set[Place]:
    """Return what is free once free places with one free neighbour or none, but start and goal, are filled, again and
    again: the path, where there is only one way between start and goal, and more where there are several."""
    left = {(row, column) for row, line in enumerate(maze) for column, cell in enumerate(line) if cell != WALL}
    ends = {(row, column) for row, column in left if maze[row][column] in (START, GOAL)}
    waiting = list(left - ends)
    while waiting:
        here = waiting.pop()
        around = [place for place in _around(maze, here) if place in left]
        if here in left and here not in ends and len(around) < 2:
            left.remove(here)
            waiting += around
    return left


def first_form(maze: Maze) -> str:
    """Return a text that is the same for all turned and mirrored forms of a maze, and with start and goal exchanged."""
    exchanged = str.maketrans(START + GOAL, GOAL + START)
    forms = []
    for one in (maze, tuple("".join(line) for line in zip(*maze, strict=True))):
        for rows in (one, one[::-1]):
            forms += ["/".join(rows), "/".join(line[::-1] for line in rows)]
    return min(forms + [form.translate(exchanged) for form in forms])
