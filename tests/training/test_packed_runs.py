"""Runs whose training split is read from a pack: they are those of rows in memory, resumed at any update."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import launched
import pytest
import torch
from kept_tokenizers import keep_tokenizer
from safetensors.torch import load_file
from tiny_runs import last_checkpoint, tiny_recipe, weights
from tokenizers import Tokenizer, models, pre_tokenizers

from ostinato.config.data import DataConfig
from ostinato.config.load import check_recipe
from ostinato.config.recipe import Recipe
from ostinato.data.batching import StoredRows
from ostinato.data.packs import make, source
from ostinato.data.packs.files import FileSource
from ostinato.data.packs.make import OnProgress, Progress
from ostinato.data.sources import fields_of
from ostinato.data.tokenizers import Tokenizers
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.tasks import packing
from ostinato.tasks.registry import build_task
from ostinato.tasks.vocabulary import size_model
from ostinato.training import Reporter, train
from ostinato.training.prepare import prepare
from ostinato.training.processes import Processes
from ostinato.training.rundir import RunDirectory

# Biases of keys change nothing but by rounding, which Adam makes large.
STACK = {"n_steps": 1, "self_attention": {"n_heads": 2, "bias": False}, "ffn": {"d_ff": 16, "dropout": 0.1}}
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "two", "dogs", "run", "far", "away", "from", "home"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    for module in (source, make):
        monkeypatch.setattr(module, "UNIT_BYTES", 1000)


def write_texts(folder: Path) -> None:
    generator = random.Random(0)
    for name, n in (("texts/a", 60), ("texts/b", 40), ("dev", 10)):
        path = folder / f"{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [" ".join(generator.choices(WORDS, k=generator.randint(1, 12))) for _ in range(n)]
        path.write_text("\n".join([*lines, " ".join(WORDS)]) + "\n", encoding="utf-8")


def recipe_of(folder: Path, *, data: dict[str, Any] | None = None, dropout: float = 0.1, **training: Any) -> Recipe:
    settings: dict[str, Any] = {"n_updates": 6, "log_every": 1, "evaluate_every": 6, "save_every": 1, "accumulate": 2}
    settings |= {"device": "cpu", "n_threads": 1, "optimizer": {"lr": 0.01}, "schedule": {"warmup": 2}}
    files = {"train": str(folder / "texts"), "dev": str(folder / "dev.txt")}
    stack = STACK | {"ffn": {"d_ff": 16, "dropout": dropout}}
    return check_recipe(
        {
            "task": {"kind": "files", "model_kind": "language_model"},
            "data": files | {"tokens_per_batch": 64, "packed": "always"} | (data or {}),
            "model": {"kind": "language_model", "d_model": 8, "dropout": dropout, "decoder": stack},
            "training": settings | training,
            "evaluation": {"splits": ["dev"]},
        }
    )


BLOCKS = {"block_length": 8, "block_attention": "text"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [
        {"tokenizer": {"kind": "bpe", "vocab_size": 280}} | BLOCKS,
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"block_length": 16}, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_that_of_rows_in_memory(tmp_path: Path, how: dict[str, Any]) -> None:
    write_texts(tmp_path)
    results = {}
    for packed in ("always", "never"):
        recipe = recipe_of(tmp_path, data=how | {"packed": packed})
        results[packed] = train(recipe, tmp_path / packed)
    assert weights(tmp_path / "always") == weights(tmp_path / "never")
    for name in ("metrics.jsonl", "tokenizers/joint.json"):
        assert (tmp_path / "always" / name).read_bytes() == (tmp_path / "never" / name).read_bytes()
    described = json.loads((tmp_path / "always" / "data.json").read_text(encoding="utf-8"))
    assert described["splits"]["train"]["n"] == 102
    assert described["splits"]["train"]["packed"] is True
    assert {Path(file["path"]).name for file in described["files"]} == {"a.txt", "b.txt", "dev.txt"}
    assert results["always"]["data_sha256"]["dev"] == results["never"]["data_sha256"]["dev"]
    assert results["always"]["data_sha256"]["train"] != results["never"]["data_sha256"]["train"]


@pytest.mark.parametrize("streaming", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_run_on_a_data_set_is_that_of_rows_in_memory_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    pytest.importorskip("datasets", reason="needs the extra hf")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "datasets"))  # of other processes
    write_texts(tmp_path)
    given = {"hf": str(tmp_path / "texts"), "split": "train", "streaming": streaming}
    how = BLOCKS | {"train": given, "tokens_per_batch": 128}
    train(recipe_of(tmp_path, data=how | {"packed": "never"}), tmp_path / "never")
    assert not (tmp_path / "cache" / "packed").exists()
    with monkeypatch.context() as patch:
        patch.setattr(packing, "AUTO_BYTES", 0)
        recipe = recipe_of(tmp_path, data=how | {"packed": "auto"})
        with pytest.raises(_Stopped):
            train(recipe, tmp_path / "packed", reporter=_StopAfter(3))
    train(recipe, tmp_path / "packed", resume=True)
    assert weights(tmp_path / "packed") == weights(tmp_path / "never")
    described = json.loads((tmp_path / "packed" / "data.json").read_text(encoding="utf-8"))["splits"]["train"]
    assert (described["n"], described["packed"]) == (102, True)
    (tmp_path / "texts" / "a.txt").write_text("another text\n", encoding="utf-8")
    with pytest.raises(CheckpointError, match="the examples of 'train' are not those the run was started with"):
        train(recipe_of(tmp_path, data=how | {"packed": "auto"}, n_updates=7), tmp_path / "packed", resume=True)


def test_what_is_streamed_from_a_hub_counts_as_large_and_a_bucket_has_no_pack(tmp_path: Path) -> None:
    write_texts(tmp_path)
    for name, is_packed in (("owner/texts", True), ("hf://datasets/owner/texts", True), ("hf://buckets/a/b", False)):
        given = {"hf": name, "split": "train", "streaming": True}
        recipe = recipe_of(tmp_path, data={"train": given, "packed": "auto"})
        assert (packing.pack_source(recipe, build_task(recipe.task, recipe.data)) is not None) == is_packed


def test_parallel_text_is_trained_on_from_a_pack(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.txt" for name in ("sources", "targets")]
    for path in paths:
        path.write_text("".join(f"{path.stem} {n % 3}\n" for n in range(9)), encoding="utf-8")
    plain = tmp_path / "lines.jsonl"
    plain.write_text("".join(f'{{"source": "sources {n % 3}", "target": "targets {n % 3}"}}\n' for n in range(9)))
    for name, given in (("files", [str(path) for path in paths]), ("lines", str(plain))):
        recipe = recipe_of(tmp_path, data={"train": given, "dev": str(plain)}, n_updates=2)
        recipe = recipe.model_copy(update={"task": recipe.task.model_copy(update={"model_kind": "seq2seq"})})
        train(recipe, tmp_path / name)
        described = json.loads((tmp_path / name / "data.json").read_text(encoding="utf-8"))["splits"]["train"]
        assert (described["n"], described["packed"]) == (9, True)
    assert weights(tmp_path / "files") == weights(tmp_path / "lines")
    for wrong in ([str(paths[0])], [*map(str, paths), str(paths[0])]):
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"train": wrong})})
        with pytest.raises(DataError, match="plain text has no targets: give JSON lines"):
            train(recipe, tmp_path / "wrong")


class _Stopped(Exception):
    pass


class _StopAfter(Reporter):
    def __init__(self, update: int) -> None:
        self._update = update

    def on_save(self, update: int, directory: Path) -> None:
        if update == self._update:
            raise _Stopped


@pytest.mark.parametrize(
    "update", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_a_run_goes_on_at_any_update_bit_for_bit_also_where_its_pack_was_deleted(tmp_path: Path, update: int) -> None:
    write_texts(tmp_path)
    # Six updates of two batches are more than an epoch.
    recipe = recipe_of(tmp_path, data=BLOCKS | {"tokens_per_batch": 128})
    train(recipe, tmp_path / "whole")
    with pytest.raises(_Stopped):
        train(recipe, tmp_path / "stopped", reporter=_StopAfter(update))
    shutil.rmtree(tmp_path / "cache")
    train(recipe, tmp_path / "stopped", resume=True)
    assert weights(tmp_path / "stopped") == weights(tmp_path / "whole")
    state = [last_checkpoint(tmp_path / name) / "state.safetensors" for name in ("stopped", "whole")]
    assert state[0].read_bytes() == state[1].read_bytes()
    progress = json.loads((last_checkpoint(tmp_path / "whole") / "state.json").read_text(encoding="utf-8"))["progress"]
    assert progress["batches"]["epoch"] == 1


@pytest.mark.parametrize("n_before", [17, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1, 40))])
def test_processes_have_disjoint_rows_of_the_batches_of_one_whatever_their_number(
    tmp_path: Path, n_before: int
) -> None:
    write_texts(tmp_path)

    def batches() -> Any:
        run = RunDirectory(tmp_path / str(len(list(tmp_path.iterdir()))))
        prepared = prepare(recipe_of(tmp_path, data=BLOCKS), run, False, None)
        assert isinstance(prepared.batches.rows, StoredRows)
        run.close()
        return prepared.batches

    first = batches()
    for _ in range(n_before):
        next(first)
    state, expected = first.state(), list(islice(first, 30))
    for n in (1, 2, 3):
        of_ranks = [batches() for _ in range(n)]
        for one in of_ranks:
            one.restore(state)
        for batch in expected:
            shares = [Processes(rank, n).shard(next(one)) for rank, one in enumerate(of_ranks)]
            taken = [i for share in shares for i in share.indices]
            assert sorted(taken) == sorted(batch.indices)
            for rank, share in enumerate(shares):
                assert share.indices == batch.indices[rank::n]
                assert torch.equal(share.labels_BT, batch.labels_BT[rank::n])


@pytest.mark.slow
def test_a_run_of_two_processes_goes_on_in_one_and_is_that_of_one(tmp_path: Path) -> None:
    write_texts(tmp_path)
    for code, said in launched.launch(Path(__file__), str(tmp_path), n=2):
        assert code == 0, said
    # The processes end with code 0 whatever stopped them: this is where two of them were stopped.
    state = json.loads((last_checkpoint(tmp_path / "together") / "state.json").read_text(encoding="utf-8"))
    assert (state["progress"]["update"], state["processes"]) == (3, 2)
    recipe = recipe_of(tmp_path, data=BLOCKS, dropout=0.0)
    train(recipe, tmp_path / "together", resume=True)
    train(recipe, tmp_path / "alone")
    found, expected = (
        load_file(last_checkpoint(tmp_path / name) / "model.safetensors") for name in ("together", "alone")
    )
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=1e-5, rtol=1e-4)


def _half_a_run(folder: Path) -> None:
    """Train a few updates, as one of several processes."""
    with suppress(Exception):  # one is stopped, and then the other fails
        train(recipe_of(folder, data=BLOCKS, dropout=0.0), folder / "together", reporter=_StopAfter(3))


def test_other_files_than_those_of_the_run_are_refused_before_anything_is_tokenised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path)
    recipe = recipe_of(tmp_path, n_updates=1)
    train(recipe, tmp_path / "run")
    with (tmp_path / "texts" / "a.txt").open("a", encoding="utf-8") as stream:
        stream.write("one more\n")
    monkeypatch.setattr("ostinato.training.training_data.make_pack", None)
    with pytest.raises(CheckpointError, match="the examples of 'train' are not those the run was started with"):
        train(recipe_of(tmp_path, n_updates=2), tmp_path / "run", resume=True)


def test_a_run_goes_on_as_it_was_begun_whatever_is_large_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path)
    recipe = recipe_of(tmp_path, data={"packed": "auto"}, n_updates=4)
    with pytest.raises(_Stopped):
        train(recipe, tmp_path / "run", reporter=_StopAfter(1))
    monkeypatch.setattr(packing, "AUTO_BYTES", 0)
    train(recipe, tmp_path / "run", resume=True)
    assert not (tmp_path / "cache" / "packed").exists()
    train(recipe, tmp_path / "large")
    assert list((tmp_path / "cache" / "packed").iterdir())
    assert weights(tmp_path / "large") == weights(tmp_path / "run")
    monkeypatch.setattr(packing, "AUTO_BYTES", 10**12)
    train(recipe_of(tmp_path, data={"packed": "auto"}, n_updates=5), tmp_path / "large", resume=True)


def test_what_cannot_be_packed_says_why(tmp_path: Path) -> None:
    letters = tiny_recipe(tmp_path / "letters")
    head: dict[str, Any] = {"kind": "encoder", "d_model": 8, "head": {"kind": "classification"}, "encoder": STACK}
    files = {"train": str(letters.data.train), "dev": str(letters.data.dev), "packed": "always"}
    for task, model, reason in (
        ({"kind": "files"}, head, "this one has a head for classification"),
        ({"kind": "classification"}, head, "is for the tasks files and translation"),
    ):
        with pytest.raises(ConfigError, match=reason):
            train(check_recipe({"task": task, "data": files, "model": model}), tmp_path / "other")


def test_tokenizers_of_a_pack_are_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path)
    recipe = recipe_of(tmp_path, data={"tokenizer": {"kind": "bpe", "vocab_size": 280}}, n_updates=1)
    train(recipe, tmp_path / "first")
    monkeypatch.setattr(packing, "_train", None)
    for module in (packing, make):  # what is there is read also where nothing may be written
        monkeypatch.setattr(module, "held", None)
    train(recipe, tmp_path / "second")
    assert size_model(recipe).target == 280
    (folder,) = (path for path in (tmp_path / "cache" / "packed" / "tokenizers").iterdir() if path.is_dir())
    (folder / "joint.json").write_text("{", encoding="utf-8")
    monkeypatch.undo()
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    task = build_task(recipe.task, recipe.data)
    files = packing.pack_source(recipe, task)
    assert files is not None
    assert packing.tokenizers_of(files, recipe.data).source.vocab_size == 280


def test_no_tokenizer_is_kept_of_a_file_that_changes_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "lines.jsonl"
    before, after = '{"source": "a b", "target": "x y"}\n', '{"source": "a b", "target": "p q r"}\n'
    lines.write_text(before * 3, encoding="utf-8")
    data = DataConfig.model_validate({"train": str(lines), "tokenizer": {"kind": "words"}})
    files, read = FileSource((("lines", lines),), fields_of(data, "seq2seq")), packing._train
    n_words = read(files, data, None).target.vocab_size

    def changing(*given: Any) -> Any:
        lines.write_text(after * 3, encoding="utf-8")
        return read(*given)

    monkeypatch.setattr(packing, "_train", changing)
    with pytest.raises(DataError, match=r"lines\.jsonl: was changed while it was read for the tokenizer"):
        packing.tokenizers_of(files, data)
    monkeypatch.setattr(packing, "_train", read)
    lines.write_text(before * 3, encoding="utf-8")
    assert packing.tokenizers_of(files, data).target.vocab_size == n_words


def test_another_file_of_a_tokenizer_gives_other_tokenizers(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"source": "a b", "target": "x y"}\n' * 3, encoding="utf-8")
    vocabularies = []
    for name, words in (("one", ["x", "y"]), ("other", ["y", "z", "x"])):
        tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.save(str(tmp_path / f"{name}.json"))
        target = {"kind": "file", "path": str(tmp_path / f"{name}.json")}
        data = DataConfig.model_validate({"train": str(lines), "target_tokenizer": target})
        files = FileSource((("lines", lines),), fields_of(data, "seq2seq"))
        vocabularies.append(packing.tokenizers_of(files, data).target.vocab_size)
    assert vocabularies[1] == vocabularies[0] + 1


def test_other_special_symbols_beside_a_kept_tokenizer_give_other_tokenizers(tmp_path: Path) -> None:
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"source": "a b", "target": "the cat"}\n' * 3, encoding="utf-8")
    kept = keep_tokenizer(tmp_path / "kept")
    target = {"kind": "hf", "path": str(kept)}
    data = DataConfig.model_validate({"train": str(lines), "target_tokenizer": target})
    files = FileSource((("lines", lines),), fields_of(data, "seq2seq"))
    first = packing.tokenizers_of(files, data).target.special_ids
    names = kept / "tokenizer_config.json"
    names.write_text(json.dumps(json.loads(names.read_text()) | {"eos_token": "<s>"}), encoding="utf-8")
    assert packing.tokenizers_of(files, data).target.special_ids.eos == first.bos != first.eos


def test_runs_that_begin_at_the_same_time_train_the_tokenizers_of_a_pack_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path)
    recipe = recipe_of(tmp_path, data={"tokenizer": {"kind": "bpe", "vocab_size": 280}}, n_updates=1)
    files = packing.pack_source(recipe, build_task(recipe.task, recipe.data))
    assert files is not None
    trained: list[int] = []
    own = packing._train

    def counted(source: FileSource, data: DataConfig, on_progress: OnProgress | None) -> Tokenizers:
        trained.append(1)
        return own(source, data, on_progress)

    monkeypatch.setattr(packing, "_train", counted)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: packing.tokenizers_of(files, recipe.data).source.vocab_size, range(4)))
    assert found == [280] * 4
    assert len(trained) == 1


def test_a_bad_line_is_an_error_before_there_is_a_run(tmp_path: Path) -> None:
    write_texts(tmp_path)
    path = tmp_path / "texts" / "b.txt"
    path.write_bytes(path.read_bytes() + b"\xff\xfe\n")
    with pytest.raises(DataError, match=rf"{path}, line 42: not UTF-8"):
        train(recipe_of(tmp_path), tmp_path / "run")
    assert not (tmp_path / "run" / "recipe.yaml").exists()


if __name__ == "__main__":
    _half_a_run(Path(sys.argv[1]))


@pytest.mark.parametrize("kind", ["bpe", "words"])
def test_how_far_texts_are_read_for_a_tokenizer_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    write_texts(tmp_path)
    recipe = recipe_of(tmp_path, data={"tokenizer": {"kind": kind, "vocab_size": 280}}, n_updates=1)
    files = packing.pack_source(recipe, build_task(recipe.task, recipe.data))
    assert files is not None
    monkeypatch.setattr(packing, "_TOLD_EVERY", files.n_bytes // 4)
    told: list[Progress] = []
    packing.tokenizers_of(files, recipe.data, told.append)
    assert 2 <= len(told) <= 4
    assert [one.done for one in told] == sorted(one.done for one in told)
    assert {one.total for one in told} == {files.n_bytes}
    assert str(told[0]).startswith("read for the tokenizer ")


def test_compressed_files_count_as_what_they_hold(tmp_path: Path) -> None:
    lines = "".join(f"a line of text, number {n}\n" for n in range(1000)).encode()
    (tmp_path / "plain.txt").write_bytes(lines)
    (tmp_path / "small.txt.gz").write_bytes(gzip.compress(lines))
    plain, small = (FileSource(((path.name, path),), []) for path in sorted(tmp_path.iterdir()))
    assert plain.n_bytes_of_text == plain.n_bytes == len(lines)
    assert small.n_bytes_of_text == 4 * small.n_bytes
