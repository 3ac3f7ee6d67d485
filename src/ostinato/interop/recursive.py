"""A model of L steps as one that shares weights over them: a loop, one wide feed-forward, experts.

    W_l ~ W' + B_l A_l,   W' = the mean of the W_l that one shared step replaces, or one of them
    B_l = U_r S_r,  A_l = V_r^T   of U S V^T = W_l - W', the r largest singular values

(Bae et al. 2024, Relaxed Recursive Transformers.) With full rank and norms by round it is the model it was made of;
with rank 0 the shared weights alone are left. Biases, norms, tables of relative positions, and keys and values of a
memory have no delta: their mean is taken. All experts of a sub-layer have one delta, that of the feed-forward they are
copies of.

A feed-forward as wide as the n that it replaces together (One Wide FFN) gets all their hidden units, and gives the mean
of their outputs. Experts get copies of a feed-forward with noise (Komatsuzaki et al. 2023, Sparse Upcycling): without
noise, and with gates that sum to one, they compute what it does; their routers begin as in any new model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Literal

import torch
from torch import Tensor

from ostinato.errors import ConfigError, Problem
from ostinato.models import Model
from ostinato.nn.by_round import LowRank
from ostinato.nn.experts import Routed
from ostinato.plan import Plan, Step, Use

Shared = Literal["average", "first", "last", "stepwise"]
"""What W' is: the mean; the weights of the first or of the last step that it serves; or, of c sets that serve L steps,
those of the steps 0, (L - 1) / (c - 1), 2 (L - 1) / (c - 1), ..., L - 1, rounded."""
_MADE = tuple(f"banks.{kind}." for kind in ("self_attention", "cross_attention", "ffn", "delta", "norm", "relative"))
"""Beginnings of the names of what is made of the donor's; all else is its copy or begins as in any new model."""
_Served = tuple[str, Use, Use]
"""A step of a stack, by its name: what runs there in the donor and in the model."""


def gates_of_other_rules(donor: Model, model: Model) -> tuple[str, ...]:
    """Return how the names of a donor's gates begin whose stacks learn when to halt by another rule in the model.

    What they have learned says something else there, also where names and shapes are the same.
    """
    rules = {name: stack.halting.kind for name, stack in donor.config.stacks().items()}
    return tuple(
        f"banks.halting.{name}."
        for name, stack in model.config.stacks().items()
        if stack.halting.has_gate and name in rules and stack.halting.kind != rules[name]
    )


