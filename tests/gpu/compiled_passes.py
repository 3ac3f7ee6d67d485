"""Compile training passes of the plan that is named and print, as JSON, what came of it.

A process of its own: torch cannot trace the checks of shapes that the suite puts around every call.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from plans import HALTING, model_of, ragged_batch
from torch._dynamo.utils import counters


def as_traced(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
    """Run a graph as torch traced it: what generates code for it is torch's to test, and takes minutes."""
    return graph.forward


def epoch(name: str) -> dict[str, Any]:
    """Run batches of many lengths; return graphs so far by batch, and how far logits are from those of plain passes."""
    model, graphs, apart = model_of(name).train(), [], 0.0
    run = torch.compile(model, backend=as_traced, dynamic=True, fullgraph=name not in HALTING)
    for seed in range(8):
        batch = ragged_batch(n=3 + seed % 4, seed=seed, longest=4 + seed).to("cpu").as_padded()
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "experts"):
            found, expected = run(batch).logits_BTV, model(batch).logits_BTV
        keep = batch.target.keep_BT
        apart = max(apart, float((found[keep] - expected[keep]).detach().abs().max()))
        graphs.append(counters["stats"]["unique_graphs"])
    return {"graphs": graphs, "apart": apart}


def gradients(name: str) -> float:
    """Return how far the gradients of a compiled pass are from those of one that is not, relative to the largest."""
    model, batch = model_of(name).train(), ragged_batch(3, longest=4).to("cpu").as_padded()
    found = []
    for run in (model, torch.compile(model, backend="aot_eager", dynamic=True, fullgraph=True)):
        model.zero_grad()
        torch.where(batch.target.keep_BT[..., None], run(batch).logits_BTV, 0.0).square().sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    return float((found[0] - found[1]).abs().max() / found[0].abs().max())


if __name__ == "__main__":
    what, plan = sys.argv[1:]
    if what == "epoch":
        print(json.dumps(epoch(plan)))
    elif what == "gradients":
        print(json.dumps(gradients(plan)))
    else:
        said = torch._dynamo.explain(model_of(plan, dropout=0.1).train())(ragged_batch().to("cpu").as_padded())
        print(json.dumps([said.graph_count, said.graph_break_count]))
