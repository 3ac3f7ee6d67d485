"""What a resumed run may change, what is recorded of it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import StopAt, last_checkpoint, records, tiny_recipe, weights

from ostinato.config.recipe import Recipe
from ostinato.errors import CheckpointError
from ostinato.experiments.sweep.run_key import key_of_run
from ostinato.tasks.recipes import load_recipe
from ostinato.training import Reporter, train


class _Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[tuple[int, str]] = []

    def on_note(self, update: int, message: str) -> None:
        self.notes.append((update, message))


def _files(run: Path) -> dict[Path, bytes]:
    """Return the content of a run's files, but for those of its lock."""
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file() and not path.name.startswith(".lock")}


def _changes(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "changes.jsonl").read_text(encoding="utf-8").splitlines()]


def _measuring(recipe: Recipe, **changes: Any) -> Recipe:
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=changes)})


@pytest.mark.slow
def test_a_finished_run_that_is_extended_ends_like_one_that_was_as_long_from_the_start(tmp_path: Path) -> None:
    first = train(tiny_recipe(tmp_path), tmp_path / "run")
    key = key_of_run(tmp_path / "run")
    reporter = _Notes()
    results = train(tiny_recipe(tmp_path, n_updates=24), tmp_path / "run", resume=True, reporter=reporter)
    train(tiny_recipe(tmp_path, n_updates=24), tmp_path / "long")
    assert (first["n_updates"], results["n_updates"]) == (12, 24)
    assert weights(tmp_path / "run") == weights(tmp_path / "long")
    for name in ("metrics.jsonl", "recipe.yaml", "data.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "long" / name).read_bytes(), name
    [line] = _changes(tmp_path / "run")
    assert (line["update"], line["changes"]) == (12, {"training.n_updates": {"from": 12, "to": 24}})
    assert not (tmp_path / "long" / "changes.jsonl").exists()
    assert (12, "changed: training.n_updates from 12 to 24") in reporter.notes
    # What the shorter run found is kept, and neither is the other under its content address.
    assert json.loads((tmp_path / "run" / "results-1.json").read_text()) == first
    assert len({key, key_of_run(tmp_path / "run"), key_of_run(tmp_path / "long")}) == 3


def test_an_extended_run_that_is_killed_goes_on_without_naming_the_change_again(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path, n_updates=24), tmp_path / "run", resume=True, reporter=StopAt(16))
    assert not (tmp_path / "run" / "results.json").exists()
    results = train(load_recipe(tmp_path / "run"), tmp_path / "run", resume=True)
    assert results["n_updates"] == 24
    assert len(_changes(tmp_path / "run")) == 1


def test_a_run_whose_examples_were_moved_goes_on_and_other_examples_are_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path), tmp_path / "run", reporter=StopAt(12))
    moved, data = tmp_path / "moved", load_recipe(tmp_path / "run").data
    moved.mkdir()
    places = []
    for split in ("train", "dev", "test"):
        file = Path(str(getattr(data, split))).rename(moved / f"{split}.jsonl")
        places.append(f"data.{split}={file}")
    recipe = load_recipe(tmp_path / "run", places)
    kept = (moved / "train.jsonl").read_bytes()
    (moved / "train.jsonl").write_bytes(kept.splitlines(keepends=True)[0] * 2)
    with pytest.raises(CheckpointError, match="the examples of 'train' are not those the run was started with"):
        train(recipe, tmp_path / "run", resume=True)
    (moved / "train.jsonl").write_bytes(kept)
    assert train(recipe, tmp_path / "run", resume=True)["n_updates"] == 12
    assert not (tmp_path / "run" / "changes.jsonl").exists()


def test_a_run_is_shortened_to_the_update_it_stands_at_and_evaluated_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path), tmp_path / "run", reporter=StopAt(12))
    assert last_checkpoint(tmp_path / "run").name == "update-000009"
    results = train(tiny_recipe(tmp_path, n_updates=9), tmp_path / "run", resume=True)
    assert results["n_updates"] == 9
    assert [record["update"] for record in records(tmp_path / "run", "evaluation")] == [6, 9]
    assert results["best_update"] in (6, 9)
    assert _changes(tmp_path / "run")[0]["changes"] == {"training.n_updates": {"from": 12, "to": 9}}
    # Evaluated once, however often it is resumed.
    (tmp_path / "run" / "results.json").unlink()
    again = train(load_recipe(tmp_path / "run"), tmp_path / "run", resume=True)
    assert again["splits"]["test"]["loss"] == results["splits"]["test"]["loss"]
    assert [record["update"] for record in records(tmp_path / "run", "evaluation")] == [6, 9]


