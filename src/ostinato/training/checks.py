"""Checks of training settings that need the model or this machine, made before any data is read."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ostinato.config.base import changed_settings
from ostinato.config.recipe import Recipe
from ostinato.config.training import ExpertBackend, PlannedRoundsConfig, RoundsConfig, TrainingConfig
from ostinato.errors import ConfigError, Problem
from ostinato.kernels import has_float64
from ostinato.models import Model
from ostinato.models.base import TokenModel
from ostinato.models.build import without_memory
from ostinato.nn.execution import Execution
from ostinato.nn.experts import ExpertAttention, Routed
from ostinato.nn.halting import NoHalting
from ostinato.nn.head_experts import HeadExpertAttention
from ostinato.training.freeze import freeze, matches
from ostinato.training.optim import check_scales
from ostinato.training.parallel import why_not_ddp
from ostinato.training.rounds import round_problems, steps_before_the_loop, useless_rounds

_WIDTHS_OF_GROUPED_PRODUCTS = 8
"""Widths of experts must be multiples of it, for torch's grouped product: 16 bytes, 8 numbers of bfloat16."""

_NEED_FLOAT64 = ("rotary", "buckets", "by_time", "length")
"""Kinds of positions, modulation and halting that ask `ostinato.kernels.float64`."""


def check_training(recipe: Recipe, device: torch.device) -> None:
    """Check patterns of parameters, the backend of the experts, and whether passes can be run, compiled or recorded.

    Raises:
        ConfigError: every pattern that matches no parameter, what the device has no float64 for, a backend that does
            not work on this machine, a model that cannot be compiled, or not on this machine, or not held by processes
            as asked for.
    """
    config, problems = recipe.training, pattern_problems(recipe)
    is_lowered = config.precision == "bfloat16"
    if not has_float64(device):
        why = f"needs float64, which {device.type} does not have: set training.device to cpu or cuda"
        problems += [
            Problem(key, value, why)
            for key, value in changed_settings(recipe.model, "model.")
            if key.endswith(".kind") and value in _NEED_FLOAT64
        ]
    if config.expert_backend != "auto":
        model = without_memory(recipe.model)
        problems += _backend_problems(model, config.expert_backend, device, is_lowered)
    if config.compile:
        problems += _compile_problems(without_memory(recipe.model), config, device)
    if (
        recipe.decoding.static_cache
        and (reason := without_memory(recipe.model).why_not_static(Execution())) is not None
    ):
        problems.append(Problem("decoding.static_cache", True, reason))
    if config.parallel.kind != "none":
        problems += _parallel_problems(without_memory(recipe.model), config)
    if config.rounds != PlannedRoundsConfig() or config.round_loss.kind != "last" or config.consistency.is_there:
        model = without_memory(recipe.model)
        problems += round_problems(model, config.rounds, config.round_loss, config.consistency)
    if problems:
        raise ConfigError(problems)


def learning_notes(recipe: Recipe) -> list[str]:
    """Return what would not learn, or learn what it should not, of gates that halt and of steps before a loop."""
    training, found = recipe.training, list[str]()
    if training.halting.off_updates >= training.n_updates > 0:
        found.append(
            f"tokens may halt after update {training.halting.off_updates} (training.halting.off_updates), and there "
            f"are {training.n_updates}: gates stay as they are, also in evaluations"
        )
    if training.rounds.gradient_rounds is not None:
        found += [
            f"steps before the loop of the {name} have no gradient: with training.rounds.gradient_rounds="
            f"{training.rounds.gradient_rounds} no round that has one is given what they make (segments.N.inject)"
            for name, stack in without_memory(recipe.model).stacks.items()
            if steps_before_the_loop(stack, training.rounds)
        ]
    loss, stacks = training.round_loss.kind, recipe.model.stacks()
    for name, stack in stacks.items():
        if stack.halting.kind == "exit" and (name != [*stacks][-1] or loss not in ("exit", "improvement")):
            line = f"the gate of the exits of the {name} has no gradient with training.round_loss.kind={loss}"
            if training.halting.weight:
                line = (
                    f"with training.round_loss.kind={loss} the gate of the exits of the {name} learns by its entropy "
                    "alone, whose gradient reaches the layers, too: set training.halting.weight to 0"
                )
            found.append(line)
    if loss == "improvement" and not training.freeze:
        found.append(
            "training.round_loss.kind=improvement is the loss of a gate alone, and nothing is frozen: all parameters "
            """learn to please it ('training.freeze=["*"]' 'training.freeze_except=["*.halting.*"]')"""
        )
    elif loss == "improvement" and recipe.evaluation.checkpoint.startswith("best"):
        found.append(
            "training.round_loss.kind=improvement changes no score while exits are not taken, so that the best "
            "checkpoint is the first that is evaluated: evaluation.checkpoint=last"
        )
    return found


