"""Recipes that are wrong in every way: each is one refusal, and none leaves the folder of a run."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from damage import NO_FILES, OTHER_CONTENTS, flips, put, put_no_file, remove, truncations
from promises import Asker
from tiny_files import BEGAN, SETTINGS, end_where_training_begins, write_pairs

from ostinato.config.files import read_yaml
from ostinato.config.load import check_recipe, dump_recipe
from ostinato.tasks.recipes import find_recipe, list_recipes

pytestmark = pytest.mark.slow

NOT_FINITE = (".nan", ".inf", "-.inf", "1e999")
OTHER_VALUES = (
    *("-1", "0", "1.5", "1e308", "-1e308", "1e-320", "10000000000", "9" * 31, "9" * 5_000, "0x1F", "1:30"),
    *("yes", "null", "''", "text", "'\\0\\e[31m'", '"\\0\\e[31m\\ud800"', "2020-01-01", "!!binary aGk=", "???"),
    *("[]", "{}", "[1, [2, [3]]]", "{kind: nothing}", "[nan]", "{a: {b: {c: .inf}}}", "[" * 50 + "]" * 50),
    *("${seed}", "${oc.env:HOME}", "${", "${nothing}", "${${seed}}", "input:x", "/", "../..", "a" * 3_000),
)
"""Values in the place of a setting, as YAML."""

HEAD = "base: whole.yaml\n"
DOCUMENTS: dict[str, str] = {
    "a loop of anchors": "data: &a {x: *a}",
    "a list that holds itself": "data: &a [*a]",
    "an alias of nothing": "data: *a",
    "laughs": "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)),
    "many keys": "".join(f"key{i}: {i}\n" for i in range(3_000)),
    "a long key": f"{'k' * 5_000}: 1",
    "a key twice": "seed: 1\nseed: 2",
    "a merge": "x: &x {d_model: 8}\nmodel: {<<: *x}",
    "a merge of a number": "model: {<<: 3}",
    "a list as a key": "? [1, 2]\n: 3",
    "a mapping as a key": "{{a: 1}: 2}",
    "a number as a key": "1: 2",
    "null as a key": "~: 2",
    "true as a key": "yes: 2",
    "an empty key": "'': 2",
    "a key with dots": "model.d_model: 8",
    "python": "!!python/object/apply:os.system ['true']",
    "a python name": "seed: !!python/name:os.system",
    "a tag of ours": "seed: !seed 3",
    "not the tag's": "seed: !!int x",
    "a float of text": "seed: !!float x",
    "a set": "seed: !!set {1, 2}",
    "an ordered map": "seed: !!omap [a: 1]",
    "bytes": "name: !!binary '//79'",
    "no base64": "name: !!binary '%'",
    "a date": "name: 2020-02-31",
    "a time": "name: 2020-01-01T99:00:00Z",
    "two documents": "seed: 1\n---\nseed: 2",
    "a version": "%YAML 9.9\n---\nseed: 1",
    "tabs": "model:\n\td_model: 8",
    "a quote": "name: 'x",
    "a bracket": "data: [1, 2",
    "a brace": "data: {a: 1",
    "control letters": "name: \x01\x1b[31m",
    "escaped control letters": 'name: "\\x1b[2J\\0\\a"',
    "an escaped surrogate": 'name: "\\ud800"',
    "a surrogate as a key": '"\\ud800": 1',
    "a surrogate deep in a key": 'task: {"\\ud800": 1}',
    "a key of control letters": '"\\x1b[2J": 1',
    "newlines in a key": '"a\\nb\\nc": 1',
    "a loop of references": "seed: ${training.n_updates}\ntraining: {n_updates: '${seed}'}",
    "a reference to itself": "seed: ${seed}",
    "the environment": "name: ${oc.env:HOME}",
    "a resolver": "name: ${oc.create:{}}",
    "an open reference": "name: ${seed",
    "a reference in a reference": "name: ${${seed}}",
    "a reference to nothing": "name: ${nothing.at.all}",
    "a reference to a group": "seed: ${model}",
    "a reference upward": "seed: ${..seed}",
    "an import": "task: {kind: 'os:system'}",
    "an import that is not there": "task: {kind: 'no_such_module:Task'}",
    "an import of a number": "task: {kind: 'math:pi'}",
    "a metric of anything": "evaluation: {metrics: ['os:system']}",
    "settings below a number": "seed: {a: 1}",
    "a number for a group": "model: 3",
    "a list for a group": "training: [1]",
    "null for a group": "model: null",
    "levels": "a: " + "[" * 1_000 + "]" * 1_000,
    "many levels": "a: " + "{a: " * 100_000,
    "block levels": "".join(f"{' ' * i}a:\n" for i in range(300)),
}
BASES = ("mine.yaml", "other.yaml", ".", "..", "/", "nothing", "nothing.yaml", "[]", "3", ".nan", "''", "a/../b", "~")
OVERRIDES = (
    *("", "=", "=1", "seed", "seed=", ".=1", "seed.=1", ".seed=1", "seed..x=1", "seed=[", "seed=}", "seed=*a"),
    *(
        "seed=&a [*a]",
        "seed=!!python/name:os.system",
        "seed=!!int x",
        "seed=.nan",
        "seed=.inf",
        "seed=-1",
        "seed=1e400",
    ),
    *("seed=" + "9" * 5_000, "seed=${seed}", "seed=${oc.env:HOME}", "seed=${", "seed=a\nb", "seed=\x1b[31m", "\x1b=1"),
    *("seed=" + "[" * 5_000, "seed=" + "a" * 50_000, "x" * 5_000 + "=1", "seed=\ud800", "\ud800=1", "seed=\ufeff1"),
    *(
        "model=3",
        "model=null",
        "model=[]",
        "model={}",
        "model.kind=nothing",
        "model.kind=[]",
        "model.kind={}",
        "data=''",
    ),
    *(
        "task=3",
        "task.kind=files:x",
        "task.kind=:",
        "base=mine.yaml",
        "name=/",
        "name=..",
        "name=",
        "name=[]",
        "a[0]=1",
    ),
)


def documents() -> Iterator[tuple[str, bytes]]:
    """Yield texts of recipes that come with the library, each damaged."""
    for place, found in enumerate(random.Random(3).sample(list_recipes(), 7)):
        path = find_recipe(found.name)
        content = path.read_bytes()
        for what, damaged in [*truncations(content, 6), *flips(content, 14, seed=place)]:
            yield f"{path.stem}, {what}", damaged
    yield from OTHER_CONTENTS.items()
    for name, text in DOCUMENTS.items():
        yield name, f"{text}\n".encode("utf-8", "surrogatepass")
        yield f"{name}, on a base", f"{HEAD}{text}\n".encode("utf-8", "surrogatepass")


def places(settings: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every setting and group."""
    for key, value in settings.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@pytest.fixture
