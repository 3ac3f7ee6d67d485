"""Runs that version 0.1.0 trained before its restructuring load, and give what they gave: see make.py."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from observed import numbers, observe, unpack
from safetensors.torch import load_file

from ostinato import load
from ostinato.config.decoding import DecodingConfig
from ostinato.experiments.results import read_rows
from ostinato.models.checkpoint import load_model, save_average, save_model
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.training.update import Gradient, Updater

HERE = Path(__file__).parent
RUNS = sorted(folder.name for folder in (HERE / "trained").iterdir())
INTERRUPTED = "sparse"
CLOSE = 1e-6
TRAINED_CLOSE = 1e-4
"""Updates add up what rounding differs by from machine to machine; see golden_losses.json."""


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of an old run, whose texts are found from any folder."""
    copy = Path(shutil.copytree(HERE / "trained" / request.param, tmp_path / request.param))
    recipe = copy / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace(": texts/", f": {HERE}/texts/"), encoding="utf-8")
    return copy


def expected_of(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((HERE / "expected" / f"{run.name}.json").read_text(encoding="utf-8"))
    if "decoding" in found["scores"]:  # settings that came later are at their defaults
        decoding = DecodingConfig.model_validate(found["scores"]["decoding"])
        found["scores"]["decoding"] = decoding.model_dump(mode="json")
    return found


def assert_close(found: Any, expected: Any, path: str = "", close: float = CLOSE) -> None:
    """Compare nested results: numbers nearly, all else exactly."""
    if isinstance(expected, dict):
        assert set(found) == set(expected), path
        for key, value in expected.items():
            assert_close(found[key], value, f"{path}.{key}", close)
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for place, value in enumerate(expected):
            assert_close(found[place], value, f"{path}[{place}]", close)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=close, abs=close), path
    else:
        assert found == expected, path


def plain(value: Any) -> Any:
    """Return what JSON makes of a value: keys are texts, tuples are lists."""
    return json.loads(json.dumps(value))


@pytest.mark.sampled
@pytest.mark.parametrize("run", RUNS, indirect=True)
def test_an_old_run_gives_the_logits_the_outputs_and_the_scores_that_it_gave(run: Path) -> None:
    expected, tensors = expected_of(run), load_file(HERE / "expected" / f"{run.name}.safetensors")
    found = observe(load(run, device="cpu"), unpack(tensors), expected["inputs"])
    torch.testing.assert_close(found.logits, tensors["logits"], rtol=CLOSE, atol=CLOSE)
    told = plain(found.as_dict())
    assert_close(told, {name: expected[name] for name in told})


@pytest.mark.sampled
@pytest.mark.parametrize("run", [name for name in RUNS if name != INTERRUPTED], indirect=True)
def test_an_old_training_state_is_taken_up_and_its_best_checkpoint_scores_as_it_did(run: Path) -> None:
    stored = json.loads((run / "results.json").read_text(encoding="utf-8"))
    assert train(load_recipe(run), run, resume=True) == stored
    (run / "results.json").unlink()  # as if the run had been interrupted between its last update and its scores
    resumed = train(load_recipe(run), run, resume=True)
    scores, expected = plain(numbers(resumed["splits"]["test"])), expected_of(run)["scores"]
    assert_close(scores, {name: expected[name] for name in expected if name != "halting_threshold_from"})
    assert (resumed["best_update"], resumed["n_updates"]) == (stored["best_update"], stored["n_updates"])


@pytest.mark.parametrize("run", [INTERRUPTED], indirect=True)
def test_an_old_interrupted_run_goes_on_as_it_would_have(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first updates have the losses that they had: weights, optimiser, batches and random numbers are taken up.

    Later ones are not compared: routers that choose by rounding, at this rate of learning, part after a few updates.
    """
    expected, losses = expected_of(run)["resumed"], []
    accumulate = Updater.accumulate

    def noted(self: Updater, *given: Any, **named: Any) -> Gradient:
        gradient = accumulate(self, *given, **named)
        losses.extend(gradient.losses)
        return gradient

    monkeypatch.setattr(Updater, "accumulate", noted)
    results = train(load_recipe(run), run, resume=True)
    assert len(losses) == 24
    assert_close(losses[:4], expected["losses"], close=TRAINED_CLOSE)
    records = read_rows(run / "metrics.jsonl")
    assert_close(records[:2], expected["records"], close=TRAINED_CLOSE)
    assert [row["update"] for row in records if row["kind"] == "training"] == [12, 24, 36, 48]
    assert results["splits"]["test"]["n"] > 0


@pytest.mark.parametrize("run", [INTERRUPTED], indirect=True)
def test_a_threshold_that_was_chosen_for_an_old_run_is_used(run: Path) -> None:
    loaded = load(run, device="cpu")
    assert loaded.halting_threshold_from == "tuned"
    assert loaded.model.halting_thresholds() == pytest.approx({"encoder": 0.8, "decoder": 0.8})
    trained = load(run, device="cpu", halting_threshold="trained")
    assert trained.model.halting_thresholds() == pytest.approx({"encoder": 0.9, "decoder": 0.9})


@pytest.mark.parametrize("run", ["dense", "classification"], indirect=True)
def test_other_checkpoints_of_an_old_run_load(run: Path) -> None:
    for checkpoint in ("best", "last", "last:1"):
        assert load(run, checkpoint=checkpoint, device="cpu").model.n_parameters() > 0


@pytest.mark.parametrize("run", ["dense", "classification"], indirect=True)
def test_an_old_checkpoint_has_a_mean_with_one_of_today(run: Path, tmp_path: Path) -> None:
    old, (new, mean) = load(run, checkpoint="last", device="cpu").checkpoint, (tmp_path / "new", tmp_path / "mean")
    save_model(load_model(old), new)
    mean.mkdir()
    save_average([old, new], mean)
    assert (mean / "model.json").read_bytes() == (new / "model.json").read_bytes() != (old / "model.json").read_bytes()
