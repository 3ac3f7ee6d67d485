from __future__ import annotations

import io
from collections import Counter
from contextlib import redirect_stdout
from random import Random
from typing import Any

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.metrics import make_metric
from ostinato.tasks.learning_to_execute import LearningToExecuteTask
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.programs import FAMILIES, MEMORY, draw_family, draw_script
from ostinato.tasks.registry import build_task, task_problems


def learning_to_execute(**settings: Any):
    small = {"n_train": 200, "n_eval": 100}
    return build_task(TaskRef.model_validate({"kind": "learning_to_execute", **small, **settings}), DataConfig())


def run_script(source: str) -> str:
    """Let Python execute a script."""
    with redirect_stdout(io.StringIO()) as output:
        exec(source.removesuffix("@").replace("#", "\n"), {})
    return f"{output.getvalue().strip()}."


def evaluate(expression: str, length: int) -> str:
    """Let Python evaluate an expression: `x=Afor[k]x+=B` is A+k*B."""
    text = expression.replace("]x+=", "*").replace("for[", "+").replace("x=", "")
    text = text.replace("if", " if ").replace("else", " else ")
    return str(eval(text) % 10 ** (length + 1))


def check_scripts(n: int) -> None:
    rng = Random(5)
    for _ in range(n):
        program = draw_script(rng, lambda: (rng.randint(1, 6), rng.randint(1, 5)))
        assert run_script(program.source) == program.target, program.source


def check_families(n: int) -> None:
    rng = Random(6)
    families = sorted(set(FAMILIES) - set(MEMORY))
    for _ in range(n):
        length = rng.randint(1, 6)
        program = draw_family(rng, rng.choice(families), length, rng.randint(1, 4))
        assert evaluate(program.source, length) == program.target, program.source


def test_scripts_and_expressions_agree_with_python() -> None:
    check_scripts(500)
    check_families(500)


@pytest.mark.slow
def test_ten_thousand_scripts_and_expressions_agree_with_python() -> None:
    check_scripts(10_000)
    check_families(10_000)


def test_the_papers_script_gives_its_printed_result() -> None:
    assert run_script("j=8584#for x in range(8):j+=920#b=(1500+j);#print((b+7567))@") == "25011."


def test_scripts_have_every_operation_and_use_a_name_once() -> None:
    rng = Random(0)
    texts = [draw_script(rng, lambda: (4, 3)).source for _ in range(400)]
    for sign in ("+", "-", "*", ";#", "for x in range(", ":", "-=", "+=", " if ", " else ", "<", ">"):
        assert any(sign in text for text in texts), sign
    for text in texts:
        names = [line[0] for line in text.split("#") if line[0] != "f" or line[1] == "="]
        assert len(set(names[:-1])) == len(names[:-1])
        assert text.split("#")[-1].startswith("print(")


def test_script_numbers_reach_from_one_to_the_power_of_ten() -> None:
    rng = Random(1)
    programs = [draw_script(rng, lambda: (1, 1)) for _ in range(3000)]
    assert {"print(10)@", "print(1)@"} <= {program.source for program in programs}
    assert all(program.nesting == program.length == 1 for program in programs)


@pytest.mark.parametrize(("family", "expected"), [("copy", "472"), ("double", "472472"), ("reverse", "274")])
def test_memory_families_repeat_a_number(family: str, expected: str) -> None:
    rng = Random(3)
    while (program := draw_family(rng, family, 3, 1)).source != "472":
        assert len(program.source) == 3
    assert program.target == expected


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(MEMORY)))
def test_families_use_their_operations_and_no_outer_brackets(family: str) -> None:
    rng = Random(4)
    programs = [draw_family(rng, family, 2, 2) for _ in range(300)]
    signs = {"+", "-", "*", "if", "for"} - set(FAMILIES[family])
    for program in programs:
        text = program.source.replace("x+=", "")
        assert not any(sign in text for sign in signs), program.source
        assert program.source.count("(") == 1
        assert 0 <= int(program.target) < 1000


def test_expressions_are_the_specifications_in_length() -> None:
    # (3L+10)(N-1) + (4L+10) + 2(N-1) characters at most for the program family: L = 5, N = 2.
    sources = [example.source or "" for example in learning_to_execute(n_eval=500).examples("test")]
    assert max(map(len, sources)) <= 25 + 30 + 2


