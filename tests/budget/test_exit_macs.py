"""Multiply-accumulates of models whose tokens stop by a criterion after training, against those that run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from architectures import random_model
from ostinato.budget import MacCounter, count_macs, expected_depths
from ostinato.config.model import EncoderConfig, LanguageModelConfig
from ostinato.errors import ConfigError
from ostinato.models import Encoder, LanguageModel
from ostinato.nn.execution import CRITERIA_AT_TEST
from running import run_as

N_ROUNDS = 5
CORE = {"repeats": N_ROUNDS, "inject": {"kind": "linear"}, "state": {"kind": "zeros"}, "end_map": True}
IDS = torch.tensor([[1, 5, 6, 7, 3, 9, 8, 2]])
LANGUAGE, ENCODER = {"kind": "language_model"}, {"kind": "encoder", "head": {"kind": "masked"}}


def _model(kind: dict[str, Any], *, coda: bool, **changes: Any) -> LanguageModel | Encoder:
    segments: list[dict[str, Any]] = [{}, CORE, {}] if coda else [{}, CORE]
    stack = {"n_steps": len(segments), "segments": segments, "norm": {"kind": "rms", "placement": "pre"}}
    stack |= {"self_attention": {"n_heads": 2}, "ffn": {"d_ff": 24}} | changes
    name = "decoder" if kind is LANGUAGE else "encoder"
    config = {**kind, "d_model": 16, "vocab_size": 11, "dropout": 0.0, name: stack}
    chosen = LanguageModelConfig if kind is LANGUAGE else EncoderConfig
    return random_model(chosen.model_validate(config)).eval()  # type: ignore[return-value]


def _measured(model: LanguageModel | Encoder) -> tuple[float, dict[str, list[int]]]:
    """Return the products that run, and how many tokens ran 1, 2, ... rounds."""
    run_as(model, compaction="always")
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        output = model(IDS)
    depths = {}
    for name, stack in output.stacks.items():
        executed_T = stack.halting.executed_BTR[0].sum(-1)
        depths[name] = [int((executed_T == r).sum()) for r in range(1, N_ROUNDS + 1)]
    return counter.get_total_flops() / 2, depths


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [LANGUAGE, ENCODER], ids=["causal", "masked"])
@pytest.mark.parametrize("coda", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("criterion", CRITERIA_AT_TEST)
def test_realised_macs_are_those_that_run_predictions_included(
    kind: dict[str, Any], coda: bool, criterion: str
) -> None:
    model = _model(kind, coda=coda)
    seen = set[tuple[int, ...]]()
    for threshold in (0.0, 0.02, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        run_as(model, exit=criterion, halting_threshold=threshold)
        measured, depths = _measured(model)
        counter = MacCounter(model.config, exits=model.exits())
        found = counter.count(depths)
        assert found.realised == measured
        assert found.full == count_macs(model.config, 1, IDS.shape[1]).total
        seen |= {tuple(counts) for counts in depths.values()}
    assert len(seen) > 2  # not all or none


@pytest.mark.parametrize("criterion", ["change", "margin"])
def test_an_expected_depth_of_all_rounds_counts_what_threshold_one_runs(criterion: str) -> None:
    model = _model(LANGUAGE, coda=True)
    run_as(model, exit=criterion, halting_threshold=1.0)
    exits = model.exits()
    assert exits == {"decoder": criterion == "margin"}
    counted = count_macs(model.config, 1, IDS.shape[1], exits=exits)
    assert counted.total == _measured(model)[0]
    assert ("decoder.exits" in counted.by_part) == (criterion == "margin")
    shallow = count_macs(model.config, 1, IDS.shape[1], exits=exits, expected_depth={"decoder": 2.0})
    assert shallow.total < counted.total


def test_without_a_criterion_no_depth_can_be_assumed_and_with_one_gates_are_not_asked() -> None:
    plain = _model(LANGUAGE, coda=True)
    with pytest.raises(ConfigError, match="no token halts"):
        expected_depths(plain.config, {"decoder": 2.0})
    assert expected_depths(plain.config, {"decoder": 2.0}, exits=["decoder"])["decoder"].counted == 2.0
    gated = _model(LANGUAGE, coda=True, halting={"kind": "act", "freeze_halted_state": False})
    run_as(gated, exit="change", halting_threshold=0.05)
    measured, depths = _measured(gated)
    found = MacCounter(gated.config, exits=gated.exits()).count(depths)
    assert found.realised == measured
    assert "decoder.halting" in count_macs(gated.config, 1, 8).by_part
    assert "decoder.halting" not in count_macs(gated.config, 1, 8, exits=gated.exits()).by_part
