"""Packs: the rows are those of texts held in memory, nothing is lost or seen twice, bad input is named."""

from __future__ import annotations

import errno
import gzip
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from architectures import draws
from ostinato.config.data import DataConfig, MixtureConfig
from ostinato.config.model import EncoderConfig, LanguageModelConfig, ModelConfig, Seq2SeqConfig
from ostinato.data import file_hashes
from ostinato.data.batch import Batch
from ostinato.data.batching import TrainingBatches
from ostinato.data.collate import Row
from ostinato.data.cuts import Cuts
from ostinato.data.example import Example
from ostinato.data.packs import make, shards, source, unit
from ostinato.data.packs.files import FileSource
from ostinato.data.packs.make import Progress, make_pack
from ostinato.data.packs.rows import packed_rows
from ostinato.data.packs.shards import Pack
from ostinato.data.packs.source import all_examples, sample
from ostinato.data.paths import find_files
from ostinato.data.rows import encode_rows
from ostinato.data.sources import fields_of
from ostinato.data.symbols import SymbolTokenizer
from ostinato.data.tokenizer import EOS_ID
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import DataError

WORDS = SymbolTokenizer("words", list("abcdefgh"))
JOINT = Tokenizers(WORDS, WORDS)
CAUSAL, PREFIX, MASKED, PAIRS = (
    LanguageModelConfig(),
    LanguageModelConfig(mask="prefix"),
    EncoderConfig(),
    Seq2SeqConfig(),
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small_units(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    monkeypatch.setattr(source, "UNIT_BYTES", n_bytes)
    monkeypatch.setattr(make, "UNIT_BYTES", n_bytes)


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def write_json_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    return write_lines(path, [json.dumps(record) for record in records])


def source_of(*paths: Path, kind: str = "language_model", **how: Any) -> FileSource:
    return FileSource(tuple((path.stem, path) for path in paths), fields_of(DataConfig(), kind), **how)


def assert_equal_batches(found: Batch, expected: Batch) -> None:
    for name in ("target", "source"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if other is not None:
            assert torch.equal(one.ids_BT, other.ids_BT)
            assert torch.equal(one.keep_BT, other.keep_BT)
            assert (one.positions_BT is None) == (other.positions_BT is None)
            assert other.texts_BT is None or torch.equal(one.texts_BT, other.texts_BT)
    assert torch.equal(found.labels_BT, expected.labels_BT)
    assert torch.equal(found.loss_mask_BT, expected.loss_mask_BT)
    assert found.indices == expected.indices


texts_of_words = st.lists(
    st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=9).map(" ".join), min_size=1, max_size=25
)


@draws(24)
@given(
    texts_of_words,
    st.sampled_from([CAUSAL, PREFIX, MASKED]),
    st.sampled_from(
        [
            {},
            {"block_length": 4},
            {"block_length": 7, "block_attention": "text"},
            {"max_target_length": 4, "over_length": "truncate"},
        ]
    ),
    st.integers(1, 60),
)
def test_rows_of_a_pack_are_those_of_texts_held_in_memory(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], config: ModelConfig, how: dict[str, Any], n_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    data = DataConfig(**how)
    with pytest.MonkeyPatch.context() as patch:
        small_units(patch, n_bytes)
        patch.setattr(unit, "_HELD_TOKENS", 10)
        patch.setenv("OSTINATO_CACHE", str(folder / "cache"))
        pack = make_pack(source_of(write_lines(folder / "a.txt", texts)), JOINT, n_processes=1)
        assert (pack.n_texts, pack.n_tokens) == (len(texts), sum(len(text.split()) + 1 for text in texts))
        found = packed_rows(pack, data, config, JOINT, name="train")
    examples = [Example(None, text) for text in texts]
    expected = list(encode_rows(examples, JOINT, data, config, training=True, name="train"))
    assert [found[i] for i in range(len(found))] == expected
    assert found.lengths.tolist() == [row.length for row in expected]


@draws(24)
@given(
    st.lists(texts_of_words, min_size=1, max_size=3),
    st.integers(2, 9),
    st.sampled_from(["block", "text"]),
    st.integers(1, 40),
    st.integers(5, 60),
)
def test_an_epoch_has_every_token_of_every_text_once(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[str]],
    length: int,
    attention: str,
    n_bytes: int,
    tokens_per_batch: int,
) -> None:
    folder = tmp_path_factory.mktemp("pack")
    paths = [write_lines(folder / f"{name}.txt", texts) for name, texts in zip("xyz", files, strict=False)]
    data = DataConfig(block_length=length, block_attention=attention)
    with pytest.MonkeyPatch.context() as patch:
        small_units(patch, n_bytes)
        patch.setenv("OSTINATO_CACHE", str(folder / "cache"))
        pack = make_pack(source_of(*paths, origin_column="set", column="set"), JOINT, n_processes=1)
        batches = TrainingBatches(packed_rows(pack, data, CAUSAL, JOINT, name="train"), tokens_per_batch, 1)
        for epoch in range(2):
            drawn = [next(batches)]
            assert batches.epoch == epoch
            drawn += islice(batches, batches.n_batches - 1)
            assert batches.epoch == epoch
            indices = [i for batch in drawn for i in batch.indices]
            assert sorted(indices) == list(range(len(batches.rows)))
            labels = torch.cat([batch.labels_BT[batch.loss_mask_BT] for batch in drawn]).tolist()
            expected = [i for texts in files for text in texts for i in [*WORDS.encode(text), EOS_ID]]
            assert Counter(labels) == Counter(expected)
            # In their order the blocks of a file are its texts.
            ordered = sorted(
                (int(i), row[mask].tolist())
                for batch in drawn
                for i, row, mask in zip(batch.indices, batch.labels_BT, batch.loss_mask_BT, strict=True)
            )
            assert [i for _, row in ordered for i in row] == expected


@pytest.mark.parametrize("over_length", ["truncate", "drop"])
@pytest.mark.parametrize("config", [PAIRS, CAUSAL])
def test_pairs_are_packed_cut_and_dropped_as_in_memory(tmp_path: Path, over_length: str, config: ModelConfig) -> None:
    generator = np.random.default_rng(0)
    records = [
        {side: " ".join(generator.choice(list("abcdefgh"), generator.integers(1, 9))) for side in ("source", "target")}
        for _ in range(60)
    ]
    path = write_json_lines(tmp_path / "a.jsonl", records)
    data = DataConfig(max_source_length=6, max_target_length=7, over_length=over_length)
    pack = make_pack(source_of(path, kind="seq2seq"), JOINT, n_processes=1)
    found = packed_rows(pack, data, config, JOINT, name="train")
    examples = [Example(**record) for record in records]
    expected = list(encode_rows(examples, JOINT, data, config, training=True, name="train"))
    assert (len(expected) < 60) == (over_length == "drop")
    assert [found[i] for i in range(len(found))] == expected
    one, other = TrainingBatches(found, 50, 1), TrainingBatches(expected, 50, 1)
    for _ in range(15):
        assert_equal_batches(next(one), next(other))
    assert one.state() == other.state()


@pytest.mark.parametrize("over_length", ["truncate", "drop"])
def test_texts_of_masked_models_are_no_longer_than_their_limit_with_both_symbols(
    tmp_path: Path, over_length: str
) -> None:
    texts = ["a b c d e", "a b", "a b c", "a b c d"]
    data = DataConfig(max_target_length=5, over_length=over_length)
    pack = make_pack(source_of(write_lines(tmp_path / "a.txt", texts)), JOINT, n_processes=1)
    cuts, of_pack = Cuts(), Cuts()
    examples = [Example(None, text) for text in texts]
    expected = list(encode_rows(examples, JOINT, data, MASKED, training=True, name="train", cuts=cuts))
    found = packed_rows(pack, data, MASKED, JOINT, name="train", cuts=of_pack)
    assert [row.length for row in expected] == ([5, 4, 5, 5] if over_length == "truncate" else [4, 5])
    assert found.lengths.tolist() == [row.length for row in expected]
    assert [found[i] for i in range(len(found))] == expected
    assert of_pack.notes("train") == cuts.notes("train")
    error = data.model_copy(update={"over_length": "error"})
    said = r"example 1: the target has 7 tokens with its begin and end symbols, but data\.max_target_length is 5"
    with pytest.raises(DataError, match=said):
        list(encode_rows(examples, JOINT, error, MASKED, training=False, name="train"))
    with pytest.raises(DataError, match=said):
        packed_rows(pack, error, MASKED, JOINT, name="train")


def test_what_is_too_long_of_a_mixture_is_named_by_its_data_set(tmp_path: Path) -> None:
    records = [{"text": "a b c d" if n == 3 else "a", "set": "xy"[n % 2]} for n in range(7)]
    path = write_json_lines(tmp_path / "a.jsonl", records)
    data = DataConfig(mixture=MixtureConfig(column="set"), max_target_length=4)
    pack = make_pack(source_of(path, column="set"), JOINT, n_processes=1)
    with pytest.raises(DataError, match=r"^t, data set 'y': example 2: the target has 5 tokens"):
        packed_rows(pack, data, CAUSAL, JOINT, name="t")


def test_what_is_too_long_is_named_as_in_memory(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", ["a", "a b c d", "b"])
    data = DataConfig(max_target_length=4)
    with pytest.raises(DataError) as held:
        list(encode_rows([Example(None, "a"), Example(None, "a b c d")], JOINT, data, CAUSAL, training=True, name="t"))
    pack = make_pack(source_of(path), JOINT, n_processes=1)
    with pytest.raises(DataError) as packed:
        packed_rows(pack, data, CAUSAL, JOINT, name="t")
    assert str(packed.value) == str(held.value)
    pairs = write_json_lines(tmp_path / "b.jsonl", [{"source": "a", "target": "b"}])
    pack = make_pack(source_of(pairs, kind="seq2seq"), JOINT)
    with pytest.raises(DataError, match=r"data\.block_length packs texts: these examples have a source"):
        packed_rows(pack, DataConfig(block_length=4), CAUSAL, JOINT, name="t")


@pytest.mark.parametrize("blocks", [{}, {"block_length": 4}])
def test_data_sets_of_a_mixture_are_drawn_by_their_weights(tmp_path: Path, blocks: dict[str, Any]) -> None:
    records = [{"text": "a b c", "set": "x" if n % 5 else "y"} for n in range(100)]
    path = write_json_lines(tmp_path / "a.jsonl", records)
    mixture = MixtureConfig(column="set", weights={"x": 1.0, "y": 1.0})
    data = DataConfig(mixture=mixture, **blocks)
    pack = make_pack(source_of(path, column="set"), JOINT, n_processes=1)
    assert pack.groups == ["y", "x"]
    found = packed_rows(pack, data, CAUSAL, JOINT, name="train")
    assert {name: len(own) for name, own in found.data_sets().items()} == {"x": 80, "y": 20}
    batches = TrainingBatches(found, 40, 1, mixture=mixture)
    drawn = [next(batches) for _ in range(batches.n_batches)]
    assert Counter(value for batch in drawn for value in batch.columns["set"]) == {"x": 50, "y": 50}
    for name, own in found.data_sets().items():
        assert {found[i].columns["set"] for i in own.tolist()} == {name}


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_the_streams_of_a_pack_have_few_files_open_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 40)
    monkeypatch.setattr(shards, "_MOST_MAPS", 3)
    rows = [json.dumps({"text": f"{'abcdefgh'[n % 8]} b c d", "set": f"s{n % 5}"}) for n in range(200)]
    pack = make_pack(source_of(write_lines(tmp_path / "a.jsonl", rows), column="set"), JOINT, n_processes=1)
    streams = [pack.stream(group, "target") for group in pack.groups]
    assert len(streams) == 5
    assert sum(len(stream.take(0, stream.n_tokens)) for stream in streams) == pack.n_tokens
    assert pack._mapped.cache_info().currsize == 3


@pytest.mark.parametrize("n_processes", [1, 2])
def test_what_the_system_refuses_is_said_alike_by_all_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_processes: int
) -> None:
    small_units(monkeypatch, 200)
    files = source_of(write_lines(tmp_path / "a.txt", [f"a {'b ' * 50}" for _ in range(40)]))
    monkeypatch.setattr(make, "read_unit", lambda folder, *_: (folder / "000001-0.target.ids").mkdir(exist_ok=True))
    with pytest.raises(OSError, match="directory") as caught:
        make_pack(files, JOINT, n_processes=n_processes)
    assert caught.value.errno in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST)


