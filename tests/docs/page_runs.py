"""Running the blocks of a page as its reader would: from top to bottom, in a folder with what the page takes as given.

Blocks of Python are executed one after the other, each with the names of those before it. Lines of shell:

    ostinato ...                 runs in this process; trainings are cut to two updates of a tiny model (`cut`)
    echo '...' | ostinato ...    the same, reading what is echoed; `< FILE` reads a file
    python3 -c "..."             runs in this process
    git, pip, make, python3 -m   install: here extras and targets are looked up; `make newcomer` types those of
                                 docs/get-started.md

A block of YAML whose first line is `# NAME.yaml` becomes that file. A block whose first line is
`# not run by the tests: REASON` is not run.
"""

from __future__ import annotations

import functools
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from documents import ROOT, Block, page_blocks

import ostinato
from ostinato.cli import main
from ostinato.config.recipe import Recipe
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.registry import TASKS

UPSTREAM = ROOT.parent / "shared" / "data" / "upstream"
NEEDS_FILES = ("multi30k", "cogs", "logical-inference", "agreement", "geoquery", "babi")
"""Recipes and tasks with these names read published files."""
_UPDATES = 2


class Ran(NamedTuple):
    """One line of shell that ran: its words after `ostinato`, as they were run, and what it printed."""

    arguments: list[str]
    printed: str


