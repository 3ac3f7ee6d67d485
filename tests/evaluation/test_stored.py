from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ostinato.data.disk import sha256_of_all
from ostinato.data.example import Example
from ostinato.errors import ConfigError, DataError
from ostinato.evaluation import stored
from ostinato.evaluation.loading import LoadedRun, load
from ostinato.evaluation.predictions import PredictionWriter
from ostinato.evaluation.stored import read_outputs, run_outputs
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task
from ostinato.training import train
from weights import write_weights

TINY = ["task.n_train=40", "task.n_eval=8", "training.n_updates=2", "training.n_threads=1", "decoding.max_length=6"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored") / "run"
    train(load_recipe("digits/transformer", [*TINY, "training.device=cpu"]), folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A finished run whose outputs nobody has asked for yet."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def record(index: int, prediction: str = "a", reference: str = "b") -> str:
    return json.dumps({"index": index, "prediction": prediction, "reference": reference}) + "\n"


def test_outputs_are_decoded_once_and_kept_with_what_they_cost(run: Path, tmp_path: Path) -> None:
    first, again = (run_outputs(load(run), "test") for _ in range(2))
    assert (first.is_new, again.is_new) == (True, False)
    assert (again.predictions, again.references) == (first.predictions, first.references)
    assert again.evaluation == first.evaluation
    assert first.evaluation is not None
    assert (first.evaluation["n"], first.evaluation["device"]) == (8, "cpu")
    assert first.evaluation["n_threads"] == torch.get_num_threads()
    load(run).evaluate("test", predictions=tmp_path / "p.jsonl")
    direct = read_outputs(tmp_path / "p.jsonl")
    assert (direct.predictions, direct.references) == (first.predictions, first.references)
    assert direct.evaluation is None
    assert first.file.parent == run / "predictions"
    assert not list(first.file.parent.glob("*.partial"))


def test_what_was_decoded_from_anything_else_is_not_found(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = run_outputs(load(run), "test")
    assert run_outputs(load(run), "long").is_new
    assert run_outputs(load(run), "test", beam=2).is_new
    fewer = run_outputs(load(run), "test", max_examples=7)
    assert fewer.is_new
    assert (fewer.predictions, fewer.references) == (kept.take(7).predictions, kept.take(7).references)
    # None of these took the place of the first.
    assert not run_outputs(load(run), "test").is_new
    assert not run_outputs(load(run), "test", max_examples=7).is_new
    monkeypatch.setattr(stored, "__version__", "0.0.1")
    assert run_outputs(load(run), "test").is_new


def test_other_weights_are_decoded_anew(run: Path) -> None:
    kept = run_outputs(load(run), "test")
    folder = load(run).checkpoint
    state = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    write_weights(folder, {name: torch.randn_like(tensor) for name, tensor in state.items()})
    changed = run_outputs(load(run), "test")
    assert changed.is_new
    assert changed.predictions != kept.predictions


def test_outputs_are_kept_as_those_of_the_weights_that_were_loaded(run: Path) -> None:
    first, folder = load(run), load(run).checkpoint
    there = [folder / "model.json", folder / "model.safetensors"]
    before = {path: path.read_bytes() for path in there}
    state = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    write_weights(folder, {name: torch.randn_like(tensor) for name, tensor in state.items()})
    second = load(run)
    for path in there:  # as a training prunes them, or a mean is made anew
        path.unlink()
    kept = [run_outputs(one, "test") for one in (first, second)]
    assert [one.is_new for one in kept] == [True, True]
    assert kept[0].predictions != kept[1].predictions
    for path, content in before.items():
        path.write_bytes(content)
    again = run_outputs(load(run), "test")
    assert (again.is_new, again.predictions) == (False, kept[0].predictions)
    settings = json.loads(again.file.with_suffix(".json").read_bytes())["settings"]
    assert settings["weights"] == sha256_of_all(there), "what earlier versions have kept is found"


def test_examples_are_read_once_for_the_key_and_the_outputs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, wanted = load(run), run_outputs(load(run), "test").references
    evaluate = LoadedRun.evaluate

    def rewritten(*given: Any, **how: Any) -> Any:
        examples = [Example("1 2", "three"), Example("4", "five")]
        monkeypatch.setattr(type(build_task(loaded.recipe.task, loaded.recipe.data)), "examples", lambda *_: examples)
        return evaluate(*given, **how)

    monkeypatch.setattr(LoadedRun, "evaluate", rewritten)
    assert run_outputs(loaded, "test", fresh=True).references == wanted


@pytest.mark.sampled
@pytest.mark.parametrize(
    "damage", ["edited", "gone", "no note", "half a note", "an empty note", "another note", "a FIFO"]
)
def test_kept_outputs_that_are_not_as_they_were_written_are_decoded_anew(run: Path, damage: str) -> None:
    kept = run_outputs(load(run), "test")
    note = kept.file.with_suffix(".json")
    match damage:
        case "edited":
            kept.file.write_text(kept.file.read_text(encoding="utf-8").replace('"prediction": "', '"prediction": "x'))
        case "gone":
            kept.file.unlink()
        case "no note":
            note.unlink()
        case "an empty note":
            note.write_text("{}", encoding="utf-8")
        case "a FIFO":
            note.unlink()
            os.mkfifo(note)
        case "another note":
            note.write_text("[]", encoding="utf-8")
        case _:
            note.write_text('{"sha', encoding="utf-8")
    again = run_outputs(load(run), "test")
    assert again.is_new
    assert again.predictions == kept.predictions
    assert not run_outputs(load(run), "test").is_new


def test_what_is_no_file_of_predictions_gives_way_to_them_and_what_a_link_leads_to_stays(run: Path) -> None:
    kept, other = run_outputs(load(run), "test"), run / "other.jsonl"
    kept.file.write_bytes(b"\xff\n")
    assert run_outputs(load(run), "test").predictions == kept.predictions
    other.write_text(record(0), encoding="utf-8")
    kept.file.unlink()
    kept.file.symlink_to(other)
    assert run_outputs(load(run), "test").predictions == kept.predictions
    assert other.read_text(encoding="utf-8") == record(0)
    assert not kept.file.is_symlink()


def test_fresh_outputs_are_decoded_whatever_is_kept(run: Path) -> None:
    assert run_outputs(load(run), "test").is_new
    assert run_outputs(load(run), "test", fresh=True).is_new


def test_outputs_that_were_kept_stay_where_fresh_ones_are_interrupted(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = run_outputs(load(run), "test")

    def interrupted(*given: Any, predictions: PredictionWriter, **how: Any) -> None:
        predictions({"index": 0, "prediction": "x", "reference": "y"})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LoadedRun, "evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_outputs(load(run), "test", fresh=True)
    again = run_outputs(load(run), "test")
    assert not again.is_new
    assert again.predictions == kept.predictions


def test_an_unknown_split_is_named(run: Path) -> None:
    with pytest.raises(ConfigError, match="split is 'gen'"):
        run_outputs(load(run), "gen")


def test_predictions_are_read_in_the_splits_order(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(record(2, "c", "z") + record(0, "a", "x") + record(1, "b", "y"), encoding="utf-8")
    outputs = read_outputs(path)
    assert (outputs.predictions, outputs.references) == (["a", "b", "c"], ["x", "y", "z"])
    assert outputs.take(None) is outputs.take(3) is outputs


def test_fewer_outputs_are_spread_evenly_over_all(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(record(i, "abcd"[i], "wxyz"[i]) for i in range(4)), encoding="utf-8")
    fewer = read_outputs(path).take(2)
    assert (fewer.predictions, fewer.references) == (["a", "c"], ["w", "y"])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (record(0) + "{", "line 2: not JSON"),
        ("[0]\n", "line 1: a JSON array, but every line needs an object"),
        ('{"index": 0, "prediction": "a"}\n', "line 1: needs 'reference', of type str"),
        (record(0) + record(0), "line 2: index 0 is there twice"),
        (record(0) + record(2), "there is no prediction of index 1"),
        ("", "there are no predictions"),
    ],
)
def test_a_file_that_holds_no_predictions_is_named(tmp_path: Path, lines: str, expected: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(lines, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_outputs(path)
    assert str(caught.value).startswith(str(path))
    assert expected in str(caught.value)
