"""How fast do the One Wide FFN variants decode, on random weights, at batch 1 and 64?

    python benchmarks/decoding_speed.py --threads 2 --out docs/results/decoding-speed

Encoder-decoder: baseline, NoEnc, NoDec, SharedEncNoDec, One Wide FFN. Decoder-only: baseline, wide SharedDec. All at
d_model 512, beam 5, every sentence generating the same number of tokens. Speeds are compared within rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from common import add_vocabulary, effort, parser, run, save
from speed_studies import Size, decoding_study

TINY = Size(d_model=32, n_heads=2, d_ff=64, n_steps=2)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    options = parser(__doc__.splitlines()[0], minutes=10.0)
    add_vocabulary(options)
    options.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 64], metavar="N")
    options.add_argument("--beam", type=int, default=5)
    options.add_argument("--source-length", type=int, default=20)
    options.add_argument("--target-length", type=int, default=20)
    found = options.parse_args(given)
    if found.quick:
        found.batch_sizes, found.source_length, found.target_length, found.vocab = [1, 3], 4, 5, 60
    return found


def main(given: Sequence[str] | None = None) -> None:
    args = arguments(given)
    size = TINY if args.quick else Size()
    study = decoding_study(
        args.batch_sizes,
        args.beam,
        args.source_length,
        args.target_length,
        vocabulary=args.vocab,
        effort=effort(args, most=15),
        size=size,
    )
    save(*run(study, args), args.out)


if __name__ == "__main__":
    main()