def test_processes_and_a_second_run_change_no_byte(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_units(monkeypatch, 200)
    texts = [f"{'abcdefgh'[n % 8]} {'abcdefgh'[n * 5 % 7]}" for n in range(300)]
    files = source_of(write_lines(tmp_path / "a.txt", texts), write_lines(tmp_path / "b.txt", texts[:100]))
    told: list[Progress] = []
    one = make_pack(files, JOINT, n_processes=1, on_progress=told.append)
    assert len(told) == len(files.units()) > 5
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert told[-1].done == told[-1].total == files.n_bytes
    assert str(told[-1]) == "tokenised 100 % of 0 MB, 0:00 left"
    before = tree(one.folder)
    own_cache.rename(tmp_path / "first")
    several = make_pack(files, JOINT, n_processes=2)
    assert tree(several.folder) == before
    assert several.sha256 == one.sha256
    monkeypatch.setattr(FileSource, "units", None)  # nothing is cut, and nothing tokenised
    assert make_pack(files, JOINT).folder == several.folder


def test_a_compressed_file_is_one_unit_whatever_its_ending_is_written_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_units(monkeypatch, 8)
    with gzip.open(tmp_path / "UP.TXT.GZ", "wt", encoding="utf-8") as file:
        file.write("".join(f"{n * n * 7919}\n" for n in range(500)))
    made = source_of(tmp_path / "UP.TXT.GZ")
    assert made.is_compressed
    assert made.n_bytes_of_text > made.n_bytes
    assert len(made.units()) == 1
    assert len(list(all_examples(made))) == 500


def test_who_waits_for_another_packing_says_so(tmp_path: Path, own_cache: Path) -> None:
    files = source_of(write_lines(tmp_path / "a.txt", ["a b", "c"]))
    done = make_pack(files, JOINT)
    told: list[Progress] = []
    lock = FileLock(done.folder.with_name(f"{done.folder.name}.lock"), thread_local=False)

    def waited(progress: Progress) -> None:
        told.append(progress)
        end.rename(done.folder / shards.PACK_FILE)
        lock.release()

    lock.acquire()
    end = (done.folder / shards.PACK_FILE).rename(tmp_path / "end")  # it is being packed
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(make_pack, files, JOINT, on_progress=waited).result(30)
    assert found.folder == done.folder
    assert [str(one) for one in told] == ["0 MB are tokenised by another process: waiting for it"]


def test_other_files_or_settings_are_other_data_and_other_tokenizers_other_packs(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.txt", ["a b", "c"])
    sources = [
        source_of(path),
        source_of(path, unknown="replace"),
        source_of(path, is_whole=True),
        source_of(path, origin_column="set"),
        source_of(path, path),
    ]
    hashes = [make.content_hash(one) for one in sources]
    assert len(set(hashes)) == len(sources)
    moved = write_lines(tmp_path / "b.txt", ["a b", "c"])
    assert make.content_hash(source_of(moved)) == hashes[0]
    other = SymbolTokenizer("words", list("hgfedcba"))
    first, second = (make_pack(source_of(path), one) for one in (JOINT, Tokenizers(other, other)))
    assert first.folder != second.folder
    assert first.sha256 == second.sha256 == hashes[0]
    assert make.content_hash(source_of(write_lines(path, ["a b", "d"]))) not in hashes


def test_a_changed_large_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "LARGE_BYTES", 0)
    path = write_lines(tmp_path / "a.txt", ["a b"])
    os.utime(path, ns=(10**18, 10**18))  # long ago
    first = file_hashes.file_hash(path)
    monkeypatch.setattr(file_hashes, "sha256_of", lambda path: "read again")
    assert file_hashes.file_hash(path) == first
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert file_hashes.file_hash(path) == "read again"


def test_a_file_may_be_read_by_several_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "LARGE_BYTES", 0)
    path = write_lines(tmp_path / "a.txt", ["a b"])
    os.utime(path, ns=(10**18, 10**18))
    monkeypatch.setattr(file_hashes, "_noted", lambda note, seen: None)  # nobody has noted it yet
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: file_hashes.file_hash(path), range(60)))
    assert len(found) == 1