def asker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asker:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    end_where_training_begins(monkeypatch)
    return Asker(capsys)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A recipe with every setting that it can have."""
    path = tmp_path / "whole.yaml"
    dump_recipe(check_recipe(SETTINGS | {"data": SETTINGS["data"] | write_pairs(tmp_path)}), path)
    return path


def refused_or_begun(asker: Asker, case: str, *arguments: object) -> bool:
    """Train, and note a folder that a refused run leaves; return whether it was refused."""
    run = Path("run")
    outcome = asker.ask(case, "train", *arguments, "--run-dir", run)
    is_begun = BEGAN in outcome.err
    if not is_begun and run.exists():
        asker.note(case, arguments, f"left {sorted(path.name for path in run.iterdir())}: {outcome.err[:100]!r}")
    remove(run)
    return not is_begun


def test_every_setting_with_every_wrong_value_is_refused_or_can_be_trained(asker: Asker, whole: Path) -> None:
    settings, mine, draw = read_yaml(whole), whole.with_name("mine.yaml"), random.Random(5)
    n_refused = 0
    for place, path in enumerate(places(settings)):
        key = ".".join(path)
        for value in (draw.choice(NOT_FINITE), *draw.sample(OTHER_VALUES, place % 2)):
            changed = copy.deepcopy(settings)
            group = changed
            for name in path[:-1]:
                group = group[name]
            group[path[-1]] = "THE VALUE"
            text = yaml.safe_dump(changed, allow_unicode=True).replace("THE VALUE", value)
            mine.write_text(text, encoding="utf-8", errors="surrogatepass")
            is_refused = refused_or_begun(asker, f"{key}: {value[:40]}", mine)
            n_refused += is_refused
            if value in NOT_FINITE and not is_refused:
                asker.note(key, [value], "a number that is not finite was taken")
    asker.conclude(least=300)
    assert n_refused > asker.n_cases / 2


def test_damaged_and_strange_documents_are_refused_or_mean_something(asker: Asker, whole: Path) -> None:
    mine = whole.with_name("mine.yaml")
    for case, content in documents():
        put(mine, content)
        asker.ask(case, "plan", mine, unchanged=[mine])
    for what in NO_FILES:
        put_no_file(mine, what)
        asker.ask(what, "plan", mine, codes=[2])
        refused_or_begun(asker, what, mine)
    asker.conclude(least=230)


def test_strange_documents_leave_no_folder_of_a_run(asker: Asker, whole: Path) -> None:
    mine = whole.with_name("mine.yaml")
    for case, text in DOCUMENTS.items():
        put(mine, f"{HEAD}{text}\n".encode("utf-8", "surrogatepass"))
        refused_or_begun(asker, case, mine)
    asker.conclude(least=50)


def test_bases_that_lead_nowhere_or_in_circles(asker: Asker, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    (tmp_path / "other.yaml").write_text("base: mine.yaml\n")
    for base in BASES:
        mine.write_text(f"base: {base}\n")
        asker.ask(base, "plan", mine, codes=[2])
    chain = [tmp_path / f"{i}.yaml" for i in range(60)]
    for one, following in pairwise(chain):
        one.write_text(f"base: {following.name}\n")
    chain[-1].write_text("base: scan/universal\n")
    asker.ask("a long chain", "plan", chain[0])
    asker.conclude(least=10)


def test_overrides_and_other_files_of_settings(asker: Asker, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    for override in OVERRIDES:
        asker.ask(repr(override[:40]), "plan", "scan/universal", override)
    for case, text in DOCUMENTS.items():
        mine.write_bytes(
            f"name: mine\narms: {{a: {{recipe: scan/universal}}}}\n{text}\n".encode("utf-8", "surrogatepass")
        )
        asker.ask(f"a sweep: {case}", "sweep", mine, "--dry-run")
    for case, content in OTHER_CONTENTS.items():
        put(mine, content)
        asker.ask(f"a sweep: {case}", "sweep", mine, "--dry-run", codes=[2])
        asker.ask(f"a claim: {case}", "claims", mine)
    asker.conclude(least=139)
