from __future__ import annotations

import errno
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tiny_sweeps import LONGER, LOSS, SEEN, SMALL, TIME, Recorder, stamps, tiny

from ostinato.budget import Assumptions, count_macs
from ostinato.budget.compare import check_match
from ostinato.config.files import shipped_files
from ostinato.config.recipe import Recipe
from ostinato.config.sweep import SweepConfig
from ostinato.config.training import TrainingConfig
from ostinato.errors import ConfigError, DataError
from ostinato.experiments.compare.plans import plan_recipes
from ostinato.experiments.sweep import executors, measures
from ostinato.experiments.sweep import rows as rows_module
from ostinato.experiments.sweep.example_intervals import example_differences
from ostinato.experiments.sweep.files import arm_recipe, load_sweep
from ostinato.experiments.sweep.rows import SweepResults, read_sweep, results_folder
from ostinato.experiments.sweep.runs import arm_budgets, check_equal, plan_runs
from ostinato.experiments.sweep.schedule import SweepError, run_sweep, sweep_rows
from ostinato.experiments.sweep.watch import LinesWatcher
from ostinato.tasks import vocabulary
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train


def test_every_arm_and_seed_is_one_row_and_is_trained_once(tmp_path: Path) -> None:
    sweep = tiny(measures=[LOSS, TIME, LONGER, LOSS | {"name": "all", "path": "by.length_bucket.*.loss"}])
    watcher = Recorder()
    rows = run_sweep(sweep, tmp_path, watcher=watcher)
    order = [("base", 1), ("base", 2), ("slow", 1), ("slow", 2)]
    assert [(row["arm"], row["seed"]) for row in rows] == order
    assert watcher.results == [(f"{arm}, seed {seed}", "done") for arm, seed in order]
    kinds = [event.kind for event in watcher.events if event.name == "slow, seed 2"]
    assert kinds == ["start", "update", "update", "update", "evaluation", "end"]
    results = json.loads((tmp_path / rows[2]["key"][:16] / "results.json").read_text())
    assert rows[2]["values"]["loss"] == results["splits"]["test"]["loss"]
    assert rows[2]["values"]["time"] == results["training_seconds"]
    assert {name for name in rows[2]["values"] if name.startswith("all.")} == {
        f"all.{bin_}" for bin_ in results["splits"]["test"]["by"]["length_bucket"]
    }
    assert rows[2]["parameters"] == results["parameters"]
    assert rows[2]["checkpoint"] == "best of dev loss"

    before, folder = stamps(tmp_path), results_folder(sweep, tmp_path)
    written = (folder / "results.jsonl").read_bytes()
    again = Recorder()
    assert run_sweep(sweep, tmp_path, watcher=again) == rows
    assert not again.results
    assert stamps(tmp_path) == before
    assert (folder / "results.jsonl").read_bytes() == written
    assert sweep_rows(sweep, tmp_path) == (rows, [])
    assert read_sweep(folder / "results.jsonl") == rows


def test_a_measure_without_a_checkpoint_is_of_the_one_that_the_recipe_scores(tmp_path: Path) -> None:
    again = {"name": "again", "kind": "evaluate", "split": "test", "path": "loss", "metrics": []}
    best, last = again | {"name": "best", "checkpoint": "best"}, again | {"name": "last", "checkpoint": "last"}
    # Of equal scores the earlier one is the best: the checkpoint of update 1.
    always_0 = [
        "training.selection.metric=exact_match",
        "training.selection.mode=max",
        "training.evaluate_every=1",
        "training.save_every=1",
    ]
    scored = [*SMALL, *always_0, "training.keep_last=3", "evaluation.checkpoint=last"]
    sweep = tiny(seeds=[1], arms=[{"name": "base"}], overrides=scored, measures=[LOSS, again, best, last])
    (row,) = run_sweep(sweep, tmp_path)
    assert row["checkpoint"] == "last"
    assert row["checkpoints"] == {"best": "best"}
    found = row["values"]
    assert found["again"] == found["last"] == found["loss"] != found["best"]


def test_the_results_file_holds_no_times_and_the_other_one_nothing_else(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}], measures=[LOSS, TIME])
    (row,) = run_sweep(sweep, tmp_path)
    folder = results_folder(sweep, tmp_path)
    found = json.loads((folder / "results.jsonl").read_text())
    times = json.loads((folder / "timings.jsonl").read_text())
    assert list(found["values"]) == ["loss"]
    of_time = ("began", "training_seconds", "seconds")
    assert not {*of_time} & set(found)
    own = {key: row[key] for key in ("sweep", "arm", "seed", "key", *of_time)}
    assert times == own | {"values": {"time": row["training_seconds"]}}


