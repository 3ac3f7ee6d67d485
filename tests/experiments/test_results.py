from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.budget import count_macs
from ostinato.errors import CheckpointError
from ostinato.experiments.results import markdown, pass_lengths, read_rows, run_row, table, write_rows
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

TINY = ["task.n_train=40", "task.n_eval=8", "training.n_updates=2", "training.n_threads=1"]


def test_a_finished_run_becomes_a_row_with_its_scores_task_and_macs(tmp_path: Path) -> None:
    results = train(load_recipe("demo/transformer", TINY), tmp_path / "run")
    row = run_row(tmp_path / "run", (7, 9))
    resolved = load_recipe(str(tmp_path / "run" / "recipe.yaml"))
    assert row["splits"] == results["splits"]
    assert row["task"]["operation"] == "reverse"
    assert row["macs"] == {"source_length": 7, "target_length": 9, "total": count_macs(resolved.model, 7, 9).total}
    write_rows([row], tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == [json.loads(json.dumps(row))]
    columns, lines = table([row])
    shown = [dict(zip(columns, line, strict=True)) for line in lines]
    assert [line["split"] for line in shown] == ["test", "long"]
    assert [line["exact_match"] for line in shown] == [row["splits"][s]["exact_match"] for s in ("test", "long")]


def test_a_decoder_only_model_of_pairs_is_counted_for_both_sides_in_one_sequence(tmp_path: Path) -> None:
    sizes = ["model.d_model=16", "model.decoder.self_attention.n_heads=2", "decoding.max_length=6"]
    recipe = load_recipe("demo/transformer", [*TINY, "model.kind=language_model", *sizes])
    train(recipe, tmp_path / "run")
    macs = run_row(tmp_path / "run", (7, 9))["macs"]
    model = load_recipe(str(tmp_path / "run" / "recipe.yaml")).model
    assert macs == {"source_length": 7, "target_length": 9, "total": count_macs(model, 7, 16).total}
    assert pass_lengths(load_recipe("demo/transformer"), (7, 9)) == (7, 9)


def test_a_language_model_of_texts_is_counted_for_the_target_alone() -> None:
    assert pass_lengths(load_recipe("depth/small"), (7, 9)) == (7, 9)


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
