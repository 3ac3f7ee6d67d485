"""Sources whose texts are encoded apart: the separator is a token of the source, found when the vocabulary is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from ostinato.config.recipe import Recipe
from ostinato.data.batch import Batch
from ostinato.errors import ConfigError, DataError
from ostinato.evaluation.loading import load
from ostinato.experiments.sweep.run_key import key_settings
from ostinato.models import build_model
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model
from ostinato.training import train


def with_separator(recipe: Recipe, separator: str, id: int | None = None) -> Recipe:
    model = recipe.model.model_copy(update={"source_separator": separator, "source_separator_id": id})
    return recipe.model_copy(update={"model": model})


def test_a_run_knows_the_separators_id_and_its_key_does_not(tmp_path: Path) -> None:
    recipe = with_separator(tiny_recipe(tmp_path, n_updates=1), "a")
    train(recipe, tmp_path / "run")
    run = load(tmp_path / "run")
    assert [run.recipe.model.source_separator_id] == run.tokenizers.source.encode("a")
    assert key_settings(run.recipe)["model.source_separator"] == "a"
    assert "model.source_separator_id" not in key_settings(run.recipe)
    train(with_separator(tiny_recipe(tmp_path, n_updates=2), "a"), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("separator", "id", "error", "message"),
    [
        ("a b", None, ConfigError, "model.source_separator is 'a b': must be one token .* makes 2"),
        ("|||", None, DataError, r"'\|\|\|'"),
        ("a", 0, ConfigError, "model.source_separator_id is 0: the tokenizer gives"),
    ],
)
def test_what_is_no_token_of_the_source_separates_nothing(
    tmp_path: Path, separator: str, id: int | None, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        train(with_separator(tiny_recipe(tmp_path), separator, id), tmp_path / "run")


def test_a_token_that_no_source_has_separates_nothing(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    data = recipe.data.model_copy(update={"target_tokenizer": None})
    for path in tmp_path.glob("*.jsonl"):
        path.write_text(path.read_text(encoding="utf-8").replace('"target": "', '"target": "| '), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"model.source_separator is '\|': is a token of none of the first 1,000 sources"
    ):
        train(with_separator(recipe.model_copy(update={"data": data}), "|"), tmp_path / "run")


def test_an_id_without_its_text_is_no_setting_of_a_recipe() -> None:
    with pytest.raises(ConfigError, match="source_separator_id is 5: follows from"):
        load_recipe("algorithmic/copy-universal", ["model.source_separator_id=5"])


def test_a_comment_in_place_of_a_separator_is_an_error() -> None:
    with pytest.raises(ConfigError, match="is '#SEP#': is a comment in YAML"):
        load_recipe("logical-inference/ut-short", ["model.source_separator=#SEP#"])
    for cut in ("name=run #3", "model.source_separator=a #SEP#"):
        with pytest.raises(ConfigError, match="is a comment in YAML from ' #' on: put all of it in quotes of its own"):
            load_recipe("logical-inference/ut-short", [cut])
    assert load_recipe("digits/transformer", ["name='run #3'"]).name == "run #3"
    assert load_recipe("digits/transformer", ["training.n_updates=7 # few", "name=a#3"]).name == "a#3"


def test_what_a_model_costs_is_counted_before_the_separators_id_is_known() -> None:
    recipe = load_recipe("algorithmic/copy-universal", ["model.source_separator='3'"])
    sized = size_model(recipe, source=14, target=14).model
    cache = build_model(sized).encode(Batch.from_lists([[4]], [[5, 6, 7]]))
    assert cache.memory_BSD is not None
    assert cache.memory_BSD.shape == (1, 4, sized.d_model)