@pytest.mark.parametrize("settings", [{}, {"family": "copy"}, {"generator": "scripts"}, {"family": "control"}])
def test_no_program_is_in_two_splits_and_the_test_has_the_highest_difficulty(settings: dict[str, Any]) -> None:
    task = learning_to_execute(**settings)
    assert measure_overlap(task, "test").n_seen_pairs == 0
    assert measure_overlap(task, "dev").n_seen_pairs == 0
    assert Counter(example.columns["length"] for example in task.examples("test")) == {task.config.longest: 100}
    assert len({example.columns["length"] for example in task.examples("train")}) >= 5


def test_the_defaults_are_the_papers() -> None:
    assert learning_to_execute().config.longest == 5
    assert learning_to_execute(family="reverse").config.longest == 55
    assert learning_to_execute().config.max_nesting == 2


def test_the_seed_fixes_every_split_whatever_the_sizes() -> None:
    first = list(learning_to_execute().examples("test"))
    assert list(learning_to_execute(n_train=7).examples("test")) == first
    assert list(learning_to_execute(n_eval=10).examples("test")) == first[:10]
    assert list(learning_to_execute(seed=1).examples("test")) != first


def test_the_data_of_seed_0_never_changes() -> None:
    (example,) = learning_to_execute(n_eval=1).examples("test")
    assert (example.source, example.target) == ("(20488-77959)+88564", "31093")


def test_a_stage_bounds_the_difficulty_of_training() -> None:
    naive = learning_to_execute(strategy="naive", stage_length=3, stage_nesting=2)
    assert {(e.columns["length"], e.columns["nesting"]) for e in naive.examples("train")} == {(3, 2)}
    combined = learning_to_execute(strategy="combined", stage_length=3)
    assert {(e.columns["length"], e.columns["nesting"]) for e in combined.examples("train")} == {(1, 1), (2, 1), (3, 1)}
    scripts = learning_to_execute(strategy="combined", generator="scripts", stage_length=2)
    longest = Counter(example.columns["length"] for example in scripts.examples("train"))
    assert longest[2] > 100
    assert max(longest) == 5


def test_sources_can_be_reversed_or_doubled() -> None:
    plain = [example.source or "" for example in learning_to_execute().examples("test")]
    assert [e.source for e in learning_to_execute(source_form="reversed").examples("test")] == [s[::-1] for s in plain]
    assert [e.source for e in learning_to_execute(source_form="doubled").examples("test")] == [s + s for s in plain]


def test_characters_are_counted_one_by_one_with_the_end() -> None:
    metric = make_metric("character_accuracy_free")
    metric.update("25011.", "25011.")  # 7 of 7
    metric.update("25.", "24.")  # 3 of 4
    metric.update("1", "12")  # 1 of 3
    metric.update("123", "12")  # 2 of 3: the end comes too late
    assert metric.compute() == {"character_accuracy_free": 13 / 17}


def test_impossible_stages_and_too_few_programs_are_refused() -> None:
    stages = {"stage_length": 9, "stage_nesting": 3}
    for settings, reason in (({"strategy": "naive"}, "at most the maximum"), ({}, "is for task.strategy=naive")):
        problems = task_problems({"kind": "learning_to_execute", **stages, **settings})
        assert [problem.key for problem in problems] == ["task.stage_length", "task.stage_nesting"]
        assert all(reason in problem.reason for problem in problems)
    (problem,) = task_problems({"kind": "learning_to_execute", "max_length": 1})
    assert "too few to split" in problem.reason


@pytest.mark.parametrize("family", ["copy", "double", "reverse"])
def test_the_nine_numbers_of_one_digit_are_programs_of_every_split(family: str) -> None:
    first = learning_to_execute(family=family, strategy="naive")
    found = [{example.source for example in first.examples(split)} for split in ("train", "dev")]
    assert all(found)
    assert not found[0] & found[1]
    assert found[0] | found[1] < set("123456789")


def test_both_forms_of_programs_are_offered_and_scripts_are_whole_programs() -> None:
    assert learning_to_execute().config.generator == "families"
    sources = [example.source or "" for example in learning_to_execute(generator="scripts").examples("test")]
    assert any("=" in source for source in sources)
    assert all(source.endswith(")@") for source in sources)
    (problem,) = task_problems({"kind": "learning_to_execute", "generator": "scripts", "family": "control"})
    assert (problem.key, problem.value) == ("task.family", "control")
    assert "generator=families" in problem.reason


def test_the_protocol_says_which_accuracy_is_the_papers_and_which_form_is_the_default() -> None:
    said = " ".join((LearningToExecuteTask.__doc__ or "").split())
    assert "Dehghani et al. 2019: free running" in said
    assert "Zaremba and Sutskever: teacher-forced" in said
    assert "generator=families (default)" in said
    assert "appendix D.4" in said
