from __future__ import annotations

import inspect

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError
from ostinato.metrics import METRICS
from ostinato.tasks.registry import TASKS, build_task, task_problems

OWN_FILES = {name for name, task in TASKS.items() if task.config_type().reads_own_files}


def build(kind: str, **settings: object):
    return build_task(TaskRef.model_validate({"kind": kind, **settings}), DataConfig())


def test_good_settings_have_no_problems():
    assert task_problems({"kind": "scan", "split": "length", "dev_fraction": 0}) == []
    assert task_problems({}) == []


def test_an_unknown_kind_lists_the_valid_ones():
    (problem,) = task_problems({"kind": "skan"})
    assert problem.key == "task.kind"
    assert problem.value == "skan"
    assert all(name in problem.reason for name in TASKS)
    assert "did you mean scan?" in problem.reason


def test_every_wrong_setting_is_reported_at_once():
    settings = {"kind": "scan", "splitt": "length", "dev_fraction": "much", "dev_seed": -1}
    problems = {problem.key: problem for problem in task_problems(settings)}
    assert problems.keys() == {"task.splitt", "task.dev_fraction", "task.dev_seed"}
    assert "did you mean task.split?" in problems["task.splitt"].reason
    assert problems["task.dev_fraction"].value == "much"
    assert "a number in [0, 1)" in problems["task.dev_fraction"].reason
    assert "an integer in [0, 2^63 - 1]" in problems["task.dev_seed"].reason


def test_a_wrong_choice_names_the_valid_ones():
    (problem,) = task_problems({"kind": "cogs", "target_form": "vf"})
    assert str(problem) == "task.target_form is 'vf': must be one of logical, variable_free"


def test_impossible_combinations_carry_the_path_of_the_task():
    (problem,) = task_problems({"kind": "algorithmic", "max_length": 40, "long_max_length": 30})
    assert problem.key == "task.long_max_length"
    assert "task.max_length + 1 = 41" in problem.reason


def test_building_with_wrong_settings_raises_all_problems():
    with pytest.raises(ConfigError) as caught:
        build("scan", split="long", dev_fraction=2)
    assert {problem.key for problem in caught.value.problems} == {"task.split", "task.dev_fraction"}


def test_an_unknown_split_lists_the_splits():
    with pytest.raises(ConfigError, match="split is 'gen': the task scan has the splits train, dev, test"):
        build("scan").examples("gen")


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_states_its_protocol_and_uses_known_metrics(name):
    text = inspect.getdoc(TASKS[name])
    assert text is not None
    for heading in ("Splits", "Token", "Metric", "Selection"):
        assert heading in text, heading
    assert set(TASKS[name].metrics) <= set(METRICS)
    assert TASKS[name].config_type.model_fields["kind"].default == name


@pytest.mark.parametrize("name", sorted(set(TASKS) - OWN_FILES))
def test_every_benchmark_trains_selects_and_tests(name):
    task = build(name)
    assert task.splits()[0] == "train"
    assert {"dev", "test"} <= set(task.splits())


def test_only_generated_tasks_call_themselves_so():
    assert build("algorithmic").is_generated
    assert build("scan", split="length").is_generated
    assert not build("scan", split="simple").is_generated
    assert build("logical_inference", origin="generated").is_generated
    assert not build("logical_inference").is_generated
    assert not build("translation").is_generated


NEVER_AT_HAND = {
    "data/passiv_en_nps/passiv_en_nps.train",
    "data/pcfgset/pcfgset/train.src",
    "cfq1.1.tar.gz",
    "mcwq/official/mcd1/train.en.txt",
}
"""Published files whose hash nobody here knows."""


def test_every_published_file_has_an_address_a_licence_and_a_number_of_rows_and_nearly_all_a_hash():
    files = [file for name in set(TASKS) - OWN_FILES for file in build(name).files()]
    assert len(files) > 40
    assert {file.path for file in files if file.sha256 is None} == NEVER_AT_HAND
    for file in files:
        assert file.sha256 is None or len(file.sha256) == 64
        assert (file.n_bytes is None) <= (file.sha256 is None)
        assert len(file.commit) == 40
        # bAbI's files hold facts and questions: its task counts the questions. A file of ARC-AGI is one task, no rows.
        assert file.n_rows or "/babi/" in file.path or file.repo.endswith(("/ARC-AGI", "/ARC-AGI-2"))
        assert file.licence


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("cogs", {}),
        ("scan", {}),
        pytest.param("logical_inference", {}, marks=pytest.mark.slow),
        pytest.param("babi", {}, marks=pytest.mark.slow),
    ],
)
def test_the_sizes_are_those_that_were_published(open_published, kind, settings):
    task = open_published(kind, **settings)
    sizes = {split: sum(1 for _ in task.examples(split)) for split in task.splits()}
    published = task.published_sizes()
    if "dev" not in published:  # cut from train here
        sizes["train"] += sizes["dev"]
    assert published
    assert {split: sizes[split] for split in published} == published