def test_results_with_rows_that_are_no_longer_there_are_kept(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], measures=[LOSS, TIME])
    changed = tiny(
        seeds=[1], measures=[LOSS], arms=[{"name": "base"}, {"name": "slow", "set": {"training.optimizer.lr": 1e-5}}]
    )
    folder = results_folder(sweep, tmp_path)
    rows = run_sweep(sweep, tmp_path)
    written = [(folder / name).read_bytes() for name in ("results.jsonl", "timings.jsonl")]
    started = SweepResults(changed, plan_runs(changed, tmp_path), tmp_path)
    assert started.kept == folder / "earlier-1"
    assert [(started.kept / name).read_bytes() for name in ("results.jsonl", "timings.jsonl")] == written
    assert read_sweep(started.kept / "results.jsonl") == rows
    assert [row["arm"] for row in read_sweep(folder / "results.jsonl")] == ["base"]

    # Rows that are there still are no others, whichever come to them; two sweeps that take turns are kept once each.
    again = SweepResults(sweep, plan_runs(sweep, tmp_path), tmp_path)
    assert again.kept is None
    assert again.rows == rows
    for turn in (changed, sweep, changed):
        SweepResults(turn, plan_runs(turn, tmp_path), tmp_path)
    assert [path.name for path in folder.glob("earlier-*")] == ["earlier-1"]
    (folder / "results.jsonl").write_text("{", encoding="utf-8")
    lines: list[str] = []
    run_sweep(sweep, tmp_path, watcher=LinesWatcher(lines.append))
    assert lines[0] == f"results of a sweep of this name with other rows are kept: {folder}/earlier-2"
    assert (folder / "earlier-2" / "results.jsonl").read_text() == "{"
    assert (folder / "results.jsonl").read_bytes() == written[0]


def test_a_run_that_has_ended_makes_its_own_lines_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny(seeds=[1], measures=[LOSS, TIME])
    run_sweep(sweep, tmp_path)
    runs, folder = plan_runs(sweep, tmp_path), results_folder(sweep, tmp_path)
    names = ("results.jsonl", "timings.jsonl")
    started, written = SweepResults(sweep, runs, tmp_path), [(folder / name).read_bytes() for name in names]
    split, made = rows_module.split_row, list[str]()
    monkeypatch.setattr(rows_module, "split_row", lambda sweep, row: made.append(row["arm"]) or split(sweep, row))
    for name in names:
        (folder / name).unlink()
    started.update(runs[0].key)
    assert made == [runs[0].arm]
    assert [(folder / name).read_bytes() for name in names] == written


def test_rows_of_runs_that_another_process_has_finished_meanwhile_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = tiny(seeds=[1])
    rows = run_sweep(sweep, tmp_path)
    collect, calls = rows_module.collect_rows, list[int]()

    def too_early(sweep: SweepConfig, runs: Any, *given: Any, **named: Any) -> Any:
        calls.append(len(runs))
        found, missing = collect(sweep, runs, *given, **named)
        return (found[:1], missing) if len(calls) == 1 else (found, missing)

    monkeypatch.setattr(rows_module, "collect_rows", too_early)
    started = SweepResults(sweep, plan_runs(sweep, tmp_path), tmp_path)
    assert calls == [2, 1]
    assert started.kept is None
    assert started.rows == rows


def test_what_other_source_measured_is_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}], measures=[LONGER])
    (row,) = run_sweep(sweep, tmp_path)
    assert run_sweep(sweep, tmp_path) == [row]
    (note,) = tmp_path.glob("*/measures/*.json")
    monkeypatch.setattr(measures, "measuring_source", lambda: "another")
    assert "not measured" in sweep_rows(sweep, tmp_path)[1][0]["why"]
    assert run_sweep(sweep, tmp_path) == [row]  # trained once: it began when it did
    assert len(list(tmp_path.glob("*/measures/*.json"))) == 2
    assert note.is_file()


