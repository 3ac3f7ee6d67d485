"""Runs on files of the user's own, of which some are gone, or are others, by the time the run is scored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ostinato.config.load import check_recipe, dump_recipe
from ostinato.errors import ConfigError
from ostinato.evaluation import loading
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train

N = 12
TINY = [
    *("model.d_model=8", "model.encoder.n_steps=1", "model.decoder.n_steps=1"),
    *("training.n_updates=2", "training.n_threads=1", "training.device=cpu", "decoding.max_length=3"),
]


def write_pairs(path: Path, n: int = N) -> Path:
    lines = [json.dumps({"source": "a b"[i % 2 :], "target": "ab"[i % 2]}) for i in range(n)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl, dev.jsonl, test.jsonl and a run on them."""
    folder = tmp_path_factory.mktemp("own")
    names = ("train", "dev", "test")
    data = [f"data.{name}={write_pairs(folder / f'{name}.jsonl')}" for name in names]
    train(load_recipe("files/template", [*data, *TINY, "evaluation.splits=[dev,test]"]), folder / "run")
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """The same in a folder of its own, where files may be changed."""
    copy = Path(shutil.copytree(trained, tmp_path / "own"))
    recipe = copy / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace(str(trained), str(copy)), encoding="utf-8")
    return copy


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "RUN", "--split", "test", "--json"],
        ["evaluate", "RUN", "--split", "test", "--set", "data.train=null"],
        ["compare", "RUN", "RUN", "--split", "test"],
        pytest.param(["analyze", "RUN", "--out", "OUT", "--split", "test"], marks=pytest.mark.slow),
    ],
    ids=lambda command: " ".join(command[:1] + command[4:]),
)
def test_a_run_is_scored_without_the_files_that_it_was_trained_on(run, folder: Path, command: list[str]) -> None:
    for name in ("train", "dev"):
        (folder / f"{name}.jsonl").unlink()
    places = {"RUN": folder / "run", "OUT": folder / "out"}
    outcome = run(*(places.get(word, word) for word in command))
    assert outcome.code == 0, outcome.err


def test_a_file_that_is_scored_is_missed_before_another_is(run, folder: Path) -> None:
    (folder / "test.jsonl").unlink()
    outcome = run("evaluate", folder / "run", "--split", "dev", "--split", "test")
    assert outcome.code == 2
    assert not outcome.out
    assert f"data.test is '{folder / 'test.jsonl'}': there is no such file" in outcome.err
    assert "data.train" not in outcome.err


@pytest.mark.parametrize(
    ("bad", "options", "expected"),
    [
        ({"source": "a", "n": 1}, [], "test.jsonl, line 13: no key 'target'"),
        ({"source": "a", "target": "a"}, ["--by", "n"], "test: example 13 has no column 'n'"),
    ],
)
def test_no_split_is_scored_where_a_row_of_another_cannot_be(
    run, folder: Path, monkeypatch: pytest.MonkeyPatch, bad: dict[str, object], options: list[str], expected: str
) -> None:
    scored: list[str] = []
    monkeypatch.setattr(loading, "evaluate", lambda *_, name, **__: scored.append(name))
    for name in ("dev", "test"):
        rows = [json.loads(line) | {"n": 1} for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        rows += [bad] * (name == "test")
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    outcome = run("evaluate", folder / "run", "--split", "dev", "--split", "test", *options)
    assert outcome.code == 2
    assert expected in outcome.err
    assert scored == []


def test_a_split_that_is_named_instead_of_those_of_the_recipe_is_scored(run, folder: Path) -> None:
    settings = load_recipe(folder / "run").model_dump(mode="json")
    tests = {name: str(folder / "test.jsonl") for name in ("one", "other")}
    settings["data"]["test"], settings["evaluation"]["splits"] = tests, [*tests]
    dump_recipe(check_recipe(settings), folder / "run" / "recipe.yaml")
    new = ["--set", f"data.test={write_pairs(folder / 'new.jsonl', N // 2)}"]
    outcome = run("evaluate", folder / "run", "--split", "test", *new, "--json")
    assert json.loads(outcome.out)["test"]["n"] == N // 2
    assert "split is 'one': the task files has the splits train, dev, test" in run("evaluate", folder / "run", *new).err
    again = run("train", folder / "run", new[1], "--run-dir", folder / "again")
    assert (again.code, again.err.count("evaluation.splits is 'one'")) == (2, 1)
    with pytest.raises(ConfigError, match=r"evaluation\.splits is 'three'"):
        load_recipe(folder / "run", ["evaluation.splits=[three]"])


def test_training_still_needs_all_files(run, folder: Path) -> None:
    (folder / "train.jsonl").unlink()
    outcome = run("train", folder / "run", "--run-dir", folder / "again")
    assert outcome.code == 2
    assert "data.train is" in outcome.err


def test_a_split_that_was_changed_after_training_is_told_once(run, folder: Path) -> None:
    same = run("evaluate", folder / "run", "--split", "dev")
    assert "not what it was" not in same.err
    write_pairs(folder / "dev.jsonl", N // 2)
    note = f"{folder / 'run'}: dev is not what it was when the run was trained: other content (6 examples, then 12;"
    outcome = run("evaluate", folder / "run", "--split", "dev", "--max-examples", 2, "--json")
    assert outcome.err.count(note) == 1
    assert json.loads(outcome.out)["dev"]["data_note"].startswith(note)
    for _ in ("decoded", "kept"):
        compared = run("compare", folder / "run", folder / "run", "--split", "dev", "--samples", 100)
        assert compared.code == 0
        assert note in compared.err


def test_other_data_that_is_named_is_meant(run, folder: Path) -> None:
    other = write_pairs(folder / "other.jsonl", N // 2)
    outcome = run("evaluate", folder / "run", "--split", "dev", "--set", f"data.dev={other}")
    assert outcome.code == 0
    assert "not what it was" not in outcome.err


def test_a_run_that_lacks_a_note_of_its_data_is_scored(run, folder: Path) -> None:
    (folder / "run" / "data.json").unlink()
    write_pairs(folder / "dev.jsonl", N // 2)
    assert run("evaluate", folder / "run", "--split", "dev").code == 0


def test_a_run_without_a_checkpoint_yet_is_said_to_be_unfinished(run, folder: Path) -> None:
    (folder / "run" / "results.json").unlink()
    shutil.rmtree(folder / "run" / "checkpoints")
    (folder / "run" / "checkpoints").mkdir()
    for _ in ("empty", "gone"):
        for command in ("evaluate", "table"):
            outcome = run(command, folder / "run")
            assert outcome.code == 2
            assert "the run is not finished (ostinato train ... --resume)" in outcome.err
            assert "is not the directory of a run" not in outcome.err
        shutil.rmtree(folder / "run" / "checkpoints", ignore_errors=True)
