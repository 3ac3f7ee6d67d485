"""Equal-budget families: models of different depth with as many parameters as one of them.

Petty et al. 2024 (arXiv 2310.19956), section 2: a model of n steps of width d_ff has

    N(n, d_ff) = n (beta d_ff + A) + 2 d_model V,    A = 4 d_model d_attn

parameters, with beta = 2 d_model for a plain feed-forward and 3 d_model for a gated one. N(n0 + k, f0 - w) = N(n0, f0)
gives w(k) = (1 - n0 / (n0 + k)) (f0 + A / beta), or d_ff(n) = C / n - A / beta with C = n0 (f0 + A / beta).
`make_family` makes a family of any configuration; it needs no formula, only the counter. What is held equal is said by
`Counting`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from ostinato.budget.free import ROOT, with_settings
from ostinato.budget.macs import count_macs
from ostinato.budget.parameters import count_parameters
from ostinato.budget.solver import OutOfReach, Rounding, solve, stored_parameters
from ostinato.config.model import LanguageModelConfig, ModelConfig
from ostinato.errors import ConfigError, Problem

Counting = Literal["exact", "paper"]
"""What a family holds equal. exact: `count_parameters(...).stored`. paper: the matrices and embeddings only, without
biases, norms and tables of relative positions, as Petty et al. count."""

D_FF = "d_ff"


@dataclass(frozen=True, slots=True)
class Arm:
    """One model of a family.

    Args:
        n_steps, d_ff: depth, and the width found for it.
        parameters: stored, as `count_parameters` counts them, whatever the family holds equal.
        residual: stored parameters more than the base's (less: negative).
        macs: multiply-accumulates of one token, attending to `n_ctx` tokens (seq2seq: of one source and one target
            token, both sides `n_ctx` long).
        config: the model. settings: what differs from the base, by path below ``model``.
    """

    n_steps: int
    d_ff: int
    parameters: int
    residual: int
    macs: int
    config: ModelConfig
    settings: dict[str, int]


@dataclass(frozen=True, slots=True)
class Infeasible:
    """A depth that the base's parameters cannot pay for, and why."""

    n_steps: int
    reason: str


@dataclass(frozen=True, slots=True)
class Family:
    """Models of equal budget.

    Args:
        base: the configuration whose parameters all arms have. parameters: their number.
        counting: what is held equal. n_ctx: tokens that the MACs assume.
    """

    base: ModelConfig
    parameters: int
    counting: Counting
    n_ctx: int
    arms: tuple[Arm, ...]
    infeasible: tuple[Infeasible, ...]


def make_family(
    base: ModelConfig,
    depths: Iterable[int],
    *,
    stack: str | None = None,
    counting: Counting | None = None,
    rounding: Rounding = "nearest",
    n_ctx: int = 1024,
) -> Family:
    """Return the models of other depths that have the base's parameters, their feed-forwards widened or narrowed.

    Args:
        base: any model, with its vocabulary sizes set.
        depths: n_steps of the arms.
        stack: the stack whose depth varies; None: all stacks together, which must then be equally deep.
        counting: what is held equal; None: `usual_counting`.
        rounding: see `ostinato.budget.solver`.
        n_ctx: see `Arm`.

    Raises:
        ConfigError: no such stack, stacks of different depth, or feed-forwards that are not there to be varied.
    """
    paths = _depth_paths(base, stack)
    counting = counting or usual_counting(base)
    cost = stored_parameters if counting == "exact" else matrix_parameters
    parameters = stored_parameters(base)
    # What is wrong with the base is an error here, and not a reason at every depth.
    solve(base, cost(base), D_FF, cost, rounding)
    arms, infeasible = list[Arm](), list[Infeasible]()
    for n_steps in depths:
        depth = dict.fromkeys(paths, n_steps)
        try:
            deeper = with_settings(base, depth)
        except ConfigError as error:
            infeasible.append(Infeasible(n_steps, str(error)))
            continue
        try:
            found = solve(deeper, cost(base), D_FF, cost, rounding)
        except OutOfReach:
            count = count_parameters(deeper)
            narrowed = sum(n for part, n in count.by_part.items() if part.endswith((".ffn", ".sparse_layer")))
            reason = f"{_millions(parameters, 0)} cannot hold {n_steps} layers at d_model {base.d_model}"
            others = f"attention and embeddings alone are {_millions(count.stored - narrowed, 1)}"
            infeasible.append(Infeasible(n_steps, f"{reason}: {others}"))
            continue
        macs, stored = count_macs(found.config, n_ctx, n_ctx), stored_parameters(found.config)
        per_token = macs.per_source_token + macs.per_target_token
        settings = depth | found.values
        arms.append(Arm(n_steps, found.value, stored, stored - parameters, per_token, found.config, settings))
    return Family(base, parameters, counting, n_ctx, tuple(arms), tuple(infeasible))


def usual_counting(config: ModelConfig) -> Counting:
    """Return what a family of this model holds equal where nothing else is asked for.

    paper for the models its formula is about, language models without biases whose output matrix is their own, if
    norms and tables are so few of their parameters (a fiftieth of a per cent) that a family five times as deep stays
    within 0.1 %: then the published widths come out. Everywhere else families are exact.
    """
    if not isinstance(config, LanguageModelConfig) or config.tie_embeddings != "none":
        return "exact"
    left_out = stored_parameters(config) - matrix_parameters(config)
    has_biases = _without_biases(config) != config
    return "exact" if has_biases or left_out * 5000 > stored_parameters(config) else "paper"


def matrix_parameters(config: ModelConfig) -> int:
    """Return the parameters of matrices and embeddings: without biases, norms and tables of relative positions."""
    count = count_parameters(_without_biases(config))
    return count.stored - count.by_part.get("norms", 0) - count.by_part.get("positions", 0)


def _without_biases(config: ModelConfig) -> ModelConfig:
    nested = config.model_dump()
    for stack in config.stacks():
        for name, group in nested[stack].items():
            if isinstance(group, dict) and "bias" in group and name != "norm":
                group["bias"] = False
    return type(config).model_validate(nested)


def _depth_paths(base: ModelConfig, stack: str | None) -> list[str]:
    """Return the settings that hold the depth of the stacks that vary."""
    stacks = base.stacks()
    if not stacks:
        reason = "a recurrence over positions has no steps of depth, so that there is no family of depths"
        raise ConfigError([Problem("model.kind", base.kind, reason)])
    if stack is not None:
        if stack not in stacks:
            raise ConfigError([Problem("stack", stack, f"this model has the stacks {', '.join(stacks)}")])
        return [f"{stack}.n_steps"]
    depths = {name: s.n_steps for name, s in stacks.items()}
    if len(set(depths.values())) > 1:
        shown = " and ".join(f"{ROOT}{name}.n_steps={n}" for name, n in depths.items())
        reason = f"the stacks are not equally deep ({shown}): say which one varies"
        raise ConfigError([Problem("stack", None, reason)])
    return [f"{name}.n_steps" for name in stacks]


def _millions(n: int, digits: int) -> str:
    """Return a count as people say it: 41M, 42.3M; below ten millions with two digits more."""
    return f"{n / 1e6:.{digits if n >= 1e7 else digits + 2}f}M"