@pytest.mark.slow
def test_other_examples_of_a_split_that_no_key_knows_are_measured_again(tmp_path: Path) -> None:
    files = {name: tmp_path / f"{name}.jsonl" for name in ("train", "dev", "gen", "other")}
    for number, file in enumerate(files.values()):
        file.write_text("".join(f'{{"source": "{n} 1", "target": "{n + number} 2"}}\n' for n in range(5)))
    data = [f"data.{name}={files[name]}" for name in ("train", "dev")]
    overrides = [*SMALL[2:], *data, f"data.test={{test: {files['dev']}, gen: {files['gen']}}}", "data.unknown=replace"]
    again = {"kind": "evaluate", "split": "gen", "path": "loss", "metrics": []}
    measures = [again | {"name": "kept"}, again | {"name": "set", "set": {"data.test": {"gen": str(files["other"])}}}]
    arms = [{"name": "base", "recipe": "files/template"}]
    sweep = tiny(seeds=[1], arms=arms, overrides=overrides, measures=measures)
    (row,) = run_sweep(sweep, tmp_path / "store")
    assert run_sweep(sweep, tmp_path / "store") == [row]
    for name, measure in (("gen", "kept"), ("other", "set")):
        files[name].write_text('{"source": "1 1", "target": "1 2"}\n', encoding="utf-8")
        assert "not measured" in sweep_rows(sweep, tmp_path / "store")[1][0]["why"]
        (new,) = run_sweep(sweep, tmp_path / "store")
        assert {key for key, value in new["values"].items() if value != row["values"][key]} == {measure}
        row = new


def test_what_is_there_is_told_from_what_is_missing_without_training(tmp_path: Path) -> None:
    run_sweep(tiny(seeds=[1], arms=[{"name": "base"}]), tmp_path)
    rows, missing = sweep_rows(tiny(), tmp_path)
    assert [(row["arm"], row["seed"]) for row in rows] == [("base", 1)]
    assert [(line["arm"], line["seed"], line["why"]) for line in missing] == [
        *(("base", 2, "not trained"), ("slow", 1, "not trained"), ("slow", 2, "not trained"))
    ]
    # What a new measure reads from the results is there; what has to be evaluated anew is not.
    assert sweep_rows(tiny(seeds=[1], measures=[SEEN]), tmp_path)[0][0]["values"].keys() == {"seen"}
    assert sweep_rows(tiny(seeds=[1], measures=[LONGER]), tmp_path)[1][0]["why"] == "not measured: longer"


def test_a_run_is_scored_as_it_stops_by_every_criterion(tmp_path: Path) -> None:
    def measured(name: str, path: str, **given: Any) -> dict[str, Any]:
        return {"name": name, "kind": "evaluate", "split": "test", "path": path, "metrics": [], **given}

    margin = {"exit": "margin", "halting_threshold": 0.0}
    together = {"exit": "change", "exit_scope": "sequence", "halting_threshold": 0.0}
    measures = [
        *(measured(f"loss at {n}", "loss", n_steps=n) for n in (1, 3)),
        *(measured(f"macs at {n}", "macs.realised", n_steps=n) for n in (1, 3)),
        measured("margin", "halting.decoder.mean", **margin),
        measured("cost", "macs.realised", **margin),
        measured("sentences", "halting.encoder.mean", **together),
        measured("never", "loss", exit="cosine", halting_threshold=1.0, n_steps=3),
        *(measured(f"right at {n}", "token_accuracy", n_steps=n) for n in (1, 3)),
        measured("right by oracle", "token_accuracy", oracle="token", n_steps=3),
        measured("depth of oracle", "depth.decoder", oracle="token", n_steps=3),
    ]
    deep = [*SMALL, "model.encoder.n_steps=3", "model.decoder.n_steps=3"]
    changes = {"recipe": "digits/universal", "overrides": deep, "arms": [{"name": "a"}], "measures": measures}
    values = run_sweep(tiny(seeds=[1], **changes), tmp_path)[0]["values"]
    assert values["margin"] == values["sentences"] == 1.0, "the confidence of round 1 is at least 0"
    assert values["never"] == pytest.approx(values["loss at 3"], rel=1e-6)
    assert values["loss at 1"] != values["loss at 3"]
    assert values["right by oracle"] >= max(values["right at 1"], values["right at 3"])
    assert 1 < values["depth of oracle"] < 3, "the first round has some of the labels right, and not all of them"
    assert values["cost"] > values["macs at 1"], "the encoder runs all its rounds, and the decoder is read out"


@pytest.mark.slow
def test_an_arm_starts_from_the_finished_run_of_the_arm_it_comes_after(tmp_path: Path) -> None:
    arms = [{"name": "on", "after": "base"}, {"name": "base"}, {"name": "third", "after": "on", "seeds": [2]}]
    rows = run_sweep(tiny(arms=arms), tmp_path)
    by_name = {(row["arm"], row["seed"]): tmp_path / row["key"][:16] for row in rows}
    assert list(by_name) == [("on", 1), ("on", 2), ("base", 1), ("base", 2), ("third", 2)]
    for arm, seed, start in [("on", 1, "base"), ("on", 2, "base"), ("third", 2, "on")]:
        origin = load_recipe(by_name[arm, seed]).training.init_from
        assert origin == str(by_name[start, seed])
        assert (by_name[arm, seed] / "initial.json").is_file()