def test_a_file_that_has_just_been_written_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "LARGE_BYTES", 0)
    path = write_lines(tmp_path / "a.txt", ["a b"])
    ahead = time.time_ns() + 10**12
    os.utime(path, ns=(ahead, ahead))
    file_hashes.file_hash(path)
    monkeypatch.setattr(file_hashes, "sha256_of", lambda path: "read again")
    assert file_hashes.file_hash(path) == "read again"


def bad_inputs(tmp_path: Path) -> Iterator[tuple[FileSource, str]]:
    lines = ["a b"] * 50
    path = write_lines(tmp_path / "a.txt", [*lines, "a x"])
    yield source_of(path), f"{path}, line 51: 'x' is not among the 8 words of the vocabulary"
    path = write_json_lines(tmp_path / "a.jsonl", [{"text": "a"}] * 40 + [{"texts": "b"}])
    yield source_of(path), f"{path}, line 41: no key 'text' (data.text_field) among 'texts'; did you mean 'texts'?"
    path = write_json_lines(tmp_path / "b.jsonl", [{"text": "a", "set": "x"}, {"text": "a"}])
    yield (
        source_of(path, column="set"),
        f"{path}, line 2: the example has no column 'set' (data.mixture.column), but none",
    )
    path = write_lines(tmp_path / "c.txt", ["", " "])
    yield source_of(path), f"{path}: no examples"
    path = write_lines(tmp_path / "d.txt", [" "])
    yield source_of(path, is_whole=True), f"{path}: no text"
    yield source_of(tmp_path / "a.txt", tmp_path / "a.jsonl"), "needs files of one kind, not ['json', 'text']"


