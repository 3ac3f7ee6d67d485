"""Mazes: which cells the shortest path from start to goal goes through."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.base import Count, Size
from ostinato.config.special_ids import NO_LABEL
from ostinato.data.example import Example
from ostinato.errors import Problem
from ostinato.tasks.base import Share, Task, TaskConfig, bucket_of, split_of
from ostinato.tasks.maze_grids import Maze, Place, draw_maze, first_form, without_dead_ends

Rooms = Annotated[int, Field(ge=1, le=1000)]

_END_OF_ROW, _ON_PATH, _OFF_PATH = "/", "o", "."


class MazeConfig(TaskConfig):
    """Settings of generated mazes; a size n is n rooms in n rows, 2 n - 1 cells a side."""

    kind: Literal["maze"] = "maze"
    size: Rooms = 5
    """Rooms a side in train, dev and test."""
    larger_sizes: list[Rooms] = Field(default_factory=lambda: [6, 8, 10])
    """Rooms a side in the split `larger`, each with n_eval mazes."""
    least_path: Size = 9
    """Fewest cells on the path, start and goal included, in every split."""
    openings: Share = 0.1
    """Probability of a wall between two rooms to be opened: 0 leaves one way between any two cells."""
    n_train: Size = 5000
    """Mazes in train."""
    n_eval: Size = 200
    """Mazes in dev, in test, and of every size in larger."""
    seed: Count = 0
    """Of the data; independent of the seed of training."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Sizes that have mazes and that are larger, paths that fit in."""
        yield from super().problems(path)
        if self.size < 3:
            yield Problem(f"{path}size", self.size, "must be at least 3: there are too few mazes of fewer rooms")
        elif not 3 <= self.least_path <= 4 * self.size - 3:
            longest = 4 * self.size - 3
            reason = f"must be from 3 to {longest}, which a maze with {path}size = {self.size} and no openings has"
            yield Problem(f"{path}least_path", self.least_path, reason)
        if not self.larger_sizes or min(self.larger_sizes) <= self.size:
            reason = f"must be one size or more, all larger than {path}size = {self.size}"
            yield Problem(f"{path}larger_sizes", self.larger_sizes, reason)


class MazeTask(Task):
    """Mazes, generated: which cells the only shortest path from start to goal goes through; larger mazes at the end.

    Example of 2 x 2 rooms: `S # G /  . # . /  . . . /` has the labels `o . o  o . o  o o o`.
    Splits: train (`n_train`), dev and test (`n_eval` each) with `size` rooms a side, larger with each of
    `larger_sizes`, `n_eval` mazes a size. Rooms are joined by a random walk and `openings` more walls are opened, so
    that there may be several ways; start and goal are rooms whose shortest path is the only one and has `least_path`
    cells or more. No maze of train, dev or test is one of another of them turned, mirrored or with start and goal
    exchanged. Every split depends on `seed` and not on the others' sizes.
    Tokens: words; the cells row by row (`#` wall, `.` free, `S`, `G`), and `/` after every row, which has no label. A
    label is `o` on the path, both ends included, else `.`.
    Metric: exact match (all cells of a maze right) and tag accuracy (cells right), by size and by cells on the path.
    Beside them belongs what needs no model (`ostinato data baselines`): `majority`, no cell on the path; `dead_ends`,
    which fills dead ends until there are none and takes what is left: it is right wherever there is only one way, so in
    all mazes with `openings` 0.
    Selection: dev, which has the size of train; nothing is selected on larger.
    Departures: HRM and TRM (arXiv 2506.21734, 2510.04871) use published 30x30 mazes chosen for long paths, label all
    cells with what they are, and measure one size; no score on these here compares with theirs.
    """

    config: MazeConfig
    answers = "tags"
    metrics = ("exact_match", "tag_accuracy")
    by = ("size", "path")
    fixed_splits = ("train", "dev", "test", "larger")

    def _examples(self, split: str) -> Iterator[Example]:
        config = self.config
        sizes = config.larger_sizes if split == "larger" else [config.size]
        drawn = f"{config.openings}/{config.least_path}"
        rng = Random(f"{config.seed}/maze/{split}/{sizes}/{drawn}")
        for size in sizes:
            n_left = config.n_train if split == "train" else config.n_eval
            while n_left:
                maze, path = draw_maze(rng, size, config.openings, config.least_path)
                if split in ("larger", split_of(first_form(maze))):
                    n_left -= 1
                    columns = {"size": size, "path": bucket_of(len(path), 8, digits=3)}
                    source = " ".join(cell for row in maze for cell in (*row, _END_OF_ROW))
                    yield Example(source, _labels(maze, set(path)), columns)

    def rules(self, source: str) -> dict[str, str]:
        """Return what is left when dead ends are filled."""
        maze = tuple(row.replace(" ", "") for row in source.split(_END_OF_ROW)[:-1])
        return {"dead_ends": _labels(maze, without_dead_ends(maze))}


def _labels(maze: Maze, path: set[Place]) -> str:
    rows = [
        [_ON_PATH if (row, column) in path else _OFF_PATH for column in range(len(line))]
        for row, line in enumerate(maze)
    ]
    return " ".join(label for row in rows for label in (*row, NO_LABEL))