@pytest.mark.slow
def test_a_run_that_learned_nothing_before_its_store_was_moved_says_what_to_do(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}, {"name": "next", "after": "base"}])
    rows = run_sweep(sweep, tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    begun = tmp_path / "new" / rows[1]["key"][:16]
    for left in ("results.json", "metrics.jsonl", "timings.jsonl"):
        (begun / left).unlink()
    (begun / "checkpoints").rename(begun / "away")
    said = (
        r"next: has no checkpoint yet, and the run that it starts from is not at .*/old/.* any more: move it away, and"
    )
    with pytest.raises(SweepError, match=said.replace("next", begun.name)):
        run_sweep(sweep, tmp_path / "new")
    begun.rename(tmp_path / "interrupted")
    assert [row["values"] for row in run_sweep(sweep, tmp_path / "new")] == [row["values"] for row in rows]


def test_a_run_that_fails_is_named_with_what_waited_for_it_and_the_others_are_done(tmp_path: Path) -> None:
    broken = {"name": "broken", "set": {"training.optimizer.lr": 1e30, "training.schedule.warmup": 0}}
    sweep = tiny(seeds=[1], arms=[broken, {"name": "next", "after": "broken"}, {"name": "base"}])
    with pytest.raises(SweepError) as error:
        run_sweep(sweep, tmp_path)
    assert [run.name for run, _ in error.value.failures] == ["broken, seed 1", "next, seed 1"]
    lines = str(error.value)
    assert "the loss is" in lines
    assert "not run: it starts from broken, seed 1, which failed" in lines
    assert error.value.exit_code == 1
    rows, missing = sweep_rows(sweep, tmp_path)
    assert [row["arm"] for row in rows] == ["base"]
    assert [line["arm"] for line in missing] == ["broken", "next"]


def test_a_number_that_a_run_does_not_have_is_a_failure_that_says_what_there_is(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], measures=[LOSS | {"name": "typo", "path": "by.length_bucket.77.loss"}])
    with pytest.raises(SweepError, match=r"base, seed 1 .*measure typo: by\.length_bucket\.77\.loss: there is no 77"):
        run_sweep(sweep, tmp_path)
    assert len(sweep_rows(tiny(seeds=[1]), tmp_path)[0]) == 2


def test_a_damaged_run_that_others_start_from_ends_no_sweep(tmp_path: Path) -> None:
    sweep = tiny(
        seeds=[1],
        arms=[
            {"name": "base"},
            {"name": "next", "after": "base"},
            {"name": "slow", "set": {"training.optimizer.lr": 1e-4}},
        ],
    )
    run = plan_runs(sweep, tmp_path)[0]
    run_sweep(tiny(seeds=[1], arms=[{"name": "base"}]), tmp_path)
    results = run.directory / "results.json"
    results.write_bytes(results.read_bytes()[:100])
    with pytest.raises(SweepError) as error:
        run_sweep(sweep, tmp_path)
    assert [run.name for run, _ in error.value.failures] == ["base, seed 1", "next, seed 1"]
    assert f"{results}: is damaged" in str(error.value)
    assert [row["arm"] for row in read_sweep(results_folder(sweep, tmp_path) / "results.jsonl")] == ["slow"]


def test_nothing_is_trained_from_a_run_that_the_sweep_refuses(tmp_path: Path) -> None:
    base = {"name": "base"}
    run_sweep(tiny(seeds=[1], arms=[base]), tmp_path)
    sweep = tiny(seeds=[1], arms=[base, {"name": "next", "after": "base"}], measures=[LOSS, LONGER])
    start, next_run = plan_runs(sweep, tmp_path)
    train(load_recipe(start.directory, ["training.n_updates=4"]), start.directory, resume=True)
    with pytest.raises(SweepError) as error:
        run_sweep(sweep, tmp_path)
    assert [(run.name, reason[:22]) for run, reason in error.value.failures] == [
        ("base, seed 1", "failed: it is done, bu"),
        ("next, seed 1", "not run: it starts fro"),
    ]
    assert "holds another run than its name says" in str(error.value)
    assert not next_run.directory.exists()


def test_what_the_machine_refuses_is_a_line_and_of_another_error_the_last_line_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "update-000003")

    def without_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    def wrong(*_: Any, **__: Any) -> None:
        raise ValueError("shapes")

    # As many arms as would fill the error with the beginnings of their tracebacks.
    sweep = tiny(seeds=[*range(1, 9)], arms=[{"name": "base"}])
    for fail, said in (
        (refused, "failed: update-000003: No space left on device; the disk is full: make room there"),
        (without_memory, "failed: out of memory: lower data.tokens_per_batch"),
        (wrong, "failed: Traceback (most recent call last):\n  ...\nValueError: shapes"),
    ):
        monkeypatch.setattr(executors, "train", fail)
        with pytest.raises(SweepError) as error:
            run_sweep(sweep, tmp_path)
        assert str(error.value).count(said) == 8
        assert all(("\n" in reason) == (fail is wrong) for _, reason in error.value.failures)
    assert "in wrong" in error.value.failures[0][1], "the whole traceback is there for programs"


