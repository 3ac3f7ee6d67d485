from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from archives import mirrored, write_archive, write_lines

from ostinato.config.data import DataConfig
from ostinato.config.recipe import TaskRef
from ostinato.data.registry import DataAccess, open_member
from ostinato.errors import DataError
from ostinato.metrics import make_metric
from ostinato.tasks import cfq, mcwq, scan
from ostinato.tasks.overlap import measure_overlap
from ostinato.tasks.registry import build_task
from ostinato.tasks.sparql import simplify, tokenise

HEAD = "SELECT count ( * ) WHERE"


def open_task(folder: Path, kind: str, data: DataConfig | None = None, **settings: object):
    return build_task(TaskRef.model_validate({"kind": kind, **settings}), data or DataConfig(), mirrored(folder))


# -- queries ----------------------------------------------------------------------------------------------------------


def test_queries_become_tokens_as_published() -> None:
    query = "SELECT count(*) WHERE {\n?x0 ns:film.editor.film M0 .\n?x0 ns:people.person.gender ns:m.05zppz\n}"
    assert tokenise(query) == f"{HEAD} {{ ?x0 film.editor.film M0 . ?x0 people.person.gender m_05zppz }}"


@pytest.mark.parametrize(
    ("clauses", "short"),
    [
        ("M0 p ?x0 . M1 p ?x0 . M0 q ?x0 . M1 q ?x0", "M0 M1 p q ?x0"),
        ("M0 p ?x0 . M0 p M2 . M1 p ?x0", "M0 p ?x0 M2 . M1 p ?x0"),
        ("?x0 a film.editor . FILTER ( ?x0 != M0 )", "?x0 a film.editor . FILTER ( ?x0 != M0 )"),
        ("M1 q ?x0 . M0 p ?x0", "M0 p ?x0 . M1 q ?x0"),
        ("M0 p ?x1 . M0 p ?x0 . M1 p ?x0 . M1 p ?x1 . M1 q ?x0", "M0 M1 p ?x0 ?x1 . M1 q ?x0"),
    ],
)
def test_clauses_that_share_their_parts_are_written_together(clauses: str, short: str) -> None:
    parts = sorted(short.split(" . "))
    assert simplify(f"{HEAD} {{ {clauses} }}") == f"{HEAD} {{ {' . '.join(parts)} }}"


def test_the_order_of_clauses_no_longer_matters() -> None:
    rng = Random(0)
    clauses = ["M0 p ?x0", "M1 p ?x0", "M0 q ?x0", "?x0 r M2", "?x0 r M3", "FILTER ( ?x0 != M2 )"]
    found = set()
    for _ in range(20):
        rng.shuffle(clauses)
        found.add(simplify(f"{HEAD} {{ {' . '.join(clauses)} }}"))
    assert found == {f"{HEAD} {{ ?x0 r M2 M3 . FILTER ( ?x0 != M2 ) . M0 M1 p ?x0 . M0 q ?x0 }}"}


def test_inverse_predicates_are_turned_where_asked_for() -> None:
    query = f"{HEAD} {{ ?x0 film.director.film M0 . M1 film.film.directed_by ?x0 }}"
    assert simplify(query) == f"{HEAD} {{ ?x0 film.director.film M0 . M1 film.film.directed_by ?x0 }}"
    assert simplify(query, turn_inverses=True) == f"{HEAD} {{ M0 M1 film.film.directed_by ?x0 }}"


@pytest.mark.parametrize("query", ["SELECT", f"{HEAD} {{ M0 p ?x0", f"{HEAD} {{ M0 p }}"])
def test_what_is_no_query_is_refused(query: str) -> None:
    with pytest.raises(ValueError, match=r"is no query|is neither a triple"):
        simplify(query)


# -- CFQ --------------------------------------------------------------------------------------------------------------


def cfq_record(number: int) -> dict[str, object]:
    return {
        "complexityMeasures": {"parseTreeLeafCount": number},
        "questionPatternModEntities": f'Did M{number}\'s "editor" marry M1',
        "ruleTree": {"name": "S=WHQ", "text": "a \\ b"},
        "sparqlPatternModEntities": f"SELECT count(*) WHERE {{\n?x0 ns:film.editor.film M{number} .\nM1 ns:p.q ?x0\n}}",
    }


