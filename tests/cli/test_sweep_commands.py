from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ostinato.cli.table import _example_table
from ostinato.config.files import write_yaml
from ostinato.config.load import check_settings
from ostinato.config.sweep import SweepConfig
from ostinato.errors import ConfigError, Problem
from ostinato.evaluation.stored import Outputs
from ostinato.experiments.sweep import example_intervals
from ostinato.experiments.sweep.executors import InProcess
from ostinato.experiments.sweep.files import load_sweep
from ostinato.experiments.sweep.measure_checks import measure_problems
from ostinato.experiments.sweep.runs import PlannedRun
from ostinato.experiments.sweep.schedule import run_sweep
from ostinato.tasks.recipes import load_recipe

SWEEP = {
    "recipe": "digits/transformer",
    "overrides": [
        *("task.n_train=60", "task.n_eval=12", "training.device=cpu", "training.n_updates=2", "decoding.max_length=4"),
        *("model.d_model=16", "model.encoder.n_steps=1", "model.decoder.n_steps=1"),
        *("model.encoder.ffn.d_ff=16", "model.decoder.ffn.d_ff=16"),
    ],
    "seeds": [1, 2],
    "arms": [{"name": "base"}, {"name": "longer", "set": {"training": {"n_updates": 3}}}],
    "measures": [
        {"name": "loss", "kind": "result", "split": "test", "path": "loss"},
        {"name": "exact", "kind": "result", "split": "test", "path": "exact_match"},
    ],
}


