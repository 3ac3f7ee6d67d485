"""Is this checkout as fast as another one of the same project?

    python benchmarks/against_checkout.py ../old --rounds 9 --out runs/against-old
    python benchmarks/against_checkout.py ../old --only "decoding 1:1" --threads 2

One process for each checkout, which keeps its models; the two do the same work in turns. Every round draws anew in
which order the workloads come and which checkout begins. For every round the processes are started anew: two processes
of the same code were seen to differ by several percent for as long as they lived, so that rounds of the same two say
little more than one of them. A ratio of a round is old seconds / new seconds: above 1 the new checkout is faster. Both
must find the same numbers, and the largest difference is told. Compare a checkout with its twin first: what ratios come
out then are the noise of the machine.

What the processes ask of a checkout is kept small, so that checkouts with other insides can be compared: recipes,
`build_model`, batches, the search, and the updater. Where one of these has moved, `named` has both places.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve()
OLD, NEW = "old", "new"
_CLOSE = 1e-5
"""Relative difference of the numbers that two checkouts find, above which a table says that they differ."""
_WIDTH = 140
_FIRST_ID = 4
"""Ids below are no tokens of a text."""

# ---------------------------------------------------------------- what is timed, in the process of a checkout

Call = Callable[[], Callable[[], list[float]]]
"""Does the work once; what it returns gives the numbers that were found, which is not timed."""


def full_sizes() -> dict[str, int]:
    return {
        "d_model": 256,
        "d_ff": 1024,
        "n_heads": 8,
        "n_steps": 6,
        "vocabulary": 2000,
        "sentences": 4,
        "length": 32,
        "new_tokens": 32,
        "many": 32,
        "searches": 2,
    }


def quick_sizes() -> dict[str, int]:
    small = {"d_model": 16, "d_ff": 32, "n_heads": 2, "n_steps": 2, "vocabulary": 40, "sentences": 2}
    return small | {"length": 5, "new_tokens": 4, "many": 3, "searches": 1}


def workloads(sizes: dict[str, int]) -> dict[str, Callable[[], Call]]:
    """Return what makes ready each workload, by name."""
    dense, shared = seq2seq(sizes), seq2seq(sizes, share="all")
    few = seq2seq(sizes, experts=(8, 2))
    many = seq2seq(sizes | {"n_steps": sizes["n_steps"] // 2}, experts=(64, 4))
    halting, many_sentences = seq2seq(sizes, share="all", halts=True), sizes["many"]
    return {
        "update, dense": lambda: update(dense, sizes),
        "update, shared": lambda: update(shared, sizes),
        "update, experts 8:2": lambda: update(few, sizes),
        "update, experts 64:4": lambda: update(many, sizes),
        "update, halting": lambda: update(halting, sizes),
        "forward, language model": lambda: forward(language_model(sizes), sizes),
        "decoding 1:1": lambda: decoding(dense, sizes, 1, 1),
        "decoding 1:5": lambda: decoding(dense, sizes, 1, 5),
        f"decoding {many_sentences}:1": lambda: decoding(dense, sizes, many_sentences, 1),
        f"decoding {many_sentences}:5": lambda: decoding(dense, sizes, many_sentences, 5),
        "decoding 1:1, halting": lambda: decoding(halting, sizes, 1, 1),
        "decoding 1:1, experts 8:2": lambda: decoding(few, sizes, 1, 1),
    }


def seq2seq(
    sizes: dict[str, int], *, share: str = "individual", experts: tuple[int, int] | None = None, halts: bool = False
) -> dict[str, Any]:
    """Return the settings of an encoder-decoder model.

    Args:
        experts: how many there are and how many a token gets, which together are as wide as the dense layer.
    """
    attention: dict[str, Any] = {"n_heads": sizes["n_heads"], "share": share}
    ffn: dict[str, Any] = {"d_ff": sizes["d_ff"], "share": share, "dropout": 0.1}
    if experts is not None:
        n_experts, k = experts
        chosen = {"kind": "experts", "n_experts": n_experts, "k": k, "router": {"kind": "mlp"}, "share": "all"}
        heads, width = max(1, sizes["n_heads"] // k), sizes["d_model"] // sizes["n_heads"]
        attention = chosen | {"n_heads": heads, "d_head": width}
        ffn = chosen | {"d_ff": sizes["d_ff"] // k, "dropout": 0.1}
    stack: dict[str, Any] = {"n_steps": sizes["n_steps"], "self_attention": attention, "ffn": ffn}
    if halts:
        stack["halting"] = {"kind": "act", "initial_bias": HALF_DEPTH_BIAS}
    return {
        "kind": "seq2seq",
        "d_model": sizes["d_model"],
        "dropout": 0.1,
        "tie_embeddings": "none",
        "encoder": stack,
        "decoder": stack | {"cross_attention": attention},
        "source_vocab_size": sizes["vocabulary"],
        "target_vocab_size": sizes["vocabulary"],
    }


HALF_DEPTH_BIAS = 0.0
"""Of halting probabilities, log odds: with it and fresh gates, random tokens take part in half of six rounds on
average, in two to six of them."""


def language_model(sizes: dict[str, int]) -> dict[str, Any]:
    stack = {
        "n_steps": sizes["n_steps"],
        "norm": {"placement": "pre"},
        "self_attention": {"n_heads": sizes["n_heads"]},
        "ffn": {"d_ff": sizes["d_ff"], "activation": "gelu"},
        "positions": {"kind": "none"},
        "relative": {"kind": "rotary"},
    }
    size = {"d_model": sizes["d_model"], "vocab_size": sizes["vocabulary"]}
    return {"kind": "language_model", "dropout": 0.1, "decoder": stack, **size}


def named(name: str, *modules: str) -> Any:
    """Return what has a name in the first of several modules that is there and has it."""
    for module in modules:
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(f"{name} is in none of {', '.join(modules)}")


def load(model: dict[str, Any], **groups: Any) -> Any:
    """Return a recipe; settings that a checkout has under another name are tried under both."""
    from ostinato.errors import ConfigError
    from ostinato.tasks.recipes import load_recipe

    kind = "language_model" if model["kind"] == "language_model" else "seq2seq"
    text = json.dumps({"task": {"kind": "files", "model_kind": kind}, "model": model, **groups})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        try:
            return load_recipe(path)
        except ConfigError:
            path.write_text(text.replace('"k": ', '"top_k": '), encoding="utf-8")
            return load_recipe(path)


def build(recipe: Any) -> Any:
    """Return the recipe's model with weights drawn from a seed."""
    import torch

    from ostinato.models import build_model

    torch.manual_seed(1)
    return build_model(recipe.model)