@pytest.mark.parametrize("n_processes", [1, 2])
def test_bad_input_is_named_with_file_and_line(
    tmp_path: Path, n_processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_units(monkeypatch, 30)
    inputs = list(bad_inputs(tmp_path))
    for given_source, message in inputs if n_processes == 1 else inputs[:1]:
        with pytest.raises(DataError) as caught:
            make_pack(given_source, JOINT, n_processes=n_processes)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_process_that_has_died_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 30)
    files = source_of(write_lines(tmp_path / "a.txt", ["a b"] * 50))
    monkeypatch.setattr(make.sys, "executable", "/bin/false")
    with pytest.raises(DataError, match=r"a process that tokenises has ended \(out of memory\?"):
        make_pack(files, JOINT, n_processes=2)


def test_a_file_that_changes_while_it_is_tokenised_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_lines(tmp_path / "a.txt", ["a b"] * 20)
    do = unit.Work.do

    def changing(self: unit.Work, number: int, one: source.Unit) -> None:
        do(self, number, one)
        write_lines(path, ["a b"] * 21)

    monkeypatch.setattr(unit.Work, "do", changing)
    with pytest.raises(DataError, match=r"a\.txt: was changed while it was tokenised; the same command begins anew"):
        make_pack(source_of(path), JOINT, n_processes=1)
    monkeypatch.setattr(unit.Work, "do", do)
    assert make_pack(source_of(path), JOINT, n_processes=1).n_texts == 21