def _draws_several(rounds: RoundsConfig) -> bool:
    """Return whether updates may have different numbers of rounds."""
    is_one = rounds.kind == "uniform" and rounds.least == rounds.most and not rounds.ramp
    return rounds.kind != "plan" and not is_one


def _parallel_problems(model: Model, config: TrainingConfig) -> list[Problem]:
    """Return why processes cannot hold a model as `training.parallel` says; kind none is for every model."""
    key, kind = "training.parallel.kind", config.parallel.kind
    if config.compile:
        return [Problem(key, kind, "passes that are compiled (training.compile) know no hooks: must be none")]
    if not model.stacks:
        reason = "recurrent models pack sentences by length, and some process may have none: must be none"
        return [Problem(key, kind, reason)]
    if kind == "ddp" and (why := why_not_ddp(model, config)) is not None:
        return [Problem(key, kind, f"{why}, and ddp is for updates that use the same parameters: must be none or fsdp")]
    return []


def pattern_problems(recipe: Recipe) -> list[Problem]:
    """Return the patterns of what is frozen, and of `training.optimizer.lr_scales`, that match no parameter; and why
    the first updates would train nothing."""
    patterns, scales = recipe.training.freeze, recipe.training.optimizer.lr_scales
    but = recipe.training.freeze_except
    if not patterns and not scales:
        return []
    model, problems = without_memory(recipe.model), list[Problem]()
    for check in (lambda: freeze(model, patterns, but), lambda: check_scales(model, scales)):
        try:
            check()
        except ConfigError as error:
            problems += error.problems
    n_off = recipe.training.halting.off_updates
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    if n_off and trained and all(name.startswith("banks.halting.") for name in trained):
        reason = "only halting rules are trained (training.freeze), which are not asked in these updates: must be 0"
        problems.append(Problem("training.halting.off_updates", n_off, reason))
    return problems


def useless_settings(recipe: Recipe) -> list[Problem]:
    """Return the patterns of parameters, and the settings of rounds, that change nothing in this model.

    Of a new run: one that was begun with them goes on as it was begun.
    """
    training, model = recipe.training, without_memory(recipe.model)
    return [*_useless_patterns(model, training), *useless_rounds(model, training.rounds, training.consistency)]


def _useless_patterns(model: Model, training: TrainingConfig) -> list[Problem]:
    """Return the patterns of `training.freeze_except` of which nothing is frozen, and those of
    `training.optimizer.lr_scales` that match nothing trained but what an earlier one matches."""
    problems = list[Problem]()
    names = [name for name, _ in model.named_parameters()]
    frozen = [name for name in names if matches(name, training.freeze)]
    for pattern in training.freeze_except:
        if not any(matches(name, [pattern]) for name in frozen):
            reason = "matches no parameter that training.freeze names: remove it"
            problems.append(Problem("training.freeze_except", pattern, reason))
    left = [name for name in names if name not in frozen or matches(name, training.freeze_except)]
    for one in training.optimizer.lr_scales:
        if not any(matches(name, [one.pattern]) for name in left):
            reason = "matches no parameter that is trained and matches no earlier pattern: remove it"
            problems.append(Problem("training.optimizer.lr_scales", one.pattern, reason))
        left = [name for name in left if not matches(name, [one.pattern])]
    return problems


