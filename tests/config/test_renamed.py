"""Old names of settings: refused with the new name where a user writes them, read where the program stored them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from ostinato.config.base import Config
from ostinato.config.decoding import DecodingConfig
from ostinato.config.experts import ExpertAttentionConfig, ExpertFeedForwardConfig, RoutedConfig, SparseLayerConfig
from ostinato.config.load import load_recipe_config
from ostinato.config.model import Seq2SeqConfig
from ostinato.config.recipe import Recipe
from ostinato.config.renamed import RENAMED, first_name, with_new_names
from ostinato.errors import ConfigError

OLD = """
model:
  kind: seq2seq
  encoder:
    self_attention: {kind: experts, n_experts: 6, k: 3}
    ffn: {kind: experts, n_experts: 6, k: 4}
    sparse_layer: {after: 2, n_experts: 4, k: 2}
decoding: {top_k: null}
"""


def lines(source: Path | dict[str, Any], *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_recipe_config(source, overrides)
    return str(caught.value).splitlines()


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def run_recipe(folder: Path) -> Path:
    """Return the recipe of the directory of a run that an older version wrote."""
    write(folder / "versions.json", "{}")
    return write(folder / "recipe.yaml", OLD)


def chosen(recipe: Recipe) -> list[int]:
    assert isinstance(recipe.model, Seq2SeqConfig)
    stack = recipe.model.encoder
    routed = [stack.self_attention, stack.ffn, stack.sparse_layer]
    return [sub.top_k for sub in routed if isinstance(sub, RoutedConfig)]


def test_every_table_names_a_setting_that_is_there_and_one_that_is_not() -> None:
    for node, names in RENAMED.items():
        for old, new in names.items():
            assert old not in node.model_fields
            assert new in node.model_fields or new in names


def test_an_old_name_in_a_recipe_is_one_line_each_with_the_new_name(tmp_path: Path) -> None:
    assert lines(write(tmp_path / "mine.yaml", OLD)) == [
        "model.encoder.self_attention.k is 3: was renamed: use top_k",
        "model.encoder.ffn.k is 4: was renamed: use top_k",
        "model.encoder.sparse_layer.k is 2: was renamed: use top_k",
    ]


def test_an_old_name_in_an_override_is_one_line_whatever_else_depends_on_the_setting() -> None:
    settings = {"model": {"encoder": {"ffn": {"kind": "experts", "n_experts": 4, "gate": {"n_sampled": 3}}}}}
    assert lines(settings, "model.encoder.ffn.k=4") == ["model.encoder.ffn.k is 4: was renamed: use top_k"]
    assert lines(settings, "model.encoder.ffn.k=4", "model.encoder.ffn.top_k=4") == [
        "model.encoder.ffn.k is 4: was renamed: use top_k"
    ]


def test_where_no_setting_ever_had_the_name_it_is_unknown() -> None:
    (line,) = lines({"model": {"encoder": {"ffn": {"kind": "dense"}}}}, "model.encoder.ffn.k=4")
    assert line.startswith("model.encoder.ffn.k is 4: no such setting")


def test_the_recipe_of_a_run_is_read_and_may_be_the_base_of_another(tmp_path: Path) -> None:
    old = run_recipe(tmp_path / "run")
    assert chosen(load_recipe_config(old)) == [3, 4, 2]
    assert chosen(load_recipe_config(old, ["model.encoder.ffn.top_k=1"])) == [3, 1, 2]
    derived = write(tmp_path / "mine.yaml", "base: run/recipe.yaml\nseed: 2\n")
    assert chosen(load_recipe_config(derived)) == [3, 4, 2]


def test_what_a_user_adds_to_the_recipe_of_a_run_has_the_new_names(tmp_path: Path) -> None:
    old = run_recipe(tmp_path / "run")
    assert lines(old, "model.encoder.ffn.k=1") == ["model.encoder.ffn.k is 1: was renamed: use top_k"]
    derived = write(tmp_path / "mine.yaml", "base: run/recipe.yaml\nmodel: {encoder: {ffn: {k: 1}}}\n")
    assert lines(derived) == ["model.encoder.ffn.k is 1: was renamed: use top_k"]
    alone = write(tmp_path / "folder" / "recipe.yaml", OLD)
    assert len(lines(alone)) == 3


def test_stored_settings_of_other_groups_and_unknown_ones_stay_as_they_are() -> None:
    stored = {"model": {"kind": "seq2seq", "encoder": {"ffn": {"kind": "dense", "k": 2}}, "k": 1}, "task": {"k": 5}}
    assert with_new_names(stored, Recipe) == stored


@pytest.mark.parametrize("node", [RoutedConfig, ExpertFeedForwardConfig, ExpertAttentionConfig, SparseLayerConfig])
def test_a_setting_keeps_its_first_name_in_hashes(node: type[BaseModel]) -> None:
    assert first_name(node, "top_k") == "k"
    assert first_name(node, "n_experts") == "n_experts"
    assert first_name(DecodingConfig, "top_k") == "top_k"


def test_a_setting_may_be_renamed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(Config):
        newest: int = 0

    monkeypatch.setitem(RENAMED, Twice, {"oldest": "older", "older": "newest"})
    assert with_new_names({"oldest": 3}, Twice) == with_new_names({"older": 3}, Twice) == {"newest": 3}
    assert first_name(Twice, "newest") == "oldest"
