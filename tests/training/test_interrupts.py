"""A run that gets SIGINT or SIGTERM saves a checkpoint, and ends like an undisturbed one when it is resumed."""

from __future__ import annotations

import shlex
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import last_checkpoint, records, tiny_recipe, weights

from ostinato.config.recipe import Recipe
from ostinato.errors import DataError
from ostinato.training import Reporter, session, train


class _Notes(Reporter):
    """Notes what a run says, and interrupts it at its record of an update."""

    def __init__(self, interrupted_at: int = 0, number: signal.Signals = signal.SIGINT) -> None:
        self.interrupted_at, self.number, self.notes = interrupted_at, number, list[str]()

    def on_update(self, record: dict[str, Any]) -> None:
        if record["update"] == self.interrupted_at:
            signal.raise_signal(self.number)

    def on_note(self, update: int, message: str) -> None:
        self.notes.append(f"{update}: {message}")


def _assert_goes_on_like_undisturbed(tmp_path: Path) -> None:
    train(tiny_recipe(tmp_path), tmp_path / "run", resume=True)
    train(tiny_recipe(tmp_path), tmp_path / "undisturbed")
    assert weights(tmp_path / "run") == weights(tmp_path / "undisturbed")
    for name in ("metrics.jsonl", "checkpoints/best.json", "checkpoints/last.json"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes(), name


@pytest.mark.sampled
@pytest.mark.parametrize(("update", "number"), [(4, signal.SIGINT), (12, signal.SIGINT), (4, signal.SIGTERM)])
def test_an_interrupt_saves_a_checkpoint_after_the_update_it_came_in(
    tmp_path: Path, update: int, number: signal.Signals
) -> None:
    reporter = _Notes(interrupted_at=update, number=number)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path), tmp_path / "run", reporter=reporter)
    assert last_checkpoint(tmp_path / "run").name == f"update-{update:06d}"
    command = shlex.join(["ostinato", "train", str(tmp_path / "run"), "--resume"])
    assert reporter.notes == [f"{update}: interrupted: a checkpoint is saved; {command} goes on from it"]
    _assert_goes_on_like_undisturbed(tmp_path)


@pytest.mark.slow
def test_an_interrupted_evaluation_is_done_when_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session, "evaluate", interrupted)
    for _ in range(2):  # when it is resumed, too
        with pytest.raises(KeyboardInterrupt):
            train(tiny_recipe(tmp_path), tmp_path / "run", resume=True)
        assert last_checkpoint(tmp_path / "run").name == "update-000006"
        assert records(tmp_path / "run", "evaluation") == []
    monkeypatch.undo()
    _assert_goes_on_like_undisturbed(tmp_path)


def test_an_evaluation_that_fails_loses_no_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any, **kwargs: Any) -> None:
        raise DataError("the metric mine:Share failed")

    recipe = tiny_recipe(tmp_path, n_updates=2, evaluate_every=1, save_every=2, keep_best=2)
    monkeypatch.setattr(session, "evaluate", failing)
    for resume in (False, True):
        with pytest.raises(DataError, match="the metric mine:Share failed"):
            train(recipe, tmp_path / "run", resume=resume)
        assert last_checkpoint(tmp_path / "run").name == "update-000001"
    monkeypatch.undo()
    train(recipe, tmp_path / "run", resume=True)
    train(recipe, tmp_path / "undisturbed")
    assert weights(tmp_path / "run") == weights(tmp_path / "undisturbed")
    assert records(tmp_path / "run", "evaluation") == records(tmp_path / "undisturbed", "evaluation")