ROW = {
    "sweep": "s",
    "arm": "a",
    "seed": 1,
    "key": "k",
    "recipe": "r",
    "parameters": 1000,
    "macs": 2_500_000,
    "macs_lengths": [10, 12],
    "checkpoint": "last",
    "values": {"exact": 0.5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep's file, and a store with its runs."""
    found = tmp_path_factory.mktemp("sweep")
    write_yaml(SWEEP, found / "mine.yaml")
    run_sweep(load_sweep(found / "mine.yaml"), found / "store")
    return found


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do the work of workers here: starting one takes longer than all runs."""
    monkeypatch.setattr("ostinato.experiments.sweep.choose.LocalPool", lambda n_workers: InProcess())


@pytest.mark.sampled
def test_a_dry_run_shows_arms_seeds_keys_and_what_is_there_and_trains_nothing(run, folder: Path) -> None:
    lines = json.loads(run("sweep", folder / "mine.yaml", "--store", folder / "none", "--dry-run", "--json").out)
    assert [(line["arm"], line["seed"], line["state"]) for line in lines] == [
        *(("base", 1, "not trained"), ("base", 2, "not trained")),
        *(("longer", 1, "not trained"), ("longer", 2, "not trained")),
    ]
    assert not (folder / "none").exists()
    outcome = run("sweep", folder / "mine.yaml", "--store", folder / "store", "--dry-run", "--seeds", "2,3")
    assert outcome.code == 0
    assert [line.split()[-1] for line in outcome.out.splitlines() if line.startswith(" base")] == ["there", "trained"]


def test_a_sweep_trains_what_is_missing_takes_runs_over_and_says_where_results_are(
    run, folder: Path, tmp_path: Path
) -> None:
    there = json.loads((folder / "store" / "sweeps" / "mine" / "results.jsonl").read_text().splitlines()[0])
    own = folder / "store" / there["key"][:16]
    store = tmp_path / "store"
    outcome = run("sweep", folder / "mine.yaml", "--store", store, "--seeds", "1", "--take", own)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert lines[0] == f"taken: base, seed 1, into {store / there['key'][:16]}"
    assert lines[1] == "1 runs to do, 1 there"
    assert lines[-1] == f"results: {store}/sweeps/mine-seeds-1/results.jsonl"
    assert len((store / "sweeps" / "mine-seeds-1" / "results.jsonl").read_text().splitlines()) == 2
    assert not (store / "sweeps" / "mine").exists(), "rows of other seeds stay"


def test_a_run_that_fails_gives_exit_code_1_and_is_named(run, folder: Path, tmp_path: Path) -> None:
    broken = {"name": "broken", "set": {"training.optimizer.lr": 1e30, "training.schedule.warmup": 0}}
    write_yaml(SWEEP | {"arms": [broken], "seeds": [1]}, tmp_path / "broken.yaml")
    outcome = run("sweep", tmp_path / "broken.yaml", "--store", tmp_path / "store")
    assert outcome.code == 1
    assert outcome.err.startswith("1 of the sweep's runs failed\nbroken, seed 1 (")
    assert "broken, seed 1: failed: update 1: the loss is" in outcome.out.replace("update 2", "update 1")


@pytest.mark.parametrize("seeds", ["1,1", "1,01", "1,", "1,-2"])
def test_wrong_seeds_are_refused(run, folder: Path, seeds: str) -> None:
    outcome = run("sweep", folder / "mine.yaml", "--seeds", seeds)
    assert outcome.code == 2
    assert "is no list of different numbers such as 1,2,3" in outcome.err


def test_the_table_of_a_sweep_is_the_same_from_its_file_and_from_its_results(run, folder: Path) -> None:
    results = folder / "store" / "sweeps" / "mine" / "results.jsonl"
    first = run("table", folder / "mine.yaml", "--store", folder / "store", "--markdown")
    assert first.code == 0
    assert first.out == run("table", results, "--markdown").out
    assert "| base | 2 |" in first.out
    assert "| difference to base | loss | exact |" in first.out
    data = json.loads(run("table", results, "--json").out)
    assert [line["arm"] for line in data["arms"]] == ["base", "longer"]
    assert set(data["arms"][1]["values"]["loss"]["by_seed"]) == {"1", "2"}
    rows = list(csv.DictReader(io.StringIO(run("table", results, "--csv").out)))
    assert float(rows[1]["loss: mean"]) == data["arms"][1]["values"]["loss"]["mean"]
    formula = results.with_name("formula.jsonl")
    formula.write_text(results.read_text().replace('"longer"', '"=1+2"'))
    texts = [row["arm"] for row in csv.DictReader(io.StringIO(run("table", formula, "--csv").out))]
    assert texts == ["base", "'=1+2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": {"exact": float("nan")}}, "values must be finite numbers"),
        ({"macs_lengths": None}, "is damaged"),
        ({"macs": None}, "is damaged"),
        ({"seed": []}, "is damaged"),
    ],
)
def test_rows_that_lack_something_are_one_line(run, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps(ROW | changes) + "\n", encoding="utf-8")
    outcome = run("table", file)
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert outcome.err.startswith(f"{file}: ")
    assert message in outcome.err


def test_results_before_the_first_run_is_done_are_said_to_have_no_rows(run, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    file.touch()
    for command in ("table", "plot"):
        outcome = run(command, file)
        said = f"{file}: has no rows: no run of its sweep is done yet\n"
        assert (outcome.code, outcome.out, outcome.err) == (2, "", said)


def test_null_in_a_row_is_no_value(run, tmp_path: Path) -> None:
    file = tmp_path / "results.jsonl"
    rows = [ROW | {"checkpoints": None}, ROW | {"seed": 2, "values": {"exact": None}}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (arm,) = json.loads(run("table", file, "--json").out)["arms"]
    assert arm["values"]["exact"]["by_seed"] == {"1": 0.5}
    assert "0.5 (n 1)" in run("table", file).out


def test_a_table_says_what_is_missing(run, folder: Path, tmp_path: Path) -> None:
    write_yaml(SWEEP | {"seeds": [1, 3]}, tmp_path / "mine.yaml")
    outcome = run("table", tmp_path / "mine.yaml", "--store", folder / "store")
    assert outcome.code == 0
    assert outcome.err == "base, seed 3: not trained\nlonger, seed 3: not trained\n"
    outcome = run("table", folder / "mine.yaml", "--store", tmp_path / "my store")
    assert outcome.code == 2
    assert f"no run of it is in {tmp_path / 'my store'}: ostinato sweep" in outcome.err
    assert f"--store '{tmp_path / 'my store'}'" in outcome.err
    outcome = run("table", folder / "mine.yaml", "--store", tmp_path)
    assert outcome.code == 2
    assert "no run of it is in" in outcome.err
    assert "its rows of earlier" not in outcome.err
    rows = folder / "store" / "sweeps" / "mine" / "results.jsonl"
    kept = tmp_path / "sweeps" / "mine" / "earlier-1"
    kept.mkdir(parents=True)
    (kept.parent / "results.jsonl").touch()  # of a sweep that has begun
    assert "its rows of earlier" not in run("table", folder / "mine.yaml", "--store", tmp_path).err
    earlier = shutil.copy(rows, kept / "results.jsonl")
    outcome = run("table", folder / "mine.yaml", "--store", tmp_path)
    assert f"(its rows of earlier settings, data or versions: {earlier})" in outcome.err


@pytest.mark.slow
def test_intervals_over_examples_need_outputs_which_are_kept(run, folder: Path) -> None:
    arguments = ("table", folder / "mine.yaml", "--store", folder / "store", "--examples")
    first = run(*arguments)
    assert first.code == 0
    assert len([line for line in first.err.splitlines() if line.endswith("12 outputs decoded")]) == 4
    again = run(*arguments, "--json")
    assert again.err == ""
    lines = json.loads(again.out)["examples"]
    assert [(line["measure"], line["arm"], line["n_seeds"], line["n_examples"]) for line in lines] == [
        *(("exact", "base", 2, 12), ("exact", "longer", 2, 12))
    ]
    assert lines[0]["difference"] is None
    assert lines[1]["verdict"] == "no difference shown"
    results = folder / "store" / "sweeps" / "mine" / "results.jsonl"
    assert "--examples needs the sweep's file or name" in run("table", results, "--examples").err
    assert run("table", folder, "--csv").code == 2
    assert "is for runs" in run("table", results, "--source-length", 128).err


@pytest.mark.slow
def test_intervals_over_examples_are_of_the_arms_of_a_measure(run, folder: Path) -> None:
    dev = {"name": "dev", "kind": "result", "split": "dev", "path": "exact_match", "arms": ["longer"]}
    changed = {**SWEEP, "overrides": [*SWEEP["overrides"], "evaluation.splits=[dev, test]"]}
    write_yaml(changed | {"measures": [*SWEEP["measures"], dev]}, folder / "two.yaml")
    run_sweep(load_sweep(folder / "two.yaml"), folder / "two")
    outcome = run("table", folder / "two.yaml", "--store", folder / "two", "--examples", "--json")
    lines = json.loads(outcome.out)["examples"]
    assert [(line["measure"], line["arm"], line["verdict"] is None) for line in lines] == [
        *(("exact", "base", True), ("exact", "longer", False), ("dev", "longer", True))
    ]
    assert [line for line in outcome.err.splitlines() if ", dev: " in line] == [
        *("longer, seed 1, dev: 12 outputs decoded", "longer, seed 2, dev: 12 outputs decoded")
    ]


def outputs(share_right: float) -> Outputs:
    """Twelve outputs of which that share is right."""
    texts = [str(i) for i in range(12)]
    right = [text if i < share_right * 12 else "none" for i, text in enumerate(texts)]
    return Outputs(right, texts, texts, Path("p.jsonl"), {})


@pytest.fixture
def half_finished(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """What is found of runs {(arm, seed): share of right outputs} of the sweep, nothing of which is trained."""
    monkeypatch.setattr(example_intervals, "load_placed", lambda directory, recipe, **settings: directory)
    monkeypatch.setattr(example_intervals, "run_outputs", lambda run, split, access: outputs(float(run.name)))

    def found(shares: dict[tuple[str, int], float]) -> list[dict[str, Any]]:
        sweep = check_settings(SWEEP | {"name": "s"}, SweepConfig)
        recipe = load_recipe("digits/transformer")
        runs = [PlannedRun(*at, f"{at}", recipe, Path(str(share))) for at, share in shares.items()]
        return example_intervals.example_differences(sweep, runs)

    return found


def test_a_difference_over_examples_is_of_the_seeds_that_both_arms_have(half_finished) -> None:
    # With the seed they share both arms are equally good; the seed that one of them lacks is an easy one.
    shares = {("base", 1): 0.5, ("base", 2): 1.0, ("longer", 1): 0.5}
    base, longer = half_finished(shares)
    assert (base["reference"], base["seeds"], base["score"]["value"]) == (None, [1, 2], 0.75)
    assert (longer["reference"], longer["seeds"], longer["score"]["value"]) == ("base", [1], 0.5)
    assert longer["difference"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert (longer["verdict"], longer["seeds_compared"]) == ("no difference shown", [1])
    _, apart = half_finished({("base", 2): 1.0, ("longer", 1): 0.5})
    assert (apart["difference"], apart["verdict"], apart["seeds_compared"]) == (None, None, [])
    _, whole = half_finished(shares | {("longer", 2): 0.5})
    assert (whole["difference"]["value"], whole["seeds_compared"]) == (-0.25, [1, 2])


def test_the_table_over_examples_says_what_is_compared_with_what(run, half_finished) -> None:
    table = _example_table(half_finished({("base", 1): 0.5, ("base", 2): 1.0, ("longer", 1): 0.5}))
    assert table is not None
    columns, body = table
    assert columns == ["over examples", "arm", "seeds", "examples", "score", "difference to base", "verdict"]
    assert [line[1:4] for line in body] == [["base", "1, 2", 12], ["longer", "1", 12]]
    assert body[1][5] == "0 [0, 0]"
    _, body = _example_table(half_finished({("base", 1): 0.5, ("base", 2): 1.0, ("longer", 1): 0.5, ("longer", 3): 1}))
    assert (body[1][2], body[1][5]) == ("1, 3", "0 [0, 0] (seeds 1)")
    _, body = _example_table(half_finished({("base", 2): 1.0, ("longer", 1): 0.5}))
    assert body[1][5:] == ["no seed of both", ""]


def test_the_reference_is_named_where_the_first_arm_has_no_run(run, tmp_path: Path) -> None:
    third = {"name": "third", "set": {"training": {"n_updates": 4}}}
    path = tmp_path / "mine.yaml"
    write_yaml(SWEEP | {"arms": [*SWEEP["arms"][1:], third], "seeds": [1]}, path)
    run_sweep(load_sweep(path), tmp_path / "store")
    write_yaml(SWEEP | {"arms": [*SWEEP["arms"], third], "seeds": [1]}, path)
    outcome = run("table", path, "--store", tmp_path / "store", "--examples")
    assert outcome.code == 0, outcome.err
    assert "difference to longer" in outcome.out
    assert "No run of base, the first arm, is there: differences are to longer.\n" in outcome.out
    data = json.loads(run("table", path, "--store", tmp_path / "store", "--examples", "--json").out)
    assert [line["reference"] for line in data["examples"]] == [None, "longer"]


def test_plot_writes_figures_beside_the_results(run, folder: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = run("plot", folder / "mine.yaml", "--store", folder / "store", "--x", "macs", "--y", "loss")
    assert outcome.code == 0, outcome.err
    written = folder / "store" / "sweeps" / "mine"
    assert outcome.out == f"written: {written}/plot-macs.svg\nwritten: {written}/plot-macs.png\n"
    assert (written / "plot-macs.png").stat().st_size > 1000


def test_a_dry_run_finds_a_measure_that_names_nothing(run, tmp_path: Path) -> None:
    measures = [{"name": "exact", "kind": "result", "split": "test", "path": "exact_mach"}]
    write_yaml(SWEEP | {"measures": measures}, tmp_path / "mine.yaml")
    outcome = run("sweep", tmp_path / "mine.yaml", "--store", tmp_path / "store", "--dry-run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "did you mean exact_match?" in outcome.err


def test_a_metric_whose_model_is_not_here_is_found_before_training(run, tmp_path: Path, monkeypatch) -> None:
    def lacking(name: str) -> None:
        if name == "spbleu":
            raise ConfigError([Problem("evaluation.metrics", name, "needs a model")])

    monkeypatch.setattr("ostinato.evaluation.scores.make_metric", lacking)
    measures = [{"name": "pieces", "kind": "evaluate", "path": "spbleu", "metrics": ["spbleu"]}]
    write_yaml(SWEEP | {"measures": measures}, tmp_path / "mine.yaml")
    for more in (["--dry-run"], []):
        outcome = run("sweep", tmp_path / "mine.yaml", "--store", tmp_path / "store", *more)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert "measures.pieces.metrics is ['spbleu']: needs a model" in outcome.err
    assert not list((tmp_path / "store").glob("*/checkpoints"))


def test_a_dry_run_finds_what_training_would_refuse(run, tmp_path: Path) -> None:
    arms = [{"name": "base"}, {"name": "frozen", "set": {"training.freeze": ["zzz*"]}}]
    write_yaml(SWEEP | {"arms": arms}, tmp_path / "mine.yaml")
    outcome = run("sweep", tmp_path / "mine.yaml", "--store", tmp_path / "store", "--dry-run")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert "training.freeze is 'zzz*': matches no parameter" in outcome.err


def numbers_in(found: dict[str, Any], before: str = "") -> Iterator[str]:
    """Yield the paths of all numbers."""
    for name, value in found.items():
        if isinstance(value, dict):
            yield from numbers_in(value, f"{before}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{before}{name}"


@pytest.mark.slow
def test_whatever_is_found_may_be_named(run, tmp_path: Path) -> None:
    tiny = ["task.n_train=60", "task.n_eval=8", "training.n_updates=2", "training.device=cpu", "model.d_model=16"]
    halting = ["model.encoder.self_attention.share=all", "model.encoder.ffn={d_ff: 16, share: all, kind: experts}"]
    halting += ["model.encoder.ffn.n_experts=3", "model.encoder.halting={kind: stick_breaking}"]
    assert run("train", "digits/transformer", *tiny, *halting, "--run-dir", tmp_path / "run").code == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    found = json.loads(run("evaluate", tmp_path / "run", "--split", "test", "--json").out)["test"]
    recipe = load_recipe(tmp_path / "run")
    asked = [{"kind": "result", "path": path} for path in numbers_in(results)]
    asked += [{"kind": "result", "split": "test", "path": path} for path in numbers_in(results["splits"]["test"])]
    asked += [{"kind": "evaluate", "path": path} for path in numbers_in(found)]
    assert len(asked) > 200
    for one in asked:
        (measure,) = SweepConfig(name="x", recipe="r", arms=[{"name": "a"}], measures=[{"name": "m", **one}]).measures
        assert list(measure_problems(measure, recipe)) == []
    assert {"halting", "routing"} <= found.keys()
