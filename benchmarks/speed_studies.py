"""The speed studies of whole models: decoding of the One Wide FFN variants, and update time against depth.

A study is a list of groups of variants, which are timed on the same work in the same rounds: one row of data a variant
and workload. The first variant of a group is its baseline; variants of different groups are not compared.

Decoding (Pessoa Pires et al. 2023, tables 3, 4, 6 and 10). Claims: without feed-forwards in the decoder a search is
faster at batch 1, and the gain shrinks with the batch; with one wide feed-forward in the encoder it turns into a loss;
dropping the encoder's feed-forwards gains nothing; a decoder-only model that runs a wide shared feed-forward at every
step is slower than its baseline.

Update time (Petty et al. 2024, figure 8). Claim: among models of equal parameters it grows linearly with depth, while
the multiply-accumulates hardly grow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from time import monotonic
from typing import Any

from ostinato.budget.family import make_family
from ostinato.errors import DataError
from ostinato.evaluation.timing import Effort
from ostinato.experiments.timing.latency import Measurement, Timer, TimingPlan
from ostinato.experiments.timing.speed import row
from ostinato.experiments.timing.workloads import TimedModel, Workload
from ostinato.tasks.recipes import load_recipe
from ostinato.tasks.vocabulary import size_model
from ostinato.version import __version__

ENCODER_DECODER = ("baseline", "no-enc", "no-dec", "shared-enc-no-dec", "one-wide")
DECODER_ONLY = ("baseline", "one-wide")
_NAMES = {"one-wide": "wide shared-dec"}
"""A decoder-only model has no encoder to widen: its One Wide FFN is the paper's wide SharedDec."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of a study: a recipe, and what is changed in it."""

    name: str
    recipe: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Variants that are timed together on each of the workloads; the first is the baseline."""

    name: str
    variants: tuple[Variant, ...]
    workloads: tuple[Workload, ...]


@dataclass(frozen=True, slots=True)
class SpeedStudy:
    """Groups of variants.

    Args:
        vocabulary: rows of every vocabulary; None: what the recipes say.
        effort: for every workload of every group; its seconds are for the whole study, and the time that a
            workload does not use is shared by the later ones.
        precision: of updates, whatever the recipes say.
    """

    name: str
    groups: tuple[Group, ...]
    vocabulary: int | None = None
    effort: Effort = field(default_factory=Effort)
    precision: str = "float32"

    def run(self, timer: Timer, on_plan: Callable[[TimingPlan], None] = lambda plan: None) -> Iterator[dict[str, Any]]:
        """Yield the rows, workload by workload.

        Row: study, group, recipe, overrides; name, workload, median_s, low_s, high_s, n, disturbed, tokens_per_s,
        seconds (see `Measurement`); stacks: {name: {n_steps, d_ff or None}}; parameters (stored); macs: {call,
        per_source_token, per_generated_token}; speed: {baseline, value, low, high, verdict}; version, environment.

        Raises:
            ConfigError: recipes, settings or workloads that cannot be used.
        """
        began, left = monotonic(), sum(len(group.workloads) for group in self.groups)
        for group in self.groups:
            candidates = [self._candidate(variant) for variant in group.variants]
            for workload in group.workloads:
                effort = self.effort
                if effort.seconds is not None:
                    effort = replace(effort, seconds=max(0.0, effort.seconds - (monotonic() - began)) / left)
                found = timer.measure(candidates, [workload], effort, on_plan)
                yield from self._rows(group, candidates, list(found), timer)
                left -= 1

    def _rows(
        self, group: Group, candidates: list[TimedModel], found: list[Measurement], timer: Timer
    ) -> Iterator[dict[str, Any]]:
        described = {"version": __version__, "environment": asdict(timer.environment())}
        for variant, candidate, measurement in zip(group.variants, candidates, found, strict=True):
            head = {
                "study": self.name,
                "group": group.name,
                "recipe": variant.recipe,
                "overrides": list(variant.overrides),
            }
            yield head | row(measurement, candidate.model, found[0]) | described

    def _candidate(self, variant: Variant) -> TimedModel:
        recipe = load_recipe(variant.recipe, [*variant.overrides, f"training.precision={self.precision}"])
        sized = size_model(recipe, source=self.vocabulary, target=self.vocabulary)
        return TimedModel(variant.name, sized.model, recipe.training)


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a baseline: d_model, heads and d_ff everywhere; n_steps of every stack, None: the recipe's."""

    d_model: int = 512
    n_heads: int = 8
    d_ff: int = 2048
    n_steps: int | None = None

    def overrides(self, stacks: Sequence[str], without: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the settings that give a recipe with these stacks this size.

        Args:
            without: stacks that have no feed-forward.
        """
        found = [f"model.d_model={self.d_model}"]
        for stack in stacks:
            kinds = (
                ["self_attention"] if stack == "encoder" or len(stacks) == 1 else ["self_attention", "cross_attention"]
            )
            found += [f"model.{stack}.{kind}.n_heads={self.n_heads}" for kind in kinds]
            if stack not in without:
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
) -> SpeedStudy:
    """Return the decoding study: encoder-decoder variants, and decoder-only ones.

    Args:
        vocabulary: rows; None: the recipes' own.
        size: of the baselines of both groups.
    """
    work = tuple(Workload("decoding", batch, source_length, target_length, beam) for batch in batch_sizes)
    stacks, one = ("encoder", "decoder"), size.overrides(("decoder",))
    pairs = tuple(
        Variant(
            name,
            f"one-wide-ffn/base/{name}",
            size.overrides(stacks, without=[stack for stack in stacks if f"no-{stack[:3]}" in name]),
        )
        for name in ENCODER_DECODER
    )
    single = tuple(Variant(_NAMES.get(name, name), f"one-wide-ffn/decoder-only/{name}", one) for name in DECODER_ONLY)
    groups = (Group("encoder-decoder", pairs, work), Group("decoder-only", single, work))
    return SpeedStudy("decoding_speed", groups, vocabulary, effort or Effort())


def depth_study(
    recipe: str,
    depths: Sequence[int],
    batch_size: int,
    length: int,
    *,
    vocabulary: int | None = None,
    effort: Effort | None = None,
    overrides: Sequence[str] = (),
) -> SpeedStudy:
    """Return the study of update times in the equal-parameter family of a recipe.

    Args:
        recipe: the family's base. depths: of the variants; those that the parameters cannot pay for are left out.
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
    variants = tuple(
        Variant(
            f"n_steps {arm.n_steps}, d_ff {arm.d_ff}",
            recipe,
            (*overrides, *(f"model.{path}={value}" for path, value in arm.settings.items())),
        )
        for arm in family.arms
    )
    source_length = length if "encoder" in sized.model.stacks() else 0
    group = Group(recipe, variants, (Workload("update", batch_size, source_length, length),))
    return SpeedStudy("update_time_vs_depth", (group,), vocabulary, effort or Effort())
