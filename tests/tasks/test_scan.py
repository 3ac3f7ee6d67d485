from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, DataError
from ostinato.tasks.overlap import overlap
from ostinato.tasks.registry import build_task
from ostinato.tasks.scan import ScanConfig, addprim_split, all_commands, length_split

GENERATED = ["length", "addprim_jump", "addprim_turn_left"]


def scan(**settings: object):
    return build_task(TaskRef.model_validate({"kind": "scan", **settings}), DataConfig())


def pairs(examples) -> list[tuple[str, str]]:
    return [(example.source, example.target) for example in examples]


def test_the_grammar_gives_20910_distinct_commands():
    rows = list(all_commands())
    assert len(rows) == 20910
    assert len(dict(rows)) == 20910


@pytest.mark.parametrize(
    ("command", "actions"),
    [
        ("jump", "I_JUMP"),
        ("turn left twice", "I_TURN_LEFT I_TURN_LEFT"),
        ("turn opposite right", "I_TURN_RIGHT I_TURN_RIGHT"),
        ("walk around left", "I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK I_TURN_LEFT I_WALK"),
        ("look left and run", "I_TURN_LEFT I_LOOK I_RUN"),
        ("run after look opposite left", "I_TURN_LEFT I_TURN_LEFT I_LOOK I_RUN"),
        ("jump thrice after turn right", "I_TURN_RIGHT I_JUMP I_JUMP I_JUMP"),
    ],
)
def test_commands_mean_what_the_paper_says(command, actions):
    assert dict(all_commands())[command] == actions


@pytest.mark.parametrize("split", GENERATED)
@pytest.mark.parametrize("part", ["train", "test"])
def test_generated_splits_hold_the_published_rows(oracle, split, part):
    published = Counter((row["source"], row["target"]) for row in oracle(f"scan/{split}_{part}"))
    made = Counter(pairs(scan(split=split, dev_fraction=0).examples(part)))
    assert made == published


@pytest.mark.parametrize("part", ["train", "test"])
def test_the_simple_split_equals_the_published_rows_in_order(open_published, oracle, part):
    task = open_published("scan", split="simple", dev_fraction=0)
    assert pairs(task.examples(part)) == [(row["source"], row["target"]) for row in oracle(f"scan/simple_{part}")]


def test_the_length_split_divides_at_22_actions():
    train, test = length_split()
    assert (len(train), len(test)) == (16990, 3920)
    assert max(len(actions.split()) for _, actions in train) == 22
    assert min(len(actions.split()) for _, actions in test) == 24
    assert [len(actions.split()) for _, actions in train] == sorted(len(actions.split()) for _, actions in train)


def test_the_lone_primitive_is_one_training_row_in_ten():
    train, test = addprim_split("jump")
    assert (len(train), len(test)) == (14670, 7706)
    assert all((row == ("jump", "I_JUMP")) == (index % 10 == 0) for index, row in enumerate(train))
    assert all("jump" in command and command != "jump" for command, _ in test)


@pytest.mark.parametrize("split", GENERATED)
def test_dev_is_cut_from_train_and_nothing_is_lost(split):
    whole = Counter(pairs(scan(split=split, dev_fraction=0).examples("train")))
    task = scan(split=split, dev_fraction=0.1)
    train, dev = pairs(task.examples("train")), pairs(task.examples("dev"))
    assert Counter(train) + Counter(dev) == whole
    assert not set(train) & set(dev)
    assert abs(len(dev) / len(whole) - 0.1) < 0.001
    assert pairs(scan(split=split, dev_fraction=0.1, dev_seed=1).examples("dev")) != dev


def test_the_repeated_primitive_never_leaves_train():
    task = scan(split="addprim_turn_left", dev_fraction=0.9)
    assert sum(example.source == "turn left" for example in task.examples("train")) == 2189
    assert all(example.source != "turn left" for example in task.examples("dev"))


def test_without_a_dev_fraction_the_error_names_the_setting():
    with pytest.raises(ConfigError, match=r"task\.dev_fraction above 0"):
        scan(dev_fraction=0).examples("dev")


def test_no_test_command_was_seen_in_training():
    for split in GENERATED:
        task = scan(split=split)
        assert overlap(task.examples("test"), task.examples("train")).n_seen_sources == 0


def test_columns_hold_the_number_of_actions_and_its_bucket():
    columns = {example.source: example.columns for example in scan(split="length").examples("test")}
    assert columns["run around left twice and run around right"] == {"n_actions": 24, "actions": "17-24"}
    assert columns["run around left thrice and run around right thrice"] == {"n_actions": 48, "actions": "41-48"}


# --- Splits that are read as published: their files are not at hand, their rules are. --------------------------------

_TEMPLATES = {
    "template_right": "right",
    "template_opposite_right": "opposite right",
    "template_around_right": "around right",
}
_VERBS = ("walk", "look", "run", "jump")
_WITH_JUMPS = "add_prim_split/with_additional_examples/tasks_train_addprim_complex_jump"


def _without(rows: list[tuple[str, str]], phrases: list[str]) -> list[tuple[str, str]]:
    return [row for row in rows if not any(f" {phrase} " in f" {row[0]} " for phrase in phrases)]


