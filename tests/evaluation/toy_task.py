"""Copying letters with a tiny real model, and a fake model whose answers cost nothing."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from ostinato.config.data import DataConfig, TokenizerConfig
from ostinato.config.model import Seq2SeqConfig
from ostinato.config.stack import DecoderConfig, StackConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig
from ostinato.data.batch import Batch
from ostinato.data.example import Example
from ostinato.data.tokenizers import Tokenizers
from ostinato.models import Seq2Seq
from ostinato.models.output import ModelOutput
from ostinato.nn.cache import Cache
from ostinato.nn.execution import Execution
from ostinato.nn.types import StackOutput

LETTERS = ["a", "b", "c", "d", "e", "f"]
DATA = DataConfig(tokenizer=TokenizerConfig(kind="words"), eval_tokens_per_batch=64)


def letter_examples(n: int, seed: int = 0, longest: int = 6) -> list[Example]:
    rng = random.Random(seed)
    found = []
    for i in range(n):
        words = rng.choices(LETTERS, k=rng.randint(1, longest))
        found.append(Example(" ".join(words), " ".join(reversed(words)), {"length": len(words), "even": i % 2 == 0}))
    return found


def letter_tokenizers() -> Tokenizers:
    return Tokenizers.train(DATA, [Example(" ".join(LETTERS), " ".join(LETTERS))])


def tiny_seq2seq(vocab_size: int, seed: int = 0, n_steps: int = 2) -> Seq2Seq:
    torch.manual_seed(seed)
    attention = AttentionConfig(n_heads=2, share="all", dropout=0.1)
    ffn = DenseFeedForwardConfig(d_ff=24, share="all")
    config = Seq2SeqConfig(
        d_model=16,
        source_vocab_size=vocab_size,
        target_vocab_size=vocab_size,
        encoder=StackConfig(n_steps=n_steps, self_attention=attention, ffn=ffn),
        decoder=DecoderConfig(n_steps=n_steps, self_attention=attention, cross_attention=attention, ffn=ffn),
    )
    return Seq2Seq(config)


def train_briefly(model: Seq2Seq, tokenizers: Tokenizers, n_updates: int) -> None:
    """Enough updates for outputs that end and differ; no more is needed here."""
    from ostinato.data.batching import TrainingBatches
    from ostinato.data.rows import encode_examples

    rows = encode_examples(letter_examples(200, seed=9), tokenizers, DATA, training=True, name="train")
    batches = TrainingBatches(rows, 256, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    model.train()
    for _ in range(n_updates):
        batch = next(batches)
        logits = model(batch).logits_BTV
        loss = nn.functional.cross_entropy(logits[batch.loss_mask_BT], batch.labels_BT[batch.loss_mask_BT])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


class ConstantModel(nn.Module):
    """The same logits everywhere."""

    device = torch.device("cpu")
    current_execution = Execution()

    def __init__(self, logits_V: Tensor) -> None:
        super().__init__()
        self.config = Seq2SeqConfig(source_vocab_size=9, target_vocab_size=9)
        self.special_ids = self.config.special_ids
        self.logits_V = logits_V

    def exits(self) -> dict[str, bool]:
        return {}

    def n_rounds(self) -> dict[str, int]:
        return {name: plan.n_rounds for name, plan in self.config.plans().items()}

    def forward(self, batch: Batch, *, n_steps: int | None = None) -> ModelOutput:
        stacks = {name: StackOutput(torch.zeros(*batch.labels_BT.shape, 1)) for name in self.config.stacks()}
        return ModelOutput(self.logits_V.expand(*batch.labels_BT.shape, -1), stacks)

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        return Cache()

    def step(self, ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
        return self.logits_V.expand(ids_BT.shape[0], -1)
