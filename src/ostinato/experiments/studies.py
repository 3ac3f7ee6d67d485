"""The speed studies of the results: decoding of the One Wide FFN variants, and update time against depth.

Decoding (Pessoa Pires et al. 2023, tables 3, 4, 6 and 10). Claims: without feed-forwards in the decoder a search is
faster at batch 1, and the gain shrinks with the batch; with one wide feed-forward in the encoder it turns into a loss;
dropping the encoder's feed-forwards gains nothing; a decoder-only model that runs a wide shared feed-forward at every
step is slower than its baseline.

Update time (Petty et al. 2024, figure 8). Claim: among models of equal parameters it grows linearly with depth, while
the multiply-accumulates hardly grow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ostinato.budget.family import make_family
from ostinato.errors import DataError
from ostinato.evaluation.timing import Effort
from ostinato.experiments.speed import Arm, Group, Study
from ostinato.experiments.spread import Line, fit_line
from ostinato.experiments.workloads import Workload
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model

ENCODER_DECODER = ("baseline", "no-enc", "no-dec", "shared-enc-no-dec", "one-wide")
DECODER_ONLY = ("baseline", "one-wide")
_NAMES = {"one-wide": "wide shared-dec"}
"""A decoder-only model has no encoder to widen: its One Wide FFN is the paper's wide SharedDec."""


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a baseline: d_model, heads and d_ff everywhere; n_steps of every stack, None: the recipe's."""

    d_model: int = 512
    n_heads: int = 8
    d_ff: int = 2048
    n_steps: int | None = None

    def overrides(self, stacks: Sequence[str]) -> tuple[str, ...]:
        """Return the settings that give a recipe with these stacks this size."""
        found = [f"model.d_model={self.d_model}"]
        for stack in stacks:
            kinds = (
                ["self_attention"] if stack == "encoder" or len(stacks) == 1 else ["self_attention", "cross_attention"]
            )
            found += [f"model.{stack}.{kind}.n_heads={self.n_heads}" for kind in kinds]
            found.append(f"model.{stack}.ffn.d_ff={self.d_ff}")
            if self.n_steps is not None:
                found.append(f"model.{stack}.n_steps={self.n_steps}")
        return tuple(found)


BASE = Size()


def decoding_study(
    batch_sizes: Sequence[int],
    beam: int,
    source_length: int,
    target_length: int,
    *,
    vocabulary: int | None = None,
    effort: Effort | None = None,
    size: Size = BASE,
) -> Study:
    """Return the decoding study: encoder-decoder variants, and decoder-only ones.

    Args:
        vocabulary: rows; None: the recipes' own.
        size: of the baselines of both groups.
    """
    work = tuple(Workload("decoding", batch, source_length, target_length, beam) for batch in batch_sizes)
    both, one = size.overrides(("encoder", "decoder")), size.overrides(("decoder",))
    pairs = tuple(Arm(name, f"one-wide-ffn/base/{name}", both) for name in ENCODER_DECODER)
    single = tuple(Arm(_NAMES.get(name, name), f"one-wide-ffn/decoder-only/{name}", one) for name in DECODER_ONLY)
    groups = (Group("encoder-decoder", pairs, work), Group("decoder-only", single, work))
    return Study("decoding_speed", groups, vocabulary, effort or Effort())


def depth_study(
    recipe: str,
    depths: Sequence[int],
    batch_size: int,
    length: int,
    *,
    vocabulary: int | None = None,
    effort: Effort | None = None,
    overrides: Sequence[str] = (),
) -> Study:
    """Return the study of update times in the equal-parameter family of a recipe.

    Args:
        recipe: the family's base. depths: of the arms; those that the parameters cannot pay for are left out.
        length: tokens of every sentence (seq2seq: of each side).
        overrides: changes of the base before the family is made.

    Raises:
        ConfigError: a recipe that cannot be the base of a family.
        DataError: fewer than two depths that can be paid for.
    """
    base = load_recipe(recipe, overrides)
    sized = size_model(base, source=vocabulary, target=vocabulary)
    family = make_family(sized.model, depths)
    if len(family.arms) < 2:
        raise DataError(f"{recipe} has {len(family.arms)} arms of these depths: a line needs two or more")
    arms = tuple(
        Arm(
            f"n_steps {arm.n_steps}, d_ff {arm.d_ff}",
            recipe,
            (*overrides, *(f"model.{path}={value}" for path, value in arm.settings.items())),
        )
        for arm in family.arms
    )
    source_length = length if "encoder" in sized.model.stacks() else 0
    group = Group(recipe, arms, (Workload("update", batch_size, source_length, length),))
    return Study("update_time_vs_depth", (group,), vocabulary, effort or Effort())


def depth_line(rows: Sequence[dict[str, Any]]) -> Line:
    """Return the line through a depth study's median seconds against its n_steps.

    Raises:
        DataError: rows of fewer than two depths, or of another study.
    """
    if any(row.get("study") != "update_time_vs_depth" for row in rows):
        raise DataError("the rows are not all of the study update_time_vs_depth")
    return fit_line([depth_of(row) for row in rows], [row["seconds"] for row in rows])


def depth_of(row: dict[str, Any]) -> int:
    """Return the n_steps of a row's deepest stack."""
    return max(int(stack["n_steps"]) for stack in row["stacks"].values())


def line_text(line: Line, rows: Sequence[dict[str, Any]]) -> str:
    """Return a fitted line, and how much the counted work grows beside it, in words."""
    by_depth = sorted(rows, key=depth_of)
    first, last = by_depth[0], by_depth[-1]
    macs, time = (last["macs"]["call"] / first["macs"]["call"], last["median_s"] / first["median_s"])
    return (
        f"update time = {1e3 * line.intercept:.1f} ms + {1e3 * line.slope:.2f} ms per step "
        f"(95 % interval of the slope {1e3 * line.slope_low:.2f} to {1e3 * line.slope_high:.2f}), "
        f"R^2 = {line.r_squared:.4f}; from {depth_of(first)} to {depth_of(last)} steps the time is "
        f"{time:.2f} times, the multiply-accumulates are {macs:.3f} times as much"
    )
