from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ostinato.errors import ConfigError, DataError
from ostinato.evaluation.loading import load
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.schedule import run_sweep
from ostinato.viewer.chosen import ChosenRun, choose_runs

SMALL = [
    *("task.n_train=60", "task.n_eval=12", "training.device=cpu", "training.n_updates=2", "decoding.max_length=4"),
    *("model.d_model=16", "model.encoder.n_steps=1", "model.decoder.n_steps=1"),
]


def write_sweep(folder: Path) -> Path:
    """Write a sweep of two arms."""
    arms = [{"name": "base"}, {"name": "slow", "set": {"training.optimizer.lr": 1e-4}}]
    measures = [{"name": "loss", "kind": "result", "split": "test", "path": "loss"}]
    settings = {"recipe": "digits/transformer", "overrides": SMALL, "seeds": [1], "arms": arms, "measures": measures}
    (folder / "two.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    return folder / "two.yaml"


def test_directories_of_one_name_have_names_of_their_own(tmp_path: Path) -> None:
    given = [str(tmp_path / part / "x") for part in ("a", "b", "c")]
    found = choose_runs(given, tmp_path)
    assert found == [ChosenRun(name, Path(path)) for name, path in zip(("x", "x-2", "x-3"), given, strict=True)]


def test_the_runs_of_a_sweep_are_named_by_arm_and_seed_whether_or_not_they_have_begun(tmp_path: Path) -> None:
    path = str(write_sweep(tmp_path))
    found = choose_runs([path], tmp_path / "store")
    assert [(run.name, run.n_updates) for run in found] == [("base, seed 1", 2), ("slow, seed 1", 2)]
    with pytest.raises(
        DataError, match=r"two.yaml: no run of it is finished in .*: ostinato sweep .* --store '.*/my store'"
    ):
        choose_runs([path], tmp_path / "my store", finished=True)
    with pytest.raises(ConfigError, match="there is no such file"):
        choose_runs([str(tmp_path / "three.yaml")], tmp_path)


def test_the_rows_of_a_sweep_are_not_read_as_its_file(tmp_path: Path) -> None:
    rows = tmp_path / "results.jsonl"
    for written in ("", '{"sweep": "two", "arm": "base", "values": {}}\n'):
        rows.write_text(written, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"results\.jsonl holds rows alone: give the sweep's file or name"):
            choose_runs([str(rows)], tmp_path)


@pytest.mark.slow
def test_of_a_sweep_that_was_trained_the_finished_runs_are_looked_into(tmp_path: Path) -> None:
    path, store = write_sweep(tmp_path), tmp_path / "store"
    run_sweep(load_sweep(path), store)
    (store / choose_runs([str(path)], store)[1].directory.name / "results.json").unlink()
    (only,) = choose_runs([str(path)], store, finished=True)
    assert only.name == "base, seed 1"
    assert load(only.directory, device="cpu").recipe.training.n_updates == 2
