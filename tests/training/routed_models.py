"""The model of a tiny recipe without its task: single updates on batches that are written down here."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from architectures import Sentence, right_padded
from ostinato.config.recipe import Recipe
from ostinato.data.batch import Batch
from ostinato.models import Model, build_model


def tiny_model(recipe: Recipe) -> Model:
    """Return the recipe's model with a vocabulary of nine symbols, freshly initialised."""
    torch.manual_seed(0)
    return build_model(recipe.model.model_copy(update=recipe.model.vocabulary_sizes(9, 9)))


def tiny_batches() -> list[Batch]:
    """Return two batches of different sizes, with padding."""
    one = [Sentence([4, 5, 6, 2], [1, 6, 5, 4]), Sentence([7, 2], [1, 7]), Sentence([8, 4, 2], [1, 4, 8])]
    other = [Sentence([5, 5, 7, 8, 4, 2], [1, 4, 8, 7, 5, 5]), Sentence([6, 8, 2], [1, 8, 6])]
    return [right_padded(one), right_padded(other)]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the gradients of all parameters, zeros where there is none, and forget them."""
    found = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    return found
