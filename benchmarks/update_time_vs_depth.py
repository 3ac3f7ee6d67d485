"""How does the time of a training update grow with depth among models of equal parameters?

    python benchmarks/update_time_vs_depth.py --threads 2 --out docs/results/update-time-vs-depth

The arms are those of an equal-parameter family (`ostinato family`); the time is forward, backward, clipping and the
optimiser's step. A line is fitted through the medians; multiply-accumulates stand beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common import add_vocabulary, effort, parser, run, save
from depth_line import depth_line, draw_update_times, line_text
from speed_studies import depth_study

TINY = [
    "model.d_model=32",
    "model.decoder.n_steps=2",
    "model.decoder.self_attention.n_heads=2",
    "model.decoder.ffn.d_ff=64",
]


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=6.0)
    add_vocabulary(options)
    options.add_argument("--recipe", default="depth/41m", help="base of the family (default %(default)s)")
    options.add_argument("--depths", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 7], metavar="N")
    options.add_argument("--batch-size", type=int, default=8)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the base")
    options.add_argument("--figure", action="store_true", help="draw OUT.svg and OUT.png (needs matplotlib)")
    found = options.parse_args(given)
    if found.figure and found.out is None:
        options.error("--figure needs --out")
    if found.quick:
        found.batch_size, found.length, found.vocab, found.depths = 2, 8, 60, [1, 2, 3]
        found.set = [*TINY, *found.set]
    return found


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    study = depth_study(
        args.recipe,
        args.depths,
        args.batch_size,
        args.length,
        vocabulary=args.vocab,
        effort=effort(args, most=15),
        overrides=args.set,
    )
    rows, text = run(study, args)
    line = depth_line(rows)
    save(rows, f"{text}\n{line_text(line, rows)}\n", args.out)
    if args.figure:
        draw_update_times(rows, line, args.out)


if __name__ == "__main__":
    main()
