from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from documents import ROOT, blocks, commands, prose, rows

from ostinato.cli import main
from ostinato.config.decoding import DecodingConfig, LengthPenaltyConfig
from ostinato.tasks.recipes import list_recipes, load_recipe

DOCUMENT = ROOT / "docs" / "decoding.md"
TINY = [
    *("task.n_train=60", "task.n_eval=8", "task.max_length=8", "task.long_max_length=9", "model.d_model=16"),
    *("model.encoder.ffn.d_ff=16", "model.decoder.ffn.d_ff=16", "training.n_updates=6", "training.evaluate_every=1"),
    *("training.device=cpu", "training.n_threads=1", "training.selection.max_examples=4"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoding")
    sources = ["3 1 4 1 5", "2 7", "9"]
    (folder / "sources.txt").write_text("".join(f"{line}\n" for line in sources), encoding="utf-8")
    records = [{"id": i, "source": line, "begun": "5 1" if i else ""} for i, line in enumerate(sources)]
    (folder / "sources.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records), encoding="utf-8")
    return folder


@pytest.mark.slow
def test_the_commands_and_the_code_of_the_document_work_from_top_to_bottom(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    seen = []
    for command in commands(DOCUMENT):
        arguments = list(command.arguments)
        if arguments[0] == "train":
            arguments += TINY
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((command.stdin or "").encode())))
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        assert caught.value.code in (0, None), f"{command}\n{err}"
        seen.append(arguments[0])
        if arguments[0] == "generate":
            inputs, lists = 1 if command.stdin else 3, 3 if "--n-best" in arguments else 1
            assert inputs <= out.count("\n") <= inputs * lists, command
        if "--prefix" in arguments:
            assert all(line.startswith("5 1") for line in out.splitlines())
    assert {*seen} == {"train", "generate", "evaluate"}
    (code,) = blocks(DOCUMENT, "python")
    exec(compile(code, str(DOCUMENT), "exec"), {})
    assert capsys.readouterr().out.count("\n") == 3


def test_the_run_of_the_document_keeps_as_many_checkpoints_as_are_averaged() -> None:
    trained = next(one.arguments for one in commands(DOCUMENT) if one.arguments[0] == "train")
    recipe = load_recipe(trained[1], [word for word in trained[2:] if "=" in word])
    words = [one.arguments for one in commands(DOCUMENT)]
    averaged = [one[one.index("--checkpoint") + 1] for one in words if "--checkpoint" in one]
    assert averaged
    for name in averaged:
        assert list(recipe.too_few_to_average(name, "--checkpoint")) == []


def test_the_table_of_settings_is_the_codes() -> None:
    shown = {row[0]: row[1] for row in rows(DOCUMENT) if len(row) == 4 and row[0] != "setting"}
    names = [name.strip("` ") for cell in shown for name in cell.split(",")]
    assert sorted(names) == sorted(DecodingConfig.model_fields)
    defaults = DecodingConfig()
    assert LengthPenaltyConfig(kind="gnmt", alpha=0.6) == defaults.length_penalty
    for cell, values in shown.items():
        if cell == "`length_penalty`":
            continue
        for name, value in zip(cell.split(","), values.split(","), strict=True):
            default = getattr(defaults, name.strip("` "))
            assert value.strip() == ("null" if default is None else str(default).lower().removesuffix(".0")), name


def test_recipes_of_translation_stop_as_the_document_says() -> None:
    sentence = re.search(r"The recipes of translation [^.]*say `count`, except[^.]*", prose(DOCUMENT))
    assert sentence
    by_bound = {folder.strip("/") for folder in re.findall(r"`([\w-]+/)`", sentence[0])}
    recipes = {one.name: load_recipe(one.name, ["data.train=a"]) for one in list_recipes()}
    stopping = {
        name: recipe.decoding.stopping
        for name, recipe in recipes.items()
        if recipe.task.kind == "translation" and recipe.decoding.strategy == "beam"
    }
    assert {*stopping} >= {"transformer/base", "universal-transformer/base", "multi30k/universal", "sut/base"}
    assert stopping == {name: "bound" if name.split("/")[0] in by_bound else "count" for name in stopping}