def test_a_run_cannot_become_shorter_than_it_is(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path), tmp_path / "run")
    files = _files(tmp_path / "run")
    with pytest.raises(CheckpointError) as error:
        train(tiny_recipe(tmp_path, n_updates=11), tmp_path / "run", resume=True)
    assert str(error.value).endswith(
        "--resume cannot change training.n_updates: 12 in the run, 11 now; 12 updates are done"
    )
    assert _files(tmp_path / "run") == files


def test_a_finished_run_notes_how_many_checkpoints_are_to_stay_and_deletes_none(tmp_path: Path) -> None:
    first = train(tiny_recipe(tmp_path, keep_best=2, keep_last=2), tmp_path / "run")
    kept, notes = sorted((tmp_path / "run" / "checkpoints").iterdir()), []
    for keep in ({"keep_best": 1, "keep_last": 2}, {"keep_best": 1, "keep_last": 2}):
        reporter = _Notes()
        assert train(tiny_recipe(tmp_path, **keep), tmp_path / "run", resume=True, reporter=reporter) == first
        notes.append(reporter.notes)
    note = (
        "training.keep_last and keep_best change nothing of a finished run, unless training.n_updates makes it longer "
        "(where its schedule is constant or inverse_sqrt)"
    )
    assert notes == [[(12, note)], [(12, note)]]
    assert sorted((tmp_path / "run" / "checkpoints").iterdir()) == kept
    assert load_recipe(tmp_path / "run").training.keep_best == 2  # what it did keep
    assert not (tmp_path / "run" / "changes.jsonl").exists()


def test_a_mean_of_checkpoints_that_were_not_kept_is_refused_before_the_run_goes_on(tmp_path: Path) -> None:
    def mean_of_three(n_updates: int) -> Recipe:
        # From update 12 on: evaluations at 15 and, the last one, 16.
        recipe = tiny_recipe(tmp_path, n_updates=n_updates, keep_best=3, evaluate_every=5)
        return _measuring(recipe, checkpoint="best:3")

    train(tiny_recipe(tmp_path), tmp_path / "run")
    with pytest.raises(CheckpointError) as error:
        train(mean_of_three(12), tmp_path / "run", resume=True)
    assert str(error.value).endswith(
        "--resume cannot change evaluation.checkpoint: 'best' in the run, 'best:3' now; the run kept 1 "
        "(training.keep_best), and at most 0 follow"
    )
    assert len(train(mean_of_three(16), tmp_path / "run", resume=True)["mean_of"]) == 3


def test_a_mean_of_the_last_checkpoints_that_were_not_kept_is_refused_too(tmp_path: Path) -> None:
    def mean_of_three(n_updates: int) -> Recipe:
        return _measuring(tiny_recipe(tmp_path, n_updates=n_updates, keep_last=3, save_every=3), checkpoint="last:3")

    train(tiny_recipe(tmp_path, save_every=3), tmp_path / "run")
    files = _files(tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"the run kept [12] \(training.keep_last\), and at most 0 follow"):
        train(mean_of_three(12), tmp_path / "run", resume=True)
    assert _files(tmp_path / "run") == files
    assert len(train(mean_of_three(18), tmp_path / "run", resume=True)["mean_of"]) == 3


def test_a_finished_run_gives_its_results_whatever_became_of_its_records(tmp_path: Path) -> None:
    results = train(tiny_recipe(tmp_path), tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()
    assert train(tiny_recipe(tmp_path), tmp_path / "run", resume=True) == results
    with pytest.raises(CheckpointError, match="has 0 bytes, but the last checkpoint was saved at"):
        train(tiny_recipe(tmp_path, n_updates=24), tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "results.json").is_file()


def test_a_run_that_is_shortened_to_where_it_stands_records_what_it_did_last(tmp_path: Path) -> None:
    class Stopping(Reporter):
        def on_save(self, update: int, directory: Path) -> None:
            if update == 7:
                raise KeyboardInterrupt

    steps = {"log_every": 5, "save_every": 7, "evaluate_every": 20}
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path, **steps), tmp_path / "run", reporter=Stopping())
    train(tiny_recipe(tmp_path, **steps, n_updates=7), tmp_path / "run", resume=True)
    logged = records(tmp_path / "run", "training")
    assert [(record["update"], record["n_labels"] > 0) for record in logged] == [(5, True), (7, True)]


