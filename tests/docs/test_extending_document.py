from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from documents import README, ROOT, blocks, commands, links

from ostinato.cli import main
from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.metrics import make_metric
from ostinato.tasks.base import Task
from ostinato.tasks.registry import build_task

DOCUMENT = ROOT / "docs" / "extending.md"
TINY = [
    "model.d_model=16",
    "model.encoder.ffn.d_ff=16",
    "model.decoder.ffn.d_ff=16",
    "training.n_updates=2",
    "training.n_threads=1",
    "training.device=cpu",
    "evaluation.max_examples=20",
    "training.selection={metric: mine:SameLength, mode: max}",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the document's module."""
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(DOCUMENT, "python")
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    return tmp_path


def call(*arguments: object) -> int | str | None:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code


def test_a_metric_and_a_task_of_ones_own_are_shown_trained_scored_and_tabled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: dict[str, str] = {}
    for command in commands(DOCUMENT):
        arguments = [*command.arguments, *(TINY if command.arguments[0] == "train" else [])]
        assert call(*arguments) in (0, None), f"{command}\n{capsys.readouterr().err}"
        shown[command.arguments[0]] = capsys.readouterr().out
    assert "Digits in their order." in shown["data"]
    results = json.loads((folder / "runs" / "sorting" / "results.json").read_text())
    assert results["task"] == "mine:Sorting"
    test = results["splits"]["test"]
    assert test["n"] == 20
    assert set(test["by"]["n"]) <= {"1", "2", "3", "4"}
    assert 0 <= test["mine:SameLength"] <= 1
    records = [json.loads(line) for line in (folder / "runs" / "sorting" / "metrics.jsonl").read_text().splitlines()]
    assert "mine:SameLength" in records[-1]["scores"]
    assert shown["evaluate"].count("mine:SameLength") == 2, "in the table of all and in that of the column"
    assert "runs/sorting" not in sys.path
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("task.kind=nowhere:Task", "task.kind is 'nowhere:Task': cannot be imported (ModuleNotFoundError"),
        ("task.kind=nowhere:Task", "; stand in the folder that has nowhere, or add it to PYTHONPATH (this one is "),
        ("task.kind=:Task", "); it must look like module:Class"),
        ("task.kind=mine:Sortin", "task.kind is 'mine:Sortin': cannot be imported (AttributeError"),
        ("task.kind=mine:SameLength", "must be a subclass of ostinato.tasks.base.Task"),
        ("task.kind=mine:Unfinished", "lacks what every ostinato.tasks.base.Task has: _examples"),
        ("task={kind: mine:Sorting, n_digit: 3}", "task.n_digit is 3: the task mine:Sorting has no such setting"),
        ("evaluation.metrics=[mine:Sorting]", "metric is 'mine:Sorting': must be a subclass of ostinato.metrics.base."),
        ("evaluation.metrics=[broken:X]", "metric is 'broken:X': cannot be imported (SyntaxError"),
    ],
)
def test_what_cannot_be_used_is_one_line_before_anything_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], setting: str, message: str
) -> None:
    (folder / "broken.py").write_text("class X(\n", encoding="utf-8")
    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write("\n\nclass Unfinished(Task):\n    config: SortingConfig\n")
    assert call("train", "digits/transformer", setting, "--run-dir", "runs/none") == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not (folder / "runs").exists()


TEXTS = """

class TextsConfig(TaskConfig):
    kind: str = "mine:Texts"
    low: int = 1

    @property
    def has_sources(self) -> bool:
        return False

    @model_validator(mode="after")
    def _in_order(self):
        if self.low > 9:
            raise ValueError("low must be below 10")
        return self


class Texts(Task):
    \"\"\"Digits.\"\"\"

    config: TextsConfig

    def _examples(self, split):
        for number in range(40):
            yield Example(None, " ".join(str(self.config.low + number)))


class LowerConfig(FilesConfig):
    kind: str = "mine:Lower"


class Lower(FilesTask):
    config: LowerConfig

    def _examples(self, split):
        for example in super()._examples(split):
            yield Example(None, example.target.lower())
"""


def test_a_task_of_texts_has_no_metrics_of_outputs_and_its_validators_words_are_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    imports = "from pydantic import model_validator\nfrom ostinato.tasks.files import FilesConfig, FilesTask\n"
    (folder / "mine.py").write_text(f"{(folder / 'mine.py').read_text()}\n{imports}{TEXTS}", encoding="utf-8")
    assert Task.metrics
    assert build_task(TaskRef(kind="mine:Texts"), DataConfig()).metrics == ()
    assert call("train", "lm/transformer", "task={kind: mine:Texts, low: 12}", "--run-dir", "runs/none") == 2
    assert capsys.readouterr().err.strip() == "task.kind is 'mine:Texts': low must be below 10"
    # A pack would pass by the code of a class that reads files in its own way.
    (folder / "a.txt").write_text("A\n", encoding="utf-8")
    data = DataConfig(train=str(folder / "a.txt"))
    kinds = ("files", "mine:Lower")
    packs = [build_task(TaskRef.model_validate({"kind": k, "model_kind": "language_model"}), data) for k in kinds]
    assert [task.pack_source("train") is None for task in packs] == [False, True]


def test_a_metric_that_fails_on_an_output_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write("\n\nclass Broken(SameLength):\n    def counts(self, prediction, reference, source=''):\n")
        file.write("        return [0, 1] if not reference else [1 / 0, 1]\n")
    small = [*TINY[:-1], "task.kind=mine:Sorting", "training.n_updates=1", "evaluation.splits=[test]"]
    small.append("evaluation.metrics=[mine:Broken]")
    code = call("train", "digits/transformer", *small, "--run-dir", "runs/broken")
    err = capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1)
    assert "the metric mine:Broken failed on the output" in err
    assert "ZeroDivisionError: division by zero" in err


def test_a_metric_that_fails_on_totals_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write("\n\nclass OfNone(SameLength):\n    def score(self, totals):\n        return 1 / 0\n")
    small = [
        *TINY[:-1],
        "task.kind=mine:Sorting",
        "training.selection={metric: mine:OfNone, mode: max}",
        "evaluation.splits=[test]",
    ]
    assert call("train", "digits/transformer", *small, "--run-dir", "runs/none") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "the metric mine:OfNone failed on the totals [" in err
    assert (folder / "runs" / "none" / "checkpoints" / "update-000002").is_dir()


@pytest.mark.parametrize(
    ("body", "reason"),
    [("self, k): self.k = k", "TypeError: "), ("self): self.k = {}['k']", "KeyError: 'k'")],
)
def test_a_metric_that_cannot_be_made_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], body: str, reason: str
) -> None:
    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write(f"\n\nclass Lacking(SameLength):\n    def __init__({body}\n")
    assert call("train", "digits/transformer", "evaluation.metrics=[mine:Lacking]", "--run-dir", "runs/none") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"metric is 'mine:Lacking': cannot be made by a call without arguments ({reason}" in err
    assert not (folder / "runs").exists()


def test_a_metric_need_not_call_the_init_of_its_base(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "mine.py").open("a", encoding="utf-8") as file:
        file.write("\n\nclass Own(SameLength):\n    def __init__(self):\n        self.k = 1\n")
    metric = make_metric("mine:Own")
    assert math.isnan(float(metric.compute()["mine:Own"]))
    for output in ("a", "a b"):
        metric.update(output, "c")
    assert metric.compute() == {"mine:Own": 0.5}


def test_the_readme_leads_there() -> None:
    assert "docs/extending.md" in links(README)