@torch.no_grad()
def to_recursive(donor: Model, model: Model, shared: Shared = "average", *, noise: float = 0.0, seed: int = 0) -> None:
    """Give a model of shared steps the weights that come nearest to those of a model that has every step once.

    Sub-layers and gates of halting that the model does not have are left out, and gates that it has for another rule
    (`gates_of_other_rules`). A model of the donor's own plan, sizes and rules is its copy.

    Args:
        donor: of as many steps, in the same order; dense, and without deltas. model: of the same widths.
        shared: what W' is.
        noise: of copies of a feed-forward as experts, in standard deviations of each of its tensors. seed: of it.

    Raises:
        ConfigError: stacks of different depth, a sub-layer or table that the donor does not have, or one of another
            shape; an embedding, norm of a stack, output, head or map between rounds of the donor's that the model does
            not have; deltas; experts that are no feed-forwards; noise without experts.
    """
    if noise and next(model.routed(), None) is None:
        raise ConfigError([Problem("noise", noise, "has no effect: this model has no experts; leave it out")])
    generator = torch.Generator().manual_seed(seed)
    if missing := [name for name in model.stacks if name not in donor.stacks]:
        reason = f"has no counterpart: the donor's stacks are {', '.join(donor.stacks) or 'none'}"
        raise ConfigError([Problem("model.kind", f"a model with the stack {missing[0]!r}", reason)])
    gates = gates_of_other_rules(donor, model)
    donors = {name: x for name, x in donor.named_parameters() if not name.startswith(gates)}
    own = dict(model.named_parameters())
    lost, may_go = [name for name in donors if name not in own], (*_MADE, "banks.halting.")
    _refuse_to_lose(name for name in lost if not name.startswith(may_go))
    if "target_weight" in donors:  # what a tied donor's output is made of
        donors.setdefault("output_weight", donors["target_weight"])
    for name, parameter in own.items():
        given = donors.get(name)
        if given is not None and given.shape == parameter.shape:
            parameter.copy_(given)
        elif name.endswith("bias"):  # new ones begin at zero
            continue
        elif _is_of_the_text(name) or (given is not None and not name.startswith(may_go)):
            has = "lacks" if given is None else f"has in the shape {tuple(given.shape)}"
            reason = f"of the shape {tuple(parameter.shape)} would be drawn at random: the donor {has} it"
            raise ConfigError([Problem("model", name, reason)])
    if not noise and _shape(model) == _shape(donor):
        return
    # A set may serve several stacks: what is made of the donor's is collected first.
    steps = [
        (name, theirs, ours)
        for name, stack in model.stacks.items()
        for theirs, ours in _pairs(donor.stacks[name].plan, stack.plan)
    ]
    sets: dict[tuple[str, str], list[_Served]] = {}
    means: dict[tuple[str, str], tuple[str, list[Tensor]]] = {}
    for one in steps:
        name, theirs, ours = one
        sets.setdefault((ours.kind, ours.weights), []).append(one)
        if theirs.delta is not None:
            reason = "rounds of the donor have maps of their own already (delta_rank), which would be lost"
            fix = f"model.{name} must be as it is there; to train it on, leave training.init_shared out"
            raise ConfigError([Problem(f"model.{name}.{ours.kind}", ours.weights, f"{reason}: {fix}")])
        if (has := _places(theirs)) != (wants := _places(ours)):
            reason = f"norms stand {wants} there, and {has} in the donor: the same placement is needed"
            raise ConfigError([Problem(f"model.{name}.norm.placement", ours.kind, reason)])
        tables = [(theirs.position, ours.position)] if theirs.position and ours.position else []
        norms = list(zip(theirs.norms, ours.norms, strict=True))
        for bank, names in (("norm", norms), ("relative", tables)):
            for their_name, our_name in names:
                for part, parameter in getattr(donor.banks, bank)[their_name].named_parameters():
                    if bank == "norm" or part in dict(model.banks.relative[our_name].named_parameters()):
                        means.setdefault((bank, f"{our_name}.{part}"), (name, []))[1].append(parameter)
    for (kind, weights), served in sets.items():
        module, name = getattr(model.banks, kind)[weights], served[0][0]
        sources = [getattr(donor.banks, kind)[theirs.weights] for _, theirs, _ in served]
        chosen = _chosen(steps, served, shared)
        taken = None if chosen is None else getattr(donor.banks, kind)[chosen]
        if any(isinstance(source, Routed) for source in sources):
            reason = "cannot be made of the donor's: it has experts there, and must be dense"
            raise ConfigError([Problem(f"model.{name}.{kind}", weights, reason)])
        if isinstance(module, Routed) and kind != "ffn":
            reason = "cannot be made of the donor's: only feed-forwards become experts"
            raise ConfigError([Problem(f"model.{name}.{kind}.kind", "experts", reason)])
        try:
            common = _common(sources, taken)
            if isinstance(module, Routed):
                _copy_to_experts(common, module, noise, generator)
            elif kind == "ffn" and module.blocks["up"] != sources[0].blocks["up"]:
                _widen(sources, module)
            else:
                for part, x in common.items():
                    module.get_parameter(part).copy_(x)
            for source, (_, _, ours) in zip(sources, served, strict=True):
                if ours.delta is not None:
                    _add(source, common, model.banks.delta[ours.delta])
        except (AttributeError, RuntimeError) as error:
            reason = f"cannot be made of the donor's: {str(error).splitlines()[0]}"
            raise ConfigError([Problem(f"model.{name}.{kind}", weights, reason)]) from error
    for (bank, path), (name, found) in means.items():
        try:
            mean = found[0] if all(x is found[0] for x in found) else torch.stack(found).mean(0)
            getattr(model.banks, bank).get_parameter(path).copy_(mean)
        except (AttributeError, RuntimeError) as error:
            what = "parts" if isinstance(error, AttributeError) else "sizes"
            reason = f"has other {what} than the donor's {'norms' if bank == 'norm' else 'tables'}"
            raise ConfigError([Problem(f"model.{name}.{bank}", path, reason)]) from error
    of_steps = {norm for stack in donor.stacks.values() for use in stack.plan.uses() for norm in use.norms}
    _refuse_to_lose(name for name in lost if name.startswith("banks.norm.") and name.split(".")[2] not in of_steps)


def _refuse_to_lose(names: Iterable[str]) -> None:
    for name in names:
        reason = "is not in this model, and the donor's outputs need it: keep the donor's settings"
        reason += " (embeddings, positions, norms of a stack, what acts between rounds, output, head)"
        raise ConfigError([Problem("model", name, reason)])


def _shape(model: Model) -> tuple[dict[str, Plan], dict[str, torch.Size]]:
    """Return what decides whether the steps of two models can be copies of each other."""
    sizes = {name: parameter.shape for name, parameter in model.named_parameters() if name.startswith(_MADE)}
    return {name: stack.plan for name, stack in model.stacks.items()}, sizes


def _is_of_the_text(name: str) -> bool:
    """Return whether a parameter stands for symbols or their places: nothing else can do what it does."""
    return not name.startswith("banks.") or name.startswith(("banks.positions.", "banks.embedding."))


def _places(use: Use) -> str:
    """Return in words where a sub-layer has norms."""
    names = ("before", "scores", "output", "after")
    return ", ".join(name for name in names if getattr(use, name) is not None) or "nowhere"


