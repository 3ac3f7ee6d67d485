from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers as library
from tiny_sweeps import SMALL, stamps, tiny

from ostinato.config.recipe import Recipe
from ostinato.config.sweep import SweepConfig
from ostinato.config.training import TrainingConfig
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.experiments.sweep import run_key as keys
from ostinato.experiments.sweep.import_runs import import_runs
from ostinato.experiments.sweep.rows import read_sweep, results_folder
from ostinato.experiments.sweep.run_key import DataHashes, key_of_run, run_key
from ostinato.experiments.sweep.runs import plan_runs
from ostinato.experiments.sweep.schedule import SweepError, run_sweep, sweep_rows
from ostinato.tasks.recipes import load_recipe
from ostinato.training import train
from ostinato.training.prepare import prepare
from ostinato.training.rundir import RunDirectory

HASHES = {"train": "a", "dev": "b", "test": "c"}


def key(*overrides: str, recipe: str = "digits/transformer", **changes: Any) -> str:
    return run_key(load_recipe(recipe, overrides), HASHES, **changes)


def test_what_describes_a_run_or_says_where_it_runs_is_not_in_its_key() -> None:
    free = ["name=x", "description=y", "training.device=cpu", "training.n_threads=7", "training.keep_last=3"]
    sizes = ["model.source_vocab_size=13", "model.target_vocab_size=13"]
    assert key(*free, *sizes, "task.operation=reverse") == key()
    # A file in the place of train makes the task's n_train useless, so that it is left out.
    assert key("data.train=elsewhere.jsonl") == key("data.train=somewhere.jsonl")


@pytest.mark.parametrize(
    "change",
    [
        "seed=2",
        "training.optimizer.lr=0.1",
        "model.d_model=128",
        "evaluation.by=[]",
        "task.n_train=7",
        "decoding.beam=1",
    ],
)
def test_what_decides_the_result_is_in_the_key(change: str) -> None:
    assert (key(change) == key()) == (change == "decoding.beam=1")  # the recipe's own


class _Later(TrainingConfig):
    """A later version's settings: one more, at its default."""

    new_setting: int = 7


def test_a_setting_that_is_added_later_leaves_keys_as_they_are_while_it_is_at_its_default() -> None:
    recipe = load_recipe("digits/transformer")

    def later(**changes: Any) -> dict[str, Any]:
        training = _Later(**recipe.training.model_dump() | changes)
        return keys.key_settings(recipe.model_copy(update={"training": training}))

    # The group is not of its default's type any more, in this test alone.
    before = keys.key_settings(recipe) | {"training": "set"}
    assert later() == later(new_setting=7) == before
    assert later(new_setting=8) == before | {"training.new_setting": 8}


def test_a_new_name_of_a_setting_leaves_keys_as_they_are() -> None:
    # Computed when `top_k` was called `k`.
    old = "e16149e6645eee9046022b67b130f7aed5bf4c3c1760f7281b3571f982edf1a2"
    assert key(recipe="logical-inference/universal-sparse", version="0.1.0") == old
    shown = keys.key_settings(load_recipe("x-moe/small/smoe", ["model.encoder.sparse_layer.top_k=2"]))
    assert shown["model.encoder.sparse_layer.top_k"] == 2


def test_groups_are_told_apart_by_their_kind_and_from_no_group_even_where_all_is_at_its_default() -> None:
    positions = [key(f"model.encoder.positions={{kind: {kind}}}") for kind in ("none", "sinusoidal", "coordinates")]
    assert len(set(positions)) == 3
    assert key("data.target_tokenizer={kind: words}", "model.tie_embeddings=none") != key("model.tie_embeddings=none")
    assert key("training.optimizer.kind=adam") != key("training.optimizer.kind=adamw") == key()


@pytest.mark.slow
def test_a_directory_that_holds_another_run_than_its_name_says_is_refused(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1])
    run_sweep(sweep, tmp_path)
    base, slow = plan_runs(sweep, tmp_path)
    shutil.rmtree(slow.directory)
    shutil.copytree(base.directory, slow.directory)
    with pytest.raises(CheckpointError, match="holds another run than its name says"):
        sweep_rows(sweep, tmp_path)


