"""What a search starts from: the target's first tokens, padded on the left."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostinato.data.batch import Batch, Tokens
from ostinato.data.tokenizer import BOS_ID, PAD_ID
from ostinato.errors import DataError


def make_prompt(batch: Batch, given: Tokens | None) -> Tokens:
    """Return the first step of a search.

    That is the begin symbol, or what is `given` instead; where the batch's pairs are one sequence, the source with its
    end symbol comes before it.

    Raises:
        DataError: `given` does not fit the batch or is padded on the right.
    """
    device = batch.target.ids_BT.device
    if given is None:
        ids_B1 = torch.full((batch.n_sentences, 1), BOS_ID, device=device)
        given = Tokens(ids_B1, torch.ones_like(ids_B1, dtype=torch.bool))
    else:
        _check(given, batch.n_sentences)
    if batch.prefix_lengths_B is None:
        return given
    sources = [real[:n] for real, n in zip(_real_ids(batch.target), batch.prefix_lengths_B.tolist(), strict=True)]
    return left_padded([source + real for source, real in zip(sources, _real_ids(given), strict=True)], device)


def left_padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tokens:
    """Return sequences side by side, padded on the left."""
    width = max(map(len, sequences))
    ids_BT = torch.tensor([[PAD_ID] * (width - len(ids)) + list(ids) for ids in sequences], device=device)
    n_padding_B1 = torch.tensor([[width - len(ids)] for ids in sequences], device=device)
    return Tokens(ids_BT, torch.arange(width, device=device) >= n_padding_B1)


def _real_ids(tokens: Tokens) -> list[list[int]]:
    return [
        [i for i, is_real in zip(ids, keep, strict=True) if is_real]
        for ids, keep in zip(tokens.ids_BT.tolist(), tokens.keep_BT.tolist(), strict=True)
    ]


def _check(given: Tokens, n_sentences: int) -> None:
    n_rows, n_columns = given.ids_BT.shape
    if n_rows != n_sentences:
        raise DataError(f"the prefix has {n_rows} rows, but the batch has {n_sentences} sentences")
    if n_columns == 0 or not bool(given.keep_BT[:, -1].all()):
        raise DataError("every row of a prefix must end in a real token: pad it on the left, and begin it with <bos>")