def _by_rule(split: str) -> dict[str, list[tuple[str, str]]]:
    """Train and test of a template (Loula et al. 2018): `turn` with it in neither, `jump around right` alone as the
    fourth, and fillers of `around right` that training has but for the test."""
    if split in _TEMPLATES:
        template = _TEMPLATES[split]
        held = [f"{verb} {template}" for verb in _VERBS]
    else:
        template, n_fillers = "around right", 3 if split == "template_jump_around_right" else int(split[-1])
        fillers = ("look", "walk", "run")[:n_fillers]
        held = [f"{verb} around right" for verb in _VERBS if verb not in fillers]
    rows = _without(list(all_commands()), [f"turn {template}"])
    train = _without(rows, held)
    trained = set(train)
    test = [row for row in rows if row not in trained]
    if split.startswith(("filler", "template_jump")):
        test = [row for row in rows if " jump around right " in f" {row[0]} "]
    return {"train": train, "test": test}


def _mirror(folder: Path, name: str, rows: list[tuple[str, str]]) -> Path:
    path = folder / "mirror" / "brendenlake" / "SCAN" / "c4b756cbc010d75c912f16c42c8f15dc6b7e6c8f" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"IN: {command} OUT: {actions}\n" for command, actions in rows), encoding="ascii")
    return path


def _from(folder: Path, **settings: object):
    access = DataAccess(folder / "cache", str(folder / "mirror"))
    return build_task(TaskRef.model_validate({"kind": "scan", "dev_fraction": 0, **settings}), DataConfig(), access)


@pytest.mark.sampled
@pytest.mark.parametrize("split", [*_TEMPLATES, "template_jump_around_right", *(f"filler_num{n}" for n in range(4))])
def test_templates_and_fillers_are_read_in_the_published_sizes(tmp_path, split):
    """The sizes in bytes that are checked are those that the rule gives, in any order of the rows."""
    parts = _by_rule(split)
    for part, rows in parts.items():
        random.Random(0).shuffle(rows)
        _mirror(tmp_path, f"{split.partition('_')[0]}_split/tasks_{part}_{split}.txt", rows)
    task = _from(tmp_path, split=split)
    assert {part: pairs(task.examples(part)) for part in parts} == parts
    assert task.published_sizes() == {part: len(rows) for part, rows in parts.items()}
    assert not {row[0] for row in parts["train"]} & {row[0] for row in parts["test"]}


def test_few_shots_are_added_to_training_without_fillers(tmp_path):
    parts = _by_rule("filler_num0")
    trained = set(parts["train"])
    more = [row for row in _by_rule("filler_num1")["train"] if row not in trained][:4]
    assert all(" around right" in command for command, _ in more)
    assert not any(" around right" in command for command, _ in trained)
    stem = "few_shot_split/tasks_{}_fewshot_num4_rep2.txt"
    _mirror(tmp_path, stem.format("train"), parts["train"] + more)
    _mirror(tmp_path, stem.format("test"), parts["test"])
    task = _from(tmp_path, split="few_shot", n_shots=4, repetition=2)
    assert pairs(task.examples("train"))[-4:] == more
    assert task.published_sizes() == {"train": 15229, "test": 1173}
    assert sum(1 for _ in task.examples("test")) == 1173


@pytest.mark.parametrize("split", ["few_shot", "addprim_complex_jump"])
def test_the_commands_that_are_added_are_trained_on_whatever_dev_is(tmp_path, split):
    if split == "few_shot":
        stem = "few_shot_split/tasks_train_fewshot"
        rows, others = _by_rule("filler_num0")["train"], _by_rule("filler_num1")["train"]
    else:
        stem = _WITH_JUMPS
        rows, others = addprim_split("jump")
    known = set(rows)
    added = [row for row in others if row not in known][::40][:16]
    _mirror(tmp_path, f"{stem}_num16_rep1.txt", rows + added)
    for seed in range(3):
        dev_fraction = ScanConfig().dev_fraction
        task = _from(tmp_path, split=split, n_shots=16, dev_fraction=dev_fraction, dev_seed=seed)
        assert set(added) <= set(pairs(task.examples("train")))
        assert abs(len(pairs(task.examples("dev"))) / len(known) - dev_fraction) < 1e-3


def test_sizes_and_jumps_in_training_are_read_by_their_settings(tmp_path):
    rows = list(all_commands())
    _mirror(tmp_path, "simple_split/size_variations/tasks_train_simple_p2.txt", rows[:400])
    assert pairs(_from(tmp_path, split="size", percent=2).examples("train")) == rows[:400]
    name = f"{_WITH_JUMPS}_num8_rep1.txt"
    jumps = [("jump", "I_JUMP")] * 3 + [row for row in rows if "jump" in row[0]][-8:]
    _mirror(tmp_path, name, jumps)
    task = _from(tmp_path, split="addprim_complex_jump", n_shots=8, dev_fraction=0.5)
    assert ("jump", "I_JUMP") in pairs(task.examples("train"))
    assert ("jump", "I_JUMP") not in pairs(task.examples("dev"))


def test_rows_that_the_grammar_does_not_have_are_named(tmp_path):
    path = _mirror(
        tmp_path, "simple_split/size_variations/tasks_test_simple_p1.txt", [("jump", "I_JUMP"), ("run", "I_JUMP")]
    )
    with pytest.raises(DataError, match=r"tasks_test_simple_p1\.txt.*line 2.*grammar has no such row"):
        list(_from(tmp_path, split="size").examples("test"))
    assert path.exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"n_shots": 2},
        {"split": "size", "n_shots": 2},
        {"split": "few_shot", "percent": 2},
        {"repetition": 2},
        {"split": "addprim_complex_jump", "n_shots": 64},
    ],
)
def test_settings_of_another_split_are_refused(settings):
    with pytest.raises(ConfigError, match="task"):
        scan(**settings)
