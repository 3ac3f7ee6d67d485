from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from ostinato.cli import main
from ostinato.errors import ConfigError
from ostinato.tasks.recipes import load_recipe
from ostinato.training import Reporter, train

TINY = [
    *("task.n_train=60", "task.n_eval=8", "task.max_length=5", "task.long_max_length=6", "model.d_model=16"),
    *("model.encoder.ffn={kind: experts, n_experts: 3, top_k: 1, d_ff: 8, share: all}", "model.decoder.ffn.d_ff=8"),
    *("training.n_updates=4", "training.log_every=2", "training.evaluate_every=4", "training.device=cpu"),
    *("training.n_threads=1", "data.tokens_per_batch=256", "decoding.max_length=6", "decoding.max_length_ratio=0"),
]


class Recorder(Reporter):
    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.said: list[str] = []

    def on_warning(self, update: int, message: str) -> None:
        self.said.append(f"{update}: {message}")

    def close(self) -> None:
        self.said.append("closed")

    def on_update(self, record: dict[str, Any]) -> None:
        self.updates.append(record)


def fake_tracker(monkeypatch: pytest.MonkeyPatch, name: str = "wandb") -> list[tuple[str, Any]]:
    """Put a module in the place of a logger's, and return the list of its calls."""
    calls: list[tuple[str, Any]] = []
    module = ModuleType(name)
    module.__spec__ = pytest.__spec__  # as of a module that is installed
    module.init = lambda **given: calls.append(("init", given))  # type: ignore[attr-defined]
    module.log = lambda numbers, step: calls.append(("log", (step, numbers)))  # type: ignore[attr-defined]
    module.finish = lambda: calls.append(("finish", None))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    return calls


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_tracker_is_told_what_the_runs_own_log_holds_and_changes_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, reporter = fake_tracker(monkeypatch), Recorder()
    recipe = load_recipe("digits/universal", [*TINY, "training.loggers=[wandb]"])
    train(recipe, tmp_path / "run", reporter=reporter)
    assert [name for name, _ in calls] == ["init", "log", "log", "log", "finish"]
    given = calls[0][1]
    assert (given["project"], given["name"]) == ("ostinato", "run")
    assert given["config"]["training"]["n_updates"] == 4
    first, second, evaluated = metrics(tmp_path / "run")
    for record, (_, (step, numbers)) in zip((first, second), calls[1:3], strict=True):
        assert step == record["update"]
        assert {name: numbers[f"train/{name}"] for name in ("loss", "lr", "grad_norm")} == {
            name: record[name] for name in ("loss", "lr", "grad_norm")
        }
        for router, own in record["routing"].items():
            assert [numbers[f"experts/{router}/load/{i}"] for i in range(3)] == own["load"]
    assert calls[3][1] == (4, {f"dev/{name}": value for name, value in evaluated["scores"].items()})
    assert [record["update"] for record in reporter.updates] == [2, 4]
    train(load_recipe("digits/universal", TINY), tmp_path / "plain")
    assert metrics(tmp_path / "plain") == [first, second, evaluated]
    assert yaml.safe_load((tmp_path / "plain" / "recipe.yaml").read_text(encoding="utf-8"))["training"]["loggers"] == []


def test_a_tracker_that_refuses_to_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_tracker(monkeypatch)

    def refuse(**given: Any) -> None:
        raise RuntimeError("No API key configured.\n Log in.")

    monkeypatch.setattr("wandb.init", refuse)
    with pytest.raises(ConfigError) as caught:
        train(load_recipe("digits/universal", [*TINY, "training.loggers=[wandb]"]), tmp_path / "run")
    assert str(caught.value) == "training.loggers is 'wandb': it does not start: No API key configured. Log in."
    assert calls == []


