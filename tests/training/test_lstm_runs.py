"""LSTM baselines through the one trainer, evaluation and search: they learn, resume bit for bit, refuse what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import records, tiny_recipe, weights

from ostinato.analysis import analyze as logic
from ostinato.budget import count_macs
from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.errors import ConfigError
from ostinato.evaluation.loading import load
from ostinato.models import LstmSeq2Seq
from ostinato.training import train
from ostinato.training.checks import check_training
from ostinato.training.update import Updater

MODEL = {"kind": "lstm_seq2seq", "d_model": 16, "n_layers": 2, "dropout": 0.1, "tie_embeddings": "none"}


def lstm_recipe(folder: Path, model: dict[str, Any] | None = None, **training: Any) -> Recipe:
    """Return the recipe of the letters with an LSTM in the place of its model."""
    given = tiny_recipe(folder).model_dump(mode="json")
    return check_recipe(given | {"model": MODEL | (model or {}), "training": given["training"] | training})


@pytest.mark.slow
def test_an_lstm_learns_and_is_evaluated_like_any_model(tmp_path: Path) -> None:
    training = {"n_updates": 30, "evaluate_every": 30, "save_every": 30, "optimizer": {"lr": 0.03}}
    results = train(lstm_recipe(tmp_path, **training), tmp_path / "run")
    losses = [record["nll"] for record in records(tmp_path / "run", "training")]
    assert losses[-1] < 0.85 * losses[0]
    scores = results["splits"]["test"]
    run = load(tmp_path / "run", device="cpu")
    assert isinstance(run.model, LstmSeq2Seq)
    assert scores["macs"]["full"] == scores["macs"]["realised"] > 0
    assert results["splits"]["test"]["n_steps"] is None
    (text,) = run.generate(["a b c"])
    assert isinstance(text, str)
    with pytest.raises(ConfigError, match="no rounds of depth"):
        run.generate(["a b c"], n_steps=3)


def test_the_macs_of_an_evaluation_are_those_of_the_sentences(tmp_path: Path) -> None:
    results = train(lstm_recipe(tmp_path, n_updates=4), tmp_path / "run")
    config = load(tmp_path / "run", device="cpu").model.config
    by_length = results["splits"]["test"]["by"]["n"]
    for length, found in by_length.items():
        n = int(length) + 1  # the end symbol, or the begin symbol
        assert found["macs"]["full"] == pytest.approx(count_macs(config, n, n).total)


def test_an_interrupted_run_goes_on_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = lstm_recipe(tmp_path, n_updates=12, save_every=3)
    train(recipe, tmp_path / "whole")
    apply = Updater.apply

    def stop(self: Updater, gradient: Any, update: int) -> float:
        if update == 8:
            raise KeyboardInterrupt
        return apply(self, gradient, update)

    monkeypatch.setattr(Updater, "apply", stop)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "halved")
    monkeypatch.setattr(Updater, "apply", apply)
    train(recipe, tmp_path / "halved", resume=True)
    assert weights(tmp_path / "halved") == weights(tmp_path / "whole")
    assert records(tmp_path / "halved", "training") == records(tmp_path / "whole", "training")


def test_what_an_lstm_has_not_is_refused_before_training(tmp_path: Path) -> None:
    idle = {"halting": {"weight": 0.1}, "balance": {"switch": 0.1}, "checkpoint_activations": True}
    with pytest.raises(ConfigError) as caught:
        lstm_recipe(tmp_path, **idle)
    assert {problem.key for problem in caught.value.problems} == {
        "training.halting.weight",
        "training.balance.switch",
        "training.checkpoint_activations",
    }
    with pytest.raises(ConfigError, match="packed by length"):
        check_training(lstm_recipe(tmp_path, compile=True), torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"no such setting; valid here: .*n_layers"):
        lstm_recipe(tmp_path, {"encoder": {"n_steps": 2}})


def test_no_analysis_of_steps_applies_and_the_report_says_so(tmp_path: Path) -> None:
    train(lstm_recipe(tmp_path, n_updates=2), tmp_path / "run")
    run = load(tmp_path / "run", device="cpu")
    found = logic.survey(logic.subjects([run, run], None, 10))
    assert [study.name for study, _ in found.found] == ["learning", "categories", "pareto"]
    assert all("recurrence over positions" in why for why in found.left_out.values())
    (pareto,) = found.found[-1][1]
    macs = run.evaluate("test", metrics=[], by=[], max_examples=10)["macs"]["realised"]
    assert [row[3] for row in pareto.rows] == pytest.approx([macs / 1e6] * 2)
    assert logic.analyze(logic.subjects([run], None, 10), tmp_path / "out", only=["attention"]).report.is_file()