@pytest.fixture
def small_cfq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of the published form with ten questions; its numbers are told to the task."""
    monkeypatch.setattr(cfq, "_ARCHIVE", replace(cfq._ARCHIVE, n_rows=10))
    monkeypatch.setattr(cfq, "_SIZES", {"train": 4, "dev": 2, "test": 3})
    lists = json.dumps({"trainIdxs": [9, 0, 3, 4], "devIdxs": [1, 2], "testIdxs": [5, 6, 8]})
    dataset = json.dumps([cfq_record(number) for number in range(10)], indent=2)
    members = {"cfq/dataset.json": dataset, "cfq/splits/mcd1.json": lists, "cfq/splits/mcd2.json": lists}
    write_archive(tmp_path, cfq._ARCHIVE, members)
    return tmp_path


def test_cfq_is_read_from_its_archive(small_cfq: Path) -> None:
    task = open_task(small_cfq, "cfq")
    assert {split: [e.columns["id"] for e in task.examples(split)] for split in task.splits()} == {
        "train": [9, 0, 3, 4],
        "dev": [1, 2],
        "test": [5, 6, 8],
    }
    first = next(iter(task.examples("train")))
    assert first.source == 'Did M9 \' s " editor " marry M1'
    assert first.target == f"{HEAD} {{ ?x0 film.editor.film M9 . M1 p.q ?x0 }}"
    assert measure_overlap(task, "test").n_seen_sources == 0


def test_cfq_s_short_form_turns_inverses_in_the_second_and_third_split(small_cfq: Path) -> None:
    targets = [
        next(iter(open_task(small_cfq, "cfq", split=split, target_form="simplified").examples("test"))).target
        for split in ("mcd1", "mcd2")
    ]
    assert targets[0] == f"{HEAD} {{ ?x0 film.editor.film M5 . M1 p.q ?x0 }}"
    assert targets[1] == f"{HEAD} {{ M1 p.q ?x0 . M5 film.film.edited_by ?x0 }}"


def test_pairs_are_found_whatever_the_pieces_that_are_read(small_cfq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(open_task(small_cfq, "cfq").examples("train"))
    monkeypatch.setattr(cfq, "_CHUNK", 7)
    assert list(open_task(small_cfq, "cfq").examples("train")) == whole


def test_a_cfq_archive_of_another_size_is_refused(small_cfq: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cfq, "_ARCHIVE", replace(cfq._ARCHIVE, n_rows=11))
    with pytest.raises(DataError, match="10 questions, but 11 were published"):
        list(open_task(small_cfq, "cfq").examples("test"))
    monkeypatch.setattr(cfq, "_SIZES", {"train": 95_743, "dev": 11_968, "test": 11_968})
    with pytest.raises(DataError, match=r"mcd1 has .* questions, but .*95743"):
        list(open_task(small_cfq, "cfq").examples("test"))


def test_an_archive_without_a_file_names_those_it_has(small_cfq: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no file splits/random_split\.json; there is cfq/dataset\.json, cfq/sp"):
        list(open_task(small_cfq, "cfq", split="random").examples("test"))
    (tmp_path / "no.tar.gz").write_bytes(b"nothing")
    with pytest.raises(DataError, match="not a sound tar archive"), open_member(tmp_path / "no.tar.gz", "a"):
        pass


# -- MCWQ -------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled
@pytest.mark.parametrize("split", ["mcd1", "mcd2", "mcd3"])
@pytest.mark.parametrize("language", ["en", "he", "kn", "zh"])
def test_mcwq_s_dev_and_test_are_read_from_files_that_hash_as_published(
    oracle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, language: str
) -> None:
    assert {f"{split}/{part}.{language}" for part in ("dev", "test")} <= set(mcwq._HASHES)
    if language in ("he", "kn"):  # Some blanks of their files are not in the rows, so that these hash otherwise.
        monkeypatch.setattr(mcwq, "_HASHES", {})
    task = open_task(tmp_path, "mcwq", split=split, language=language)
    for part, file in zip(("dev", "test"), task.files()[1:], strict=True):
        name = f"mcwq_reduced/{split}_{part}" if language == "en" else f"mcwq_he_kn_zh/{split}_{part}_{language}"
        rows = oracle(name)
        write_lines(tmp_path, file, [f"IN: {row['source']}  OUT: {row['target']}" for row in rows])
        made = [(example.source, example.target) for example in task.examples(part)]
        assert made == [(row["source"], row["target"]) for row in rows]
        assert task.published_sizes()[part] == len(rows)
    if language == "en":  # Translation makes some questions equal.
        assert measure_overlap(task, "test", "dev").n_seen_sources == 0


def test_every_mcwq_query_has_a_short_form_that_its_clauses_order_does_not_change(oracle) -> None:
    rows = oracle("mcwq_reduced/mcd1_test")
    rng = Random(1)
    for row in rows[::5]:
        short = simplify(row["target"])
        head, _, body = row["target"].partition("{ ")
        clauses = body.removesuffix(" }").split(" . ")
        rng.shuffle(clauses)
        assert simplify(f"{head}{{ {' . '.join(clauses)} }}") == short
        assert len(short) <= len(row["target"])


def test_mcwq_reads_other_languages_and_stand_ins_for_its_training_file(tmp_path: Path) -> None:
    hebrew, file = open_task(tmp_path, "mcwq", language="he", target_form="simplified"), mcwq._remote
    write_lines(
        tmp_path, file("mcd1", "train", "he"), ["IN: \u05d4\u05d0\u05dd M1  OUT: ASK WHERE { M1 q M2 . M0 p M2 }"]
    )
    assert [e.target for e in hebrew.examples("train")] == ["ASK WHERE { M0 p M2 . M1 q M2 }"]
    write_lines(tmp_path, file("mcd2", "train", "he"), ["Did M1 .. ASK"])
    with pytest.raises(DataError, match="line 1: expected 'IN: question OUT: query'"):
        list(open_task(tmp_path, "mcwq", language="he", split="mcd2").examples("train"))
    own = tmp_path / "own.tsv"
    own.write_text("source\ttarget\nDid M1 star M2\tASK WHERE { M1 p M2 }\n", encoding="utf-8")
    task = open_task(tmp_path, "mcwq", DataConfig(train=str(own)))
    assert [e.source for e in task.examples("train")] == ["Did M1 star M2"]


def test_mcwq_has_a_random_split_beside_those_of_compound_divergence(tmp_path: Path) -> None:
    task = open_task(tmp_path, "mcwq", split="random")
    folder = "mcwq/official/random_split"
    assert [file.path for file in task.files()] == [f"{folder}/{part}.en.txt" for part in ("train", "dev", "test")]
    assert task.published_sizes() == {}
    write_lines(tmp_path, task.files()[2], ["IN: Did M0 's star play M1  OUT: ASK WHERE { ?x0 wdt:P453 M1 }"])
    assert [(e.source, e.target) for e in task.examples("test")] == [
        ("Did M0 's star play M1", "ASK WHERE { ?x0 wdt:P453 M1 }")
    ]
    assert open_task(tmp_path, "mcwq", split="mcd1", language="he").published_sizes()["train"] == 57190


def test_a_query_is_right_as_a_whole_and_in_order() -> None:
    metric = make_metric("exact_match")
    metric.update("ASK WHERE { M0 p M1 . M0 q M1 }", "ASK WHERE { M0 p M1 . M0 q M1 }")
    metric.update("ASK WHERE { M0 q M1 . M0 p M1 }", "ASK WHERE { M0 p M1 . M0 q M1 }")
    assert metric.compute() == {"exact_match": 0.5}


# -- SCAN -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scan_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All commands in an order of their own, and an archive of lists of the published sizes."""
    for name in ("_MCD_LISTS", "_ALL"):
        monkeypatch.setattr(scan, name, replace(getattr(scan, name), sha256=None, n_bytes=None))
    rows = list(scan.all_commands())
    Random(0).shuffle(rows)
    write_lines(tmp_path, scan._ALL, [f"IN: {command} OUT: {actions}" for command, actions in rows])
    numbers = list(range(20_910))
    Random(1).shuffle(numbers)
    lists = {"trainIdxs": numbers[:8365], "devIdxs": numbers[8365:9410], "testIdxs": numbers[9410:10_455]}
    write_archive(tmp_path, scan._MCD_LISTS, {"scan-splits/mcd1.json": json.dumps(lists)})
    return tmp_path


