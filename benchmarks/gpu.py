"""What does a GPU give: updates, experts, decoding and halting, each beside what it is judged by?

    python benchmarks/gpu.py                            # under ten minutes; JSON lines into docs/results/gpu
    python benchmarks/gpu.py --device cpu --tiny        # every part once, on small models: shows that it runs

    update       forward, backward, clipping and AdamW in bfloat16: the matrix products alone, ours, Hugging Face's
                 Bart, Marian and T5, torch.nn, x-transformers; and the most memory each holds
    experts      a feed-forward of experts, forward and backward in bfloat16: dense of equal active work, ours, torch's
                 grouped_mm used plainly, all three also compiled; 8 experts and 64, two a token
    decoding     a Llama of equal sizes with weights in bfloat16, tokens forced: ours, plain and recorded as CUDA
                 graphs, Hugging Face's generate, vLLM
    halting      a loop of twelve rounds, half of the tokens halted at half depth: ours, nobody halted, and ideal
    compiled     an update as above, ours plain and compiled; last, as torch takes minutes to generate the code

Contestants take turns in one process (`ostinato.evaluation.timing`); those that are not installed, or fail, are named.
Rows are written after every table. Several sections are a process each; what is not done within `--minutes` is ended
and said to be absent. Without a GPU it says so in one line.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import halting
import moe_layers
import torch
import train_step
import update_peers
from halting_report import AUTO, FULL
from layers import BOTH, Absent, Contestant, of_package, trial
from live_memory import peak_bytes

from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import LanguageModelConfig
from ostinato.data.batch import Tokens
from ostinato.decoding import inference, search
from ostinato.evaluation.timing import Effort, Stopwatch, interleave
from ostinato.experiments.results import markdown, read_rows, write_rows
from ostinato.experiments.timing.environment import describe_environment
from ostinato.models import build_model
from ostinato.tasks.recipes import load_recipe

OUT = Path(__file__).parents[1] / "docs" / "results" / "gpu"
GOALS = {
    "update": ("ours", "best peer", 1.15),
    "experts 8:2": ("ours", "dense", 1.25),
    "experts 64:2": ("ours", "dense", 1.5),
    "decoding": ("ours", "best peer", 1.15),
    "halting": ("ours", "ideal", 1.1),
}
"""By section: whose median, divided by whose, may be how much at most."""
Parts = Iterator[tuple[str, Iterator[Contestant | Absent]]]
Row = dict[str, Any]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda", help="default: %(default)s")
    options.add_argument("--tiny", action="store_true", help="small models and few rounds: shows that it runs")
    options.add_argument("--sections", nargs="+", default=list(SECTIONS), choices=list(SECTIONS), metavar="NAME")
    options.add_argument("--seconds", type=float, default=30.0, help="for each table, warm-up included")
    options.add_argument("--minutes", type=float, default=9.5, help="for several sections together")
    options.add_argument("--out", type=Path, default=OUT, help="folder (default: docs/results/gpu)")
    return options.parse_args(given)


def lowered(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """Return a call that runs in bfloat16."""

    def run() -> object:
        with torch.autocast(device.type, torch.bfloat16):
            return call()

    return run


def _lowered(one: Contestant | Absent, device: torch.device) -> Contestant | Absent:
    if isinstance(one, Absent):
        return one
    return replace(one, calls={phase: lowered(call, device) for phase, call in one.calls.items()})


def _update(*, tiny: bool) -> train_step.Cell:
    sizes: Row = {"d_model": 512, "d_ff": 2048, "vocabulary": 8000, "n_sentences": 128, "target_length": 48}
    if tiny:
        sizes = {"n_steps": 1, "d_model": 16, "d_ff": 32, "n_heads": 2, "vocabulary": 20, "n_sentences": 2}
        sizes |= {"source_length": 3, "target_length": 4}
    return train_step.Cell("dense", 0.1, **sizes)


def updates(device: torch.device, *, tiny: bool) -> Parts:
    """One update of an encoder-decoder model."""
    cell = _update(tiny=tiny)

    def contestants() -> Iterator[Contestant | Absent]:
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            yield train_step.limit(cell, device)
        finally:
            torch.set_default_dtype(before)
        yield train_step.ours(cell, device, precision="bfloat16")
        batch = train_step.random_batch(train_step.model(cell), cell.workload, 1).to(device)
        with torch.device(device):
            peers = list(update_peers.peers(cell, batch))
        yield from (_lowered(peer, device) for peer in peers)

    yield "update", contestants()


def compiled(device: torch.device, *, tiny: bool) -> Parts:
    """The same update, plain and compiled."""
    cell = _update(tiny=tiny)
    both = {"ours": {}, "ours, compiled": {"compile": True}}
    yield "update, compiled", (train_step.ours(cell, device, n, precision="bfloat16", **s) for n, s in both.items())


def experts(device: torch.device, *, tiny: bool) -> Parts:
    """One feed-forward of experts, forward and backward."""
    sizes: Row = (
        {"n_tokens": 8, "d_model": 64, "width": 32} if tiny else {"n_tokens": 16384, "d_model": 1024, "width": 4096}
    )
    for n_experts in (8, 64):
        work = moe_layers.make_work(moe_layers.Cell(n_experts, 2, **sizes), device=device)
        makers = (moe_layers.dense, moe_layers.ours, moe_layers.grouped_mm)
        found = [make(work, is_compiled=is_compiled) for is_compiled in (False, True) for make in makers]
        yield f"experts {n_experts}:2", (_lowered(one, device) for one in found)


def decoding(device: torch.device, *, tiny: bool) -> Parts:
    """A language model that writes as many tokens as it is told to."""
    sizes = (20, 16, 32, 1, 2) if tiny else (32_000, 1024, 2816, 16, 16)
    vocabulary, width, hidden, depth, heads = sizes
    n_tokens, batches = (4, (2,)) if tiny else (128, (1, 32))
    settings = [f"model.d_model={width}", f"model.decoder.n_steps={depth}", f"model.decoder.ffn.d_ff={hidden}"]
    attention = {"n_heads": heads, "n_kv_heads": heads, "d_head": width // heads}
    settings += [f"model.decoder.self_attention.{key}={value}" for key, value in attention.items()]
    config = load_recipe("dense/llama-toy", settings).model
    assert isinstance(config, LanguageModelConfig)
    model = build_model(config.model_copy(update=config.vocabulary_sizes(vocabulary, vocabulary)))
    model.to(device, torch.bfloat16)  # as Hugging Face's and vLLM's: under autocast every token would cast all weights

    for n in batches:
        prompt_BT = torch.randint(4, vocabulary, (n, 2 if tiny else 16), device=device)
        yield f"decoding, batch {n}", _writers(model, prompt_BT, n_tokens, sizes, device)


def _writers(
    model: Any, prompt_BT: torch.Tensor, n_tokens: int, sizes: tuple[int, ...], device: torch.device
) -> Iterator[Contestant | Absent]:
    greedy = DecodingConfig(strategy="greedy", max_length=n_tokens, min_length=n_tokens, max_length_ratio=0.0)
    given = Tokens(prompt_BT, torch.ones_like(prompt_BT, dtype=torch.bool))
    batch = train_step.Batch(given, prompt_BT, given.keep_BT)

    def ours(config: DecodingConfig) -> object:
        with inference(model):
            return search(model, batch, config, given)

    static = greedy.model_copy(update={"static_cache": True})
    for own, config in (("ours", greedy), ("ours, recorded", static)):
        yield Contestant(own, "ours", {"decode": partial(ours, config)})
    peers = (
        ("HF Llama", "transformers", hugging_face),
        ("HF Llama, static cache", "transformers", partial(hugging_face, cache="static")),
        ("vLLM", "vllm", vllm),
    )
    for name, package, build in peers:
        make = partial(build, sizes, prompt_BT, n_tokens, device)
        yield of_package(name, package, lambda name=name, make=make: Contestant(name, "peer", {"decode": make()}))


def _llama(sizes: tuple[int, ...]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary, width, hidden, depth, heads = sizes
    named = {"vocab_size": vocabulary, "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": depth}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=heads, pad_token_id=0, eos_token_id=None, **named)).eval()


def hugging_face(
    sizes: tuple[int, ...], prompt_BT: torch.Tensor, n_tokens: int, device: torch.device, cache: str | None = None
) -> Callable[[], object]:
    """Return a call of `generate`, in bfloat16 weights; with a `static` cache it compiles the model on a GPU."""
    model = _llama(sizes).to(device, torch.bfloat16)
    named = {"attention_mask": torch.ones_like(prompt_BT), "cache_implementation": cache, "do_sample": False}

    def call() -> object:
        with torch.inference_mode():
            return model.generate(prompt_BT, min_new_tokens=n_tokens, max_new_tokens=n_tokens, **named)

    return call


def vllm(sizes: tuple[int, ...], prompt_BT: torch.Tensor, n_tokens: int, device: torch.device) -> Callable[[], object]:
    """Return a call of vLLM on weights of the same sizes."""
    from vllm import LLM, SamplingParams

    folder = tempfile.TemporaryDirectory()
    _llama(sizes).to(torch.bfloat16).save_pretrained(folder.name)
    engine = LLM(folder.name, skip_tokenizer_init=True, dtype="bfloat16", gpu_memory_utilization=0.3)
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": ids} for ids in prompt_BT.tolist()]
    return lambda: (folder, engine.generate(prompts, params, use_tqdm=False))


def halted(device: torch.device, *, tiny: bool) -> Parts:
    """A loop in which half of the tokens halt at half depth."""
    sizes: Row = {"d_model": 16, "d_head": 8, "n_rounds": 4, "length": 4, "n_encoded": 2, "n_updated": 2}
    cell = halting.Cell(pattern="half", **(sizes if tiny else {"d_model": 1024, "n_encoded": 1024, "n_updated": 512}))
    for phase in (halting.ENCODING, halting.UPDATE):

        def contestants(phase: str = phase) -> Iterator[Contestant | Absent]:
            for one in halting.contestants([phase], {}, cell, device):
                if one.name in (FULL, AUTO):
                    name = "nobody halted" if one.name == FULL else "ours"
                    yield _lowered(replace(one, name=name), device)

        yield f"halting, {phase}", contestants()


SECTIONS: dict[str, Callable[..., Parts]] = {
    "update": updates,
    "experts": experts,
    "decoding": decoding,
    "halting": halted,
    "compiled": compiled,
}


def measured(title: str, present: Sequence[Contestant], device: torch.device, args: argparse.Namespace) -> list[Row]:
    """Time all contestants of a table in turns; of updates also what they hold."""
    phase = next(phase for phase in (BOTH, *present[0].calls) if phase in present[0].calls)
    calls = {one.name: one.calls[phase] for one in present}
    effort = Effort(rounds=2, least=2, repeats=0) if args.tiny else Effort(rounds=50, least=5, seconds=args.seconds)
    laps = interleave(calls, effort, Stopwatch(device))
    rows: list[Row] = []
    for one in present:
        seconds = [lap.seconds for lap in laps[one.name]]
        row: Row = {"section": title, "name": one.name, "role": one.role, "note": one.note, "phase": phase}
        row |= {"median_s": median(seconds), "low_s": min(seconds), "high_s": max(seconds), "n": len(seconds)}
        rows.append(row | {"peak_bytes": _peak(calls[one.name], one, device)})
    return rows


def _peak(call: Callable[[], object], one: Contestant, device: torch.device) -> int:
    """Return the most bytes that a call holds beyond what is there before it."""
    if device.type != "cuda":
        return peak_bytes(call, lambda: [p.grad for p in one.parameters if p.grad is not None])
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def judged(rows: Sequence[Row]) -> Row | None:
    """Return how ours stands to the goal of its table; None where what it is judged by is absent."""
    title = rows[0]["section"]
    goal = next((goal for section, goal in GOALS.items() if title.startswith(section)), None)
    seconds = {row["name"]: row["median_s"] for row in rows}
    peers = [row["median_s"] for row in rows if row["role"] == "peer"]
    if peers:
        seconds["best peer"] = min(peers)
    if "nobody halted" in seconds:  # half of the tokens run half of the rounds
        seconds["ideal"] = 0.75 * seconds["nobody halted"]
    if goal is None:
        return None
    who, whose, most = goal
    own, other = ([seconds[name] for name in seconds if name.startswith(one)] for one in (who, whose))
    if not own or not other:
        return None
    ratio = min(own) / min(other)
    return {"section": title, "kind": "goal", "ratio": ratio, "to": whose, "at_most": most, "holds": ratio <= most}


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("no GPU here: nothing was measured (--device cpu --tiny shows that it runs)")
        return
    args.out.mkdir(parents=True, exist_ok=True)
    if len(args.sections) == 1:
        _measure(args.sections[0], args)
    elif failed := [name for name, code in _one_by_one(args) if code]:
        raise SystemExit(f"these sections ended early: {', '.join(failed)}")


def _one_by_one(args: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Measure every section in a process of its own while there is time; yield what each ended with, 1 without time."""
    end = time.monotonic() + 60 * args.minutes
    settings = [f"--{name}={getattr(args, name)}" for name in ("device", "seconds", "out")] + ["--tiny"] * args.tiny
    for name in args.sections:
        path = args.out / f"{name}.jsonl"
        path.unlink(missing_ok=True)  # else rows of another time could stay
        try:
            left = max(0.0, end - time.monotonic())
            command = [sys.executable, __file__, *settings, "--sections", name]
            run = subprocess.run(command, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            reason = f"not done within {args.minutes:g} minutes"
            row = {"section": name, "kind": "absent", "name": name, "reason": reason}
            write_rows([*(read_rows(path) if path.exists() else []), row], path)
            print(f"{name}: {reason}", flush=True)
            yield name, 1
        else:
            yield name, run.returncode


def _measure(name: str, args: argparse.Namespace) -> None:
    device = torch.device(args.device)
    environment = asdict(describe_environment(device))
    rows: list[Row] = []
    for title, contestants in SECTIONS[name](device, tiny=args.tiny):
        found = list(contestants)
        present, absent = trial([one for one in found if isinstance(one, Contestant)])
        absent += [one for one in found if isinstance(one, Absent)]
        timed = measured(title, present, device, args) if present else []
        verdict = None if args.tiny or not timed else judged(timed)  # small ones are judged by nothing
        timed += [{"section": title, "kind": "absent", **asdict(one)} for one in absent]
        rows += [row | {"environment": environment} for row in timed + ([] if verdict is None else [verdict])]
        # After every table: what comes next may end this process.
        write_rows(rows, args.out / f"{name}.jsonl")
        print(f"\n{title}\n\n{_table(timed)}")
        if verdict is not None:
            said = "holds" if verdict["holds"] else "missed"
            print(f"ours / {verdict['to']}: {verdict['ratio']:.3f}, at most {verdict['at_most']}: {said}")
        sys.stdout.flush()


def _table(rows: Sequence[Row]) -> str:
    header = ["", "ms", "least", "most", "peak MiB", "note"]
    lines = []
    for row in rows:
        if "median_s" in row:
            times = [f"{1e3 * row[key]:.3f}" for key in ("median_s", "low_s", "high_s")]
            lines.append([row["name"], *times, f"{row['peak_bytes'] / 2**20:.1f}", row["note"]])
        else:
            lines.append([row["name"], "", "", "", "", row["reason"]])
    return markdown(header, lines)


if __name__ == "__main__":
    main()
