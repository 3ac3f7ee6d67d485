"""Commands given a run whose files were damaged, or a path that is something else."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ostinato.cli import main

TINY = """
task: {kind: algorithmic, operation: reverse, max_length: 5, long_max_length: 8, n_train: 60, n_eval: 8, bucket: 4}
model:
  d_model: 8
  encoder: {n_steps: 1, self_attention: {n_heads: 2}, ffn: {d_ff: 8}}
  decoder: {n_steps: 1, self_attention: {n_heads: 2}, cross_attention: {n_heads: 2}, ffn: {d_ff: 8}}
training: {n_updates: 4, evaluate_every: 2, log_every: 4, schedule: {warmup: 2}, device: cpu}
decoding: {max_length: 6}
evaluation: {splits: [test]}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "tiny.yaml").write_text(TINY, encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        main(["train", str(folder / "tiny.yaml"), "--run-dir", str(folder / "run")])
    assert caught.value.code in (0, None)
    return folder / "run"


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def flip_a_bit(path: Path) -> None:
    whole = bytearray(path.read_bytes())
    whole[-3] ^= 1
    path.write_bytes(whole)


COMMANDS = {
    "evaluate": ("--split", "test"),
    "generate": ("LINES",),
    "analyze": ("--only", "budget"),
    "compare": ("--split", "test"),
    "tune-threshold": ("--split", "test"),
}


@pytest.mark.sampled
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_loads_a_run_refuses_weights_of_another_hash_unless_told_not_to_verify(
    run, copy: Path, tmp_path: Path, command: str
) -> None:
    for path in copy.glob("checkpoints/*/model.safetensors"):
        flip_a_bit(path)
    lines = tmp_path / "lines.txt"
    lines.write_text("1 2 3\n", encoding="utf-8")
    arguments = [lines if word == "LINES" else word for word in COMMANDS[command]]
    refused = run(command, copy, *arguments)
    assert refused.code == 2
    assert "not the file that was written" in refused.err
    assert "--no-verify" in refused.err
    taken = run(command, copy, "--no-verify", *arguments)
    if command == "tune-threshold":  # the weights are read; their tokens do not halt
        assert "halt" in taken.err
        assert "SHA-256" not in taken.err
    else:
        assert taken.code == 0, taken.err


def test_no_mean_is_made_of_checkpoints_that_are_damaged(run, copy: Path) -> None:
    for path in copy.glob("checkpoints/*/model.safetensors"):
        flip_a_bit(path)
    outcome = run("evaluate", copy, "--split", "test", "--checkpoint", "last:1", "--no-verify")
    assert outcome.code == 2
    assert "no mean is made of it" in outcome.err
    assert not list(copy.glob("checkpoints/average-*"))


READS = ("table", "compare", "plot", "evaluate", "analyze", "tune-threshold", "train", "plan", "sweep", "reproduce")


@pytest.mark.parametrize("command", [*READS, "generate", "generate RUN", "compare RUN", "data show", "data.train"])
def test_a_command_says_that_a_path_is_a_device_a_folder_or_a_fifo_or_not_there(
    run, trained: Path, tmp_path: Path, command: str
) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "empty.yaml").mkdir()
    reads_files = command in ("generate RUN", "data.train")
    for path, kind in (
        (Path("/dev/zero"), "a device"),
        (tmp_path / "pipe.yaml", "a FIFO"),
        (tmp_path / "empty.yaml", "a folder"),
        (tmp_path / "none.yaml", None),
    ):
        if kind == "a FIFO" and command == "generate RUN":
            continue  # a program's output that a shell gives as a file
        words: list[object] = [*command.split(), path]
        if command.endswith(" RUN"):
            words[1] = trained
        elif command == "data.train":
            words = ["data", "show", "files", f"data.train={path}"]
        outcome = run(*words)
        assert outcome.code == 2
        assert outcome.err.count("\n") == 1
        assert str(path) in outcome.err
        if kind is None:
            expected = ("no such", "there is no", "no recipe", "no sweep", "no claim", "no file")
        elif kind == "a folder" and command == "data.train":
            expected = ("the folder holds no files",)
        elif kind == "a folder" and not reads_files:
            expected = ("folder", "is not the directory of a run", "not finished")
        else:
            expected = (f"is {kind}",)
        assert any(text in outcome.err for text in expected), outcome.err


