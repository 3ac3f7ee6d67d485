"""Prints the table of docs/scale.md: bytes a rank on 1, 8 and 64 GPUs, counted from configurations alone.

    python benchmarks/scale.py

Everything is float32, as Ostinato keeps it under bfloat16 autocast. With n ranks that share a model of P parameters
(fully sharded: every rank has a part of every parameter, of its gradient and of Adam's two moments) a rank holds

    16 P / n            its parts
  + 4 G                 what is gathered: what is no parameter set (embeddings, output, norms) all the time, and
                        "each use": the largest parameter set, twice (one computes, the next one comes)
                        "kept": also every set that several steps use, until the backward pass is over
  + activations         of its own texts: what autograd keeps, recomputed layer by layer, of one text

Logits, buffers and the allocator come on top.
"""

from __future__ import annotations

from collections import Counter

from ostinato.budget import count_bytes, count_parameters
from ostinato.budget.sizes import planned_uses
from ostinato.config.model import ModelConfig
from ostinato.tasks.recipes import load_recipe

MODELS = {  # and tokens of a text
    "depth/374m": 1024,
    "looped/moeut-1b": 1024,
    "looped/ouro-1.4b": 4096,
    "looped/huginn-3.5b": 4096,
}
OPEN = 32_128
"""Rows of a vocabulary that a recipe leaves open."""
RANKS = (1, 8, 64)
GIB = 2**30
COLUMNS = ("recipe", "parameters", "tokens of a text", "sets", *(f"{n} GPU{'s' * (n > 1)}" for n in RANKS))


def gathered(config: ModelConfig, *, keeps: bool) -> int:
    """Return the parameters that are whole on a rank at the worst moment."""
    parts = count_parameters(config, vocab_size=OPEN).by_part
    uses = Counter((one.stack, one.use.kind, one.use.weights) for one in planned_uses(config))
    n_sets = Counter((stack, kind) for stack, kind, _ in uses)
    sizes = {name: parts[f"{name[0]}.{name[1]}"] // n_sets[name[:2]] for name in uses}
    outside = sum(parts.values()) - sum(sizes.values())
    kept = sum(size for name, size in sizes.items() if keeps and uses[name] > 1)
    return outside + kept + 2 * max((size for name, size in sizes.items() if not keeps or uses[name] == 1), default=0)


def rows() -> list[list[str]]:
    """Return the rows of the table."""
    found = []
    for name, length in MODELS.items():
        config = load_recipe(name).model
        counted = count_bytes(
            config, length, length, precision="bfloat16", vocab_size=OPEN, checkpoint_activations=True
        )
        n_parameters = count_parameters(config, vocab_size=OPEN).stored
        for keeps in (False, True):
            here = gathered(config, keeps=keeps)
            if keeps and here == gathered(config, keeps=False):
                continue  # no set is used twice
            bytes_of = [16 * n_parameters / n + (4 * here if n > 1 else 0) + counted.activations for n in RANKS]
            sets = "kept" if keeps else "each use"
            sizes = [f"{size / GIB:.1f}" for size in bytes_of]
            found.append([f"`{name}`", f"{n_parameters / 1e6:,.0f} M", f"{length:,}", sets, *sizes])
    return found


def table() -> str:
    """Return the table in Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print(table())
