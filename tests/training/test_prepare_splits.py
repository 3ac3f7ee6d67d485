from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.tasks.recipes import load_recipe
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
