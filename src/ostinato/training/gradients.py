"""All-reduce of the gradients, after the backward pass: `training.parallel.kind` none.

Which parameters have a gradient depends on the data: experts that no token chose, rounds that one process's tokens did
not reach, halting rules that are switched off. DistributedDataParallel sends a parameter's gradient from a hook once it
is complete; it would wait for hooks that never run, and the gradient of shared weights is completed several times. So
the parameters are gone through in one fixed order when the backward pass is done: first the processes agree which of
them have a gradient in any process, then these are all-reduced in flat buckets. A parameter without a gradient in every
process keeps none: zeros are something else to an optimiser, because moments and weight decay act on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from ostinato.kernels import on_device
from ostinato.training.processes import all_reduce

_BUCKET_SIZE = 2**23
"""Elements that are sent together: 32 MiB in float32. A larger parameter is sent alone."""


def all_reduce_gradients(parameters: Iterable[nn.Parameter], numbers_V: Tensor) -> Tensor:
    """Replace the gradients by their sums over all processes, each of which calls this with the same parameters.

    Args:
        numbers_V: are summed, too, in the first message.

    Returns:
        The sums of the numbers.
    """
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    has_gradient_P = on_device([float(parameter.grad is not None) for parameter in trained], numbers_V.device)
    message = torch.cat([numbers_V, has_gradient_P.to(numbers_V.dtype)])
    all_reduce(message)
    counts = message[len(numbers_V) :].tolist()
    for bucket in _buckets([parameter for parameter, count in zip(trained, counts, strict=True) if count]):
        _all_reduce_bucket(bucket)
    return message[: len(numbers_V)]


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield runs of parameters of one dtype that are sent together."""
    bucket: list[nn.Parameter] = []
    n_elements = 0
    for parameter in parameters:
        if bucket and (parameter.dtype != bucket[0].dtype or n_elements + parameter.numel() > _BUCKET_SIZE):
            yield bucket
            bucket, n_elements = [], 0
        bucket.append(parameter)
        n_elements += parameter.numel()
    if bucket:
        yield bucket


def _all_reduce_bucket(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # `reshape` goes by the order of the elements: in memory a gradient may lie transposed in one process and not in
    # another.
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    all_reduce(flat)
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))
