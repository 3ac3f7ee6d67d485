"""Packs of data sets of the library datasets, and of parallel text: the rows are those held in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from architectures import draws

pytest.importorskip("datasets", reason="needs the extra hf")

import datasets
from local_hub import LocalHub, local_hub
from tokenizers import Tokenizer, models, pre_tokenizers

from ostinato.config.data import DataConfig, DataSetConfig
from ostinato.config.model import LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.data.hub import read_data_set
from ostinato.data.lines import read_lines, stretches_beside, stretches_of
from ostinato.data.packs import make, source
from ostinato.data.packs.data_sets import DataSetSource
from ostinato.data.packs.files import FileSource
from ostinato.data.packs.make import content_hash, make_pack
from ostinato.data.packs.rows import packed_rows
from ostinato.data.packs.shards import Pack
from ostinato.data.packs.source import all_examples, sample
from ostinato.data.rows import encode_rows
from ostinato.data.sources import fields_of, read_examples
from ostinato.data.symbols import SymbolTokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError

WORDS = SymbolTokenizer("words", list("abcdefgh"))
JOINT = Tokenizers(WORDS, WORDS)
CAUSAL, PAIRS = LanguageModelConfig(), Seq2SeqConfig()
TEXTS = [f"{'abcdefgh'[n % 8]} {'abcdefgh'[n * 5 % 7]}" for n in range(40)]
ROWS = [{"text": text, "set": "xy"[n % 5 == 0], "n": n} for n, text in enumerate(TEXTS)]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))  # of other processes
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def small_units(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    for module in (source, make):
        monkeypatch.setattr(module, "UNIT_BYTES", n_bytes)


def write_folder(folder: Path, n_files: int = 3) -> Path:
    folder.mkdir()
    for number in range(n_files):
        lines = [f"{json.dumps(row)}\n" for row in ROWS[number * 40 // n_files : (number + 1) * 40 // n_files]]
        (folder / f"part-{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder


def source_of(place: Path | str, split: str = "train", *, how: dict[str, Any] | None = None, **settings: Any) -> Any:
    given = DataSetConfig(hf=str(place), split=split, **(how or {}))
    return DataSetSource(given, fields_of(DataConfig(), "language_model"), **settings)


def rows_of(pack: Pack, config: ModelConfig = CAUSAL) -> list[Any]:
    found = packed_rows(pack, DataConfig(), config, JOINT, name="train")
    return [found[number] for number in range(len(found))]


def in_memory(texts: list[Any], config: ModelConfig = CAUSAL) -> list[Any]:
    return list(encode_rows(texts, JOINT, DataConfig(), config, training=True, name="train"))


@pytest.mark.parametrize("form", ["folder", "file", "saved", "dictionary"])
@pytest.mark.parametrize("streaming", [False, True])
def test_rows_are_those_of_the_data_set_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, streaming: bool
) -> None:
    small_units(monkeypatch, 200)
    place = write_folder(tmp_path / "texts", 1 if form == "file" else 3)
    if form == "file":
        place /= "part-0.jsonl"
    elif form != "folder":
        saved = datasets.Dataset.from_list(ROWS)
        (saved if form == "saved" else datasets.DatasetDict({"train": saved})).save_to_disk(str(tmp_path / form))
        place = tmp_path / form
    files = source_of(place, how={"streaming": streaming})
    examples = list(read_data_set(files.data_set, DataConfig(), "language_model"))
    assert [one.target for one in examples] == TEXTS
    assert [one.target for one in all_examples(files)] == TEXTS
    pack = make_pack(files, JOINT, n_processes=1)
    if streaming and form in ("folder", "file"):  # a stream is cut into its files
        assert len(files.units()) == len(list((tmp_path / "texts").iterdir()))
    else:
        assert len(files.units()) > 2
    found, expected = rows_of(pack), in_memory(examples)
    assert [row.target_ids for row in found] == [row.target_ids for row in expected]
    assert [row.index for row in found] == [row.index for row in expected]


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_processes_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool) -> None:
    small_units(monkeypatch, 400)
    place = write_folder(tmp_path / "texts")
    contents = []
    for n_processes in (1, 2):
        monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / str(n_processes)))
        folder = make_pack(source_of(place, how={"streaming": streaming}), JOINT, n_processes=n_processes).folder
        contents.append({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})
    assert contents[0] == contents[1]


def test_parts_of_splits_and_renamed_columns_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 400)
    saved = datasets.Dataset.from_list(
        [{"pair": {"de": text}, "set": row["set"]} for row, text in zip(ROWS, TEXTS, strict=True)]
    )
    datasets.DatasetDict({"train": saved, "gen": saved.select([3])}).save_to_disk(str(tmp_path / "saved"))
    files = source_of(
        tmp_path / "saved", "train[:25%]+gen", how={"columns": {"text": "pair.de", "kind": "set"}}, column="kind"
    )
    pack = make_pack(files, JOINT, n_processes=1)
    assert pack.n_texts == 11
    expected = [*zip(TEXTS[:10], (row["set"] for row in ROWS), strict=False), (TEXTS[3], "x")]
    for group in "xy":
        texts = [text for text, own in expected if own == group]
        ids = [number for text in texts for number in [*WORDS.encode(text), WORDS.special_ids.eos]]
        stream = pack.stream(group, "target")
        assert stream.take(0, stream.n_tokens) == ids


def test_only_the_columns_that_are_needed_are_read(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    files = source_of(tmp_path / "saved", column="set", origin_column="from")
    assert {tuple(one.columns) for one in all_examples(files)} == {("set", "from")}
    assert next(all_examples(files)).columns == {"set": "y", "from": "saved"}
    files = source_of(tmp_path / "saved", column="from", origin_column="from")
    assert {tuple(one.columns) for one in all_examples(files)} == {("from",)}


def test_a_sample_is_an_even_share_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 50)
    files = source_of(write_folder(tmp_path / "texts"))
    n_units = len(files.units())
    assert n_units > 8
    everything = [one.target for one in sample(files)]
    assert everything == TEXTS
    few = [one.target for one in sample(files, 3 * n_units)]
    assert n_units <= len(few) < len(TEXTS)
    monkeypatch.setattr(source, "MOST_UNITS", 4)
    assert 0 < len([*sample(files, 12)]) <= 8
    empty = source_of(write_folder(tmp_path / "empty"), "train[:0%]")
    monkeypatch.setattr(DataSetSource, "units", lambda self: [])
    assert list(sample(empty, 0)) == []


def test_other_examples_are_other_data_and_another_place_is_not(tmp_path: Path) -> None:
    place = write_folder(tmp_path / "texts")
    files = source_of(place)
    known = [content_hash(files), content_hash(source_of(place, "train[:3]"))]
    known.append(content_hash(source_of(place, how={"columns": {"text": "text"}})))
    known.append(content_hash(source_of(place, origin_column="from")))
    known.append(content_hash(source_of(place, how={"streaming": True})))  # its units are others
    assert len(set(known)) == len(known)
    assert content_hash(source_of(place.rename(tmp_path / "moved"))) == known[0]
    (tmp_path / "moved" / "part-0.jsonl").write_text('{"text": "a", "set": "x", "n": 1}\n', encoding="utf-8")
    assert content_hash(source_of(tmp_path / "moved")) not in known
    single = tmp_path / "moved" / "part-1.jsonl"
    assert content_hash(source_of(single)) == content_hash(source_of(single.rename(tmp_path / "other.jsonl")))


def test_packs_of_tables_that_were_read_with_other_texts_are_not_taken(tmp_path: Path) -> None:
    (file := tmp_path / "a.csv").write_text("text\n046\n", encoding="utf-8")
    assert source_of(file, how={"streaming": True}).content()["texts"] == "as they stand"
    (other := tmp_path / "a.jsonl").write_text('{"text": "046"}\n', encoding="utf-8")
    assert set(source_of(other, how={"streaming": True}).content()) == {"files"}


def test_what_cannot_be_packed_is_named_by_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 200)
    place = write_folder(tmp_path / "texts")
    with (place / "part-2.jsonl").open("a", encoding="utf-8") as stream:
        stream.write('{"text": "a z", "set": "x", "n": 1}\n')
    for n_processes in (1, 2):
        with pytest.raises(DataError, match=r"texts, split train, row 41: 'z' is not among the 8 words"):
            make_pack(source_of(place), JOINT, n_processes=n_processes)
    with pytest.raises(DataError, match=r"texts, split train, shard 3 of 3, row 15: 'z' is not among the 8 words"):
        make_pack(source_of(place, how={"streaming": True}), JOINT, n_processes=1)
    named = DataSetSource(DataSetConfig(hf=str(place), split="train"), fields_of(DataConfig(), "seq2seq"))
    with pytest.raises(DataError, match=r"row 1: no column 'source' \(data\.source_field\) among 'text', 'set', 'n'"):
        make_pack(named, JOINT, n_processes=1)
    with pytest.raises(DataError, match="corresponds to no data"):
        make_pack(source_of(place, "train[:0]"), JOINT)


def test_a_stream_that_changes_while_it_is_tokenised_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = source_of(place := write_folder(tmp_path / "texts"), how={"streaming": True})
    units = DataSetSource.units

    def changing(self: DataSetSource) -> Any:
        found = units(self)
        (place / "part-1.jsonl").write_text('{"text": "a", "set": "x", "n": 1}\n', encoding="utf-8")
        return found

    monkeypatch.setattr(DataSetSource, "units", changing)
    with pytest.raises(DataError, match=r"part-1\.jsonl: was changed while it was tokenised; the same command begins"):
        make_pack(files, JOINT, n_processes=1)


@pytest.mark.parametrize("streaming", [False, True])
def test_data_that_a_card_names_elsewhere_is_what_is_hashed(tmp_path: Path, streaming: bool) -> None:
    (tmp_path / "card").mkdir()
    place = write_folder(tmp_path / "elsewhere")
    named = f"configs: [{{config_name: default, data_files: [{{split: train, path: '{place}/*.jsonl'}}]}}]"
    (tmp_path / "card" / "README.md").write_text(f"---\n{named}\n---\n", encoding="utf-8")

    def pack() -> Pack:
        return make_pack(source_of(tmp_path / "card", how={"streaming": streaming}), JOINT, n_processes=1)

    before = pack()
    assert before.n_texts == 40
    (tmp_path / "card" / "notes.txt").write_text("not data", encoding="utf-8")
    assert pack().folder == before.folder
    (place / "part-1.jsonl").write_text('{"text": "a", "set": "x", "n": 1}\n', encoding="utf-8")
    after, read = pack(), source_of(tmp_path / "card", how={"streaming": streaming}).data_set
    assert after.n_texts == len(list(read_data_set(read, DataConfig(), "language_model")))
    if streaming:  # else the library itself goes on with the tables that it has made
        assert (after.n_texts, after.folder == before.folder) == (28, False)


def test_what_the_library_writes_beside_a_saved_data_set_changes_nothing(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    before = content_hash(source_of(tmp_path / "saved"))
    datasets.load_from_disk(str(tmp_path / "saved")).filter(lambda row: row["n"] > 3)
    assert list((tmp_path / "saved").glob("cache-*.arrow"))
    assert content_hash(source_of(tmp_path / "saved")) == before


def test_data_sets_are_never_held_in_memory_whatever_the_library_would_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets.config, "IN_MEMORY_MAX_SIZE", 10**9)
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    for place in (write_folder(tmp_path / "texts"), tmp_path / "saved"):
        files = source_of(place)
        assert files.paths()
        assert files.content()["tables"]
        assert files.n_bytes > 0


def test_small_files_of_a_stream_are_tokenised_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = source_of(write_folder(tmp_path / "texts", 20), how={"streaming": True})
    assert len(files.units()) == 1
    small_units(monkeypatch, files.n_bytes // 4)
    units = files.units()
    assert 4 <= len(units) <= 5
    assert rows_of(make_pack(files, JOINT, n_processes=1)) == in_memory(
        [replace(one, columns={}) for one in all_examples(files)]
    )


def test_tables_of_another_commit_are_refused(tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    files = source_of(tmp_path / "saved", tables=(tmp_path / "other.arrow",))
    with pytest.raises(DataError, match="was changed while it was tokenised; the same command begins anew"):
        files.units()


def command(hub: LocalHub, folder: Path, split: str, words: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `ostinato` that trains on a data set of a hub."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    environment |= {"HF_DATASETS_CACHE": str(folder / "hf" / "datasets"), "OSTINATO_CACHE": str(folder / "packs")}
    program = [sys.executable, "-m", "ostinato", *words, "lm/transformer", f"data.train={{hf: owner/texts, {split}}}"]
    program += ["data.tokenizer.kind=words", "data.tokenizer.vocab_size=null", "data.packed=auto", *more]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=300)


def pack_command(hub: LocalHub, folder: Path, split: str, *more: str) -> subprocess.CompletedProcess[str]:
    return command(hub, folder, split, ["data", "pack"], *more)


def published(folder: Path) -> dict[str, bytes]:
    return {f"data/train-{path.stem}.jsonl": path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [True, False])
def test_a_data_set_of_a_hub_is_packed_by_processes_and_found_again(tmp_path: Path, streaming: bool) -> None:
    split = f"split: train, streaming: {str(streaming).lower()}"
    with local_hub("owner/texts", published(write_folder(tmp_path / "texts"))) as hub:
        first = pack_command(hub, tmp_path, split, "--processes", "2")
        assert first.returncode == 0, first.stderr
        assert first.stderr.count("asking") == 1, "once, not once a process"
        last = first.stdout.strip().splitlines()[-1]
        assert last.startswith("40 texts, 120 tokens: ")
        found = rows_of(Pack(Path(last.partition(": ")[2])))
        hub.asked.clear()
        again = pack_command(hub, tmp_path, split)
        assert again.stdout.strip() == last
        assert not [path for path in hub.asked if path.endswith(".jsonl")]
        if streaming:  # a commit that is named is not asked for
            hub.asked.clear()
            named = pack_command(hub, tmp_path, f"{split}, revision: {'a' * 40}")
            assert named.stdout.strip() == last
            assert not [path for path in hub.asked if path.startswith("/api/datasets/owner")]
    if streaming:  # nor is a hub needed then
        sizes = ["model.d_model=8", "model.decoder.n_steps=1", "model.decoder.self_attention.n_heads=2"]
        sizes += [
            "model.decoder.ffn.d_ff=8",
            "training.n_updates=1",
            "training.schedule.warmup=1",
            "training.evaluate_every=1",
        ]
        (tmp_path / "dev.txt").write_text("a b\n", encoding="utf-8")
        sizes += [f"data.dev={tmp_path / 'dev.txt'}", "--run-dir", str(tmp_path / "run")]
        trained = command(hub, tmp_path, f"{split}, revision: {'a' * 40}", ["train"], *sizes)
        assert trained.returncode == 0, trained.stderr
        described = json.loads((tmp_path / "run" / "data.json").read_text(encoding="utf-8"))
        expected = {"n": 40, "packed": True, "repository": "owner/texts", "commit": "a" * 40}
        assert {key: described["splits"]["train"][key] for key in expected} == expected
    vocabulary = Tokenizers.load(Path(last.partition(": ")[2]) / "tokenizers").target
    assert [row.target_ids for row in found] == [vocabulary.encode(text) for text in TEXTS]


@pytest.mark.slow
def test_a_stream_that_breaks_off_goes_on_with_the_shards_that_are_missing(tmp_path: Path) -> None:
    split, files = "split: train, streaming: true", published(write_folder(tmp_path / "texts"))
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate("abcdefgh")}))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with local_hub("owner/texts", files) as hub:
        path = f"data.tokenizer.path={tmp_path / 'tokenizer.json'}"
        given = ("data.tokenizer.kind=file", path, "--processes", "1")
        hub.refuses.add("data/train-part-2.jsonl")
        broken = pack_command(hub, tmp_path, split, *given)
        assert broken.returncode == 2
        assert "owner/texts, split train, shard 3 of 3: cannot be read: " in broken.stderr
        assert "Traceback" not in broken.stderr
        hub.refuses.clear()
        hub.asked.clear()
        whole = pack_command(hub, tmp_path, split, *given)
        assert whole.returncode == 0, whole.stderr
        assert {path.rpartition("/")[2] for path in hub.asked if path.endswith(".jsonl")} >= {"train-part-2.jsonl"}
        assert "train-part-1.jsonl" not in {path.rpartition("/")[2] for path in hub.asked if "resolve" in path}


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_one_line(tmp_path: Path) -> None:
    with local_hub("owner/other", {}) as hub:
        outcome = pack_command(hub, tmp_path, "split: train, streaming: true")
    assert outcome.returncode == 2
    assert "owner/texts: the hub does not say which commit it has: " in outcome.stderr
    assert "Traceback" not in outcome.stderr


LINES = st.lists(st.sampled_from(["a", "b c", "d e f", "g\r"]), min_size=1, max_size=30)


@draws(40)
@drawn(LINES, st.integers(1, 30), st.integers(1, 9), st.booleans(), st.integers(1, 40))
def test_two_files_are_cut_at_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, targets: list[str], n: int, times: int, ends: bool, n_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("lines")
    one, other = folder / "one.txt", folder / "other.txt"
    one.write_bytes("\n".join(targets).encode() + b"\n" * ends)
    sources = ["x" * (number * times % 17) for number in range(n)]
    other.write_bytes("\n".join(sources).encode() + b"\n" * ends)
    stretches = stretches_of(one, n_bytes)
    found = stretches_beside(other, stretches)
    if found is None:
        assert n < len(targets)
        return
    assert [(cut.start == 0, cut.n_before) for cut in found] == [(cut.start == 0, cut.n_before) for cut in stretches]
    assert [line for cut in found for line in read_lines(other, cut)] == list(read_lines(other))
    for cut, beside in zip(stretches[:-1], found, strict=False):
        assert [number for number, _ in read_lines(one, cut)] == [number for number, _ in read_lines(other, beside)]
    assert list(accumulate(cut.start for cut in found))  # at least one


def parallel(folder: Path, sources: list[str], targets: list[str]) -> FileSource:
    paths = folder / "sources.txt", folder / "targets.txt"
    for path, own in zip(paths, (sources, targets), strict=True):
        path.write_text("".join(f"{line}\n" for line in own), encoding="utf-8")
    return FileSource(tuple((path.stem, path) for path in paths), fields_of(DataConfig(), "seq2seq"))


@pytest.mark.parametrize("n_processes", [1, 2])
def test_parallel_text_is_packed_as_it_is_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_processes: int
) -> None:
    small_units(monkeypatch, 60)
    files = parallel(tmp_path, [f"{text} a a"[: 3 + 2 * (n % 3)] for n, text in enumerate(TEXTS)], TEXTS)
    assert len(files.units()) > 4
    expected = in_memory(list(read_examples([str(path) for path in files.paths()], DataConfig())), PAIRS)
    assert rows_of(make_pack(files, JOINT, n_processes=n_processes), PAIRS) == expected


def test_parallel_text_of_other_lengths_and_unknown_words_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_units(monkeypatch, 60)
    for sources, targets in ((TEXTS, TEXTS[:7]), (TEXTS[:7], TEXTS), (TEXTS[:39], TEXTS)):
        files = parallel(tmp_path, sources, targets)
        with pytest.raises(DataError) as held:
            list(read_examples([str(path) for path in files.paths()], DataConfig()))
        with pytest.raises(DataError) as packed:
            make_pack(files, JOINT, n_processes=1)
        assert str(packed.value) == str(held.value)
        assert "parallel text needs the same number in both" in str(held.value)
    wrong = [*TEXTS[:-1], "a z"]
    for sources, targets, name in ((TEXTS, wrong, "targets"), (wrong, TEXTS, "sources")):
        files = parallel(tmp_path, sources, targets)
        with pytest.raises(DataError, match=rf"{name}\.txt, line 40: 'z' is not among the 8 words"):
            make_pack(files, JOINT, n_processes=1)