def _compile_problems(model: TokenModel, config: TrainingConfig, device: torch.device) -> Iterator[Problem]:
    """Yield what stands against compiling the training passes of a model."""
    if config.rounds.per == "sentence":
        why = "passes whose sentences have rounds of their own (training.rounds.per) cannot be compiled"
        yield Problem("training.compile", True, why)
    elif _draws_several(config.rounds) or config.consistency.is_there:
        why = "drawn numbers of rounds (training.rounds, training.consistency) would each be compiled anew"
        yield Problem("training.compile", True, why)
    if config.expert_backend not in ("auto", "grouped") and any(True for _ in model.routed()):
        why = "reads numbers, which passes that are compiled do not (training.compile): must be auto or grouped"
        yield Problem("training.expert_backend", config.expert_backend, why)
    if config.compaction == "always" and all(isinstance(stack.halting, NoHalting) for stack in model.stacks.values()):
        why = (
            "reads numbers, which passes that are compiled as a whole do not (training.compile): must be auto or never"
        )
        yield Problem("training.compaction", "always", why)
    if (reason := _why_not_compilable(model, device, config.precision == "bfloat16")) is not None:
        yield Problem("training.compile", True, reason)


def _why_not_compilable(model: TokenModel, device: torch.device, is_lowered: bool) -> str | None:
    """Return why training passes cannot be compiled, None where they can.

    Args:
        is_lowered: whether they run in bfloat16.
    """
    if any(True for _ in model.routed()) and not is_lowered:
        return (
            "models with experts are compiled in bfloat16 only, for which alone torch can compile its grouped product: "
            "set training.precision=bfloat16"
        )
    maps = [parameter for module in model.routed() for parameter in module.parameters() if parameter.ndim == 3]
    if uneven := {n for parameter in maps for n in parameter.shape[1:] if n % _WIDTHS_OF_GROUPED_PRODUCTS}:
        return (
            f"torch's grouped product takes experts whose widths are multiples of {_WIDTHS_OF_GROUPED_PRODUCTS} only, "
            f"and this model has some of {', '.join(map(str, sorted(uneven)))}"
        )
    if not model.stacks:
        return "recurrent models cannot be compiled: their sentences are packed by length"
    if torch.__version__ < "2.12" and any(len(stack.banks.delta) for stack in model.stacks.values()):
        return "torch 2.11 cannot compile rounds that add maps of their own (delta_rank): torch 2.12 or later can"
    try:
        torch.compile(lambda x: 2 * x)(torch.ones(2, device=device))
    except Exception as error:  # The compiler may be missing, or fail with an error of any type.
        said = str(error).strip().splitlines() or [""]
        return f"torch.compile does not work on {device} here: {type(error).__name__}: {said[0]}"
    return None


def _backend_problems(model: TokenModel, name: ExpertBackend, device: torch.device, is_lowered: bool) -> list[Problem]:
    """Run one parameter set with experts of each type and size on two rows, and return how the backend fails.

    Args:
        is_lowered: whether to run in bfloat16, too: training may use it, evaluation is in float32 always.
    """
    model.eval()
    kinds = {(type(module), *(tuple(p.shape) for p in module.parameters())): module for module in model.routed()}
    for module in kinds.values():
        module.to_empty(device=device)
        for is_low in (False, True) if is_lowered else (False,):
            try:
                with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=is_low):
                    _run(module, model.config.d_model, device, name)
            except ConfigError as error:
                return [Problem("training.expert_backend", name, problem.reason) for problem in error.problems]
    return []


def _run(module: Routed, d_model: int, device: torch.device, backend: ExpertBackend) -> None:
    """Send two rows through a parameter set whose weights are uninitialised memory."""
    x_ND = torch.zeros(2, d_model, device=device)
    # The router's weights must be finite, or top-k would choose no valid experts.
    for one in module.named_routers():
        for parameter in one.router.parameters():
            parameter.zero_()
    decision = module.route(x_ND, backend=backend)
    if isinstance(module, HeadExpertAttention):
        to = module.route_values(x_ND, backend=backend)
        module.output(module.queries_keys_values(x_ND, decision, None, to)[0], decision)
    elif isinstance(module, ExpertAttention):
        module.output(module.queries(x_ND, decision), decision)
    else:
        module(x_ND, decision)
