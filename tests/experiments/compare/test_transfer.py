from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.config.load import check_recipe, dump_recipe
from ostinato.errors import CheckpointError, DataError
from ostinato.experiments.compare.transfer import transfer


def _run(folder: Path, seed: int, scores: dict[str, float], lr: float = 1e-3, start: Path | None = None) -> Path:
    folder.mkdir()
    training = {"init_from": str(start or folder / "none"), "optimizer": {"lr": lr}}
    recipe = check_recipe({"name": folder.name, "seed": seed, "task": {"kind": "scan"}, "training": training})
    dump_recipe(recipe, folder / "recipe.yaml")
    (folder / "data.json").write_text(json.dumps({"splits": {"test": {"sha256": "same"}}}))
    by = {language: {"n": 10, "accuracy": value} for language, value in scores.items()}
    results: dict[str, Any] = {"name": folder.name, "seed": seed, "splits": {"test": {"by": {"lang": by}}}}
    (folder / "results.json").write_text(json.dumps(results))
    return folder


def test_languages_are_averaged_before_seeds(tmp_path: Path) -> None:
    first = _run(tmp_path / "1", 1, {"de": 0.5, "ko": 0.3})
    second = _run(tmp_path / "2", 2, {"de": 0.7, "ko": 0.5})
    found = transfer([first, second], "test", "accuracy", "lang")
    assert found["by"] == pytest.approx({"de": 0.6, "ko": 0.4})
    assert list(found["runs"].values()) == pytest.approx([0.4, 0.6])
    assert found["mean"] == pytest.approx(0.5)
    assert found["sd"] == pytest.approx(0.02**0.5)
    assert found["seeds"] == [1, 2]
    assert transfer([first], "test", "accuracy", "lang")["sd"] is None


def test_the_accuracy_of_a_ranking_is_averaged_like_other_scores(tmp_path: Path) -> None:
    runs = [_run(tmp_path / str(seed), seed, {"0": 0.5, "1": 0.5}) for seed in (1, 2)]
    for run, right in zip(runs, (0.75, 0.25), strict=True):
        results = json.loads((run / "results.json").read_text())
        by = {"lang": {"0": {"n": 4, "accuracy": 1.0}, "1": {"n": 4, "accuracy": right}}}
        results["splits"]["test"]["ranking"] = {"n": 8, "accuracy": (1 + right) / 2, "by": by}
        (run / "results.json").write_text(json.dumps(results))
    found = transfer(runs, "test", "ranking", "lang")
    assert found["by"] == {"0": 1.0, "1": 0.5}
    assert found["mean"] == 0.75
    with pytest.raises(DataError, match="no 'ranking' among its scores"):
        transfer([_run(tmp_path / "3", 3, {"0": 0.5})], "test", "ranking", "lang")


@pytest.mark.slow
def test_runs_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first = _run(tmp_path / "1", 1, {"de": 0.5})
    with pytest.raises(DataError, match="has the languages de, ko"):
        transfer([first, _run(tmp_path / "2", 2, {"de": 0.5, "ko": 0.5})], "test", "accuracy", "lang")
    with pytest.raises(DataError, match=r"differ in more than their seeds: training.optimizer.lr \(0.002, 0.001\)$"):
        transfer([first, _run(tmp_path / "3", 2, {"de": 0.5}, lr=2e-3)], "test", "accuracy", "lang")
    from_one, from_other = (_run(tmp_path / name, 9, {}, lr) for name, lr in (("a", 1e-3), ("b", 5e-3)))
    started = [_run(tmp_path / f"{i}{i}", i, {"de": 0.5}, start=one) for i, one in enumerate((from_one, from_other))]
    with pytest.raises(DataError, match=r"more than their seeds: start: training\.optimizer\.lr \(0\.005, 0\.001\)$"):
        transfer(started, "test", "accuracy", "lang")
    (tmp_path / "5").mkdir()
    other = _run(tmp_path / "5" / "5", 5, {"de": 0.5})
    (other / "data.json").write_text(json.dumps({"splits": {"test": {"sha256": "other"}}}))
    with pytest.raises(DataError, match=r"more than their seeds: data of test \(other, same\)$"):
        transfer([first, other], "test", "accuracy", "lang")
    with pytest.raises(DataError, match="a run is named twice, and counts once only"):
        transfer([first, first], "test", "accuracy", "lang")
    with pytest.raises(DataError, match=r"seeds of the runs are \[1, 1\]"):
        transfer([first, _run(tmp_path / "4", 1, {"de": 0.5})], "test", "accuracy", "lang")
    with pytest.raises(DataError, match="no 'f1' among its scores"):
        transfer([first], "test", "f1", "lang")
    with pytest.raises(CheckpointError, match="not finished"):
        transfer([tmp_path], "test", "accuracy", "lang")


@pytest.mark.parametrize("value", [None, {"full": 2.0, "realised": 1.0}, "a signature"])
def test_what_is_no_number_is_refused(tmp_path: Path, value: Any) -> None:
    run = _run(tmp_path / "1", 1, {"de": 0.5, "ko": value})
    with pytest.raises(DataError, match=r"1: accuracy of ko is no number that could be averaged \(test\)$"):
        transfer([run], "test", "accuracy", "lang")
