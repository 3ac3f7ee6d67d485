from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from ostinato.cli.train import default_directory
from ostinato.config.load import check_recipe, dump_recipe

UPSTREAM = Path(__file__).parents[3] / "shared" / "data" / "upstream"


def test_recipes_are_listed_one_a_line(run) -> None:
    lines = run("recipes").out.splitlines()
    listed = json.loads(run("recipes", "--json").out)
    assert len(lines) == len(listed) > 20
    for line, entry in zip(lines, listed, strict=True):
        assert line.split() == [entry["name"], *entry["description"].split()]


def test_a_plan_shows_which_set_serves_which_step(run) -> None:
    text = run("plan", "scan/length-universal", "model.decoder.ffn.share=[0,null]").out
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert "self_attention encoder 0 0 with weights" in rows
    assert "ffn decoder 0 - with weights" in rows


def test_plans_are_compared_side_by_side(run) -> None:
    outcome = run("plan", "scan/length-transformer", "scan/length-universal", "--json")
    transformer, universal = json.loads(outcome.out)
    assert transformer["parameters"]["stored"] == 929_664
    assert universal["parameters"]["stored"] == 929_416
    assert universal["macs"]["total"] > 1.5 * transformer["macs"]["total"]
    assert universal["vocabulary"] == {"source": 17, "target": 10, "from": "given"}
    weights = [use["weights"] for step in universal["plans"]["encoder"] for use in step["uses"]]
    assert set(weights) == {"encoder_0"}


def test_a_plan_of_no_recipe_is_wrong_use(run) -> None:
    outcome = run("plan", "model.d_model=8")
    assert outcome.code == 2
    assert "name at least one recipe" in outcome.err


def test_a_plan_needs_a_vocabulary_and_says_where_one_comes_from(run) -> None:
    outcome = run("plan", "cogs/universal")
    assert outcome.code == 2
    assert "`ostinato data fetch cogs`, or give --source-vocab and --target-vocab" in outcome.err
    given = run("plan", "cogs/universal", "--source-vocab", 747, "--target-vocab", 687, "--json")
    assert json.loads(given.out)[0]["parameters"]["stored"] == 1_109_512


def test_a_plan_of_the_users_own_text_counts_the_vocabulary_it_asks_for(run) -> None:
    (counted,) = json.loads(run("plan", "lm/transformer", "--json").out)
    assert counted["vocabulary"]["target"] == 8000
    assert counted["vocabulary"]["source"] is None
    assert run("plan", "lm/transformer", "data.tokenizer.kind=words").code == 2