def test_budgets_that_are_said_to_be_equal_are_checked_before_anything_is_trained(tmp_path: Path) -> None:
    arms = [{"name": "base"}, {"name": "wide", "set": {"model.encoder.ffn.d_ff": 1024}}]
    sweep = tiny(arms=arms, equal={"budget": "macs", "tolerance": 0.05})
    with pytest.raises(ConfigError, match=r"their multiply-accumulates must agree within 5\.0% of base's"):
        run_sweep(sweep, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_arms_that_come_to_the_same_recipe_are_one_run(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "a"}, {"name": "b", "set": {"training": {"n_updates": 3}}}])
    watcher = Recorder()
    rows = run_sweep(sweep, tmp_path, watcher=watcher)
    assert watcher.results == [("a, seed 1", "done")]
    assert [row["arm"] for row in rows] == ["a", "b"]
    assert rows[0]["key"] == rows[1]["key"]


def test_the_refusal_names_every_arm_with_its_figure_and_its_difference() -> None:
    with pytest.raises(ConfigError) as error:
        check_match("x: equal.budget", "macs", {"a": 1000, "b": 1009, "c": 1243, "d": 800}, 0.01)
    (problem,) = error.value.problems
    assert problem.value == {"a": "1,000", "b": "1,009 (+0.9 %)", "c": "1,243 (+24.3 %)", "d": "800 (-20.0 %)"}
    check_match("x: equal.budget", "macs", {"a": 1000, "b": 1010, "c": 990}, 0.01)


def test_an_arm_that_reads_pairs_as_one_sequence_is_counted_for_both_sides(tmp_path: Path) -> None:
    equal = {"budget": "macs", "source_length": 10, "target_length": 10}
    arms = [{"name": "one", "set": {"model": {"kind": "language_model", "d_model": 16}}}]
    size = {"name": "macs", "kind": "budget", "figure": "macs", "source_length": 10, "target_length": 10}
    overrides = [text for text in SMALL if "encoder" not in text and "cross" not in text]
    (row,) = run_sweep(
        tiny(seeds=[1], arms=arms, overrides=overrides, equal=equal, measures=[LOSS, size]), tmp_path / "store"
    )
    model = load_recipe(tmp_path / "store" / row["key"][:16]).model
    assert row["macs"] == row["values"]["macs"] == count_macs(model, 10, 20).total
    assert row["macs_lengths"] == [10, 10]
    both = tiny(arms=[*arms, {"name": "two"}], overrides=overrides, equal=equal)
    with pytest.raises(ConfigError, match=f"'one': '{row['macs']:,}'"):
        run_sweep(both, tmp_path / "other")


def test_bytes_of_an_arm_are_those_that_its_plan_shows(tmp_path: Path) -> None:
    settings = ["training.checkpoint_activations=true", "training.precision=bfloat16"]
    sweep = tiny(seeds=[1], arms=[{"name": "base", "set": {}}], overrides=[*SMALL, *settings])
    (run,) = plan_runs(sweep, tmp_path)
    (planned,) = plan_recipes(["digits/transformer"], [*SMALL, *settings], assumptions=Assumptions(16, 16))
    assert arm_budgets(sweep, [run])["base"].bytes == planned.budget.bytes
    assert planned.budget.assumptions.checkpoint_activations


def test_of_arms_that_are_one_run_each_has_its_own_measures(tmp_path: Path) -> None:
    measures = [LONGER | {"name": name, "arms": [name], "n_steps": steps} for name, steps in (("a", 1), ("b", None))]
    sweep = tiny(seeds=[1], arms=[{"name": "a"}, {"name": "b"}], measures=[LOSS, *measures])
    rows = run_sweep(sweep, tmp_path)
    assert [sorted(row["values"]) for row in rows] == [["a", "loss"], ["b", "loss"]]


def test_an_arm_of_shifted_seeds_is_another_run_of_the_same_model_under_the_same_seeds(tmp_path: Path) -> None:
    arms = [{"name": "base"}, {"name": "again", "seed_shift": 10}, {"name": "base-11", "seeds": [11]}]
    base, again, eleven = run_sweep(tiny(seeds=[1], arms=arms), tmp_path)
    assert (again["seed"], again["key"]) == (base["seed"], eleven["key"])
    assert again["values"] == eleven["values"] != base["values"]
    assert again["parameters"] == base["parameters"]


