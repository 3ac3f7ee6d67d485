"""Batches done by others, and read from a journal, give what one process gives, bit for bit."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toy_task import DATA, letter_examples, letter_tokenizers, tiny_seq2seq, train_briefly

from architectures import any_architecture, draws, random_model, right_padded, sentences
from ostinato.config.decoding import DecodingConfig
from ostinato.data.disk import sha256_of
from ostinato.data.tokenizers import Tokenizers
from ostinato.decoding import inference
from ostinato.decoding.generate import Generation, generate_stream
from ostinato.decoding.work import BatchRunner, InThisProcess, Item, Result, Work
from ostinato.errors import CheckpointError, ConfigError, DataError
from ostinato.evaluation import PredictionWriter, evaluate, workers
from ostinato.evaluation.journal import Journal, question_of
from ostinato.evaluation.loading import load
from ostinato.evaluation.passes import Passes
from ostinato.evaluation.workers import BatchWorker, Jobs, ModelSource, _Workers
from ostinato.models import Seq2Seq, save_model
from ostinato.nn.execution import Execution
from ostinato.tasks.recipes import load_recipe

GREEDY = DecodingConfig(max_length=12)
HASHES = ("0" * 64, "1" * 64)
QUESTION = {"weights": "a", "n_steps": None}
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs pip install 'ostinato[ray]'")


@pytest.fixture(scope="module")
def tokenizers() -> Tokenizers:
    return letter_tokenizers()


@pytest.fixture(scope="module")
def model(tokenizers: Tokenizers) -> Seq2Seq:
    model = tiny_seq2seq(tokenizers.target.vocab_size)
    train_briefly(model, tokenizers, 60)
    return model


class LateFutures:
    """Workers that do what they are sent in the reverse order, and only when a result is waited for."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.worker = BatchWorker.__new__(BatchWorker)
        self.worker.model = model
        self.sent: list[tuple[bytes, Future[str]]] = []
        self.most = 0

    def send(self, sent: bytes) -> Future[str]:
        future: Future[str] = Future()
        self.sent.append((sent, future))
        self.most = max(self.most, len(self.sent))
        plain, late = future.result, self

        def result(timeout: float | None = None) -> str:
            while late.sent:
                sent, future = late.sent.pop()
                future.set_result(late.worker.do(sent))
            return plain(timeout)

        future.result = result  # type: ignore[method-assign]
        return future


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key not in ("seconds", "decoding_seconds")}


def scores(model: Seq2Seq, tokenizers: Tokenizers, runner: BatchRunner | None, **changes: Any) -> dict[str, Any]:
    given = {"metrics": ["bleu", "exact_match"], "by": ["length", "even"]} | changes
    return evaluate(model, letter_examples(40), tokenizers, data=DATA, decoding=GREEDY, runner=runner, **given)


def written(model: Seq2Seq, tokenizers: Tokenizers, runner: BatchRunner | None, **changes: Any) -> list[Any]:
    texts = [example.source or "" for example in letter_examples(40)]
    texts[7] = "unknown word"
    config = DecodingConfig(strategy="beam", beam=2, n_best=2, max_length=8, **changes)
    outputs = generate_stream(model, texts, tokenizers, DATA, config, window=16, runner=runner)
    return [str(one) if isinstance(one, DataError) else one for one in outputs]