@pytest.mark.slow
def test_another_run_in_a_directory_is_one_failure_and_the_other_runs_are_done(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1])
    run_sweep(sweep, tmp_path)
    base, slow = plan_runs(sweep, tmp_path)
    shutil.rmtree(slow.directory)
    shutil.copytree(base.directory, slow.directory)
    shutil.rmtree(base.directory)
    with pytest.raises(SweepError, match="holds another run than its name says") as caught:
        run_sweep(sweep, tmp_path)
    assert [run.arm for run, _ in caught.value.failures] == [slow.arm]
    assert base.is_finished


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(None, marks=pytest.mark.slow),
        "model: [",
        pytest.param("task: {kind: gone_away:Task}", marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_recipe_cannot_be_read_is_one_failure(tmp_path: Path, recipe: str | None) -> None:
    sweep = tiny(seeds=[1])
    run_sweep(sweep, tmp_path)
    base, slow = plan_runs(sweep, tmp_path)
    path = base.directory / "recipe.yaml"
    path.unlink()
    if recipe is not None:
        path.write_text(recipe, encoding="utf-8")
    said = f"{re.escape(str(base.directory))} cannot be read as a run: .*: move it away, and run it again"
    with pytest.raises(SweepError, match=said) as caught:
        run_sweep(sweep, tmp_path)
    assert [run.arm for run, _ in caught.value.failures] == [base.arm]
    assert [row["arm"] for row in read_sweep(results_folder(sweep, tmp_path) / "results.jsonl")] == [slow.arm]
    with pytest.raises(CheckpointError, match=said):
        sweep_rows(sweep, tmp_path)


@pytest.mark.slow
def test_a_run_that_keeps_too_few_checkpoints_is_refused_and_the_arm_that_keeps_most_trains_a_shared_one(
    tmp_path: Path,
) -> None:
    few = tiny(seeds=[1], arms=[{"name": "base"}])
    run_sweep(few, tmp_path / "few")
    more = {"name": "more", "set": {"training.keep_last": 3, "training.save_every": 1}}
    best = {"name": "base", "set": {"training.keep_best": 3, "training.save_every": 1}}
    sweep = tiny(seeds=[1], arms=[best, more])
    first, second = plan_runs(sweep, tmp_path / "both")
    assert first.key == second.key
    assert len(run_sweep(sweep, tmp_path / "both")) == 2
    assert len(list(first.directory.glob("checkpoints/update-*"))) == 3
    several = tiny(seeds=[1], arms=[{"name": "base", "set": {"training.keep_last": 3}}])
    why = r"was begun with training\.keep_last=1, and base, seed 1 asks for 3: move it away"
    with pytest.raises(CheckpointError, match=why):
        sweep_rows(several, tmp_path / "few")
    with pytest.raises(SweepError, match=why):
        run_sweep(several, tmp_path / "few")
    # Of a run that is not finished this is said before its training goes on.
    (results,) = (tmp_path / "few").glob("*/results.json")
    results.unlink()
    with pytest.raises(SweepError, match=why):
        run_sweep(several, tmp_path / "few")
    assert not results.exists()


def test_version_data_and_the_start_are_in_the_key() -> None:
    recipe = load_recipe("digits/transformer")
    found = [key(), key(version="0"), key(start="k"), run_key(recipe, HASHES | {"dev": "z"})]
    assert len(set(found)) == 4
    assert len(found[0]) == 64


def test_a_tokenizer_file_is_known_by_its_content(tmp_path: Path) -> None:
    def of(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return key("data.tokenizer.kind=file", f"data.tokenizer.path={tmp_path / name}")

    assert of("a.json", "one") == of("b.json", "one") != of("c.json", "two")


def _tokenizer(path: Path, words: str) -> None:
    vocab = {word: i for i, word in enumerate(["<unk>", *words.split()])}
    model = library.Tokenizer(library.models.WordLevel(vocab, unk_token="<unk>"))
    model.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    model.save(str(path))


def test_the_tokenizer_of_a_run_that_is_there_is_known_by_what_it_was_trained_with(tmp_path: Path) -> None:
    def reading(name: str, arms: int = 2) -> SweepConfig:
        tokenizer = [f"data.tokenizer={{kind: file, path: {tmp_path / name}}}", "data.unknown=replace"]
        both = [{"name": "base"}, {"name": "next", "after": "base"}]
        return tiny(seeds=[1], arms=both[:arms], overrides=[*SMALL, *tokenizer])

    _tokenizer(tmp_path / "tok.json", "0 1 2 3 4 5 6 7 8 9")
    _tokenizer(tmp_path / "other.json", "0 1 2 3")
    store = tmp_path / "store"
    (row,) = run_sweep(reading("tok.json", 1), store)
    # The first version is kept under another name, in its place comes a second: what is there is still what it was.
    shutil.copy(tmp_path / "tok.json", tmp_path / "first.json")
    shutil.copy(tmp_path / "other.json", tmp_path / "tok.json")
    assert sweep_rows(reading("first.json", 1), store) == ([row], [])
    # An arm that is added starts from the run, and keeps its tokenizers.
    rows = run_sweep(reading("first.json"), store)
    assert rows[0] == row
    directories = [store / found["key"][:16] for found in rows]
    assert [key_of_run(directory) for directory in directories] == [found["key"] for found in rows]
    # A run of the first version is none of the second, whatever it calls it.
    planned = plan_runs(reading("tok.json", 1), tmp_path / "new")
    taken, others = import_runs([directories[0]], planned)
    assert (taken, [*others]) == ([], [directories[0]])
    (tmp_path / "tok.json").unlink()
    assert sweep_rows(reading("first.json"), store) == (rows, [])
    assert [run.arm for run in import_runs(directories, plan_runs(reading("first.json"), tmp_path / "new"))[0]] == [
        *("base", "next")
    ]


def with_files(folder: Path, text: str = "a b", more: tuple[str, ...] = ()) -> Recipe:
    folder.mkdir(exist_ok=True)
    for split in ("train", "dev"):
        line = json.dumps({"source": text, "target": split})
        (folder / f"{split}.jsonl").write_text(line + "\n")
    files = [f"data.{split}={folder / split}.jsonl" for split in ("train", "dev")]
    return load_recipe("files/template", [*files, *more])


def test_files_are_known_by_their_examples_and_not_by_their_place(tmp_path: Path) -> None:
    found = []
    for name, text in [("a", "a b"), ("b", "a b"), ("c", "a c")]:
        recipe, hashes = DataHashes().resolve(with_files(tmp_path / name, text))
        found.append(run_key(recipe, hashes))
    assert found[0] == found[1] != found[2]


def test_the_source_is_hashed_once_for_all_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = list[tuple[str, ...]](), keys.source_hash
    keys._reading_source.cache_clear()
    monkeypatch.setattr(keys, "source_hash", lambda parts: calls.append(parts) or original(parts))
    hashes = DataHashes()
    for seed in (1, 2):
        hashes.resolve(with_files(tmp_path).model_copy(update={"seed": seed}))
    assert calls == [("tasks", "data")]


def test_hashes_are_kept_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = with_files(tmp_path / "data")
    first = DataHashes(tmp_path).resolve(recipe)[1]
    read: list[str] = []
    describe = keys.describe_split

    def counted(split: str, examples: Any) -> dict[str, Any]:
        read.append(split)
        return describe(split, examples)

    monkeypatch.setattr(keys, "describe_split", counted)
    assert DataHashes(tmp_path).resolve(recipe)[1] == first
    assert not read
    (note,) = tmp_path.rglob("*.json")
    for damage in ("{", "[]", "{}", "[" * 100_000):
        kept = note.read_bytes()
        note.write_text(damage, encoding="utf-8")
        with pytest.raises(
            DataError, match=rf"^{re.escape(str(note))}: is damaged: .*; delete it, and it is made again$"
        ):
            DataHashes(tmp_path).resolve(recipe)
        note.write_bytes(kept)
    other = DataHashes(tmp_path).resolve(with_files(tmp_path / "data", "a longer text"))[1]
    assert read == ["train", "dev"]
    assert other["train"] != first["train"]


OWN_TASK = """
from ostinato.data.example import Example
from ostinato.tasks.base import Task, TaskConfig


class Copying(Task):
    \"\"\"One example a split.\"\"\"

    config: TaskConfig

    def _examples(self, split):
        yield Example("a b", "a b")
"""


def test_examples_of_a_task_of_ones_own_are_read_again_since_its_code_may_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    overrides = ["task={kind: copying_of_mine:Copying}", "evaluation.splits=[test]"]
    found = []
    for code in (OWN_TASK, OWN_TASK.replace('"a b")', '"b a")'), OWN_TASK):
        (tmp_path / "copying_of_mine.py").write_text(code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, "copying_of_mine", raising=False)
        found.append(DataHashes(tmp_path).resolve(load_recipe("digits/transformer", overrides))[1])
    assert found[0] == found[2]
    assert all(found[0][split] != found[1][split] for split in ("train", "dev", "test"))


@pytest.mark.parametrize("packed", ["never", "always"])
def test_files_in_a_folder_are_seen_to_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: str) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    recipe = with_files(tmp_path / "data")
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"source": "a b", "target": "train dev"}\n', encoding="utf-8")
    data = recipe.data.model_copy(update={"train": str(folder), "packed": packed})
    recipe = recipe.model_copy(update={"data": data})
    first = DataHashes(tmp_path).resolve(recipe)[1]
    (folder / "b.jsonl").write_text('{"source": "b", "target": "dev"}\n', encoding="utf-8")
    second = DataHashes(tmp_path).resolve(recipe)[1]
    assert (second["dev"], second["train"] != first["train"]) == (first["dev"], True)
    run = RunDirectory(tmp_path / "run")
    prepare(recipe, run, False, None)
    assert run.data_hashes() == second
    run.close()


