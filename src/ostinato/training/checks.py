"""Settings of a training run that only the model and this machine can judge, checked before any data is read."""

from __future__ import annotations

import torch

from ostinato.config.recipe import Recipe
from ostinato.config.training import ExpertBackend
from ostinato.errors import ConfigError, Problem
from ostinato.models import build_model
from ostinato.models.base import TokenModel
from ostinato.nn.experts import ExpertAttention, Routed
from ostinato.training.freeze import freeze
from ostinato.training.optim import check_scales


def check_training(recipe: Recipe, device: torch.device) -> None:
    """Check what is to be frozen, the backend of the experts, and whether the model can be compiled.

    Raises:
        ConfigError: patterns that match no parameter, a backend that does not work here, or a model that cannot be
            compiled, or not here; all of them.
    """
    config = recipe.training
    is_plain = not config.freeze and not config.optimizer.lr_scales and not config.compile
    if is_plain and config.expert_backend == "auto":
        return
    model = _outline(recipe)
    problems: list[Problem] = []
    try:
        freeze(model, config.freeze)
    except ConfigError as error:
        problems += error.problems
    try:
        check_scales(model, config.optimizer.lr_scales)
    except ConfigError as error:
        problems += error.problems
    if config.expert_backend != "auto":
        problems += _backend_problems(model, config.expert_backend, device, config.precision == "bfloat16")
    if config.compile and (reason := _uncompilable(model, device)) is not None:
        problems.append(Problem("training.compile", True, reason))
    if problems:
        raise ConfigError(problems)


def _outline(recipe: Recipe) -> TokenModel:
    """Return the recipe's model with its names and shapes and without memory; vocabularies are yet to be built."""
    config = recipe.model
    with torch.device("meta"):
        return build_model(config.model_copy(update=config.vocabulary_sizes(8, 8)))


def _uncompilable(model: TokenModel, device: torch.device) -> str | None:
    """Return why training passes cannot be compiled; None: they can."""
    if any(True for _ in model.routed()):
        return "models with experts cannot be compiled: their rows are gathered by where routers send them"
    if model.halting_thresholds():
        return "models whose tokens halt cannot be compiled: their rows are gathered by who is left"
    if not model.stacks:
        return "recurrent models cannot be compiled: their sentences are packed by length"
    try:
        torch.compile(_double)(torch.ones(2, device=device))
    except Exception as error:  # A compiler that is missing or fails, of any kind.
        said = str(error).strip().splitlines() or [""]
        return f"torch.compile does not work on {device} here: {type(error).__name__}: {said[0]}"
    return None


def _double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def _backend_problems(model: TokenModel, name: ExpertBackend, device: torch.device, lowered: bool) -> list[Problem]:
    """Run every parameter set with experts that has sizes of its own on two rows, and say which backend fails how.

    Args:
        lowered: also in bfloat16; evaluation is in float32, whatever training is.
    """
    model.eval()
    kinds = {(type(module), *(tuple(p.shape) for p in module.parameters())): module for module in model.routed()}
    for module in kinds.values():
        module.to_empty(device=device)
        for is_low in (False, True) if lowered else (False,):
            try:
                with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=is_low):
                    _run(module, model.config.d_model, device, name)
            except ConfigError as error:
                return [Problem("training.expert_backend", name, problem.reason) for problem in error.problems]
    return []


def _run(module: Routed, d_model: int, device: torch.device, backend: ExpertBackend) -> None:
    """Send two rows through a parameter set whose weights may hold anything."""
    x_ND = torch.zeros(2, d_model, device=device)
    for parameter in [] if module.router is None else module.router.parameters():
        parameter.zero_()
    decision = module.route(x_ND, backend=backend)
    if isinstance(module, ExpertAttention):
        module.output(module.queries(x_ND, decision), decision)
    else:
        module(x_ND, decision)
