"""How long does one update of a transformer take, against public ones and against its matrix products alone?

    python benchmarks/train_step.py --threads 2 --out docs/results/train-step
    python benchmarks/train_step.py --read run-1.jsonl run-2.jsonl --out docs/results/train-step
    python benchmarks/train_step.py --families loops --threads 2 --out own-loop
    python benchmarks/train_step.py --families loops --threads 2 --fresh-memory --out own-loop-fresh

An update is forward, loss, backward, clipping and AdamW. Encoder and decoder of 6 steps each, width 256, feed-forward
1,024, 8 heads, 2,000 pieces; 64 sentences of 48 + 48 tokens; dropout 0.1 everywhere, and none. Then the Sparse
Universal Transformer of ours (16 experts, 4 a token, in attention and feed-forward; stick-breaking) beside the dense
model of equal active size. Peers take part where they are installed: pip install -e ".[peers]".

Loops: our dense model, updated as `ostinato train` does it, by a loop of one's own as docs/python.md writes it
(`model.loss`, fused AdamW), and by a plain one (cross-entropy of the logits, AdamW as torch makes it). --fresh-memory
leaves out `keep_freed_memory`, which is told to the process and so to all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from common import parser, save
from layer_parts import parts, seen_kernels
from layer_study import Row, numbered, read_runs, run_cells
from layers import Absent, Contestant
from live_memory import peak_bytes
from torch import Tensor
from update_peers import UPDATE, peers, updated
from update_report import LIMIT, OURS, SPARSE, report, verdicts

from ostinato.config.model import Seq2SeqConfig
from ostinato.config.training import TrainingConfig
from ostinato.data.batch import Batch
from ostinato.experiments.timing.workloads import Bench, TimedModel, Workload, random_batch
from ostinato.kernels import large_products
from ostinato.models import Model, build_model

OWN_LOOP, PLAIN_LOOP = "own loop", "plain loop"
_EXPERTS = {"kind": "experts", "share": "all", "n_experts": 16, "top_k": 4, "router": {"kind": "mlp"}}


@dataclass(frozen=True, slots=True)
class Cell:
    """What all contestants of a comparison have in common.

    Args:
        family: dense: ours and its peers; sparse: ours with experts and halting beside the dense one.
        dropout: of embeddings, residuals, attention weights and the hidden layer of feed-forwards.
    """

    family: str
    dropout: float
    n_steps: int = 6
    d_model: int = 256
    d_ff: int = 1024
    n_heads: int = 8
    vocabulary: int = 2000
    n_sentences: int = 64
    source_length: int = 48
    target_length: int = 48

    def key(self) -> Row:
        """Return it as data."""
        return asdict(self)

    @property
    def workload(self) -> Workload:
        """One update."""
        return Workload("update", self.n_sentences, self.source_length, self.target_length)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=6.0)
    options.add_argument("--dropouts", nargs="+", type=float, default=[0.1, 0.0], metavar="P", help="default: 0.1 0")
    options.add_argument(
        "--families", nargs="+", choices=FAMILIES, default=["dense", "sparse"], help="default: dense sparse"
    )
    options.add_argument("--without", nargs="+", default=[], metavar="NAME", help="leave these contestants out")
    options.add_argument("--compiled", action="store_true", help="also ours with training.compile (a minute each)")
    options.add_argument("--no-memory", action="store_true", help="leave memory out, which every run finds the same")
    options.add_argument("--fresh-memory", action="store_true", help="freed memory goes back to the system")
    options.add_argument("--profile", action="store_true", help="also where the time of ours goes")
    options.add_argument("--read", type=Path, nargs="+", metavar="JSONL", help="measure nothing: judge these runs")
    return options.parse_args(given)


def cells(args: argparse.Namespace) -> list[Cell]:
    """Return what to measure."""
    small = {"n_steps": 1, "d_model": 16, "d_ff": 32, "n_heads": 2, "vocabulary": 20, "n_sentences": 2}
    sizes = small | {"source_length": 3, "target_length": 4} if args.quick else {}
    return [Cell(family, dropout, **sizes) for family in args.families for dropout in args.dropouts]


def model(cell: Cell, *, sparse: bool = False) -> Seq2SeqConfig:
    """Return our dense model, or our sparse one of equal active size."""
    if sparse:
        heads, width = max(1, cell.n_heads // 4), cell.d_model // cell.n_heads
        attention = _EXPERTS | {"n_heads": heads, "d_head": width, "dropout": cell.dropout}
        ffn = _EXPERTS | {"d_ff": cell.d_ff // 4, "dropout": cell.dropout}
        more: dict[str, Any] = {"halting": {"kind": "stick_breaking"}}
    else:
        attention = {"n_heads": cell.n_heads, "dropout": cell.dropout}
        ffn, more = {"d_ff": cell.d_ff, "dropout": cell.dropout}, {}
    stack = {"n_steps": cell.n_steps, "self_attention": attention, "ffn": ffn} | more
    return Seq2SeqConfig.model_validate(
        {
            "d_model": cell.d_model,
            "dropout": cell.dropout,
            "tie_embeddings": "all",
            "encoder": stack,
            "decoder": stack | {"cross_attention": attention},
            "source_vocab_size": cell.vocabulary,
            "target_vocab_size": cell.vocabulary,
        }
    )


def ours(cell: Cell, device: torch.device, name: str = OURS, *, sparse: bool = False, **training: object) -> Contestant:
    """Return a model of ours, updated as `ostinato train` does it."""
    balance = {"balance": {"mutual_information": 1e-3}} if sparse else {}
    settings = TrainingConfig.model_validate({"clip_norm": 1.0} | balance | training)
    bench = Bench(TimedModel(name, model(cell, sparse=sparse), settings), device)
    bench.model.train()
    return Contestant(name, "ours", {UPDATE: bench.call(cell.workload)}, tuple(bench.model.parameters()))


def with_torchs_products(one: Contestant) -> Contestant:
    """Return a model of ours whose products are torch's, as they are on other processors."""
    plain = one.calls[UPDATE]

    def update() -> object:
        with patch.object(large_products, "has_slow_products", lambda: False):
            return plain()

    return replace(one, calls={UPDATE: update})


