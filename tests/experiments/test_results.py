from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from ostinato.analysis.curves import learning_curves
from ostinato.budget import Assumptions, count_macs
from ostinato.errors import CheckpointError, DataError
from ostinato.experiments.results import (
    assumptions_of,
    check_run_row,
    four_digits,
    markdown,
    pass_lengths,
    read_results,
    read_rows,
    run_row,
    table,
    write_rows,
)
from ostinato.models import load_model
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.training.checkpoint import Checkpoints

TINY = ["task.n_train=40", "task.n_eval=8", "training.n_updates=2", "training.n_threads=1"]


@pytest.mark.slow
def test_a_finished_run_becomes_a_row_with_its_scores_task_and_macs(tmp_path: Path) -> None:
    results = train(load_recipe("digits/transformer", TINY), tmp_path / "run")
    row = run_row(tmp_path / "run", (7, 9))
    resolved = load_recipe(str(tmp_path / "run" / "recipe.yaml"))
    assert row["splits"] == results["splits"]
    assert row["task"]["operation"] == "reverse"
    assert row["directory"] == str(tmp_path / "run")
    assert row["macs"] == {"source_length": 7, "target_length": 9, "total": count_macs(resolved.model, 7, 9).total}
    write_rows([row], tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == [json.loads(json.dumps(row))]
    columns, lines = table([row])
    shown = [dict(zip(columns, line, strict=True)) for line in lines]
    assert [line["split"] for line in shown] == ["test", "long"]
    assert [line["exact_match"] for line in shown] == [row["splits"][s]["exact_match"] for s in ("test", "long")]


def test_numbers_that_json_does_not_have_are_written_as_null(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows([{"loss": float("nan"), "by": [{"perplexity": float("inf")}, 0.5]}], path)
    assert path.read_text(encoding="utf-8") == '{"loss": null, "by": [{"perplexity": null}, 0.5]}\n'
    assert read_rows(path) == [{"loss": None, "by": [{"perplexity": None}, 0.5]}]


DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text",
    ["[]", "", '{"splits": {', "null", '"x"', pytest.param(DEEP, id="deep"), "{}", '{"splits": {"test": 3}}', "\xff"],
)
def test_damaged_results_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"results.json: is damaged: ") as caught:
        read_results(tmp_path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("line", ["[]", "3", "{", pytest.param(DEEP, id="deep")])
def test_a_damaged_line_of_a_file_of_rows_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "rows.jsonl").write_text('{"n": 1}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"rows.jsonl, line 2: (not |a JSON )"):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.slow
def test_results_that_lack_what_tables_read_are_named_with_the_key(tmp_path: Path) -> None:
    train(load_recipe("digits/transformer", TINY), tmp_path)
    path = tmp_path / "results.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    for key in ("name", "seed", "parameters", "seconds"):
        path.write_text(json.dumps(whole | {key: []}), encoding="utf-8")
        with pytest.raises(CheckpointError, match=f"results.json: is damaged: needs '{key}'"):
            run_row(tmp_path)
    path.write_text(json.dumps(whole | {"splits": {"test": {}}}), encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"needs 'splits.test.n'"):
        run_row(tmp_path)


ROW: dict[str, Any] = {"name": "a", "seed": 1, "parameters": 9, "seconds": 0.5, "splits": {"test": {"n": 3}}}


@pytest.mark.parametrize(
    ("row", "needed"),
    [
        ({}, "splits"),
        ({"splits": [1]}, "splits"),
        ({"splits": {}, "name": 3}, "name"),
        (ROW | {"splits": {"test": {}}}, "splits.test.n"),
        (ROW, "macs.total"),
        (ROW | {"macs": {"total": "many"}}, "macs.total"),
        (ROW | {"macs": {"total": 10}, "forced": 3}, "forced"),
    ],
)
def test_rows_of_a_file_that_lack_what_tables_read_are_named(row: dict[str, Any], needed: str) -> None:
    with pytest.raises(CheckpointError, match=f"^rows.jsonl, row 2: is damaged: needs '{needed}'"):
        check_run_row(row, "rows.jsonl, row 2")
    check_run_row(ROW | {"macs": {"total": 10}}, "rows.jsonl, row 2")


@pytest.mark.parametrize("damage", [{"python": [3]}, {"python": [3, [1, 2], None]}, {"numpy": ["x", [1], 2, 3, 4]}, []])
def test_damaged_random_states_are_named_when_a_run_is_resumed(tmp_path: Path, damage: object) -> None:
    train(load_recipe("digits/transformer", TINY), tmp_path)
    (path,) = tmp_path.glob("checkpoints/update-*/state.json")
    content = json.loads(path.read_text(encoding="utf-8"))
    content["random"] = content["random"] | damage if isinstance(damage, dict) else damage
    del content["content_sha256"]
    path.write_text(json.dumps(content), encoding="utf-8")
    before = random.getstate()
    with pytest.raises(CheckpointError, match=r"state.json: (not a training state|is damaged)"):
        Checkpoints(tmp_path / "checkpoints", 1).load(torch.device("cpu"))
    assert random.getstate() == before


def test_files_of_a_run_have_the_permissions_that_the_umask_gives(tmp_path: Path) -> None:
    train(load_recipe("digits/transformer", TINY), tmp_path / "run")
    plain = tmp_path / "plain"
    plain.touch()
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {name: mode for name, mode in modes.items() if mode != plain.stat().st_mode} == {}


def test_a_description_of_a_model_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(DEEP, encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"model.json: .*nested too deeply"):
        load_model(tmp_path)


def test_a_record_of_metrics_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(DEEP + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"metrics.jsonl, line 1: "):
        learning_curves(tmp_path / "metrics.jsonl")


def test_a_decoder_only_model_of_pairs_is_counted_for_both_sides_in_one_sequence(tmp_path: Path) -> None:
    sizes = ["model.d_model=16", "model.decoder.self_attention.n_heads=2", "decoding.max_length=6"]
    recipe = load_recipe("digits/transformer", [*TINY, "model.kind=language_model", *sizes])
    train(recipe, tmp_path / "run")
    macs = run_row(tmp_path / "run", (7, 9))["macs"]
    model = load_recipe(str(tmp_path / "run" / "recipe.yaml")).model
    assert macs == {"source_length": 7, "target_length": 9, "total": count_macs(model, 7, 16).total}
    assert pass_lengths(load_recipe("digits/transformer"), (7, 9)) == (7, 9)


def test_a_language_model_of_texts_is_counted_for_the_target_alone() -> None:
    assert pass_lengths(load_recipe("depth/small"), (7, 9)) == (7, 9)


def test_a_model_is_counted_as_its_recipe_trains_and_decodes_it() -> None:
    settings = ["training.checkpoint_activations=true", "training.precision=bfloat16", "decoding.cached_rounds=2"]
    found = assumptions_of(load_recipe("looped/small", settings), Assumptions(7, 9, 3, 2))
    assert found == Assumptions(7, 9, 3, 2, "bfloat16", checkpoint_activations=True, cached_rounds=2)


def test_the_accuracy_of_a_ranking_is_a_column() -> None:
    ranking = {"n": 3, "accuracy": 0.75, "by": {}, "macro": {}}
    splits = {"dev": {"n": 3, "loss": 0.5}, "test": {"n": 3, "loss": 0.25, "ranking": ranking}}
    columns, lines = table([ROW | {"splits": splits, "macs": {"total": 1}}])
    assert columns[-2:] == ["loss", "ranking"]
    assert [line[-2:] for line in lines] == [[0.5, None], [0.25, 0.75]]


def test_a_teacher_forced_score_is_a_column_where_a_task_is_reported_by_it() -> None:
    found = {"n": 3, "loss": 0.5, "perplexity": 1.6, "sequence_accuracy_forced": 0.75, "seconds": 2.0}
    row = ROW | {"splits": {"test": found}, "macs": {"total": 1}}
    assert table([row])[0][-2:] == ["n", "loss"]
    columns, ((*_, loss, accuracy),) = table([row | {"forced": ["sequence_accuracy_forced"]}])
    assert columns[-3:] == ["n", "loss", "sequence_accuracy_forced"]
    assert (loss, accuracy) == (0.5, 0.75)


def test_counts_of_passes_of_other_lengths_do_not_share_a_column() -> None:
    row = {"name": "a", "seed": 1, "parameters": 5, "seconds": 1, "splits": {"test": {"n": 2}}}
    short, long = (row | {"macs": {"total": 1e6, "source_length": n, "target_length": n}} for n in (16, 128))
    assert table([short, short])[0][3] == "M MACs (16 to 16 tokens)"
    with pytest.raises(DataError, match="passes of 16 to 16 tokens, 128 to 128 tokens"):
        table([short, long])


def test_runs_of_one_recipe_are_told_apart_by_their_directories() -> None:
    def names(*given: tuple[str, str | None]) -> list[object]:
        rows = [ROW | {"name": name, "macs": {"total": 1}} | ({"directory": d} if d else {}) for name, d in given]
        return [line[0] for line in table(rows)[1]]

    assert names(("a", "runs/1"), ("b", "runs/2")) == ["a", "b"]
    assert names(("a", "runs/1"), ("a", "runs/2")) == ["1", "2"]
    assert names(("a", "runs/1"), ("a", "other/1")) == ["runs/1", "other/1"]
    assert names(("a", "runs/1"), ("a", None)) == ["1", "a"]  # rows of a file that an earlier version wrote


def test_an_unfinished_run_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no results\.json: the run is not finished"):
        run_row(tmp_path)


def test_markdown_leaves_missing_scores_empty_and_groups_thousands() -> None:
    text = markdown(["run", "parameters", "bleu"], [["a", 12345, None], ["b", 1, 0.123456]])
    assert text.splitlines() == [
        "| run | parameters | bleu |",
        "|---|---|---|",
        "| a | 12,345 |  |",
        "| b | 1 | 0.1235 |",
    ]


def test_markdown_keeps_bars_of_names_inside_their_cells_and_writes_large_numbers_out() -> None:
    text = markdown(["a|b", "M MACs"], [["x|y", 12345.67], ["z", 999.96], ["w", 1e20], ["v", float("inf")]])
    assert text.splitlines() == [
        r"| a\|b | M MACs |",
        "|---|---|",
        r"| x\|y | 12,345.7 |",
        "| z | 1000 |",
        "| w | 1e+20 |",
        "| v | inf |",
    ]


def test_a_share_that_is_not_all_is_not_written_as_1() -> None:
    texts = [four_digits(value) for value in (29_999 / 30_000, 1 - 2**-53, 1.0, 1.00001, 0.99994)]
    assert texts == ["0.99997", "0.9999999999999999", "1", "1", "0.9999"]
    assert markdown(["a"], [[29_999 / 30_000]]).splitlines()[-1] == "| 0.99997 |"
