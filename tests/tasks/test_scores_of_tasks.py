"""What each task scores, on outputs counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ostinato.config.data import DataConfig
from ostinato.metrics import make_metric
from ostinato.tasks.registry import TASKS

SPARQL = "SELECT count ( * ) WHERE { M0 p ?x0 }"
CASES: dict[str, list[tuple[list[tuple[str, str]], dict[str, float]]]] = {
    # Ends count: 3 of 3, and of three and the end the first and third.
    "algorithmic": [([("1 2", "1 2"), ("4 6 6", "4 5 6")], {"exact_match": 1 / 2, "token_accuracy_free": 6 / 7})],
    "babi": [([("milk", "milk"), ("n", "n w")], {"exact_match": 1 / 2, "token_accuracy_free": 3 / 5})],
    # Clauses in another order are wrong.
    "cfq": [
        (
            [(SPARQL, SPARQL), ("{ a . b }", "{ b . a }")],
            {"exact_match": 1 / 2, "token_accuracy_free": (12 + 4) / (12 + 6)},
        )
    ],
    "mcwq": [([("ASK WHERE { M0 p M1 }", "ASK WHERE { M0 p M2 }")], {"exact_match": 0, "token_accuracy_free": 7 / 8})],
    # Two of three labels; F1 of x 2 / 3, of y 1 / 1 (once right), of z 0.
    "classification": [
        ([("x", "x"), ("x", "z"), ("y", "y")], {"accuracy": 2 / 3, "macro_f1": (2 / 3 + 1 + 0) / 3}),
    ],
    "cogs": [
        ([("dog ( x _ 1 )", "dog ( x _ 1 )"), ("dog", "cat")], {"exact_match": 1 / 2, "token_accuracy_free": 8 / 9})
    ],
    "files": [([("a  b", "a b"), ("a", "b")], {"exact_match": 1 / 2, "token_accuracy_free": 4 / 5})],
    "geoquery": [
        (
            [("answer ( state )", "answer ( city )"), ("answer ( m0 )", "answer ( m0 )")],
            {"exact_match": 1 / 2, "token_accuracy_free": 9 / 10},
        )
    ],
    # 135 against 125: characters one and three, and the end.
    "learning_to_execute": [
        ([("135", "125"), ("7", "7")], {"exact_match": 1 / 2, "character_accuracy_free": 5 / 6}),
    ],
    "listops": [([("9", "9"), ("0", "1"), ("3", "3")], {"exact_match": 2 / 3})],
    "logical_inference": [([("<", "<"), ("#", "="), ("v", "v"), ("^", "|")], {"exact_match": 1 / 2})],
    # What has no label is not counted.
    "arc": [
        (
            [("<no-label> 3 4", "<no-label> 3 5"), ("1 <no-label>", "1 <no-label>")],
            {"exact_match": 1 / 2, "tag_accuracy": 2 / 3},
        )
    ],
    "maze": [([(". o o <no-label>", "o o o <no-label>")], {"exact_match": 0.0, "tag_accuracy": 2 / 3})],
    "sudoku": [([("1 2 2 1", "1 2 2 1"), ("1 2 2 1", "2 1 2 1")], {"exact_match": 1 / 2, "tag_accuracy": 6 / 8})],
    "parity": [([("1 1 0 1", "1 1 0 1"), ("0 1", "0 0")], {"tag_accuracy": 5 / 6})],
    "passivization": [
        (
            [("the yak was seen", "the yak was seen"), ("the newt saw", "the newt was seen"), ("a b", "a c")],
            {"exact_match": 1 / 3, "second_word": 2 / 3, "token_accuracy_free": (5 + 2 + 2) / (5 + 5 + 3)},
        )
    ],
    "pcfg_set": [
        ([("A1 B2", "A1 B2"), ("A1", "A1 A1")], {"exact_match": 1 / 2, "token_accuracy_free": 4 / 6}),
    ],
    "relay": [([("7", "7"), ("8", "7")], {"exact_match": 1 / 2})],
    "scan": [
        ([("I_WALK I_RUN", "I_RUN I_WALK"), ("I_JUMP", "I_JUMP")], {"exact_match": 1 / 2, "token_accuracy_free": 3 / 5})
    ],
    # Without articles and punctuation; of two words one is common: F1 2 / 3.
    "span_extraction": [
        (
            [("The hall.", "hall"), ("big hall", "hall\tpond")],
            {"answer_em": 1 / 2, "answer_f1": (1 + 2 / 3) / 2},
        )
    ],
    # Spans: two in the reference, two in the output, one common.
    "tagging": [
        ([("B-x I-x O B-y", "B-x I-x O B-x")], {"tag_accuracy": 3 / 4, "span_f1": 1 / 2}),
    ],
    # Precisions of n-grams 4 / 5, 3 / 4, 2 / 3, 1 / 2; of characters 1 / 2 and, of pairs, 0.
    "translation": [
        ([("a b c d x", "a b c d e")], {"bleu": 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** (1 / 4)}),
        ([("ab", "ac")], {"chrf": 25.0}),
    ],
}
BY_LOSS = {"agreement", "lambada"}
"""Scored without decoding: tests/training/test_language_runs.py and tests/evaluation/test_last_words.py."""


def test_every_task_is_counted_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"source": "a", "target": "b"}) + "\n", encoding="utf-8")
    assert CASES.keys() | BY_LOSS == set(TASKS)
    for kind, cases in CASES.items():
        task = TASKS[kind](TASKS[kind].config_type(kind=kind), DataConfig(train=str(path)))
        assert {name for _, expected in cases for name in expected} == set(task.metrics), kind


@pytest.mark.parametrize("kind", CASES)
def test_the_scores_of_a_task_are_those_counted_by_hand(kind: str) -> None:
    for pairs, expected in CASES[kind]:
        for name, value in expected.items():
            metric = make_metric(name)
            for output, reference in pairs:
                metric.update(output, reference)
            assert metric.compute()[name] == pytest.approx(value), name
