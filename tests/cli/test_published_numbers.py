"""Published numbers of a recipe beside those measured."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from ostinato.cli.results import print_published
from ostinato.config.recipe import Recipe, ReferenceRow
from ostinato.tasks.cfq import CfqConfig
from ostinato.tasks.recipes import find_recipe, list_recipes, load_recipe
from ostinato.tasks.registry import task_config

RESULTS: dict[str, dict[str, Any]] = {
    "test": {"exact_match": 0.625, "by": {"bin": {"7": {"exact_match": 0.5}, "8": {"exact_match": 0.25}}}}
}


def row(source: str, **settings: Any) -> ReferenceRow:
    return ReferenceRow.model_validate({"source": source, "split": "test", "metric": "exact_match"} | settings)


def printed(
    rows: list[ReferenceRow], capsys: pytest.CaptureFixture[str], task: CfqConfig = CfqConfig()
) -> list[list[str]]:
    print_published(rows, task, RESULTS)
    return [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]


def published(recipe: Recipe, capsys: pytest.CaptureFixture[str]) -> list[float]:
    """The published values that are printed where all that they are compared with is measured, as -1."""
    scores = {row.metric: -1.0 for row in recipe.reference}
    by: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    for column, value in (pair for row in recipe.reference for pair in (row.by or {}).items()):
        by[column][str(value)] = scores
    results = {row.split: scores | {"by": by} for row in recipe.reference}
    print_published(recipe.reference, task_config(recipe.task), results)
    return [float(line.split()[-2]) for line in capsys.readouterr().out.splitlines() if line.strip().endswith(" -1")]


def commands_of(name: str) -> list[list[str]]:
    """The overrides of every command in a recipe's header that changes its task."""
    commands = re.findall(rf"# .*ostinato train {name} (.*)", find_recipe(name).read_text(encoding="utf-8"))
    found = [re.findall(r"[\w.]+=\S+", command) for command in commands]
    return [overrides for overrides in found if any(one.startswith("task.") for one in overrides)]


def task_changes(overrides: list[str]) -> dict[str, Any]:
    pairs = [one.removeprefix("task.").split("=", 1) for one in overrides if one.startswith("task.")]
    return {key: yaml.safe_load(value) for key, value in pairs}


def test_theirs_and_ours_stand_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    whole, part = row("A", value=0.75), row("B", value=0.875, by={"bin": 7})
    lines = printed([whole, part], capsys)
    assert ["A", "test", "all", "exact_match", "0.75", "0.625"] in lines
    assert ["B", "test", "bin", "7", "exact_match", "0.875", "0.5"] in lines


def test_the_share_of_preferred_targets_is_one_number_for_all_and_one_for_every_group(
    capsys: pytest.CaptureFixture[str],
) -> None:
    by = {"n_attractors": {"0": {"n": 2, "accuracy": 0.5}, "1": {"n": 2, "accuracy": 1.0}}}
    results = {"test": {"loss": 4.0, "ranking": {"n": 4, "accuracy": 0.75, "by": by}}}
    ranked = [row("A", metric="ranking", value=0.9)]
    ranked += [row("A", metric="ranking", value=0.8, by={"n_attractors": n}) for n in (0, 1, 2)]
    print_published(ranked, CfqConfig(), results)
    out = capsys.readouterr().out
    assert "{" not in out
    lines = [line.split() for line in out.splitlines() if line.strip()]
    assert ["A", "test", "all", "ranking", "0.9", "0.75"] in lines
    assert ["A", "test", "n_attractors", "0", "ranking", "0.8", "0.5"] in lines
    assert ["A", "test", "n_attractors", "1", "ranking", "0.8", "1"] in lines
    assert ["A", "test", "n_attractors", "2", "ranking", "0.8"] in lines


def test_what_was_not_measured_is_left_empty(capsys: pytest.CaptureFixture[str]) -> None:
    absent = [row("A", value=0.75, by={"bin": 9}), row("B", value=12.5, metric="bleu")]
    lines = printed(absent, capsys)
    assert any(line[:1] == ["A"] and "0.75" in line and "0.625" not in line for line in lines)
    assert any(line[:1] == ["B"] and "12.5" in line and len(line) <= 6 for line in lines)


