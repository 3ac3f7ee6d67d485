"""Runs that are made of a dense run: their sizes, their files, and training that goes on from them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_recipe

import ostinato
from ostinato.cli import main
from ostinato.config.load import check_recipe
from ostinato.errors import CheckpointError, ConfigError
from ostinato.experiments.sweep.run_key import key_of_run
from ostinato.models import save_model
from ostinato.training import train
from ostinato.training.converted import convert_run
from ostinato.training.rundir import RunDirectory

WAYS = {
    "shared": ["model.encoder.ffn.share=all", "model.encoder.self_attention.share=all"],
    "wide": ["model.encoder.ffn.share=all", "model.encoder.ffn.d_ff=48"],
    "experts": ["model.encoder.ffn={kind: experts, n_experts: 3, top_k: 2, d_ff: 16, gate: {kind: topk_softmax}}"],
    "loop": ["model.encoder={n_steps: 2, segments: [{n_steps: 1}, {n_steps: 1, repeats: 2, delta_rank: 2}]}"],
}


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a trained run whose encoder has three steps."""
    folder = tmp_path_factory.mktemp("dense")
    content = tiny_recipe(folder / "data").model_dump(mode="json")
    content["model"]["encoder"] |= {"n_steps": 3, "ffn": content["model"]["encoder"]["ffn"] | {"d_ff": 16}}
    content["training"] |= {"n_updates": 30, "evaluate_every": 30, "save_every": 30}
    train(check_recipe(content), folder / "run")
    return folder / "run"


@pytest.mark.sampled
@pytest.mark.parametrize("way", [pytest.param(way, marks=[pytest.mark.slow] * (way != "shared")) for way in WAYS])
def test_a_converted_run_is_trained_on(way: str, dense: Path, tmp_path: Path) -> None:
    run = ostinato.load(dense)
    found = convert_run(run, WAYS[way], tmp_path / "new", noise=0.1 if way == "experts" else 0.0)
    assert found.model.n_parameters() != run.model.n_parameters()
    converted = ostinato.load(tmp_path / "new")
    before = converted.evaluate("dev")["loss"]
    assert before != run.evaluate("dev")["loss"]
    settings = [f"training.init_from={tmp_path / 'new'}", "training.n_updates=15", "training.evaluate_every=15"]
    train(ostinato.load_recipe(tmp_path / "new", settings), tmp_path / "healed")
    assert ostinato.load(tmp_path / "healed").evaluate("dev")["loss"] < before


