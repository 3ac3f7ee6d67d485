"""How long does a mixture of feed-forwards take, against a dense one of equal work, and against public ones?

    python benchmarks/moe_ffn.py --threads 2 --out docs/results/moe-ffn
    python benchmarks/moe_ffn.py --read run-1.jsonl run-2.jsonl run-3.jsonl --out docs/results/moe-ffn

4,096 tokens (32 sentences of 128), width 512; E experts, k a token, k times an expert's hidden width = 1,536 (gated
ones two thirds). Router, sorting, gathering and combining are inside the time; balance losses are not. Peers take part
where they are installed: pip install -e ".[peers]".
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from common import parser, save
from forced_routing import DISTRIBUTIONS
from layer_parts import parts, seen_kernels
from layer_study import Row, gradients, run_cells
from layers import BOTH, Absent, Contestant, trial
from live_memory import resident_bytes
from moe_layers import Cell, Work, dense, grouped_mm, limit, limit_of_experts, make_work, ours, ours_in_new_memory
from moe_peers import peers
from moe_profile import purpose
from moe_report import report, verdicts

from ostinato.experiments.results import read_rows
from ostinato.training.threads import cpu_threads

SIZES = ["8:1", "8:2", "8:4", "32:1", "32:2", "32:4", "64:1", "64:2", "64:4"]
SERIES = (*DISTRIBUTIONS, "few")
RESIDENT = ("dense", "ours", "torch grouped_mm")
TARGET_SIZES = ("8:2", "32:2", "64:2", "64:4")
ZIPF = ("dense", "ours", "torch grouped_mm", "HF Mixtral grouped_mm", "st-moe")
FEW_TOKENS = 256


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=11.0)
    options.add_argument("--cells", nargs="+", metavar="E:K", help="default: E of 8, 32, 64 times k of 1, 2, 4")
    options.add_argument("--series", nargs="+", choices=SERIES, default=list(SERIES), help="few: 256 tokens, 8:2")
    options.add_argument("--layers", nargs="+", metavar="NAME", help="only these, and the dense one")
    options.add_argument("--without", nargs="+", default=[], metavar="NAME", help="not these")
    options.add_argument("--backends", nargs="+", default=[], metavar="NAME", help="ours with these backends as well")
    options.add_argument("--profile", action="store_true", help="say where the time of ours goes")
    options.add_argument("--no-resident", action="store_true", help="no processes of their own for resident memory")
    options.add_argument("--read", type=Path, nargs="+", metavar="JSONL", help="measure nothing: judge these runs")
    options.add_argument("--resident", help=argparse.SUPPRESS)
    return options.parse_args(given)


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return what to measure: all sizes with uniform routing, k = 2 with Zipf's (or those asked for)."""
    if args.quick:
        base = Cell(4, 2, n_tokens=64, d_model=32, width=48)
        return [base, replace(base, n_experts=8, k=1), replace(base, routing="zipf")]
    wanted = [tuple(map(int, size.split(":"))) for size in args.cells or SIZES]
    found = [Cell(E, k) for E, k in wanted] if "uniform" in args.series else []
    if "zipf" in args.series:
        found += [Cell(E, k, "zipf") for E, k in wanted if args.cells or k == 2]
    return [*found, Cell(8, 2, n_tokens=FEW_TOKENS)] if "few" in args.series else found


def contestants(args: argparse.Namespace, cell: Cell, device: torch.device) -> Iterator[Contestant | Absent]:
    """Yield all that meet in a cell."""
    work = make_work(cell, device=device)
    for one in _all(args, work):
        if one.name == "dense" or _takes_part(args, cell, one.name):
            yield one


def _takes_part(args: argparse.Namespace, cell: Cell, name: str) -> bool:
    if args.layers or name in args.without:
        return name in (args.layers or ()) and name not in args.without
    return cell.routing == "uniform" or name in ZIPF or name.startswith("ours ")


def _all(args: argparse.Namespace, work: Work) -> Iterator[Contestant | Absent]:
    yield from (dense(work), dense(work, "geglu"), limit(work), limit_of_experts(work))
    yield from (ours(work), ours(work, activation="geglu"))
    yield from (ours(work, backend) for backend in args.backends)
    yield ours_in_new_memory(work)
    yield grouped_mm(work)
    yield from peers(work)


def more(args: argparse.Namespace, cell: Cell, present: Sequence[Contestant]) -> Iterator[Row]:
    """Yield the realised load, and where asked for the parts of the time and the resident memory of some."""
    yield {"kind": "load"} | make_work(cell).load()
    is_target = cell in [Cell(*map(int, size.split(":"))) for size in TARGET_SIZES]
    if args.profile and (is_target or args.quick):
        for one in present:
            if one.name == "ours":
                with seen_kernels():
                    found = parts(one.calls[BOTH], 7, partial(purpose, cell))
                yield from ({"kind": "part"} | row for row in found)
    if is_target and not args.no_resident:
        for name in [one.name for one in present if one.name in RESIDENT]:
            if (size := _resident_elsewhere(args, cell, name)) is not None:
                yield {"kind": "resident", "name": name, "resident_bytes": size}


def _resident_elsewhere(args: argparse.Namespace, cell: Cell, name: str) -> int | None:
    """Return the resident memory of one contestant's pass, in a process of its own."""
    threads = [] if args.threads is None else ["--threads", str(args.threads)]
    command = [sys.executable, __file__, "--resident", name, "--cells", str(cell), "--series", "uniform", *threads]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return None if said == "None" else int(said)


def resident(args: argparse.Namespace) -> int | None:
    """Return the resident memory of a pass of the one contestant asked for, gradients of parameters taken off.

    A small pass of the same sizes comes first, so that code and workspaces are there.
    """
    builders = {"dense": dense, "ours": ours, "torch grouped_mm": grouped_mm}
    (cell,) = cells(args)
    with cpu_threads(args.threads):
        trial([builders[args.resident](make_work(replace(cell, n_tokens=FEW_TOKENS)))])
        one = builders[args.resident](make_work(cell))
        raised = resident_bytes(one.calls[BOTH])
    if raised is None:
        return None
    return raised - sum(grad.numel() * grad.element_size() for grad in gradients(one))


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.resident:
        print(resident(args))
        return
    if args.read:
        runs = [read_rows(path) for path in args.read]
    else:
        runs = [run_cells("moe_ffn", cells(args), partial(contestants, args), args, partial(more, args))]
    measured = [[row for row in run if row["kind"] != "verdict"] for run in runs]
    judged = verdicts(measured)
    rows = [{"study": "moe_ffn"} | verdict.row() for verdict in judged]
    save([*(row for run in measured for row in run), *rows], report(measured, judged), args.out)


if __name__ == "__main__":
    main()
