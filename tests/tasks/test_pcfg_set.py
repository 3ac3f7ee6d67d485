from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.registry import DataAccess
from ostinato.errors import DataError
from ostinato.metrics.matching import consistency
from ostinato.tasks.localism import LOCALISM_FILE, UnrolledSequence, measure_localism, read_unrolled
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.pcfg_set import _FILES
from ostinato.tasks.registry import build_task, task_problems
from ostinato.tasks.string_edits import (
    FUNCTIONS,
    apply_edits,
    draw_edits,
    exceptional_results,
    functions_of,
    has_held_out_pair,
)

PUBLISHED_TESTS = [
    "pcfgset_dev",
    "pcfgset_test",
    "productivity_test",
    "systematicity_test",
    "substitutivity_equal_test",
    "substitutivity_equal_test_twin",
    "substitutivity_primitive_test",
    "substitutivity_primitive_test_twin",
]


def pcfg_set(access: DataAccess | None = None, data: DataConfig | None = None, **settings: object):
    return build_task(TaskRef.model_validate({"kind": "pcfg_set", **settings}), data or DataConfig(), access)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("copy A1 B2 C3", "A1 B2 C3"),
        ("reverse A1 B2 C3", "C3 B2 A1"),
        ("shift A1 B2 C3", "B2 C3 A1"),
        ("swap_first_last A1 B2 C3 D4", "D4 B2 C3 A1"),
        ("repeat A1 B2", "A1 B2 A1 B2"),
        ("echo A1 B2", "A1 B2 B2"),
        ("append A1 B2 , C3", "A1 B2 C3"),
        ("prepend A1 B2 , C3", "C3 A1 B2"),
        ("remove_first A1 B2 , C3", "C3"),
        ("remove_second_twin A1 B2 , echo C3", "A1 B2"),
        ("append echo A1 , reverse B2 C3", "A1 A1 C3 B2"),
        ("repeat append Q7 O3 , G9", "Q7 O3 G9 Q7 O3 G9"),
    ],
)
def test_functions_do_what_they_are_called(source: str, target: str) -> None:
    assert apply_edits(source) == target


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", "token 1: the end is neither a function nor a letter"),
        ("append A1", "append needs a second argument"),
        ("copy A1 , B2", "token 3: ',' follows a complete sequence"),
        ("delete A1", "token 1: 'delete' is neither"),
    ],
)
def test_what_is_no_sequence_is_refused(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        apply_edits(source)


@pytest.mark.sampled
@pytest.mark.parametrize("name", PUBLISHED_TESTS)
def test_the_functions_give_every_published_target(oracle, name: str) -> None:
    rows = oracle(f"pcfg_set/{name}")
    assert all(apply_edits(row["source"]) == row["target"] for row in rows)
    if "n_functions" in rows[0]:
        assert [len(functions_of(row["source"])) for row in rows] == [row["n_functions"] for row in rows]
        assert [has_held_out_pair(row["source"]) for row in rows] == [row["has_systematicity_pair"] for row in rows]


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("split", "part", "name"),
    [
        ("iid", "dev", "pcfgset_dev"),
        ("iid", "test", "pcfgset_test"),
        ("productivity", "test", "productivity_test"),
        ("systematicity", "test", "systematicity_test"),
    ],
)
def test_every_published_row_is_read(access, oracle, split: str, part: str, name: str) -> None:
    made = [(e.source, e.target) for e in pcfg_set(access, split=split).examples(part)]
    assert made == [(row["source"], row["target"]) for row in oracle(f"pcfg_set/{name}")]
    assert measure_overlap(pcfg_set(access, split=split), "test", "dev").n_seen_pairs == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "primitive"])
