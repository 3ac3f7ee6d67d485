from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.tasks.baselines import trivial_scores
from ostinato.tasks.registry import build_task


def test_trivial_answers_are_scored_like_those_of_a_model(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("source\ttarget\na b\tx y\nc d\tx y\ne\tz\n", encoding="utf-8")
    (tmp_path / "test.tsv").write_text("source\ttarget\nx y\tx y\nq\tq\nr\tz\nx\tx z\n", encoding="utf-8")
    data = DataConfig(train=str(tmp_path / "train.tsv"), test=str(tmp_path / "test.tsv"))
    found = trivial_scores(build_task(TaskRef(kind="files"), data), "test")
    assert found["majority"]["exact_match"] == 1 / 4
    assert found["copy"]["exact_match"] == 2 / 4
    # Tokens and ends: 3 of 3, 2 of 2, 1 of 2 (the end), 1 of 3.
    assert found["copy"]["token_accuracy_free"] == pytest.approx(7 / 10)
    assert set(trivial_scores(build_task(TaskRef(kind="files"), data), "test", ["second_word"])["copy"]) == {
        "second_word"
    }
