"""What every transformer of ours shares: banks filled from a configuration, stacks, embeddings and logits."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from ostinato.config.model import (
    ActConfig,
    BucketsConfig,
    CoordinatesConfig,
    HaltingConfig,
    ModelConfig,
    RotaryConfig,
    RoutedConfig,
    SignalConfig,
    SinusoidalConfig,
    StackConfig,
    StickBreakingConfig,
    WindowConfig,
)
from ostinato.data.batch import Tokens
from ostinato.errors import ConfigError, Problem
from ostinato.kernels import BackendChoice, Draws, PackedMatrix, lay_out
from ostinato.models.sub_layers import build_sub_layer
from ostinato.nn.act import Act, ActUnit
from ostinato.nn.bank import Banks
from ostinato.nn.cache import Cache
from ostinato.nn.dropout import Drops
from ostinato.nn.experts import Routed
from ostinato.nn.halting import HaltingRule, NoHalting
from ostinato.nn.init import init_embedding
from ostinato.nn.norm import build_norm
from ostinato.nn.positions import Coordinates, PositionSignal, Sinusoidal
from ostinato.nn.precision import at_least_float32
from ostinato.nn.relative import Buckets, RelativePositions, Rotary, Window
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.stack import Compaction, Stack, router_name
from ostinato.nn.stick_breaking import StickBreaking, StickBreakingUnit
from ostinato.nn.types import Routing
from ostinato.plan import Plan


class Transformer(nn.Module):
    """Base of `Seq2Seq`, `LanguageModel` and `Encoder`: banks, stacks, embeddings.

    Args:
        config: the model's configuration, vocabulary sizes set.
        causal: names of the stacks whose tokens see no later ones.
        prefixed: names of those among them that may begin with tokens which see each other in both directions.

    A subclass makes `target_weight` and `output_weight` (None where the target embedding serves as output projection).
    """

    target_weight: nn.Parameter
    output_weight: nn.Parameter | None

    def __init__(
        self,
        config: ModelConfig,
        causal: frozenset[str],
        prefixed: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__()
        self.config = config
        self.banks = Banks()
        self.stacks: dict[str, Stack] = {}
        self._temperatures: dict[str, float] = {}
        self._packed_output = PackedMatrix(is_table=True)
        for name, stack in config.stacks().items():
            plan = stack.plan(name)
            self._fill_banks(plan, stack)
            self.stacks[name] = self._stack(plan, stack, is_causal=name in causal, has_prefix=name in prefixed)

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
            reason = f"no token of this model can halt (model.{next(iter(self.stacks))}.halting.kind is none)"
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
        for module in self.banks.modules():
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

    def step(
        self, ids_BT: Int[Tensor, "B T"], cache: Cache, keep_BT: Bool[Tensor, "B T"] | None = None
    ) -> Float[Tensor, "B V"]:
        """Add T target columns to the cache and return the logits after the last one.

        Args:
            ids_BT: ids, one row a hypothesis. keep_BT: real tokens among them; None where all are.
        """
        _extend_keep(cache, ids_BT, keep_BT)
        output = self.stacks["decoder"].step(self.embed(ids_BT, self.target_embedding), cache)
        return self.logits(output.states_BTD[:, -1])

    @property
    def target_embedding(self) -> Tensor:
        """E_t, `[V, D]`: embeddings of the tokens that are predicted."""
        return self.target_weight

    @property
    def output_projection(self) -> Tensor:
        """O, `[V, D]`: what turns states into logits."""
        return self.target_weight if self.output_weight is None else self.output_weight

    def embed(self, ids_BT: Int[Tensor, "B T"], weight_VD: Float[Tensor, "V D"]) -> Float[Tensor, "B T D"]:
        """Return embeddings, scaled by sqrt(d_model) where the configuration says so."""
        embedded = F.embedding(ids_BT, weight_VD)
        return embedded * math.sqrt(self.config.d_model) if self.config.embedding_scale else embedded

    def logits(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B V"]:
        """Return float32 logits."""
        return self._packed_output.product(states, self.output_projection).float()

    def _matrix(self, n_rows: int) -> nn.Parameter:
        weight_VD = nn.Parameter(torch.empty(n_rows, self.config.d_model))
        init_embedding(weight_VD, self.config.init)
        return weight_VD

    def _fill_banks(self, plan: Plan, stack: StackConfig) -> None:
        """Make every parameter set the plan names that is not there yet (another stack may have made it)."""
        config = self.config
        for use in plan.uses():
            bank = getattr(self.banks, use.kind)
            if use.weights not in bank:
                settings = stack.settings_of(use)
                if isinstance(settings, RoutedConfig):
                    self._temperatures[router_name(use)] = settings.temperature
                module = build_sub_layer(settings, config.d_model, config.init, stack.n_steps, stack.norm.eps)
                lay_out(module)
                bank[use.weights] = module
            if use.norm is not None and use.norm not in self.banks.norm:
                self.banks.norm[use.norm] = build_norm(stack.norm.kind, config.d_model, stack.norm.eps)
            if use.position is not None and use.position not in self.banks.relative:
                self.banks.relative[use.position] = _relation(stack, config.d_model)
        if stack.norm.placement == "pre":
            name = f"final_{plan.stack}"
            self.banks.norm[name] = build_norm(stack.norm.kind, config.d_model, stack.norm.eps)

    def _stack(self, plan: Plan, stack: StackConfig, *, is_causal: bool, has_prefix: bool) -> Stack:
        return Stack(
            plan,
            self.banks,
            placement=stack.norm.placement,
            dropout=self.config.dropout,
            signal=_signal(stack.positions, self.config.d_model),
            is_causal=is_causal,
            has_prefix=has_prefix,
            halting=self._halting_rule(plan.stack, stack.halting),
        )

    def _halting_rule(self, name: str, config: HaltingConfig) -> HaltingRule | None:
        """Return the rule of a stack, its unit in the bank; None where no token halts."""
        d_model = self.config.d_model
        match config:
            case StickBreakingConfig() as c:
                stick = StickBreakingUnit(d_model, dropout=c.dropout, initial_bias=c.initial_bias)
                self.banks.halting[name] = stick
                return StickBreaking(stick, c.threshold, detaches_weight=c.detach_router_weight)
            case ActConfig() as c:
                unit = ActUnit(d_model, c.initial_bias)
                self.banks.halting[name] = unit
                return Act(
                    unit,
                    c.epsilon,
                    mix=c.mix,
                    freezes=c.freeze_halted_state,
                    forces_remainder=c.force_remainder_at_max,
                    is_global=c.scope == "global",
                )
        return None


def _signal(config: SignalConfig, d_model: int) -> PositionSignal:
    if isinstance(config, SinusoidalConfig):
        return Sinusoidal(d_model, config.random_offset)
    if isinstance(config, CoordinatesConfig):
        return Coordinates(d_model, config.random_offset)
    return PositionSignal(d_model)


def _relation(stack: StackConfig, d_model: int) -> RelativePositions:
    heads, width = stack.self_attention.n_heads, stack.self_attention.head_width(d_model)
    relative = stack.relative
    if isinstance(relative, WindowConfig):
        return Window(heads, width, relative.window)
    if isinstance(relative, BucketsConfig):
        return Buckets(heads, relative.n_buckets, relative.max_distance)
    if isinstance(relative, RotaryConfig):
        return Rotary(width, relative.base)
    return RelativePositions()


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


def _extend_keep(cache: Cache, ids_BT: Tensor, keep_BT: Tensor | None) -> None:
    """Cover the new columns in the cache's keep mask, which only exists where there is padding."""
    if cache.keep_BS is None and (keep_BT is None or bool(keep_BT.all())):
        return
    old = cache.keep_BS
    if old is None:
        old = torch.ones(ids_BT.shape[0], cache.length, dtype=torch.bool, device=ids_BT.device)
    new = torch.ones_like(ids_BT, dtype=torch.bool) if keep_BT is None else keep_BT
    cache.keep_BS = torch.cat([old, new], dim=1)
