"""Halting rules whose gates are kernels: what stands for a rule in cached decoding (`ostinato.nn.compiled`)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ostinato.kernels import MOST_ROWS, ActGate, HaltsBy, StickBreakingGate
from ostinato.nn.act import Act, ActPass, ActUnit
from ostinato.nn.by_length import Prescribed
from ostinato.nn.context import Pass
from ostinato.nn.halting import HaltingRule, Visible
from ostinato.nn.links import are_plain, is_changed
from ostinato.nn.rows import Rows
from ostinato.nn.shapes import Tensor
from ostinato.nn.stick_breaking import LEAST_MASS, StickBreaking, StickBreakingPass, StickBreakingUnit


def compiled_rule(rule: HaltingRule) -> HaltingRule:
    """Return a rule that decides as this one does, by a kernel; the rule itself where its unit must be called."""
    if type(rule) is Act and rule.freezes and not rule.is_global and (act := _act_gate(rule.unit)) is not None:
        return _CompiledAct(rule, act)
    if type(rule) is StickBreaking and (stick := _stick_breaking_gate(rule.unit)) is not None:
        return _CompiledStickBreaking(rule, stick)
    return rule


def halting_in_rounds(rule: HaltingRule, *, begins_with_keys: bool) -> Callable[[Rows, Pass, int], HaltsBy] | None:
    """Return what says who halts in rounds that are one call; None where the rule must be asked round by round.

    Args:
        begins_with_keys: no sub-layer but the first of a round makes keys: only there kernels know rows that look
            otherwise than they are.
    """
    if isinstance(rule, Prescribed):
        return lambda rows, run, n_rounds: HaltsBy.ends(rule.ends(rows, run, n_rounds))
    compiled = compiled_rule(rule)
    if isinstance(compiled, _CompiledAct) or (isinstance(compiled, _CompiledStickBreaking) and begins_with_keys):
        halts = compiled.halts()
        return lambda rows, run, n_rounds: halts
    return None


def _act_gate(unit: ActUnit) -> ActGate | None:
    if type(unit) is not ActUnit or is_changed(unit, unit.map):
        return None
    weight_1D = unit.map.weight
    bias_1: Tensor | None = unit.map.bias
    return ActGate(weight_1D, bias_1) if bias_1 is not None and are_plain(weight_1D, bias_1) else None


def _stick_breaking_gate(unit: StickBreakingUnit) -> StickBreakingGate | None:
    if type(unit) is not StickBreakingUnit or is_changed(unit, unit.hidden, unit.out):
        return None
    hidden_DD, bias_D, map_2D = unit.hidden.weight, unit.hidden.bias, unit.out.weight
    bias_2: Tensor | None = unit.out.bias
    is_ours = bias_2 is None and hidden_DD.shape[0] == hidden_DD.shape[1]
    if not is_ours or not are_plain(hidden_DD, bias_D, map_2D, unit.bias):
        return None
    return StickBreakingGate(hidden_DD, bias_D, map_2D, unit.bias)


class _CompiledAct(Act):
    def __init__(self, rule: Act, gate: ActGate) -> None:
        self.__dict__.update(rule.__dict__)
        self.gate = gate

    def halts(self) -> HaltsBy:
        """Return this rule for rounds that are one call."""
        is_interpolated = self.mix == "interpolate"
        return self.gate.halts(self.enough, forces_remainder=self.forces_remainder, interpolates=is_interpolated)

    def start(self, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int | Tensor) -> _CompiledActPass:
        """Begin a pass."""
        return _CompiledActPass(self, states_ND, rows, run, n_rounds)


class _CompiledActPass(ActPass):
    _rule: _CompiledAct

    def __init__(self, rule: _CompiledAct, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int | Tensor) -> None:
        super().__init__(rule, states_ND, rows, run, n_rounds)
        self._n_next: int | None = None
        self._total_N = torch.zeros_like(self._zeros_N)  # the kernel adds to it in place

    def active(self, index: int | Tensor, states_ND: Tensor) -> Tensor | None:
        """See `ActPass`."""
        self._set_active(self._next_N, self._n_next)
        return self.active_N

    def enter(self, index: int | Tensor, states_ND: Tensor, entered_ND: Tensor) -> tuple[Tensor | None, Visible]:
        """See `ActPass`."""
        rule, rest_N = self._rule, torch.rsub(self._total_N, 1.0)  # quicker than an operator
        is_last = rule.forces_remainder and bool(index == self._n_rounds - 1)
        given = entered_ND, self._total_N, self.active_N, rule.enough
        self._weight_N, self._next_N, self._n_next = rule.gate.enter(*given, is_last=is_last)
        return self._seen(index, states_ND, rest_N)

    def leave(self, index: int | Tensor, states_ND: Tensor, left_ND: Tensor) -> Tensor:
        """See `ActPass`."""
        given = states_ND, left_ND, self._weight_N, self._mix_ND, self.active_N
        return self._rule.gate.after(*given, interpolates=self._rule.mix == "interpolate")


class _CompiledStickBreaking(StickBreaking):
    def __init__(self, rule: StickBreaking, gate: StickBreakingGate) -> None:
        self.__dict__.update(rule.__dict__)
        self.gate = gate

    @property
    def least(self) -> float:
        """Mass to go on with: at threshold 0 none is enough."""
        return max(1.0 - self.threshold, LEAST_MASS) if self.threshold else math.inf

    def halts(self) -> HaltsBy:
        """Return this rule for rounds that are one call."""
        return self.gate.halts(self.least)

    def start(self, states_ND: Tensor, rows: Rows, run: Pass, n_rounds: int | Tensor) -> _CompiledStickBreakingPass:
        """Begin a pass."""
        return _CompiledStickBreakingPass(self, states_ND, rows, run)


class _CompiledStickBreakingPass(StickBreakingPass):
    _rule: _CompiledStickBreaking

    def __init__(self, rule: _CompiledStickBreaking, states_ND: Tensor, rows: Rows, run: Pass) -> None:
        super().__init__(rule, states_ND, rows, run)
        self._log_left_N = torch.zeros_like(self._zeros_N)  # the kernel changes it in place

    def _record(self, values: list[Tensor], value_N: Tensor) -> None:
        """Record nothing."""

    def active(self, index: int | Tensor, states_ND: Tensor) -> Tensor | None:
        """See `StickBreakingPass`."""
        gate = self._rule.gate
        if not index or len(states_ND) > MOST_ROWS:
            return super().active(index, states_ND)
        held = self._log_left_N, self._left_N, self._mean_ND
        self._set_active(*gate(states_ND, *held, self.active_N, self._rule.least))
        return self.active_N

    def enter(self, index: int | Tensor, states_ND: Tensor, entered_ND: Tensor) -> tuple[Tensor | None, Visible]:
        """See `StickBreakingPass`."""
        # The kernel changes the mass in its place, and a round is what it was.
        left_N = self._left_N.clone()
        return left_N, (lambda later_ND: self._shown(self._mean_ND, left_N, later_ND)) if index else None
