from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.errors import ConfigError
from ostinato.tasks.derived import write_derived
from ostinato.tasks.recipes import load_recipe

NOTES = {"description": "a smaller one", "command": "ostinato solve ..."}


def test_a_derived_recipe_loads_with_its_settings_and_says_where_it_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "new" / "small.yaml"
    overrides = ["seed=7", "model.decoder.n_steps=2", "model.decoder.ffn.d_ff=${model.d_model}"]
    write_derived(path, "lm/transformer", overrides=overrides, model={"decoder.n_steps": 3}, **NOTES)
    recipe, base = load_recipe(path), load_recipe("lm/transformer")
    assert (recipe.name, recipe.description, recipe.seed) == ("small", "a smaller one", 7)
    stack = recipe.model.stacks()["decoder"]
    assert (stack.n_steps, stack.ffn.d_ff) == (3, base.model.d_model)
    assert (recipe.training, recipe.data) == (base.training, base.data)
    assert path.read_text(encoding="utf-8").startswith("# Written by: ostinato solve ...\nbase: lm/transformer\n")


def test_a_base_that_is_a_file_is_found_from_the_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("base: lm/transformer\nseed: 3\n", encoding="utf-8")
    path = write_derived(Path("arms/a.yaml"), "mine.yaml", model={"decoder.n_steps": 1}, **NOTES)
    assert "base: ../mine.yaml\n" in path.read_text(encoding="utf-8")
    assert load_recipe(path).seed == 3
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    (run / "recipe.yaml").write_text("base: lm/transformer\nseed: 4\n", encoding="utf-8")
    assert load_recipe(write_derived(Path("b.yaml"), "runs/x", **NOTES)).seed == 4


def test_only_files_that_were_written_so_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    write_derived(path, "lm/transformer", model={"d_model": 64}, **NOTES)
    write_derived(path, "lm/transformer", model={"d_model": 32}, **NOTES)
    assert load_recipe(path).model.d_model == 32
    path.write_text("seed: 1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="is there already, and was not written by this command"):
        write_derived(path, "lm/transformer", **NOTES)
    assert path.read_text(encoding="utf-8") == "seed: 1\n"


def test_an_unknown_base_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="recipe is 'lm/transfromer'"):
        write_derived(tmp_path / "new" / "a.yaml", "lm/transfromer", **NOTES)
    assert not (tmp_path / "new").exists()
