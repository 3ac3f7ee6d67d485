from __future__ import annotations

import json
import os
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import SIZES, tiny_recipe

import ostinato
from ostinato.config.load import check_recipe, dump_recipe
from ostinato.config.recipe import Recipe
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.training.prepare import prepare
from ostinato.training.records import Records
from ostinato.training.reporter import Reporter
from ostinato.training.rundir import RunDirectory, versions, with_absolute_paths


def test_a_prepared_run_directory_says_what_the_run_is(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    assert run.open(resume=False) is False
    prepared = prepare(tiny_recipe(tmp_path), run, False, None)
    assert sorted(path.name for path in run.path.iterdir()) == [
        ".lock",
        ".lock.json",
        "data.json",
        "recipe.yaml",
        "tokenizers",
        "versions.json",
    ]
    written = load_recipe(run.path)
    assert written == prepared.recipe
    size = prepared.tokenizers.target.vocab_size
    assert (written.model.model_dump()["source_vocab_size"], size) == (size, 4 + len("abcdef"))
    data = json.loads((run.path / "data.json").read_text())
    assert {split: entry["n"] for split, entry in data["splits"].items()} == SIZES
    assert [Path(entry["path"]).name for entry in data["files"]] == ["train.jsonl", "dev.jsonl", "test.jsonl"]
    assert all(len(entry["sha256"]) == 64 for entry in [*data["files"], *data["splits"].values()])
    assert run.open(resume=True) is True


def test_versions_name_the_package_and_its_libraries() -> None:
    found = versions()
    assert found["ostinato"] == ostinato.__version__
    assert found["torch"].startswith("2.")
    assert found["numpy"] is not None
    assert found["platform"]


def test_relative_paths_of_data_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = recipe.model_dump(mode="json")
    settings["data"] |= {split: os.path.basename(settings["data"][split]) for split in ("train", "dev", "test")}  # noqa: PTH119
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    prepared = prepare(check_recipe(settings), run, False, None)
    assert prepared.recipe.data.train == str(tmp_path / "train.jsonl")


def test_relative_paths_of_data_sets_become_absolute_and_names_of_a_hub_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    settings = tiny_recipe(tmp_path).model_dump(mode="json")
    settings["data"]["train"] = {"hf": "saved", "split": "train"}
    settings["data"]["test"] = {"one": {"hf": "owner/name", "split": "test"}, "other": ["a.jsonl", "b.jsonl"]}
    found = with_absolute_paths(check_recipe(settings)).data.model_dump(mode="json")
    assert found["train"]["hf"] == str(tmp_path / "saved")
    assert found["test"]["one"]["hf"] == "owner/name"
    assert found["test"]["other"] == [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]
    # Runs of earlier versions have it as it was given, and go on.
    run = RunDirectory(tmp_path / "run")
    run.path.mkdir()
    now = with_absolute_paths(check_recipe(settings))
    stored = now.model_dump(mode="json")
    stored["data"]["train"]["hf"] = "saved"
    dump_recipe(check_recipe(stored), run.path / "recipe.yaml")
    assert run.changes_to(now) == {}


def test_an_existing_run_is_not_overwritten(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    prepare(tiny_recipe(tmp_path), run, False, None)
    with pytest.raises(CheckpointError, match=r"run already holds a run: go on with --resume"):
        run.open(resume=False)


def test_a_directory_without_a_recipe_is_not_a_run_yet(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".partial-recipe.yaml").write_text("half")
    assert run.open(resume=False) is False
    run.claim()
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", ".lock.json"]


FOREIGN = ["data.json", "versions.json", "metrics.jsonl", "timings.jsonl", "results.json", "changes.jsonl"]


@pytest.mark.parametrize("name", [*FOREIGN, "tokenizers/mine.json", "checkpoints/mine"])
@pytest.mark.parametrize("resume", [False, True])
def test_a_new_run_replaces_nothing_that_is_there(tmp_path: Path, name: str, resume: bool) -> None:
    run, mine = RunDirectory(tmp_path / "run"), tmp_path / "run" / name
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    expected = rf"run: holds {name.partition('/')[0]} and no recipe\.yaml, and nothing is overwritten"
    with pytest.raises(CheckpointError, match=expected):
        run.open(resume)
    with pytest.raises(CheckpointError, match=expected):
        prepare(tiny_recipe(tmp_path), run, False, None)  # it has come meanwhile
    assert mine.read_text() == "mine"
    assert [path for path in run.path.rglob("*") if path.is_file()] == [mine]


def test_a_new_run_is_not_begun_among_the_remains_of_another(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path), tmp_path / "run")
    (tmp_path / "run" / "recipe.yaml").unlink()
    there = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    for resume in (False, True):
        with pytest.raises(
            CheckpointError, match=r"holds checkpoints, metrics\.jsonl, timings\.jsonl, results\.json and"
        ):
            train(tiny_recipe(tmp_path), tmp_path / "run", resume=resume)
    assert there == {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}


def test_what_a_run_left_that_was_killed_before_it_had_a_recipe_is_replaced(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    prepare(tiny_recipe(tmp_path), run, False, None)
    run.close()
    (run.path / "recipe.yaml").unlink()
    assert run.open(resume=True) is False
    prepare(tiny_recipe(tmp_path), run, False, None)
    assert run.exists


def test_one_process_at_a_time_is_at_work_on_a_run_and_the_others_are_told_which(tmp_path: Path) -> None:
    run, other = RunDirectory(tmp_path / "run"), RunDirectory(tmp_path / "run")
    assert run.open(resume=False) is other.open(resume=False) is False
    prepare(tiny_recipe(tmp_path), run, False, None)
    holder = rf"run: process {os.getpid()} on .* \(since 20\d\d-.*\) is at work on this run"
    for attempt in (other.claim, lambda: other.open(resume=True)):
        with pytest.raises(CheckpointError, match=holder):
            attempt()
    with pytest.raises(CheckpointError, match=holder):
        train(tiny_recipe(tmp_path), tmp_path / "run", resume=True)
    run.close()
    with pytest.raises(CheckpointError, match="already holds a run"):
        other.claim()
    assert other.open(resume=True) is True


def test_an_error_gives_the_lock_back(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path, n_updates=1), tmp_path / "run")
    with pytest.raises(CheckpointError, match="cannot change"):
        train(tiny_recipe(tmp_path, n_updates=1, clip_norm=0.5), tmp_path / "run", resume=True)
    assert train(tiny_recipe(tmp_path, n_updates=1), tmp_path / "run", resume=True)["n_updates"] == 1


@pytest.mark.parametrize("what", ["n_threads: 2", "lr: 0.02"])
def test_a_recipe_that_was_edited_after_the_run_began_is_refused(tmp_path: Path, what: str) -> None:
    train(tiny_recipe(tmp_path, n_updates=2), tmp_path / "run")
    file = tmp_path / "run" / "recipe.yaml"
    written = file.read_text(encoding="utf-8")
    file.write_text(re.sub(rf"{what.split(':')[0]}: \S+", what, written), encoding="utf-8")
    assert file.read_text(encoding="utf-8") != written
    with pytest.raises(CheckpointError, match=r"recipe.yaml was edited after the run began"):
        train(load_recipe(tmp_path / "run"), tmp_path / "run", resume=True)
    file.write_text(written.partition("\n")[2], encoding="utf-8")  # as earlier versions wrote it
    assert train(load_recipe(tmp_path / "run"), tmp_path / "run", resume=True)["n_updates"] == 2


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(CheckpointError, match="is a file"):
        RunDirectory(tmp_path / "run").open(resume=False)


def test_resuming_with_another_recipe_names_every_setting_that_differs(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    prepare(tiny_recipe(tmp_path), run, False, None)
    other = tiny_recipe(tmp_path, accumulate=3, optimizer={"lr": 0.02, "weight_decay": 0.01})
    with pytest.raises(CheckpointError) as error:
        prepare(other, run, True, None)
    first, second = str(error.value).splitlines()
    assert first.endswith("training.optimizer.lr: 0.01 in the run, 0.02 now")
    assert second.endswith("training.accumulate: 2 in the run, 3 now")


def test_resuming_on_other_threads_with_another_description_or_keeping_more_is_allowed(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    prepare(tiny_recipe(tmp_path), run, False, None)
    other = tiny_recipe(tmp_path, n_threads=2, keep_best=3, keep_last=2).model_copy(update={"description": "words"})
    assert prepare(other, run, True, None).recipe.training.n_threads == 2
    # How many stay holds from then on, and is no change of what the run is.
    stored = load_recipe(run.path)
    kept = (stored.training.keep_best, stored.training.keep_last)
    assert (kept, stored.training.n_threads, stored.description) == ((3, 2), 1, "")
    assert run.recorded_changes() == []
    assert run.changes_to(stored) == {}


def test_resuming_on_changed_data_is_refused(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    recipe = tiny_recipe(tmp_path)
    prepare(recipe, run, False, None)
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    with pytest.raises(CheckpointError, match="examples of 'train' are not those the run was started with"):
        prepare(recipe, run, True, None)


def _refused(tmp_path: Path, **changes: object) -> list[str]:
    recipe = tiny_recipe(tmp_path)
    settings = recipe.model_dump(mode="json")
    for path, value in changes.items():
        *parents, last = path.split("__")
        node = settings
        for key in parents:
            node = node[key]
        node[last] = value
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    with pytest.raises(ConfigError) as error:
        prepare(check_recipe(settings), run, False, None)
    assert not run.exists
    return str(error.value).splitlines()


def test_settings_that_do_not_fit_the_task_are_reported_together(tmp_path: Path) -> None:
    lines = _refused(
        tmp_path,
        training__selection={"split": "validation", "metric": "exact_mach"},
        evaluation__splits=["test", "gen"],
        evaluation__metrics=["blue"],
        task__model_kind="language_model",
    )
    beginnings = [line.split(" is ")[0] for line in lines]
    assert beginnings == [
        "model.kind",
        "training.selection.split",
        "evaluation.splits",
        "training.selection.metric",
        "evaluation.metrics",
    ]
    assert "train, dev, test" in lines[1]
    assert "exact_match" in lines[3]


@pytest.mark.parametrize(("metric", "mode", "right"), [("exact_match", "min", "max"), ("loss", "max", "min")])
def test_a_selection_that_would_keep_the_worst_model_is_refused(
    tmp_path: Path, metric: str, mode: str, right: str
) -> None:
    (line,) = _refused(tmp_path, training__selection={"metric": metric, "mode": mode})
    assert line.startswith(f"training.selection.mode is {mode!r}: must be {right!r}")


def test_a_vocabulary_size_other_than_the_tokenizers_is_refused(tmp_path: Path) -> None:
    (line,) = _refused(tmp_path, model__target_vocab_size=9)
    assert line.startswith("model.target_vocab_size is 9: the data gives 10")


def test_an_empty_split_is_found_before_training(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    (tmp_path / "test.jsonl").write_text("")
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    with pytest.raises(DataError, match="test"):
        prepare(recipe, run, False, None)


def test_records_are_cut_back_to_what_a_checkpoint_knows_of(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.flush() == (0, sha256().hexdigest())
    records.add({"kind": "training", "update": 1, "loss": float("nan")}, {"seconds": 0.5})
    known, digest = records.flush()
    assert digest == sha256(records.metrics.read_bytes()).hexdigest()
    records.add({"kind": "training", "update": 2, "loss": 1.5}, {"seconds": 0.5})
    records.cut(known)
    assert records.metrics.read_text() == '{"kind": "training", "update": 1, "loss": null}\n'
    assert len(records.timings.read_text().splitlines()) == 2
    with pytest.raises(CheckpointError, match=rf"has {known} bytes, but the last checkpoint was saved at 999"):
        records.cut(999)
    records.add({"kind": "training", "update": 2, "loss": 0.5}, {"seconds": 0.5})
    again = Records(tmp_path)
    again.cut(known, digest)
    again.add({"kind": "training", "update": 2, "loss": 0.5}, {"seconds": 0.5})
    assert again.flush()[1] == sha256(again.metrics.read_bytes()).hexdigest()


def test_the_last_evaluation_is_found_by_lines_of_which_those_of_updates_are_not_parsed(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.last_evaluation() == 0
    records.add({"kind": "evaluation", "update": 1}, {})
    records.metrics.write_bytes(records.metrics.read_bytes() + b'{"kind": "training", "update": 2, "load": [0.5, ...\n')
    known = records.metrics.stat().st_size
    records.add({"kind": "evaluation", "update": 3}, {})
    assert [records.last_evaluation(n) for n in (-1, known, 0)] == [3, 1, 0]
    with records.metrics.open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl: is damaged: KeyError\('kind'\)"):
        records.last_evaluation()


def test_a_run_whose_metrics_are_not_those_it_wrote_is_not_resumed(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path, n_updates=6), tmp_path / "run")
    file = tmp_path / "run" / "metrics.jsonl"
    written = file.read_bytes()
    file.write_bytes(bytes(len(written)))
    with pytest.raises(CheckpointError, match=r"metrics.jsonl: not the file that was written"):
        train(tiny_recipe(tmp_path, n_updates=9), tmp_path / "run", resume=True)
    file.write_bytes(written)
    assert train(tiny_recipe(tmp_path, n_updates=9), tmp_path / "run", resume=True)["n_updates"] == 9


@pytest.mark.parametrize("name", ["metrics.jsonl", "timings.jsonl"])
def test_what_a_run_would_cut_and_append_to_through_a_link_is_refused(tmp_path: Path, name: str) -> None:
    train(tiny_recipe(tmp_path, n_updates=6), tmp_path / "run")
    log, mine = tmp_path / "run" / name, tmp_path / "mine.txt"
    mine.write_bytes(log.read_bytes() + b"mine")
    for is_there in (True, False):
        log.unlink()
        log.symlink_to(mine if is_there else tmp_path / "nowhere")
        with pytest.raises(CheckpointError, match=rf"{name}: is a link: put the file itself there to go on"):
            train(tiny_recipe(tmp_path, n_updates=9), tmp_path / "run", resume=True)
        assert mine.read_bytes().endswith(b"mine")
        assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_split_that_is_written_while_the_run_trains_is_not_scored(tmp_path: Path, split: str) -> None:
    recipe = tiny_recipe(tmp_path / "data", n_updates=6)
    path = Path(str(getattr(recipe.data, split)))
    before = path.read_bytes()

    class Writes(Reporter):
        def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
            path.write_bytes(before.splitlines(keepends=True)[0] * 10)

    with pytest.raises(CheckpointError, match=f"examples of '{split}' are not those the run was started with"):
        train(recipe, tmp_path / "run", reporter=Writes())
    path.write_bytes(before)
    assert train(recipe, tmp_path / "run", resume=True)["n_updates"] == 6
