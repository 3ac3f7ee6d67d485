"""Learning curves from the records of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.analysis import learning_curves
from ostinato.errors import DataError


def write(path: Path, records: list[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def test_records_become_lines_by_update(tmp_path: Path) -> None:
    depth = {"encoder": {"mean": 3.5, "expected": 2.0}}
    records = [
        {"kind": "training", "update": 10, "loss": 3.0, "nll": 2.5, "depth": depth},
        {"kind": "evaluation", "update": 10, "split": "dev", "is_best": True, "scores": {"n": 4, "loss": 2.0}},
        {"kind": "training", "update": 20, "loss": 3.0, "nll": None},
        {"kind": "evaluation", "update": 20, "split": "dev", "is_best": True, "scores": {"n": 4, "loss": 1.0}},
        {"kind": "something new", "update": 30},
    ]
    found = learning_curves(write(tmp_path / "metrics.jsonl", records))
    assert found.training == [(10, 2.5)]
    assert found.scores == {"dev": {"loss": [(10, 2.0), (20, 1.0)]}}
    assert found.depth == {"encoder": [(10, 3.5)]}


def test_what_is_no_record_is_named_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", [{"kind": "training", "update": 1, "nll": 1.0}, ["no record"]])
    with pytest.raises(DataError, match=r"metrics.jsonl, line 2: a JSON array, but every line needs an object"):
        learning_curves(path)


def test_an_update_that_no_run_has_is_named_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "metrics.jsonl", [{"kind": "training", "update": 1e308, "nll": 1.0}])
    with pytest.raises(DataError, match=r"metrics.jsonl, line 1: is damaged: .*update must be in"):
        learning_curves(path)