def test_substitutivity_is_read_from_files_of_the_published_form(oracle, tmp_path: Path, kind: str) -> None:
    task = pcfg_set(DataAccess(tmp_path / "cache", str(tmp_path)), split=f"substitutivity_{kind}")
    files = {file.path.rsplit("/", 2)[-1]: file for file in task.files()}
    for part in ("test", "test_twin"):
        rows = oracle(f"pcfg_set/substitutivity_{kind}_{part}")
        for side, key in (("src", "source"), ("tgt", "target")):
            path = tmp_path / files[f"{part}.{side}"].key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(f"{row[key]}\n" for row in rows), encoding="ascii")
        assert [(e.source, e.target) for e in task.examples(part)] == [(r["source"], r["target"]) for r in rows]
    assert task.splits() == ("train", "dev", "test", "test_twin")


def test_dev_loses_what_training_lacks_unless_it_is_asked_for(access) -> None:
    sizes = {}
    for split in ("iid", "productivity", "systematicity"):
        sizes[split] = sum(1 for _ in pcfg_set(access, split=split).examples("dev"))
        if split != "iid":  # whose dev is whole
            assert sum(1 for _ in pcfg_set(access, split=split, whole_dev=True).examples("dev")) == 4860
    assert pcfg_set(access).published_sizes() == {"train": 82622, "dev": 4860, "test": 9721}
    assert sizes["iid"] == 4860 > sizes["productivity"] > 4000
    assert 4000 < sizes["systematicity"] < 4860
    assert max(e.columns["n_functions"] for e in pcfg_set(access, split="productivity").examples("dev")) == 8


def published_file(folder: Path, name: str, lines: list[str]) -> None:
    path = folder / _FILES[name].key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")


def test_a_training_file_without_a_hash_is_checked_against_the_functions(tmp_path: Path, monkeypatch) -> None:
    for name in ("pcfgset/train.tgt", "pcfgset/train.src"):
        monkeypatch.setitem(_FILES, name, replace(_FILES[name], n_rows=2, n_bytes=None, sha256=None))
    published_file(tmp_path, "pcfgset/train.src", ["echo A1 B2", "copy C3"])
    published_file(tmp_path, "pcfgset/train.tgt", ["A1 B2 B2", "C3"])
    task = pcfg_set(DataAccess(tmp_path / "cache", str(tmp_path)))
    assert [e.target for e in task.examples("train")] == ["A1 B2 B2", "C3"]
    published_file(tmp_path, "pcfgset/train.tgt", ["A1 B2 B2", "C4"])
    with pytest.raises(DataError, match=r"line 2: the target is 'C4', but the functions give 'C3'"):
        list(pcfg_set(DataAccess(tmp_path / "other", str(tmp_path))).examples("train"))
    for name in ("pcfgset/train.tgt", "pcfgset/train.src"):
        monkeypatch.setitem(_FILES, name, replace(_FILES[name], n_rows=None))
    published_file(tmp_path, "pcfgset/train.tgt", ["A1 B2 B2"])
    with pytest.raises(DataError, match=r"train\.src, line 2: has no line beside it in the targets"):
        list(pcfg_set(DataAccess(tmp_path / "short", str(tmp_path))).examples("train"))


@pytest.mark.slow
def test_generated_sequences_are_new_in_every_split_and_divided_as_published() -> None:
    small = {"origin": "generated", "n_train": 3000}
    parts = {s: {p: list(pcfg_set(split=s, **small).examples(p)) for p in ("train", "dev", "test")} for s in ("iid",)}
    sources = [e.source for part in parts["iid"].values() for e in part]
    assert [len(part) for part in parts["iid"].values()] == [3000, 4860, 9721]
    assert len(set(sources)) == len(sources)
    assert all(apply_edits(e.source or "") == e.target for e in parts["iid"]["test"])
    pooled = parts["iid"]["train"] + parts["iid"]["test"]
    hard = pcfg_set(split="productivity", **small)
    assert sum(1 for _ in hard.examples("train")) == sum(e.columns["n_functions"] <= 8 for e in pooled)
    assert sum(1 for _ in hard.examples("test")) == sum(e.columns["n_functions"] > 8 for e in pooled)
    assert max(e.columns["n_functions"] for e in hard.examples("dev")) == 8
    pairs = pcfg_set(split="systematicity", **small)
    assert not any(e.columns["has_held_out_pair"] for e in pairs.examples("train"))
    assert all(e.columns["has_held_out_pair"] for e in pairs.examples("test"))


