"""The demonstration: a Transformer against a Universal Transformer of the same size, on lengths neither was trained on.

Task: write a string of decimal digits backwards (Universal Transformers, table 4), trained on lengths 1 to 10, tested
on the same lengths and on 11 to 13. Both arms store the same number of parameters and see positions by rotation only;
the Universal Transformer runs one wider block twice where the Transformer has two blocks. The settings were chosen on
seed 11 and committed before seeds 1 to 3 were run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ostinato.experiments.comparison import Arm, Comparison, Measure, Row
from ostinato.experiments.figure import draw
from ostinato.training.reporter import Reporter

DEMO = Comparison(
    name="demo",
    arms=(Arm("transformer", "demo/transformer"), Arm("universal", "demo/universal")),
    seeds=(1, 2, 3),
    measures=(
        Measure("in-distribution", "test", "exact_match"),
        Measure("longer", "long", "exact_match"),
        Measure("longer, per token", "long", "token_accuracy_free"),
    ),
    macs_lengths=(10, 10),
)


def run_demo(
    directory: Path, reporter: Reporter | None = None, on_row: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """Run the comparison; write `results.jsonl`, `demo.svg` and `demo.png` into `directory`."""
    rows = DEMO.run(directory, reporter=reporter, on_row=on_row)
    draw(rows, directory / "demo", title="Reversing digits: lengths 1-10 in training, 11-13 beyond")
    return rows
