"""What the contract's tests compare with: one tolerance per dtype, logits and gradients of real tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from architectures import Model, Sentence
from ostinato.data.batch import Batch
from ostinato.models.encoder import passages

# Logits leave a model in float32, and sinusoids are float32 tables, whatever the dtype of the weights.
TOLERANCE = 1e-5


def assert_equal(actual: Tensor, expected: Tensor, what: str) -> None:
    """Compare within the tolerance, relative to the largest value."""
    actual, expected = actual.detach().double(), expected.detach().double()
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=TOLERANCE * scale, msg=lambda found: f"{what}: {found}")


def assert_all_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Compare values by name."""
    assert actual.keys() == expected.keys()
    for name in expected:
        assert_equal(actual[name], expected[name], name)


def real_logits(model: Model, batch: Batch, n_steps: int | None = None) -> list[Tensor]:
    """Return the logits of every sentence that are not of padding."""
    return real_ones(model(batch, n_steps=n_steps).logits_BTV, batch, model.config.reads)


def real_ones(logits_BLV: Tensor, batch: Batch, reads: str) -> list[Tensor]:
    """Return of every sentence the logits that are not of padding.

    Args:
        reads: by what the model reads: a row for the text, scores of the tokens of a passage, or rows of all tokens.
    """
    match reads:
        case "classification":
            return list(logits_BLV)
        case "span":
            return [row[:, keep] for row, keep in zip(logits_BLV, passages(batch), strict=True)]
    return [row[keep] for row, keep in zip(logits_BLV, batch.target.keep_BT, strict=True)]


def weights_of(sentences: Sequence[Sentence], n_rows: int, seed: int = 1) -> list[Tensor]:
    """Return random weights, with which logits are added up to a scalar: every logit matters to it differently."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(len(s.target), n_rows, generator=generator, dtype=torch.float64) for s in sentences]


def gradients(model: Model, logits: Sequence[Tensor], weights: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the gradient of the weighted sum of logits by learned parameter, zeros where one plays no part."""
    total = sum((one.double() * w).sum() for one, w in zip(logits, weights, strict=True))
    assert isinstance(total, Tensor)
    learned = {name: p for name, p in model.named_parameters() if p.requires_grad}
    names, parameters = zip(*learned.items(), strict=True)
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return {name: torch.zeros_like(p) if g is None else g for name, p, g in zip(names, parameters, found, strict=True)}


def gradients_with_costs(model: Model, padded: Batch) -> dict[str, Tensor]:
    """Return the gradients of logits and costs of depth together, each with a weight of its own."""
    output = model(padded)
    logits = real_ones(output.logits_BTV, padded, model.config.reads)
    costs = [stack.depth_cost for stack in output.stacks.values() if stack.depth_cost is not None]
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(one.shape, generator=generator, dtype=torch.float64) for one in logits]
    weights += [torch.tensor(2.0 + i, dtype=torch.float64) for i in range(len(costs))]
    return gradients(model, logits + costs, weights)
