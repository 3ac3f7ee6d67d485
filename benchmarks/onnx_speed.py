"""How large are exported graphs, and how fast, beside ours? One language model, dense or looped, random weights.

    python benchmarks/onnx_speed.py --threads 1 --out onnx-speed.jsonl

Calls take turns; a row is a median. "text" is one pass over 4 texts of 128 tokens, "token" a step behind 64 cached
ones of one text. Ours runs as `generate` does: cached steps by compiled kernels, packed weights.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch

import ostinato as o
from ostinato.decoding.search import inference
from ostinato.evaluation.timing import Effort, Stopwatch, interleave
from ostinato.experiments.timing.environment import describe_environment
from ostinato.models import LanguageModel
from ostinato.models.base import as_batch
from ostinato.onnx.export import quantise, write_onnx
from ostinato.onnx.graphs import Graph, Tensors, graphs_of
from ostinato.onnx.session import GraphSession
from ostinato.training.threads import cpu_threads

N_TEXTS, N_TOKENS, N_CACHED = 4, 128, 64
STACKS: dict[str, dict[str, Any]] = {
    "dense": {"self_attention": {"n_heads": 8}, "ffn": {"d_ff": 1024}},
    "looped": {"self_attention": {"n_heads": 8, "share": "all"}, "ffn": {"d_ff": 1024, "share": "all"}},
    "experts": {
        "self_attention": {"n_heads": 8, "share": "all"},
        "ffn": {"kind": "experts", "n_experts": 8, "top_k": 2, "d_ff": 512, "share": "all"},
    },
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, help="JSON lines; default: only printed")
    options.add_argument("--rounds", type=int, default=7, help="calls of each kind")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--width", type=int, default=256)
    options.add_argument("--models", nargs="*", default=list(STACKS), choices=list(STACKS))
    arguments = options.parse_args()
    rows = [row for name in arguments.models for row in study(name, arguments)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    print(lines, end="")
    if arguments.out is not None:
        arguments.out.write_text(lines, encoding="utf-8")


def study(name: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of one model."""
    torch.manual_seed(0)
    stack = o.StackConfig.model_validate({"n_steps": 6, **STACKS[name]})
    model: Any = o.build_model(o.LanguageModelConfig(d_model=arguments.width, vocab_size=8000, decoder=stack)).eval()
    [graph] = graphs_of(model)
    with tempfile.TemporaryDirectory() as folder, cpu_threads(arguments.threads):
        environment = asdict(describe_environment(torch.device("cpu")))
        files = {"onnxruntime": Path(folder) / "x.onnx", "onnxruntime int8": Path(folder) / "x.int8.onnx"}
        write_onnx(graph, graph.exported(), files["onnxruntime"], {})
        quantise(files["onnxruntime"], files["onnxruntime int8"])
        sizes = {who: file.stat().st_size for who, file in files.items()} | {"ours": 4 * model.n_parameters()}
        with inference(model, packs_weights=True):
            calls = _ours(model) | _theirs(graph, files, arguments.threads)
            laps = interleave(calls, Effort(rounds=arguments.rounds), Stopwatch(torch.device("cpu")))
    found = []
    for call, taken in laps.items():
        who, what = call.split(", ")
        milliseconds = [1000 * lap.seconds for lap in taken]
        spread = {"median_ms": median(milliseconds), "least_ms": min(milliseconds), "most_ms": max(milliseconds)}
        about = {"model": name, "by": who, "call": what, "bytes": sizes[who], "threads": arguments.threads}
        found.append(about | spread | {"rounds": len(taken), "environment": environment})
    return found


def _ours(model: LanguageModel) -> dict[str, Callable[[], object]]:
    ids = torch.randint(4, 8000, (N_TEXTS, N_TOKENS))
    one, next_one = ids[:1, :N_CACHED], ids[:1, :1]
    cache = model.encode(as_batch(one, None))
    model.step(one, cache)

    def token() -> None:
        with cache.trial():
            model.step(next_one, cache)
        cache.length = N_CACHED

    return {"ours, text": lambda: model(ids).logits_BTV, "ours, token": token}


def _theirs(graph: Graph, files: dict[str, Path], n_threads: int) -> dict[str, Callable[[], object]]:
    text = _given(graph, N_TEXTS, N_TOKENS, 0)
    token = _given(graph, 1, 1, N_CACHED)
    sessions = {who: GraphSession(file, n_threads) for who, file in files.items()}
    found: dict[str, Callable[[], object]] = {}
    for who, session in sessions.items():
        found[f"{who}, text"] = lambda session=session: session(text)  # type: ignore[misc]
        found[f"{who}, token"] = lambda session=session: session(token)  # type: ignore[misc]
    return found


def _given(graph: Graph, n: int, columns: int, cached: int) -> Tensors:
    rounds = {} if graph.rounds is None else {"rounds": graph.rounds}
    given = graph.example(batch=n, columns=columns, cached=cached, **rounds)
    return given | {"ids": torch.randint(4, 8000, (n, columns))}


if __name__ == "__main__":
    main()
