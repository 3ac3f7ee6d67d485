"""How long does it take to begin: `--help`, `import ostinato`, and a command to the end of its first update?

    python benchmarks/startup.py --threads 2 --out docs/results/startup
    python benchmarks/startup.py --read run-1.jsonl run-2.jsonl --out docs/results/startup

Every call is a fresh process; all take turns. `ostinato train` reads 512 pairs of 24 words from JSON lines, builds a
vocabulary and a transformer of 6 + 6 steps of width 256, and does one update; a script with torch.nn.Transformer does
the same with the same sizes (`startup_torch.py`). The time ends when the first update is reported, on the same pipe.
Modules are compiled before, as an installer does it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import effort, parser, save
from layer_study import Row, conditions, numbered, read_runs
from layer_tables import Run, Verdict, pick, times, verdict_table
from layers import timing

from ostinato.evaluation.loading import resolve_device
from ostinato.evaluation.timing import Stopwatch, interleave
from ostinato.experiments.results import markdown
from ostinato.experiments.timing.environment import describe_environment
from ostinato.training.threads import cpu_threads
from ostinato.version import __version__

HELP, IMPORT, TRAIN, SCRIPT = "ostinato --help", "import ostinato", "ostinato train", "torch.nn script"
SECONDS = {HELP: 0.3, IMPORT: 0.3}
OVER_SCRIPT = 1.1
_PHASE = "start"
_MOST_ROUNDS = 11
_STEPS = {"full": 6, "quick": 1}
_WIDTH = {"full": 256, "quick": 16}

RECIPE = """\
description: What the study of start-up trains.
task: {{kind: files, model_kind: seq2seq}}
data: {{train: {data}, dev: {data}, tokenizer: {{kind: words}}, tokens_per_batch: 1024}}
model:
  kind: seq2seq
  d_model: {width}
  dropout: 0.1
  encoder: &stack
    n_steps: {steps}
    self_attention: {{n_heads: 8, dropout: 0.1}}
    ffn: {{d_ff: {hidden}, dropout: 0.1}}
  decoder:
    <<: *stack
    cross_attention: {{n_heads: 8, dropout: 0.1}}
training:
  n_updates: 1
  log_every: 1
  device: cpu
  n_threads: {threads}
  selection: {{metric: loss, mode: min, max_examples: 1}}
"""


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=3.0)
    options.add_argument("--read", type=Path, nargs="+", metavar="JSONL", help="measure nothing: judge these runs")
    return options.parse_args(given)


def write_inputs(folder: Path, size: str, threads: int) -> tuple[Path, Path]:
    """Write pairs of 24 words each, and a recipe that trains on them; return both paths."""
    draw = random.Random(1)
    data, recipe = folder / "pairs.jsonl", folder / "startup.yaml"
    lines = []
    for _ in range(512):
        words = [draw.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(24)]
        lines.append(json.dumps({"source": " ".join(words), "target": " ".join(reversed(words))}))
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sizes = {"width": _WIDTH[size], "hidden": 4 * _WIDTH[size], "steps": _STEPS[size]}
    recipe.write_text(RECIPE.format(data=data, threads=threads, **sizes), encoding="utf-8")
    return data, recipe


def calls(folder: Path, size: str, threads: int) -> dict[str, Callable[[], object]]:
    """Return what is timed, each in a process of its own."""
    data, recipe = write_inputs(folder, size, threads)
    sizes = [str(number) for number in (_WIDTH[size], _STEPS[size], threads)]
    script = [str(Path(__file__).with_name("startup_torch.py")), str(data), *sizes]

    def train() -> None:
        with tempfile.TemporaryDirectory(dir=folder) as run:
            until(["-m", "ostinato", "train", str(recipe), "--run-dir", f"{run}/run"], "update 1/1")

    return {
        "python": lambda: until(["-c", "pass"]),
        IMPORT: lambda: until(["-c", "import ostinato"]),
        HELP: lambda: until(["-m", "ostinato", "--help"]),
        "import torch": lambda: until(["-c", "import torch"]),
        SCRIPT: lambda: until(script, "update 1"),
        TRAIN: train,
    }


def until(command: Sequence[str], text: str | None = None) -> None:
    """Run a fresh Python until it writes a line that begins with a text; None: until it ends.

    Raises:
        RuntimeError: it ended without, or badly.
    """
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    # As installers leave it: modules are compiled once, not by every process.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    ) as process:
        assert process.stdout is not None, "its output is a pipe"
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if text is not None and line.startswith(text):
                process.kill()
                return
    if text is not None or process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {''.join(said[-3:])}")


def measure(args: argparse.Namespace) -> list[Row]:
    """Time all calls in turns; return a row each."""
    device = resolve_device("cpu")
    with cpu_threads(args.threads), tempfile.TemporaryDirectory() as folder:
        head = {"study": "startup", "kind": "time", "cell": {}, "version": __version__}
        head |= {"environment": asdict(describe_environment(device)), "phase": _PHASE}
        timed = calls(Path(folder), "quick" if args.quick else "full", torch.get_num_threads())
        print(f"startup on {head['environment']['cpu']}: {', '.join(timed)}", flush=True)
        laps = interleave(timed, effort(args, _MOST_ROUNDS), Stopwatch(device))
    return [head | {"name": name} | timing(found) for name, found in laps.items()]


def verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Judge the seconds of what needs no torch, and our command against the script."""
    found = []
    for name, bound in SECONDS.items():
        rows = [row for run in runs for row in pick(run, kind="time", name=name)]
        value = median(row["median_s"] for row in rows) if rows else None
        spread = f"{min(row['low_s'] for row in rows):.3f}-{max(row['high_s'] for row in rows):.3f}" if rows else ""
        found.append(Verdict(f"{name}: seconds", bound, value, spread))
    ratios = [one for run in runs if (one := _ratio(run)) is not None]
    value = median(one.value for one in ratios) if ratios else None
    spread = " / ".join(one.spread for one in ratios)
    is_decided = len({one.value <= OVER_SCRIPT for one in ratios}) < 2
    note = "" if is_decided else f"runs: {', '.join(map(str, ratios))}"
    target = f"start to the end of the first update: {TRAIN} / {SCRIPT}"
    found.append(Verdict(target, OVER_SCRIPT, value, spread, note, is_decided))
    return found


def _ratio(run: Run) -> Any:
    mine, theirs = (pick(run, kind="time", name=name) for name in (TRAIN, SCRIPT))
    return times(mine[0], theirs[0]) if mine and theirs else None


def report(runs: Sequence[Run], judged: Sequence[Verdict]) -> str:
    """Return the tables as Markdown."""
    lines = []
    for name in dict.fromkeys(row["name"] for row in runs[0] if row["kind"] == "time"):
        rows = [pick(run, kind="time", name=name)[0] for run in runs]
        lines.append([name, *(f"{row['median_s']:.3f} ({row['low_s']:.3f}-{row['high_s']:.3f})" for row in rows)])
    head = ["process", *(f"run {number}: s (quartiles)" for number in range(1, len(runs) + 1))]
    measured = conditions([row for run in runs for row in run])
    return f"{measured}\n{markdown(head, lines)}\nTargets:\n\n{verdict_table(judged)}"


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.read:
        runs = read_runs(args.read)
    else:
        runs = [measure(args)]
    judged = verdicts(runs)
    rows = [{"study": "startup"} | verdict.row() for verdict in judged]
    save([*numbered(runs), *rows], report(runs, judged), args.out)


if __name__ == "__main__":
    main()
