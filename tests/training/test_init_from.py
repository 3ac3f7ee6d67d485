"""A run that starts from another's weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_runs import tiny_recipe

from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.data.tokenizer import Tokenizers
from ostinato.errors import ConfigError
from ostinato.models.checkpoint import load_model
from ostinato.training import train
from ostinato.training.checkpoint import Checkpoints
from ostinato.training.initial import start_from
from ostinato.training.reporter import SilentReporter


class Notes(SilentReporter):
    """Remembers how a run began."""

    info: dict[str, Any]

    def on_start(self, recipe: Recipe, info: dict[str, Any]) -> None:
        self.info = info


def changed(recipe: Recipe, **training: Any) -> Recipe:
    """Return the recipe with other training settings."""
    content = recipe.model_dump(mode="json")
    content["training"] |= training
    return check_recipe(content)


def with_gates(recipe: Recipe) -> Recipe:
    """Return the recipe with a halting encoder."""
    content = recipe.model_dump(mode="json")
    content["model"]["encoder"]["halting"] = {"kind": "stick_breaking"}
    return check_recipe(content)


def test_a_run_starts_from_the_weights_and_the_tokenizers_of_another(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data")
    train(recipe, tmp_path / "first")
    best = load_file(Checkpoints(tmp_path / "first" / "checkpoints", 1).best_directory() / "model.safetensors")
    # A rate of next to nothing leaves what a run starts from; its data has other words, and another order of them.
    for split in ("train", "dev", "test"):
        Path(getattr(recipe.data, split)).write_text(
            '{"source": "f e", "target": "e f", "n": 2}\n' * 30, encoding="utf-8"
        )
    notes = Notes()
    still = changed(with_gates(recipe), init_from=str(tmp_path / "first"), optimizer={"kind": "adam", "lr": 1e-12})
    train(still, tmp_path / "second", reporter=notes)
    found = load_file(Checkpoints(tmp_path / "second" / "checkpoints", 1).best_directory() / "model.safetensors")
    assert sorted(notes.info["new_parameters"]) == sorted(found.keys() - best.keys())
    assert all(".halting.encoder." in name for name in notes.info["new_parameters"])
    assert notes.info["new_parameters"]
    assert all(torch.allclose(found[name], best[name], rtol=0, atol=1e-8) for name in best)
    tokenizers = [Tokenizers.load(tmp_path / run / "tokenizers") for run in ("first", "second")]
    assert tokenizers[0].source.encode("a b c") == tokenizers[1].source.encode("a b c")


def test_a_run_that_was_interrupted_goes_on_from_its_own_weights(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data")
    train(recipe, tmp_path / "first")
    own = changed(recipe, init_from=str(tmp_path / "first"))
    train(own, tmp_path / "second")
    again = train(own, tmp_path / "second", resume=True)
    assert again == json.loads((tmp_path / "second" / "results.json").read_text(encoding="utf-8"))


def test_weights_without_a_place_and_runs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path / "data")
    train(with_gates(recipe), tmp_path / "first")
    model = load_model(Checkpoints(tmp_path / "first" / "checkpoints", 1).best_directory())
    assert start_from(model, str(tmp_path / "first")) == []
    with pytest.raises(
        ConfigError, match=r"training\.init_from .* weights do not fit: .*halting.* is not in this model"
    ):
        train(changed(recipe, init_from=str(tmp_path / "first")), tmp_path / "second")
    with pytest.raises(ConfigError, match=r"training\.init_from .*nowhere.*: holds no run"):
        train(changed(recipe, init_from=str(tmp_path / "nowhere")), tmp_path / "third")
