from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from ostinato import metrics
from ostinato.config.data import TokenizerConfig
from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.errors import CheckpointError, ConfigError, DataError, OstinatoError, Problem
from ostinato.evaluation.evaluate import evaluate
from ostinato.evaluation.loading import load
from ostinato.metrics import ExactMatch
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task
from ostinato.training import train


@pytest.mark.parametrize(("given", "evaluated"), [(["dev"], ["dev"]), (["dev", "test"], ["test"])])
def test_without_named_splits_the_test_set_is_evaluated_and_dev_where_there_is_none(
    tmp_path: Path, given: list[str], evaluated: list[str]
) -> None:
    rows = [json.dumps({"source": f"a {i}", "target": f"{i} a"}) + "\n" for i in range(8)]
    for name in ("train", *given):
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "model: {d_model: 16, encoder: {n_steps: 1, self_attention: {n_heads: 2}, ffn: {d_ff: 16}},\n"
        "  decoder: {n_steps: 1, self_attention: {n_heads: 2}, cross_attention: {n_heads: 2}, ffn: {d_ff: 16}}}\n"
        "training: {n_updates: 1, n_threads: 1}\ndecoding: {max_length: 4}\n"
    )
    files = [f"data.{name}={tmp_path / name}.jsonl" for name in ("train", *given)]
    results = train(load_recipe(str(recipe), files), tmp_path / "run")
    assert list(results["splits"]) == evaluated
    assert load_recipe(str(tmp_path / "run" / "recipe.yaml")).evaluation.splits == evaluated


@pytest.mark.parametrize(("named", "evaluated"), [(["test", "gen"], ["test"]), (["iid", "gen"], ["iid", "gen"])])
def test_splits_of_ones_own_are_evaluated_where_none_is_called_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: list[str], evaluated: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = with_settings(tiny_recipe(tmp_path / "letters", n_updates=1), "evaluation", splits=None)
    for name in named:
        shutil.copyfile(tmp_path / "letters" / "test.jsonl", tmp_path / f"{name}.jsonl")
    data = recipe.data.model_copy(update={"test": {name: f"{name}.jsonl" for name in named}})
    recipe = recipe.model_copy(update={"data": data})
    results = train(recipe, tmp_path / "run")
    assert list(results["splits"]) == evaluated
    kept = load_recipe(str(tmp_path / "run"))
    assert kept.data.test == {name: str(tmp_path / f"{name}.jsonl") for name in named}
    described = json.loads((tmp_path / "run" / "data.json").read_text(encoding="utf-8"))
    assert {str(tmp_path / f"{name}.jsonl") for name in named} <= {file["path"] for file in described["files"]}
    assert load(tmp_path / "run").evaluate("gen")["n"] == 10


def with_settings(recipe: Recipe, group: str, **settings: object) -> Recipe:
    return recipe.model_copy(update={group: getattr(recipe, group).model_copy(update=settings)})


@pytest.mark.parametrize(
    ("kind", "group", "settings", "line", "expected"),
    [
        ("seq2seq", "evaluation", {"by": ["m"]}, None, "test: example 1 has no column 'm'; its columns are: n"),
        (
            "seq2seq",
            "data",
            {},
            '{"source": "a z", "target": "a", "n": 1}',
            "test: example 2, source: 'z' is not among",
        ),
        (
            "seq2seq",
            "data",
            {"max_target_length": 7},
            '{"source": "a", "target": "a a a a a a a", "n": 1}',
            "has 8 tokens",
        ),
        ("language_model", "evaluation", {"metrics": ["bleu"]}, None, "evaluation.metrics is 'bleu': the task's texts"),
    ],
)
def test_what_would_end_the_final_evaluation_ends_the_run_before_its_first_update(
    tmp_path: Path, kind: str, group: str, settings: dict[str, object], line: str | None, expected: str
) -> None:
    recipe = with_settings(tiny_recipe(tmp_path, kind=kind), group, **settings)
    if line is not None:
        lines = (tmp_path / "test.jsonl").read_text().splitlines()
        (tmp_path / "test.jsonl").write_text("\n".join([lines[0], line, *lines[2:]]) + "\n")
    with pytest.raises(OstinatoError, match=expected) as caught:
        train(recipe, tmp_path / "run")
    assert isinstance(caught.value, ConfigError | DataError)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