def random_batch(recipe: Any, n_sentences: int, length: int) -> Any:
    """Return sentences of random ids, with sources of the same length where the model reads them."""
    import torch

    from ostinato.data.batch import Batch, Tokens
    from ostinato.data.tokenizer import BOS_ID

    generator = torch.Generator().manual_seed(1)
    is_pair = recipe.model.kind == "seq2seq"
    vocabulary = recipe.model.target_vocab_size if is_pair else recipe.model.vocab_size

    def tokens(ids_BT: Any) -> Tokens:
        return Tokens(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))

    def draw() -> Any:
        return torch.randint(_FIRST_ID, vocabulary, (n_sentences, length), generator=generator)

    labels_BT = draw()
    ids_BT = torch.cat([torch.full_like(labels_BT[:, :1], BOS_ID), labels_BT[:, :-1]], dim=1)
    is_label_BT = torch.ones_like(labels_BT, dtype=torch.bool)
    return Batch(tokens(ids_BT), labels_BT, is_label_BT, tokens(draw()) if is_pair else None)


def update(model_settings: dict[str, Any], sizes: dict[str, int]) -> Call:
    """Return one update as training does it: forward, loss, backward, clipping, AdamW."""
    import torch

    training: dict[str, Any] = {"optimizer": {"lr": 1e-6}, "schedule": {"kind": "constant", "warmup": 0}}
    if "experts" in json.dumps(model_settings):
        training["balance"] = {"mutual_information": 1e-3}
    recipe = load(model_settings, training=training)
    model = build(recipe).train()
    updater_type = named("Updater", "ostinato.training.update", "ostinato.training")
    build_optimizer = named("build_optimizer", "ostinato.training.optim", "ostinato.training")
    updater = updater_type(model, build_optimizer(model, recipe.training.optimizer), recipe.training)
    batch = random_batch(recipe, sizes["sentences"], sizes["length"])

    def check() -> list[float]:
        return [float(parameter.detach().double().abs().sum()) for parameter in model.parameters()]

    def call() -> Callable[[], list[float]]:
        torch.manual_seed(1)
        updater.apply(updater.accumulate([batch]), 1)
        return check

    return call


def forward(model_settings: dict[str, Any], sizes: dict[str, int]) -> Call:
    """Return one pass without gradients."""
    inference = named("inference", "ostinato.decoding.inference", "ostinato.decoding")
    recipe = load(model_settings)
    model, batch = build(recipe), random_batch(recipe, 2 * sizes["sentences"], 2 * sizes["length"])

    def call() -> Callable[[], list[float]]:
        with inference(model):
            logits_BTV = model(batch).logits_BTV
        return lambda: logits_BTV[:, -1].flatten().tolist()

    return call