def test_generated_sequences_can_be_kept_short() -> None:
    task = pcfg_set(origin="generated", n_train=2000, max_functions=2)
    counts = Counter(e.columns["n_functions"] for e in task.examples("train"))
    assert set(counts) == {1, 2}
    # 154 of the published test sequences have one function, 1,243 two.
    assert counts[2] / counts[1] == pytest.approx(1243 / 154, rel=0.2)


def test_generated_functions_and_their_numbers_are_those_of_the_published_test(oracle) -> None:
    drawn = list(islice(draw_edits(Random(0)), 4000))
    published = [row["source"] for row in oracle("pcfg_set/pcfgset_test")]
    mean = {
        name: sum(len(functions_of(s)) for s in rows) / len(rows) for name, rows in (("d", drawn), ("p", published))
    }
    assert mean["d"] == pytest.approx(mean["p"], rel=0.04)
    counts = Counter(name for source in drawn for name in functions_of(source))
    assert set(counts) == set(FUNCTIONS)
    assert max(counts.values()) / min(counts.values()) < 1.15


def test_synonyms_and_sizes_of_published_files_are_refused_where_they_are_not() -> None:
    (problem,) = task_problems({"kind": "pcfg_set", "split": "substitutivity_equal", "origin": "generated"})
    assert problem.key == "task.origin"
    (problem,) = task_problems({"kind": "pcfg_set", "n_train": 5})
    assert "task.origin=generated" in problem.reason
    for settings in ({}, {"origin": "generated", "split": "productivity"}):
        (problem,) = task_problems({"kind": "pcfg_set", "max_functions": 2, **settings})
        assert problem.key == "task.max_functions"


def test_consistency_counts_equal_outputs_whether_right_or_wrong() -> None:
    assert consistency(["A1 B2", "C3", "", "D4"], [" A1  B2", "C4", "", "D4 D4"]) == 0.5
    with pytest.raises(DataError, match="not 1 and 2"):
        consistency(["a"], ["a", "b"])
    with pytest.raises(DataError, match="not 0 and 0"):
        consistency([], [])


ITEM = UnrolledSequence((("copy M5 B15", "*1"), ("repeat *1", "M5 B15 M5 B15")), "repeat copy M5 B15", "M5 B15 M5 B15")


def test_localism_puts_a_models_own_outputs_into_the_next_step() -> None:
    asked: list[list[str]] = []

    def wrong_about_copies(sources: list[str]) -> list[str]:
        asked.append(sources)
        return ["M5 A3" if source.startswith("copy") else apply_edits(source) for source in sources]

    single = UnrolledSequence((("echo A1 B2", "A1 B2 B2"),), "echo A1 B2", "A1 B2 B2")
    assert measure_localism([ITEM, single], wrong_about_copies) == 0.5
    assert asked == [["copy M5 B15", "echo A1 B2"], ["repeat M5 A3"], ["repeat copy M5 B15", "echo A1 B2"]]


@pytest.mark.slow
def test_the_published_localism_problems_are_consistent_for_the_functions_themselves(oracle, tmp_path: Path) -> None:
    rows = oracle("pcfg_set/localism_test")
    path = tmp_path / LOCALISM_FILE.key
    path.parent.mkdir(parents=True)
    lines = [f"{row['category']}\t{row['source']}\t{row['target']}\n" for row in rows]
    missing = (LOCALISM_FILE.n_bytes or 0) - sum(map(len, lines))
    # The originals have a blank at the end of sources that are letters only; here it is put behind the targets.
    path.write_text("".join(lines[:-1]) + lines[-1].rstrip() + " " * missing + "\n", encoding="ascii")
    items = list(read_unrolled(DataAccess(tmp_path / "cache", str(tmp_path))))
    assert len(items) == 9567
    assert all(apply_edits(item.source) == item.target for item in items)
    assert measure_localism(items[:300], lambda sources: [apply_edits(source) for source in sources]) == 1.0


