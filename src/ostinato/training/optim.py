"""Optimisers and learning rates.

Adam adds the weight decay to the gradient (an L2 penalty), AdamW shrinks the weights directly (Loshchilov and Hutter
2019). In both, norms, biases, embeddings and tables of relative positions are exempt. Parameters shared over depth
are one tensor and appear once; frozen ones do not appear.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from ostinato.config.training import LearningRateScale, OptimizerConfig, ScheduleConfig
from ostinato.errors import CheckpointError
from ostinato.models.base import TokenModel
from ostinato.models.embeddings import FactEmbedder
from ostinato.nn.experts import ExpertAttention, ExpertMaps, SparseLayer
from ostinato.nn.loops import DecayInjection
from ostinato.nn.routing import HypersphereRouter
from ostinato.training.freeze import check_patterns

OPTIMIZER = "optimizer/"
"""What names of tensors of an optimiser's state begin with in a checkpoint."""
OPTIMIZER_PARTS = "optimizer"
"""The folder of a checkpoint that holds parts of them."""


def learning_rate(
    config: OptimizerConfig, schedule: ScheduleConfig, update: int, n_updates: int, d_model: int
) -> float:
    """Return the learning rate of update u = 1, 2, ..., n_updates; the formulas are `ScheduleConfig`'s.

    Without warm-up (W = 0) linear and cosine fall from lr at u = 0. Where W >= n_updates there is only the warm-up.
    Beyond n_updates they stay at their final value.
    """
    u, w = float(update), float(schedule.warmup)
    warm = min(u / w, 1.0) if w else 1.0
    match schedule.kind:
        case "constant":
            return config.lr * warm
        case "inverse_sqrt":
            return config.lr * min(warm, math.sqrt(w / u))
        case "inverse_sqrt_t2t":
            return config.lr * warm / math.sqrt(d_model * max(u, w))
    if u <= w:
        return config.lr * warm
    done = min((u - w) / max(n_updates - w, 1.0), 1.0)
    left = 1.0 - done if schedule.kind == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr * (schedule.final_fraction + (1.0 - schedule.final_fraction) * left)


def parameter_groups(
    model: nn.Module, weight_decay: float, scales: Sequence[LearningRateScale] = ()
) -> list[dict[str, Any]]:
    """Return the trained parameters that decay and those that do not, of every learning rate; no group is empty.

    Exempt are vectors (norms, biases), also those of experts, which are stacked; the embeddings of a `TokenModel`
    (also where they are the output projection), its tables of relative positions, the embeddings of experts in a
    `HypersphereRouter`, whose length is held, and the maps of a loop's injection by decay and of its end (Parcae).
    """
    check_scales(model, scales)
    exempt = _exempt(model)
    found: dict[tuple[float, bool, bool], list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = next((one.scale for one in scales if fnmatchcase(name, one.pattern)), 1.0)
        is_exempt = parameter.ndim < 2 or id(parameter) in exempt
        # Fused optimisers take no parts of divided tensors beside whole ones.
        is_divided = own_part(parameter) is not parameter
        found.setdefault((scale, is_exempt, is_divided), []).append(parameter)
    # The order of the groups is that of stored optimiser states: no scale first, then decaying before exempt.
    keys = sorted(found, key=lambda key: (key[0] != 1.0, key))
    return [{"params": found[key], "weight_decay": 0.0 if key[1] else weight_decay, "scale": key[0]} for key in keys]


def check_scales(model: nn.Module, scales: Sequence[LearningRateScale]) -> None:
    """Raise a ConfigError that holds every pattern that matches no parameter."""
    names = [name for name, _ in model.named_parameters()]
    check_patterns("training.optimizer.lr_scales", [one.pattern for one in scales], names)


_EMBEDDINGS = ("source_weight", "target_weight", "type_weight")


def _exempt(model: nn.Module) -> set[int]:
    """Return the parameters of two dimensions that do not decay; of experts those that are one vector each."""
    found: set[int] = set()
    if isinstance(model, TokenModel):
        found |= {id(p) for name, p in model.named_parameters() if name in _EMBEDDINGS}
        found |= {id(p) for bank in (model.banks.relative, model.banks.end_map) for p in bank.parameters()}
    for module in model.modules():
        match module:
            case nn.Embedding() | FactEmbedder():  # masks of facts begin at one, to which decay must not pull them back
                found |= {id(p) for p in module.parameters()}
            case ExpertMaps() | ExpertAttention():
                found |= {id(p) for p in module.parameters(recurse=False) if p.ndim == 2}
            case SparseLayer():
                found |= {id(p) for p in (*module.norm_weights, *module.norm_biases)}
            case HypersphereRouter():
                found.add(id(module.experts_EC))
            case DecayInjection():  # B begins as the identity (Parcae)
                found.add(id(module.input.weight))
    return found


def own_part(tensor: Tensor) -> Tensor:
    """Return what this process has of a tensor: its part, where it is divided (`DTensor`), else all of it."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.Optimizer:
    """Return the optimiser; its learning rate is set anew before every update, see `set_learning_rate`.

    The fused implementation, where the device has one, does one pass over the weights per update.
    """
    kind: type[torch.optim.Adam] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}[config.kind]
    groups = parameter_groups(model, config.weight_decay, config.lr_scales)
    can_fuse = all(p.device.type in ("cpu", "cuda") for p in model.parameters())
    betas = (config.beta1, config.beta2)
    return kind(groups, lr=config.lr, betas=betas, eps=config.eps, fused=can_fuse)


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """Use this learning rate from now on, times the scale of each group of parameters."""
    for group in optimizer.param_groups:
        group["lr"] = value * group.get("scale", 1.0)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimiser's state by `<quantity>/<name of the parameter>`, to be written to a checkpoint."""
    return {
        f"{quantity}/{name}": torch.as_tensor(value)
        for name, parameter in model.named_parameters()
        for quantity, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` returned.

    A parameter that no update has reached yet, such as a gate before tokens may halt, has no state: one without any is
    no error.

    Raises:
        CheckpointError: a parameter the model does not have, or a state of another shape, with numbers that are not
            finite, or without a quantity that those of other parameters have.
    """
    parameters = dict(model.named_parameters())
    quantities = {key.partition("/")[0] for key in tensors}
    for name in {key.partition("/")[2] for key in tensors}:
        if missing := [quantity for quantity in sorted(quantities) if f"{quantity}/{name}" not in tensors]:
            raise CheckpointError(f"the optimiser's state of {name} has no {' and no '.join(missing)}")
    fused = {parameter for group in optimizer.param_groups if group.get("fused") for parameter in group["params"]}
    for key, tensor in tensors.items():
        quantity, _, name = key.partition("/")
        parameter = parameters.get(name)
        if parameter is None or (tensor.ndim and tensor.shape != parameter.shape):
            raise CheckpointError(f"the optimiser's state {key!r} fits no parameter of the model")
        if not bool(own_part(tensor).isfinite().all()):
            raise CheckpointError(f"the optimiser's state {key!r} holds numbers that are not finite")
        # The fused optimisers read state and parameter side by side as they lie in memory, and the number of updates
        # where the parameter is; the others read that on the host.
        like = torch.empty_like(parameter, dtype=tensor.dtype) if tensor.ndim else torch.empty_like(tensor)
        like = like.to(parameter.device) if parameter in fused else like
        optimizer.state[parameter][quantity] = like.copy_(tensor)
