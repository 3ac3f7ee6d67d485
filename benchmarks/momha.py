"""How long does a mixture of multi-head attentions take, against dense attention and a plain loop over its experts?

    python benchmarks/momha.py --threads 2 --out docs/results/momha

4,096 tokens (32 sentences of 128), width 512; sizes are (E, k, H, D): E experts of H heads of width D, k experts a
token. "dense" has k H heads: the queries and outputs of one token are as large, its keys and values k times as large
as ours. Router, sorting and gathering are inside the time; balance losses are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from attention_layers import (
    AttentionCell,
    LoopAttention,
    attention_work,
    dense_attention,
    our_attention,
    torch_attention,
)
from common import parser, save
from layer_study import Row, conditions, run_cells
from layer_tables import Run, absent, cells, layer_tables, number_table
from layers import Absent, Contestant, layer

from ostinato.experiments.results import read_rows

SIZES = ["24,4,4,64", "8,2,4,64", "32,2,4,64", "64,4,2,64"]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=8.0)
    options.add_argument("--sizes", nargs="+", metavar="E,k,H,D", default=SIZES, help="default: %(default)s")
    options.add_argument("--windows", nargs="+", type=int, default=[0, 64], metavar="W", help="0: none (default 0 64)")
    options.add_argument("--backends", nargs="+", default=[], metavar="NAME", help="ours with these backends as well")
    options.add_argument("--read", type=Path, nargs="+", metavar="JSONL", help="measure nothing: tables of these runs")
    return options.parse_args(given)


def studied(args: argparse.Namespace) -> list[AttentionCell]:
    """Return every size with every window."""
    if args.quick:
        return [AttentionCell(4, 2, 2, 8, window, n_sentences=2, length=8, d_model=32) for window in (None, 2)]
    sizes = [tuple(map(int, size.split(","))) for size in args.sizes]
    return [AttentionCell(*size, window=window or None) for window in args.windows for size in sizes]


def contestants(args: argparse.Namespace, cell: AttentionCell, device: torch.device) -> Iterator[Contestant | Absent]:
    """Yield all that meet in a cell."""
    work = attention_work(cell, device=device)
    yield dense_attention(work, cell.active_heads, "dense")
    yield dense_attention(work, cell.equal_heads, "dense, equal parameters")
    yield torch_attention(work)
    yield layer("ours", "ours", our_attention(work), work.x_BTD)
    for backend in args.backends:
        yield layer(f"ours {backend}", "ours", our_attention(work, backend), work.x_BTD)
    yield layer("loop over experts", "reference", LoopAttention(work).to(device), work.x_BTD)


def more(cell: AttentionCell, present: Sequence[Contestant]) -> Iterator[Row]:
    """Yield the realised load and the multiply-accumulates."""
    yield {"kind": "load"} | attention_work(cell).load()
    counts = {
        "dense": cell.dense_macs(cell.active_heads),
        "dense, equal parameters": cell.dense_macs(cell.equal_heads),
        "ours": cell.macs(),
    }
    yield from ({"kind": "macs", "name": name, "macs": count} for name, count in counts.items())


def size(cell: Row) -> str:
    """Return (E, k, H, D)."""
    return ",".join(str(cell[key]) for key in ("n_experts", "k", "n_heads", "d_head"))


def series(cell: Row) -> str:
    """Return what cells of one table have in common."""
    positions = "no relative positions" if cell["window"] is None else f"window {cell['window']}"
    return f"self-attention, {positions}, {cell['n_sentences'] * cell['length']:,} tokens, {cell['routing']} routing"


def report(runs: Sequence[Run]) -> str:
    """Return all tables as Markdown."""
    sections = [conditions([row for run in runs for row in run])]
    for title in dict.fromkeys(series(key) for key in cells(runs)):
        mine = [key for key in cells(runs) if series(key) == title]
        sections += [f"### {title}\n", *layer_tables(runs, mine, size, "E,k,H,D")]
        sections.append(number_table(runs, "Parameters, M", mine, size, number="parameters", unit=1e6))
        head = "Multiply-accumulates of a forward pass, G"
        sections.append(number_table(runs, head, mine, size, number="macs", unit=1e9, kind="macs"))
    sections.append(absent(runs, lambda key: f"{size(key)}, window {key['window']}"))
    return "\n".join(section for section in sections if section)


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.read:
        runs = [read_rows(path) for path in args.read]
    else:
        runs = [run_cells("momha", studied(args), partial(contestants, args), args, more)]
    save([row for run in runs for row in run], report(runs), args.out)


if __name__ == "__main__":
    main()
