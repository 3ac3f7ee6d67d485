"""What a family of models is to the tests: a recipe, a table of names, reference numbers, and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from ostinato.config.model import ModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.interop import Table, from_ours, load_weights
from ostinato.models import Model, build_model
from ostinato.tasks.recipes import load_recipe

LENGTHS = (12, 11, 9, 8, 7, 5, 3, 1)
"""Real tokens of the rows of a batch of eight."""
FLOAT64, FLOAT32 = 1e-10, 1e-5
"""Tolerances of logits, absolute; in float32 four times the reference's own gap to its float64 where that is more."""
GRADIENTS = 1e-4
"""Tolerance of gradients, relative to their largest number."""
FIXTURES = Path(__file__).parents[1] / "fixtures" / "families"


@dataclass(frozen=True)
class Variant:
    """One call of the reference model.

    Args:
        name: of its logits in the fixture. inputs: prefix of its ids and mask there, "" for the whole ids.
        call: arguments of the model beside the batch, such as `n_steps`.
        run: what returns the logits `[B, T, V]` of a model and a batch, where that is more than a call.
        by_column: every token's position is its column, also behind padding, as in classes that are given no positions.
        checks: "numbers" (logits in float32 and float64), "gradients", "cached" (step by step = at once), "rows" (one
            sentence = eight of them). Those of other variants of the same kind are enough for some.
    """

    name: str
    inputs: str = ""
    call: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[[Model, Batch], Tensor] | None = None
    by_column: bool = False
    checks: Sequence[str] = ("numbers", "cached", "rows")

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """Return the logits of a batch."""
        if self.run is not None:
            return self.run(model, batch)
        return model(batch, **self.call).logits_BTV  # type: ignore[no-any-return]


PLAIN = Variant("plain", checks=("numbers", "gradients", "cached", "rows"))
LEFT = Variant("left", inputs="left/")
RIGHT = Variant("right", inputs="right/")


