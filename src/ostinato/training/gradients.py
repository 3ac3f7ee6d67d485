"""The gradients of several processes, added up after the backward pass.

Which parameters have a gradient depends on the data: experts nobody chose, rounds that one process's tokens did not
reach, rules that are not asked yet. Hooks that send a parameter's gradient once it is complete would wait for ones that
never come, and shared weights complete several times. So all parameters are gone through in one fixed order, when the
backward pass is through: first it is agreed which of them have a gradient anywhere, then these are added up in flat
pieces. A parameter that has a gradient in no process has none afterwards either: to an optimiser zeros would be
something else, since moments and weight decay act on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ostinato.training.processes import sum_in_place

_PIECE = 2**23
"""Elements that are sent together: 32 MiB in float32. A larger parameter is sent alone."""


def sum_gradients(parameters: Iterable[nn.Parameter], numbers_V: Tensor) -> Tensor:
    """Replace the gradients by their sums over all processes, of which every one calls this with the same parameters.

    Args:
        numbers_V: is summed, too, without a gradient.

    Returns:
        The sum of the numbers.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    has_P = torch.tensor([parameter.grad is not None for parameter in trained], dtype=numbers_V.dtype)
    together = torch.cat([numbers_V, has_P.to(numbers_V.device)])
    sum_in_place(together)
    anywhere = together[len(numbers_V) :].tolist()
    for piece in _pieces([parameter for parameter, n in zip(trained, anywhere, strict=True) if n]):
        _sum_piece(piece)
    return together[: len(numbers_V)]


def _pieces(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield runs of parameters of one dtype that are sent together."""
    piece: list[nn.Parameter] = []
    n_elements = 0
    for parameter in parameters:
        if piece and (parameter.dtype != piece[0].dtype or n_elements + parameter.numel() > _PIECE):
            yield piece
            piece, n_elements = [], 0
        piece.append(parameter)
        n_elements += parameter.numel()
    if piece:
        yield piece


def _sum_piece(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # In the order of elements, not of memory, in which gradients need not lie alike everywhere.
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    sum_in_place(flat)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))
