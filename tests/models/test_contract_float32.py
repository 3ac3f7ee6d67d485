"""A float32 model run by compiled kernels is as near to the float64 one as it is by operations of torch alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from architectures import Model, any_architecture, draws, random_model, right_padded, sentences
from contract import gradients
from ostinato.config.halting import NoHaltingConfig
from ostinato.data.batch import Batch
from ostinato.kernels import large_products
from ostinato.kernels.native import calls, library

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here")


def in_training(model: Model, batch: Batch, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return logits of real tokens and gradients of a training pass in a type; the same is dropped in every pass."""
    model = model.to(dtype).train()
    torch.manual_seed(7)
    logits = model(batch).logits_BTV[batch.target.keep_BT]
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {"logits": logits.detach()} | gradients(model, [logits], [weights])


def distance(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Return how far the numbers of a pass are from the exact ones, relative to the largest of each tensor."""
    away = [(float((found[n].double() - e).abs().max()), float(e.abs().max())) for n, e in exact.items() if e.numel()]
    return max(difference / max(1.0, largest) for difference, largest in away)


def test_passes_by_compiled_kernels_are_as_exact_as_those_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    called: Counter[str] = Counter()

    class Counting:
        """The library; how often its functions were called."""

        def __init__(self, library: Any) -> None:
            self._library = library

        def __getattr__(self, name: str) -> Any:
            called[name] += 1
            return getattr(self._library, name)

    counting = Counting(calls.kernels())
    monkeypatch.setattr(calls, "kernels", lambda: counting)
    monkeypatch.setattr(large_products, "has_slow_products", lambda: True)
    monkeypatch.setattr(large_products, "_LEAST_PRODUCTS", 0)
    monkeypatch.setattr(large_products, "_FEWEST", 0)

    # Choices of experts, and whether tokens go on, may differ by a rounding.
    @draws(60)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        config = data.draw(any_architecture(has_experts=False, halting=st.just(NoHaltingConfig())))
        config = config.model_copy(update={"dropout": data.draw(st.sampled_from([0.0, 0.3]))})
        batch = right_padded(data.draw(sentences(config)), data.draw(st.integers(0, 2)))
        model = random_model(config)
        exact = in_training(model, batch, torch.float64)
        found = in_training(model, batch, torch.float32)
        n_called = called.total()
        with monkeypatch.context() as patch:
            patch.setattr(calls, "has_kernels", lambda: False)
            plain = in_training(model, batch, torch.float32)
        assert called.total() == n_called
        assert distance(found, exact) < 5 * distance(plain, exact) + 1e-5

    check()
    assert called.keys() >= {"full_attention", "large_product", "draw_kept", "drop", "add_dropped"}