@dataclass(frozen=True)
class Family:
    """A family of models whose numbers a public reference class made.

    Args:
        fixture: name of its files. recipe: a recipe of the fixture's size. table: names in its weights.
        settings: dotted overrides of the recipe, where the fixture needs some.
        in_float64: more of them in float64, where the class computes something else there.
    """

    fixture: str
    recipe: str
    table: Callable[[Any], Table]
    variants: Sequence[Variant] = (PLAIN, LEFT, RIGHT)
    settings: Sequence[str] = ()
    in_float64: Sequence[str] = ()

    def config(self, dtype: torch.dtype = torch.float64) -> ModelConfig:
        """Return the configuration, vocabulary sizes set to the fixture's, nothing dropped."""
        n = 64
        of_dtype = self.in_float64 if dtype == torch.float64 else ()
        config = load_recipe(self.recipe, ["model.dropout=0.0", *self.settings, *of_dtype]).model
        return config.model_copy(update={key: getattr(config, key) or n for key in config.vocabulary_sizes(n, n)})

    def model(self, dtype: torch.dtype = torch.float64, weights: Mapping[str, Tensor] | None = None) -> Model:
        """Return the model with the fixture's weights (or with these), in evaluation mode."""
        config = self.config(dtype)
        model = build_model(config).to(dtype).eval()
        load_weights(model, self.table(config), self.weights() if weights is None else dict(weights))
        return model

    def weights(self) -> dict[str, Tensor]:
        """Return the weights under their names."""
        start = "weights/"
        return {name.removeprefix(start): x for name, x in numbers(self.fixture).items() if name.startswith(start)}

    def batch(self, variant: Variant) -> Batch:
        """Return what a variant reads: a sequence, or a source (the masked side) and a target."""
        found = numbers(self.fixture)
        mask = found.get(f"{variant.inputs}mask")
        read = _tokens(found[f"{variant.inputs}ids"], mask, variant)
        target_ids = found.get(f"{variant.inputs}dec_ids", found.get("dec_ids"))
        return _batch(read, None if target_ids is None else _tokens(target_ids, None, variant))

    def eight(self, variant: Variant, side: str) -> Batch:
        """Return eight sentences of their own lengths, padded on one side; where there is a target, its rows, too."""
        ids = torch.randint(3, 64, (2, 8, max(LENGTHS)), generator=torch.Generator().manual_seed(1))
        keep = torch.stack([torch.arange(max(LENGTHS)) < n for n in LENGTHS])
        keep = keep.flip(1) if side == "left" else keep
        # Longer targets of shorter sources.
        read, written = _tokens(ids[0], keep, variant), _tokens(ids[1], keep.flip(0), variant)
        return _batch(read, written if self.config().has_two_sides else None)

    def expected(self, variant: Variant, dtype: str) -> Tensor:
        """Return the reference logits."""
        return numbers(self.fixture)[f"{dtype}/{variant.name}/logits"]

    def float32_gap(self, variant: Variant) -> float:
        """Return the largest difference between the reference's own logits of real tokens in float32 and in float64."""
        gap_BTV = self.expected(variant, "float32") - self.expected(variant, "float64")
        return float(gap_BTV[self.batch(variant).target.keep_BT].abs().max())

    def within(self, variant: Variant, dtype: torch.dtype) -> float:
        """Return how far logits may be from the reference's, absolute."""
        return FLOAT64 if dtype == torch.float64 else max(FLOAT32, 4 * self.float32_gap(variant))

    def expected_gradients(self, variant: Variant) -> dict[str, Tensor]:
        """Return the reference gradients of the sum of squares of all logits, by their names."""
        start = f"rounded/{variant.name}/grad/"
        return {name.removeprefix(start): x for name, x in numbers(self.fixture).items() if name.startswith(start)}

    def gradients(self, variant: Variant, model: Model | None = None) -> dict[str, Tensor]:
        """Return our gradients of the sum of squares of all logits of real tokens, by their names."""
        model, batch = model or self.model(), self.batch(variant)
        variant.logits(model, batch)[batch.target.keep_BT].square().sum().backward()
        given = {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in model.named_parameters()}
        return from_ours(self.table(self.config()), given, shared="sum")

    def with_check(self, check: str) -> list[Variant]:
        """Return the variants that are checked in some way."""
        return [variant for variant in self.variants if check in variant.checks]


@cache
def numbers(fixture: str) -> dict[str, Tensor]:
    """Return all tensors of a fixture."""
    return load_file(FIXTURES / f"{fixture}.safetensors")


def row(batch: Batch, i: int) -> Batch:
    """Return one sentence alone, without its padding, at the positions that it has."""

    def cut(tokens: Tokens) -> Tokens:
        keep = tokens.keep_BT[i]
        positions = None if tokens.positions_BT is None else tokens.positions_BT[i : i + 1, keep]
        return Tokens(tokens.ids_BT[i : i + 1, keep], tokens.keep_BT[i : i + 1, keep], positions)

    target, source = cut(batch.target), None if batch.source is None else cut(batch.source)
    return Batch(target, target.ids_BT, target.keep_BT, source=source)


def _tokens(ids_BT: Tensor, mask_BT: Tensor | None, variant: Variant) -> Tokens:
    keep_BT = torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT.bool()
    is_left_padded = not bool(keep_BT[:, 0].all())
    positions_BT = (keep_BT.long().cumsum(1) - 1).clamp_min(0) if is_left_padded else None
    if variant.by_column:
        positions_BT = torch.arange(ids_BT.shape[1]).expand_as(ids_BT)
    return Tokens(ids_BT.long(), keep_BT, positions_BT)


def _batch(read: Tokens, written: Tokens | None) -> Batch:
    target = read if written is None else written
    return Batch(target, target.ids_BT, target.keep_BT, source=None if written is None else read)


def families() -> dict[str, Family]:
    """Return the families that the modules of the folder `records` list as FAMILIES, by fixture."""
    found: dict[str, Family] = {}
    for module in iter_modules([str(Path(__file__).parent / "records")]):
        for family in import_module(f"records.{module.name}").FAMILIES:
            assert family.fixture not in found, family.fixture
            found[family.fixture] = family
    return dict(sorted(found.items()))
