"""Whether a large text trains in little memory: makes one from a seed, packs it, trains a tiny model on it.

    python benchmarks/data_memory.py --gigabytes 2 --tokenizer words --out docs/results/data-memory.jsonl

Every step is a process of its own, so that peaks are its own:

    pack     `ostinato data pack`: the tokenizer, of subwords from a sample, then all ids into files (the peak is that
             of the largest of its processes)
    model    a run of the same model on the first thousand lines, held in memory: what is there without data
    first    a run on the whole text, which finds the pack
    second   the same run, resumed for more updates
    epoch    every batch of one epoch, made as the run makes them, without a model: all pages of the pack are read

Peaks are the largest resident set of the process, as the system counts it, in MB of 1024^2 bytes. What is private is
told apart from mapped files: libraries, and pages of the pack that were read, which the system takes back when it needs
memory. All are looked at ten times a second. `above_model_mb` is the peak less that of `model`. Seconds to the
first update are counted from the start of the process, imports and the update included. `epoch` counts labels: every
token of the text, and an end for every line. The text is made of invented words, drawn by Zipf's law, in lines of 20 to
400 words; it and the packs are deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ostinato.tasks.recipes import load_recipe
from ostinato.training.prepare import prepare
from ostinato.training.rundir import RunDirectory, versions

N_WORDS, BLOCK, TOKENS_PER_BATCH = 50_000, 256, 4096
_LETTERS = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))


def make_text(path: Path, n_bytes: int, seed: int) -> dict[str, int]:
    """Write about so many bytes of lines; return how many words and lines they are."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(2, 11, N_WORDS)
    words = np.array(["".join(generator.choice(_LETTERS, n)) for n in lengths], dtype=object)
    # Of rank r a share of 1 / r.
    shares = np.cumsum(1 / np.arange(1, N_WORDS + 1))
    written = n_words = n_lines = 0
    with path.open("w", encoding="utf-8") as stream:
        while written < n_bytes:
            drawn = words[np.searchsorted(shares, generator.random(200_000) * shares[-1])]
            cuts = np.cumsum(generator.integers(20, 401, 1000))
            lines = np.split(drawn, cuts[cuts < len(drawn)])
            written += stream.write("".join(" ".join(words_of_line) + "\n" for words_of_line in lines))
            n_words, n_lines = n_words + len(drawn), n_lines + len(lines)
    return {"n_words": n_words, "n_lines": n_lines}


def recipe(folder: Path, train: Path, **more: Any) -> list[str]:
    """Return a recipe, as words of a command line: a tiny model, so that data is what takes memory."""
    settings = {
        "task": {"kind": "files", "model_kind": "language_model"},
        "data": {
            "train": str(train),
            "dev": str(folder / "dev.txt"),
            "tokenizer": {"kind": more.pop("tokenizer"), "vocab_size": 8000},
            "unknown": "replace",
            "tokens_per_batch": TOKENS_PER_BATCH,
            "block_length": BLOCK,
            "block_attention": "text",
        },
        "model": {
            "kind": "language_model",
            "d_model": 64,
            "decoder": {"n_steps": 2, "self_attention": {"n_heads": 2}, "ffn": {"d_ff": 128}},
        },
        "training": {
            "n_updates": 10,
            "log_every": 1,
            "save_every": 10,
            "evaluate_every": 1_000_000,
            "device": "cpu",
            "n_threads": 1,
            "schedule": {"kind": "constant", "warmup": 5},
            "selection": {"max_examples": 20},
        },
        "evaluation": {"splits": ["dev"], "max_examples": 20},
    }
    path = folder / f"{train.stem}.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")
    return [str(path), *(f"{key}={value}" for key, value in more.items())]


