"""Lists of ids as one tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ostinato.data.tokenizer import PAD_ID


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Return the numbers side by side, padded on the right, and where they are real: int64 and bool, [B, T]."""
    lengths = np.fromiter(map(len, sequences), dtype=np.int64, count=len(sequences))
    keep_BT = np.arange(lengths.max()) < lengths[:, None]
    ids_BT = np.full(keep_BT.shape, PAD_ID, dtype=np.int64)
    ids_BT[keep_BT] = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in sequences])
    return torch.from_numpy(ids_BT), torch.from_numpy(keep_BT)