def test_a_run_that_was_started_under_another_name_goes_on(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}])
    (run,) = plan_runs(sweep, tmp_path)
    run_sweep(sweep, tmp_path)
    (run.directory / "results.json").unlink()
    renamed = tiny(seeds=[1], arms=[{"name": "base", "set": {"name": "other", "description": "d"}}])
    before = stamps(tmp_path)
    (row,) = run_sweep(renamed, tmp_path)
    assert row["key"] == run.key
    assert stamps(tmp_path) == before


def test_a_run_that_was_begun_on_another_device_goes_on_where_the_sweep_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def placed(*free: str) -> SweepConfig:
        return tiny(seeds=[1], arms=[{"name": "base"}], overrides=[*SMALL, *free], measures=[LONGER])

    begun = placed("training.n_threads=2", "training.keep_last=2")
    run_sweep(begun, tmp_path)
    (run,) = plan_runs(begun, tmp_path)
    (run.directory / "results.json").unlink()
    (note,) = run.directory.glob("measures/*.json")
    note.unlink()
    trained: list[TrainingConfig] = []
    measured: list[str] = []
    load = measures.load

    def train_noted(recipe: Recipe, *given: Any, **named: Any) -> Any:
        trained.append(recipe.training)
        return train(recipe, *given, **named)

    def load_noted(*given: Any, **named: Any) -> Any:
        measured.append(named["device"])
        return load(*given, **named)

    monkeypatch.setattr(executors, "train", train_noted)
    monkeypatch.setattr(measures, "load", load_noted)
    (row,) = run_sweep(placed("training.n_threads=1", "training.device=auto"), tmp_path)
    assert row["key"] == run.key
    (training,) = trained
    assert (training.device, training.n_threads, training.keep_last) == ("auto", 1, 2)
    assert measured == ["auto"]


def test_a_sweep_whose_data_were_moved_goes_on_and_measures_where_they_are_now(tmp_path: Path) -> None:
    measures = [
        {"name": "gen", "kind": "evaluate", "split": "gen", "path": "loss", "metrics": []},
        {"name": "area", "kind": "analysis", "study": "spectra", "table": {"column": "area"}},
    ]

    def placed(folder: str, measures: list[dict[str, Any]]) -> SweepConfig:
        files = {name: str(tmp_path / folder / f"{name}.jsonl") for name in ("train", "dev", "gen")}
        data = [f"data.{name}={files[name]}" for name in ("train", "dev")]
        data.append(f"data.test={{test: {files['dev']}, gen: {files['gen']}}}")
        arms = [{"name": "base", "recipe": "files/template"}]
        return tiny(seeds=[1], arms=arms, overrides=[*SMALL[2:], *data], measures=measures)

    (tmp_path / "old").mkdir()
    for name in ("train", "dev", "gen"):
        (tmp_path / "old" / f"{name}.jsonl").write_text('{"source": "1 2", "target": "2 1"}\n' * 20)
    loss = LOSS | {"split": "dev"}
    (row,) = run_sweep(placed("old", [loss]), tmp_path / "store")
    (tmp_path / "old").rename(tmp_path / "new")
    directory = tmp_path / "store" / row["key"][:16]
    (directory / "results.json").unlink()
    sweep = placed("new", [loss, *measures])
    (again,) = run_sweep(sweep, tmp_path / "store")
    assert (again["key"], again["values"]["loss"]) == (row["key"], row["values"]["loss"])
    assert {"gen", "area"} <= again["values"].keys()
    assert sweep_rows(sweep, tmp_path / "store") == ([again], [])
    sweep = placed("new", [SEEN | {"split": "dev"}])
    (line,) = example_differences(sweep, plan_runs(sweep, tmp_path / "store"))
    assert line["n_examples"] == 20


def test_problems_of_all_arms_are_reported_together_before_any_is_planned() -> None:
    arms = [
        {"name": "a", "set": {"model.encoder.n_stps": 2}},
        {"name": "b", "recipe": "digits/transfomer"},
        {"name": "c", "set": {"training.n_updates": -1}},
    ]
    with pytest.raises(ConfigError) as error:
        tiny(arms=arms, measures=[LOSS | {"split": "tset"}])
    lines = str(error.value).splitlines()
    assert lines[0].startswith("arms.a: model.encoder.n_stps is 2: no such setting; did you mean n_steps?")
    assert lines[1].startswith("arms.b: recipe is 'digits/transfomer': no recipe")
    assert lines[2].startswith("arms.c: training.n_updates is -1: must be an integer in [0, 2^31 - 1]")