class Watch(threading.Thread):
    """Reads, ten times a second, what a process and those that it starts have in memory; Linux only."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peaks, self.ended = pid, {"VmHWM": 0, "RssAnon": 0, "RssFile": 0}, threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.1):
            for pid in [self.pid, *_descendants(self.pid)]:
                found = _memory(pid)
                for key in self.peaks:
                    self.peaks[key] = max(self.peaks[key], found.get(key, 0))


def _descendants(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(child) for child in path.read_text(encoding="ascii").split()]
        except OSError:  # it has ended
            continue
    return found + [below for child in found for below in _descendants(child)]


def _memory(pid: int) -> dict[str, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return {}
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {key: int(value.split()[0]) for key, value in fields.items() if value.endswith("kB")}


def read_epoch(directory: Path) -> None:
    """Make every batch of the first epoch of a run, and print how many batches, rows and labels they have."""
    run = RunDirectory(directory)
    run.open(resume=True)
    batches = prepare(load_recipe(directory), run, is_resumed=True, access=None).batches
    n_rows = n_labels = 0
    for _ in range(batches.n_batches):
        batch = next(batches)
        n_rows += len(batch.labels_BT)
        n_labels += int(batch.loss_mask_BT.sum())
    run.close()
    print(json.dumps({"n_batches": batches.n_batches, "n_rows": n_rows, "n_labels": n_labels}), flush=True)


def run(name: str, words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run a Python program; return its seconds, its peaks, and the seconds to its first record of an update."""
    began = time.perf_counter()
    command, first, last = [sys.executable, *words], None, ""
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        watch = Watch(process.pid)
        watch.start()
        assert process.stdout is not None
        for line in process.stdout:
            print(f"  {line.rstrip()}", flush=True)
            if first is None and re.match(r"update \d+/", line):
                first = time.perf_counter() - began
            last = line
    code = process.returncode
    watch.ended.set()
    if code:
        raise SystemExit(f"{name}: {' '.join(words)} ended with {code}")
    megabytes = {key: value / 1024 for key, value in watch.peaks.items()}
    counted: dict[str, int] = json.loads(last) if last.startswith("{") else {}
    return {
        "step": name,
        **counted,
        "seconds": round(time.perf_counter() - began, 1),
        "seconds_to_first_update": None if first is None else round(first, 1),
        "peak_mb": round(megabytes["VmHWM"], 1),
        "peak_private_mb": round(megabytes["RssAnon"], 1),
        "peak_mapped_mb": round(megabytes["RssFile"], 1),
    }


def measure(folder: Path, gigabytes: float, seed: int, tokenizer: str) -> list[dict[str, Any]]:
    """Make the text, and do the steps."""
    text, few = folder / "text.txt", folder / "few.txt"
    began = time.perf_counter()
    size = make_text(text, int(gigabytes * 1e9), seed)
    print(f"{text.stat().st_size:,} bytes of text in {time.perf_counter() - began:.0f} s", flush=True)
    with text.open(encoding="utf-8") as stream:
        lines = list(islice(stream, 1100))
    if len(lines) < 1100:
        raise SystemExit(f"--gigabytes {gigabytes}: too small a text: 0.002 has lines enough")
    few.write_text("".join(lines[:1000]), encoding="utf-8")
    (folder / "dev.txt").write_text("".join(lines[1000:]), encoding="utf-8")
    environment = os.environ | {"OSTINATO_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    ostinato, packed = ["-m", "ostinato"], ["data.packed=always"]
    whole, at = recipe(folder, text, tokenizer=tokenizer), ["--run-dir", str(folder / "run")]
    steps = {
        "pack": [*ostinato, "data", "pack", *whole],
        "model": [*ostinato, "train", *recipe(folder, few, tokenizer=tokenizer), "--run-dir", str(folder / "few")],
        "first": [*ostinato, "train", *whole, *packed, *at],
        "second": [*ostinato, "train", *whole, *packed, "training.n_updates=20", *at, "--resume"],
        "epoch": [__file__, "--read", str(folder / "run")],
    }
    shared = {
        "benchmark": "data_memory",
        "gigabytes": gigabytes,
        "bytes": text.stat().st_size,
        **size,
        "tokenizer": tokenizer,
        "seed": seed,
        "cpus": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[0], 1),
        "machine": platform.machine(),
        "command": " ".join(["python", *sys.argv]),
        "versions": versions(),
    }
    rows = [shared | run(name, words, environment) for name, words in steps.items()]
    model = next(row for row in rows if row["step"] == "model")
    for row in rows:
        if row["step"] in ("first", "second"):
            row["above_model_mb"] = round(row["peak_mb"] - model["peak_mb"], 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the text (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokenizer", default="bpe", choices=["bpe", "unigram", "words", "characters"])
    parser.add_argument("--folder", type=Path, help="where to make the text and the packs; default: a temporary one")
    parser.add_argument("--out", type=Path, help="add the rows to a file of JSON lines")
    parser.add_argument("--read", type=Path, help="make the batches of one epoch of this run, and nothing else")
    given = parser.parse_args()
    if given.read is not None:
        read_epoch(given.read)
        return
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="data-memory-") as folder:
        rows = measure(Path(folder), given.gigabytes, given.seed, given.tokenizer)
    for row in rows:
        print(json.dumps(row), flush=True)
    if given.out is not None:
        with given.out.open("a", encoding="utf-8") as stream:
            stream.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
