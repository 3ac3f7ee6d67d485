"""Families whose numbers come from plain equations (equations.py, equations_of_routers.py), not from a public class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import equations as of
import equations_of_routers as of_routers
import torch
from equations import Weights
from family import LENGTHS
from torch import Tensor

from ostinato.config.model import ModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.models import Model, build_model
from ostinato.tasks.recipes import load_recipe

V = 64


@dataclass(frozen=True)
class Twin:
    """A recipe of toy size and its equations.

    Args:
        equations: from parameters by name, ids `[B, T]` without padding and a number of rounds to logits `[B, T, V]`,
            or to logits and the mean cost of depth of a token.
        settings: dotted overrides of the recipe. labels: `n_labels` of a model that chooses them.
        rounds: numbers of rounds to compare; one, where layers differ and no other is allowed.
        trains: compare as in training, where routers choose the best of a sentence.
        std: deviation of the parameters that are drawn: small enough that many rounds do not multiply a rounding error
            of float32 beyond 1e-5. seed: of the draw.
    """

    recipe: str
    equations: Callable[..., Tensor | tuple[Tensor, Tensor]]
    settings: tuple[str, ...] = ()
    labels: int | None = None
    rounds: tuple[int, ...] = (1, 2, 4, 8)
    trains: bool = False
    std: float = 0.15
    seed: int = 0

    def model(self, dtype: torch.dtype = torch.float64) -> Model:
        """Return a model with weights that hide nothing: no start at zero or one, the same ones in every precision."""
        model = build_model(_config(self.recipe, self.labels, self.settings)).double()
        torch.manual_seed(self.seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, self.std)
        return model.to(dtype).train(self.trains)

    def expected(self, model: Model, ids: Tensor, rounds: int) -> tuple[Tensor, Tensor | None]:
        """Return logits and, where it has one, the cost by the equations, of a model's parameters."""
        found = self.equations(weights(model), ids, rounds)
        return found if isinstance(found, tuple) else (found, None)

    def asked(self, rounds: int) -> int | None:
        """Return what a call is to be told of a number of rounds."""
        return None if len(self.rounds) == 1 else rounds


@cache
def _config(recipe: str, labels: int | None, settings: tuple[str, ...]) -> ModelConfig:
    """Return the configuration, nothing dropped."""
    of_labels = [] if labels is None else [f"model.n_labels={labels}"]
    return load_recipe(recipe, ["model.dropout=0.0", f"model.vocab_size={V}", *of_labels, *settings]).model


def weights(model: Model) -> Weights:
    """Return the parameters by name."""
    return dict(model.named_parameters())


def drawn_ids(n_rows: int = 3) -> Tensor:
    """Return ids without padding."""
    return torch.randint(3, V, (n_rows, max(LENGTHS)), generator=torch.Generator().manual_seed(1))


def eight_rows(side: str) -> tuple[Batch, list[Tensor]]:
    """Return a batch of eight sentences of their own lengths, padded on one side, and the ids of each, `[1, T]`."""
    ids = drawn_ids(len(LENGTHS))
    keep = torch.stack([torch.arange(ids.shape[1]) < n for n in LENGTHS])
    keep = keep.flip(1) if side == "left" else keep
    positions = (keep.long().cumsum(1) - 1).clamp_min(0)
    padded = torch.where(keep, ids, 0)
    return Batch(Tokens(padded, keep, positions), padded, keep), [
        row[real][None] for row, real in zip(ids, keep, strict=True)
    ]


def _around(core: str, *, before: str = "{n_steps: 1}", behind: str = "{n_steps: 1}") -> tuple[str, ...]:
    """Return the setting of three segments, of which the one in the middle starts from zeros, not from noise."""
    return (f"model.decoder.segments=[{before}, {{n_steps: 2, state: {{kind: zeros}}, {core}}}, {behind}]",)


_HUGINN = _around("repeats: 4, inject: {kind: linear}, end_norm: final")
_RETROFIT = _around("repeats: 4, inject: {kind: linear}")
_PARCAE = _around(
    "repeats: 8, inject: {kind: decay}, end_map: true", before="{n_steps: 2, end_norm: own}", behind="{n_steps: 2}"
)
_SHARING = ("model.decoder.segments=[{n_steps: 1}, {n_steps: 2, repeats: 3, keys: first}, {n_steps: 1}]",)
PLAIN = {
    "parcae": Twin("looped/parcae-toy", of.parcae, _PARCAE),
    "huginn": Twin("looped/huginn-toy", of.huginn, _HUGINN, std=0.12),
    "ouro": Twin("looped/ouro-toy", of.ouro, std=0.12),
    "loopformer": Twin("looped/loopformer-toy", of.loopformer, std=0.12),
    "trm": Twin("looped/trm-toy", of.trm, labels=V, std=0.1),
    "hrm": Twin("looped/hrm-toy", of.hrm, labels=V, std=0.12),
    "retrofit": Twin("looped/retrofit-toy", of.retrofit, _RETROFIT, std=0.1),
    "iso-depth": Twin("looped/iso-depth-toy", of.iso_depth, std=0.1),
    "relaxed recursive": Twin("looped/relaxed-recursive-toy", of.relaxed, std=0.06),
    # A sentence of n words has T(n) of these rounds at most.
    "length generalisation (Fan)": Twin("looped/length-toy", of.length, labels=V, rounds=(1, 2, 4, 8, 16)),
    "length generalisation (Yang)": Twin("looped/yang-toy", of.yang),
    "moeut": Twin("looped/moeut-toy", of.moeut, std=0.12),
    "cotformer": Twin("looped/cotformer-toy", of.cotformer),
    "ln-cotformer": Twin("looped/ln-cotformer-toy", of.cotformer),
    "hrm-text": Twin("looped/hrm-text-toy", of.hrm_text, std=0.12),
}
BY_TOKEN = "mixture of recursions, token choice"
ROUTED = {
    "mixture of recursions": Twin("looped/mor-toy", of_routers.mor, seed=2),
    "mixture of recursions, keys: first": Twin("looped/mor-toy", of_routers.mor_sharing, _SHARING, seed=2),
    BY_TOKEN: Twin("looped/mor-token-toy", of_routers.mor_by_token, seed=2),
    "mixture of depths": Twin("looped/mod-toy", of_routers.mod, rounds=(4,), seed=2),
    "cotformer, adaptive": Twin("looped/adaptive-cotformer-toy", of_routers.cotformer, seed=2),
}


def in_training(twin: Twin) -> Twin:
    """Return the same twin, compared as in training."""
    return replace(twin, equations=partial(twin.equations, trains=True), trains=True)


TWINS = PLAIN | ROUTED | {f"{name}, in training": in_training(twin) for name, twin in ROUTED.items()}
