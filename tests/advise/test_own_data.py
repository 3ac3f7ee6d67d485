from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.advise.own_data import is_data, recipe_of_data
from ostinato.config.files import parse_overrides
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import build_task

PAIRS = "".join(f'{{"source": "{n}", "target": "{n + 1}"}}\n' for n in range(300))


def test_a_file_of_pairs_is_split_by_hash_each_time_alike(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(PAIRS + PAIRS, encoding="utf-8")
    base, overrides = recipe_of_data(str(file), ["seed=3"], tmp_path / "data")
    assert base == "files/template"
    paths: dict[str, str] = parse_overrides(overrides)["data"]
    train, dev = (set(Path(paths[split]).read_text("utf-8").splitlines()) for split in ("train", "dev"))
    assert not train & dev, "equal lines are on one side"
    assert train | dev == set(PAIRS.splitlines())
    assert 15 <= len(dev) <= 50
    before = Path(paths["dev"]).stat().st_mtime_ns
    assert recipe_of_data(str(file), ["seed=3"], tmp_path / "data") == (base, overrides)
    assert Path(paths["dev"]).stat().st_mtime_ns == before


def test_a_dev_file_that_is_named_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "a b"}\n', encoding="utf-8")
    given = ["data.dev=other.jsonl"]
    base, overrides = recipe_of_data(str(file), given, tmp_path / "data")
    assert base == "lm/transformer"
    assert parse_overrides(overrides) == {"data": {"train": str(file), "dev": "other.jsonl"}}


@pytest.mark.parametrize(
    ("keys", "given", "expected"),
    [
        (("body",), ["data.text_field=body"], "lm/transformer"),
        (("text", "summary"), ["data.source_field=text", "data.target_field=summary"], "files/template"),
        (("source", "text"), ["data.target_field=text"], "files/template"),
        (("source", "text"), ["data={source_field: text, target_field: source}"], "files/template"),
        (("text", "summary"), ["data.tokenizer.kind=bpe"], "lm/transformer"),
    ],
)
def test_settings_that_name_fields_decide_whether_texts_or_pairs_are_read(
    keys: tuple[str, ...], given: list[str], expected: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f"{json.dumps(dict.fromkeys(keys, f'a {n}'))}\n" for n in range(100)), encoding="utf-8")
    base, overrides = recipe_of_data(str(file), given, tmp_path / "data")
    assert base == expected
    recipe = load_recipe(base, overrides)
    assert len(list(build_task(recipe.task, recipe.data).examples("train"))) > 70


@pytest.mark.parametrize("name", ["a #b", "x: y", "null", "1"])
def test_names_of_files_are_no_yaml(tmp_path: Path, name: str) -> None:
    file = tmp_path / name / f"{name}.jsonl"
    file.parent.mkdir()
    file.write_text('{"text": "a b"}\n', encoding="utf-8")
    _, overrides = recipe_of_data(str(file), ["data.dev=other.jsonl"], tmp_path / "data")
    assert parse_overrides(overrides)["data"]["train"] == str(file)


def test_a_folder_gives_its_splits(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        (tmp_path / f"{split}.txt").write_text("a b\n", encoding="utf-8")
    assert is_data(str(tmp_path))
    base, overrides = recipe_of_data(str(tmp_path), [], tmp_path / "data")
    assert base == "lm/transformer"
    assert parse_overrides(overrides)["data"] == {s: f"{tmp_path / s}.txt" for s in ("train", "dev", "test")}
    assert is_data("MINE.TSV.GZ"), "endings may be in capitals"


def test_recipes_are_no_data(tmp_path: Path) -> None:
    assert not is_data("digits/transformer")
    assert not is_data("mine.yaml")
    assert not is_data(str(tmp_path))
    (tmp_path / "parts.jsonl").mkdir()
    assert not is_data(str(tmp_path / "parts.jsonl")), "a folder without train.*, whatever it is called"


def test_a_missing_file_is_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        recipe_of_data("nowhere.jsonl", [], Path("data"))
    assert str(caught.value) == "data.train is 'nowhere.jsonl': there is no such file"


def test_a_table_without_a_dev_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    file.write_text("source\ttarget\na\tb\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"data\.dev is None: name a file to choose models by"):
        recipe_of_data(str(file), [], tmp_path / "data")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match="no examples"):
        recipe_of_data(str(file), [], tmp_path / "data")


def test_other_lines_are_written_to_another_place(tmp_path: Path) -> None:
    def split(n: int) -> list[str]:
        file = tmp_path / "mine.jsonl"
        file.write_text("".join(f'{{"source": "{i}", "target": "{i + n}"}}\n' for i in range(200)))
        return recipe_of_data(str(file), [], tmp_path / "parts")[1]

    first = split(0)
    before = {path: path.read_bytes() for path in (tmp_path / "parts").rglob("*.jsonl")}
    assert split(1) != first
    assert all(path.read_bytes() == content for path, content in before.items())
    assert split(0) == first
