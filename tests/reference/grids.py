"""Attention over whole sentences `[B, T, D]`, put together from its projections of rows."""

from __future__ import annotations

from torch import Tensor

from ostinato.nn.attention import Attention
from ostinato.nn.experts import Decision, ExpertAttention

AnyAttention = Attention | ExpertAttention


def by_head(
    module: AnyAttention, x_BTD: Tensor, y_BSD: Tensor | None = None, decision: Decision | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries of x, keys and values of y (None: of x), by head."""
    if y_BSD is None:
        q_NI, kv_NI = module.queries_keys_values(x_BTD.flatten(0, 1), decision)
        kv_BSI = kv_NI.view(*x_BTD.shape[:2], -1)
    else:
        q_NI, kv_BSI = module.queries(x_BTD.flatten(0, 1), decision), module.keys_values(y_BSD)
    return module.query_heads(q_NI.view(*x_BTD.shape[:2], -1)), *module.key_value_heads(kv_BSI)


def put_out(module: AnyAttention, x_BTI: Tensor, decision: Decision | None = None) -> Tensor:
    """Return the output for what every token read, `[B, T, D]`."""
    return module.output(x_BTI.flatten(0, 1), decision).view(*x_BTI.shape[:2], -1)
