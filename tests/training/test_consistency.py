"""A second pass with fewer rounds: which ones are drawn, what is added to the loss, and where its gradient goes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from routed_models import gradients
from safetensors.torch import load_file
from test_training_rounds import looped, two_batches, updater_of
from tiny_runs import StopAt, last_checkpoint, tiny_recipe

from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.config.training import ConsistencyConfig, PoissonRoundsConfig, TrainingConfig
from ostinato.errors import ConfigError
from ostinato.models.losses import label_smoothed_loss
from ostinato.nn.execution import Execution
from ostinato.training import train
from ostinato.training.checks import useless_settings
from ostinato.training.loggers import training_numbers
from ostinato.training.rounds import draw_shorter
from ostinato.training.trainable import check_trainable
from ostinato.training.update import Gradient

BOTH = ConsistencyConfig(loss=0.2, states=0.3)


def timed(folder: Path, **training: Any) -> Recipe:
    """Return the recipe of a loop whose gates are made of the times of its rounds."""
    stored = looped(folder, **training).model_dump(mode="json")
    stored["model"]["decoder"]["segments"] = [{"n_steps": 1, "repeats": 4, "modulation": {"kind": "by_time"}}]
    return check_recipe(stored)


def test_paths_have_fewer_steps_that_add_up_to_the_whole_and_depend_on_seed_and_update_only(tmp_path: Path) -> None:
    model = updater_of(timed(tmp_path)).model
    drawn = [draw_shorter(model, {"decoder": 8}, 1, update)["decoder"] for update in range(1, 2001)]
    assert drawn == [draw_shorter(model, {"decoder": 8}, 1, update)["decoder"] for update in range(1, 2001)]
    assert drawn != [draw_shorter(model, {"decoder": 8}, 2, update)["decoder"] for update in range(1, 2001)]
    lengths = Counter(len(path) for path in drawn)
    assert set(lengths) == set(range(1, 8))
    assert all(abs(n / 2000 - 1 / 7) < 0.04 for n in lengths.values())
    for path in drawn:
        assert sum(path) == pytest.approx(1)
        assert all(step > 0 and (8 * step).is_integer() for step in path)
    assert {path[0] for path in drawn if len(path) == 2} == {k / 8 for k in range(1, 8)}
    assert draw_shorter(model, {"decoder": 1}, 1, 1) == {}


@pytest.mark.parametrize("recipe_of", [looped, timed])
def test_the_loss_is_of_both_passes_and_of_their_states(tmp_path: Path, recipe_of: Any) -> None:
    recipe, batches = recipe_of(tmp_path), two_batches()
    updater = updater_of(recipe, consistency=BOTH)
    found = updater.accumulate(batches, 3)
    drawn = gradients(updater.model)
    model = updater_of(recipe).model
    (path,) = draw_shorter(model, model.n_rounds(), updater.seed, 3).values()
    shorter = Execution(
        paths={"decoder": path} if recipe_of is timed else {},
        rounds={} if recipe_of is timed else {"decoder": len(path)},
    )
    total, n_labels, losses = torch.zeros(()), sum(batch.n_labels for batch in batches), []
    means = {"loss": 0.0, "states": 0.0}
    for batch in batches:
        whole, part = model(batch), model(batch, execution=shorter)
        first, second = (
            label_smoothed_loss(one.logits_BTV, batch.labels_BT, batch.loss_mask_BT, updater.config.label_smoothing)
            for one in (whole, part)
        )
        x, y = (one.stacks["decoder"].states_BTD[batch.target.keep_BT] for one in (whole, part))
        losses.append(first.loss + 0.2 * second.loss)
        total = total + losses[-1] / n_labels
        apart = ((x.detach() - y) ** 2).mean() * batch.n_labels / n_labels
        total = total + 0.3 * apart
        means["loss"] += float(second.loss.detach()) / n_labels
        means["states"] += float(apart.detach())
    total.backward()
    assert found.losses == pytest.approx([float(one.detach()) for one in losses], rel=1e-5)
    assert found.consistency is not None
    assert found.consistency["losses"] == pytest.approx(means, rel=1e-5)
    assert found.consistency["weighted"] == pytest.approx(
        {"loss": 0.2 * means["loss"], "states": 0.3 * means["states"]}
    )
    for name, grad in gradients(model).items():
        torch.testing.assert_close(drawn[name], grad, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_a_loss_of_the_second_pass_that_is_not_finite_makes_the_gradient_so() -> None:
    for name in ("loss", "states"):
        losses = {"loss": 1.0, "states": 1.0} | {name: float("inf")}
        assert not Gradient(torch.ones(()), 1.0, [1.0], [1.0], 1, consistency={"losses": losses}).is_finite


def test_metrics_have_the_losses_of_the_second_pass_where_there_is_one(tmp_path: Path) -> None:
    for name, settings in (("with", {"loss": 0.0, "states": 0.5}), ("without", {})):
        recipe = looped(tmp_path / "data", consistency=settings, n_updates=2, log_every=1)
        train(recipe, tmp_path / name)
        lines = (tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [record for record in map(json.loads, lines) if record["kind"] == "training"]
        assert len(records) == 2
        if name == "without":
            assert all("consistency" not in record for record in records)
            continue
        for found in (record["consistency"] for record in records):
            assert found["losses"]["loss"] > 0
            assert found["weighted"] == {"states": 0.5 * found["losses"]["states"]}
        assert training_numbers(records[-1])["consistency/states"] == records[-1]["consistency"]["losses"]["states"]


@pytest.mark.slow
def test_a_run_is_the_same_resumed(tmp_path: Path) -> None:
    settings = {"consistency": {"loss": 0.1, "states": 0.1}, "n_updates": 6, "save_every": 3, "log_every": 1}
    recipe = timed(tmp_path / "data", **settings)
    train(recipe, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "stopped", reporter=StopAt(4))
    train(recipe, tmp_path / "stopped", resume=True)
    whole, stopped = (
        load_file(last_checkpoint(tmp_path / name) / "model.safetensors") for name in ("whole", "stopped")
    )
    assert all(torch.equal(x, stopped[name]) for name, x in whole.items())


def test_sentences_with_rounds_of_their_own_have_no_second_pass() -> None:
    settings = {"rounds": {"kind": "poisson", "per": "sentence"}, "consistency": {"states": 0.1}}
    with pytest.raises(ConfigError, match=r"needs rounds that are the same for all sentences: rounds.per=update"):
        TrainingConfig.model_validate(settings)


def test_a_model_without_rounds_to_leave_out_is_refused(tmp_path: Path) -> None:
    stored = tiny_recipe(tmp_path, kind="language_model", consistency={"loss": 0.1}).model_dump(mode="json")
    stored["model"]["decoder"]["n_steps"] = 2
    recipe = check_recipe(stored)
    with pytest.raises(ConfigError, match=r"training.consistency.loss is 0.1: no stack of this model has rounds"):
        train(recipe, tmp_path / "run")


def with_repeats(recipe: Recipe, repeats: int) -> Recipe:
    """Return the recipe of a loop with another number of rounds."""
    stored = recipe.model_dump(mode="json")
    stored["model"]["decoder"]["segments"][0]["repeats"] = repeats
    return check_recipe(stored)


@pytest.mark.parametrize(
    ("repeats", "rounds"),
    [
        (1, {"kind": "plan", "gradient_rounds": 1}),
        (4, {"kind": "uniform", "least": 1, "most": 1, "gradient_rounds": 1}),
        (4, {"kind": "lognormal_poisson", "most": 1, "gradient_rounds": 1}),
    ],
)
def test_a_new_run_whose_updates_have_one_round_is_refused_what_needs_more(
    tmp_path: Path, repeats: int, rounds: dict[str, Any]
) -> None:
    settings = {"consistency": {"loss": 0.1, "states": 0.2}, "rounds": rounds, "n_updates": 1}
    recipe = with_repeats(looped(tmp_path / "data", **settings), repeats)
    with pytest.raises(ConfigError) as error:
        train(recipe, tmp_path / "run")
    why = "has no effect, because no stack whose rounds share all weights runs more than one: remove it, or run more"
    given = {"rounds.gradient_rounds": 1, "consistency.loss": 0.1, "consistency.states": 0.2}
    assert str(error.value) == "\n".join(f"training.{key} is {value}: {why}" for key, value in given.items())
    with pytest.raises(ConfigError, match=why):
        check_trainable(recipe)
    drawn = recipe.training.model_copy(update={"rounds": PoissonRoundsConfig(rate=1.0, gradient_rounds=1)})
    assert useless_settings(recipe.model_copy(update={"training": drawn})) == []  # of any number of rounds


def test_a_run_that_was_begun_with_a_second_pass_of_one_round_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = with_repeats(looped(tmp_path / "data", consistency={"loss": 0.1}, n_updates=1), 1)
    with monkeypatch.context() as patch:
        patch.setattr("ostinato.training.prepare.useless_settings", lambda recipe: [])
        train(recipe, tmp_path / "begun")
    longer = recipe.model_copy(update={"training": recipe.training.model_copy(update={"n_updates": 2})})
    assert train(longer, tmp_path / "begun", resume=True)["n_updates"] == 2