def decoding(model_settings: dict[str, Any], sizes: dict[str, int], n_sentences: int, beam: int) -> Call:
    """Return searches that end no output early; of few sentences several, one after the other."""
    from ostinato.decoding import search

    inference = named("inference", "ostinato.decoding.inference", "ostinato.decoding")
    n_tokens = sizes["new_tokens"]
    strategy = {"strategy": "beam" if beam > 1 else "greedy", "beam": beam}
    recipe = load(model_settings, decoding=strategy | {"min_length": n_tokens, "max_length": n_tokens})
    n_searches = sizes["searches"] if n_sentences == 1 else 1
    whole = random_batch(recipe, n_sentences * n_searches, sizes["length"])
    batches = [whole.rows(slice(i * n_sentences, (i + 1) * n_sentences)) for i in range(n_searches)]
    model = build(recipe)

    def call() -> Callable[[], list[float]]:
        with inference(model):
            found = [one for batch in batches for one in search(model, batch, recipe.decoding)]
        return lambda: [float(number) for one in found for number in (one.score, *one.ids)]

    return call


def work(sizes: dict[str, int], threads: int) -> None:
    """Answer a parent's lines: {"prepare": NAME} and {"run": NAME}."""
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed does not disturb the answers

    def answer(**fields: Any) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    import ostinato  # isort: skip  (first: a checkout that is broken says so at once)
    import torch

    torch.set_num_threads(threads)
    answer(package=str(Path(ostinato.__file__).parent), version=ostinato.__version__, torch=torch.__version__)
    known, calls = workloads(sizes), {}
    for line in sys.stdin:
        asked = json.loads(line)
        if (name := asked.get("prepare")) is not None:
            calls[name] = known[name]()
            calls[name]()  # kernels are compiled, memory is had
            answer(prepared=name)
            continue
        name = asked["run"]
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        check = calls[name]()
        answer(wall=time.perf_counter() - wall, cpu=time.process_time() - cpu, numbers=check())


# ---------------------------------------------------------------- the comparison, in the process that is started


