from __future__ import annotations

from documents import README, blocks, commands


def test_the_readme_is_short_and_its_commands_are_five() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
    assert [one.arguments[0] for one in commands(README)] == ["train", "plan", "solve", "evaluate", "analyze"]


def test_the_first_example_has_ten_lines_and_none_needs_a_deep_import() -> None:
    examples = blocks(README, "python")
    assert sum(1 for line in examples[0].splitlines() if line) <= 10
    for example in examples:
        assert "from ostinato" not in example
