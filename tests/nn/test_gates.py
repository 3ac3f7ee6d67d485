"""Halting rules by compiled kernels decide, weigh and show what their plain code does: by round, and in one call."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ostinato.kernels import MOST_ROWS, AttentionLink, CachedKeys, Chain, FeedForwardLink, HaltsBy, NormOf
from ostinato.kernels.native import library
from ostinato.nn.act import Act, ActUnit
from ostinato.nn.attention import Visibility
from ostinato.nn.by_length import Prescribed
from ostinato.nn.compiled_halting import compiled_rule, halting_in_rounds
from ostinato.nn.context import Pass
from ostinato.nn.execution import DEFAULT_EXECUTION
from ostinato.nn.halting import HaltingPass, HaltingRule, Visible
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
    for n in (MOST_ROWS, MOST_ROWS + 1):
        rule = StickBreaking(unit, 0.9, detaches_weight=False)
        with torch.no_grad():
            states_RND = torch.ones(_ROUNDS + 1, n, 4)
            followed(rule, states_RND, None, [False] * _ROUNDS, by_kernels=True)
    assert asked
    assert set(asked) == {MOST_ROWS + 1}


class AsTold(Prescribed):
    """Every row runs as many rounds as it is told."""

    def __init__(self, ends_N: Tensor) -> None:
        self._ends_N = ends_N

    def ends(self, rows: Rows, run: Pass, n_rounds: int | Tensor) -> Tensor:
        return self._ends_N


H, K, ROOM, LENGTH = 2, 4, 6, 5


class Reading(NamedTuple):
    """An attention of pre-norm: its maps, and whether it makes keys."""

    norm: NormOf
    queries: tuple[Tensor, Tensor]
    keys_values: tuple[Tensor, Tensor] | None
    output: tuple[Tensor, Tensor]

    def __call__(self, x_ND: Tensor, visible: Visible, kv_2NHSK: Tensor) -> Tensor:
        """Return what rows read, plainly; keys and values of what is visible are put at the last position."""
        N = x_ND.shape[0]
        if self.keys_values is not None:
            seen_ND = self.normed(x_ND if visible is None else visible(x_ND))
            kv_2NHSK[:, :, :, LENGTH - 1] = F.linear(seen_ND, *self.keys_values).view(N, 2, H, K).transpose(0, 1)
        q_NHK = F.linear(self.normed(x_ND), *self.queries).view(N, H, K)
        k_NHSK, v_NHSK = kv_2NHSK[:, :, :, :LENGTH]
        weights_NHS = torch.softmax(K**-0.5 * torch.einsum("nhk,nhsk->nhs", q_NHK, k_NHSK), -1)
        return x_ND + F.linear(torch.einsum("nhs,nhsk->nhk", weights_NHS, v_NHSK).flatten(1), *self.output)

    def normed(self, x_ND: Tensor) -> Tensor:
        return F.layer_norm(x_ND, (self.norm.width,), self.norm.weight_D, self.norm.bias_D, self.norm.eps)

    @property
    def link(self) -> AttentionLink:
        return AttentionLink(
            self.norm, is_before=True, queries=self.queries, keys_values=self.keys_values, output=self.output
        )


def test_rounds_in_one_call_are_the_rounds_one_by_one() -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=150)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        draw = data.draw
        N, R, D = draw(st.integers(1, 9)), draw(st.integers(1, 5)), draw(st.sampled_from([3, 16, 37]))
        make = torch.Generator().manual_seed(draw(st.integers(0, 999)))

        def affine(n_in: int, n_out: int) -> tuple[Tensor, Tensor]:
            return torch.randn(n_out, n_in, generator=make) / n_in**0.5, torch.randn(n_out, generator=make)

        ends_N = torch.randint(1, R + 1, (N,), generator=make)
        rule = AsTold(ends_N) if draw(st.integers(0, 2)) == 0 else a_rule(data, D, make)
        norm = NormOf(False, torch.rand(D, generator=make) + 0.5, torch.randn(D, generator=make), D, 1e-5)
        # A mean of states is shown by the first sub-layer only.
        more = [] if isinstance(rule, StickBreaking) else draw(st.lists(st.booleans(), max_size=1))
        layers: list[Reading | tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]] = []
        for makes_keys in (True, False, *more):
            kv = affine(D, 2 * H * K) if makes_keys else None
            layers.append(Reading(norm, affine(D, H * K), kv, affine(H * K, D)))
        layers.append((affine(D, 9), affine(9, D)))
        signal_RND = torch.randn(R, draw(st.sampled_from([1, N])), D, generator=make)
        kv_RL = [[torch.randn(2, N, H, ROOM, K, generator=make) for _ in layers] for _ in range(R)]
        x_ND = torch.randn(N, D, generator=make)

        positions_BT = torch.zeros(N, 1, dtype=torch.long)
        run = Pass(Visibility(), positions_BT, positions_BT, DEFAULT_EXECUTION)
        written = [[kv.clone() for kv in of_round] for of_round in kv_RL]
        with torch.no_grad():
            halting, states_ND = rule.start(x_ND, Rows.all(N, 1), run, R), x_ND
            for r in range(R):
                halting.active(r, states_ND)
                left_ND = states_ND + signal_RND[r] if r else states_ND
                _, visible = halting.enter(r, states_ND, left_ND)
                for layer, kv in zip(layers, written[r], strict=True):
                    if isinstance(layer, Reading):
                        left_ND = layer(left_ND, visible, kv)
                    else:
                        left_ND = left_ND + F.linear(F.linear(left_ND, *layer[0]).relu(), *layer[1])
                seen[f"{type(rule).__name__} halted"] += halting.n_active < N
                seen["all halted"] += not halting.n_active
                states_ND = halting.leave(r, states_ND, left_ND)
            expected = halting.output(states_ND)[:, 0]

            links = [
                layer.link
                if isinstance(layer, Reading)
                else FeedForwardLink(None, "relu", is_before=True, up=layer[0], down=layer[1])
                for layer in layers
            ]
            last = norm if draw(st.booleans()) else None
            if last is not None:
                expected = F.layer_norm(expected, (D,), last.weight_D, last.bias_D, last.eps)
            chain = Chain(links * R, last)
            halts = halting_in_rounds(rule, begins_with_keys=not more)
            assert halts is not None
            for n in (1, 2, 3):
                cached = [[CachedKeys(kv.clone(), K**-0.5) for kv in of_round] for of_round in kv_RL]
                for i, keys in enumerate(one for of_round in cached for one in of_round):
                    if i % len(layers) < len(layers) - 1:
                        chain.read(i, keys.see(LENGTH))
                if R > 1:
                    chain.add([r * len(layers) for r in range(1, R)], signal_RND[1:])
                with cpu_threads(n):
                    found = chain.rounds(x_ND, R, halts(Rows.all(N, 1), run, R))
                torch.testing.assert_close(found, expected, rtol=2e-4, atol=2e-4)
                for of_round, of_round_written in zip(cached, written, strict=True):
                    for keys, kv in zip(of_round, of_round_written, strict=True):
                        torch.testing.assert_close(keys.kv_2RHSK, kv, rtol=2e-4, atol=2e-4)

    check()
    assert len(seen) == 4, seen
    assert min(seen.values()) >= 10, seen


def test_rounds_in_one_call_are_refused_where_kernels_would_show_or_read_something_else() -> None:
    unit = StickBreakingUnit(4, dropout=0.0, initial_bias=None).eval()
    rule = StickBreaking(unit, 0.9, detaches_weight=False)
    assert halting_in_rounds(rule, begins_with_keys=True) is not None
    assert halting_in_rounds(rule, begins_with_keys=False) is None
    maps = torch.ones(4, 4), None
    chain = Chain([FeedForwardLink(None, "relu", is_before=True, up=maps, down=maps)])
    with pytest.raises(ValueError, match="rounds are prescribed for 2 rows, and there are 3"):
        chain.rounds(torch.ones(3, 4), 1, HaltsBy.ends(torch.ones(2)))