@pytest.mark.parametrize(("function", "told"), [("log", ["init"]), ("finish", ["init", "log", "log", "log"])])
def test_a_tracker_that_fails_later_is_told_no_more_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, told: list[str]
) -> None:
    calls, reporter = fake_tracker(monkeypatch), Recorder()

    def fail(*_: Any, **__: Any) -> None:
        raise BrokenPipeError(32, "Broken\npipe")

    monkeypatch.setattr(f"wandb.{function}", fail)
    recipe = load_recipe("digits/universal", [*TINY, "training.loggers=[wandb]"])
    assert train(recipe, tmp_path / "run", reporter=reporter)["n_updates"] == 4
    assert [name for name, _ in calls] == told
    update = {"log": 2, "finish": 4}[function]
    reason = "[Errno 32] Broken pipe; the run does without it, its own logs are whole"
    assert reporter.said == [f"{update}: wandb takes no more: {reason}", "closed"]
    assert [record["update"] for record in metrics(tmp_path / "run")] == [2, 4, 4]


def test_a_full_disk_under_event_files_ends_them_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_scalar", fail)
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.close", fail)
    reporter = Recorder()
    recipe = load_recipe("digits/universal", [*TINY, "training.loggers=[tensorboard]"])
    assert train(recipe, tmp_path / "run", reporter=reporter)["n_updates"] == 4
    reason = "[Errno 28] No space left on device; the run does without it, its own logs are whole"
    assert reporter.said == [f"2: tensorboard takes no more: {reason}", "closed"]


def test_what_a_tracker_prints_is_no_part_of_the_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tracker(monkeypatch, "trackio")
    for function in ("init", "log", "finish"):
        monkeypatch.setattr(f"trackio.{function}", lambda *_, function=function, **__: print(f"* {function}"))
    given = [*TINY, "training.loggers=[trackio]", "--run-dir", str(tmp_path / "run"), "--json"]
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits/universal", *given])
    assert not caught.value.code
    out, err = capsys.readouterr()
    assert json.loads(out)["n_updates"] == 4
    assert [line for line in err.splitlines() if line.startswith("*")] == ["* init", *["* log"] * 3, "* finish"]


def test_a_run_that_is_resumed_goes_on_in_its_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb, trackio = fake_tracker(monkeypatch), fake_tracker(monkeypatch, "trackio")
    given = [*TINY, "training.loggers=[wandb, trackio]"]
    train(load_recipe("digits/universal", given), tmp_path / "run")
    train(load_recipe("digits/universal", given), tmp_path / "other")
    # As those of runs that began in the same second are.
    shutil.copy(tmp_path / "run" / "versions.json", tmp_path / "other" / "versions.json")
    longer = load_recipe("digits/universal", [*given, "training.n_updates=6"])
    for run in ("run", "other"):
        train(longer, tmp_path / run, resume=True)
    first, other, resumed, other_resumed = (call for name, call in wandb if name == "init")
    assert first["id"] == resumed["id"] not in (other["id"], other_resumed["id"])
    assert [one["resume"] for one in (first, other, resumed, other_resumed)] == ["allow"] * 4
    assert [call.get("resume") for name, call in trackio if name == "init"] == [None, None, "allow", "allow"]


def test_a_logger_that_is_not_installed_is_a_line_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.training.loggers.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"training\.loggers is .* not installed: pip install trackio wandb"):
        train(load_recipe("digits/universal", [*TINY, "training.loggers=[trackio, wandb]"]), tmp_path / "run")
    with pytest.raises(SystemExit) as caught:
        main(["train", "digits/universal", *TINY, "training.loggers=[wandb]", "--run-dir", str(tmp_path / "run")])
    assert caught.value.code == 2
    assert "pip install wandb" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_the_files_of_a_run_and_of_its_resumption(tmp_path: Path) -> None:
    events = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    given = [*TINY, "training.loggers=[tensorboard]"]
    train(load_recipe("digits/universal", given), tmp_path / "run")
    train(load_recipe("digits/universal", [*given, "training.n_updates=6"]), tmp_path / "run", resume=True)
    found = events.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    found.Reload()
    logged = {record["update"]: record["loss"] for record in metrics(tmp_path / "run") if record["kind"] == "training"}
    assert {event.step: event.value for event in found.Scalars("train/loss")} == pytest.approx(logged)
    assert list(logged) == [2, 4, 6]
    assert {"dev/loss", "train/lr", "train/labels_per_second"} <= set(found.Tags()["scalars"])