class Reader:
    """Somebody in a folder who follows pages.

    Args:
        names: of Python, which blocks may use.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.names, self.ran = folder, dict[str, Any](), list[Ran]()
        self._patch, self._capsys = monkeypatch, capsys
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("OSTINATO_CACHE", str(folder / "cache"))
        monkeypatch.setenv("COLUMNS", "120")
        if UPSTREAM.is_dir():
            monkeypatch.setenv("OSTINATO_MIRROR", str(UPSTREAM))
        cut_recipe = lambda name, overrides=(): load_recipe(name, [*tiny(name), *overrides])  # noqa: E731
        monkeypatch.setattr(ostinato, "load_recipe", cut_recipe, raising=False)
        monkeypatch.setattr("ostinato.viewer.serve.serve", lambda app, bound, on_start: on_start())
        monkeypatch.setattr("ostinato.viewer.serve.open_browser", lambda address: None)

    def follow(self, page: Path) -> list[Ran]:
        """Run every block of a page that is not marked; return the lines of shell that ran."""
        before = len(self.ran)
        for block in page_blocks(page):
            if block.why_not_run is None:
                self.run(block)
        return self.ran[before:]

    def run(self, block: Block) -> None:
        """Run one block."""
        if block.language == "python":
            self.execute(block.body, str(block))
        elif block.language == "yaml" and (name := re.match(r"# ([\w-]+\.yaml)\n", block.body)):
            (self.folder / name[1]).write_text(block.body, encoding="utf-8")
        elif block.language == "sh":
            for words in lines_of(block.body):
                self.line(words, block)

    def execute(self, code: str, where: str) -> None:
        """Run Python."""
        with self._patch.context() as patch:
            cut_sweeps(patch)
            exec(compile(code, where, "exec", dont_inherit=True), self.names)

    def line(self, words: list[str], where: object) -> None:
        """Run one line of shell."""
        stdin = ""
        if words[0] == "echo":
            stdin, words = f"{words[1]}\n", words[words.index("|") + 1 :]
        if "<" in words:
            stdin, words = Path(words[-1]).read_text(encoding="utf-8"), words[: words.index("<")]
        if words[:2] == ["python3", "-c"]:
            self.execute(words[2], str(where))
        elif words[0] != "ostinato":
            check_installation(words)
        elif UPSTREAM.is_dir() or not any(name in word for word in words for name in NEEDS_FILES):
            self.ostinato(cut(words[1:]), stdin, where)

    def ostinato(self, arguments: list[str], stdin: str = "", where: object = "") -> str:
        """Run a command, which must end well; return what it printed."""
        self._patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        self._capsys.readouterr()
        with self._patch.context() as patch:
            if arguments[0] in ("sweep", "table", "plot"):
                cut_sweeps(patch)
            with pytest.raises(SystemExit) as ended:
                main(arguments)
        out, err = self._capsys.readouterr()
        assert ended.value.code in (0, None), f"{where}: ostinato {shlex.join(arguments)}\n{err}"
        self.ran.append(Ran(arguments, out))
        return out


def lines_of(body: str) -> Iterator[list[str]]:
    """Return the words of every line of shell; a line goes on while a quote is open."""
    pending = ""
    for line in body.splitlines():
        pending += f"{line}\n"
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:
            continue
        pending = ""
        if words:
            yield words
    assert not pending, f"a quote is never closed: {pending}"


def check_installation(words: list[str]) -> None:
    """Check a line that installs something: the extras and targets that it names are there."""
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE), words
    elif words[0] == "pip":
        extras = re.search(r"\[(.+)\]", words[-1])
        table = (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("optional-dependencies]")[2]
        for extra in extras[1].split(",") if extras else ():
            assert re.search(rf"^{extra} = \[", table, re.MULTILINE), words
    else:
        assert words[0] == "git" or words[:3] == ["python3", "-m", "venv"], f"nothing runs this line: {words}"


@functools.cache
def tiny(name: str) -> tuple[str, ...]:
    """Return settings that make a named recipe tiny, so that it is trained in a second."""
    given = ["data.train=train.jsonl", "data.dev=dev.jsonl"]
    try:
        recipe = load_recipe(name)
    except Exception:
        recipe = load_recipe(name, given)
    return (*_sizes(recipe), *_lengths(recipe))


def _sizes(recipe: Recipe) -> Iterator[str]:
    stacks = recipe.model.stacks() if hasattr(recipe.model, "stacks") else {}
    if all(hasattr(stack.ffn, "d_ff") for stack in stacks.values()) and recipe.model.d_model % 16 == 0:
        yield "model.d_model=16"
        for name, stack in stacks.items():
            yield f"model.{name}.ffn.d_ff=16"
            if getattr(stack, "sparse_layer", None) is not None:
                yield f"model.{name}.sparse_layer.d_ff=16"
            if getattr(stack, "value_embeddings", None) is not None:
                yield f"model.{name}.value_embeddings.gate_width=8"
    if recipe.data.tokenizer.kind in ("bpe", "unigram"):
        yield "data.tokenizer.vocab_size=300"
    if recipe.data.block_length:
        yield "data.block_length=8"


def _lengths(recipe: Recipe) -> Iterator[str]:
    yield from ("data.tokens_per_batch=256", f"training.n_updates={_UPDATES}", "training.n_threads=1")
    yield from ("training.device=cpu", "training.selection.max_examples=4", "evaluation.max_examples=20")
    if getattr(recipe.model, "generates", True) and str(recipe.model.kind) != "encoder":
        yield from ("decoding.max_length=8", "decoding.max_length_ratio=0")
    if recipe.training.halting is not None and getattr(recipe.training.halting, "off_updates", 0):
        yield from ("training.halting.off_updates=1", "training.halting.warmup=1")
    task = recipe.task.settings()
    kind = str(task["kind"])
    small = {"n_train": 600, "n_eval": 20, "max_length": 8, "long_max_length": 12}
    if task.get("origin") == "generated":
        small["n_pairs"] = 1000
    known = TASKS[kind].config_type.model_fields if kind != "parity" else {}
    yield from (f"task.{key}={value}" for key, value in small.items() if key in known)


def cut(arguments: list[str]) -> list[str]:
    """Return a command that takes a second where it would take minutes; what the page sets stays, but for updates."""
    words = [re.sub(r"^training\.n_updates=\d+$", f"training.n_updates={_UPDATES}", word) for word in arguments]
    words = [str(UPSTREAM) if word == "/media/usb/data" else word for word in words]
    if words[0] == "train" and not words[1].startswith("runs/"):
        # Of a group that the page gives, {kind: ...}, the settings are others.
        given = tuple(f"{group}." for group, _, value in (word.partition("=") for word in words) if value[:1] == "{")
        words[2:2] = [word for word in tiny(words[1]) if not word.startswith(given)]
    if any(word.startswith("training.keep_best=") for word in words):
        words += ["training.evaluate_every=1", "training.save_every=1"]
        words = [re.sub(r"^training\.n_updates=\d+$", "training.n_updates=6", word) for word in words]
    if "--resume" in words:
        words = [re.sub(r"^training\.n_updates=\d+$", f"training.n_updates={_UPDATES + 1}", word) for word in words]
    if words[0] in ("view", "watch"):
        words += ["--port", "0", "--no-browser"]
    for option, value in (("--batch-sizes", "1,2"), ("--rounds", "2"), ("--workers", "1"), ("--depths", "1..2")):
        if option in words:
            words[words.index(option) + 1] = value
    if words[0] == "analyze" and not {"--only", "--max-examples"} & {*words}:
        words += ["--max-examples", "20"]
    return words


def cut_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every sweep that is read one of tiny trainings with one seed, whose budgets may differ."""
    from ostinato.experiments.sweep import files

    read = files.read_sweep_settings

    def cut_settings(name_or_path: str | Path) -> dict[str, Any]:
        settings = read(name_or_path) | {"seeds": [1], "equal": None}
        for arm in settings["arms"]:
            arm.pop("seeds", None)
            small = (one.split("=", 1) for one in tiny(str(arm.get("recipe") or settings["recipe"])))
            arm["set"] = arm.get("set", {}) | {key: yaml.safe_load(value) for key, value in small}
        return settings

    monkeypatch.setattr(files, "read_sweep_settings", cut_settings)
