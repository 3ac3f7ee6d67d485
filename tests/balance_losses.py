"""Every balance loss, as a function of the routings of one router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from ostinato.config.training import BALANCE_LOSSES
from ostinato.nn import balance
from ostinato.nn.types import Routing

LOSSES: dict[str, Callable[[Sequence[Routing] | balance.JoinedRoutings], Tensor]] = {
    "switch": balance.switch,
    "hypersphere": partial(balance.hypersphere, temperature=0.3),
    "mutual_information": balance.mutual_information,
    "z": balance.z,
    "importance": balance.importance,
    "sequence_entropy": balance.sequence_entropy,
}
assert set(LOSSES) == set(BALANCE_LOSSES)
