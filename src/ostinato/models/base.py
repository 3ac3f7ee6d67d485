"""What every model is: token ids to logits, the stacks and banks it may have, and how it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ostinato.config.model import ModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.models.embeddings import Embeddings
from ostinato.nn.bank import Banks
from ostinato.nn.execution import Execution
from ostinato.nn.experts import Routed
from ostinato.nn.layers import at_least_float32
from ostinato.nn.shapes import Float, Tensor
from ostinato.nn.stack import Stack
from ostinato.nn.sub_layer import router_name
from ostinato.nn.types import Routing, StackOutput

ByRouter = dict[str, list[Routing]]


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """Logits, and what every stack returns beside them.

    Args:
        logits_BTV: float32, for every column of the target.
        stacks: by name, in the order they ran.
    """

    logits_BTV: Float[Tensor, "B T V"]
    stacks: dict[str, StackOutput] = field(default_factory=dict)

    def by_router(self) -> ByRouter:
        """Return the routings of all stacks by router, in the order they happened."""
        found: ByRouter = {}
        for stack in self.stacks.values():
            for routing in stack.routings:
                found.setdefault(routing.router, []).append(routing)
        return found


class TokenModel(Embeddings):
    """Base of all models.

    A recurrent model has no stacks and empty banks: it has no routers and nothing that halts.

    Args:
        config: the model's configuration, vocabulary sizes set.
        execution: how it runs where a call does not say otherwise; None: as `Execution` does by default.
    """

    def __init__(self, config: ModelConfig, execution: Execution | None = None) -> None:
        super().__init__(config)
        self.banks = Banks()
        self.stacks: dict[str, Stack] = {}
        self._temperatures: dict[str, float] = {}
        self._execution = execution or Execution()

    @property
    def current_execution(self) -> Execution:
        """How the model runs now."""
        return self._execution

    @contextmanager
    def execution(self, execution: Execution | None = None, **changes: Any) -> Iterator[None]:
        """Run the model in another way inside; it runs as before afterwards.

        Args:
            execution: None: as it runs now. changes: fields of it by name, for example `halting=False`.

        Raises:
            ConfigError: a value that is not valid, or a threshold for a model whose tokens do not halt.
        """
        before = self._execution
        self._execution = self.checked(replace(execution or before, **changes))
        try:
            yield
        finally:
            self._execution = before

    def checked(self, execution: Execution | None) -> Execution:
        """Return how a call runs: as it is told, or as the model does.

        Raises:
            ConfigError: a threshold, and no stack in which tokens halt; rounds that a stack cannot run.
        """
        if execution is None:
            return self._execution
        if execution.halting_threshold is not None and not self._halting_rules():
            why = " and ".join(f"model.{name}.halting.kind is none" for name in self.stacks) or "it has no rounds"
            reason = f"no token of this model can halt ({why})"
            raise ConfigError([Problem("halting_threshold", execution.halting_threshold, reason)])
        for name, n_rounds in execution.rounds.items():
            if name not in self.stacks:
                reason = f"this model has no such stack; its stacks are: {', '.join(self.stacks) or 'none'}"
                raise ConfigError([Problem("rounds", name, reason)])
            self.stacks[name].plan.with_rounds(n_rounds)
        return execution

    def n_rounds(self) -> dict[str, int]:
        """Return how many rounds every stack runs where a call does not say otherwise."""
        given = self._execution.rounds
        return {name: given.get(name, stack.plan.n_rounds) for name, stack in self.stacks.items()}

    def halting_thresholds(self) -> dict[str, float]:
        """Return the threshold in force of every stack in which tokens halt."""
        given = self._execution.halting_threshold
        return {name: own if given is None else given for name, own in self._halting_rules().items()}

    def _halting_rules(self) -> dict[str, float]:
        rules = {name: stack.halting for name, stack in self.stacks.items()}
        return {name: rule.threshold for name, rule in rules.items() if rule.threshold < math.inf}

    def routed(self) -> Iterator[Routed]:
        """Yield the parameter sets that have experts, each once."""
        return (module for module in self.banks.modules() if isinstance(module, Routed))

    def no_routings(self) -> Iterator[Routing]:
        """Yield for every use of a router, in the order they run, a routing without rows."""
        like = at_least_float32(torch.empty(0, device=self.device, dtype=next(self.parameters()).dtype))
        for stack in self.stacks.values():
            for step in stack.plan.steps:
                for use in step.uses:
                    module = getattr(self.banks, use.kind)[use.weights]
                    if isinstance(module, Routed) and module.router is not None:
                        sizes = (module.n_experts, module.gate.top_k)
                        yield Routing.of_no_rows(router_name(use), stack.plan.stack, step.index, sizes, like)

    def project_routers(self) -> None:
        """Bring what routers hold fixed back to its place; to be called after every update."""
        for module in self.routed():
            if module.router is not None:
                module.router.project()

    def balance_temperatures(self) -> dict[str, float]:
        """Return by router the temperature it started from: the constant tau_0 of X-MoE's balance loss."""
        return dict(self._temperatures)

    def router_temperatures(self) -> dict[str, Tensor]:
        """Return by router the temperature that it divides scores by now, of routers that have one."""
        found: dict[str, Tensor] = {}
        for stack in self.stacks.values():
            for use in stack.plan.uses():
                module = getattr(self.banks, use.kind)[use.weights]
                if isinstance(module, Routed) and module.router is not None:
                    temperature = module.router.temperature()
                    if isinstance(temperature, Tensor):
                        found[router_name(use)] = temperature.detach()
        return found

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def n_parameters(self) -> int:
        """Return the number of stored parameters; a shared one counts once."""
        return sum(p.numel() for p in self.parameters())


def as_batch(
    given: Batch | Tensor, keep: Tensor | None, target: Tensor | None = None, target_keep: Tensor | None = None
) -> Batch:
    """Return what a model is called with as a batch.

    Args:
        given: a batch, or token ids `[B, T]`: of the source where there is a target. keep: real tokens; None: all.
        target, target_keep: ids of the target `[B, T]`, begin symbol first, and its real tokens.

    Raises:
        DataError: ids that are no whole numbers `[B, T]`, a mask of another shape, or one beside a batch.
    """
    if isinstance(given, Batch):
        if keep is not None or target is not None or target_keep is not None:
            raise DataError("a batch holds its masks and its target: keep, target and target_keep go with token ids")
        return given
    first = _tokens(given, keep, "ids" if target is None else "source ids")
    if target is None:
        return Batch(first, first.ids_BT, first.keep_BT)
    second = _tokens(target, target_keep, "target ids")
    return Batch(second, second.ids_BT, second.keep_BT, source=first)


def _tokens(ids: Tensor, keep: Tensor | None, name: str) -> Tokens:
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise DataError(f"{name} must be whole numbers [B, T], got {ids.dtype} of shape {tuple(ids.shape)}")
    keep = torch.ones_like(ids, dtype=torch.bool) if keep is None else keep.bool()
    if keep.shape != ids.shape:
        raise DataError(f"the mask of {name} must have their shape {tuple(ids.shape)}, got {tuple(keep.shape)}")
    return Tokens(ids.long(), keep)


def keep_or_none(tokens: Tokens) -> Tensor | None:
    """Return the keep mask, or None where nothing is padding: attention is faster without a mask."""
    return None if bool(tokens.keep_BT.all()) else tokens.keep_BT


def source_of(batch: Batch) -> Tokens:
    """Return the sources of a batch.

    Raises:
        DataError: it has none.
    """
    if batch.source is None:
        raise DataError("a seq2seq model needs a source and a target; this batch has no source (ids: give both)")
    return batch.source