def test_a_split_that_no_run_is_evaluated_on_is_found_when_the_file_is_read() -> None:
    with pytest.raises(ConfigError, match=r"measures\.loss\.split is 'tset': base is evaluated on test, long"):
        tiny(measures=[LOSS | {"split": "tset"}])


def test_a_sweep_in_a_file_names_itself_and_finds_recipes_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: digits/transformer\nseed: 5\n")
    (tmp_path / "my-sweep.yaml").write_text(
        "recipe: mine.yaml\narms: [{name: a}, {name: b, recipe: digits/universal}]\n"
    )
    sweep = load_sweep(tmp_path / "my-sweep.yaml")
    assert sweep.name == "my-sweep"
    assert sweep.recipe == str(tmp_path / "mine.yaml")
    assert sweep.arms[1].recipe == "digits/universal"
    with pytest.raises(ConfigError, match="no sweep or file of that name; did you mean digits"):
        load_sweep("digts")


@pytest.mark.parametrize("key", ["arms", "measures"])
@pytest.mark.parametrize("given", ["5", "true", "1.5"])
def test_arms_and_measures_that_are_no_list_are_refused(tmp_path: Path, key: str, given: str) -> None:
    settings = {"recipe": "digits/transformer", "arms": "[{name: a}]"} | {key: given}
    path = tmp_path / "my-sweep.yaml"
    path.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^{key} is .*: must be a "):
        load_sweep(path)


def test_files_of_examples_are_found_from_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{name}.jsonl").write_text('{"source": "a", "target": "a"}\n', encoding="utf-8")
    (folder / "s.yaml").write_text(
        "recipe: files/template\noverrides: [data.train=a.jsonl, 'data.dev=[b.jsonl, c.jsonl]', model.dropout=0.1]\n"
        "arms:\n"
        "  - {name: dotted, set: {data.test: c.jsonl}}\n"
        "  - {name: nested, set: {data: {test: {gen: c.jsonl}, tokenizer: {kind: file, path: b.jsonl}}}}\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    sweep = load_sweep("mine/s.yaml")
    assert sweep.overrides[-1] == "model.dropout=0.1"
    dotted, nested = (arm_recipe(sweep, arm, 1).data for arm in sweep.arms)
    assert (dotted.train, dotted.dev) == ("mine/a.jsonl", ["mine/b.jsonl", "mine/c.jsonl"])
    assert (dotted.test, nested.test) == ("mine/c.jsonl", {"gen": "mine/c.jsonl"})
    assert nested.tokenizer.path == "mine/b.jsonl"


def test_reversing_digits_compares_arms_that_differ_in_depth_sharing_only() -> None:
    sweep = load_sweep("digits")
    first, second = (arm_recipe(sweep, arm, 1) for arm in sweep.arms)
    assert (first.task, first.training, first.data) == (second.task, second.training, second.data)
    assert set(second.model.plans()["encoder"].row("ffn")) == {"encoder_0"}
    assert sweep.equal is not None
    assert len(sweep.seeds) == 3


@pytest.mark.sampled
@pytest.mark.parametrize("name", sorted(shipped_files("sweeps")))
def test_shipped_sweeps_are_sound_and_say_what_they_are(name: str, tmp_path: Path) -> None:
    text = shipped_files("sweeps")[name].read_text(encoding="utf-8")
    needed = {found: str(tmp_path / found) for found in re.findall(r"input:(\w+)", text)}
    for path in needed.values():
        Path(path).write_text("text\n")
    sweep = load_sweep(name, needed)
    assert sweep.description
    assert sweep.measures
    assert all(f"# {line}:" in text for line in ("What", "Source", "Command"))
    assert f"ostinato sweep {name}" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "depth/tiny-passivization", "looped/sudoku"])  # whose data is generated
def test_arms_of_shipped_sweeps_that_are_said_to_be_equal_are(name: str, tmp_path: Path) -> None:
    sweep = load_sweep(name)
    assert sweep.equal is not None
    runs = {run.arm: run for run in plan_runs(sweep, tmp_path)}
    check_equal(sweep, arm_budgets(sweep, list(runs.values())))


def test_the_data_of_arms_is_read_once_to_size_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(vocabulary, "_train_tokenizers", lambda recipe, access: read.append(recipe))
    subwords = [*SMALL, "data.tokenizer={kind: bpe, vocab_size: 300}"]
    arms = [
        {"name": "base"},
        {"name": "next", "after": "base"},
        {"name": "other", "set": {"training.optimizer.lr": 1e-4}},
    ]
    arms += [{"name": "own data", "set": {"task.n_train": 80}}]
    sweep = tiny(overrides=subwords, arms=arms)
    budgets = arm_budgets(sweep, plan_runs(sweep, tmp_path / "store"))
    assert len(read) == 2, "once for each task and data"
    assert len({budget.figure("parameters") for budget in budgets.values()}) == 1


