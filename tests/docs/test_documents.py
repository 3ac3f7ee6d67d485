from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path

import pytest
from documents import (
    DOCUMENTS,
    README,
    ROOT,
    Block,
    Command,
    anchors,
    blocks,
    commands,
    links,
    page_blocks,
    prose,
    rows,
    shell_lines,
)

from ostinato import __version__
from ostinato.cli.app import root_command
from ostinato.config.data import DataConfig
from ostinato.errors import ConfigError
from ostinato.plan import SCHEMES, assign
from ostinato.tasks.catalog import open_task, protocol
from ostinato.tasks.recipes import list_recipes, load_recipe
from ostinato.tasks.registry import TASKS

PACKAGE = ROOT / "src" / "ostinato"
LANGUAGE_DOCUMENT = ROOT / "docs" / "language.md"
TASKS_DOCUMENT, RECIPES_DOCUMENT = ROOT / "docs" / "tasks.md", ROOT / "docs" / "recipes.md"
COMMANDS = [pytest.param(c, id=f"{path.name}: {c}") for path in DOCUMENTS for c in commands(path)]


def parse(arguments: list[str]) -> list[str]:
    """Parse a command line as the program would, and return the name of the command; an error is raised."""
    command: Any = root_command()
    context = command.make_context("ostinato", list(arguments))
    names: list[str] = []
    while hasattr(command, "resolve_command"):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        names.append(name)
        context = command.make_context(name, rest, parent=context)
    return names


@cache
def recipe_names() -> set[str]:
    """Return the names of all recipes, each of which is read for it."""
    return {recipe.name for recipe in list_recipes()}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_documents_is_one(command: Command) -> None:
    assert " ".join(parse(command.arguments)) in " ".join(command.arguments)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_shell_takes_a_word_of_a_command_for_a_pattern(path: Path) -> None:
    # zsh refuses a pattern that no file matches, bash expands braces.
    quoted = re.compile(r"""'[^']*'|"[^"]*"|\s#.*""")
    lines = [line for block in page_blocks(path) if block.language == "sh" for line in block.body.splitlines()]
    typed = [line for line in lines if re.search(r"\b(ostinato|pip) ", line)]
    assert [line for line in typed if re.search(r"[][{}*?]", quoted.sub("", line))] == []


