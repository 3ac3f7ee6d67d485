"""What needs numbers of twice the precision says so on a device that has none, as `mps`; others run there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plans import VOCABULARY, ragged_batch

from ostinato.config.decoding import DecodingConfig
from ostinato.config.model import Seq2SeqConfig
from ostinato.decoding.proposals import Sampling
from ostinato.errors import ConfigError
from ostinato.kernels import devices
from ostinato.models.build import without_memory
from ostinato.models.output import ModelOutput

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


def _run(stack: dict[str, Any]) -> ModelOutput:
    sub_layers = {"self_attention": {"n_heads": 2, "share": "all"}, "ffn": {"d_ff": 16, "share": "all"}}
    both = {"n_steps": 1 if "segments" in stack else 2} | sub_layers | stack
    sides = {"encoder": both, "decoder": both | {"cross_attention": sub_layers["self_attention"]}}
    sizes = {"source_vocab_size": VOCABULARY, "target_vocab_size": VOCABULARY}
    model = without_memory(Seq2SeqConfig.model_validate({"d_model": 8, **sides, **sizes}))
    output: ModelOutput = model(ragged_batch().to(DEVICE))
    return output


@pytest.mark.parametrize("what", NEED_IT)
def test_a_model_that_needs_float64_says_so_in_a_line(what: str) -> None:
    with pytest.raises(ConfigError, match=r"^device is 'meta': has no float64, .*: must be cpu or cuda$"):
        _run(NEED_IT[what])


def test_a_sampling_search_says_so_too() -> None:
    with pytest.raises(ConfigError, match="has no float64"):
        Sampling(DecodingConfig(strategy="sample"), [1], [2], DEVICE)


def test_sinusoids_and_learned_positions_need_none() -> None:
    for kind in ("sinusoidal", "learned", "coordinates"):
        logits_BTV = _run({"positions": {"kind": kind}}).logits_BTV
        assert (logits_BTV.device, logits_BTV.shape[:2]) == (DEVICE, ragged_batch().labels_BT.shape)
