"""A toy model: the next token's logits are a row of a random table, chosen by the source and every token before."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ostinato.config.decoding import LengthPenaltyConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.data.batch import Batch, Tokens
from ostinato.data.tokenizer import BOS_ID, EOS_ID
from ostinato.decoding.beams import length_penalty
from ostinato.nn.cache import Cache

N_STATES = 997


@dataclass(slots=True)
class TableCache(Cache):
    """The state of every hypothesis; it follows the hypotheses as a transformer's keys and values do."""

    state_B: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    def reorder(self, rows_B: Tensor) -> None:
        self.state_B = self.state_B.index_select(0, rows_B)


class TableModel:
    """Implements `encode` and `step`; `ban` lists tokens that cost `ban_cost` nats more."""

    special_ids = SpecialIds()

    def __init__(self, vocab_size: int, seed: int = 0, spread: float = 1.5, bias: dict[int, float] | None = None):
        generator = torch.Generator().manual_seed(seed)
        self.logits_NV = torch.randn(N_STATES, vocab_size, generator=generator) * spread
        for token, value in (bias or {}).items():
            self.logits_NV[:, token] += value
        self.n_encoded = 0
        self.n_rows: list[int] = []

    @staticmethod
    def next_state(state_B: Tensor, ids_B: Tensor) -> Tensor:
        return (state_B * 31 + ids_B * 7 + 11) % N_STATES

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> TableCache:
        self.n_encoded += 1
        state_B = torch.zeros(batch.n_sentences, dtype=torch.long)
        if batch.source is not None:
            for ids_B, keep_B in zip(batch.source.ids_BT.T, batch.source.keep_BT.T, strict=True):
                state_B = torch.where(keep_B, self.next_state(state_B, ids_B), state_B)
        return TableCache(state_B=state_B, n_steps=n_steps)

    def step(self, ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
        assert isinstance(cache, TableCache)
        assert ids_BT.shape[0] == cache.state_B.shape[0]
        self.n_rows.append(ids_BT.shape[0])
        keep_BT = torch.ones_like(ids_BT, dtype=torch.bool) if keep_BT is None else keep_BT
        for ids_B, keep_B in zip(ids_BT.T, keep_BT.T, strict=True):
            cache.state_B = torch.where(keep_B, self.next_state(cache.state_B, ids_B), cache.state_B)
        cache.length += ids_BT.shape[1]
        return self.logits_NV[cache.state_B]

    def log_prob(self, source: list[int], prefix: list[int], ids: list[int]) -> float:
        """Sum of log-probabilities of `ids` after `prefix`, one token at a time."""
        state = 0
        for token in source + prefix:
            state = (state * 31 + token * 7 + 11) % N_STATES
        total = 0.0
        for token in ids:
            total += float(torch.log_softmax(self.logits_NV[state], 0)[token])
            state = (state * 31 + token * 7 + 11) % N_STATES
        return total


def pad(rows: list[list[int]], *, left: bool = False) -> Tokens:
    width = max(map(len, rows))
    ids = [[0] * (width - len(r)) + r if left else r + [0] * (width - len(r)) for r in rows]
    keep = [
        [False] * (width - len(r)) + [True] * len(r) if left else [True] * len(r) + [False] * (width - len(r))
        for r in rows
    ]
    return Tokens(torch.tensor(ids), torch.tensor(keep))


def sources(rows: list[list[int]], indices: tuple[int, ...] = ()) -> Batch:
    """A batch to decode: sources, and targets of nothing but the begin symbol."""
    begin = torch.ones(len(rows), 1, dtype=torch.long)
    return Batch(
        target=Tokens(begin, begin.bool()),
        labels_BT=torch.full_like(begin, 2),
        loss_mask_BT=begin.bool(),
        source=pad(rows),
        indices=indices,
    )


Scored = list[tuple[float, list[int]]]


def plain_beams(
    model: TableModel, source: list[int], beam: int, limit: int, penalty: LengthPenaltyConfig
) -> tuple[Scored, Scored]:
    """All that finish within `limit` tokens by score, and what lives then by log-probability."""
    live: Scored = [(0.0, [])]
    finished: Scored = []
    for length in range(1, limit + 1):
        candidates = [
            (model.log_prob(source, [BOS_ID], [*ids, token]), [*ids, token])
            for _, ids in live
            for token in range(2, model.logits_NV.shape[1])
        ]
        candidates.sort(key=lambda c: -c[0])
        for log_prob, ids in candidates[:beam]:
            if ids[-1] == EOS_ID:
                finished.append((log_prob / length_penalty(penalty, length), ids[:-1]))
        live = [c for c in candidates if c[1][-1] != EOS_ID][:beam]
    return finished, live
