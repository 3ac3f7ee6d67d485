"""Data files of the user's that are damaged in every way, for training, evaluation and generation."""

from __future__ import annotations

import gzip
import io
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest
from damage import NO_FILES, OTHER_CONTENTS, flips, put, put_no_file, remove, truncations
from promises import Asker
from tiny_files import BEGAN, SETTINGS, end_where_training_begins, write_pairs

from ostinato.config.load import check_recipe, dump_recipe
from ostinato.training import train

pytestmark = pytest.mark.slow

LINES: dict[str, bytes] = {
    "cut off": b'{"source": "a b", "target": "b',
    "no key": b'{"source": "a b"}',
    "no target": b'{"source": "a b", "target": null}',
    "a number": b'{"source": 3, "target": "b"}',
    "a list": b'{"source": ["a"], "target": "b"}',
    "an object": b'{"source": {"a": 1}, "target": {}}',
    "a float": b'{"source": "a", "target": 1.5}',
    "a digit too many": b'{"source": "a", "target": ' + b"9" * 5_000 + b"}",
    "infinite": b'{"source": "a", "target": Infinity}',
    "empty texts": b'{"source": "", "target": ""}',
    "blank texts": b'{"source": " \\t", "target": "\\n"}',
    "surrogate": b'{"source": "a \\ud800", "target": "b"}',
    "surrogate in the target": b'{"source": "a", "target": "\\udfff"}',
    "surrogate in a column": b'{"source": "a", "target": "b", "n": "\\ud800"}',
    "surrogate as a column": b'{"source": "a", "target": "b", "\\ud800": 1}',
    "NUL": b'{"source": "a\\u0000", "target": "b"}',
    "raw NUL": b'{"source": "a\x00", "target": "b"}',
    "control letters": b'{"source": "\\u001b[2J", "target": "\\u0007"}',
    "not UTF-8": b'{"source": "\xff\xfe", "target": "b"}',
    "overlong": b'{"source": "\xc0\x80", "target": "b"}',
    "a huge token": b'{"source": "' + b"a" * 1_000_000 + b'", "target": "b"}',
    "a huge column": b'{"source": "a", "target": "b", "n": "' + b"x" * 1_000_000 + b'"}',
    "nested": b'{"source": ' + b"[" * 100_000,
    "a nested column": b'{"source": "a", "target": "b", "n": ' + b"[" * 500 + b"]" * 500 + b"}",
    "a column that is a list": b'{"source": "a", "target": "b", "n": [1, {"a": 2}]}',
    "a key twice": b'{"source": "a", "source": "b", "target": "b"}',
    "two objects": b'{"source": "a", "target": "b"}{"source": "a", "target": "b"}',
    "a comment": b"# nothing",
    "tabs": b"a\tb\tc\td",
    "one cell": b"a",
    "no cells": b"\t\t",
    "a carriage return": b'{"source": "a\rb", "target": "b"}\r',
    "other line ends": '{"source": "a\u2028b", "target": "b\x85"}'.encode(),
    "a mark": b"\xef\xbb\xbf\xef\xbb\xbf{}",
    "blank": b"   ",
    "unknown letters": '{"source": "é ß 漢 \U0001f600", "target": "b"}'.encode(),
    "many words": b'{"source": "' + b"a " * 20_000 + b'", "target": "b"}',
}
"""A line among others."""


