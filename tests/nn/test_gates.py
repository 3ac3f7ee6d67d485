"""Halting rules by compiled kernels decide, weigh and show what their plain code does, round by round."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ostinato.kernels.native import library
from ostinato.nn.act import Act, ActUnit
from ostinato.nn.attention import Visibility
from ostinato.nn.compiled_halting import compiled_rule
from ostinato.nn.context import Pass
from ostinato.nn.execution import DEFAULT_EXECUTION
from ostinato.nn.halting import HaltingPass, HaltingRule
from ostinato.nn.layers import Linear
from ostinato.nn.rows import Rows, kept_and_halted
from ostinato.nn.stick_breaking import StickBreaking, StickBreakingUnit
from ostinato.training.threads import cpu_threads

pytestmark = [
    pytest.mark.skipif(library() is None, reason="no C compiler here"),
    pytest.mark.usefixtures("every_thread"),
]
_ROUNDS = 5


def a_rule(data: st.DataObject, d_model: int, make: torch.Generator) -> HaltingRule:
    """Return a rule whose gate is far from constant."""
    draw = data.draw
    threshold = draw(st.sampled_from([0.0, 0.5, 0.9, 0.999, 1.0]))
    unit: nn.Module
    if draw(st.booleans()):
        unit = ActUnit(d_model, draw(st.sampled_from([-3.0, 0.0])))
        mix = draw(st.sampled_from(["accumulate", "interpolate"]))
        forces = draw(st.booleans())
        rule: HaltingRule = Act(unit, threshold, mix=mix, freezes=True, forces_remainder=forces, is_global=False)
    else:
        unit = StickBreakingUnit(d_model, dropout=0.0, initial_bias=draw(st.sampled_from([None, -3.0])))
        rule = StickBreaking(unit, threshold, detaches_weight=False)
    for parameter in unit.parameters():
        parameter.data += 0.7 * torch.randn(parameter.shape, generator=make)
    unit.eval()
    return rule


def followed(
    rule: HaltingRule, states_RND: Tensor, keep_N: Tensor | None, gathers: list[bool], *, by_kernels: bool
) -> tuple[list[Tensor], HaltingPass]:
    """Return all that a pass says, in order, and the pass."""
    N = states_RND.shape[1]
    states_ND = states_RND[0]
    positions_BT = torch.zeros(N, 1, dtype=torch.long)
    run = Pass(Visibility(), positions_BT, positions_BT, DEFAULT_EXECUTION, None if keep_N is None else keep_N[:, None])
    halting = (compiled_rule(rule) if by_kernels else rule).start(states_ND, Rows.all(N, 1), run, _ROUNDS)
    said = []
    for index in range(_ROUNDS):
        active_N = halting.active(index, states_ND)
        said.append(torch.ones(len(halting.rows)) if active_N is None else active_N.float())
        if gathers[index] and active_N is not None:
            kept_M, halted_L = kept_and_halted(active_N, int(active_N.sum()))
            said.append(halting.narrow(kept_M, halted_L, states_ND))
            states_ND = states_ND.index_select(0, kept_M)
        if not halting.n_active:
            break
        weight_N, visible = halting.enter(index, states_ND, states_ND)
        assert weight_N is not None
        # What a round does: here, to become something else.
        moved_ND = states_RND[index + 1].index_select(0, halting.rows.places(states_ND.device))
        said += [weight_N, states_ND + 1.0 if visible is None else visible(states_ND + 1.0)]
        states_ND = halting.leave(index, states_ND, moved_ND.clone())
        said.append(states_ND)
    return [*said, halting.output(states_ND)], halting


def test_by_kernels_or_not_is_the_same() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        N, D = data.draw(st.integers(1, 36)), data.draw(st.sampled_from([3, 16, 37]))
        make = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
        rule = a_rule(data, D, make)
        states_RND = torch.randn(_ROUNDS + 1, N, D, generator=make)
        keep_N = data.draw(st.sampled_from([None, torch.rand(N, generator=make) < 0.7]))
        seen["padding"] += keep_N is not None and not bool(keep_N.all())
        gathers = data.draw(st.lists(st.booleans(), min_size=_ROUNDS, max_size=_ROUNDS))
        with torch.no_grad(), cpu_threads(data.draw(st.sampled_from([1, 2, 7]))):
            given_states = states_RND.clone()
            expected, plain = followed(rule, states_RND, keep_N, gathers, by_kernels=False)
            found, fast = followed(rule, states_RND, keep_N, gathers, by_kernels=True)
        assert torch.equal(states_RND, given_states)
        assert [one.shape for one in found] == [one.shape for one in expected]
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert plain.trace() is not None or not plain.n_active
        assert fast.trace() is None
        kind = type(rule).__name__
        seen[kind] += 1
        for what, of_rounds in (("gathered", len(fast.rows) < N), ("halted", fast.n_active < len(fast.rows))):
            seen[f"{kind}, {what}"] += of_rounds

    check()
    assert min(seen.values()) >= 10, seen
    assert len(seen) == 7


def test_nothing_is_left_of_a_token_whose_probabilities_are_1() -> None:
    # Else the next round would have no weight, and experts leave tokens without weight out.
    unit = ActUnit(4, 0.0).eval()
    torch.nn.init.zeros_(unit.map.weight)
    rule = Act(unit, 1.0, mix="accumulate", freezes=True, forces_remainder=True, is_global=False)
    for by_kernels in (False, True):
        with torch.no_grad():
            states_RND = torch.ones(_ROUNDS + 1, 2, 4)
            said, halting = followed(rule, states_RND, None, [False] * _ROUNDS, by_kernels=by_kernels)
        assert halting.n_active == 0
        # Twice half of it: who takes part, weight, what is seen, states; then nobody.
        assert [one.tolist() for one in said[8:9]] == [[0.0, 0.0]]


class OtherMap(nn.Linear):
    """A map that somebody has put in place of another."""


@pytest.mark.parametrize("kind", ["act", "stick_breaking"])
@pytest.mark.parametrize("what", ["nothing", "hook", "map", "bias", "width", "training", "float64", "subclass"])
def test_gates_that_somebody_has_changed_are_called(kind: str, what: str) -> None:
    made: ActUnit | StickBreakingUnit
    made = ActUnit(4, 0.0) if kind == "act" else StickBreakingUnit(4, dropout=0.0, initial_bias=None)
    made.eval()
    name = "map" if kind == "act" else "out"
    if what == "hook":
        getattr(made, name).register_forward_hook(lambda *given: None)
    elif what == "map":
        setattr(made, name, OtherMap(4, 1).eval())
    elif what == "bias":  # none where there was one, and one where there was none
        setattr(made, name, nn.Linear(4, 1 if kind == "act" else 2, bias=kind != "act").eval())
    elif what == "width" and isinstance(made, StickBreakingUnit):
        made.hidden, made.out = Linear(4, 3, bias=True).eval(), nn.Linear(3, 2, bias=False).eval()
    elif what == "training":
        made.train()
    elif what == "float64":
        made.double()
    elif what == "subclass":
        made.__class__ = type("Changed", (type(made),), {})
    is_ours = what == "nothing" or (what == "width" and kind == "act")
    rule: HaltingRule
    if isinstance(made, ActUnit):
        rule = Act(made, 0.9, mix="accumulate", freezes=True, forces_remainder=True, is_global=False)
    else:
        rule = StickBreaking(made, 0.9, detaches_weight=False)
    assert (compiled_rule(rule) is not rule) == is_ours


def test_a_pass_of_many_rows_multiplies_by_packed_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    unit = StickBreakingUnit(4, dropout=0.0, initial_bias=None).eval()
    asked: list[int] = []
    monkeypatch.setattr(Linear, "forward", lambda self, x: asked.append(len(x)) or nn.Linear.forward(self, x))
    for n in (32, 33):
        rule = StickBreaking(unit, 0.9, detaches_weight=False)
        with torch.no_grad():
            states_RND = torch.ones(_ROUNDS + 1, n, 4)
            followed(rule, states_RND, None, [False] * _ROUNDS, by_kernels=True)
    assert asked
    assert set(asked) == {33}
