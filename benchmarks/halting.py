"""How much time do tokens that have stopped save, against full depth and against the least it could take?

    python benchmarks/halting.py --threads 2 --trace runs/mine/results.json --out docs/results/halting
    python benchmarks/halting.py --read run-1.jsonl run-2.jsonl run-3.jsonl --out docs/results/halting
    python benchmarks/halting.py --widths 512 --patterns uniform --decoded 1 8 64 --threads 2 --out halting-decoding

A Universal Transformer, encoder and decoder of 12 rounds each, one set of weights a stack, the feed-forward four times
as wide, heads of 64. How deep every token goes is prescribed. Full depth is the stack without a halting rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import parser, save
from depth_floor import DepthFloor
from forced_depth import PATTERNS, ForcedDepths, Pattern, Trace, depths, read_trace
from halting_report import FLOOR, FULL, GATES, MODES, report, verdicts
from layer_study import Row, run_cells
from layers import Contestant
from torch import Tensor

from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import Seq2SeqConfig
from ostinato.data.batch import Batch
from ostinato.decoding import inference, search
from ostinato.experiments.results import read_rows
from ostinato.experiments.timing.workloads import Bench, Endless, TimedModel, Workload, random_batch
from ostinato.models import Seq2Seq
from ostinato.nn.cache import Cache
from ostinato.nn.execution import Compaction
from ostinato.nn.feedforward import FeedForward
from ostinato.nn.halting import NoHalting
from ostinato.nn.stack import Stack

ENCODING, UPDATE = "encoding", "update"
STACKS = ("encoder", "decoder")


@dataclass(frozen=True, slots=True)
class Cell:
    """What all contestants of a comparison have in common.

    Args:
        n_encoded, n_updated: sentences of an encoding and of an update. decoded: those of a decoding, one after the
            other. length: tokens of a source, and of a target.
    """

    d_model: int
    pattern: Pattern
    n_rounds: int = 12
    length: int = 64
    n_encoded: int = 32
    n_updated: int = 8
    decoded: tuple[int, ...] = (1, 32)
    d_head: int = 64

    def key(self) -> dict[str, Any]:
        """Return it as data, as JSON gives it back."""
        return asdict(self) | {"decoded": list(self.decoded)}

    @property
    def phases(self) -> dict[str, int]:
        """What is timed, and the sentences of each; updates come last, for they change the weights."""
        decoding = {f"decoding, batch {n}": n for n in self.decoded}
        return {ENCODING: self.n_encoded, **decoding, UPDATE: self.n_updated}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=30.0)
    options.add_argument("--widths", nargs="+", type=int, default=[256, 512], metavar="D", help="default: 256 512")
    options.add_argument("--patterns", nargs="+", choices=PATTERNS, help="default: all; trace where one is given")
    options.add_argument(
        "--decoded", nargs="+", type=int, metavar="N", help="sentences of decodings, in place of 1 32; no other phase"
    )
    options.add_argument(
        "--phases", nargs="+", metavar="PHASE", help=f"only these: {', '.join(Cell(0, 'none').phases)}"
    )
    options.add_argument(
        "--trace", type=Path, metavar="FILE", help="depths of a trained run: its results.json, or other JSON or NPZ"
    )
    options.add_argument("--read", type=Path, nargs="+", metavar="JSONL", help="measure nothing: judge these runs")
    return options.parse_args(given)


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return what to measure."""
    wanted = args.patterns or [name for name in PATTERNS if name != "trace" or args.trace]
    if "trace" in wanted and not args.trace:
        raise SystemExit("the pattern trace needs --trace FILE")
    if args.quick:
        small = {"n_rounds": 4, "length": 4, "n_encoded": 3, "n_updated": 2, "d_head": 8}
        small["decoded"] = tuple(args.decoded or (1, 3))
        return [Cell(16, pattern, **small) for pattern in wanted]
    decoded = {"decoded": tuple(args.decoded)} if args.decoded else {}
    return [Cell(width, pattern, **decoded) for width in args.widths for pattern in wanted]


def phases(args: argparse.Namespace) -> list[str]:
    """Return the phases asked for, all where none is named, in the order in which they can be measured."""
    known = list(cells(args)[0].phases)
    if unknown := set(args.phases or ()) - set(known):
        raise SystemExit(f"--phases {', '.join(sorted(unknown))}: must be of {', '.join(known)}")
    wanted = args.phases or ([phase for phase in known if phase.startswith("decoding")] if args.decoded else known)
    return [phase for phase in known if phase in wanted]