def test_the_page_of_looping_evaluates_with_other_rounds_than_those_of_the_plan() -> None:
    lines = [command.arguments for command in commands(ROOT / "docs" / "looping.md")]
    (recipe,) = (line[1] for line in lines if line[0] == "train" and "runs/looped" in line)
    (asked,) = (line[line.index("--n-steps") + 1] for line in lines if "--n-steps" in line)
    assert load_recipe(recipe, ["data.train=a"]).model.plans()["decoder"].n_rounds != int(asked)


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.values[0].arguments[0] in ("train", "plan", "data")])
def test_every_recipe_task_and_setting_of_the_documents_exists(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The module of one's own that one document speaks of.
    monkeypatch.syspath_prepend(tmp_path)
    (module,) = blocks(ROOT / "docs" / "extending.md", "python")
    (tmp_path / "mine.py").write_text(module, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    words = [word for word in command.arguments if not word.startswith("--")]
    if words[0] == "data" and words[1] not in ("baselines", "pack"):
        if words[1] != "list":
            assert open_task(words[2], [word for word in words[3:] if "=" in word]).name == words[2]
        return
    overrides = [word for word in words if "=" in word]
    named = recipe_names()
    recipes = [word for word in words[1:] if "=" not in word and word in named]
    # A run, or a recipe that the page makes.
    assert recipes or words[1].startswith("runs/") or words[1].endswith(".yaml")
    for name in recipes:
        assert load_recipe(name, overrides).name == name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for link in links(path):
        if link.startswith("https://"):
            continue
        target, _, anchor = link.partition("#")
        file = path.parent / target if target else path
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(path: Path) -> None:
    for name in re.findall(r"`((?:tests|docs|src)/[\w./-]+\.\w+)`", prose(path)):
        assert (ROOT / name).is_file(), name


def test_every_target_of_make_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked = {line.split()[1] for path in DOCUMENTS for line in shell_lines(path) if line.startswith("make ")}
    assert asked >= {"demo", "test", "test-all"}
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in asked)


def test_the_map_names_every_part_of_the_package() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    # Python leaves compiled modules beside the parts.
    inside = [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]
    folders = [path for path in inside if any(path.glob("*[a-z].*"))]
    parts = [path.name for path in [*folders, *PACKAGE.glob("[!_]*.py")]] + ["recipes"]
    assert [name for name in parts if f"(src/ostinato/{name})" not in text] == []


def test_the_readme_promises_only_the_torch_that_is_asked_for() -> None:
    versions = re.search(r'"torch([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert versions
    promised = re.findall(r"torch(>=[\d.,<>=]+)", README.read_text(encoding="utf-8"))
    assert promised
    assert set(promised) == {versions[1]}


def test_the_changelog_speaks_of_this_version() -> None:
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", TASKS)
def test_every_task_is_named_with_its_size_and_licence(kind: str) -> None:
    if f"\n## {kind}\n" in LANGUAGE_DOCUMENT.read_text(encoding="utf-8"):
        return
    (row,) = (row for row in rows(TASKS_DOCUMENT) if row[0] == f"`{kind}`")
    task = TASKS[kind](TASKS[kind].config_type(kind=kind), DataConfig(train=str(README)))
    if files := task.files():
        n_bytes = sum(file.n_bytes or 0 for file in files)
        assert (f"{n_bytes / 1e6:.1f} MB" if n_bytes else "about 270 MB") in row[2]
        assert all(file.licence.partition(" (")[0] in row[3] for file in files)


@pytest.mark.parametrize("kind", TASKS)
def test_the_protocol_of_a_task_names_its_splits_and_what_it_is_scored_by(kind: str) -> None:
    task = TASKS[kind](TASKS[kind].config_type(kind=kind), DataConfig(train=str(README)))
    text = protocol(TASKS[kind])
    assert [name for name in task.splits() if name not in text] == []
    assert all(word in text for word in ("Splits", "Tokens", "Metric", "Selection", "Departures"))


@pytest.mark.parametrize("split", ["length", "addprim_jump", "addprim_turn_left"])
def test_the_sizes_of_the_generated_scan_splits_are_those_of_the_protocol(split: str) -> None:
    task = open_task("scan", [f"split={split}"])
    n_train, n_dev, n_test = (sum(1 for _ in task.examples(name)) for name in ("train", "dev", "test"))
    assert f"{n_train + n_dev:,} / {n_test:,}" in protocol(TASKS["scan"])


RECIPES = [block for path in DOCUMENTS for block in page_blocks(path) if re.match(r"base:", block.body)]


@pytest.mark.parametrize("block", RECIPES, ids=str)
def test_every_recipe_of_the_documents_loads(block: Block, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(block.body, encoding="utf-8")
    given = ["data.train=a.jsonl", "data.dev=b.jsonl"] if "???" in block.body else []
    assert load_recipe(path, given).name == "mine"
    if given:
        with pytest.raises(ConfigError, match=r"data\.train is '\?\?\?'.*\n.*data\.dev is '\?\?\?'"):
            load_recipe(path)


@pytest.mark.parametrize("path", [*(ROOT / "docs").glob("*.md")], ids=lambda path: path.name)
def test_every_page_begins_with_what_a_reader_can_do_after_it(path: Path) -> None:
    _, first = path.read_text(encoding="utf-8").split("\n\n", 2)[:2]
    assert first.startswith("After this page you")


def test_the_table_of_sharing_schemes_is_the_codes() -> None:
    shown = {row[0]: row[1] for row in rows(RECIPES_DOCUMENT) if row[0].startswith("`") and row[1][:1] in "0-"}
    for scheme in SCHEMES:
        m = 3 if scheme in ("sequence", "cycle", "cycle_rev") else None
        cell = f"`{scheme}`, `n_unique: 3`" if m else f"`{scheme}`"
        assert shown[cell] == " ".join("-" if i is None else str(i) for i in assign(scheme, 6, m))
    assert shown["`[0, 0, 1, null, 1, 1]`"] == "0 0 1 - 1 1"


def test_the_errors_that_are_shown_are_those_that_come(tmp_path: Path) -> None:
    (shown,) = blocks(RECIPES_DOCUMENT, "text")
    path = tmp_path / "mine.yaml"
    encoder = "{ffn: {kind: experts, k: 4}, n_stps: 4}"
    text = f"base: files/template\ndata:\n  train: ???\nmodel: {{dropout: lots, encoder: {encoder}}}\n"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_recipe(path)
    assert str(caught.value) == shown.strip()
