"""How fast is cached decoding beside public decoders, and what do the papers' models gain?

    python benchmarks/decode.py --threads 2 --out docs/results/decode
    python benchmarks/decode.py --read run-1.jsonl run-2.jsonl --out docs/results/decode

Encoder and decoder of 6 layers, width 256, feed-forward 1024, 8 heads; sources of 48 tokens, 64 new tokens each,
whatever they are; random weights, float32. The encoder's pass is part of the time. Then the models of the papers beside
the dense one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from common import parser, save
from decode_limit import matmuls
from decode_peers import Sizes, Work, peers
from decode_profile import purpose
from decode_report import DENSE, HALF, LIMIT, OURS, PAPERS, PEERS, report, verdicts
from forced_depth import ForcedDepths, depths
from layer_parts import parts, seen_kernels
from layer_study import Row, numbered, read_runs, run_cells
from layers import Absent, Contestant
from torch import Tensor

from ostinato.budget import count_macs
from ostinato.config.model import Seq2SeqConfig
from ostinato.decoding.beams import Hypothesis
from ostinato.experiments.timing.workloads import Bench, TimedModel, Workload, random_batch
from ostinato.kernels import packing

REST = 0.3
"""Seconds before every call: threads of the call before may still be waiting for work, and take a core to do so."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What all contestants of a comparison have in common.

    Args:
        study: peers, or papers. loads: sentences and beam of every phase.
    """

    study: str
    sizes: Sizes
    loads: tuple[tuple[int, int], ...] = ((1, 1), (1, 5), (32, 1), (32, 5))

    def key(self) -> dict[str, Any]:
        """Return it as data, as JSON gives it back."""
        return {"study": self.study, **asdict(self.sizes), "loads": [list(load) for load in self.loads]}

    @property
    def workloads(self) -> dict[str, Workload]:
        """What is timed, by phase."""
        lengths = (self.sizes.source_length, self.sizes.target_length)
        return {f"{n}:{beam}": Workload("decoding", n, *lengths, beam=beam) for n, beam in self.loads}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=20.0)
    options.add_argument("--vocab", type=int, nargs="+", default=[2000, 32000], metavar="V", help="default: 2000 32000")
    options.add_argument("--without", nargs="+", default=[], metavar="NAME", help="leave these contestants out")
    options.add_argument("--studies", nargs="+", choices=(PEERS, PAPERS), default=[PEERS, PAPERS])
    options.add_argument("--profile", action="store_true", help="also where the time of ours goes")
    options.add_argument("--read", type=Path, nargs="+", metavar="JSONL", help="measure nothing: judge these runs")
    args = options.parse_args(given)
    if args.device != "cpu":
        options.error("--device: peers and models are built on a CPU here; decoding on a GPU is in benchmarks/gpu.py")
    return args


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return what to measure: the papers' models with the first vocabulary only."""
    vocabularies = {PEERS: args.vocab, PAPERS: args.vocab[:1]}
    found = [Cell(study, Sizes(n)) for study in args.studies for n in vocabularies[study]]
    if not args.quick:
        return found
    small = {"vocabulary": 40, "d_model": 16, "d_ff": 32, "n_heads": 2, "n_steps": 2}
    sizes = replace(Sizes(1), **small, source_length=4, target_length=5)
    return [Cell(study, sizes, ((1, 1), (3, 2))) for study in args.studies]


def config(sizes: Sizes, **changes: Any) -> Seq2SeqConfig:
    """Return the dense post-norm model, or with changes to both stacks or to the whole (`model`)."""
    attention = {"n_heads": sizes.n_heads}
    stack: dict[str, Any] = {
        "n_steps": sizes.n_steps,
        "norm": {"placement": "post"},
        "ffn": {"d_ff": sizes.d_ff},
        "positions": {"kind": "sinusoidal"},
        "self_attention": attention,
    }
    decoder = {"cross_attention": attention, **changes.get("decoder", {})}
    model = {
        "d_model": sizes.d_model,
        "dropout": 0.0,
        "tie_embeddings": "none",
        "encoder": stack | changes.get("encoder", {}),
        "decoder": stack | decoder,
        "source_vocab_size": sizes.vocabulary,
        "target_vocab_size": sizes.vocabulary,
    }
    return Seq2SeqConfig.model_validate(model | changes.get("model", {}))