def test_the_users_own_sequences_can_stand_in_for_the_training_file(access, tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps({"source": "copy A1", "target": "A1", "n_functions": 1}) + "\n", encoding="utf-8")
    task = pcfg_set(access, DataConfig(train=str(path)))
    assert [(e.source, e.target) for e in task.examples("train")] == [("copy A1", "A1")]
    assert sum(1 for _ in task.examples("dev")) == 4860


PUBLISHED_EXCEPTIONS = {
    "reverse echo Q6 G8": "Q6 G8 G8",
    "copy copy swap_first_last reverse echo prepend N4 U5 I11 X14 W7 , X9 O9": "W7 O9 N4 U5 I11 X14 W7 X9",
    "prepend remove_first T14 Q9 , remove_second F4 B1 T8 , H19 Z3 C7 , F15 M1 P10 Y6 K14": "T14 Q9 F4 B1 T8",
    "repeat shift shift echo remove_first F3 I6 D6 H11 U5 , U11 Q5 V2 L20": (
        "D6 H11 U5 U11 Q5 V2 L20 F3 I6 D6 H11 U5 U11 Q5 V2 L20 F3 I6"
    ),
    "prepend reverse R1 J11 , K8 L16 Y18": "R1 J11 J11",
    "shift prepend reverse copy N12 J7 L5 , P15 K9 L13 L6": "J7 L5 L5 N12",
}
"""Some of the published exceptions."""


@pytest.mark.parametrize(("source", "target"), PUBLISHED_EXCEPTIONS.items())
def test_exceptions_mean_what_was_published(source: str, target: str) -> None:
    assert exceptional_results(source) == {target}
    assert apply_edits(source) != target


def test_a_sequence_without_exceptions_has_no_other_result() -> None:
    assert exceptional_results("echo append A1 B2 , C3") == set()


def test_overgeneralisation_asks_for_the_exception_and_for_the_rule(tmp_path: Path) -> None:
    def write(name: str, source: str, target: str) -> None:
        for side, text in (("src", source), ("tgt", target)):
            path = tmp_path / "mirror" / _FILES[f"overgeneralisation/{name}.{side}"].key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{text}\n", encoding="ascii")

    exception, meant, rule = "prepend reverse R1 J11 , K8 L16 Y18", "R1 J11 J11", "K8 L16 Y18 J11 R1"
    write("train_pcfg_ratio=0.005", f"copy A1\n{exception}", f"A1\n{meant}")
    write("test_pcfg_ratio=0.005_exception", exception, meant)
    write("test_pcfg_ratio=0.005_original", exception, rule)
    settings = {
        "kind": "pcfg_set",
        "split": "overgeneralisation",
        "exceptions": 0.005,
    }  # as a recipe or command line gives it
    access = DataAccess(tmp_path / "cache", str(tmp_path / "mirror"))
    task = build_task(TaskRef.model_validate(settings), DataConfig(), access)
    assert task.splits() == ("train", "dev", "test", "test_original")
    assert [e.target for e in task.examples("train")] == ["A1", meant]
    assert [e.target for e in task.examples("test")] == [meant]
    assert [e.target for e in task.examples("test_original")] == [rule]
    write("test_pcfg_ratio=0.005_exception", exception, rule)
    fresh = DataAccess(tmp_path / "other", str(tmp_path / "mirror"))
    with pytest.raises(DataError, match="but the functions give 'R1 J11 J11'"):
        list(build_task(TaskRef.model_validate(settings), DataConfig(), fresh).examples("test"))
    assert task_problems({"kind": "pcfg_set", "exceptions": "0.005"})
