"""Every mechanism of depth under every property of the contract: twin, recomputation, counts, cache, padding, batch.

The models are those of `loops.LOOPS`; that activations are counted as they are kept stands with other models in
test_contract_bytes.py.
"""

from __future__ import annotations

from collections import Counter
from typing import get_args

import pytest
from test_contract_bytes import check_cache
from test_contract_decoding import check_cached_steps
from test_contract_equivalence import check_recomputed, check_twin
from test_contract_independence import check_company, check_padding
from test_contract_numbers import check_macs, check_macs_of_a_generated_token, check_realised_macs

from architectures import left_padded, random_model, right_padded
from loops import LOOPS, RAGGED, looped
from ostinato.config.halting import HaltingConfig
from ostinato.config.loops import InjectionConfig, LoopStateConfig, ModulationConfig, SegmentConfig, StateConfig
from ostinato.config.stack import StackConfig
from ostinato.plan import Keys
from traits import kinds_of

of_every_loop = pytest.mark.parametrize("name", LOOPS)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_every_setting_of_depth_is_in_the_list(side: str) -> None:
    stacks: list[StackConfig] = [getattr(looped(name), side) for name in LOOPS]
    segments = [one for stack in stacks for one in stack.segments]
    loops = [one for one in segments if one.repeats]
    for given, settings in ((segments, SegmentConfig), ([s for one in loops for s in one.states], LoopStateConfig)):
        for name, field in settings.model_fields.items():
            default = field.get_default(call_default_factory=True)
            assert any(getattr(one, name) != default for one in given), f"{settings.__name__}.{name}"
    assert {one.inject.kind for one in loops} == kinds_of(InjectionConfig)
    states = [state for one in loops for state in (one.state, *(own.state for own in one.states))]
    assert {one.kind for one in states} == kinds_of(StateConfig)
    assert {one.modulation.kind for one in loops} == kinds_of(ModulationConfig)
    assert {one.keys for one in loops} == set(get_args(Keys))
    assert {stack.halting.kind for stack in stacks} == kinds_of(HaltingConfig)
    assert any(stack.value_embeddings for stack in stacks)


@pytest.mark.sampled
@of_every_loop
def test_a_loop_equals_its_per_token_twin_in_logits_depths_and_all_gradients(name: str) -> None:
    check_twin(random_model(looped(name)), RAGGED[1:], right_padded(RAGGED[1:]))


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_tokens_of_the_list_halt_in_every_round(side: str) -> None:
    halted: Counter[int] = Counter()
    batch = right_padded(RAGGED)
    for config in map(looped, LOOPS):
        if getattr(config, side).halting.has_gate:
            trace = random_model(config)(batch).stacks[side].halting
            tokens = batch.source if side == "encoder" else batch.target
            assert trace is not None
            assert tokens is not None
            halted.update(trace.executed_BTR[tokens.keep_BT].sum(-1).tolist())
    assert all(halted[n] >= 5 for n in (1, 2, 3)), halted


@pytest.mark.sampled
@pytest.mark.device
@of_every_loop
def test_recomputed_steps_have_the_same_gradients(name: str) -> None:
    check_recomputed(random_model(looped(name)).train(), RAGGED)


@pytest.mark.sampled
@of_every_loop
def test_the_cache_is_as_large_as_counted(name: str) -> None:
    # Past a block of 32 positions, and with both buffers of hypotheses that change places.
    check_cache(looped(name), n_sentences=2, beam=2, target_length=34, first=31)


@pytest.mark.sampled
@of_every_loop
def test_macs_agree_with_the_flop_counter(name: str) -> None:
    config = looped(name)
    check_macs(config, 7, 5)
    check_macs_of_a_generated_token(config, 4)
    if any(stack.halting.kind != "none" for stack in config.stacks().values()):
        check_realised_macs(config, 5, 6)


@pytest.mark.sampled
@pytest.mark.device
@of_every_loop
def test_cached_steps_equal_the_full_pass(name: str) -> None:
    model = random_model(looped(name))
    for batch, cuts in (
        (right_padded(RAGGED), [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (left_padded(RAGGED), [(0, 2), (2, 4)]),
    ):
        check_cached_steps(model, batch, cuts)


@pytest.mark.sampled
@of_every_loop
def test_padding_and_other_sentences_change_nothing(name: str) -> None:
    model = random_model(looped(name))
    check_padding(model, RAGGED, extra=2, fill=4)
    check_company(model, RAGGED, [2, 0, 1])
