"""LSTM baselines: what they are, and the sizes of their recurrences.

    encoder-decoder   a stack of LSTM layers reads the source (both ways: d_model / 2 units a direction), another writes
                      the target; each of its layers starts from the last states of the encoder's layer beside it
    language model    one stack of LSTM layers

Every layer is d_model wide. The papers that name LSTM baselines (Universal Transformers, tables 3 to 6) give neither
their sizes nor the kind of their attention: the defaults here are our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ostinato.config.base import Number
from ostinato.config.common import PairModelConfig, Recurrence, Score, SequenceModelConfig
from ostinato.errors import Problem


class LstmSeq2SeqConfig(PairModelConfig):
    """An LSTM encoder-decoder with attention (Luong et al. 2015, global attention without input feeding).

    context = sum_s softmax_s(score(h_t, m_s)) m_s,   what is read out: tanh(W [context; h_t])
    """

    kind: Literal["lstm_seq2seq"] = "lstm_seq2seq"
    n_layers: Number = 2
    """LSTM layers of the encoder, and of the decoder."""
    bidirectional: bool = True
    """Whether the encoder reads both ways."""
    attention: Score = "general"
    """general: h W m; dot: h m (both Luong et al. 2015); additive: v tanh(W h + U m) (Bahdanau et al. 2015, whose h
    is the state before a step; here it is the state after it, as in the others); none: the decoder has the source in
    its first states only."""

    def recurrences(self) -> dict[str, Recurrence]:
        """Return encoder and decoder."""
        n_directions = 2 if self.bidirectional else 1
        return {
            "encoder": Recurrence(self.n_layers, n_directions),
            "decoder": Recurrence(self.n_layers, score=self.attention),
        }

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A width that two directions cannot halve."""
        yield from super().problems(path)
        if self.bidirectional and self.d_model % 2:
            yield Problem(f"{path}d_model", self.d_model, f"must be even: {path}bidirectional halves it")


class LstmLanguageModelConfig(SequenceModelConfig):
    """An LSTM language model."""

    kind: Literal["lstm_language_model"] = "lstm_language_model"
    n_layers: Number = 2
    """LSTM layers."""

    def recurrences(self) -> dict[str, Recurrence]:
        """Return the one there is; it is called as the stack of a language model."""
        return {"decoder": Recurrence(self.n_layers)}
