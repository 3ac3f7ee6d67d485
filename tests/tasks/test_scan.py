from __future__ import annotations

from collections import Counter

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.errors import ConfigError
from ostinato.tasks.overlap import overlap
from ostinato.tasks.registry import build_task
from ostinato.tasks.scan import addprim_split, all_commands, length_split

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