def test_splits_that_were_not_scored_are_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed([row("A", value=0.5, split="gen")], capsys) == []


def test_a_number_of_other_settings_of_the_task_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(f"mcd{n}", value=n, task={"split": f"mcd{n}", "target_form": "published"}) for n in (1, 2)]
    rows += [row("any", value=3), row("another task's", value=4, task={"language": "en"})]
    sources = {"mcd1", "mcd2", "any", "another"}

    def shown(**settings: Any) -> list[str]:
        return [line[0] for line in printed(rows, capsys, CfqConfig(**settings)) if line[0] in sources]

    assert shown() == ["mcd1", "any"]  # its default settings, too
    assert shown(split="mcd2") == ["mcd2", "any"]
    assert shown(split="mcd2", target_form="simplified") == shown(split="mcd3") == ["any"]


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("cfq/universal-sut", ["task.split=mcd2"], [0.511]),
        ("cfq/universal", ["task.split=mcd3"], [0.113]),
        ("cfq/transformer", ["task.split=random"], []),
        ("mcwq/universal", ["task.split=mcd2"], []),
        ("learning-to-execute/transformer", ["task.max_length=3"], []),
        ("learning-to-execute/copy-transformer", ["task.family=reverse"], [0.81, 0.26]),
        ("algorithmic/copy-transformer", ["task.operation=reverse"], [0.13, 0.06]),
        ("logical-inference/transformer", [], [0.51, 0.52, 0.51, 0.51, 0.51, 0.48]),
        ("logical-inference/transformer", ["task.held_out=C"], []),
        ("babi/universal-tiny", [], [0.9971]),
        ("babi/universal-tiny", ["task.size=1k"], [0.9222]),
        ("agreement/transformer", [], []),
        ("agreement/linzen-universal", [], [0.992, 0.993, 0.971, 0.969, 0.94, 0.921, 0.892]),
        ("transformer/base", ["task.corpus=multi30k_en_de"], []),
    ],
)
def test_the_numbers_of_a_recipe_are_those_of_its_task_as_it_is_run(
    name: str, overrides: list[str], expected: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    assert published(load_recipe(name, overrides), capsys) == expected


def test_every_row_names_what_the_commands_of_recipes_change_and_is_shown_under_no_other_settings(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = {info.name: commands_of(info.name) for info in list_recipes()}
    changed: defaultdict[str, set[str]] = defaultdict(set)
    for name, found in commands.items():
        changed[load_recipe(name).task.kind].update(key for one in found for key in task_changes(one))
    assert {*changed["cfq"]} == {"split", "target_form"}
    for name, found in commands.items():
        recipe = load_recipe(name)
        settings = task_config(recipe.task).model_dump()
        for one in recipe.reference:
            assert changed[recipe.task.kind] <= one.task.keys() <= settings.keys(), (name, one)
        for overrides in found:
            changes = task_changes(overrides)
            expected = [one.value for one in recipe.reference if changes.items() <= one.task.items()]
            assert published(load_recipe(name, overrides), capsys) == expected, (name, overrides)


def test_train_and_evaluate_print_the_numbers_of_the_task_that_was_trained(run, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(
        "base: learning-to-execute/copy-transformer\n"
        "task: {family: reverse, n_train: 40, n_eval: 2}\n"
        "model: {d_model: 16, encoder: {n_steps: 1, ffn: {d_ff: 8}}, decoder: {n_steps: 1, ffn: {d_ff: 8}}}\n"
        "training: {n_updates: 1, schedule: {warmup: 0}, device: cpu}\n"
        "decoding: {max_length: 4}\n"
        "evaluation: {splits: [test]}\n",
        encoding="utf-8",
    )
    for command in (("train", tmp_path / "tiny.yaml", "--run-dir", tmp_path / "run"), ("evaluate", tmp_path / "run")):
        outcome = run(*command)
        assert outcome.code == 0, outcome.err
        lines = [line.split() for line in outcome.out.splitlines() if "table 5, Transformer" in line]
        assert [line[-2] for line in lines] == ["0.81", "0.26"]