@pytest.mark.sampled
def test_results_of_workers_are_those_of_one_process_and_few_are_under_way(
    model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    files = []
    for name in ("one", "several"):
        late = LateFutures(model)
        runner = None if name == "one" else _Workers(2, late.send)
        with PredictionWriter(tmp_path / name) as write:
            found = scores(model, tokenizers, runner, predictions=write)
        files.append(((tmp_path / name).read_bytes(), numbers(found)))
        assert late.most <= 2 * workers._AHEAD + 1
    assert late.most > 2
    assert files[0] == files[1]
    assert len(files[0][0].splitlines()) == 40


def test_outputs_of_workers_are_those_of_one_process_in_the_order_of_the_input(
    model: Seq2Seq, tokenizers: Tokenizers
) -> None:
    alone = written(model, tokenizers, None, token_scores=True)
    assert written(model, tokenizers, _Workers(2, LateFutures(model).send), token_scores=True) == alone
    assert "input line 8" in alone[7]
    assert len({one.text for one in alone if isinstance(one, Generation)}) > 5


@given(st.data())
@draws(30)
def test_what_is_sent_and_packed_comes_back_exactly(data: st.DataObject) -> None:
    config = data.draw(any_architecture())
    model, batch = random_model(config), right_padded(data.draw(sentences(config)))
    decodes = batch.has_sources and data.draw(st.booleans())
    work = Passes(DecodingConfig(max_length=3) if decodes else None)
    with inference(model):
        here = work(model, batch)
        there = _Workers(1, LateFutures(model).send).submit(work, batch)()
    assert there.scores == here.scores
    assert list(there.outputs) == list(here.outputs)
    assert there.halting == here.halting
    for mine, other in ((here.depths, there.depths), (here.routing, there.routing)):
        assert mine.keys() == other.keys()
        assert all(torch.equal(mine[name], other[name]) for name in mine)


class Killed(Exception):
    pass


class DiesAt(InThisProcess):
    """Does so many batches, and then raises; counts them."""

    def __init__(self, model: Seq2Seq, n: int | None = None) -> None:
        super().__init__(model)
        self.left, self.n_done = n, 0

    def submit(self, work: Work[Item, Result], item: Item) -> Callable[[], Result]:
        wait = super().submit(work, item)

        def count() -> Result:
            if self.left == self.n_done:
                raise Killed
            self.n_done += 1
            return wait()

        return count


@pytest.mark.parametrize("asked", [scores, written])
def test_what_stands_in_a_journal_is_not_done_again_and_the_result_is_the_same(
    model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path, asked: Callable[..., Any]
) -> None:
    def found(runner: BatchRunner) -> Any:
        result = asked(model, tokenizers, runner)
        return numbers(result) if isinstance(result, dict) else result

    whole = DiesAt(model)
    expected, path = found(whole), tmp_path / "journal"
    with pytest.raises(Killed), Journal(path, QUESTION, DiesAt(model, 3)) as journal:
        found(journal)
    assert len(path.read_bytes().splitlines()) == 4
    # As a process leaves it that is killed while it writes.
    path.write_bytes(path.read_bytes() + b'{"batch": "12')
    rest = DiesAt(model)
    with Journal(path, QUESTION, rest) as journal:
        assert found(journal) == expected
        assert journal.n_read == 3
    assert rest.n_done == whole.n_done - 3
    again = DiesAt(model, 0)
    with Journal(path, QUESTION, _as_workers(again)) as journal:
        assert found(journal) == expected
    assert len(path.read_bytes().splitlines()) == whole.n_done + 1


def _as_workers(runner: DiesAt) -> BatchRunner:
    """Let several batches be under way."""
    runner.n_ahead = 4
    return runner


def test_a_journal_keeps_what_was_asked_with_other_settings_from_being_taken_for_the_answer(
    model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    path, inner = tmp_path / "journal", InThisProcess(model)
    with Journal(path, QUESTION, inner) as journal:
        scores(model, tokenizers, journal)
    short = GREEDY.model_copy(update={"max_length": 1, "max_length_ratio": 0.0})
    with (
        Journal(path, QUESTION, inner) as journal,
        pytest.raises(DataError, match="batch 1 is of other inputs or settings"),
    ):
        evaluate(
            model, letter_examples(40), tokenizers, data=DATA, decoding=short, runner=journal, metrics=["exact_match"]
        )


def test_a_journal_of_something_else_is_refused(model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path) -> None:
    path, inner = tmp_path / "journal", InThisProcess(model)
    with Journal(path, QUESTION, inner) as journal:
        scores(model, tokenizers, journal)
        with pytest.raises(ConfigError, match="another process writes this journal"):
            Journal(path, QUESTION, inner).__enter__()
    with pytest.raises(ConfigError, match="is the journal of another run or other settings"):
        Journal(path, QUESTION | {"n_steps": 2}, inner).__enter__()
    with Journal(tmp_path / "older", QUESTION | {"version": "0.1.0"}, inner):
        pass
    with pytest.raises(ConfigError, match=r"is a journal that ostinato 0\.1\.0 began"):
        Journal(tmp_path / "older", QUESTION, inner).__enter__()
    with pytest.raises(DataError, match="batch 1 is of other inputs"), Journal(path, QUESTION, inner) as journal:
        scores(model, tokenizers, journal, max_examples=20)
    (tmp_path / "text").write_text("mine\n")
    with pytest.raises(ConfigError, match="is no journal: name another file, or delete it"):
        Journal(tmp_path / "text", QUESTION, inner).__enter__()
    assert (tmp_path / "text").read_text() == "mine\n"
    assert not (tmp_path / "text.lock").exists()


@pytest.mark.parametrize("kind", ["a link", "a dangling link", "a FIFO", "a folder"])
def test_a_journal_that_is_no_plain_file_is_refused_before_anything_is_made(
    model: Seq2Seq, tmp_path: Path, kind: str
) -> None:
    folder, target = tmp_path / "work", tmp_path / "target"
    folder.mkdir()
    match kind:
        case "a link":
            target.write_text("", encoding="utf-8")
            (folder / "journal").symlink_to(target)
        case "a dangling link":
            (folder / "journal").symlink_to(target)
        case "a FIFO":
            os.mkfifo(folder / "journal")
        case _:
            (folder / "journal").mkdir()
    said = f"journal: is {kind.replace('dangling ', '')}: only a plain file is written; name another path"
    with pytest.raises(ConfigError, match=said):
        Journal(folder / "journal", QUESTION, InThisProcess(model)).__enter__()
    assert [path.name for path in folder.iterdir()] == ["journal"]
    assert not target.exists() or target.read_bytes() == b""


@contextmanager
def files_of_at_most(n_bytes: int) -> Iterator[None]:
    resource = pytest.importorskip("resource", reason="this system does not bound the size of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_journal_that_cannot_grow_is_named_and_free_again(
    model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    path, inner = tmp_path / "journal", InThisProcess(model)
    with Journal(path, QUESTION, inner):
        pass
    with (
        pytest.raises(OSError, match="too large") as caught,
        files_of_at_most(path.stat().st_size + 20),
        Journal(path, QUESTION, inner) as journal,
    ):
        scores(model, tokenizers, journal)
    assert caught.value.filename == str(path)
    with Journal(path, QUESTION, inner) as journal:
        assert journal.n_read == 0


def test_settings_of_ray_without_ray_are_refused() -> None:
    for changes, message in (({"address": "auto"}, "--address"), ({"n_gpus": 1}, "--gpus")):
        with pytest.raises(ConfigError, match=f"^{message}: belongs to --executor ray$"):
            Jobs(n=2, **changes)


def run_on(device: str, checkpoint: Path = Path()) -> Any:
    """Return what is asked of a loaded run whose model is on some device."""
    model = SimpleNamespace(device=torch.device(device), current_execution=Execution())
    return SimpleNamespace(recipe=load_recipe("digits/transformer"), checkpoint=checkpoint, hashes=HASHES, model=model)


@pytest.mark.parametrize(
    ("device", "of_workers"), [("cpu", "cpu"), ("cuda", "cuda"), ("cuda:0", "cuda"), ("cuda:1", "cuda:1")]
)
def test_workers_share_the_gpus_unless_another_than_the_first_is_named(device: str, of_workers: str) -> None:
    assert workers.model_source(run_on(device), 2).device == of_workers


def test_a_model_that_runs_otherwise_than_its_runner_knows_is_refused(
    model: Seq2Seq, tokenizers: Tokenizers, tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    parts: dict[str, Any] = {"checkpoint": tmp_path, "hashes": HASHES, "model": model}
    run: Any = SimpleNamespace(recipe=load_recipe("digits/transformer"), **parts)
    with Jobs(journal=tmp_path / "journal").runner(run) as runner:
        scores(model, tokenizers, runner)
        with model.execution(halting=False), pytest.raises(ConfigError, match="otherwise than when its runner began"):
            scores(model, tokenizers, runner)
    with Jobs().runner(run) as runner, model.execution(halting=False):
        scores(model, tokenizers, runner)  # nobody but this process does the batches


def test_workers_refuse_another_checkpoint_than_was_loaded(model: Seq2Seq, tmp_path: Path) -> None:
    save_model(model, tmp_path)
    run: Any = run_on("cpu", tmp_path)
    run.hashes = tuple(sha256_of(tmp_path / name) for name in ("model.json", "model.safetensors"))
    source = replace(workers.model_source(run, 1), n_threads=torch.get_num_threads())
    question = question_of(run, "cpu")
    assert BatchWorker(source).model.config == model.config
    other = tiny_seq2seq(model.config.target_vocab_size or 0)
    torch.nn.init.zeros_(next(other.parameters()))
    save_model(other, tmp_path)
    with pytest.raises(CheckpointError, match="was replaced after the model was loaded"):
        _ = BatchWorker(source).model
    assert question_of(run, "cpu") == question, "the journal is that of the model that was loaded"
    (tmp_path / "model.json").unlink()
    with pytest.raises(CheckpointError, match=r"model\.json: cannot be read"):
        _ = BatchWorker(source).model


def test_a_journal_says_what_does_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, asked = run_on("cpu", tmp_path), []

    @contextmanager
    def actors(source: ModelSource, n_jobs: int, **_: Any) -> Iterator[BatchRunner]:
        asked.append(source.device)
        yield InThisProcess(run.model)

    monkeypatch.setattr(workers, "ray_actors", actors)
    for n_gpus in (0, 1):
        with Jobs(2, "ray", n_gpus=n_gpus, journal=tmp_path / f"{n_gpus}").runner(run):
            pass
    devices = [json.loads((tmp_path / name).read_text())["question"]["device"] for name in "01"]
    assert devices == asked == ["cpu", "cuda"]
    with Jobs(1, journal=tmp_path / "0").runner(run):
        pass


@needs_ray
@pytest.mark.slow
def test_actors_that_would_wait_for_gpus_for_ever_are_refused(
    run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setenv("RAY_TMPDIR", tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    with (
        pytest.raises(ConfigError, match=r"--executor ray: 2 jobs take, each, 1 GPUs, this Ray has \d: a cluster"),
        Jobs(2, "ray", n_gpus=1).runner(load(run_directory)),
    ):
        pass
    assert not ray.is_initialized()


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workers") / "run"
    changes = ["task.n_train=60", "task.n_eval=300", "training.n_updates=4", "training.device=cpu"]
    changes += ["data.eval_tokens_per_batch=128", "decoding.max_length=12"]
    ostinato("train", "digits/transformer", *changes, "--run-dir", str(folder))
    return folder


def ostinato(*words: str) -> str:
    command = [sys.executable, "-m", "ostinato", *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert found.returncode == 0, found.stderr
    return found.stdout


WAYS = [["--jobs", "2"], pytest.param(["--jobs", "2", "--executor", "ray"], marks=needs_ray)]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_processes_and_actors_write_what_one_process_writes(
    run_directory: Path, tmp_path: Path, way: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    (tmp_path / "lines.txt").write_text("".join(f"{i % 10} {i % 7}\n" for i in range(300)), encoding="utf-8")
    commands = [
        ["evaluate", str(run_directory), "--split", "test", "--json"],
        ["generate", str(run_directory), str(tmp_path / "lines.txt"), "--json", "--beam", "2", "--window", "100"],
    ]
    for command in commands:
        alone, together = ostinato(*command), ostinato(*command, *way)
        if command[0] == "evaluate":
            alone, together = (numbers(json.loads(text)["test"]) for text in (alone, together))
        assert alone == together


def actors_of(session: int) -> set[int]:
    """Return the processes of a session that are actors of Ray with a model."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cmdline").read_bytes().startswith(b"ray::BatchWorker"):
                found |= {int(folder.name)} if session_of(folder / "stat") == session else set()
    return found


@needs_ray
@pytest.mark.slow
def test_an_actor_that_is_killed_is_started_again_and_the_output_is_the_same(
    run_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_TMPDIR", tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    words = ["generate", str(run_directory), str(write_lines(tmp_path)), "--json", "--window", "500"]
    expected, journal = ostinato(*words), tmp_path / "journal"
    words += ["--jobs", "2", "--executor", "ray", "--journal", str(journal)]
    with (tmp_path / "out").open("w") as out:
        process = begun(words, journal, stdout=out)
        actors = actors_of(process.pid)
        os.kill(max(actors), signal.SIGKILL)
        while process.poll() is None:
            actors |= actors_of(process.pid)
            time.sleep(0.05)
    assert process.returncode == 0
    assert len(actors) == 3  # two, and one in the place of the one that was killed
    assert (tmp_path / "out").read_text() == expected


def test_this_library_unpickles_only_what_its_own_processes_send() -> None:
    reads_pickles = re.compile(
        r"^\s*(import|from) (pickle|cloudpickle|dill|joblib|marshal|shelve)\b|torch\.load\(|allow_pickle"
        r"|(gather|broadcast|scatter|send|recv)_object"
        r"|distributed\.checkpoint import .*\b(save|load)\b|\bcheckpoint\.(save|load)\(",
        re.M,
    )
    library = Path(workers.__file__).parents[1]
    found = [path for path in library.rglob("*.py") if reads_pickles.search(path.read_text(encoding="utf-8"))]
    assert [path.relative_to(library).as_posix() for path in found] == ["evaluation/workers.py"]


def write_lines(folder: Path) -> Path:
    path = folder / "lines.txt"
    path.write_text("".join(f"{i % 10} {i % 7}\n" for i in range(3000)), encoding="utf-8")
    return path


def begun(words: list[str], journal: Path, **files: Any) -> subprocess.Popen[str]:
    """Start a command, and return it when its journal has some batches."""
    process = subprocess.Popen([sys.executable, "-m", "ostinato", *words], text=True, start_new_session=True, **files)
    while process.poll() is None and (not journal.exists() or journal.read_bytes().count(b"\n") < 10):
        time.sleep(0.01)
    return process


@pytest.mark.slow
def test_generation_that_is_killed_goes_on_with_the_same_bytes(run_directory: Path, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    words = ["generate", str(run_directory), str(write_lines(tmp_path)), "--json", "--window", "500"]
    expected = ostinato(*words)
    words += ["--jobs", "2", "--journal", str(journal)]
    with (tmp_path / "out").open("w") as out:
        process = begun(words, journal, stdout=out)
        process.kill()
        process.wait()
    n_done = journal.read_bytes().count(b"\n") - 1
    assert n_done >= 9
    assert ostinato(*words) == expected
    n_batches = journal.read_bytes().count(b"\n") - 1
    assert n_done < n_batches
    # Its workers ended with it: none of them is left of its session.
    assert not [path for path in Path("/proc").glob("[0-9]*/stat") if session_of(path) == process.pid]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["evaluate", "generate"])
def test_a_worker_that_is_killed_ends_the_command_with_one_line_and_the_journal_goes_on(
    run_directory: Path, tmp_path: Path, what: str
) -> None:
    journal = tmp_path / "journal"
    inputs = ["--split", "test"] if what == "evaluate" else [str(write_lines(tmp_path)), "--window", "500"]
    words = [what, str(run_directory), *inputs, "--json"]
    expected = ostinato(*words)
    words += ["--jobs", "2", "--journal", str(journal)]
    # What it writes is not read, and what it says is short: it waits for neither.
    process = begun(words, journal, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    os.kill(a_worker_of(process.pid), signal.SIGKILL)
    said = process.communicate()[1]
    assert process.returncode == 1
    assert said.startswith("a process of --jobs was killed")
    assert said.count("\n") == 1
    found = ostinato(*words)
    if what == "evaluate":
        assert numbers(json.loads(found)["test"]) == numbers(json.loads(expected)["test"])
    else:
        assert found == expected


def a_worker_of(pid: int) -> int:
    """Return the last of the processes that a process has spawned; its first child only cleans up behind it."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    workers = [one for one in children if b"--multiprocessing-fork" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return int(workers[-1])


def session_of(stat: Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError):
        return 0