def test_a_classification_that_starts_from_a_masked_model_is_counted_with_its_own_labels(tmp_path: Path) -> None:
    lines = {
        "text": [{"text": f"a {word} and a {other}"} for word in ["stone", "river", "winter"] for other in "bc"],
        "labelled": [{"source": f"the {word}", "target": label} for word in ("stone", "river") for label in "xyz"],
    }
    for name, rows in lines.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text, labelled = (str(tmp_path / f"{name}.jsonl") for name in lines)
    small = {"model.d_model": 16, "model.encoder.n_steps": 1, "model.encoder.self_attention.n_heads": 2}
    small |= {"model.encoder.ffn.d_ff": 8, "data.tokenizer": {"kind": "words"}}
    start = small | {"data.train": text, "data.dev": text}
    tuned = small | {"data.train": labelled, "data.dev": labelled, "data.test": labelled}
    arms = [
        {"name": "start", "recipe": "x-moe/small/dense", "set": start},
        {"name": "tuned", "recipe": "x-moe/small/tuned-dense", "after": "start", "set": tuned},
    ]
    sweep = load_sweep({"name": "tuned", "arms": arms, "seeds": [1]})
    budgets = arm_budgets(sweep, plan_runs(sweep, tmp_path / "store"))
    head = 3 * 16 + 3  # three labels
    assert budgets["tuned"].figure("parameters") == budgets["start"].figure("parameters") + head


def test_a_split_that_was_written_meanwhile_is_no_measure_of_the_run(tmp_path: Path) -> None:
    train(load_recipe("digits/transformer", SMALL), tmp_path / "run")
    data = tmp_path / "run" / "data.json"
    content = json.loads(data.read_text())
    dev = content["splits"]["dev"]
    settings = {"name": "again", "kind": "evaluate", "split": "dev", "path": "loss"}
    (measure,) = tiny(measures=[settings]).measures
    data.write_text(json.dumps(content | {"splits": content["splits"] | {"dev": dev | {"sha256": "0" * 64}}}))
    with pytest.raises(DataError, match=r"measure again: .*dev is not what it was when the run was trained"):
        measures.take(measure, tmp_path / "run")
    assert not (tmp_path / "run" / "measures").exists()
    data.write_text(json.dumps(content))
    assert measures.take(measure, tmp_path / "run")["n"] == 12


def test_rows_that_another_sweep_of_the_name_has_written_meanwhile_are_kept(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}])
    edited = tiny(seeds=[1], arms=[{"name": "edited", "set": {"training.optimizer.lr": 1e-5}}])
    run_sweep(sweep, tmp_path)
    old = SweepResults(sweep, plan_runs(sweep, tmp_path), tmp_path)
    rows = run_sweep(edited, tmp_path)
    folder = results_folder(sweep, tmp_path)
    written = (folder / "results.jsonl").read_bytes()
    old.update(old.runs[0].key)
    assert [row["arm"] for row in read_sweep(folder / "results.jsonl")] == ["base"]
    kept = old.kept
    assert kept is not None
    assert (kept / "results.jsonl").read_bytes() == written
    assert read_sweep(kept / "results.jsonl") == rows
    # Both go on in turns, and have more rows each time: the last of each are kept.
    more = tiny(seeds=[1, 2], arms=[{"name": "edited", "set": {"training.optimizer.lr": 1e-5}}])
    run_sweep(more, tmp_path)
    old.update(old.runs[0].key)
    assert len(read_sweep(kept / "results.jsonl")) == 2
    assert len([*folder.glob("earlier-*")]) == 2


def test_no_arm_starts_from_a_run_that_is_not_at_its_end(tmp_path: Path) -> None:
    train(load_recipe("digits/transformer", SMALL), tmp_path / "origin")

    def sweep(**start: str) -> SweepConfig:
        given = {f"training.{name}": value for name, value in {"init_from": str(tmp_path / "origin"), **start}.items()}
        return tiny(arms=[{"name": "on", "set": given}])

    def planned(**start: str) -> int:
        return len(plan_runs(sweep(**start), tmp_path / "store"))

    assert planned() == 2
    rows = run_sweep(sweep(), tmp_path / "done")
    (tmp_path / "origin" / "results.json").unlink()
    assert run_sweep(sweep(), tmp_path / "done") == rows, "what began from it before is there"
    with pytest.raises(ConfigError, match=r"init_from is .*: is not at its end, and its checkpoint 'best' may become"):
        planned()
    assert planned(init_checkpoint="update-000003") == 2