AGREEMENT = [
    {"source": "the birds", "target": "sing", "wrong": "sings", "n_attractors": 0},
    {"source": "the bird", "target": "sings", "wrong": "singing", "n_attractors": 0},
]
LABELLED = [{"source": "sings", "target": "bird"}, {"source": "moves", "target": "boat"}]
ONE_STEP = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
WRITER = {"kind": "language_model", "d_model": 8, "decoder": ONE_STEP}
CLASSIFIER = {"kind": "encoder", "head": {"kind": "classification"}, "d_model": 8, "encoder": ONE_STEP}
OF_FILES = {"kind": "agreement", "origin": "files", "train_form": "prefixes"}
RANKED = {"kind": "classification", "choices": ["bird", "boat", "key"]}


@pytest.mark.parametrize(
    ("rows", "task", "model", "expected"),
    [
        (AGREEMENT, OF_FILES, WRITER, "test: example 2, with its .*: example 2: 'singing' is not among the 5 words"),
        (LABELLED, RANKED, WRITER, "test: example 1, with its .*: example 3, target: 'key' is not among the 4 words"),
        (LABELLED, RANKED, CLASSIFIER, "test: example 1, with its .*: example 3: 'key' is not among the 2 labels"),
    ],
)
def test_a_wrong_target_that_cannot_be_encoded_ends_the_run_before_its_first_update(
    tmp_path: Path, rows: list[dict[str, object]], task: dict[str, object], model: dict[str, object], expected: str
) -> None:
    (file := tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {split: str(file) for split in ("train", "dev", "test")}
    training = {"n_updates": 1, "device": "cpu"}
    with pytest.raises(DataError, match=expected):
        train(check_recipe({"task": task, "data": data, "model": model, "training": training}), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_a_column_of_identifiers_ends_the_run_before_its_first_update(tmp_path: Path) -> None:
    recipe = with_settings(tiny_recipe(tmp_path, n_updates=1), "evaluation", by=["id"])
    rows = [{"source": "a", "target": "a", "id": number} for number in range(1001)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        DataError, match="test: column 'id' has more than 1000 values: report by a column of categories"
    ):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_blocks_of_texts_have_no_columns_and_texts_that_are_continued_keep_theirs(tmp_path: Path) -> None:
    texts = with_settings(tiny_recipe(tmp_path, kind="language_model", n_updates=1), "data", block_length=8)
    with pytest.raises(ConfigError, match=r"evaluation\.by is \['n'\]: blocks of several texts .* have no column"):
        train(with_settings(texts, "evaluation", by=["n"]), tmp_path / "texts")
    task = {"kind": "agreement", "n_train": 300, "n_eval": 4, "max_attractors": 2}
    settings = {"task": task, "model": WRITER, "training": {"n_updates": 1, "device": "cpu"}}
    results = train(check_recipe(settings | {"data": {"block_length": 16}}), tmp_path / "run")
    test = results["splits"]["test"]
    assert {value: found["n"] for value, found in test["by"]["n_attractors"].items()} == {"0": 4, "1": 4, "2": 4}
    assert test["ranking"]["by"]["n_attractors"].keys() == test["by"]["n_attractors"].keys()


def test_the_training_split_is_scored_by_those_of_the_tasks_columns_that_it_has(tmp_path: Path) -> None:
    task = {"kind": "agreement", "n_train": 300, "n_eval": 4, "max_attractors": 2}
    training = {"n_updates": 1, "device": "cpu", "selection": {"split": "train"}}
    settings = {"task": task, "model": WRITER, "training": training}
    evaluation = {"splits": ["train", "test"], "max_examples": 6}
    results = train(check_recipe(settings | {"evaluation": evaluation}), tmp_path / "run")
    assert {split: list(found["by"]) for split, found in results["splits"].items()} == {
        "train": [],
        "test": ["n_attractors"],
    }
    run = load(tmp_path / "run", device="cpu")
    assert run.evaluate("train")["loss"] == results["splits"]["train"]["loss"]
    with pytest.raises(DataError, match="train: example 1 has no column 'n_attractors'"):
        run.evaluate("train", by=["n_attractors"])
    with pytest.raises(DataError, match=r"train, .*: example 1 has no column 'n_attractors'"):
        train(check_recipe(settings | {"evaluation": evaluation | {"by": ["n_attractors"]}}), tmp_path / "asked")


def test_examples_that_are_never_scored_are_not_checked(tmp_path: Path) -> None:
    recipe = with_settings(tiny_recipe(tmp_path, n_updates=1), "evaluation", max_examples=2)
    with (tmp_path / "test.jsonl").open("a") as file:
        file.write('{"source": "z", "target": "z"}\n')
    assert train(recipe, tmp_path / "run")["splits"]["test"]["n"] == 2


def test_of_some_examples_those_spread_over_the_split_are_checked(tmp_path: Path) -> None:
    recipe = with_settings(tiny_recipe(tmp_path, n_updates=1), "evaluation", max_examples=2)
    lines = (tmp_path / "test.jsonl").read_text().splitlines()
    lines[len(lines) // 2] = '{"source": "z", "target": "z", "n": 1}'
    (tmp_path / "test.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match="test, 2 examples spread evenly: example 2, source: 'z' is not among"):
        train(recipe, tmp_path / "run")


def test_a_checkpoint_is_selected_on_examples_spread_over_the_split(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, n_updates=1, evaluate_every=1, selection={"max_examples": 3})
    train(recipe, tmp_path / "run")
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    scores = next(record["scores"] for record in records if record["kind"] == "evaluation")
    trained = load(tmp_path / "run", device="cpu")
    examples = list(build_task(recipe.task, recipe.data, None).examples("dev"))
    spread = [examples[k * len(examples) // 3] for k in range(3)]
    again = evaluate(trained.model, spread, trained.tokenizers, data=recipe.data, decoding=recipe.decoding, metrics=[])
    assert len(examples) > 5
    assert (scores["n"], scores["loss"]) == (3, pytest.approx(again["loss"], rel=1e-6))


def test_a_language_model_is_not_selected_by_what_has_to_be_decoded(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, kind="language_model", selection={"metric": "bleu", "mode": "max"})
    with pytest.raises(ConfigError, match=r"training\.selection\.metric is 'bleu': the task's texts have no source"):
        train(recipe, tmp_path / "run")


@pytest.mark.parametrize(
    ("model", "data", "reason"),
    [
        ({"mask": "prefix"}, {}, "every token of which is a label$"),
        ({}, {"max_target_length": 4, "over_length": "truncate"}, "every token of which is a label$"),
        (
            {},
            {"tokenizer": TokenizerConfig(min_count=40), "unknown": "replace"},
            "and none of them unknown: data.tokenizer.kind=bpe, or a larger vocabulary, knows every text",
        ),
    ],
)
def test_no_checkpoint_is_selected_by_a_score_of_whole_texts_where_they_are_none(
    tmp_path: Path, model: dict[str, object], data: dict[str, object], reason: str
) -> None:
    of_texts = tiny_recipe(tmp_path, kind="language_model", selection={"metric": "bits_per_byte", "mode": "min"})
    recipe = with_settings(with_settings(of_texts, "model", **model), "data", **data)
    with pytest.raises(ConfigError, match=rf"selection\.metric is 'bits_per_byte': there is none of dev.*{reason}"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_results_hold_the_datas_hashes_and_a_run_goes_on_with_the_same_data_only(tmp_path: Path, split: str) -> None:
    recipe = tiny_recipe(tmp_path, n_updates=1)
    results = train(recipe, tmp_path / "run")
    described = json.loads((tmp_path / "run" / "data.json").read_text())["splits"]
    assert results["data_sha256"] == {name: found["sha256"] for name, found in described.items()}
    assert set(described) == {"train", "dev", "test"}
    path = tmp_path / f"{split}.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(CheckpointError, match=f"the examples of '{split}' are not those the run was started with"):
        train(recipe, tmp_path / "run", resume=True)


@pytest.mark.parametrize("as_selection", [False, True])
def test_a_metric_that_cannot_be_had_is_an_error_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_selection: bool
) -> None:
    class Lacking(ExactMatch):
        def __init__(self) -> None:
            raise ConfigError([Problem("evaluation.metrics", "bleu", "needs what is not here")])

    monkeypatch.setitem(metrics._OURS, "bleu", Lacking)
    recipe = tiny_recipe(tmp_path / "letters", n_updates=1)
    if as_selection:
        selection = recipe.training.selection.model_copy(update={"metric": "bleu", "mode": "max"})
        recipe = with_settings(recipe, "training", selection=selection)
    else:
        recipe = with_settings(recipe, "evaluation", metrics=["bleu"])
    with pytest.raises(ConfigError, match="needs what is not here"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