class Worker:
    """The process of a checkout, started at once."""

    def __init__(self, checkout: Path, threads: int, options: Sequence[str]) -> None:
        self.source = checkout.resolve() / "src"
        if not (self.source / "ostinato").is_dir():
            raise SystemExit(f"{checkout} is no checkout of this project: it has no src/ostinato")
        environment = os.environ | {"PYTHONPATH": str(self.source), "OMP_NUM_THREADS": str(threads)}
        command = [sys.executable, str(HERE), "--worker", "--threads", str(threads), *options]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def about(self) -> dict[str, Any]:
        """Return what the process says of itself when it has started.

        Raises:
            SystemExit: it runs another checkout than it was told to, or has ended.
        """
        found = self._read()
        if not Path(package := found.pop("package")).is_relative_to(self.source):
            raise SystemExit(f"the process for {self.source} imported {package}")
        command = ["git", "-C", str(self.source), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
        described = subprocess.run(command, capture_output=True, text=True)
        return found | {"commit": described.stdout.strip() or None}

    def ask(self, **command: str) -> dict[str, Any]:
        """Return the answer to a command.

        Raises:
            SystemExit: the process has ended; it has said why on standard error.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # what is read below says so
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the process for {self.source} ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process: it ends when it can read no more."""
        self._process.communicate()


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    names = list(workloads(full_sizes()))
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("old", type=Path, metavar="OLD_CHECKOUT", nargs="?", help="the other checkout")
    options.add_argument("--new", type=Path, default=HERE.parents[1], help="default: the one this file is in")
    options.add_argument("--rounds", type=int, default=9, help="at least 7 say something (default %(default)s)")
    options.add_argument(
        "--sessions", type=int, help="so often the processes are started anew (default: for every round)"
    )
    options.add_argument("--threads", type=int, default=1, help="CPU threads (default %(default)s)")
    options.add_argument("--only", nargs="+", metavar="NAME", help=f"of: {'; '.join(names)}")
    options.add_argument("--quick", action="store_true", help="tiny models: shows that it runs")
    options.add_argument("--out", type=Path, help="write JSON lines here")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    found = options.parse_args(given)
    if found.old is None and not found.worker:
        options.error("name the other checkout")
    found.sessions = found.rounds if found.sessions is None else found.sessions
    if not 1 <= found.sessions <= found.rounds:
        options.error(f"--sessions {found.sessions}: must lie in 1 .. {found.rounds}, the number of rounds")
    return found


def measure(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Time all workloads of both checkouts in turns; return a row each."""
    names = list(workloads(quick_sizes() if args.quick else full_sizes()))
    if unknown := set(args.only or ()) - set(names):
        raise SystemExit(f"--only {', '.join(sorted(unknown))}: must be of {', '.join(names)}")
    names = [name for name in names if not args.only or name in args.only]
    laps: dict[str, dict[str, list[dict[str, Any]]]] = {name: {OLD: [], NEW: []} for name in names}
    differences = dict.fromkeys(names, 0.0)
    for session in range(args.sessions):
        with ExitStack() as ending:
            workers, about = start(args, names, ending)
            for number in range(session, args.rounds, args.sessions):
                print(f"session {session + 1}, round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
                for name in random.sample(names, len(names)):
                    found = {side: workers[side].ask(run=name) for side in random.sample((OLD, NEW), 2)}
                    numbers = [found[side].pop("numbers") for side in (OLD, NEW)]
                    differences[name] = max(differences[name], difference(*numbers))
                    for side, lap in found.items():
                        laps[name][side].append(lap | {"session": session})
    return [row(name, laps[name], differences[name]) | about for name in names]


def start(
    args: argparse.Namespace, names: Sequence[str], ending: ExitStack
) -> tuple[dict[str, Worker], dict[str, Any]]:
    """Start both processes, which `ending` ends, and make all workloads ready; return also what they say of themselves.

    Either checkout's process may be the first one.
    """
    options = ["--quick"] if args.quick else []
    workers = {}
    for side, checkout in random.sample(((OLD, args.old), (NEW, args.new)), 2):
        workers[side] = Worker(checkout, args.threads, options)
        ending.callback(workers[side].close)
    about = {side: worker.about() for side, worker in workers.items()} | {"threads": args.threads}
    for name in names:
        for worker in workers.values():
            worker.ask(prepare=name)
    return workers, about


def difference(old: Sequence[float], new: Sequence[float]) -> float:
    """Return the largest difference of numbers, as part of the larger of the two where that is above 1."""
    if len(old) != len(new):
        return float("inf")

    def apart(a: float, b: float) -> float:
        if a == b or (math.isnan(a) and math.isnan(b)):
            return 0.0
        # Otherwise `max` would leave out what is no number.
        return abs(a - b) / max(1.0, abs(a), abs(b)) if math.isfinite(a) and math.isfinite(b) else math.inf

    return max(map(apart, old, new), default=0.0)


def row(name: str, laps: dict[str, list[dict[str, Any]]], largest_difference: float) -> dict[str, Any]:
    """Return what was measured of a workload: seconds of all rounds, medians, and old / new with its interval.

    `cpu_ratio` is of the seconds that processors worked for the process: others on the machine disturb them less.
    """
    from ostinato.experiments.timing.spread import speed_ratio

    seconds = {(side, clock): [lap[clock] for lap in laps[side]] for side in (OLD, NEW) for clock in ("wall", "cpu")}
    return {
        "study": "against_checkout",
        "name": name,
        "old_s": median(seconds[OLD, "wall"]),
        "new_s": median(seconds[NEW, "wall"]),
        "ratio": speed_ratio(seconds[NEW, "wall"], seconds[OLD, "wall"]).row(),
        "cpu_ratio": speed_ratio(seconds[NEW, "cpu"], seconds[OLD, "cpu"]).row(),
        "difference": largest_difference,
        "laps": laps,
    }


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print a line for every workload."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="old / new: above 1 the new one is faster", title_justify="left")
    table.add_column("workload")
    for column in ("old ms", "new ms", "old / new", "95 %", "of CPU time", "95 %", "rounds", "numbers"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    for one in rows:
        cells = [one["name"], f"{1e3 * one['old_s']:.0f}", f"{1e3 * one['new_s']:.0f}"]
        for ratio in (one["ratio"], one["cpu_ratio"]):
            cells += [f"{ratio['value']:.3f}", f"{ratio['low']:.3f}-{ratio['high']:.3f}"]
        gap = one["difference"]
        said = "equal" if gap <= _CLOSE else f"[red]{gap:.0e} apart[/red]"
        table.add_row(*cells, str(one["ratio"]["n"]), said, one["ratio"]["verdict"])
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
    print(f"largest difference of the numbers that both found: {max(one['difference'] for one in rows):.1e}")


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.worker:
        work(quick_sizes() if args.quick else full_sizes(), args.threads)
        return
    from ostinato.experiments.results import write_rows

    rows = measure(args)
    print_rows(rows)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_rows(rows, args.out.with_suffix(".jsonl"))


if __name__ == "__main__":
    main()