def test_a_plan_trains_the_tokenizer_of_files_that_are_there(run, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b c\nb c d\n", encoding="utf-8")
    settings = ["data.tokenizer.kind=words", *(f"data.{split}={text}" for split in ("train", "dev", "test"))]
    assert json.loads(run("plan", "lm/transformer", *settings, "--json").out)[0]["vocabulary"]["target"] == 8
    text.write_text("", encoding="utf-8")
    assert "no examples" in run("plan", "lm/transformer", *settings).err


def test_tasks_are_listed_with_where_their_data_comes_from(run) -> None:
    listed = {entry["name"]: entry for entry in json.loads(run("data", "list", "--json").out)}
    assert listed["algorithmic"]["origin"] == "generated"
    assert (listed["cogs"]["origin"], listed["cogs"]["licence"]) == ("download", "MIT")
    assert listed["files"]["origin"] == "your files"
    assert [line.split()[0] for line in run("data", "list").out.splitlines()] == sorted(listed)


@pytest.mark.slow
def test_a_generated_task_is_shown_with_its_protocol_sizes_and_examples(run) -> None:
    shown = json.loads(run("data", "show", "scan", "split=length", "--json").out)
    assert shown["origin"] == "generated"
    assert shown["sizes"]["test"] == 3920
    assert len(shown["examples"]) == 3
    assert shown["examples"][0]["target"].startswith("I_")
    text = run("data", "show", "scan", "split=length").out
    assert "Otherwise SCAN has no validation set." in text
    assert "reported by: actions" in text


def test_many_files_of_a_folder_are_one_line(run, tmp_path: Path) -> None:
    lines = run("data", "show", "arc", "--mirror", tmp_path).out.splitlines()
    assert [line for line in lines if "file" in line and "fchollet" in line and line[:1].isdigit()] == [
        "400 files: fchollet/ARC-AGI/data/training at 399030444e, 1,436,054 bytes, Apache-2.0, not here",
        "400 files: fchollet/ARC-AGI/data/evaluation at 399030444e, 2,345,957 bytes, Apache-2.0, not here",
    ]


@pytest.mark.slow
@pytest.mark.skipif(not UPSTREAM.is_dir(), reason="the published files are not here")
def test_a_task_is_shown_as_far_as_its_files_are_there(run, tmp_path: Path) -> None:
    outcome = run("data", "show", "passivization", "--mirror", UPSTREAM)
    assert outcome.code == 0
    lines = outcome.out.splitlines()
    assert ["test", "10,000", "10,000"] in [line.split() for line in lines]
    assert ["train", "missing", "100,000"] in [line.split() for line in lines]
    assert any(line.startswith("train: ") and "not in the mirror" in line for line in lines)
    assert "examples of dev" in lines
    assert any(line.startswith("file: ") and "passiv_en_nps.train" in line and "not here" in line for line in lines)
    path = tmp_path / "mine.jsonl"
    path.write_text('{"source": "a . decl", "target": "a ."}\n', encoding="utf-8")
    lines = run("data", "show", "passivization", f"data.train={path}", "--mirror", UPSTREAM).out.splitlines()
    assert f"train: {path} (data.train) in the place of the published split" in lines
    assert ["train", "1"] in [line.split() for line in lines]


def test_texts_are_counted_as_texts(run, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a b\nc d\n", encoding="utf-8")
    arguments = ["model_kind=language_model", f"data.train={path}", f"data.test={path}"]
    assert "test: 2 of 2 whole texts are in train" in run("data", "show", "files", *arguments).out.splitlines()


def test_files_of_the_users_own_are_shown(run, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"source": "1 2", "target": "2 1", "kind": "x"}\n', encoding="utf-8")
    shown = json.loads(run("data", "show", "files", f"data.train={path}", "--json").out)
    assert shown["sizes"] == {"train": 1}
    assert shown["examples"] == [{"source": "1 2", "target": "2 1", "kind": "x"}]


@pytest.mark.slow
def test_the_task_of_a_recipe_is_shown_with_the_recipes_settings(run, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: scan/universal\ntask:\n  split: length\n", encoding="utf-8")
    named = json.loads(run("data", "show", "scan", "split=length", "--json").out)
    assert json.loads(run("data", "show", path, "--json").out) == named
    assert json.loads(run("data", "show", "scan/universal", "task.split=length", "--json").out) == named
    missing = run("data", "show", tmp_path / "gone.yaml")
    assert (missing.code, "there is no such file" in missing.err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "scna"], "task.kind is 'scna': must be one of agreement, "),
        (["show", "scan", "split=lenght"], "task.split is 'lenght': must be one of simple, size, length, "),
        (["show", "files"], "data.train is None: name a file"),
        (["fetch", "scan", "--mirror", "/gone"], "not in the mirror"),
        (["fetch", "cfq"], "cfq1.1.tar.gz is known to check a download with: `ostinato data fetch cfq --trust`"),
    ],
)
def test_what_cannot_be_shown_or_fetched_is_one_line(run, arguments: list[str], expected: str) -> None:
    outcome = run("data", *arguments)
    assert outcome.code == 2
    assert expected in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["data show cfq split=mcd2", "train cfq/universal task.split=mcd2"])
