"""A model of L steps as one whose c steps run L / c times: shared weights, and what every round adds to them.

    W_l ~ W' + B_l A_l,   W' = the mean of the W_l that one shared step replaces, or one of them
    B_l = U_r S_r,  A_l = V_r^T   of U S V^T = W_l - W', the r largest singular values

(Bae et al. 2024, Relaxed Recursive Transformers.) With full rank and norms by round it is the model it was made of;
with rank 0 the shared weights alone are left. Biases and norms of queries and keys have no delta: their mean is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor

from ostinato.errors import ConfigError, Problem
from ostinato.models import Model
from ostinato.nn.by_round import LowRank
from ostinato.plan import Plan, Step, Use


@torch.no_grad()
def to_recursive(donor: Model, model: Model, shared: Literal["average", "first"] = "average") -> None:
    """Give a model of repeated steps the weights that come nearest to those of a model that has every step once.

    Args:
        donor: of as many steps, in the same order. model: of the same sizes; dense sub-layers.
        shared: what W' is: the mean, or the weights of the first round.

    Raises:
        ConfigError: stacks of different depth, or different sub-layers at a step.
    """
    copied = dict(model.named_parameters())
    for name, parameter in donor.named_parameters():
        if name in copied and copied[name].shape == parameter.shape:
            copied[name].copy_(parameter)
    for name, stack in model.stacks.items():
        pairs = list(_pairs(donor.stacks[name].plan, stack.plan))
        norms: dict[str, list[Tensor]] = {}
        sets: dict[tuple[str, str], list[tuple[Use, Use]]] = {}
        for theirs, ours in pairs:
            sets.setdefault((ours.kind, ours.weights), []).append((theirs, ours))
            for their_norm, our_norm in zip(theirs.norms, ours.norms, strict=True):
                for part, parameter in donor.banks.norm[their_norm].named_parameters():
                    norms.setdefault(f"{our_norm}.{part}", []).append(parameter)
        for (kind, weights), served in sets.items():
            sources = [getattr(donor.banks, kind)[theirs.weights] for theirs, _ in served]
            _share(sources, getattr(model.banks, kind)[weights], shared)
            for source, (_, ours) in zip(sources, served, strict=True):
                if ours.delta is not None:
                    _add(source, getattr(model.banks, kind)[weights], model.banks.delta[ours.delta])
        for path, found in norms.items():
            model.banks.norm.get_parameter(path).copy_(torch.stack(found).mean(0))


def _pairs(donor: Plan, plan: Plan) -> Iterator[tuple[Use, Use]]:
    """Yield the uses of both plans, step by step."""

    def kinds(steps: tuple[Step, ...]) -> list[list[str]]:
        return [[use.kind for use in step.uses] for step in steps]

    if kinds(donor.steps) != kinds(plan.steps):
        reason = f"its donor has {len(donor.steps)} steps: both need the same sub-layers at every step"
        raise ConfigError([Problem(f"model.{plan.stack}.n_steps", len(plan.steps), reason)])
    for theirs, ours in zip(donor.steps, plan.steps, strict=True):
        yield from zip(theirs.uses, ours.uses, strict=True)


def _share(sources: list[Any], module: Any, shared: Literal["average", "first"]) -> None:
    for name, parameter in module.named_parameters():
        found = [source.get_parameter(name) for source in sources]
        is_map = name.removesuffix(".weight") in module.blocks
        parameter.copy_(found[0] if shared == "first" and is_map else torch.stack(found).mean(0))


def _add(source: Any, module: Any, deltas: Any) -> None:
    """Make B A of what a set of the donor's has beyond the shared one, block by block of every map."""
    for name, delta in deltas.items():
        assert isinstance(delta, LowRank)
        gap_FD = getattr(source, name).weight - getattr(module, name).weight
        delta.a.weight.zero_()
        delta.b_FR.zero_()
        for i, (start, end) in enumerate(zip(delta.ends, delta.ends[1:], strict=False)):
            u_FK, s_K, v_KD = torch.linalg.svd(gap_FD[start:end], full_matrices=False)
            n = min(delta.rank, len(s_K))
            delta.a.weight[i * delta.rank : i * delta.rank + n] = v_KD[:n]
            delta.b_FR[start:end, :n] = u_FK[:, :n] * s_K[:n]
