"""Bytes of a model, counted from its configuration: its weights, what training keeps, what decoding holds.

    weights      every stored parameter in float32, also under bfloat16 autocast
    activations  what autograd keeps from a forward pass for the backward pass: `ostinato.budget.activations`
    cache        what decoding holds once every hypothesis has `target_length` tokens, in float32 (decoding does not
                 autocast), with N sentences, K hypotheses each, S source tokens, J = n_kv_heads d_head:
                     self-attention, per STEP              2 N K J ceil(target_length / 32) 32    (room is made by 32),
                                                           twice for K > 1: hypotheses move between two buffers;
                                                           of a loop only `cached_rounds`, where that is given
                     separable convolution, per STEP       N K (D (kernel_in - 1) + F (kernel_out - 1))
                     cross-attention, per PARAMETER SET    2 N J S    (never per hypothesis)
                     encoder output                        N S D     (of an LSTM: where there is attention)
                     LSTM                                  2 N K D a layer; keys of an additive score N S D
                     who took part in a round              N K target_length bytes, of rounds that may leave some out
                                                           where a router chooses
                 experts of an attention share their keys and values: J is one expert's, whatever E and k

Sharing weights over depth saves bytes of weights, and of the cache those of cross-attention; keys and values of
self-attention and activations are as many as without it.

Not counted: the copies of weights that decoding on a CPU makes (`ostinato.kernels.packed`; as many bytes as those
weights), gradients (as many bytes as weights) and optimiser (Adam: twice as many), the logits themselves, buffers of
matrix products, tensors that live within one operation, masks of padding and of texts that are kept apart, allocator
and process. Activations are those of a CPU with compiled kernels (`ostinato doctor` tells; without, and with more
threads than a batch has heads, attention that drops weights keeps them in float32, too); GPU kernels keep other masks
of dropout and drop attention weights without keeping them, and are not tested here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from ostinato.budget.activations import activation_parts
from ostinato.budget.parameters import count_parameters
from ostinato.budget.sizes import keys_width, planned_uses, plans
from ostinato.budget.training_pass import FLOAT, TrainingPass
from ostinato.config.halting import ChoosingConfig
from ostinato.config.model import ModelConfig
from ostinato.config.sub_layers import AttentionConfig, SeparableConvConfig
from ostinato.errors import ConfigError, Problem

Precision = Literal["float32", "bfloat16"]

CACHE_BLOCK = 32
"""Positions by which the buffers of keys and values grow."""


@dataclass(frozen=True, slots=True)
class ByteCount:
    """Bytes of weights, of one training pass's activations, and of a decoding cache.

    Args:
        weights, activations, cache: see the module.
        by_part: for each of the three its parts, adding up to it.
    """

    weights: int
    activations: int
    cache: int
    by_part: dict[str, dict[str, int]]


def count_bytes(
    config: ModelConfig,
    source_length: int,
    target_length: int,
    *,
    batch_size: int = 1,
    beam: int = 1,
    precision: Precision = "float32",
    n_steps: int | None = None,
    vocab_size: int | None = None,
    checkpoint_activations: bool = False,
    cached_rounds: int | None = None,
    n_predictions: int = 1,
) -> ByteCount:
    """Return the bytes of weights, activations and cache.

    Args:
        config: the model, dropout as it says.
        source_length, target_length: tokens of every sentence, begin and end symbols included; language models have no
            source, and ignore its length.
        batch_size: sentences of the training pass and of the decoding.
        beam: hypotheses a sentence, in decoding.
        precision: of the training pass, as `training.precision`.
        n_steps: rounds at call time, for stacks whose rounds are all shared.
        vocab_size: rows of every vocabulary that the configuration leaves open.
        checkpoint_activations: as `training.checkpoint_activations`.
        cached_rounds: rounds of a loop whose keys and values decoding keeps (`ostinato.nn.Execution`); None: all.
        n_predictions: rounds whose predictions have a gradient, as `training.round_loss` says.

    Raises:
        ConfigError: a length, batch size or beam below 1, a vocabulary size that is neither set nor passed, or
            `n_steps` for stacks that cannot change it.
    """
    sizes = {"target_length": target_length, "batch_size": batch_size, "beam": beam}
    if config.has_two_sides:
        sizes["source_length"] = source_length
    if problems := [Problem(key, n, "must be at least 1") for key, n in sizes.items() if n < 1]:
        raise ConfigError(problems)
    of_side = {"source": source_length, "target": target_length}
    lengths = {reader: of_side[config.side_of(reader)] for reader in config.readers()}
    run = TrainingPass(config, lengths, batch_size, precision == "bfloat16", checkpoint_activations, n_predictions)
    stored = count_parameters(config, n_steps=n_steps, vocab_size=vocab_size).by_part
    by_part = {
        "weights": {part: FLOAT * n for part, n in stored.items()},
        "activations": activation_parts(run, n_steps, vocab_size),
        "cache": _cache(config, lengths, batch_size, beam, n_steps, cached_rounds) if config.generates else {},
    }
    return ByteCount(**{kind: sum(parts.values()) for kind, parts in by_part.items()}, by_part=by_part)


def _cache(
    config: ModelConfig,
    lengths: dict[str, int],
    n_sentences: int,
    beam: int,
    n_steps: int | None,
    cached_rounds: int | None,
) -> dict[str, int]:
    """Return the bytes of a decoding cache by part: ``<stack>.<kind>`` and ``memory`` (the encoder's output)."""
    rows, numbers = n_sentences * beam, Counter[str]()
    buffers = 1 if beam == 1 else 2
    room = -(-lengths["decoder"] // CACHE_BLOCK) * CACHE_BLOCK
    memory = n_sentences * lengths.get("encoder", 0)
    numbers["memory"] = memory * config.d_model
    if (recurrence := config.recurrences().get("decoder")) is not None:
        numbers["decoder.lstm"] = rows * 2 * recurrence.n_layers * config.d_model
        numbers["decoder.attention"] = memory * config.d_model if recurrence.score == "additive" else 0
        numbers["memory"] *= recurrence.score != "none"
    projected: set[str] = set()
    for planned in planned_uses(config, n_steps):
        if planned.stack != "decoder":
            continue
        is_kept = cached_rounds is None or not planned.is_looped or planned.round < cached_rounds
        part, weights = f"{planned.stack}.{planned.use.kind}", planned.use.weights
        match planned.sub:
            # Experts share keys and values, so that attention with experts holds as much as without.
            case AttentionConfig() as attention if planned.use.kind == "self_attention":
                if planned.borrows_keys or not is_kept:
                    continue
                numbers[part] += buffers * 2 * rows * keys_width(attention, config.d_model) * room
            case AttentionConfig() as attention if planned.use.kind == "cross_attention" and weights not in projected:
                numbers[part] += 2 * memory * keys_width(attention, config.d_model)
                projected.add(weights)
            case SeparableConvConfig() as conv:
                width = config.d_model * (conv.kernel_in - 1) + conv.d_ff * (conv.kernel_out - 1)
                numbers[part] += rows * width
    parts = {part: FLOAT * n for part, n in numbers.items() if n}
    if (plan := plans(config, n_steps).get("decoder")) is not None:
        halting = config.stacks()["decoder"].halting
        if isinstance(halting, ChoosingConfig) and (n_rounds := sum(halting.may_lack(plan.n_rounds))):
            parts["decoder.halting"] = rows * lengths["decoder"] * n_rounds
    return parts
