"""What needs numbers of twice the precision says so on a device that has none, as `mps`; others run there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from plans import VOCABULARY, model_of, ragged_batch
from torch.utils._python_dispatch import TorchDispatchMode

from ostinato.analysis.capture import CapturedBatch
from ostinato.analysis.collectors import AttentionTotals, ExpertStates, OneExample
from ostinato.analysis.round_map import RoundSums, spectral_radius
from ostinato.analysis.studies import spectra
from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import Seq2SeqConfig
from ostinato.decoding.proposals import Sampling
from ostinato.errors import ConfigError
from ostinato.kernels import devices
from ostinato.models.build import without_memory
from ostinato.models.output import ModelOutput
from ostinato.tasks.recipes import load_recipe
from ostinato.training.checks import check_training
from pretended import Pretended, pretend_model, pretended_device

DEVICE = torch.device("meta")
"""Without numbers, and here without those of twice the precision."""
NEED_IT: dict[str, dict[str, Any]] = {
    "rotary": {"positions": {"kind": "none"}, "relative": {"kind": "rotary"}},
    "buckets": {"positions": {"kind": "none"}, "relative": {"kind": "buckets"}},
    "rounds by length": {"halting": {"kind": "length"}},
    "modulation by time": {"segments": [{"repeats": 2, "modulation": {"kind": "by_time"}}]},
}


@pytest.fixture(autouse=True)
def without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_WITHOUT_FLOAT64", (DEVICE.type,))


def _config(stack: dict[str, Any]) -> Seq2SeqConfig:
    sub_layers = {"self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 16, "share": "all"}}
    both = {"n_steps": 1 if "segments" in stack else 2} | sub_layers | stack
    sides = {"encoder": both, "decoder": both | {"cross_attention": sub_layers["self_attention"]}}
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY}
    return Seq2SeqConfig.model_validate({"d_model": 8, **sides, **sizes})


def _run(stack: dict[str, Any]) -> ModelOutput:
    output: ModelOutput = without_memory(_config(stack))(ragged_batch().to(DEVICE))
    return output


def _check(stack: dict[str, Any]) -> None:
    check_training(load_recipe("digits/universal").model_copy(update={"model": _config(stack)}), DEVICE)


class WithoutFloat64(TorchDispatchMode):
    """Refuses such numbers on the pretended device, as `mps` does."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Pretended) and found.dtype == torch.float64:
            raise TypeError("no float64 here")
        return found


@pytest.mark.parametrize("what", NEED_IT)
def test_a_model_that_needs_float64_says_so_in_a_line(what: str) -> None:
    with pytest.raises(ConfigError, match=r"^device is 'meta': has no float64, .*: must be cpu or cuda$"):
        _run(NEED_IT[what])


@pytest.mark.parametrize(
    ("what", "setting"),
    [
        ("rotary", "relative.kind is 'rotary'"),
        ("buckets", "relative.kind is 'buckets'"),
        ("rounds by length", "halting.kind is 'length'"),
        ("modulation by time", "segments.0.modulation.kind is 'by_time'"),
    ],
)
def test_it_is_not_trained_there_and_each_setting_is_named(what: str, setting: str) -> None:
    with pytest.raises(ConfigError) as error:
        _check(NEED_IT[what])
    why = f"{setting}: needs float64, which meta does not have: set training.device to cpu or cuda"
    assert str(error.value).splitlines() == [f"model.{name}.{why}" for name in ("encoder", "decoder")]


def test_a_sampling_search_says_so_too() -> None:
    with pytest.raises(ConfigError, match="has no float64"):
        Sampling(DecodingConfig(strategy="sample"), [1], [2], DEVICE)


def test_sinusoids_and_learned_positions_need_none() -> None:
    for kind in ("sinusoidal", "learned", "coordinates"):
        _check({"positions": {"kind": kind}})
        logits_BTV = _run({"positions": {"kind": kind}}).logits_BTV
        assert (logits_BTV.device, logits_BTV.shape[:2]) == (DEVICE, ragged_batch().labels_BT.shape)


def test_analyses_make_float64_on_the_host() -> None:
    model = model_of("experts").eval()
    pretend_model(model)
    collectors = (AttentionTotals(), OneExample(0), ExpertStates())
    with pretended_device(), WithoutFloat64():
        with pytest.raises(TypeError, match="no float64 here"):
            next(model.parameters()).double()
        batch = replace(ragged_batch(1), indices=(0,)).to(DEVICE)
        request = frozenset[str]().union(*(one.request for one in collectors))
        with torch.no_grad():
            output = model(batch, request=request)
        for collector in collectors:
            collector.add(CapturedBatch(model, batch, output))
        assert spectra._values(model)
        states_BTD, keep_BT = Pretended(torch.randn(2, 3, 4)), Pretended(torch.ones(2, 3, dtype=torch.bool))
        RoundSums().add(states_BTD, states_BTD, keep_BT)
        assert spectral_radius(lambda x: 2 * x, states_BTD) == pytest.approx(2)