def _generate(trained: Path, redirect: str) -> subprocess.CompletedProcess[str]:
    command = f'exec "$0" -m ostinato generate "$1" --device cpu {redirect}'
    return subprocess.run(
        ["/bin/sh", "-c", command, sys.executable, str(trained)], capture_output=True, text=True, timeout=120
    )


@pytest.mark.slow
def test_a_closed_standard_input_has_no_lines(trained: Path) -> None:
    done = _generate(trained, "<&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.slow
def test_a_standard_input_that_cannot_be_read_is_one_line(trained: Path, tmp_path: Path) -> None:
    done = _generate(trained, f'0>"{tmp_path / "new"}"')
    assert done.returncode == 2
    assert done.stderr == "standard input: cannot be read: Bad file descriptor\n"


@pytest.mark.slow
def test_sigterm_while_waiting_for_input_ends_with_a_line_and_all_that_was_written(trained: Path) -> None:
    waiting = subprocess.Popen(
        [sys.executable, "-m", "ostinato", "generate", str(trained), "--device", "cpu", "--window", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdin is not None
    assert waiting.stdout is not None
    waiting.stdin.write("1 2 3\n")
    waiting.stdin.flush()
    first = waiting.stdout.readline()  # it now waits for the next line
    waiting.send_signal(signal.SIGTERM)
    out, err = waiting.communicate(timeout=120)
    assert first.endswith("\n")
    assert (waiting.returncode, out, err) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("name", "key", "value", "words"),
    [
        ("results.json", "training_seconds", {"q": 1}, "analyze RUN --only budget"),
        ("results.json", "splits", {"test": {"n": 1, "halting": [1]}}, "analyze RUN --only budget"),
        ("results.json", "splits", [1], "table RUN"),
        (
            "checkpoints/update-000004/model.json",
            "config",
            {"kind": "seq2seq", "d_model": "x"},
            "generate RUN --checkpoint last",
        ),
        ("checkpoints/update-000004/state.json", "progress", {"seconds": None}, "train RUN --resume"),
        ("checkpoints/update-000004/state.json", "progress", {"window": {"n_labels": {}}}, "train RUN --resume"),
        ("checkpoints/update-000004/state.json", "random", {"python": "x"}, "train RUN --resume"),
    ],
)
def test_a_value_of_another_type_in_a_run_is_one_line_with_the_file(
    run, copy: Path, name: str, key: str, value: Any, words: str
) -> None:
    if "train" in words:  # not finished
        (copy / "results.json").unlink()
    path = copy / name
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("content_sha256", None)
    merged = content[key] | value if key in ("progress", "random") else value
    path.write_text(json.dumps(content | {key: merged}), encoding="utf-8")
    outcome = run(*[word.replace("RUN", str(copy)) for word in words.split()])
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert path.name in outcome.err


@pytest.mark.parametrize(
    ("command", "row"),
    [
        *itertools.product(
            ["table", "plot"],
            [
                {"sweep": 1, "arm": 2, "values": 3},
                {"sweep": "s", "arm": "a", "seed": 1, "key": "k", "values": {"loss": []}},
                {"workload": 1},
                {"bootstrap": 1},
            ],
        ),
        ("compare", {"bootstrap": 1}),
    ],
)
def test_rows_that_lack_what_is_shown_of_them_are_one_line(run, tmp_path: Path, command: str, row: dict) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    outcome = run(command, path, *(["--out", tmp_path / "figure.png"] if command == "plot" else []))
    assert outcome.code == 2
    assert len(outcome.err.splitlines()) == 1
    assert str(path) in outcome.err
