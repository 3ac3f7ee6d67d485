"""Does a run translate the same at batch 1 and in batches, how well, and how fast?

    python benchmarks/translation.py RUN --checkpoint best:5 --beam 5 --batch-sizes 1 32 --out docs/results/translation

Sources are sorted by length and cut into batches. For every batch size: sentences a second, and the scores of the
run's metrics with their signatures. Outputs that are not the same are listed with both scores; where those differ by
less than 1e-5 they are a tie, which float arithmetic may decide either way.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from ostinato.data.example import take_evenly
from ostinato.data.registry import DataAccess
from ostinato.decoding.generate import Generation
from ostinato.evaluation.loading import LoadedRun, load
from ostinato.experiments.results import markdown, write_rows
from ostinato.metrics import make_metric
from ostinato.tasks.registry import build_task
from ostinato.training.rundir import versions
from ostinato.training.threads import cpu_threads

_TIE = 1e-5


def translate(run: LoadedRun, sources: list[str], size: int, beam: int) -> tuple[list[Generation], float]:
    """Return an output for every source, and the seconds."""
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    found: dict[int, Generation] = {}
    began = perf_counter()
    for first in range(0, len(order), size):
        batch = order[first : first + size]
        found |= dict(zip(batch, run.generations([sources[i] for i in batch], beam=beam), strict=True))
    seconds = perf_counter() - began
    return [found[i] for i in range(len(sources))], seconds


def differences(one: list[Generation], other: list[Generation]) -> list[dict[str, Any]]:
    """Return the outputs that are not the same, with their scores."""
    pairs = enumerate(zip(one, other, strict=True))
    return [
        {"row": i, "outputs": [a.text, b.text], "scores": [a.score, b.score], "is_tie": abs(a.score - b.score) < _TIE}
        for i, (a, b) in pairs
        if a.text != b.text
    ]


def score(outputs: Sequence[str], references: Sequence[str], metrics: Sequence[str]) -> dict[str, Any]:
    """Return scores and signatures by name."""
    scores: dict[str, Any] = {}
    for name in metrics:
        metric = make_metric(name)
        for output, reference in zip(outputs, references, strict=True):
            metric.update(output, reference)
        scores |= metric.compute()
    return scores


def main() -> None:
    """Translate, score and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--checkpoint", default="best:5")
    parser.add_argument("--split", default="test")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--max-examples", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--mirror")
    parser.add_argument("--out", type=Path, help="write OUT.jsonl")
    given = parser.parse_args()
    run = load(given.run, checkpoint=given.checkpoint, device="cpu")
    task = build_task(run.recipe.task, run.recipe.data, DataAccess.default(given.mirror))
    examples = list(take_evenly(task.examples(given.split), given.max_examples or sys.maxsize))
    references = [example.target for example in examples]
    rows, outputs = [], []
    with cpu_threads(given.threads):
        translate(run, [str(example.source) for example in examples[:4]], 4, given.beam)  # warm
        for size in given.batch_sizes:
            found, seconds = translate(run, [str(example.source) for example in examples], size, given.beam)
            outputs.append(found)
            scores = score([one.text for one in found], references, task.metrics)
            rows.append(
                {
                    "run": run.recipe.name,
                    "split": given.split,
                    "n": len(examples),
                    "checkpoint": given.checkpoint,
                    "beam": given.beam,
                    "batch_size": size,
                    "threads": given.threads,
                    "sentences_per_s": len(examples) / seconds,
                    "scores": scores,
                    "unlike_first": differences(outputs[0], found),
                    "versions": versions(),
                }
            )
    names = [name for name, value in rows[0]["scores"].items() if isinstance(value, float)]
    lines = []
    for row in rows:
        unlike = row["unlike_first"]
        values = [row["scores"][name] for name in names]
        ties = sum(one["is_tie"] for one in unlike)
        lines.append([row["batch_size"], row["sentences_per_s"], *values, len(unlike), ties])
    unlike_first = f"unlike batch {rows[0]['batch_size']}"
    print(markdown(["batch", "sentences/s", *names, unlike_first, "of them ties"], lines))
    for row in rows:
        for one in row["unlike_first"]:
            print(f"batch {row['batch_size']}, row {one['row']}: {one['scores'][0]:.7f} {one['scores'][1]:.7f}")
    for name, value in rows[0]["scores"].items():
        if isinstance(value, str):
            print(f"{name}: {value}")
    if given.out:
        write_rows(rows, given.out.with_suffix(".jsonl"))


if __name__ == "__main__":
    main()