def test_a_damaged_pack_says_what_to_do(tmp_path: Path) -> None:
    files = source_of(write_lines(tmp_path / "a.txt", ["a b", "c"]))
    folder = make_pack(files, JOINT).folder
    (folder / "000000-0.target.ids").write_bytes(b"\0\0")
    with pytest.raises(DataError) as caught:
        make_pack(files, JOINT)
    assert str(caught.value) == (
        f"{folder}/000000-0.target.*: a file is missing, or has another size; delete {folder}, and it is made again"
    )
    (folder / shards.PACK_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="is damaged: KeyError"):
        Pack(folder)


def test_tokenizers_learn_from_an_even_share_of_every_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 1000)
    files = source_of(*(write_lines(tmp_path / f"{name}.txt", [f"{name} {n:03}" for n in range(500)]) for name in "ab"))
    everything = list(all_examples(files))
    assert list(sample(files)) == everything
    few = list(sample(files, 300))
    n_units = len(files.units())
    assert n_units > 4
    assert n_units <= len(few) <= 2 * 300 // 5
    assert {example.target[0] for example in few} == {"a", "b"}
    assert all(example in everything for example in few)


def test_whole_files_tables_and_origins_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 10)
    path = write_lines(tmp_path / "a.txt", ["a b", "", "c"])
    pack = make_pack(source_of(path, is_whole=True), Tokenizers(*[SymbolTokenizer("characters", list("abc \n"))] * 2))
    (row,) = (packed_rows(pack, DataConfig(), CAUSAL, JOINT, name="t")[i] for i in range(pack.n_texts))
    assert isinstance(row, Row)
    assert len(row.target_ids) == len("a b\n\nc")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow (the extra `data`)")
    import pyarrow

    texts = [f"{'abcdefgh'[n % 8]} a" for n in range(40)]
    table = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": texts, "n": list(range(40))}), table, row_group_size=10)
    files = source_of(table)
    assert len(files.units()) == 4
    found = packed_rows(make_pack(files, JOINT, n_processes=2), DataConfig(), CAUSAL, JOINT, name="t")
    expected = encode_rows([Example(None, t) for t in texts], JOINT, DataConfig(), CAUSAL, training=True, name="t")
    assert [found[i] for i in range(len(found))] == list(expected)


