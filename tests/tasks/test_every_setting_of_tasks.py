"""Every setting of a task, and every setting of `data` that names the user's files, has an effect or is refused.

For every task, alone and beside a few settings that give others an effect, another value of each setting changes the
splits, the examples or how they are reported, or is a named error. Published files are not read: of the tasks that need
them, settings are listed that are refused, and the same ones where they are taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from ostinato.config.base import DEFER_CHECKS
from ostinato.config.data import DataConfig
from ostinato.config.load import load_recipe_config
from ostinato.config.recipe import Recipe, TaskRef
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, Inert, OstinatoError
from ostinato.tasks.base import TaskConfig
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import TASKS, build_task, task_problems

Settings = dict[str, Any]

FEW: dict[str, Settings] = {
    "agreement": {"n_train": 20, "n_eval": 2},
    "algorithmic": {"n_train": 20, "n_eval": 20},
    "learning_to_execute": {"n_train": 20, "n_eval": 20},
    "listops": {"version": "small", "n_train": 20, "n_eval": 20},
    "logical_inference": {"n_pairs": 1000},
    "maze": {"size": 3, "n_train": 20, "n_eval": 10},
    "parity": {"n_train": 20, "n_eval": 20},
    "passivization": {"n_train": 20},
    "pcfg_set": {"n_train": 20},
    "relay": {"n_train": 20, "n_eval": 20},
    "sudoku": {"size": 4, "n_train": 20, "n_eval": 10},
}
"""Few examples, so that drawing them takes no time."""
VARIANTS: dict[str, list[Settings]] = {
    "agreement": [{}, {"origin": "files"}, {"origin": "files", "train_form": "prefixes"}],
    "algorithmic": [{}, {"operation": "addition"}],
    "files": [{}, {"model_kind": "language_model"}, {"model_kind": "language_model", "documents": "files"}],
    "lambada": [{"form": form, "passages": p} for form in ("language_model", "reading") for p in ("pairs", "texts")],
    "learning_to_execute": [
        *({"strategy": s, "generator": g} for s in ("mix", "baseline", "naive") for g in ("families", "scripts")),
        {"strategy": "naive", "family": "copy"},
    ],
    "logical_inference": [{"origin": "generated"}],
    "passivization": [{"origin": "generated"}],
    "pcfg_set": [{"origin": "generated"}, {"origin": "generated", "split": "systematicity"}],
    "scan": [{"split": "length"}, {"split": "length", "dev_fraction": 0}],
    "span_extraction": [{}, {"format": "lines"}, {"language_field": "lang"}],
    "tagging": [{}, {"format": "columns"}, {"format": "columns", "language_field": "lang"}],
    "translation": [{"corpus": "files"}],
}
"""Settings under which the examples are made here, or read from the files below."""
VALUES: dict[str, list[Any]] = {
    "family": ["control", "all"],
    "max_length": [4],
    "long_min_length": [60],
    "long_lengths": [[50]],
    "larger_sizes": [[7]],
    "least_path": [7],
    "size": [6],
    "givens": [[7]],
    "languages": [{"train": "xx"}],
    "train_languages": [["en"]],
    "skipped_labels": [["A"]],
    "choices": [["A", "B"]],
    "language_field": ["lang"],
    "origin_column": ["origin"],
    "target_tag": ["lang"],
    "pair_field": ["wrong"],
    "by_field": ["lang"],
    "wrong_field": ["target"],
    "word_column": [1],
    "tag_column": [0],
    "normalise": ["romanian"],
    "stage_length": [2],
    "stage_nesting": [2],
    "max_nesting": [3],
    "n_shots": [4],
    "repetition": [2],
    "percent": [4],
    "n_pairs": [2000],
    "max_functions": [3],
    "exceptions": ["0.005"],
}
REFUSED_FOR_PUBLISHED: list[tuple[str, Settings, str]] = [
    ("logical_inference", {}, "n_pairs=2000"),
    ("logical_inference", {}, "seed=1"),
    ("passivization", {}, "n_train=9"),
    ("passivization", {}, "seed=1"),
    ("pcfg_set", {}, "seed=1"),
    ("pcfg_set", {}, "n_train=9"),
    ("pcfg_set", {}, "whole_dev=true"),
    ("pcfg_set", {"split": "substitutivity_equal"}, "whole_dev=true"),
    ("scan", {"split": "mcd1"}, "dev_fraction=0.1"),
    ("scan", {"split": "mcd2"}, "dev_seed=1"),
    ("scan", {"dev_fraction": 0}, "dev_seed=1"),
    ("scan", {}, "n_shots=4"),
    ("geoquery", {"split": "length"}, "dev_fraction=0.2"),
    ("geoquery", {"split": "tmcd_1"}, "dev_seed=1"),
    ("geoquery", {"dev_fraction": 0}, "dev_seed=1"),
    ("arc", {"dev_fraction": 0}, "dev_seed=1"),
    ("babi", {"dev_fraction": 0}, "dev_seed=1"),
    ("translation", {}, "target_tag=to"),
]
TAKEN_FOR_PUBLISHED: list[tuple[str, Settings, str]] = [
    ("logical_inference", {"origin": "generated"}, "n_pairs=2000"),
    ("passivization", {"origin": "generated"}, "n_train=9"),
    ("pcfg_set", {"origin": "generated"}, "seed=1"),
    ("pcfg_set", {"split": "productivity"}, "whole_dev=true"),
    ("scan", {}, "dev_seed=1"),
    ("scan", {"split": "few_shot"}, "n_shots=4"),
    ("geoquery", {"split": "nqg_length"}, "dev_fraction=0.2"),
    ("arc", {}, "dev_seed=1"),
    ("babi", {}, "dev_seed=1"),
    ("cogs", {}, "train_file=train_100"),
]
OF_TRAIN: dict[str, tuple[str, Any]] = {
    "agreement": ("n_train", 9),
    "algorithmic": ("n_train", 9),
    "cogs": ("train_file", "train_100"),
    "learning_to_execute": ("n_train", 9),
    "listops": ("n_train", 9),
    "maze": ("n_train", 9),
    "parity": ("n_train", 9),
    "relay": ("n_train", 9),
    "sudoku": ("augmentations", 9),
}
BENCHMARKS = sorted(kind for kind in TASKS if not TASKS[kind].config_type(kind=kind).reads_own_files)
_SQUAD = {"id": "1", "question": "A b?", "answers": [{"text": "c", "answer_start": 2}]}
_ROW = {"target": "A", "text": "A b c d", "lang": "en", "wrong": "W"}


def write_files(kind: str, settings: Settings, folder: Path) -> Settings:
    """Write files that the task can read in every form, and return their settings."""
    found: Settings = {}
    for split in ("train", "dev", "test"):
        if kind == "span_extraction" and settings.get("format") != "lines":
            article = {"paragraphs": [{"context": "a c d", "qas": [_SQUAD]}]}
            path, text = folder / split, json.dumps({"data": [article]})
        elif settings.get("format") == "columns":
            path, text = folder / split, "a A\nb B\n\n"
        else:
            source = "w\tA b" if kind == "span_extraction" else "b"
            rows = [{**_ROW, "source": source, "lang": language} for language in ("en", "de")]
            rows.append({**_ROW, "source": source, "target": "B", "text": "\u015fi e", "n_attractors": 1})
            rows[0]["target"] = "\u015f" if kind == "translation" else "A"
            path, text = folder / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
        found[split] = str(path)
    return found


def other_values(name: str, annotation: Any, value: Any) -> Iterator[Any]:
    """Yield other values of a setting."""
    if name in VALUES:
        yield from (other for other in VALUES[name] if other != value)
    elif get_origin(annotation) is Literal:
        yield from (other for other in get_args(annotation) if other != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, float):
        yield 0.5 * value + 0.1
    elif isinstance(value, int):
        yield value + 7
    else:
        raise AssertionError(f"give VALUES another value of {name}")


def changes(config: TaskConfig) -> Iterator[tuple[str, Any]]:
    for name, field in type(config).model_fields.items():
        if name != "kind":
            yield from ((name, other) for other in other_values(name, field.annotation, getattr(config, name)))


def outcome(task: Settings, data: Settings, nowhere: Path) -> Any:
    """Return what a task gives, without any published file, or the keys that it refuses."""
    own, user = {"kind": task["kind"], **task}, DataConfig.model_validate(data)
    if problems := task_problems(own, user):
        return "refused", sorted(problem.key for problem in problems)
    try:
        made = build_task(TaskRef.model_validate(own), user, DataAccess(nowhere, str(nowhere)))
        rows = {
            split: [(e.source, e.target, e.columns, e.continues) for e in islice(made.examples(split), 60)]
            for split in made.splits()
        }
    except OstinatoError as error:
        return "error", type(error), str(error)
    return made.splits(), rows, made.by, made.contrast, made.metrics


CASES = [(kind, settings) for kind in VARIANTS for settings in VARIANTS[kind]]
CASES += [("classification", {}), ("maze", {}), ("sudoku", {}), ("parity", {}), ("relay", {}), ("listops", {})]
SLOW = {"passivization", "pcfg_set"}
"""Tasks that draw many sentences to find new ones."""


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "settings"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case[0] in SLOW)) for case in CASES],
    ids=lambda case: case if isinstance(case, str) else str(case),
)
def test_every_setting_of_a_task_changes_its_examples_or_is_refused(
    kind: str, settings: Settings, tmp_path: Path
) -> None:
    few = {} if settings.get("origin") == "files" else FEW.get(kind, {})
    task = {"kind": kind, **few, **settings}
    config = TASKS[kind].config_type.model_validate(task, context=DEFER_CHECKS)
    data = write_files(kind, settings, tmp_path) if config.reads_own_files else {}
    before = outcome(task, data, tmp_path)
    assert before[0] not in ("refused", "error"), before
    assert outcome(task, data, tmp_path) == before
    tried = [(task | {name: value}, data, f"task.{name}={value}") for name, value in changes(config)]
    fields = {"source_field", "target_field", "text_field"} - {config.input_field}  # which inputs of generate have
    tried += [(task, data | {name: "lang"}, f"data.{name}=lang") for name in sorted(fields)]
    if not config.reads_own_files:
        tried += [(task, {name: "a.jsonl"}, f"data.{name}") for name in ("dev", "test")]
    assert [said for own, user, said in tried if outcome(own, user, tmp_path) == before] == []


@pytest.mark.parametrize(("kind", "settings", "change"), REFUSED_FOR_PUBLISHED)
def test_a_setting_without_effect_is_one_line(kind: str, settings: Settings, change: str, tmp_path: Path) -> None:
    recipe = {"task": {"kind": kind, **settings}}
    with pytest.raises(ConfigError) as caught:
        load_with_tasks(recipe, f"task.{change}")
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"task.{change.partition('=')[0]} is ")


@pytest.mark.parametrize(("kind", "settings", "change"), TAKEN_FOR_PUBLISHED)
def test_the_same_setting_is_taken_where_it_has_an_effect(kind: str, settings: Settings, change: str) -> None:
    name, _, value = change.partition("=")
    found = load_with_tasks({"task": {"kind": kind, **settings}}, f"task.{change}").task.settings()
    assert str(found[name]).lower() == value


@pytest.mark.parametrize("kind", BENCHMARKS)
def test_benchmarks_refuse_files_that_they_do_not_read(kind: str) -> None:
    files = {"dev": "gone.jsonl", "test": {"gen": "gone.jsonl"}, "source_field": "a", "text_field": "b"}
    data = DataConfig.model_validate(files | {"target_field": "c"})
    problems = task_problems({"kind": kind}, data)
    assert all(isinstance(problem, Inert) for problem in problems)
    keys = {problem.key for problem in problems}
    config = TASKS[kind].config_type(kind=kind)
    fields = {f"data.{name}" for name in ("source_field", "target_field", "text_field") if name != config.input_field}
    assert keys == {"data.dev", "data.test", *fields}
    read = config.fields
    problems = task_problems({"kind": kind}, data.model_copy(update={"train": "mine.jsonl"}))
    assert {problem.key for problem in problems} == keys - {f"data.{name}" for name in read}


@pytest.mark.parametrize("kind", OF_TRAIN)
def test_what_only_shapes_train_is_refused_beside_a_train_file(kind: str) -> None:
    name, value = OF_TRAIN[kind]
    given = {"kind": kind, name: value}
    assert task_problems(given, DataConfig()) == []
    (problem,) = task_problems(given, DataConfig(train="mine.jsonl"))
    assert problem.key == f"task.{name}"
    assert "data.train replaces the training split" in problem.reason


def test_a_train_file_leaves_settings_that_other_splits_depend_on() -> None:
    train = DataConfig(train="mine.jsonl")
    pooled = {"kind": "pcfg_set", "origin": "generated", "split": "productivity", "n_train": 9}
    assert task_problems(pooled, train) == []
    assert [problem.key for problem in task_problems(pooled | {"split": "iid"}, train)] == ["task.n_train"]
    assert task_problems({"kind": "babi", "size": "10k"}, train) == []
    (problem,) = task_problems({"kind": "babi", "size": "10k", "dev_fraction": 0}, train)
    assert problem.key == "task.size"


def load_with_tasks(settings: Settings, *overrides: str) -> Recipe:
    return load_recipe_config(settings, overrides, extra_problems=lambda r: task_problems(r.task.settings(), r.data))


def test_inherited_settings_of_a_task_are_left_out_where_a_change_makes_them_useless(tmp_path: Path) -> None:
    base = {"task": {"kind": "geoquery", "dev_fraction": 0.2, "dev_seed": 3}}
    changed = load_with_tasks(base, "task.split=length").task.settings()
    assert changed == {"kind": "geoquery", "split": "length"}
    with pytest.raises(ConfigError, match=r"task\.dev_seed is 4: is for task\.split=standard"):
        load_with_tasks(base, "task.split=length", "task.dev_seed=4")
    replaced = load_with_tasks({"task": {"kind": "relay", "n_train": 9}}, "data.train=mine.jsonl")
    assert replaced.task.settings() == {"kind": "relay"}


def test_what_a_run_of_an_older_version_stored_without_effect_is_left_out(tmp_path: Path) -> None:
    stored = {"task": {"kind": "logical_inference", "seed": 3}, "data": {"dev": "gone.jsonl"}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(stored), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"task\.seed"):
        load_recipe(tmp_path / "recipe.yaml")
    (tmp_path / "versions.json").write_text("{}", encoding="utf-8")
    found = load_recipe(tmp_path)
    assert (found.task.settings(), found.data.dev) == ({"kind": "logical_inference"}, None)


def test_a_train_file_replaces_that_of_a_published_translation(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"source": "a", "target": "b"}\n', encoding="utf-8")
    task = build_task(TaskRef(kind="translation"), DataConfig(train=str(path)))
    assert [(example.source, example.target) for example in task.examples("train")] == [("a", "b")]