def candidate(cell: Cell, gate: str | None = None) -> TimedModel:
    """Return a model, and with a gate one whose tokens could halt and do not."""
    d = cell.d_model
    stack: dict[str, Any] = {
        "n_steps": cell.n_rounds,
        "norm": {"placement": "pre"},
        "ffn": {"d_ff": 4 * d, "share": "all"},
        "positions": {"kind": "coordinates"},
        "self_attention": {"n_heads": d // cell.d_head, "share": "all"},
    }
    if gate is not None:
        stack["halting"] = {"kind": gate, "initial_bias": -30.0}
    decoder = stack | {"cross_attention": stack["self_attention"]}
    vocabulary = {"source_vocab_size": 1000, "target_vocab_size": 1000}
    model = {"d_model": d, "dropout": 0.0, "encoder": stack, "decoder": decoder, **vocabulary}
    return TimedModel(gate or "plain", Seq2SeqConfig.model_validate(model))


class Encoded(Endless):
    """A model whose sources have been encoded."""

    def __init__(self, model: Seq2Seq, memory_BSD: Tensor) -> None:
        super().__init__(model)
        self._memory_BSD = memory_BSD

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        """Return a cache that knows them."""
        execution = self.model.current_execution
        return Cache(memory_BSD=self._memory_BSD, n_steps=n_steps, execution=execution, device=self._memory_BSD.device)


def works(bench: Bench, cell: Cell, wanted: Sequence[str]) -> dict[str, Callable[[], object]]:
    """Return what is timed, by phase, of a model as it stands when it is called."""
    return {phase: _work(bench, cell, phase, n) for phase, n in cell.phases.items() if phase in wanted}


def _work(bench: Bench, cell: Cell, phase: str, n: int) -> Callable[[], object]:
    model = bench.model
    workload = Workload("update", n, cell.length, cell.length)
    if phase == UPDATE:
        return bench.call(workload)
    batch = random_batch(bench.candidate.model, workload, bench.seed).to(bench.device)

    def encode() -> Cache:
        with inference(model):
            return model.encode(batch)

    if phase == ENCODING:
        return encode
    endless = Encoded(model, encode().memory_BSD)
    config = DecodingConfig(strategy="greedy", max_length=cell.length)

    def decode() -> object:
        with inference(model):
            return search(endless, batch, config)

    return decode


def forced(cell: Cell, trace: Trace, stack: str, n: int) -> Tensor:
    """Return the rounds of every token of a stack, `[n, length]`."""
    return depths(cell.pattern, (n, cell.length), cell.n_rounds, shares_R=trace.get(stack))


def contestants(wanted: Sequence[str], trace: Trace, cell: Cell, device: torch.device) -> Iterator[Contestant]:
    """Yield all that meet in a cell; but for the gates they share one model."""
    bench = Bench(candidate(cell), device)
    model, own = bench.model, dict(bench.model.stacks)
    timed = works(bench, cell, wanted)

    def call(
        phase: str, prepare: Callable[[Stack, Tensor], Stack], compaction: Compaction = "auto"
    ) -> Callable[[], object]:
        rounds = {name: forced(cell, trace, name, cell.phases[phase]).to(device) for name in STACKS}

        def run() -> object:
            model.stacks.update({name: prepare(own[name], rounds[name]) for name in STACKS})
            with model.execution(compaction=compaction):
                return timed[phase]()

        return run

    yield Contestant(FULL, "reference", {phase: call(phase, _plain) for phase in timed})
    for name, mode in MODES.items():
        yield Contestant(name, "ours", {phase: call(phase, _forced, mode) for phase in timed})
    yield Contestant(FLOOR, "limit", {phase: call(phase, DepthFloor) for phase in timed})
    for gate, name in GATES.items() if cell.pattern == "none" else ():
        yield Contestant(name, "ours", works(Bench(candidate(cell, gate), device), cell, wanted))


def _plain(stack: Stack, depths_BT: Tensor) -> Stack:
    stack.halting = NoHalting()
    return stack


def _forced(stack: Stack, depths_BT: Tensor) -> Stack:
    stack.halting = ForcedDepths(depths_BT)
    return stack


def more(trace: Trace, cell: Cell, present: Sequence[Contestant]) -> Iterator[Row]:
    """Yield the rounds of tokens: all, those that tokens take part in, and those that are computed."""
    by_name = {one.name: one for one in present}
    for phase in by_name[FULL].calls:
        n = cell.phases[phase]
        used = STACKS if phase == UPDATE else STACKS[:1] if phase == ENCODING else STACKS[1:]
        full = len(used) * n * cell.length * cell.n_rounds
        needed = sum(int(forced(cell, trace, stack, n).sum()) for stack in used)
        computed = {mode: feed_forward_rows(by_name[mode].calls[phase]) for mode in MODES}
        yield {"kind": "rounds", "phase": phase, "full": full, "needed": needed, "computed": computed}


def feed_forward_rows(call: Callable[[], object]) -> int:
    """Return the rows that all feed-forwards compute during a call."""
    rows = 0

    def count(module: object, given: tuple[Any, ...]) -> None:
        nonlocal rows
        if isinstance(module, FeedForward):
            rows += given[0].shape[:-1].numel()

    handle = torch.nn.modules.module.register_module_forward_pre_hook(count)
    try:
        call()
    finally:
        handle.remove()
    return rows


def together(runs: Sequence[list[Row]]) -> list[list[Row]]:
    """Return rows of several runs; cells that differ in their decodings alone are one, for every phase says its own."""
    rows = [row for run in runs for row in run if "cell" in row]
    decoded = sorted({n for row in rows for n in row["cell"]["decoded"]})
    return [
        [row | {"cell": row["cell"] | {"decoded": decoded}} if "cell" in row else row for row in run] for run in runs
    ]


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.read:
        runs = together([read_rows(path) for path in args.read])
    else:
        trace = read_trace(args.trace) if args.trace else {}
        runs = [
            run_cells(
                "halting",
                cells(args),
                partial(contestants, phases(args), trace),
                args,
                partial(more, trace),
                phases(args),
            )
        ]
    measured = [[row for row in run if row["kind"] != "verdict"] for run in runs]
    judged = verdicts(measured)
    rows = [{"study": "halting"} | verdict.row() for verdict in judged]
    save([*(row for run in measured for row in run), *rows], report(measured, judged), args.out)


if __name__ == "__main__":
    main()
