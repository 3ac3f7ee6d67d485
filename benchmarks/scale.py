"""Prints the table of docs/scale.md: GiB a rank on 1, 8 and 64 GPUs, counted from configurations alone.

    python benchmarks/scale.py

One text a rank, bfloat16 autocast over weights in float32, activations recomputed step by step, and
`training.parallel.kind=fsdp`: `ostinato.budget.ranks` says what is counted. Without it a recipe needs on every GPU what
it needs on one.
"""

from __future__ import annotations

from ostinato.budget import Assumptions
from ostinato.experiments.compare.plans import plan_recipes, rank_bytes

MODELS = {  # tokens of a text, and rows of the vocabulary where the recipe leaves them open
    "depth/374m": (1024, 32_128),
    "looped/moeut-1b": (1024, None),
    "looped/ouro-1.4b": (4096, None),
    "looped/huginn-3.5b": (4096, None),
}
RANKS = (1, 8, 64)
SHARED = ("each use", "kept")
"""When sets that several steps use are gathered, by `training.parallel.keep_shared`."""
COLUMNS = ("recipe", "parameters", "tokens of a text", "sets", *(f"{n} GPU{'s' * (n > 1)}" for n in RANKS))


def rows() -> list[list[str]]:
    """Return the rows of the table."""
    found: list[list[str]] = []
    for name, (length, n_rows) in MODELS.items():
        for keeps, sets in enumerate(SHARED):
            fsdp = f"{{kind: fsdp, keep_shared: {bool(keeps)}}}".lower()
            (planned,) = plan_recipes(
                [name],
                ["training.checkpoint_activations=true", f"training.parallel={fsdp}"],
                assumptions=Assumptions(length, length, batch_size=1, precision="bfloat16"),
                target_vocab=n_rows,
            )
            ranks = [rank_bytes(planned, n) for n in RANKS]
            sizes = [f"{rank.total / 2**30:.1f}" for rank in ranks]
            n_parameters = ranks[0].parameters // 4
            row = [f"`{name}`", f"{n_parameters / 1e6:,.0f} M", f"{length:,}", sets, *sizes]
            if not keeps or row[-len(RANKS) :] != found[-1][-len(RANKS) :]:  # else no set is used twice
                found.append(row)
    return found


def table() -> str:
    """Return the table in Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
