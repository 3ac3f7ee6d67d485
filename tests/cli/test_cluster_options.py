from __future__ import annotations

import importlib.util
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from ostinato.config.files import write_yaml
from ostinato.experiments.sweep.executors import InProcess

SWEEP = {
    "recipe": "digits/transformer",
    "overrides": [
        *("task.n_train=60", "task.n_eval=12", "training.device=cpu", "training.n_updates=2", "decoding.max_length=4"),
        *("model.d_model=16", "model.encoder.n_steps=1", "model.decoder.n_steps=1"),
        *("model.encoder.ffn.d_ff=16", "model.decoder.ffn.d_ff=16"),
    ],
    "seeds": [1],
    "arms": [{"name": "base"}],
    "measures": [{"name": "loss", "kind": "result", "split": "test", "path": "loss"}],
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_yaml(SWEEP, tmp_path / "mine.yaml")
    return tmp_path / "mine.yaml"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--executor", "dask"], "'dask' is not one of 'local', 'ray', 'slurm'"),
        (["--address", "auto"], "--address: belongs to --executor ray, not to local"),
        (["--store", "nowhere://bucket/runs"], "--store: nowhere://bucket/runs: Protocol not known"),
        (["--store", "memory://x", "--executor", "slurm"], "--store: submitit needs a folder that all nodes see"),
        (["--store", "memory://x", "--copy-to", "memory://y"], "--copy-to: copies a store that is a folder"),
        (["--store", "mine.yaml", "--dry-run"], "'mine.yaml' is a file, no folder"),
        (["--copy-to", "nowhere://x"], "--copy-to: nowhere://x: Protocol not known"),
        (["--copy-to", ""], "--copy-to: '' names no folder"),
        (["--copy-to", "memory://"], "--copy-to: 'memory://' names no folder"),
        (["--store", "file://"], "'file://' names no folder"),
        (["--executor", "slurm", "--slurm", "timeout_min"], "--slurm: 'timeout_min' is no KEY=VALUE"),
    ],
)
def test_options_that_cannot_be_used_are_one_line(
    run, file: Path, words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    outcome = run("sweep", file, *words)
    assert outcome.code == 2
    assert message in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(("executor", "library"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_executor_without_its_library_says_how_to_get_it(
    run, file: Path, executor: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    outcome = run("sweep", file, "--executor", executor, "--store", file.parent / "store")
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert f"pip install 'ostinato[{executor}]'" in outcome.err


@pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="needs pip install 'ostinato[slurm]'")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["cluster=kubernetes"], "cluster=kubernetes must be slurm or local"),
        (["cluster=local", "slurm_queue=gpu"], "Unknown argument 'queue' for executor 'slurm'"),
        (["cluster=slurm"], "srun"),
    ],
)
def test_what_submitit_does_not_know_is_one_line(run, file: Path, settings: list[str], message: str) -> None:
    store = file.parent / "store"
    outcome = run("sweep", file, "--executor", "slurm", "--store", store, *(f"--slurm={one}" for one in settings))
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert message in outcome.err


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install 'ostinato[ray]'")
def test_an_address_where_no_ray_answers_is_refused_within_a_limit(file: Path) -> None:
    def refusal(address: str) -> str:
        command = [sys.executable, "-m", "ostinato", "sweep", str(file), "--executor", "ray", "--address", address]
        found = subprocess.run(command, capture_output=True, text=True, cwd=file.parent, timeout=200)
        assert found.returncode == 2
        return found.stderr

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        assert f"nothing answers at 127.0.0.1:{port}" in refusal(f"127.0.0.1:{port}")
        silent.listen()
        assert f"127.0.0.1:{port} answers, but not as a Ray cluster, within 20 s" in refusal(f"127.0.0.1:{port}")
    assert "'127.0.0.1' is no host:port, ray://host:port or auto" in refusal("127.0.0.1")


