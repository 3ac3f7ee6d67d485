"""The papers' equations for single tokens: vectors and Python loops, in float64.

Written from the equations, not from the library: nothing here is imported from `ostinato.nn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def softmax(scores: Sequence[Tensor]) -> list[Tensor]:
    """exp(s_i) / sum_j exp(s_j)."""
    top = max(float(s.detach()) for s in scores)
    powers = [torch.exp(s - top) for s in scores]
    total = sum(powers[1:], powers[0])
    return [p / total for p in powers]


def layer_norm(x_D: Tensor, weight_D: Tensor, bias_D: Tensor, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias (Ba et al. 2016)."""
    n = x_D.numel()
    mean = x_D.sum() / n
    variance = ((x_D - mean) ** 2).sum() / n
    return (x_D - mean) / torch.sqrt(variance + eps) * weight_D + bias_D


def rms_norm(x_D: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean of squares + eps) * weight (Zhang and Sennrich 2019)."""
    return x_D / torch.sqrt((x_D**2).sum() / x_D.numel() + eps) * weight_D


def gelu(x: Tensor) -> Tensor:
    """x Phi(x), Phi the normal distribution function (Hendrycks and Gimpel 2016)."""
    return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return torch.where(x > 0, x, torch.zeros_like(x))


def gelu_tanh(x: Tensor) -> Tensor:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 (Hendrycks and Gimpel 2016)."""
    return x * 0.5 * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def silu(x: Tensor) -> Tensor:
    """x sigmoid(x): x / (1 + exp(-x)) where that does not overflow."""
    return x * torch.sigmoid(x)


def relu2(x: Tensor) -> Tensor:
    """max(x, 0)^2 (So et al. 2021)."""
    return relu(x) * relu(x)


ACTIVATIONS = {
    "relu": (relu, False),
    "relu2": (relu2, False),
    "gelu": (gelu, False),
    "gelu_tanh": (gelu_tanh, False),
    "silu": (silu, False),
    "geglu": (gelu, True),
    "geglu_tanh": (gelu_tanh, True),
    "swiglu": (silu, True),
}
"""Every activation of a hidden layer: its function, and whether that is of a gate (Shazeer 2020, eq. 6)."""


def depth_wise(inputs: Sequence[Tensor], taps_KC: Tensor, t: int, is_causal: bool) -> Tensor:
    """Sum over k of taps[k] * inputs[t - left + k], channel by channel; beyond the sentence there is nothing.

    left: K - 1 where causal, else (K - 1) / 2 rounded down (tensor2tensor: LEFT and SAME padding).
    """
    kernel = taps_KC.shape[0]
    first = t - (kernel - 1 if is_causal else (kernel - 1) // 2)
    total = torch.zeros_like(inputs[t])
    for k in range(kernel):
        if 0 <= first + k < len(inputs):
            total = total + taps_KC[k] * inputs[first + k]
    return total


def sinusoid(value: int, d_model: int) -> Tensor:
    """sin and cos of value / 10000^(2j/d), interleaved (Vaswani et al. 2017, 3.5; Universal Transformers, 2.1)."""
    numbers = []
    for j in range(d_model // 2):
        angle = value / 10_000 ** (2 * j / d_model)
        numbers += [math.sin(angle), math.cos(angle)]
    return torch.tensor(numbers, dtype=torch.float64)


def coordinate(position: int, step: int, d_model: int) -> Tensor:
    """P^t for a position and a step, both counted from 1 (Universal Transformers, 2.1)."""
    numbers = []
    for j in range(d_model // 2):
        scale = 10_000 ** (2 * j / d_model)
        numbers.append(math.sin(position / scale) + math.sin(step / scale))
        numbers.append(math.cos(position / scale) + math.cos(step / scale))
    return torch.tensor(numbers, dtype=torch.float64)


def rotate(x_K: Tensor, position: int, frequencies: Sequence[float], *, is_interleaved: bool = False) -> Tensor:
    """Turn pairs by position * frequency, as complex numbers (Su et al. 2021, eq. 34); what is left stays.

    Of the first 2 n components, n frequencies, the pairs are (x_j, x_{j + n}), or interleaved (x_{2j}, x_{2j + 1}).
    """
    n = len(frequencies)
    turned = list(x_K)
    for j, frequency in enumerate(frequencies):
        real, imaginary = (2 * j, 2 * j + 1) if is_interleaved else (j, j + n)
        angle = position * frequency
        turned[real] = x_K[real] * math.cos(angle) - x_K[imaginary] * math.sin(angle)
        turned[imaginary] = x_K[real] * math.sin(angle) + x_K[imaginary] * math.cos(angle)
    return torch.stack(turned)


def llama3_frequency(frequency: float, factor: float, low: float, high: float, length: int) -> float:
    """Kept where a turn is shorter than length / high, divided where it is longer than length / low, else between."""
    wavelength = 2 * math.pi / frequency
    if wavelength < length / high:
        return frequency
    if wavelength > length / low:
        return frequency / factor
    kept = (length / wavelength - low) / (high - low)
    return (1 - kept) * frequency / factor + kept * frequency


def alibi_slope(head: int, n_heads: int) -> float:
    """2^(-8 (h + 1) / n) for n heads, a power of two; further heads take every other one of 2n (Press et al. 2021)."""
    n = 1
    while 2 * n <= n_heads:
        n *= 2
    return 2.0 ** (-8 * (head + 1) / n) if head < n else 2.0 ** (-8 * (2 * (head - n) + 1) / (2 * n))


def window_entry(query_position: int, key_position: int, window: int) -> int:
    """Column of the window's table: the offset of the key, clamped to -W .. W (Shaw et al. 2018, eq. 3)."""
    offset = key_position - query_position
    return min(max(offset, -window), window) + window


def bucket(query_position: int, key_position: int, n_buckets: int, max_distance: int, is_causal: bool) -> int:
    """T5's bucket of a distance (Raffel et al. 2020, 2.1).

    Half of the buckets hold one distance each, the other half logarithmically growing ranges up to max_distance; a
    bidirectional stack first gives one half of all buckets to each direction, keys after the query in the second.
    """
    first = 0
    if is_causal:
        distance = max(query_position - key_position, 0)
    else:
        n_buckets //= 2
        distance = abs(query_position - key_position)
        if key_position > query_position:
            first = n_buckets
    n_exact = n_buckets // 2
    if distance < n_exact:
        return first + distance
    share_of_range = math.log(distance / n_exact) / math.log(max_distance / n_exact)
    return first + min(n_exact + int(share_of_range * (n_buckets - n_exact)), n_buckets - 1)
