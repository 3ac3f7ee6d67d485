"""Plain twin of encoder-only models: the stack of `reference.twin`, and a head that reads its states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from architectures import Sentence
from ostinato.models import Encoder
from reference.halting import States
from reference.twin import Depths, StackTwin, embedded, logits_of
from reference.weights import read_affine


class EncoderTwin(StackTwin):
    """The stack of an encoder, of which a criterion may ask what its head says of single tokens."""

    def _logits(self, states: States) -> Tensor:
        return _of_tokens(self._model, states)  # type: ignore[arg-type]


def encoder_twin(model: Encoder, sentence: Sentence, types: Sequence[int] | None = None) -> tuple[Tensor, Depths]:
    """Return what the head says, `[L, V]`, and how deep every token went.

    Args:
        types: rows of the table of token types; None: row 0 for every token.
    """
    states = embedded(model, model.target_embedding, sentence.target)
    if (table_ND := model.type_weight) is not None:
        states = [x + table_ND[row] for x, row in zip(states, types or [0] * len(states), strict=True)]
    is_causal = model.config.mask == "causal"
    states, depths = EncoderTwin(model, "encoder", sentence.target, is_causal=is_causal).run(states, None)
    return _read(model, sentence, states), {"encoder": depths}


def _read(model: Encoder, sentence: Sentence, states: States) -> Tensor:
    """One pooled state, every token's, or start and end scores of the tokens between the question and the last one."""
    head = model.config.head
    if head.kind == "classification":
        mean = sum(states[1:], states[0]) / len(states)
        return _of_tokens(model, [states[0] if head.pooling == "first" else mean])
    found = _of_tokens(model, states)
    return found[sentence.n_prefix : -1].T if head.kind == "span" else found


def _of_tokens(model: Encoder, states: States) -> Tensor:
    """W x + b, or the output over the vocabulary."""
    if model.head is None:
        return logits_of(model, states)
    head = read_affine(model.head)
    return torch.stack([head(x) for x in states])