@pytest.mark.slow
def test_a_finished_run_is_measured_anew_on_another_split_and_by_another_column(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    first = train(recipe, tmp_path / "run")
    results = train(_measuring(recipe, splits=["dev", "test"], by=[]), tmp_path / "run", resume=True)
    assert (list(first["splits"]), list(results["splits"])) == (["test"], ["dev", "test"])
    assert results["splits"]["test"]["loss"] == first["splits"]["test"]["loss"]
    assert results["splits"]["test"]["by"] == {}
    assert load_recipe(tmp_path / "run").evaluation.splits == ["dev", "test"]
    assert set(_changes(tmp_path / "run")[0]["changes"]) == {"evaluation.splits", "evaluation.by"}


@pytest.mark.slow
def test_a_split_that_a_resumed_run_measures_for_the_first_time_gets_its_hash(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    train(_measuring(recipe, splits=["dev"]), tmp_path / "run")
    results = train(recipe, tmp_path / "run", resume=True)
    train(recipe, tmp_path / "both")
    hashes = [json.loads((tmp_path / name / "data.json").read_text())["splits"] for name in ("run", "both")]
    assert hashes[0] == hashes[1]
    assert list(hashes[0]) == ["train", "dev", "test"]
    assert results["data_sha256"] == {split: found["sha256"] for split, found in hashes[0].items()}


@pytest.mark.slow
def test_a_run_that_lost_patience_goes_on_with_more_of_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "n_updates": 40,
        "evaluate_every": 2,
        "optimizer": {"lr": 0.9},
        "schedule": {"kind": "constant", "warmup": 40},
    }
    short = train(tiny_recipe(tmp_path, **settings, selection={"patience": 3}), tmp_path / "run")
    assert short["stopped"] == "no better loss in 3 evaluations"
    longer = train(tiny_recipe(tmp_path, **settings, selection={"patience": 4}), tmp_path / "run", resume=True)
    assert longer["n_updates"] > short["n_updates"]
    whole = train(tiny_recipe(tmp_path, **settings, selection={"patience": 4}), tmp_path / "whole")
    assert longer["n_updates"] == whole["n_updates"]
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


@pytest.mark.slow
def test_a_schedule_may_change_where_it_was_the_same_up_to_now(tmp_path: Path) -> None:
    schedule = {"kind": "inverse_sqrt", "warmup": 6}
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path, schedule=schedule), tmp_path / "run", reporter=StopAt(4))
    assert last_checkpoint(tmp_path / "run").name == "update-000003"
    linear = tiny_recipe(tmp_path, schedule={"kind": "linear", "warmup": 6})  # the warm-up is the same
    train(linear, tmp_path / "run", resume=True)
    train(linear, tmp_path / "whole")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert _changes(tmp_path / "run")[0]["update"] == 3


def test_a_schedule_or_length_that_past_updates_contradict_is_refused_by_name(tmp_path: Path) -> None:
    cosine = {"kind": "cosine", "warmup": 4}
    train(tiny_recipe(tmp_path, schedule=cosine), tmp_path / "run")
    with pytest.raises(CheckpointError) as error:
        train(tiny_recipe(tmp_path, schedule=cosine, n_updates=24), tmp_path / "run", resume=True)
    [line] = str(error.value).splitlines()
    assert line.endswith(
        "cannot change training.n_updates: 12 in the run, 24 now; "
        "update 5, which is done, would have had another learning rate"
    )
    with pytest.raises(CheckpointError) as error:
        train(tiny_recipe(tmp_path, schedule=cosine | {"warmup": 3}), tmp_path / "run", resume=True)
    [line] = str(error.value).splitlines()
    assert "cannot change training.schedule.warmup: 4 in the run, 3 now; update 1" in line


def test_a_run_that_ran_out_of_memory_in_an_evaluation_goes_on_with_smaller_ones(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path), tmp_path / "run")
    smaller = tiny_recipe(tmp_path, n_updates=16)
    smaller = smaller.model_copy(update={"data": smaller.data.model_copy(update={"eval_tokens_per_batch": 24})})
    assert train(smaller, tmp_path / "run", resume=True)["n_updates"] == 16


def test_a_run_without_updates_is_evaluated_once(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path, n_updates=0), tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    recipe = tiny_recipe(tmp_path, n_updates=0)
    fewer = recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"max_examples": 2})})
    train(fewer, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_every_other_setting_stays_refused_with_a_line_that_names_it(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path), tmp_path / "run")
    other = tiny_recipe(tmp_path, n_updates=24, label_smoothing=0.2, accumulate=1)
    with pytest.raises(CheckpointError) as error:
        train(other, tmp_path / "run", resume=True)
    lines = str(error.value).splitlines()
    assert [line.partition("cannot change ")[2] for line in lines] == [
        "training.label_smoothing: 0.1 in the run, 0.2 now",
        "training.accumulate: 2 in the run, 1 now",
    ]