def test_a_command_that_needs_a_file_without_a_known_hash_says_how_to_fetch_it(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run(*command.split())
    assert "`ostinato data fetch cfq split=mcd2 --trust` takes what comes" in outcome.out + outcome.err


def test_trust_lets_a_file_without_a_known_hash_be_downloaded(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    outcome = run("data", "fetch", "cfq", "--trust", "--mirror", "http://127.0.0.1:port")
    assert (outcome.code, "no usable address" in outcome.err) == (2, True)


def test_baselines_are_those_of_the_splits_a_recipe_is_scored_on(run) -> None:
    arguments = ["data", "baselines", "algorithmic/copy-transformer", "task.n_train=50", "task.n_eval=20"]
    found = json.loads(run(*arguments, "--json").out)
    assert set(found) == {"test", "long"}
    assert found["long"]["copy"] == {"exact_match": 1.0, "token_accuracy_free": 1.0}
    assert found["long"]["majority"]["exact_match"] == 0
    lines = [line.split() for line in run(*arguments).out.splitlines()]
    assert ["long", "copy", "exact_match", "1"] in lines


def test_baselines_by_a_column_have_a_line_for_every_value(run) -> None:
    arguments = [
        "data",
        "baselines",
        "algorithmic/copy-transformer",
        "task.n_train=50",
        "task.n_eval=20",
        "--by",
        "length",
    ]
    found = json.loads(run(*arguments, "--json").out)["long"]
    lengths = list(found)
    assert lengths == sorted(lengths, key=int)
    assert len(lengths) > 1
    assert set(found[lengths[0]]) == {"majority", "copy"}
    lines = run(*arguments).out.splitlines()
    assert lines[1].split() == ["split", "length", "baseline", "score", "value"]
    assert sum(line.split()[:3] == ["long", lengths[0], "copy"] for line in lines if line.strip()) > 0


def test_a_generated_task_needs_no_download(run) -> None:
    assert run("data", "fetch", "algorithmic").out == "algorithmic needs no download\n"


@pytest.mark.skipif(not UPSTREAM.is_dir(), reason="the published files are not here")
def test_files_are_fetched_from_a_mirror_and_then_serve_the_plan(run, tmp_path: Path) -> None:
    fetched = json.loads(run("data", "fetch", "scan", "--mirror", UPSTREAM, "--json").out)
    assert all(Path(path).is_relative_to(tmp_path / "cache") for path in fetched["files"].values())
    assert len(fetched["files"]) == 2
    sizes = ["model.source_vocab_size=null", "model.target_vocab_size=null"]
    (counted,) = json.loads(run("plan", "scan/universal", *sizes, "--json").out)
    assert counted["vocabulary"] == {"source": 17, "target": 10, "from": "from the task's data"}


def test_doctor_reports_versions_devices_and_folders(run, tmp_path: Path) -> None:
    found = json.loads(run("doctor", "--json").out)
    assert found["ok"] is True
    versions = {package["name"]: package["version"] for package in found["packages"]}
    assert versions["torch"]
    assert versions["ostinato"].startswith(found["ostinato"])
    assert "threads" in found["devices"]["cpu"]
    assert {"cpu, float32", "cpu, bfloat16"} <= found["experts"].keys()
    assert all(line.startswith("backend ") for line in found["experts"].values())
    assert "what multiplies them" in run("doctor").out
    assert found["data"]["cache"].startswith(str(tmp_path / "cache"))
    assert "everything needed is there" in run("doctor").out


def test_doctor_reports_a_device_without_free_memory(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, device: torch.device, dtype: torch.dtype, *sizes: int | str) -> list[torch.Tensor]:
        if dtype == torch.bfloat16:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return [torch.ones(1)]

    monkeypatch.setattr("ostinato.kernels.feedforward.try_feed_forward", full)
    found = json.loads(run("doctor", "--json").out)
    assert found["ok"] is True
    assert found["experts"]["cpu, bfloat16"] == "not tried: out of memory"
    assert found["experts"]["cpu, float32"].startswith("backend ")


def test_doctor_names_what_is_missing_and_the_line_that_adds_it(run, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata
    from importlib.metadata import PackageNotFoundError

    real = metadata.version

    def version(name: str) -> str:
        if name in ("matplotlib", "sacrebleu"):
            raise PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    outcome = run("doctor")
    assert outcome.code == 1
    assert "for figures: pip install 'matplotlib>=3.8'" in outcome.out
    add = r"needed packages are missing or do not fit; add them: pip install 'sacrebleu[^']*>=2\.4'"
    assert re.search(add, outcome.out)


def test_doctor_says_what_it_cannot_know_where_there_is_no_package(run, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    def requires(name: str) -> list[str]:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", requires)
    outcome = run("doctor")
    assert outcome.code == 0
    assert "ostinato is not installed as a package: what it needs is not known here" in outcome.out
    assert "everything needed" not in outcome.out


@pytest.mark.parametrize(
    ("version", "fits"),
    [
        ("2.5", False),
        ("2.5.1+cu121", False),
        ("2.10.0", False),
        ("2.11", True),
        ("2.11.0+cpu", True),
        ("2.13.1", True),
        ("2.14.0", False),
        ("2.14.0.dev20260101", False),
        ("3.0", False),
    ],
)
def test_doctor_compares_versions(run, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool) -> None:
    from importlib import metadata

    real = metadata.version
    real_requires = metadata.requires
    needed = "torch<2.14,>=2.11"
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "torch" else real(name))
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda name: [needed if one.startswith("torch<") else one for one in real_requires(name) or []],
    )
    outcome = run("doctor", "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, found["ok"]) == ((0, True) if fits else (1, False))
    (torch,) = (package for package in found["packages"] if package["name"] == "torch")
    assert (torch["version"], torch["needs"], torch["fits"]) == (version, ">=2.11,<2.14", fits)
    if not fits:
        text = run("doctor").out
        assert f"{version}: needs >=2.11,<2.14" in text
        assert f"pip install '{needed}'" in text
        assert "something needed is missing, or does not fit" in text


@pytest.mark.slow
def test_a_new_run_never_goes_into_an_old_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = default_directory("scan/universal", "scan/universal", resume=False)
    assert first == Path("runs/scan-universal")
    assert first.is_dir(), "it is this run's from now on"
    with ThreadPoolExecutor(8) as threads:
        found = threads.map(lambda _: default_directory("scan/universal", "scan/universal", resume=False), range(8))
    assert sorted(found) == [Path(f"runs/scan-universal-{n}") for n in range(2, 10)]
    assert default_directory("scan/universal", "scan/universal", resume=True) == first


def test_a_run_that_fails_before_it_writes_leaves_no_directory(run, tmp_path: Path) -> None:
    for given in ([], ["--run-dir", tmp_path / "mine"]):
        assert run("train", "algorithmic/copy-universal", "evaluation.splits=[gen]", *given).code == 2
    assert not (tmp_path / "mine").exists()
    assert not list(tmp_path.rglob("copy-universal*"))


def test_a_run_is_resumed_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("seed: 1\n", encoding="utf-8")
    assert default_directory(str(tmp_path), "anything", resume=True) == tmp_path


def test_a_run_is_resumed_where_its_recipe_is_and_a_recipe_that_is_no_runs_in_the_default_directory(
    tmp_path: Path,
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 1\n", encoding="utf-8")
    assert default_directory(str(recipe), "mine", resume=True) == Path("runs/mine")
    (tmp_path / "versions.json").write_text("{}", encoding="utf-8")  # as every run has
    assert default_directory(str(recipe), "mine", resume=True) == tmp_path


def test_table_shows_measured_speeds_and_refuses_to_mix_them_with_runs(run, tmp_path: Path) -> None:
    speed = {
        "study": "decoding_speed",
        "group": "encoder-decoder",
        "name": "no-dec",
        "workload": {"kind": "decoding", "batch_size": 64, "source_length": 20, "target_length": 20, "beam": 5},
        "median_s": 0.5,
        "low_s": 0.25,
        "high_s": 0.75,
        "n": 6,
        "disturbed": 1,
        "tokens_per_s": 2560.0,
        "seconds": [0.5] * 6,
        "stacks": {},
        "parameters": 57_000_000,
        "macs": {"call": 1_500_000_000, "per_source_token": 1_000_000, "per_generated_token": 2_000_000},
        "speed": {"baseline": "baseline", "value": 1.25, "low": 1.2, "high": 1.3, "n": 6, "verdict": "faster"},
    }
    file = tmp_path / "speed.jsonl"
    file.write_text(json.dumps(speed) + "\n")
    outcome = run("table", file, "--markdown")
    assert outcome.code == 0
    assert outcome.out.splitlines()[2] == (
        "| decoding, batch 64, beam 5 | no-dec | 57,000,000 | 1 | 2 | 1.5 | 500 | 250.0-750.0 | 2,560 | 1.25 "
        "| 1.200-1.300 | 6 | 1 |"
    )
    assert "--source-length: is for runs: the rows of a file" in run("table", file, "--source-length", 9).err
    file.write_text(json.dumps(speed) + "\n" + json.dumps({"name": "a run", "splits": {}}) + "\n")
    assert run("table", file).err == "1 of 2 rows are measured speeds, the others runs: show them apart\n"


def _scored_run(folder: Path, seed: int, scores: dict[str, float]) -> Path:
    folder.mkdir()
    by = {"lang": {language: {"n": 10, "accuracy": value} for language, value in scores.items()}}
    results = {"name": "nli", "seed": seed, "splits": {"test": {"by": by}}}
    (folder / "results.json").write_text(json.dumps(results), encoding="utf-8")
    (folder / "data.json").write_text(json.dumps({"splits": {"test": {"sha256": "same"}}}), encoding="utf-8")
    dump_recipe(check_recipe({"name": "nli", "seed": seed, "task": {"kind": "scan"}}), folder / "recipe.yaml")
    return folder


def test_table_averages_scores_by_a_column_over_its_values_and_over_seeds(run, tmp_path: Path) -> None:
    runs = [
        _scored_run(tmp_path / str(seed), seed, scores)
        for seed, scores in ((1, {"de": 0.5, "ko": 0.25}), (2, {"de": 0.75, "ko": 0.5}))
    ]
    found = json.loads(run("table", *runs, "--by", "lang", "--json").out)
    assert (found["by"], found["mean"], found["seeds"]) == ({"de": 0.625, "ko": 0.375}, 0.5, [1, 2])
    lines = run("table", *runs, "--by", "lang", "--markdown").out.splitlines()
    assert lines[0] == "| test by lang, 2 runs | accuracy |"
    assert lines[2:] == ["| de | 0.625 |", "| ko | 0.375 |", "| mean | 0.5 |", "| sd over seeds | 0.1768 |"]
    assert "sd over seeds" in run("table", *runs, "--by", "lang").out
    assert "no 'f1' among its scores" in run("table", *runs, "--by", "lang", "--metric", "f1").err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--by", "lang", "--csv"], "--csv: cannot go with --by"),
        (["--json", "--markdown"], "--markdown --json: choose one of them"),
        (["--by", "lang", "--jsonl", "x"], "--jsonl: cannot go with --by"),
        (["--metric", "accuracy"], "--metric: is for --by COLUMN"),
        (["--csv", "--examples"], "--csv --examples: is for a sweep"),
    ],
)
def test_options_of_table_that_do_not_go_together_are_wrong_use(
    run, tmp_path: Path, options: list[str], expected: str
) -> None:
    outcome = run("table", _scored_run(tmp_path / "run", 1, {"de": 0.5}), *options)
    assert (outcome.code, expected in " ".join(outcome.err.split())) == (2, True), outcome.err