@pytest.mark.slow
def test_finished_runs_and_results_are_copied_once(run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.experiments.sweep.choose.LocalPool", lambda n_workers: InProcess())
    store, copies = file.parent / "store", file.parent / "copies"
    words = ["sweep", file, "--store", f"file://{store}", "--copy-to", f"file://{copies}"]
    assert f"copied to file://{copies}: 1 runs" in run(*words).out
    results = store / "sweeps/mine/results.jsonl"
    key = json.loads(results.read_text())["key"][:16]
    assert (copies / "sweeps/mine/results.jsonl").read_bytes() == results.read_bytes()
    for path in (store / key).rglob("*"):
        if path.is_file():
            assert (copies / key / path.relative_to(store / key)).read_bytes() == path.read_bytes()
    assert f"copied to file://{copies}: 0 runs" in run(*words).out
    # What is measured of a run later is copied, too.
    again = {"name": "again", "kind": "evaluate", "split": "test", "path": "loss", "metrics": []}
    write_yaml(SWEEP | {"measures": [again]}, file)
    assert f"copied to file://{copies}: 0 runs" in run(*words).out
    (measured,) = (store / key / "measures").iterdir()
    assert (copies / key / "measures" / measured.name).read_bytes() == measured.read_bytes()


@pytest.mark.parametrize("scheme", ["file://", "memory://"])
def test_a_copy_that_was_cut_off_is_copied_again(run, file: Path, scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.experiments.sweep.choose.LocalPool", lambda n_workers: InProcess())
    again = {"name": "again", "kind": "evaluate", "split": "test", "path": "loss", "metrics": []}
    write_yaml(SWEEP | {"measures": [again]}, file)
    store, copies = file.parent / "store", f"{scheme}{file.parent}/copies"
    words = ["sweep", file, "--store", store, "--copy-to", copies]
    assert f"copied to {copies}: 1 runs" in run(*words).out
    files, root = url_to_fs(copies)
    key = json.loads((store / "sweeps/mine/results.jsonl").read_text())["key"][:16]
    cut = [path for path in files.find(f"{root}/{key}") if files.size(path) > 5]
    assert {"results.json", "model.safetensors"} <= {Path(path).name for path in cut}
    for path in cut:
        files.pipe_file(path, files.cat_file(path)[:5])
    assert f"copied to {copies}: 1 runs" in run(*words).out
    for path in cut:
        assert files.cat_file(path) == (store / path.removeprefix(f"{root}/")).read_bytes()
    put = type(files).put_file
    written: list[str] = []

    def noted(self: AbstractFileSystem, source: str, target: str, **named: Any) -> None:
        written.append(Path(target).name)
        put(self, source, target, **named)

    monkeypatch.setattr(type(files), "put_file", noted)
    assert f"copied to {copies}: 0 runs" in run(*words).out
    assert written == ["timings.jsonl", "results.jsonl"]
    # Killed before results.json: what is there is not copied again.
    for name in ("results.json", "metrics.jsonl"):
        files.rm_file(f"{root}/{key}/{name}")
    written.clear()
    assert f"copied to {copies}: 1 runs" in run(*words).out
    assert written == ["metrics.jsonl", "results.json", "timings.jsonl", "results.jsonl"]


def test_the_copy_of_a_run_that_was_trained_again_is_of_the_new_training_alone(
    run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.experiments.sweep.choose.LocalPool", lambda n_workers: InProcess())
    store, copies = file.parent / "store", file.parent / "copies"
    words = ["sweep", file, "--store", store, "--copy-to", f"file://{copies}"]
    run(*words)
    key = json.loads((store / "sweeps/mine/results.jsonl").read_text())["key"][:16]
    # The copy of an earlier training: files of as many bytes, and some that this one does not have.
    for path in (copies / key).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[::-1])
    (copies / key / "measures").mkdir()
    (copies / key / "measures" / "other.json").write_text("{}")
    assert f"copied to file://{copies}: 1 runs" in run(*words).out

    def content(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert content(copies / key) == content(store / key)


RESULT_FILES = {"sweeps", "locks", "hashes", "events"}


def test_a_store_at_an_address_is_shown_and_used_by_the_command(
    run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.experiments.sweep.choose.LocalPool", lambda n_workers: InProcess())
    monkeypatch.setenv("OSTINATO_CACHE", str(file.parent / "cache"))
    url = f"local://{file.parent}/place"
    words = ["sweep", file, "--store", url]
    assert "not trained" in run(*words, "--dry-run").out
    done = run(*words)
    published, results = done.out.strip().splitlines()[-2:]
    assert published == f"published: {url}"
    local = Path(results.removeprefix("results: "))
    place = file.parent / "place"
    assert local.read_bytes() == (place / "sweeps/mine/results.jsonl").read_bytes()
    folder = local.parents[2]
    assert folder.parent == file.parent / "cache/stores"
    shutil.rmtree(folder)
    assert "not trained" not in run(*words, "--dry-run").out
    refused = run("table", file, "--store", url)
    assert refused.code == 2
    assert f"'{url}' is no folder, as this command needs: {folder} has what" in " ".join(refused.err.split())
    assert run(*words).code == 0
    assert run("table", file, "--store", folder).code == 0
    # Finished runs of elsewhere are published.
    plain = file.parent / "plain"
    assert run("sweep", file, "--store", plain).code == 0
    for old in (place, folder):
        shutil.rmtree(old)
    assert "taken: " in run(*words, "--take", plain, "--dry-run").out
    names = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    runs = {path.relative_to(plain).as_posix() for path in plain.glob("*/**/*") if path.is_file()}
    assert names == {name for name in runs if RESULT_FILES.isdisjoint(name.split("/")) and "/." not in name}


def test_a_copy_that_fails_does_not_hide_which_runs_failed(run, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ostinato.experiments.sweep.choose.LocalPool", lambda n_workers: InProcess())
    broken = {"name": "broken", "set": {"training.optimizer.lr": 1e30, "training.schedule.warmup": 0}}
    write_yaml(SWEEP | {"arms": [{"name": "base"}, broken]}, file)
    target = f"file://{file}/below-a-file"
    outcome = run("sweep", file, "--store", file.parent / "store", "--copy-to", target, "--json")
    first, second, third = outcome.err.splitlines()
    assert outcome.code == 1
    assert first.startswith(f"--copy-to: {target}: cannot be written: ")
    assert second == "1 of the sweep's runs failed"
    assert third.startswith("broken, seed 1 (")


def test_whatever_a_library_says_of_a_place_is_one_line_without_the_password(
    run, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.experiments.sweep.choose.LocalPool", lambda n_workers: InProcess())
    monkeypatch.chdir(file.parent)  # where the library takes the password for a folder
    url = f"file://me:secret@{file.parent}/copies"

    class OfSomeLibraryError(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise OfSomeLibraryError("550 Permission denied")

    monkeypatch.setattr(type(url_to_fs(url)[0]), "put_file", refuse)
    outcome = run("sweep", file, "--store", file.parent / "store", "--copy-to", url)
    assert outcome.code == 2
    shown = url.replace("me:secret@", "")
    assert outcome.err == f"--copy-to: {shown}: cannot be written: 550 Permission denied\n"


def test_lines_typed_at_a_terminal_are_not_split(run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for words in (["--jobs", "2"], ["--journal", str(tmp_path / "journal")]):
        outcome = run("generate", tmp_path, *words)
        assert outcome.code == 2
        assert "typed lines are answered one by one: name a file" in " ".join(outcome.err.split())
    outcome = run("evaluate", tmp_path, "--jobs", "2", "--executor", "slurm")
    assert outcome.code == 2
    assert "'slurm' is not one of 'local', 'ray'" in " ".join(outcome.err.split())


def test_a_journal_that_is_the_file_of_predictions_is_refused_before_the_run_is_read(run, tmp_path: Path) -> None:
    words = ["--predictions", tmp_path / "f", "--journal", tmp_path / "x" / ".." / "f"]
    outcome = run("evaluate", tmp_path / "no-run", *words)
    assert outcome.code == 2
    assert "they name one file" in " ".join(outcome.err.split())