@pytest.mark.parametrize(
    "form", ["txt.gz", "txt.zst", "jsonl.gz", "jsonl.zst", "tsv", "parquet", "saved", "split", "glob"]
)
def test_texts_of_every_form_are_packed_as_those_held_in_memory(tmp_path: Path, form: str) -> None:
    texts = [f"{'abcdefgh'[n % 8]} {'abcdefgh'[n * 5 % 7]}" for n in range(40)]
    lines = {"txt": texts, "jsonl": [json.dumps({"text": text}) for text in texts], "tsv": ["text", *texts]}
    kind, _, packed_by = form.partition(".")
    path = tmp_path / f"a.{form}"
    if kind in lines:
        content = "".join(line + "\n" for line in lines[kind]).encode()
        if packed_by == "zst":
            pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow (the extra `data`)")
            content = pyarrow.compress(content, codec="zstd", asbytes=True)
        path.write_bytes(gzip.compress(content) if packed_by == "gz" else content)
    elif form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow (the extra `data`)")
        import pyarrow

        parquet.write_table(pyarrow.table({"text": texts}), path, compression="zstd")
    elif form == "glob":
        for name, own in (("1.txt", texts[:15]), ("2.txt", texts[15:])):
            write_lines(tmp_path / name, own)
        path = tmp_path / "*.txt"
    else:
        datasets = pytest.importorskip("datasets", reason="needs datasets (the extra `data`)")
        saved = datasets.Dataset.from_list([{"text": text} for text in texts])
        path = tmp_path / "saved"
        (saved if form == "saved" else datasets.DatasetDict({"train": saved})).save_to_disk(str(path))
        path = path if form == "saved" else path / "train"
    files = source_of(*find_files(path))
    found = packed_rows(make_pack(files, JOINT, n_processes=1), DataConfig(), CAUSAL, JOINT, name="t")
    expected = encode_rows([Example(None, t) for t in texts], JOINT, DataConfig(), CAUSAL, training=True, name="t")
    assert [found[i] for i in range(len(found))] == list(expected)


def test_whole_files_of_any_kinds_are_packed_together(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl"):
        (tmp_path / name).write_text("a b", encoding="utf-8")
    files = FileSource(tuple((path.stem, path) for path in sorted(tmp_path.glob("*.*"))), [], is_whole=True)
    assert make_pack(files, JOINT, n_processes=1).n_texts == 2


def test_what_has_a_name_of_its_own_may_be_of_another_kind(tmp_path: Path) -> None:
    text = write_lines(tmp_path / "a.txt", ["a b"])
    records = write_json_lines(tmp_path / "b.jsonl", [{"text": "c"}])
    pack = make_pack(source_of(text, records, origin_column="set", column="set"), JOINT, n_processes=1)
    assert (pack.n_texts, pack.n_tokens) == (2, 3 + 2)


def test_the_sample_of_compressed_text_is_no_larger(tmp_path: Path) -> None:
    path = tmp_path / "a.txt.gz"
    drawn = np.random.default_rng(0).choice(list("abcdefgh"), (3000, 3))
    path.write_bytes(gzip.compress("".join(" ".join(words) + "\n" for words in drawn).encode()))
    files = source_of(path)
    n_bytes = 2 * files.n_bytes
    assert files.n_bytes < n_bytes < files.n_bytes_of_text
    assert n_bytes // 5 <= len(list(sample(files, n_bytes))) <= n_bytes // 5 + 1


def test_large_vocabularies_have_wide_ids(tmp_path: Path) -> None:
    many = SymbolTokenizer("words", [f"w{n}" for n in range(70_000)])
    path = write_lines(tmp_path / "a.txt", ["w69999 w0"])
    found = packed_rows(make_pack(source_of(path), Tokenizers(many, many)), DataConfig(), CAUSAL, JOINT, name="t")
    row = found[0]
    assert isinstance(row, Row)
    assert row.target_ids == [70_003, 4]


def test_a_stream_is_read_over_its_files_and_few_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_units(monkeypatch, 4)
    monkeypatch.setattr(shards, "_MOST_MAPS", 3)
    texts = [f"{'abcdefgh'[n % 8]} {'abcdefgh'[n % 3]}" for n in range(40)]
    pack = make_pack(source_of(write_lines(tmp_path / "a.txt", texts)), JOINT, n_processes=1)
    stream = pack.stream("", "target")
    whole = [i for text in texts for i in [*WORDS.encode(text), EOS_ID]]
    for start in range(0, len(whole), 7):
        for end in (start, start + 1, len(whole)):
            assert stream.take(start, end) == whole[start:end]
    assert pack._mapped.cache_info().currsize == 3


def test_processes_that_tokenise_import_no_torch() -> None:
    program = "import sys, ostinato.data.packs.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
