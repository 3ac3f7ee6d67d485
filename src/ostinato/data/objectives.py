"""What is predicted of a text: masked tokens, or what follows a prefix; a function of the text and of random numbers.

Masked language modelling (Devlin et al. 2019): of n tokens of a row that are no special symbols, max(1, round(rate n))
are labels. Of these 1 - keep - random are replaced by the mask symbol, `random` by a token drawn from the vocabulary,
and `keep` stay. With mean_span m above 1 whole spans are chosen, of lengths drawn from a geometric distribution of that
mean, cut at 10 (SpanBERT, Joshi et al. 2020), until that many tokens are; a span is replaced or kept as a whole.

Prefix language modelling (Raffel et al. 2020, 3.2.3): the first n tokens see each other, n drawn evenly from 1 to one
less than all, and what follows is predicted.

In training the random numbers depend on the run's seed, the epoch and the row; in evaluation on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from ostinato.config.data import DataConfig, MaskingConfig
from ostinato.config.model import ModelConfig
from ostinato.data.collate import IGNORED_LABEL, LabelledRow
from ostinato.data.tokenizer import SPECIAL_TOKENS
from ostinato.data.tokenizers import Tokenizers

Objective = Callable[[LabelledRow, np.random.Generator], LabelledRow]
_LONGEST_SPAN = 10


def objective_of(config: ModelConfig, data: DataConfig, tokenizers: Tokenizers) -> Objective | None:
    """Return the function that masks texts for a model's training; None where it reads them as they are."""
    if config.reads == "masked":
        source = tokenizers.source
        return partial(
            mask_tokens,
            masking=data.masking,
            n_ids=source.vocab_size,
            mask_id=source.special_ids.mask,
            special=source.special_tokens,
        )
    return split_prefix if config.sees_prefix else None


def mask_tokens(
    row: LabelledRow,
    generator: np.random.Generator,
    *,
    masking: MaskingConfig,
    n_ids: int,
    mask_id: int | None = None,
    special: Collection[int] = SPECIAL_TOKENS,
) -> LabelledRow:
    """Return a row with some tokens masked, and those as its labels.

    Args:
        n_ids: of the tokenizer. mask_id: the mask symbol's; None: the one after the tokenizer's.
        special: ids that are never masked or drawn.
    """
    ids = np.array(row.ids)
    special_ids = np.fromiter(special, dtype=np.int64)
    (maskable,) = np.nonzero(~np.isin(ids, special_ids))
    if not len(maskable):
        return replace(row, labels=[IGNORED_LABEL], places=[0])
    wanted = max(1, round(masking.rate * len(maskable)))
    spans = _draw_spans(len(maskable), wanted, masking.mean_span, generator)
    chosen = maskable[np.concatenate(spans)]
    labels = ids[chosen].tolist()
    # One uniform number a span decides for all its tokens: kept, masked, or replaced by random tokens.
    uniform = np.repeat(generator.random(len(spans)), [len(span) for span in spans])
    ordinary = _ordinary(n_ids, tuple(sorted(special)))
    drawn = ordinary[generator.integers(len(ordinary), size=len(chosen))]
    kept, random = uniform < masking.keep, uniform >= 1.0 - masking.random
    ids[chosen] = np.where(kept, ids[chosen], np.where(random, drawn, n_ids if mask_id is None else mask_id))
    return replace(row, ids=ids.tolist(), labels=labels, places=chosen.tolist())


@lru_cache(maxsize=4)
def _ordinary(n_ids: int, special: tuple[int, ...]) -> np.ndarray:
    """Return the ids that are not special, in order. Cached: for a large vocabulary it is most of the work of a row."""
    return np.setdiff1d(np.arange(n_ids), special, assume_unique=True)


def _draw_spans(n: int, wanted: int, mean: float, generator: np.random.Generator) -> list[np.ndarray]:
    """Return disjoint runs of the numbers below n, `wanted` of them in all."""
    if mean == 1.0:
        return list(np.sort(generator.permutation(n)[:wanted])[:, None])
    free = np.ones(n, dtype=bool)
    spans = []
    left = wanted
    while left:
        length = min(int(generator.geometric(1.0 / mean)), _LONGEST_SPAN, left)
        start = int(generator.choice(np.nonzero(free)[0]))
        run = start + np.arange(length)
        run = run[run < n]
        # A span ends before the first token that another span has: the product is 0 from there on.
        run = run[np.cumprod(free[run]).astype(bool)]
        free[run] = False
        left -= len(run)
        spans.append(run)
    return spans


def split_prefix(row: LabelledRow, generator: np.random.Generator) -> LabelledRow:
    """Return a text whose first tokens are a prefix: the label of the prefix's last token is the first that counts.

    A row that has a prefix, of a text that is continued, stays as it is.
    """
    if row.n_prefix is not None:
        return row
    n_prefix = int(generator.integers(1, max(len(row.ids), 2)))
    labels = [IGNORED_LABEL] * (n_prefix - 1) + row.labels[n_prefix - 1 :]
    return replace(row, labels=labels, n_prefix=n_prefix, size=None)