def limit(cell: Cell, device: torch.device) -> Contestant:
    """The matrix products of one update by torch and nothing else, into memory that is there already."""
    new = partial(torch.randn, device=device)
    rows = {"encoder": cell.n_sentences * cell.source_length, "decoder": cell.n_sentences * cell.target_length}
    calls: list[Callable[[], object]] = []
    room: dict[tuple[int, ...], Tensor] = {}

    def into(*shape: int) -> Tensor:
        return room.setdefault(shape, new(*shape))

    def linear(n: int, d_in: int, d_out: int) -> None:
        x, w, grad = new(n, d_in), new(d_out, d_in), new(n, d_out)
        calls.append(partial(torch.mm, x, w.t(), out=into(n, d_out)))
        calls.append(partial(torch.mm, grad, w, out=into(n, d_in)))
        calls.append(partial(torch.mm, grad.t(), x, out=into(d_out, d_in)))

    def attend(queries: int, keys: int) -> None:
        n, d = cell.n_sentences * cell.n_heads, cell.d_model // cell.n_heads
        q, k, weights = new(n, queries, d), new(n, keys, d), new(n, queries, keys)
        scores, of_q, of_k = into(n, queries, keys), into(n, queries, d), into(n, keys, d)
        calls.append(partial(torch.bmm, q, k.transpose(1, 2), out=scores))  # scores, and below their gradients
        calls.append(partial(torch.bmm, weights, k, out=of_q))  # what is read
        calls.append(partial(torch.bmm, q, k.transpose(1, 2), out=scores))
        calls.append(partial(torch.bmm, weights.transpose(1, 2), q, out=of_k))
        calls.append(partial(torch.bmm, weights, k, out=of_q))
        calls.append(partial(torch.bmm, weights.transpose(1, 2), q, out=of_k))

    D = cell.d_model
    for stack in ("encoder", "decoder"):
        n = rows[stack]
        for _ in range(cell.n_steps):
            for widths in ((D, 3 * D), (D, D), (D, cell.d_ff), (cell.d_ff, D)):
                linear(n, *widths)
            attend(*(n // cell.n_sentences,) * 2)
            if stack == "decoder":
                for n_rows, width in ((n, D), (rows["encoder"], 2 * D), (n, D)):
                    linear(n_rows, D, width)
                attend(cell.target_length, cell.source_length)
    linear(rows["decoder"], D, cell.vocabulary)
    return Contestant(LIMIT, "limit", {UPDATE: lambda: [call() for call in calls]}, note="only matrix products")


def contestants(args: argparse.Namespace, cell: Cell, device: torch.device) -> Iterator[Contestant | Absent]:
    """Yield all that meet in a cell and are not left out."""
    yield from (one for one in FAMILIES[cell.family](args, cell, device) if one.name not in args.without)


def _dense(args: argparse.Namespace, cell: Cell, device: torch.device) -> Iterator[Contestant | Absent]:
    batch: Batch = random_batch(model(cell), cell.workload, 1).to(device)
    yield limit(cell, device)
    yield ours(cell, device)
    if large_products.has_slow_products():
        yield with_torchs_products(ours(cell, device, "ours, torch's products"))
    if cell.dropout:
        yield ours(cell, device, "ours, torch's draws", dropout_draws="torch")
    if args.compiled:
        yield ours(cell, device, "ours, compiled", compile=True)
    yield from peers(cell, batch)


def _sparse(args: argparse.Namespace, cell: Cell, device: torch.device) -> Iterator[Contestant | Absent]:
    yield ours(cell, device)
    yield ours(cell, device, SPARSE, sparse=True)


def _loops(args: argparse.Namespace, cell: Cell, device: torch.device) -> Iterator[Contestant | Absent]:
    batch: Batch = random_batch(model(cell), cell.workload, 1).to(device)
    yield limit(cell, device)
    yield ours(cell, device)
    for name, loss_of, fused in ((OWN_LOOP, _own_loss, True), (PLAIN_LOOP, _plain_loss, None)):
        torch.manual_seed(1)
        own = build_model(model(cell)).to(device)
        one = updated(name, own, partial(loss_of, own, batch), fused=fused)
        yield replace(one, role="ours")


def _own_loss(own: Model, batch: Batch) -> Tensor:
    return own.loss(batch)


def _plain_loss(own: Model, batch: Batch) -> Tensor:
    labels_BT = batch.labels_BT.masked_fill(~batch.loss_mask_BT, -100)
    return F.cross_entropy(own(batch).logits_BTV.flatten(0, 1), labels_BT.flatten())


FAMILIES = {"dense": _dense, "sparse": _sparse, "loops": _loops}


def more(args: argparse.Namespace, cell: Cell, present: Sequence[Contestant]) -> Iterator[Row]:
    """Yield the memory of every update, gradients included, and where asked for the parts of the time of ours."""
    for one in [] if args.no_memory else present:
        if one.parameters and one.parameters[0].device.type == "cpu":
            live = peak_bytes(one.calls[UPDATE], tuple)
            yield {"kind": "memory", "name": one.name, "role": one.role, "live_bytes": live}
    if args.profile:
        for one in (one for one in present if one.name in (OURS, SPARSE)):
            with seen_kernels():
                found = parts(one.calls[UPDATE], 3, _purpose)
            yield from ({"kind": "part", "name": one.name} | row for row in found)


_PURPOSES = {
    "matrix products": (
        *("mm", "addmm", "bmm", "baddbmm", "matmul", "linear"),
        *("large_product", "grouped_products", "row_products"),
    ),
    "attention": (
        "full_attention",
        "scaled_dot_product_attention",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    ),
    "random numbers": ("random_", "bernoulli_", "draw_kept"),
    "dropout": ("drop", "add_dropped", "drop_relu", "drop_relu_gradient"),
    "loss": ("log_softmax", "nll_loss_nd", "exp_"),
    "softmax": ("softmax", "_softmax_backward_data"),
    "norms": ("layer_norm", "native_layer_norm_backward"),
    "activations": ("relu", "clamp_min_", "threshold_backward", "tanh", "tanh_backward"),
    "optimiser and clipping": (
        "_fused_adamw_",
        "_foreach_norm",
        "linalg_vector_norm",
        "_foreach_mul_",
        "_foreach_add_",
    ),
    "gathering and scattering rows": (
        "index_select",
        "index_add_",
        "index_copy_",
        "index",
        "gather",
        "gather_backward",
    ),
    "copies": ("copy_", "to", "reshape", "flatten", "clone", "cat", "stack", "slice_backward", "repeat_interleave"),
    "sums": ("sum", "mean"),
}
_PURPOSE_OF = {name: purpose for purpose, names in _PURPOSES.items() for name in names}


def _purpose(name: str, sizes: list[list[int]], direction: str) -> str:
    return _PURPOSE_OF.get(name, "other operations")


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    if args.read:
        runs = read_runs(args.read)
    else:
        build = partial(contestants, args)
        given = "train_step", cells(args), build, args, partial(more, args), [UPDATE]
        runs = [run_cells(*given, keeps_memory=not args.fresh_memory)]
    judged = verdicts(runs)
    rows = [{"study": "train_step"} | verdict.row() for verdict in judged]
    save([*numbered(runs), *rows], report(runs, judged), args.out)


if __name__ == "__main__":
    main()