@pytest.mark.slow
def test_steps_whose_states_are_alike_share_weights(
    dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["convert", str(dense), "--alike", "2", "--split", "train", "--run-dir", str(tmp_path / "new")]
    with pytest.raises(SystemExit) as end:
        main(command)
    assert not end.value.code
    said = dict(line.split("=") for line in capsys.readouterr().out.splitlines() if "share=" in line)
    plans = ostinato.load(tmp_path / "new").model.config.plans()
    assert json.loads(said["model.encoder.ffn.share"]) in ([0, 0, 1], [0, 1, 1])
    for name, plan in plans.items():
        for kind in ("self_attention", "ffn"):
            assert name == "encoder" or said[f"model.{name}.{kind}.share"] == "[0]"
            sets = [use.weights for step in plan.steps for use in step.uses if use.kind == kind]
            shared = json.loads(said[f"model.{name}.{kind}.share"])
            assert [sets.index(one) for one in sets] == [shared.index(one) for one in shared]
    with pytest.raises(SystemExit) as end:
        main([*command[:2], "--alike", "4", "--split", "train", "--run-dir", str(tmp_path / "other")])
    assert end.value.code == 2
    assert "alike is 4: must be from 1 to" in capsys.readouterr().err


def test_of_a_run_that_is_scored_by_a_mean_the_new_one_is_scored_by_its_only_checkpoint(
    dense: Path, tmp_path: Path
) -> None:
    for wanted, role in (("best:2", "best"), ("last:2", "last")):
        given = [*WAYS["shared"], "training.keep_best=2", "training.keep_last=2"]
        given += ["training.save_every=10", "training.evaluate_every=10"]
        new = tmp_path / role
        convert_run(ostinato.load(dense), [*given, f"evaluation.checkpoint={wanted}"], new)
        converted = ostinato.load(new)
        assert (converted.recipe.evaluation.checkpoint, converted.checkpoint.name) == (role, "update-000000")


def test_a_run_without_a_training_state_is_not_resumed(dense: Path, tmp_path: Path) -> None:
    """Its recipe says of which data it is, but it has read none."""
    convert_run(ostinato.load(dense), WAYS["shared"], tmp_path / "new")
    with pytest.raises(CheckpointError) as error:
        train(ostinato.load_recipe(tmp_path / "new"), tmp_path / "new", resume=True)
    reason = "was converted or imported and has no training state: begin a new run with"
    assert str(error.value) == f"{tmp_path / 'new'}: {reason} training.init_from={tmp_path / 'new'}"


def test_the_command_writes_it_once(dense: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["convert", str(dense), *WAYS["shared"], "--shared", "last", "--run-dir", str(tmp_path / "new")]
    for code, words in ((0, "parameters became"), (2, "holds something already, and nothing is overwritten")):
        with pytest.raises(SystemExit) as end:
            main(command)
        assert (end.value.code or 0) == code
        written = capsys.readouterr()
        assert words in written.out + written.err
    with pytest.raises(SystemExit) as end:
        main([*command[:-2], "model.encoder.n_steps=2", "--run-dir", str(tmp_path / "other")])
    assert end.value.code == 2
    assert "its donor has 3 steps" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main([*command[:-2], "--split", "dev", "--max-examples", "5", "--run-dir", str(tmp_path / "other")])
    assert end.value.code == 2
    assert "--split --max-examples: states are compared with --alike" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_converted_run_begins_from_nothing_that_its_origin_began_from(dense: Path, tmp_path: Path) -> None:
    start = [f"training.init_from={dense}", "training.init_checkpoint=last", "training.n_updates=1"]
    train(ostinato.load_recipe(dense, [*start, "training.init_except=[target_weight]"]), tmp_path / "tuned")
    convert_run(ostinato.load(tmp_path / "tuned"), WAYS["shared"], tmp_path / "new")
    found, plain = ostinato.load_recipe(tmp_path / "new").training, ostinato.load_recipe(dense).training
    for name in ("init_from", "init_checkpoint", "init_except", "init_shared", "extend_vocabulary"):
        assert getattr(found, name) == getattr(plain, name), name


def test_the_tokenizer_stays(dense: Path, tmp_path: Path) -> None:
    for name in ("tokenizer", "target_tokenizer"):
        with pytest.raises(ConfigError, match=f"data.{name} is .*: the new run keeps the tokenizers of the old one"):
            convert_run(ostinato.load(dense), [*WAYS["shared"], f"data.{name}={{kind: characters}}"], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_what_is_converted_otherwise_is_another_run(dense: Path, tmp_path: Path) -> None:
    run = ostinato.load(dense)
    ways = ("first", "last", "first")
    for number, shared in enumerate(ways):
        convert_run(run, WAYS["shared"], tmp_path / str(number), shared)
    first, last, again = (key_of_run(tmp_path / str(number)) for number in range(len(ways)))
    assert first == again != last


@pytest.mark.parametrize("fails", ["save_model", "RunDirectory.describe"])
def test_an_interrupted_conversion_leaves_nothing_and_the_same_command_goes_on(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    run = ostinato.load(dense)
    with monkeypatch.context() as patch:
        patch.setattr(f"ostinato.training.imported.{fails}", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert_run(run, WAYS["shared"], tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
    (left := tmp_path / f".partial-{'0' * 16}").mkdir()  # of a process that was killed
    (left / "recipe.yaml").touch()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "new").symlink_to(tmp_path / "elsewhere")
    convert_run(run, WAYS["shared"], tmp_path / "new")
    assert ostinato.load(tmp_path / "new").checkpoint.name == "update-000000"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "new"]


def test_an_empty_folder_that_cannot_be_replaced_is_refused_before_the_work(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ostinato.load(dense)
    monkeypatch.setattr("ostinato.training.converted.build_model", None)  # nothing is made
    (here := tmp_path / "here").mkdir()
    reason = "cannot be replaced by the run's: name a new folder in it"
    with monkeypatch.context() as patch:
        patch.chdir(here)
        with pytest.raises(CheckpointError, match=f"^\\.: is a mount point, the current folder.*{reason}"):
            convert_run(run, WAYS["shared"], ".")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_mount", lambda path: path == here)
        with pytest.raises(CheckpointError, match=f"here: is a mount point.*{reason}"):
            convert_run(run, WAYS["shared"], here)
    monkeypatch.setattr(os, "access", lambda path, *_: Path(path) != tmp_path)
    with pytest.raises(CheckpointError, match=f"here: is a mount point.*{reason}"):
        convert_run(run, WAYS["shared"], here)


def test_a_run_that_another_process_began_meanwhile_is_kept(
    dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*given: Any) -> None:
        RunDirectory(tmp_path / "new").claim()
        save_model(*given)

    monkeypatch.setattr("ostinato.training.imported.save_model", begin)
    with pytest.raises(CheckpointError, match="new: is there already, and nothing is overwritten"):
        convert_run(ostinato.load(dense), WAYS["shared"], tmp_path / "new")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [".lock", ".lock.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
