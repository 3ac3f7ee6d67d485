"""Small real models, trained just enough that their outputs vary and end."""

from __future__ import annotations

import random
from functools import cache
from typing import Literal, TypeVar

import torch
from torch.nn.functional import cross_entropy

from ostinato.config.data import DataConfig, TokenizerConfig
from ostinato.config.model import LanguageModelConfig, Seq2SeqConfig
from ostinato.config.positions import BucketsConfig, WindowConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig, SeparableConvConfig
from ostinato.data.batching import TrainingBatches
from ostinato.data.collate import Row
from ostinato.data.example import Example
from ostinato.data.tokenizers import Tokenizers
from ostinato.models import LanguageModel, Seq2Seq

WORDS = "do re mi fa sol la si ut"
DATA = DataConfig(tokenizer=TokenizerConfig(kind="words"), eval_tokens_per_batch=40)
Model = TypeVar("Model", Seq2Seq, LanguageModel)
_ATTENTION = AttentionConfig(n_heads=2, share="all")
_FFN = DenseFeedForwardConfig(d_ff=32, share="all")
CONVOLUTION = SeparableConvConfig(d_ff=32, share="all", bank="both")
"""One set in both stacks: it sees both sides in the encoder, and what came before in the decoder."""


def word_tokenizers() -> Tokenizers:
    return Tokenizers.train(DATA, [Example(WORDS, WORDS)])


@cache
def trained_seq2seq(vocab_size: int, ffn: DenseFeedForwardConfig | SeparableConvConfig = _FFN) -> Seq2Seq:
    """Learns to reverse, a little."""
    torch.manual_seed(0)
    config = Seq2SeqConfig(
        d_model=16,
        dropout=0.0,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        encoder=StackConfig(n_steps=2, self_attention=_ATTENTION, ffn=ffn),
        decoder=DecoderConfig(
            n_steps=2, self_attention=_ATTENTION, cross_attention=_ATTENTION, ffn=ffn, relative=WindowConfig(window=3)
        ),
    )
    return _trained(Seq2Seq(config), [Row(ids, ids[::-1]) for ids in _sequences(vocab_size)])


@cache
def trained_language_model(vocab_size: int) -> LanguageModel:
    """Learns sequences of two alternating tokens, a little."""
    torch.manual_seed(0)
    config = LanguageModelConfig(
        d_model=16,
        dropout=0.0,
        vocab_size=vocab_size,
        decoder=StackConfig(n_steps=2, self_attention=_ATTENTION, ffn=_FFN),
    )
    rows = [Row(None, (ids[:2] * 4)[: 2 + len(ids)]) for ids in _sequences(vocab_size)]
    return _trained(LanguageModel(config), rows)


@cache
def trained_decoder_only(vocab_size: int, mask: Literal["causal", "prefix"]) -> LanguageModel:
    """Learns to reverse, a little: source and target are one sequence."""
    torch.manual_seed(0)
    config = LanguageModelConfig(
        d_model=16,
        dropout=0.0,
        vocab_size=vocab_size,
        mask=mask,
        decoder=StackConfig(n_steps=2, self_attention=_ATTENTION, ffn=_FFN, relative=BucketsConfig()),
    )
    rows = [Row(ids, ids[::-1], is_joined=True) for ids in _sequences(vocab_size)]
    return _trained(LanguageModel(config), rows)


def _sequences(vocab_size: int) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(4, vocab_size) for _ in range(rng.randint(1, 7))] for _ in range(300)]


def _trained(model: Model, rows: list[Row]) -> Model:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    batches = TrainingBatches(rows, 200, seed=0)
    for _ in range(80):
        batch = next(batches)
        logits_BTV = model(batch).logits_BTV
        loss = cross_entropy(logits_BTV[batch.loss_mask_BT], batch.labels_BT[batch.loss_mask_BT])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()
