"""What every transformer of ours shares: banks filled from a configuration, stacks, embeddings and logits."""

from __future__ import annotations

import torch

from ostinato.config.experts import RoutedConfig
from ostinato.config.halting import ActConfig, HaltingConfig, StickBreakingConfig
from ostinato.config.model import ModelConfig
from ostinato.config.positions import (
    BucketsConfig,
    CoordinatesConfig,
    RotaryConfig,
    SignalConfig,
    SinusoidalConfig,
    WindowConfig,
)
from ostinato.config.stack import StackConfig
from ostinato.models.base import TokenModel
from ostinato.models.sub_layers import build_sub_layer
from ostinato.nn.act import Act, ActUnit
from ostinato.nn.cache import Cache
from ostinato.nn.halting import HaltingRule
from ostinato.nn.norm import build_norm
from ostinato.nn.positions import Coordinates, PositionSignal, Sinusoidal
from ostinato.nn.relative import Buckets, RelativePositions, Rotary, Window
from ostinato.nn.shapes import Bool, Float, Int, Tensor
from ostinato.nn.stack import Stack, router_name
from ostinato.nn.stick_breaking import StickBreaking, StickBreakingUnit
from ostinato.plan import Plan


class Transformer(TokenModel):
    """Base of `Seq2Seq`, `LanguageModel` and `Encoder`: stacks, and banks that their plans fill.

    Args:
        config: the model's configuration, vocabulary sizes set.
        causal: names of the stacks whose tokens see no later ones.
        prefixed: names of those among them that may begin with tokens which see each other in both directions.
    """

    def __init__(
        self,
        config: ModelConfig,
        causal: frozenset[str],
        prefixed: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(config)
        for name, stack in config.stacks().items():
            plan = stack.plan(name)
            self._fill_banks(plan, stack)
            self.stacks[name] = self._stack(plan, stack, is_causal=name in causal, has_prefix=name in prefixed)

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

    def _fill_banks(self, plan: Plan, stack: StackConfig) -> None:
        """Make every parameter set the plan names that is not there yet (another stack may have made it)."""
        config = self.config
        for use in plan.uses():
            bank = getattr(self.banks, use.kind)
            if use.weights not in bank:
                settings = stack.settings_of(use)
                if isinstance(settings, RoutedConfig):
                    self._temperatures[router_name(use)] = settings.temperature
                bank[use.weights] = build_sub_layer(
                    settings, config.d_model, config.init, stack.n_steps, stack.norm.eps
                )
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


def _extend_keep(cache: Cache, ids_BT: Tensor, keep_BT: Tensor | None) -> None:
    """Cover the new columns in the cache's keep mask, which only exists where there is padding."""
    if cache.keep_BS is None and (keep_BT is None or bool(keep_BT.all())):
        return
    old = cache.keep_BS
    if old is None:
        old = torch.ones(ids_BT.shape[0], cache.length, dtype=torch.bool, device=ids_BT.device)
    new = torch.ones_like(ids_BT, dtype=torch.bool) if keep_BT is None else keep_BT
    cache.keep_BS = torch.cat([old, new], dim=1)