def paper_models(sizes: Sizes) -> dict[str, Seq2SeqConfig]:
    """Return the papers' models by name, of the dense model's depth and active width."""
    shared = {"share": "all"}
    universal = {"self_attention": {"n_heads": sizes.n_heads, **shared}, "ffn": {"d_ff": sizes.d_ff, **shared}}
    seen = {"cross_attention": {"n_heads": sizes.n_heads, **shared}}
    sparse = {
        "self_attention": _experts(sizes, n_heads=sizes.n_heads // 2, d_head=sizes.d_model // sizes.n_heads),
        "ffn": _experts(sizes, d_ff=sizes.d_ff // 2),
    }
    return {
        DENSE: config(sizes),
        "NoDec": config(sizes, model={"ffn_variant": "no-dec"}),
        "One Wide FFN": config(sizes, model={"ffn_variant": "one-wide", "shared_d_ff": "parity"}),
        "universal": config(sizes, encoder=universal, decoder=universal | seen),
        HALF: config(sizes, encoder=universal, decoder=universal | seen),
        "MoMHA + MoE": config(sizes, encoder=sparse, decoder=sparse | seen),
    }


def _experts(sizes: Sizes, **size: int) -> dict[str, Any]:
    """Return two of eight experts, each half as large as the dense layer."""
    return {"kind": "experts", "n_experts": 8, "top_k": 2, "share": "all", **size}


def contestants(cell: Cell, device: torch.device) -> Iterator[Contestant | Absent]:
    """Yield all that meet in a cell."""
    if cell.study == PAPERS:
        for name, model in paper_models(cell.sizes).items():
            yield _ours(cell, Bench(TimedModel(name, model), device), name)
        return
    bench = Bench(TimedModel(OURS, config(cell.sizes)), device)
    _spread(bench)
    yield _ours(cell, bench, OURS)
    yield Contestant(LIMIT, "limit", {phase: matmuls(cell.sizes, w) for phase, w in cell.workloads.items()})
    batches = {phase: random_batch(bench.candidate.model, w, bench.seed) for phase, w in cell.workloads.items()}
    sources = {phase: batch.source.ids_BT for phase, batch in batches.items()}
    beams = {phase: workload.beam for phase, workload in cell.workloads.items()}
    yield from peers(Work(cell.sizes, bench.model, sources, beams, torch.get_num_threads()))


@torch.no_grad()
def _spread(bench: Bench) -> None:
    """Make the random model say different things: as it is initialised it soon repeats a single token."""
    generator = torch.Generator().manual_seed(bench.seed)
    for weight in (bench.model.target_embedding, bench.model.output_projection):
        weight.normal_(generator=generator)


def _ours(cell: Cell, bench: Bench, name: str) -> Contestant:
    calls = {phase: bench.call(workload) for phase, workload in cell.workloads.items()}
    if name == HALF:
        # One rule for all phases: compiled steps keep the rule they were prepared with.
        rule = bench.model.stacks["decoder"].halting = ForcedDepths(_half(cell, next(iter(cell.workloads.values()))))
        calls = {phase: _halting(call, rule, _half(cell, cell.workloads[phase])) for phase, call in calls.items()}
    return Contestant(name, "ours", calls)


def _half(cell: Cell, workload: Workload) -> Tensor:
    """Return depths of which every second is half the decoder's, `[sentences x beam, length]`."""
    rows = workload.batch_size * workload.beam
    return depths("half", (rows, workload.target_length), cell.sizes.n_steps)


def _halting(call: Callable[[], object], rule: ForcedDepths, depths_BT: Tensor) -> Callable[[], object]:
    """Return a search whose tokens stop at these depths."""

    def halting() -> object:
        rule.prescribe(depths_BT)
        return call()

    return halting


def more(args: argparse.Namespace, cell: Cell, present: Sequence[Contestant]) -> Iterator[Row]:
    """Yield whether others give our outputs, the multiply-accumulates of a token, and where the time of ours goes."""
    by_name = {one.name: one for one in present}
    for phase, call in by_name[OURS].calls.items() if args.profile and OURS in by_name else ():
        with seen_kernels():
            found = parts(call, 3, purpose)
        yield from ({"kind": "part", "phase": phase} | row for row in found)
    if cell.study == PAPERS:
        for name, model in paper_models(cell.sizes).items():
            expected = {"decoder": 0.75 * cell.sizes.n_steps} if name == HALF else None
            macs = count_macs(
                _halting_config(model) if name == HALF else model,
                cell.sizes.source_length,
                cell.sizes.target_length,
                expected_depth=expected,
            )
            yield {"kind": "macs", "name": name, "per_target_token": macs.per_target_token}
    elif {OURS, "CTranslate2"} <= by_name.keys():
        for phase in by_name[OURS].calls:
            ours: list[Hypothesis] = by_name[OURS].calls[phase]()
            theirs = by_name["CTranslate2"].calls[phase]()
            n_equal = sum(mine.ids == other for mine, other in zip(ours, theirs, strict=True))
            yield {"kind": "equal", "phase": phase, "name": "CTranslate2", "equal": n_equal, "sentences": len(ours)}


def _halting_config(model: Seq2SeqConfig) -> Seq2SeqConfig:
    """Return the model with a rule, so that a depth can be expected of it."""
    data = model.model_dump()
    data["decoder"]["halting"] = {"kind": "act"}
    return Seq2SeqConfig.model_validate(data)


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.read:
        runs = read_runs(args.read)
    else:
        phases = list(cells(args)[0].workloads)
        rest = 0.0 if args.quick else REST

        def build(cell: Cell, device: torch.device) -> Iterator[Contestant | Absent]:
            return (one for one in contestants(cell, device) if one.name not in args.without)

        with packing():  # once for all calls, as `generate` does for all its texts, and others when they load a model
            runs = [run_cells("decode", cells(args), build, args, partial(more, args), phases, rest=rest)]
    judged = verdicts(runs)
    rows = [{"study": "decode"} | verdict.row() for verdict in judged]
    save([*numbered(runs), *rows], report(runs, judged), args.out)


if __name__ == "__main__":
    main()