def _pairs(donor: Plan, plan: Plan) -> Iterator[tuple[Use, Use]]:
    """Yield the uses of both plans, step by step."""

    def uses(step: Step) -> dict[str, Use]:
        return {use.kind: use for use in step.uses}

    steps = list(zip(donor.steps, plan.steps, strict=False))
    if len(donor.steps) != len(plan.steps) or any(uses(ours).keys() - uses(theirs).keys() for theirs, ours in steps):
        reason = f"its donor has {len(donor.steps)} steps: both need the same sub-layers at every step"
        raise ConfigError([Problem(f"model.{plan.stack}.n_steps", len(plan.steps), reason)])
    for theirs, ours in steps:
        yield from ((uses(theirs)[kind], use) for kind, use in uses(ours).items())


def _chosen(steps: Sequence[_Served], served: Sequence[_Served], shared: Shared) -> str | None:
    """Return which of the donor's sets is taken; None: the mean of all that are replaced.

    Args:
        steps: of all stacks, in their order. served: those of the set.
    """
    if shared == "average":
        return None
    if shared != "stepwise" or len(served) == 1:
        return served[-1 if shared == "last" else 0][1].weights
    kind, weights = served[0][2].kind, served[0][2].weights
    # Of a set of several stacks: their first steps, their second ones, ...
    stacks = dict.fromkeys(name for name, _, _ in served)
    of_stacks = [[one for one in steps if one[0] == name and one[2].kind == kind] for name in stacks]
    by_step = [one for of_step in zip_longest(*of_stacks) for one in of_step if one is not None]
    mine = [(theirs.weights, ours.weights) for _, theirs, ours in by_step]
    n_served = Counter(own for _, own in mine)
    donors = [their for their, own in mine if n_served[own] > 1]
    looped = [own for own in n_served if n_served[own] > 1]
    return donors[round(looped.index(weights) * (len(donors) - 1) / max(len(looped) - 1, 1))]


def _common(sources: list[Any], one: Any | None) -> dict[str, Tensor]:
    """Return what steps share: every tensor's mean, or one set's maps and the mean of all else."""
    found = {}
    for name, _ in sources[0].named_parameters():
        mean = torch.stack([source.get_parameter(name) for source in sources]).mean(0)
        is_map = name.removesuffix(".weight") in sources[0].blocks
        found[name] = one.get_parameter(name) if one is not None and is_map else mean
    return found


def _copy_to_experts(common: dict[str, Tensor], module: Any, noise: float, generator: torch.Generator) -> None:
    """Give every expert a copy with noise of its own."""
    names = {"up_EDF": "up.weight", "down_EFD": "down.weight", "up_bias_EF": "up.bias", "down_bias_ED": "down.bias"}
    if lost := sorted(common.keys() - {names[name] for name, _ in module.experts.named_parameters()}):
        raise AttributeError(f"experts without {lost[0]} would not compute what it does")
    for name, parameter in module.experts.named_parameters():
        if names[name] not in common:  # a bias
            parameter.zero_()
            continue
        x = common[names[name]]
        x = x.T if x.ndim == 2 else x
        parameter.copy_(x.expand(parameter.shape))
        if noise and x.numel() > 1:
            drawn = torch.randn(parameter.shape, generator=generator, device="cpu")  # the same numbers everywhere
            parameter.add_(noise * float(x.std()) * drawn.to(parameter.device))


def _widen(sources: list[Any], module: Any) -> None:
    """Put the hidden units of all sets side by side: the output is the mean of theirs."""
    n_parts = len(module.blocks["up"].heights)
    if module.up.bias is None and sources[0].up.bias is not None:
        raise AttributeError("without biases it would not compute what they do")
    if sources[0].up.bias is None and module.up.bias is not None:
        module.up.bias.zero_()
    for part in ("weight", "bias") if sources[0].up.bias is not None else ("weight",):
        blocks = [getattr(source.up, part).chunk(n_parts) for source in sources]
        getattr(module.up, part).copy_(torch.cat([block[i] for i in range(n_parts) for block in blocks]))
    module.down.weight.copy_(torch.cat([source.down.weight for source in sources], dim=1) / len(sources))
    if sources[0].down.bias is not None:
        module.down.bias.copy_(torch.stack([source.down.bias for source in sources]).mean(0))
    elif module.down.bias is not None:
        module.down.bias.zero_()


def _add(source: Any, common: dict[str, Tensor], deltas: Any) -> None:
    """Make B A of what a set of the donor's has beyond what is shared, block by block of every map."""
    for name, delta in deltas.items():
        assert isinstance(delta, LowRank)
        gap_FD = getattr(source, name).weight - common[f"{name}.weight"]
        delta.a.weight.zero_()
        delta.b_FR.zero_()
        for i, (start, end) in enumerate(zip(delta.ends, delta.ends[1:], strict=False)):
            u_FK, s_K, v_KD = torch.linalg.svd(gap_FD[start:end], full_matrices=False)
            n = min(delta.rank, len(s_K))
            delta.a.weight[i * delta.rank : i * delta.rank + n] = v_KD[:n]
            delta.b_FR[start:end, :n] = u_FK[:, :n] * s_K[:n]
