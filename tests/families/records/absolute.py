"""Families with absolute positions: GPT-2, BERT, ALBERT, BART, Marian.

Their classes number columns where no positions are given, whatever the mask says: so do these calls, of batches with
padding on the left.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from family import PLAIN, RIGHT, Family, Variant
from torch import Tensor

from ostinato.data.batch import Batch, Tokens
from ostinato.interop.names.encoders import albert, bert
from ostinato.interop.names.gpt2 import gpt2
from ostinato.interop.names.pairs import bart
from ostinato.models import Model


def by_column(model: Model, batch: Batch) -> Tensor:
    """Return the logits, every token's position being its column."""

    def numbered(tokens: Tokens) -> Tokens:
        columns = torch.arange(tokens.ids_BT.shape[1]).expand_as(tokens.ids_BT)
        return replace(tokens, positions_BT=columns)

    source = None if batch.source is None else numbered(batch.source)
    return model(replace(batch, target=numbered(batch.target), source=source)).logits_BTV  # type: ignore[no-any-return]


LEFT = Variant("left", inputs="left/", run=by_column, checks=("numbers", "rows"))
COUNTED = Variant("left_positions", inputs="left_positions/")

FAMILIES = [
    Family("gpt2", "dense/gpt2-toy", gpt2, variants=(PLAIN, LEFT, COUNTED, RIGHT)),
    Family("bert", "dense/bert-toy", bert, variants=(PLAIN, LEFT, RIGHT)),
    Family("albert", "dense/albert-toy", albert, variants=(PLAIN, LEFT, RIGHT)),
    Family("bart", "dense/bart-toy", bart, variants=(PLAIN, LEFT, RIGHT)),
    Family("marian", "dense/marian-toy", bart, variants=(PLAIN, LEFT, RIGHT)),
]