def test_packs_that_are_read_otherwise_have_other_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE", str(tmp_path / "cache"))
    recipe, hashes = with_files(tmp_path / "data"), DataHashes(tmp_path)
    found = []
    for unknown in ("error", "replace"):
        data = recipe.data.model_copy(update={"packed": "always", "unknown": unknown})
        found.append(hashes.resolve(recipe.model_copy(update={"data": data}))[1]["train"])
    assert found[0] != found[1]


def test_a_run_says_the_key_it_was_planned_with_also_where_it_starts_from_another(tmp_path: Path) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}, {"name": "next", "after": "base"}])
    run_sweep(sweep, tmp_path)
    runs = plan_runs(sweep, tmp_path)
    assert [key_of_run(run.directory) for run in runs] == [run.key for run in runs]
    assert runs[1].recipe.training.init_from == str(runs[0].directory)


def test_runs_of_a_folder_that_was_moved_are_taken_with_those_that_they_start_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = tiny(seeds=[1], arms=[{"name": "base"}, {"name": "next", "after": "base"}])
    run_sweep(sweep, tmp_path / "old")
    base, next_run = (run.directory.name for run in plan_runs(sweep, tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved" / next_run, tmp_path / "alone" / next_run)
    planned = plan_runs(sweep, tmp_path / "new")
    said = f"{tmp_path}/alone/{next_run} began from {tmp_path}/old/{base}, which holds no run, and whose key is part"
    with pytest.raises(ConfigError, match="alone: holds no run whose address can be computed"):
        import_runs([tmp_path / "alone"], planned)
    assert f"{tmp_path}/alone/{next_run} is not taken: {said}" in caplog.text
    with pytest.raises(CheckpointError, match=re.escape(said)):
        plan_runs(tiny(arms=[{"name": "x", "set": {"training.init_from": f"{tmp_path}/alone/{next_run}"}}]), tmp_path)
    caplog.clear()
    assert sorted(run.arm for run in import_runs([tmp_path / "moved"], planned)[0]) == ["base", "next"]
    assert not caplog.text
    assert [row["arm"] for row in sweep_rows(sweep, tmp_path / "new")[0]] == ["base", "next"]


def test_an_arm_that_starts_from_one_with_another_tokenizer_has_the_key_of_the_one_that_it_keeps(
    tmp_path: Path,
) -> None:
    words = {"data.tokenizer.kind": "words"}
    sweep = tiny(seeds=[1], arms=[{"name": "base"}, {"name": "next", "after": "base", "set": words}])
    rows = run_sweep(sweep, tmp_path)
    assert [row["arm"] for row in rows] == ["base", "next"]
    first, second = plan_runs(sweep, tmp_path)
    assert second.recipe.data.tokenizer == first.recipe.data.tokenizer
    assert key_of_run(second.directory) == second.key


def test_the_special_symbols_that_a_tokenizer_gives_are_not_in_a_key_twice(tmp_path: Path) -> None:
    words = ["<s>", "</s>", "<pad>", "<unk>", *"abcdefgh"]
    model = library.Tokenizer(library.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    model.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    model.add_special_tokens(words[:3])
    model.save(str(tmp_path / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names))
    kept = ("data.tokenizer.kind=hf", f"data.tokenizer.path={tmp_path / 'tokenizer.json'}", "data.unknown=replace")
    recipe = with_files(tmp_path / "data", more=kept)
    recipe, hashes = DataHashes().resolve(recipe)
    run = RunDirectory(tmp_path / "run")
    run.open(resume=False)
    prepared = prepare(recipe, run, False, None)
    run.close()
    assert prepared.recipe.model.special_ids.pad == 2 != recipe.model.special_ids.pad
    key = run_key(recipe, hashes)
    assert key_of_run(tmp_path / "run") == key
    # They follow from both files, so that another end of texts is another run.
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(names | {"eos_token": "<s>"}))
    assert run_key(recipe, hashes) != key


def test_a_store_that_may_only_be_read_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tiny(seeds=[1])
    tmp_path.joinpath("store").mkdir()

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(keys, "write_json", refuse)
    found = [run.key for run in plan_runs(sweep, tmp_path / "store")]
    monkeypatch.undo()
    assert found == [run.key for run in plan_runs(sweep, tmp_path / "store")]


def test_a_finished_run_is_taken_into_a_store_instead_of_being_trained_again(tmp_path: Path) -> None:
    sweep, store = tiny(seeds=[1]), tmp_path / "store"
    train(load_recipe("digits/transformer", [*SMALL, "name=mine", "training.n_threads=1"]), tmp_path / "mine")
    (tmp_path / "mine" / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "mine" / "checkpoints").symlink_to(tmp_path / "elsewhere")  # as on a disk for large files
    (tmp_path / "mine" / "latest").symlink_to(tmp_path / "mine")
    (tmp_path / "mine" / "notes.txt").symlink_to(tmp_path / "gone.txt")
    for file in (tmp_path / "mine").rglob("*"):
        if file.is_file():
            file.chmod(0o444)  # as in an archive
    ((taken,), _) = import_runs([tmp_path / "mine"], plan_runs(sweep, store))
    assert all(file.stat().st_mode & 0o200 for file in taken.directory.rglob("*"))
    assert list(taken.directory.glob("checkpoints/update-*/model.safetensors"))
    assert taken.name == "base, seed 1"
    assert (taken.directory / "recipe.yaml").read_bytes() == (tmp_path / "mine" / "recipe.yaml").read_bytes()
    rows, missing = sweep_rows(sweep, store)
    assert [row["arm"] for row in rows] == ["base"]
    assert [line["arm"] for line in missing] == ["slow"]
    assert not list(store.glob(".partial-*"))


def test_a_finished_sweep_whose_runs_have_old_names_of_settings_is_still_finished(tmp_path: Path) -> None:
    experts = {"kind": "experts", "n_experts": 3, "d_ff": 8, "top_k": 1}
    sweep = tiny(seeds=[1], arms=[{"name": "base", "set": {"model.encoder.ffn": experts}}])
    rows = run_sweep(sweep, tmp_path)
    (run,) = plan_runs(sweep, tmp_path)
    stored = [run.directory / "recipe.yaml", *run.directory.glob("checkpoints/*/model.json")]
    for path in stored:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("top_k: 1", "k: 1").replace('"top_k": 1', '"k": 1'), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != text
    before = stamps(tmp_path)
    assert run_sweep(sweep, tmp_path) == rows
    assert stamps(tmp_path) == before


@pytest.mark.slow
def test_of_a_folder_of_runs_those_of_the_sweep_are_taken(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    arms = [{"name": "base"}, {"name": "next", "after": "base"}]
    run_sweep(tiny(seeds=[1], arms=[*arms, {"name": "slow", "set": {"training.optimizer.lr": 1e-4}}]), old)
    (old / "unfinished").mkdir()
    sweep = tiny(seeds=[1], arms=arms)
    taken, _ = import_runs([old], plan_runs(sweep, new))
    assert sorted(run.name for run in taken) == ["base, seed 1", "next, seed 1"]
    before = stamps(new)
    rows = run_sweep(sweep, new)
    assert [row["arm"] for row in rows] == ["base", "next"]
    assert stamps(new) == before


def test_a_run_that_is_not_of_the_sweep_is_refused_with_its_differences(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    train(load_recipe("digits/transformer", [*SMALL, "seed=9", "training.optimizer.lr=0.5"]), run)
    planned = plan_runs(tiny(seeds=[1]), tmp_path / "store")
    line = "of base, seed 1 it differs in: training.optimizer.lr is 0.5 there and 0.003 in the sweep; seed is 9 there"
    taken, others = import_runs([run], planned)
    assert taken == []
    assert line in others[run]
    versions = json.loads((run / "versions.json").read_text())
    (run / "versions.json").write_text(json.dumps(versions | {"ostinato": "0.0.1"}))
    assert "it was trained by version 0.0.1, this is" in import_runs([run], planned)[1][run]
    (run / "results.json").unlink()
    with pytest.raises(ConfigError, match=r"is not finished: go on with it \(ostinato train '.*/my run' --resume\)"):
        import_runs([run], planned)
    shutil.rmtree(run)
    with pytest.raises(CheckpointError, match="holds no run"):
        key_of_run(run)


def test_a_stream_from_a_hub_is_known_by_the_commit_that_is_there_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets", reason="needs the extra hf")
    dev = tmp_path / "dev.jsonl"
    dev.write_text('{"text": "a b"}\n', encoding="utf-8")
    train = "data.train={hf: owner/texts, split: train, streaming: true}"
    recipe = load_recipe("lm/transformer", [train, f"data.dev={dev}"])
    found = []
    for commit in ("a" * 40, "b" * 40, "b" * 40):
        monkeypatch.setattr("ostinato.data.packs.data_sets.revision_of", lambda given, commit=commit: commit)
        found.append(DataHashes(tmp_path / "store").resolve(recipe)[1])
    assert found[1] == found[2] != found[0]
    assert found[0]["dev"] == found[1]["dev"]


@pytest.mark.parametrize("revision", ["main", "c" * 40])
def test_rows_of_a_hub_are_read_again_unless_their_commit_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    given = f"{{hf: owner/pairs, split: train, revision: {revision}}}"
    recipe = load_recipe("files/template", ["data.packed=never", f"data.train={given}", f"data.dev={given}"])
    found = []
    for n_rows in (3, 2):
        rows = [{"source": "a b", "target": "b a"}] * n_rows
        monkeypatch.setattr("ostinato.data.hub.load", lambda *_, rows=rows, **__: rows)
        found.append(DataHashes(tmp_path / "store").resolve(recipe)[1])
    assert (found[0] == found[1]) == (revision != "main")
