"""Prints the tables of docs/scale.md: GiB a rank on 1, 8 and 64 GPUs, and what a training on 64 of them comes to.

    python benchmarks/scale.py

Both are counted from configurations alone; the second divides what is counted by what makers say of their machines.

One text a rank, bfloat16 autocast over weights in float32, activations recomputed step by step, and
`training.parallel.kind=fsdp`: `ostinato.budget.ranks` says what is counted. Without it a recipe needs on every GPU what
it needs on one.
"""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.budget import Assumptions
from ostinato.experiments.compare.plans import PlannedRecipe, plan_recipes, rank_bytes

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

ON_PAPER, N_GPUS = "looped/ouro-1.4b", 64
TOKENS_OF_UPDATE, ACCUMULATED, TOKENS_OF_TRAINING = 2**21, 2, 100e9
"""An update is so many batches, one after the other (`training.accumulate`)."""
FLOPS, SHARE_REACHED = 990e12, 0.4
"""A second on an H100 in bfloat16, as its maker says, and how much of it products are taken to reach."""
BYTES_A_SECOND = 50e9
"""Between machines, for each GPU."""


def planned_with(name: str, length: int, n_rows: int | None = None, *, keeps: bool = False) -> PlannedRecipe:
    """Return a recipe as it is counted here."""
    fsdp = f"{{kind: fsdp, keep_shared: {str(keeps).lower()}}}"
    (planned,) = plan_recipes(
        [name],
        ["training.checkpoint_activations=true", "training.precision=bfloat16", f"training.parallel={fsdp}"],
        assumptions=Assumptions(length, length, batch_size=1),
        target_vocab=n_rows,
    )
    return planned


def rows() -> list[list[str]]:
    """Return the rows of the table."""
    found: list[list[str]] = []
    for name, (length, n_rows) in MODELS.items():
        for keeps, sets in enumerate(SHARED):
            planned = planned_with(name, length, n_rows, keeps=bool(keeps))
            ranks = [rank_bytes(planned, n) for n in RANKS]
            sizes = [f"{rank.total / 2**30:.1f}" for rank in ranks]
            n_parameters = ranks[0].parameters // 4
            row = [f"`{name}`", f"{n_parameters / 1e6:,.0f} M", f"{length:,}", sets, *sizes]
            if not keeps or row[-len(RANKS) :] != found[-1][-len(RANKS) :]:  # else no set is used twice
                found.append(row)
    return found


def rows_on_paper() -> list[list[str]]:
    """Return what a training of `ON_PAPER` comes to on `N_GPUS`."""
    length, _ = MODELS[ON_PAPER]
    planned = planned_with(ON_PAPER, length, keeps=True)
    (plan,) = planned.model.plans().values()
    parameters, macs, rank = planned.budget.parameters, planned.budget.macs.per_token, rank_bytes(planned, N_GPUS)
    assert macs is not None
    tokens = TOKENS_OF_UPDATE / N_GPUS
    texts, held = tokens / length / ACCUMULATED, rank.total - rank.activations
    # The loss of a learned exit keeps log probabilities of all rounds in float32.
    log_probs = 4 * texts * length * planned.sized.target * plan.n_rounds
    # A forward pass, one that recomputes it, and a backward pass of two products each; a product and a sum are two.
    flop = 2 * 4 * macs * tokens
    seconds, n_updates = flop / (SHARE_REACHED * FLOPS), TOKENS_OF_TRAINING / TOKENS_OF_UPDATE
    # Everything else is gathered once a batch and sent once, whatever is kept.
    of_sets = sum(parameters.by_part[f"{plan.stack}.{kind}"] for kind in {use.kind for use in plan.uses()})
    sent = {"kept": 2 * parameters.stored, "each use": 2 * (parameters.stored - of_sets) + 3 * plan.n_rounds * of_sets}
    sent = {how: ACCUMULATED * n for how, n in sent.items()}
    return [
        ["parameters stored, executed", f"{parameters.stored / 1e9:.2f} B, {parameters.executed / 1e9:.2f} B"],
        ["tokens an update", f"{TOKENS_OF_UPDATE:,}"],
        ["of a GPU", f"{tokens:,.0f}, {ACCUMULATED} batches of {texts:.0f} texts"],
        [
            "GiB of activations, a text and a batch",
            f"{_gib(rank.activations):.1f}, {_gib(texts * rank.activations):.0f}",
        ],
        [f"GiB of log probabilities among them, of a batch, {plan.n_rounds} rounds", f"{_gib(log_probs):.0f}"],
        ["GiB of parts and what is gathered, kept", f"{_gib(held):.0f}"],
        [f"multiply-accumulates a token, in texts of {length:,}", f"{macs / 1e9:.2f} G"],
        ["FLOP an update and GPU", f"{flop / 1e15:.2f} P"],
        [f"seconds of that, at {SHARE_REACHED:.0%} of {FLOPS / 1e12:.0f} TFLOP/s", f"{seconds:.1f}"],
        [
            f"updates for {TOKENS_OF_TRAINING / 1e9:.0f} G tokens, hours",
            f"{n_updates:,.0f}, {n_updates * seconds / 3600:.0f}",
        ],
        *(
            [f"GB a GPU receives and sends an update, {how}; seconds at {BYTES_A_SECOND / 1e9:.0f} GB/s", _sent(4 * n)]
            for how, n in sent.items()
        ),
    ]


def _gib(n_bytes: float) -> float:
    return n_bytes / 2**30


def _sent(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f}; {n_bytes / BYTES_A_SECOND:.2f}"


def markdown(lines: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; the first line is its head."""
    head, *body = lines
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body))


def tables() -> list[str]:
    """Return both tables in Markdown."""
    return [markdown([COLUMNS, *rows()]), markdown([[f"`{ON_PAPER}` on {N_GPUS} GPUs", "on paper"], *rows_on_paper()])]


if __name__ == "__main__":
    print("\n\n".join(tables()))
