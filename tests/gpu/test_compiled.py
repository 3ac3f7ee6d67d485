"""Training passes are one graph, the same for all lengths; where tokens halt, one for every stretch between rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from plans import HALTING, PLANS, model_of, ragged_batch
from torch._dynamo.utils import counters

MOST_ANEW = 3
"""Times that an epoch of real batches may be compiled anew after the first."""


def _as_traced(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """Run a graph as torch traced it: what generates code for it is torch's to test, and takes minutes."""
    return graph.forward


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_a_pass_is_one_graph_for_all_lengths_and_gives_what_is_not_compiled(name: str) -> None:
    model = model_of(name).train()
    torch._dynamo.reset()
    counters.clear()
    run = torch.compile(model, backend=_as_traced, dynamic=True, fullgraph=name not in HALTING)
    numbers = []
    for seed in range(8):
        batch = ragged_batch(n=3 + seed % 4, seed=seed, longest=4 + seed).to("cpu").as_padded()
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "experts"):
            found, expected = run(batch).logits_BTV, model(batch).logits_BTV
        keep = batch.target.keep_BT
        tolerance = {"rtol": 0.05, "atol": 0.05} if name == "experts" else {"rtol": 1e-5, "atol": 1e-5}
        torch.testing.assert_close(found[keep], expected[keep], **tolerance)
        numbers.append(counters["stats"]["unique_graphs"])
    if name in HALTING:
        assert numbers[-1] == numbers[3], numbers  # nothing is compiled any more once lengths are known to vary
    else:
        assert numbers[-1] <= 1 + MOST_ANEW, numbers


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dense", "shared"])
def test_nothing_of_a_pass_is_left_to_python(name: str) -> None:
    torch._dynamo.reset()
    said = torch._dynamo.explain(model_of(name, dropout=0.1).train())(ragged_batch().to("cpu").as_padded())
    assert (said.graph_count, said.graph_break_count) == (1, 0), said.break_reasons


@pytest.mark.slow
def test_the_gradient_of_a_compiled_pass_is_that_of_one_that_is_not() -> None:
    model, batch = model_of("dense").train(), ragged_batch(3, longest=4).to("cpu").as_padded()
    torch._dynamo.reset()
    found = []
    for run in (model, torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)):
        model.zero_grad()
        torch.where(batch.target.keep_BT[..., None], run(batch).logits_BTV, 0.0).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
