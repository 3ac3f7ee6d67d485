"""What every model shares: embeddings and logits, and the stacks and banks it may have."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.config.model import ModelConfig
from ostinato.data.batch import Batch, Tokens
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.kernels import BackendChoice, Draws, PackedMatrix
from ostinato.nn.bank import Banks
from ostinato.nn.dropout import Drops
from ostinato.nn.experts import Routed
from ostinato.nn.halting import NoHalting
from ostinato.nn.init import init_embedding
from ostinato.nn.precision import at_least_float32
from ostinato.nn.shapes import Float, Int, Tensor
from ostinato.nn.stack import Compaction, Stack, router_name
from ostinato.nn.types import Routing


class TokenModel(nn.Module):
    """Base of all models: token ids to states and states to logits.

    A recurrent model has no stacks and empty banks: what is said of halting, routers and recomputed steps is then said
    to nobody.

    Args:
        config: the model's configuration, vocabulary sizes set.

    A subclass makes `target_weight` and `output_weight` (None where the target embedding serves as output projection).
    """

    target_weight: nn.Parameter
    output_weight: nn.Parameter | None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.banks = Banks()
        self.stacks: dict[str, Stack] = {}
        self._temperatures: dict[str, float] = {}
        self._packed_output = PackedMatrix()

    def set_activation_checkpointing(self, enabled: bool) -> None:
        """Keep only the states between steps in training, and recompute the rest in the backward pass."""
        for stack in self.stacks.values():
            stack.checkpoint_activations = enabled

    def set_halting(self, enabled: bool) -> None:
        """Let tokens halt as the rules say, or run every round; with `enabled` False gates are not asked."""
        for stack in self.stacks.values():
            stack.halts = enabled

    def set_compaction(self, value: Compaction) -> None:
        """Say when halted tokens and padding are gathered away before a round, in every stack.

        Args:
            value: "auto": where few enough take part for it to pay. "always": wherever one takes no part. "never": all
                tokens are computed, and the results of the others thrown away.
        """
        for stack in self.stacks.values():
            stack.compaction = value

    def set_halting_threshold(self, value: float) -> None:
        """Halt tokens earlier or later than they were trained to, in every stack with a halting rule.

        Args:
            value: in [0, 1]; a token halts once so much of its mass is given out (ACT: 1 - epsilon). 0: after round 1.

        Raises:
            ConfigError: a value outside, or no stack in which tokens halt.
        """
        rules = [stack.halting for stack in self.stacks.values() if not isinstance(stack.halting, NoHalting)]
        if not rules:
            why = " and ".join(f"model.{name}.halting.kind is none" for name in self.stacks) or "it has no rounds"
            reason = f"no token of this model can halt ({why})"
            raise ConfigError([Problem("halting_threshold", value, reason)])
        if not 0.0 <= value <= 1.0:
            raise ConfigError([Problem("halting_threshold", value, "must lie in [0, 1]")])
        for rule in rules:
            rule.threshold = value

    def halting_thresholds(self) -> dict[str, float]:
        """Return the threshold of every stack in which tokens halt."""
        rules = {name: stack.halting for name, stack in self.stacks.items()}
        return {name: rule.threshold for name, rule in rules.items() if not isinstance(rule, NoHalting)}

    def set_dropout_draws(self, value: Draws) -> None:
        """Say where the random numbers of dropout come from: "auto", or "torch" for those of torch's own dropout."""
        for stack in self.stacks.values():
            stack.draws = value
        for module in self.modules():
            if isinstance(module, Drops):
                module.draws = value

    def set_expert_backend(self, name: BackendChoice) -> None:
        """Force one way to multiply rows by their experts' weights, by name; "auto" chooses on the device."""
        for module in self.routed():
            module.backend = name

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
                        sizes = (module.n_experts, module.gate.k)
                        yield Routing.of_no_rows(router_name(use), stack.plan.stack, step.index, sizes, like)

    def project_routers(self) -> None:
        """Bring what routers hold fixed back to its place; to be called after every update."""
        for module in self.routed():
            if module.router is not None:
                module.router.project()

    def balance_temperatures(self) -> dict[str, float]:
        """Return by router the temperature it started from: the constant tau_0 of X-MoE's balance loss."""
        return dict(self._temperatures)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.parameters()).device

    def n_parameters(self) -> int:
        """Return the number of stored parameters; a shared one counts once."""
        return sum(p.numel() for p in self.parameters())

    @property
    def target_embedding(self) -> Tensor:
        """E_t, `[V, D]`: embeddings of the tokens that are predicted."""
        return self.target_weight

    @property
    def output_projection(self) -> Tensor:
        """O, `[V, D]`: what turns states into logits."""
        return self.target_weight if self.output_weight is None else self.output_weight

    def embed(self, ids: Int[Tensor, "*B"], weight_VD: Float[Tensor, "V D"]) -> Float[Tensor, "*B D"]:
        """Return embeddings, scaled by sqrt(d_model) where the configuration says so."""
        embedded = F.embedding(ids, weight_VD)
        return embedded * math.sqrt(self.config.d_model) if self.config.embedding_scale else embedded

    def logits(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return float32 logits."""
        return self._packed_output.product(states, self.output_projection).float()

    def _matrix(self, n_rows: int) -> nn.Parameter:
        weight_VD = nn.Parameter(torch.empty(n_rows, self.config.d_model))
        init_embedding(weight_VD, self.config.init)
        return weight_VD


def keep_or_none(tokens: Tokens) -> Tensor | None:
    """Return the keep mask, or None where nothing is padding: attention is faster without a mask."""
    return None if bool(tokens.keep_BT.all()) else tokens.keep_BT


def vocabulary_size(config: ModelConfig, field: str) -> int:
    """Return a vocabulary size that must be known by now.

    Raises:
        ConfigError: it is not set.
    """
    size: int | None = getattr(config, field)
    if size is None:
        raise ConfigError(
            [Problem(f"model.{field}", None, "must be set to build a model (training takes it from the data)")]
        )
    return size


def source_of(batch: Batch) -> Tokens:
    """Return the sources of a batch.

    Raises:
        DataError: it has none.
    """
    if batch.source is None:
        raise DataError("a seq2seq model needs examples with a source; this batch has none")
    return batch.source
