"""What `ostinato data show` prints of a task: protocol, sizes, scores and examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.metrics import METRICS
from ostinato.tasks.catalog import describe_task, open_task, protocol
from ostinato.tasks.checks import FORCED_METRICS
from ostinato.tasks.registry import TASKS

SMALL = {
    "agreement": ["n_train=20", "n_eval=5"],
    "algorithmic": ["n_train=20", "n_eval=5"],
    "learning_to_execute": ["n_train=20", "n_eval=5"],
    "listops": ["version=small", "n_train=20", "n_eval=5"],
    "logical_inference": ["origin=generated", "n_pairs=2000"],
    "maze": ["n_train=20", "n_eval=5"],
    "parity": ["n_train=20", "n_eval=5"],
    "passivization": ["origin=generated", "n_train=20"],
    "pcfg_set": ["origin=generated", "n_train=20"],
    "relay": ["n_train=20", "n_eval=5"],
    "scan": ["split=length"],
    "sudoku": ["size=4", "n_train=20", "n_eval=5"],
}
"""Tasks that need no files, with settings that make them short."""
ROWS: dict[str, list[dict[str, Any]]] = {
    "classification": [{"source": "a b", "target": "x"}] * 3,
    "files": [{"source": "a b", "target": "b a"}] * 3,
    "lambada": [{"text": "a b c", "source": "a b", "target": "c"}] * 3,
    "span_extraction": [{"source": "who?\ta b", "target": "b"}] * 3,
    "tagging": [{"source": "a b", "target": "O B-x"}] * 3,
}
"""Rows of tasks that read files of the user's own."""


@pytest.mark.parametrize("kind", TASKS)
def test_every_protocol_says_splits_tokens_metric_selection_and_departures(kind: str) -> None:
    text = protocol(TASKS[kind])
    assert [name for name in ("Splits", "Tokens", "Metric", "Selection", "Departures") if name not in text] == []


@pytest.mark.sampled
@pytest.mark.parametrize("kind", SMALL)
def test_tasks_without_files_are_shown_with_scores_sizes_and_three_examples(kind: str) -> None:
    check(describe_task(open_task(kind, SMALL[kind])))


@pytest.mark.parametrize("kind", ROWS)
def test_tasks_on_own_files_are_shown_with_scores_sizes_and_three_examples(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS[kind]), encoding="utf-8")
    form = ["format=lines"] if kind == "span_extraction" else []
    shown = describe_task(open_task(kind, [*form, f"data.train={path}", f"data.test={path}"]))
    check(shown)
    assert shown["published"] == ({"test": 5153} if kind == "lambada" else {})


def test_a_column_of_the_name_of_a_text_stands_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = {"question": "what?", "answer": "that", "source": "wikipedia", "text": "all"}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    named = ["data.source_field=question", "data.target_field=answer"]
    shown = describe_task(open_task("files", [f"data.train={path}", *named]))
    expected = {"source": "what?", "target": "that", "column 'source'": "wikipedia", "text": "all"}
    assert shown["examples"] == [expected]


def test_texts_are_reported_by_what_needs_no_decoding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a b\nc d\ne f\n", encoding="utf-8")
    shown = describe_task(open_task("files", ["model_kind=language_model", f"data.train={path}"]))
    assert (shown["metrics"], shown["forced"]) == ([], ["perplexity", "word_perplexity", "bits_per_byte"])
    shown = describe_task(open_task("lambada", ["form=reading", f"data.train={path}", "passages=texts"]))
    assert (shown["metrics"], shown["forced"]) == (["exact_match"], [])


def test_what_is_here_is_shown_beside_what_is_missing(access: DataAccess) -> None:
    shown = describe_task(open_task("passivization", access=access))
    assert shown["sizes"] == {"dev": 1000, "test": 10_000, "gen": 10_000}
    assert list(shown["missing"]) == ["train"]
    assert "passiv_en_nps.train: not in the mirror" in shown["missing"]["train"]
    assert (shown["examples_of"], len(shown["examples"]), shown["overlap"]) == ("dev", 3, {})
    there = {file["path"].rpartition(".")[2]: (file["is_here"], file["is_read"]) for file in shown["files"]}
    assert there == {"train": (False, True), "dev": (True, True), "test": (True, True), "gen": (True, True)}


@pytest.mark.parametrize(
    ("kind", "settings", "n_there"), [("cfq", [], 0), ("scan", ["split=mcd1"], 1), ("mcwq", [], 0), ("pcfg_set", [], 5)]
)
def test_a_task_without_its_largest_files_still_shows_protocol_and_files(
    kind: str, settings: list[str], n_there: int, access: DataAccess
) -> None:
    shown = describe_task(open_task(kind, settings, access))
    assert "train" in shown["missing"]
    assert not set(shown["missing"]) & set(shown["sizes"])
    assert sum(file["is_here"] for file in shown["files"]) == n_there
    assert shown["published"]


def test_a_training_file_of_ones_own_is_not_shown_as_the_published_one(access: DataAccess, tmp_path: Path) -> None:
    path = tmp_path / "train_resampled.jsonl"
    row = {"source": "our yak saw her newt . decl", "target": "our yak saw her newt ."}
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    shown = describe_task(open_task("passivization", [f"data.train={path}"], access))
    assert (shown["stand_ins"], shown["missing"], shown["sizes"]["train"]) == ({"train": [str(path)]}, {}, 1)
    assert set(shown["published"]) == {"dev", "test", "gen"}
    assert [file["path"].rpartition(".")[2] for file in shown["files"] if not file["is_read"]] == ["train"]


def test_a_damaged_file_is_an_error_and_not_a_missing_one(tmp_path: Path) -> None:
    task = open_task("passivization", access=DataAccess(tmp_path / "cache", str(tmp_path / "mirror")))
    for file in task.files():
        path = tmp_path / "mirror" / file.key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("something else\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 1: expected a source"):
        describe_task(task)


def test_texts_are_looked_for_whole_in_training(tmp_path: Path) -> None:
    shown = describe_task(open_task("agreement", ["n_eval=50", "max_attractors=0"]))
    assert shown["overlap"]["test"]["n_seen_sources"] == 50  # "the boats", which "sing" follows


def test_the_sizes_of_multi30k_are_shown_as_published() -> None:
    published = open_task("translation").published_sizes()
    assert published == {"train": 29_000, "dev": 1_014, "test": 1_000, "test_2017": 1_000, "test_2018": 1_071}


def check(shown: dict[str, Any]) -> None:
    """Compare what is shown with what has to be."""
    assert len(shown["examples"]) == 3
    assert all(n > 0 for n in shown["sizes"].values())
    named = [*shown["metrics"], *shown["forced"]]
    assert named
    assert set(named) <= {*METRICS, *FORCED_METRICS, "ranking"}
