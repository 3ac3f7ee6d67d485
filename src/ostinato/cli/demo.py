"""`ostinato demo`: a task on which depth by repetition wins, in minutes."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import JsonOption
from ostinato.cli.output import console, print_json, print_line, print_table

if TYPE_CHECKING:
    from ostinato.experiments.demonstration import Cost


def demo(
    run_dir: Annotated[Path, typer.Option(help="Where to write; finished runs there are kept.")] = Path("runs/demo"),
    workers: Annotated[int, typer.Option(min=1, help="Runs at once, each in a process of its own.")] = 2,
    json: JsonOption = False,
) -> None:
    """See where repeating a block wins, in minutes.

    Running parity, trained on up to 8 bits and asked for more: one block that is repeated, the same block with fixed
    rounds, and Transformers of equal parameters and of equal multiply-accumulates: the sweep `parity` with one seed,
    beside the committed results of three. Then what it saves that every sequence, or every token, stops by itself.
    """
    from ostinato.analysis.drawing import HOW_TO_GET_FIGURES, can_draw
    from ostinato.experiments import demonstration
    from ostinato.experiments.sweep.files import load_sweep
    from ostinato.experiments.sweep.pool import LocalPool
    from ostinato.experiments.sweep.rows import results_folder
    from ostinato.experiments.sweep.runs import plan_runs
    from ostinato.experiments.sweep.schedule import run_sweep
    from ostinato.experiments.sweep.watch import make_watcher

    sweep = load_sweep(demonstration.SWEEP).model_copy(update={"seeds": [demonstration.SEED]})
    watcher = make_watcher(None if json else console(), print_line)
    rows = run_sweep(sweep, run_dir, executor=LocalPool(workers), watcher=watcher)
    committed = demonstration.committed_rows()
    folder = results_folder(sweep, run_dir)
    looped = next(run.directory for run in plan_runs(sweep, run_dir) if run.arm == demonstration.LOOPED)
    row = next(row for row in rows if row["arm"] == demonstration.LOOPED)
    found = demonstration.costs(sweep, row, looped)
    if json:
        print_json({"here": rows, "committed": committed, "costs": [asdict(one) for one in found]})
        return
    at = demonstration.lengths(rows)
    sizes = {row["arm"]: row["parameters"] for row in rows}
    lines = [
        [
            line.name,
            sizes[line.arm],
            *(
                demonstration.cell(demonstration.values(rows, line, bits), demonstration.values(committed, line, bits))
                for bits in at
            ),
        ]
        for line in demonstration.LINES
    ]
    n = len({row["seed"] for row in committed})
    beside = f" (mean ± standard deviation of {n} seeds)" if committed else ""
    title = f"all tags right, %: here, seed {demonstration.SEED}{beside}; trained on 1 to 8 bits"
    print_table(["arm", "parameters", *(f"{bits} bits" for bits in at)], lines, title=title, right=True)
    print_line(_saving(found))
    if can_draw():
        files = demonstration.draw(rows, committed, found, folder / demonstration.SWEEP)
        print_line(f"wrote {', '.join(map(str, files))}, results.jsonl and timings.jsonl beside them")
    else:
        print_line(f"wrote results.jsonl and timings.jsonl to {folder}; no figure was drawn: {HOW_TO_GET_FIGURES}")
    print_line("next:")
    quoted = shlex.quote(str(looped))
    print_line(f"  ostinato evaluate {quoted} --split long --n-steps 96")
    print_line(f"  ostinato analyze {quoted} --only rounds --split long")
    print_line("  ostinato train parity/looped task.max_length=6 --run-dir runs/six-bits")


def _saving(found: list[Cost]) -> str:
    """Say what stopping by itself costs, at the cheapest threshold within a point of the best number of rounds."""
    best = max((one for one in found if one.stops == "none"), key=lambda one: (one.accuracy, -one.macs))

    def cost(one: Cost) -> str:
        costs = f"{one.macs / 1e6:.1f} M MACs and {1e3 * one.seconds:.2f} ms a sequence"
        return f"{100 * one.accuracy:.1f} % right, {costs}"

    lines = [f"lengths 10 to 24 together, {best.rule} for all: {cost(best)}"]
    for stops in ("sequence", "token"):
        near = [one for one in found if one.stops == stops and one.accuracy >= best.accuracy - 0.01]
        what = f"where every {stops} stops by itself"
        if near:
            least = min(near, key=lambda one: one.macs)
            lines.append(f"{what} (threshold {least.threshold}): {cost(least)}")
        else:
            lines.append(f"{what}, no threshold is within a point of that")
    return "\n".join(lines)