@pytest.mark.parametrize("keep_best", [1, 2])
def test_a_run_that_is_interrupted_at_its_only_evaluations_goes_on(tmp_path: Path, keep_best: int) -> None:
    recipe = tiny_recipe(tmp_path, n_updates=4, evaluate_every=4 // keep_best, keep_best=keep_best, log_every=1)
    mean = recipe.evaluation.model_copy(update={"checkpoint": f"best:{keep_best}"})
    recipe = recipe.model_copy(update={"evaluation": mean})
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", reporter=_Notes(interrupted_at=4 // keep_best))
    # A recipe with any change is looked at.
    changed = recipe.model_copy(update={"training": recipe.training.model_copy(update={"log_every": 2})})
    assert len(train(changed, tmp_path / "run", resume=True)["mean_of"]) == keep_best


@pytest.mark.parametrize("how", ["interrupted", "extended", "of many best"])
def test_the_newest_that_are_averaged_are_those_of_a_run_that_was_never_interrupted(tmp_path: Path, how: str) -> None:
    best = {"evaluate_every": 1, "keep_best": 3} if how == "of many best" else {"evaluate_every": 6}

    def recipe(n_updates: int = 6) -> Recipe:
        plain = tiny_recipe(tmp_path, n_updates=n_updates, save_every=2, log_every=1, keep_last=3, **best)
        last_3 = plain.evaluation.model_copy(update={"checkpoint": "last:3"})
        return plain.model_copy(update={"evaluation": last_3})

    if how == "interrupted":
        for update in (3, 5):
            with pytest.raises(KeyboardInterrupt):
                train(recipe(), tmp_path / "run", resume=True, reporter=_Notes(interrupted_at=update))
    elif how == "extended":
        train(recipe(5), tmp_path / "run")
    members = train(recipe(), tmp_path / "run", resume=True)["mean_of"]
    assert [member["checkpoint"] for member in members] == ["update-000006", "update-000004", "update-000002"]


def test_an_interrupt_in_the_last_save_is_heard_before_the_last_evaluation(tmp_path: Path) -> None:
    class Interrupting(_Notes):
        def on_save(self, update: int, directory: Path) -> None:
            signal.raise_signal(signal.SIGINT)

    reporter = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path, n_updates=2, save_every=2), tmp_path / "my run", reporter=reporter)
    command = f"ostinato train '{tmp_path / 'my run'}' --resume"
    assert reporter.notes == [f"2: interrupted: a checkpoint is saved; {command} goes on from it"]
    assert "best_update" in train(tiny_recipe(tmp_path, n_updates=2, save_every=2), tmp_path / "my run", resume=True)


def test_half_a_record_that_a_full_disk_left_stops_no_run(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path), tmp_path / "run", reporter=_Notes(interrupted_at=4))
    with (tmp_path / "run" / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"kind": "training", "upd')
    _assert_goes_on_like_undisturbed(tmp_path)


def test_an_untrained_run_that_was_interrupted_in_its_evaluation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_recipe(tmp_path, n_updates=0), tmp_path / "run")
    monkeypatch.undo()
    assert train(tiny_recipe(tmp_path, n_updates=0, log_every=3), tmp_path / "run", resume=True)["n_updates"] == 0


def test_an_untrained_run_that_was_killed_before_its_checkpoint_goes_on(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, n_updates=0)
    train(recipe, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    (tmp_path / "run" / "results.json").unlink()
    changed = recipe.model_copy(update={"training": recipe.training.model_copy(update={"log_every": 3})})
    assert train(changed, tmp_path / "run", resume=True)["n_updates"] == 0


def test_resuming_without_a_checkpoint_says_that_training_begins_anew(tmp_path: Path) -> None:
    for resume, notes in (
        (True, [f"0: nothing to resume: {tmp_path / 'True'} holds no checkpoint, so training begins anew"]),
        (False, []),
    ):
        reporter = _Notes()
        train(tiny_recipe(tmp_path, n_updates=1), tmp_path / str(resume), resume=resume, reporter=reporter)
        assert reporter.notes == notes
    untrained = _Notes()
    train(tiny_recipe(tmp_path, n_updates=0), tmp_path / "untrained")
    train(tiny_recipe(tmp_path, n_updates=1), tmp_path / "untrained", resume=True, reporter=untrained)
    assert untrained.notes == ["0: changed: training.n_updates from 0 to 1"]
