from __future__ import annotations

from itertools import product
from random import Random

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.example import Example
from ostinato.tasks.base import split_of
from ostinato.tasks.baselines import trivial_scores
from ostinato.tasks.registry import build_task, task_problems
from ostinato.tasks.sudoku_grids import Cells, draw_puzzle, layout, naked_singles, shuffled, signature, solutions

BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def sudoku(**settings: object):
    small = {"size": 4, "n_train": 30, "n_eval": 20}
    return build_task(TaskRef.model_validate({"kind": "sudoku", **small, **settings}), DataConfig())


def groups(size: int) -> list[list[int]]:
    """Return the cells of every row, column and box, written down by other rules than the task's."""
    height, width = BOXES[size]
    rows = [[r * size + c for c in range(size)] for r in range(size)]
    boxes = [
        [(top + r) * size + left + c for r, c in product(range(height), range(width))]
        for top, left in product(range(0, size, height), range(0, size, width))
    ]
    return [*rows, *map(list, zip(*rows, strict=True)), *boxes]


def all_solutions(cells: list[int], size: int, place: int = 0) -> list[list[int]]:
    """Return every solution by trying all digits of all cells in turn."""
    if place == len(cells):
        return [list(cells)]
    if cells[place]:
        return all_solutions(cells, size, place + 1)
    found = []
    for digit in range(1, size + 1):
        if all(digit not in [cells[other] for other in group] for group in groups(size) if place in group):
            cells[place] = digit
            found += all_solutions(cells, size, place + 1)
            cells[place] = 0
    return found


def cells_of(text: str) -> Cells:
    return tuple(0 if word == "." else int(word) for word in text.split())


@pytest.mark.parametrize(("size", "givens"), [(4, [6, 9]), (6, [12]), (9, [34])])
def test_puzzles_have_their_givens_and_one_solution(size: int, givens: list[int]) -> None:
    n = 20 if size == 4 else 3
    for example in sudoku(size=size, givens=givens, n_eval=n).examples("test"):
        puzzle, solution = cells_of(example.source or ""), cells_of(example.target)
        assert sum(digit > 0 for digit in puzzle) == example.columns["givens"]
        assert example.columns["givens"] in givens
        assert all(sorted(solution[place] for place in group) == list(range(1, size + 1)) for group in groups(size))
        assert all(given in (0, digit) for given, digit in zip(puzzle, solution, strict=True))
        if size == 9:  # trying every digit would take too long
            assert list(solutions(puzzle, layout(9))) == [solution]
        else:
            assert all_solutions(list(puzzle), size) == [list(solution)]


def test_the_solver_finds_every_solution_and_none_where_there_is_none() -> None:
    grid = layout(4)
    assert len(set(solutions([0] * 16, grid))) == 288  # the published number of 4x4 grids
    some = [1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 4, 0, 0]
    found = sorted(solutions(some, grid))
    assert found == sorted(map(tuple, all_solutions(some, 4)))
    assert len(found) > 1
    assert list(solutions([1, 1, *[0] * 14], grid)) == []


@pytest.mark.parametrize("size", [4, 6, 9])
def test_symmetries_keep_the_rules_and_the_signature(size: int) -> None:
    grid, rng = layout(size), Random(1)
    puzzle, solution = draw_puzzle(rng, {4: 8, 6: 14, 9: 34}[size], grid)
    seen = set()
    for _ in range(20):
        cells, answer = shuffled(puzzle, solution, rng, grid)
        seen.add(cells)
        assert all(sorted(answer[place] for place in group) == list(range(1, size + 1)) for group in groups(size))
        assert all(given in (0, digit) for given, digit in zip(cells, answer, strict=True))
        assert signature(cells, grid) == signature(puzzle, grid)
    assert len(seen) > 15
    others = {signature(draw_puzzle(rng, 14, layout(6))[0], layout(6)) for _ in range(30)}
    assert len(others) == 30


def test_no_puzzle_of_a_split_is_a_form_of_one_of_another() -> None:
    grid, kinds = layout(4), {}
    task = sudoku(n_train=60, n_eval=60, augmentations=2)
    for split in task.splits():
        texts = [signature(cells_of(example.source or ""), grid) for example in task.examples(split)]
        assert {split_of(text) for text in texts} == {split}
        kinds[split] = set(texts)
    assert not kinds["train"] & kinds["test"]
    assert not kinds["train"] & kinds["dev"]
    assert not kinds["dev"] & kinds["test"]


def test_train_has_further_forms_of_its_puzzles_and_the_same_puzzles_without() -> None:
    plain = list(sudoku().examples("train"))
    more = list(sudoku(augmentations=2).examples("train"))
    assert (len(plain), len(more)) == (30, 90)
    assert more[::3] == plain
    assert all(one.columns == other.columns for one, other in zip(more[1::3], plain, strict=True))
    assert sum(one.source == other.source for one, other in zip(more[1::3], plain, strict=True)) < 3
    assert list(sudoku(augmentations=2).examples("test")) == list(sudoku().examples("test"))
    assert list(sudoku(n_train=7).examples("test")) == list(sudoku().examples("test"))
    assert list(sudoku(seed=1).examples("test")) != list(sudoku().examples("test"))


def test_single_candidates_solve_easy_puzzles_and_not_hard_ones() -> None:
    grid = layout(4)
    puzzle = cells_of("1 . . 4 . 4 1 . 2 . 4 . . 3 . 1")
    assert naked_singles(puzzle, grid) == [1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1]
    assert naked_singles([0] * 16, grid) == [0] * 16
    scores = {
        n: trivial_scores(sudoku(size=6, givens=[n], n_eval=10, n_train=10), "test")["naked_singles"]["exact_match"]
        for n in (10, 18)
    }
    assert scores[10] < scores[18] == 1.0


def test_baselines_are_scored_by_cell_and_by_puzzle() -> None:
    found = trivial_scores(sudoku(), "test")
    assert set(found) == {"majority", "by_word", "naked_singles"}
    assert found["majority"] == {"exact_match": 0.0, "tag_accuracy": 0.25}  # every digit stands four times
    examples = list(sudoku().examples("test"))
    filled = sum(int(example.columns["givens"]) for example in examples) / (16 * len(examples))
    assert filled < found["by_word"]["tag_accuracy"] < 1  # the givens, and a digit for the others
    example = Example("1 . . 4 . 4 1 . 2 . 4 . . 3 . 1", "")
    assert sudoku().rules(example.source or "")["naked_singles"].split()[:4] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": 9, "givens": [17]}, "must be numbers from 25 to 70 with task.size = 9"),
        ({"givens": []}, "must be numbers from 10 to 30 with task.size = 6"),
        ({"size": 5}, "must be one of 4, 6, 9"),
    ],
)
def test_impossible_settings_are_one_line(settings: dict[str, object], said: str) -> None:
    (problem,) = task_problems({"kind": "sudoku", **settings})
    assert said in str(problem)