@pytest.fixture
def asker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asker:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return Asker(capsys)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained run, its data beside it."""
    folder = tmp_path_factory.mktemp("data")
    train(check_recipe(SETTINGS | {"data": SETTINGS["data"] | write_pairs(folder)}), folder / "run")
    return folder / "run"


def refused_or_begun(
    asker: Asker, case: str, recipe: Path, damaged: Path, *overrides: str, is_legal: bool = True
) -> None:
    """Train on a damaged file, and note a folder that a refused run leaves, and a file that was changed.

    Args:
        is_legal: whether what it holds may be data all the same; False: it must be refused.
    """
    run = Path("run")
    unchanged = [damaged] if damaged.is_file() else []
    outcome = asker.ask(case, "train", recipe, *overrides, "--run-dir", run, unchanged=unchanged)
    if BEGAN in outcome.err and not is_legal:
        asker.note(case, overrides, "is not refused")
    if BEGAN not in outcome.err and run.exists():
        asker.note(case, overrides, f"left {sorted(path.name for path in run.iterdir())}: {outcome.err[:100]!r}")
    remove(run)


def as_tsv(content: bytes) -> bytes:
    rows = [json.loads(line) for line in content.splitlines()]
    return "".join(f"{row['source']}\t{row['target']}\t{row['n']}\n" for row in [header(), *rows]).encode()


def header() -> dict[str, Any]:
    return {"source": "source", "target": "target", "n": "n"}


def test_damaged_files_are_refused_before_a_run_begins(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    end_where_training_begins(monkeypatch)
    recipe = tmp_path / "mine.yaml"
    paths = write_pairs(tmp_path)
    dump_recipe(check_recipe(SETTINGS | {"data": SETTINGS["data"] | paths}), recipe)
    pairs = Path(paths["train"]).read_bytes()
    contents = {"train.jsonl": pairs, "train.tsv": as_tsv(pairs), "train.json.gz": gzip.compress(pairs, mtime=0)}
    for name, whole in contents.items():
        damaged, is_text = tmp_path / f"damaged-{name}", not name.endswith(".gz")
        cases = [*OTHER_CONTENTS.items(), *truncations(whole, 5), *flips(whole, 12, seed=len(name))]
        if is_text:
            middle = whole.index(b"\n", len(whole) // 2) + 1
            lines = list(LINES.items())[:: 1 if name == "train.jsonl" else 3]
            cases += [(what, whole[:middle] + line + b"\n" + whole[middle:]) for what, line in lines]
        for what, content in cases:
            put(damaged, content)
            is_legal = is_text or not what.startswith("cut off")
            refused_or_begun(asker, f"{name}, {what}", recipe, damaged, f"data.train={damaged}", is_legal=is_legal)
        for what in NO_FILES:
            put_no_file(damaged, what)
            refused_or_begun(asker, f"{name}, {what}", recipe, damaged, f"data.train={damaged}", is_legal=False)
    damaged = tmp_path / "damaged.jsonl"
    for what, content in [*OTHER_CONTENTS.items(), *((what, pairs + line) for what, line in LINES.items())][::2]:
        put(damaged, content)
        split = "dev" if len(what) % 2 else "test"
        refused_or_begun(asker, f"{split}, {what}", recipe, damaged, f"data.{split}={damaged}")
    asker.conclude(least=150)


def test_damaged_texts_and_parallel_files_are_refused_before_a_run_begins(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    end_where_training_begins(monkeypatch)
    recipe, damaged, other = tmp_path / "mine.yaml", tmp_path / "damaged.txt", tmp_path / "other.txt"
    whole = b"a b c\nb c d\nc d a\n" * 8
    other.write_bytes(whole)
    decoder = {"n_steps": 1, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 8}}
    texts = {
        "task": {"kind": "files", "model_kind": "language_model"},
        "data": {"tokens_per_batch": 64, "train": str(damaged), "dev": str(other)},
        "model": {"kind": "language_model", "d_model": 8, "decoder": decoder},
        "training": {"device": "cpu", "n_updates": 2, "schedule": {"warmup": 1}},
        "evaluation": {"splits": ["dev"]},
    }
    dump_recipe(check_recipe(texts), recipe)
    pairs = tmp_path / "pairs.yaml"
    data = SETTINGS["data"] | {"train": [str(damaged), str(other)], "dev": [str(other), str(other)]}
    evaluation = {"splits": ["dev"]}
    dump_recipe(check_recipe(SETTINGS | {"data": data, "evaluation": evaluation}), pairs)
    cases = [*OTHER_CONTENTS.items(), *truncations(whole, 4), *((what, whole + line) for what, line in LINES.items())]
    for place, (what, content) in enumerate(cases):
        put(damaged, content)
        kind, mine = (("text", recipe), ("parallel", pairs))[place % 2]
        refused_or_begun(asker, f"{kind}, {what}", mine, damaged)
    for what in NO_FILES:
        put_no_file(damaged, what)
        refused_or_begun(asker, f"text, {what}", recipe, damaged)
        refused_or_begun(asker, f"parallel, {what}", pairs, damaged)
    asker.conclude(least=55)


def test_inputs_keep_their_places_whatever_they_hold(
    asker: Asker, run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    good = b'{"source": "a b", "id": 1}\n'
    for place, (what, line) in enumerate([*LINES.items(), *OTHER_CONTENTS.items()]):
        damaged = tmp_path / ("lines.jsonl" if place % 2 else "lines.txt")
        content = good + line.removesuffix(b"\n") + b"\n" + good
        put(damaged, content)
        options = [["--json"], [], ["--beam", 2, "--n-best", 2, "--json"], ["--prefix-field", "n"]][place % 4]
        outcome = asker.ask(f"file, {what}", "generate", run, damaged, *options, codes=[0, 1], unchanged=[damaged])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        piped = asker.ask(f"stdin, {what}", "generate", run, "--input-format", "json", "--json", codes=[0, 1])
        n_lines = content.count(b"\n")
        found = piped.out.split("\n")[:-1]
        if len(found) != n_lines or not all(isinstance(json.loads(one), dict) for one in found):
            asker.note(what, [], f"{len(found)} lines of output for {n_lines} of input")
        if "--json" in options and outcome.out.count("\n") != n_lines:
            asker.note(what, options, f"{outcome.out.count(chr(10))} lines of output for {n_lines} of input")
    path = tmp_path / "lines.jsonl"
    for what in NO_FILES:
        put_no_file(path, what)
        asker.ask(what, "generate", run, path, codes=[2])
    asker.conclude(least=100)


def test_splits_of_evaluation_are_checked_too(asker: Asker, run: Path) -> None:
    test = run.parent / "test.jsonl"
    whole = test.read_bytes()
    cases = [*LINES.items(), *OTHER_CONTENTS.items()]
    for what, line in random.Random(1).sample(cases, 20):
        put(test, whole + line)
        asker.ask(what, "evaluate", run, "--by", "n", unchanged=[test])
    for what in NO_FILES:
        put_no_file(test, what)
        asker.ask(what, "evaluate", run, codes=[2])
    put(test, whole)
    asker.ask("whole again", "evaluate", run, codes=[0])
    asker.conclude(least=24)