def test_scan_s_compound_splits_are_rows_of_the_file_of_all_commands(scan_mirror: Path) -> None:
    task = open_task(scan_mirror, "scan", split="mcd1")
    assert [sum(1 for _ in task.examples(split)) for split in task.splits()] == [8365, 1045, 1045]
    lines = (scan_mirror / scan._ALL.key).read_text(encoding="utf-8").splitlines()
    first = task._mcd_numbers["test"][0]  # type: ignore[attr-defined]
    example = next(iter(task.examples("test")))
    assert lines[first] == f"IN: {example.source} OUT: {example.target}"
    assert measure_overlap(task, "test").n_seen_pairs == 0


def test_the_published_file_of_all_commands_is_the_grammar_s(access: DataAccess) -> None:
    assert scan._ALL.sha256 is not None
    task = build_task(TaskRef.model_validate({"kind": "scan", "split": "mcd1"}), DataConfig(), access)
    rows = task._all_rows  # type: ignore[attr-defined]
    assert sorted(rows) == sorted(scan.all_commands())


def test_a_file_of_commands_that_is_not_the_grammar_s_is_refused(scan_mirror: Path) -> None:
    path = scan_mirror / scan._ALL.key
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:-1], lines[0]]) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="line 20910: the grammar has no such row, or the file has it twice"):
        list(open_task(scan_mirror, "scan", split="mcd1").examples("test"))


def test_scan_lists_of_other_sizes_are_refused(scan_mirror: Path) -> None:
    write_archive(
        scan_mirror,
        scan._MCD_LISTS,
        {"mcd2.json": json.dumps({f"{part}Idxs": [1] for part in ("train", "dev", "test")})},
    )
    with pytest.raises(DataError, match=r"mcd2 has .* rows, but .*8365"):
        list(open_task(scan_mirror, "scan", split="mcd2").examples("test"))
