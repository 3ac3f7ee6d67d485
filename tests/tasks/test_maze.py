from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.load import load_recipe_config
from ostinato.config.recipe import TaskRef
from ostinato.config.special_ids import NO_LABEL
from ostinato.errors import DataError
from ostinato.evaluation.loading import load
from ostinato.tasks.base import split_of
from ostinato.tasks.baselines import trivial_scores
from ostinato.tasks.maze_grids import Maze, Place, draw_maze, first_form, without_dead_ends
from ostinato.tasks.registry import build_task, task_problems
from ostinato.training import train


def maze(**settings: object):
    small = {"size": 3, "larger_sizes": [4, 6], "n_train": 40, "n_eval": 20, "least_path": 5}
    return build_task(TaskRef.model_validate({"kind": "maze", **small, **settings}), DataConfig())


def rows_of(source: str) -> Maze:
    return tuple(row.replace(" ", "") for row in source.split("/")[:-1])


def walks(rows: Maze, here: Place, seen: tuple[Place, ...], longest: int) -> list[tuple[Place, ...]]:
    """Return all walks without a repetition from a place to the goal, of so many cells at most, by trying all."""
    if rows[here[0]][here[1]] == "G":
        return [(*seen, here)]
    found = []
    for r, c in ((here[0] + 1, here[1]), (here[0] - 1, here[1]), (here[0], here[1] + 1), (here[0], here[1] - 1)):
        inside = 0 <= r < len(rows) and 0 <= c < len(rows)
        if inside and rows[r][c] != "#" and (r, c) not in seen and len(seen) + 1 < longest:
            found += walks(rows, (r, c), (*seen, here), longest)
    return found


@pytest.mark.parametrize(("split", "n", "sizes"), [("test", 20, {3}), ("larger", 40, {4, 6})])
def test_labels_are_the_only_shortest_path(split: str, n: int, sizes: set[int]) -> None:
    found = list(maze(openings=0.3).examples(split))
    assert len(found) == n
    assert {example.columns["size"] for example in found} == sizes
    for example in found:
        words, labels = (example.source or "").split(), example.target.split()
        rows, side = rows_of(example.source or ""), 2 * int(example.columns["size"]) - 1
        assert [len(row) for row in rows] == [side] * side
        assert [word == "/" for word in words] == [label == NO_LABEL for label in labels]
        start = next((r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell == "S")
        n_on_path = labels.count("o")
        assert n_on_path >= 5
        (path,) = walks(rows, start, (), n_on_path)  # no shorter one, and no other as long
        assert len(path) == n_on_path
        assert {(r, c) for r, c in path} == {divmod(i, side + 1) for i, label in enumerate(labels) if label == "o"}
        low, high = map(int, str(example.columns["path"]).split("-"))
        assert low <= n_on_path <= high


def test_without_openings_there_is_one_way_and_dead_ends_leave_it() -> None:
    task = maze(openings=0)
    assert trivial_scores(task, "test")["dead_ends"] == {"exact_match": 1.0, "tag_accuracy": 1.0}
    open_ones = trivial_scores(maze(openings=0.3), "larger")
    assert open_ones["dead_ends"]["exact_match"] < 0.5
    assert open_ones["majority"]["exact_match"] == 0.0
    assert without_dead_ends(("S.#", "#..", "G..")) == {
        (r, c) for r, c in [(0, 0), (0, 1), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    }
    assert without_dead_ends(("S.#", "#.#", "G..")) == {(0, 0), (0, 1), (1, 1), (2, 1), (2, 0)}


def test_paths_are_connected_from_start_to_goal() -> None:
    for n, openings in ((3, 0.0), (6, 0.2)):
        rows, path = draw_maze(Random(n), n, openings, 4 * n - 3)
        assert rows[path[0][0]][path[0][1]] == "S"
        assert rows[path[-1][0]][path[-1][1]] == "G"
        assert all(abs(a - c) + abs(b - d) == 1 for (a, b), (c, d) in pairwise(path))
        assert len(path) >= 4 * n - 3


def test_no_maze_of_a_split_is_a_form_of_one_of_another() -> None:
    one = ("S.#", "#.#", "#.G")
    turned = tuple("".join(line) for line in zip(*one[::-1], strict=True))
    exchanged = ("G.#", "#.#", "#.S")
    assert first_form(one) == first_form(turned) == first_form(exchanged) == first_form(one[::-1])
    assert first_form(one) != first_form(("S.#", "#.G", "#.."))
    for split in ("train", "dev", "test"):
        assert {split_of(first_form(rows_of(example.source or ""))) for example in maze().examples(split)} == {split}


def test_splits_differ_by_seed_and_not_by_the_sizes_of_others() -> None:
    test = list(maze().examples("test"))
    assert test == list(maze(n_train=7, larger_sizes=[5]).examples("test"))
    assert test != list(maze(seed=1).examples("test"))


def test_a_run_learns_from_cells_alone_and_scores_them_alone(tmp_path: Path) -> None:
    settings = {
        "task": {"kind": "maze", "size": 3, "larger_sizes": [4], "least_path": 5, "n_train": 40, "n_eval": 6},
        "model": {
            "kind": "encoder",
            "d_model": 8,
            "head": {"kind": "tagging"},
            "encoder": {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 16}},
        },
        "training": {"n_updates": 3, "schedule": {"warmup": 1}, "log_every": 3, "device": "cpu", "ema_decay": 0.5},
        "evaluation": {"splits": ["test"]},
    }
    recipe = load_recipe_config(settings, [], extra_problems=lambda r: task_problems(r.task.settings(), r.data))
    found = train(recipe, tmp_path / "run")["splits"]["test"]
    assert load(tmp_path / "run").tokenizers.target.labels == [".", "o"]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    (record,) = [one for one in map(json.loads, lines) if one["kind"] == "training"]
    assert record["n_labels"] % 25 == 0  # the cells of a maze, without row ends
    # Both are shares of the same cells: decoded, and counted where the loss is.
    assert found["tag_accuracy"] == pytest.approx(found["token_accuracy"])
    assert found["exact_match"] == pytest.approx(found["sequence_accuracy_forced"])


def test_paths_that_so_open_mazes_do_not_have_end_in_one_line() -> None:
    with pytest.raises(DataError, match="none of 10,000 mazes of 3 x 3 rooms has a path of 9 cells that is the only"):
        draw_maze(Random(0), 3, openings=1.0, least_path=9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": 2}, "task.size is 2: must be at least 3"),
        ({"size": 4, "least_path": 14}, "must be from 3 to 13"),
        ({"larger_sizes": [5]}, "all larger than task.size = 5"),
    ],
)
def test_impossible_settings_are_one_line(settings: dict[str, object], said: str) -> None:
    (problem,) = task_problems({"kind": "maze", **settings})
    assert said in str(problem)
