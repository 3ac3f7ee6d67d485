"""Gradients of shared weights that are added up in place equal those that autograd adds up, whatever the model."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from architectures import Model, any_architecture, draws, random_model, right_padded, sentences
from contract import assert_all_equal, gradients
from ostinato.data.batch import Batch
from ostinato.kernels.sums import GradientSums
from running import run_as


def in_training(model: Model, batch: Batch) -> dict[str, Tensor]:
    """Return logits of real tokens and gradients of a training pass; what is drawn in it is the same every time."""
    torch.manual_seed(5)
    logits = model(batch).logits_BTV[batch.target.keep_BT]
    weights = torch.randn(logits.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return {"logits": logits} | gradients(model, [logits], [weights])


@pytest.mark.parametrize("recomputes", [False, True])
def test_a_training_pass_has_the_gradients_that_autograd_adds_up(
    recomputes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    products: list[bool] = []
    product = GradientSums.product

    def counted(*given: Any) -> Tensor:
        products.append(True)
        return product(*given)

    monkeypatch.setattr(GradientSums, "product", counted)

    @draws(20 if recomputes else 40)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        config = data.draw(any_architecture())
        padded = right_padded(data.draw(sentences(config)), data.draw(st.integers(0, 2)))
        model = random_model(config).train()
        run_as(model, recompute=recomputes)
        actual = in_training(model, padded)
        products.append(False)
        with monkeypatch.context() as patch:
            patch.setattr("ostinato.nn.stack.summing", nullcontext)
            expected = in_training(model, padded)
        assert products[-1] is False  # the twin does without
        assert_all_equal(actual, expected)

    check()
    assert any(products)
