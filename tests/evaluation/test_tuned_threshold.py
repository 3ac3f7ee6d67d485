"""A threshold that was chosen after training, and who uses it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import ostinato
from halting_runs import halting_run
from ostinato.errors import CheckpointError, ConfigError
from ostinato.evaluation.loading import LoadedRun
from ostinato.evaluation.stored import run_outputs
from ostinato.evaluation.threshold import FILE, TunedThreshold, read_tuned, write_tuned
from ostinato.models.checkpoint import weights_hash
from running import run_as

TRAINED = {"encoder": 0.9, "decoder": 0.95}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return halting_run(tmp_path_factory.mktemp("halting") / "run")


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def tune(run: Path, threshold: float | None, checkpoint: str | None = None) -> TunedThreshold:
    name = ostinato.load(run, device="cpu").checkpoint.name if checkpoint is None else checkpoint
    tuned = TunedThreshold(threshold, name, "dev", "exact_match", 0.002)
    write_tuned(run, tuned)
    return tuned


def numbers(loaded: LoadedRun) -> dict[str, object]:
    return loaded.evaluate("test", metrics=[], max_examples=6)


def test_a_stored_choice_is_read_back_and_replaced(run: Path) -> None:
    assert read_tuned(run) is None
    for threshold in (0.5, None):
        tuned = tune(run, threshold)
        assert read_tuned(run) == tuned
    assert json.loads((run / FILE).read_text(encoding="utf-8"))["format"] == 2


def test_a_choice_of_format_1_is_read(run: Path) -> None:
    tuned = tune(run, 0.3)
    content = json.loads((run / FILE).read_text(encoding="utf-8"))
    old = {key: value for key, value in content.items() if not key.startswith("exit")} | {"format": 1}
    (run / FILE).write_text(json.dumps(old), encoding="utf-8")
    assert read_tuned(run) == tuned
    assert ostinato.load(run, device="cpu").halting_threshold_from == "tuned"


def test_a_run_is_loaded_with_the_threshold_that_was_chosen_for_it(run: Path) -> None:
    before = numbers(ostinato.load(run, device="cpu"))
    assert before["halting_threshold_from"] == "trained"
    tuned = tune(run, 0.3)
    loaded = ostinato.load(run, device="cpu")
    assert loaded.tuned == tuned
    assert loaded.halting_threshold_from == "tuned"
    after = numbers(loaded)
    assert after["halting_threshold"] == pytest.approx({"encoder": 0.3, "decoder": 0.3})
    assert after["halting_threshold_from"] == "tuned"
    assert after["macs"]["realised"] < before["macs"]["realised"]  # type: ignore[index]
    by_hand = numbers(ostinato.load(run, device="cpu", halting_threshold=0.3))
    assert by_hand["loss"] == after["loss"]


def test_a_choice_is_not_for_other_weights_of_the_same_name(run: Path) -> None:
    tuned = replace(tune(run, 0.3), weights="0" * 64)
    write_tuned(run, tuned)
    loaded = ostinato.load(run, device="cpu")
    assert loaded.halting_threshold_from == "trained"
    write_tuned(run, replace(tuned, weights=weights_hash(loaded.checkpoint)))
    assert ostinato.load(run, device="cpu").halting_threshold_from == "tuned"


def test_the_trained_threshold_or_another_one_can_be_had_back(run: Path) -> None:
    before = numbers(ostinato.load(run, device="cpu"))
    tune(run, 0.3)
    trained = ostinato.load(run, device="cpu", halting_threshold="trained")
    assert trained.model.halting_thresholds() == pytest.approx(TRAINED)
    assert numbers(trained)["loss"] == before["loss"]
    given = ostinato.load(run, device="cpu", halting_threshold=0.7)
    assert given.model.halting_thresholds() == pytest.approx({"encoder": 0.7, "decoder": 0.7})
    assert numbers(given)["halting_threshold_from"] == "given"
    loaded = ostinato.load(run, device="cpu")
    run_as(loaded.model, halting_threshold=0.7)
    assert loaded.halting_threshold_from == "given"
    with pytest.raises(ConfigError, match=r"halting_threshold is 'tuned': must be a number in \[0, 1\], or trained"):
        ostinato.load(run, device="cpu", halting_threshold="tuned")  # type: ignore[arg-type]


def test_the_choice_that_nothing_beats_the_trained_threshold_changes_nothing(run: Path) -> None:
    tune(run, None)
    loaded = ostinato.load(run, device="cpu")
    assert loaded.model.halting_thresholds() == pytest.approx(TRAINED)
    assert loaded.halting_threshold_from == "trained"


def test_a_choice_is_of_one_checkpoint(run: Path) -> None:
    tune(run, 0.3, checkpoint="update-000001")
    loaded = ostinato.load(run, device="cpu")
    assert loaded.tuned is None
    assert loaded.model.halting_thresholds() == pytest.approx(TRAINED)


def test_outputs_kept_with_a_run_are_told_apart_by_threshold(run: Path) -> None:
    first = run_outputs(ostinato.load(run, device="cpu"), "test", max_examples=4)
    tune(run, 0.1)
    second = run_outputs(ostinato.load(run, device="cpu"), "test", max_examples=4)
    assert first.is_new
    assert second.is_new
    assert first.file != second.file
    assert second.evaluation is not None
    assert second.evaluation["halting_threshold_from"] == "tuned"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "cannot be read"),
        ('{"format": 3, "threshold": 0.5}', "format 3 is not 1 or 2"),
        ('{"format": 1, "threshold": 0.5}', "cannot be read: KeyError"),
        (
            '{"format": 2, "threshold": 0.5, "checkpoint": "x", "split": "dev", "metric": "bleu", "max_drop": 0.0}',
            "exit",
        ),
        ("[]", "cannot be read: TypeError"),
        (
            '{"format": 1, "threshold": 1.5, "checkpoint": "x", "split": "dev", "metric": "bleu", "max_drop": 0.0}',
            r"does not lie in \[0, 1\]",
        ),
        (
            '{"format": 2, "threshold": 0.5, "checkpoint": "x", "split": "dev", "metric": "bleu", "max_drop": 0.0, '
            '"exit": "gate", "exit_scope": "token"}',
            "must be one of change",
        ),
    ],
)
def test_a_choice_that_cannot_be_read_is_named_and_can_be_done_without(run: Path, text: str, reason: str) -> None:
    (run / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"halting-threshold\.json: .*{reason}"):
        ostinato.load(run, device="cpu")
    loaded = ostinato.load(run, device="cpu", halting_threshold="trained")
    assert loaded.model.halting_thresholds() == pytest.approx(TRAINED)
