"""What a call is given and returns, between the Hugging Face library's terms and ours."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ostinato.data.batch import Tokens
from ostinato.nn.types import StackOutput

States = bool | Literal["rounds"] | None
"""What `output_hidden_states` asks for: True: the states after every executed step; "rounds": after every round."""
IGNORED = -100
"""A label that does not count, in the Hugging Face library."""


def tokens_of(ids_BT: Tensor, mask_BS: Tensor | None) -> Tokens:
    """Return ids with their mask, whose last columns are theirs; of padding on the left real tokens are counted."""
    if mask_BS is None:
        return Tokens(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))
    keep_BT = mask_BS[:, -ids_BT.shape[1] :].bool()
    is_left_padded = not bool(keep_BT[:, 0].all())
    return Tokens(ids_BT, keep_BT, (keep_BT.long().cumsum(1) - 1).clamp_min(0) if is_left_padded else None)


def wanted(states: States, weights: bool | None) -> list[str]:
    """Return what the model is asked to show: `request` of its call."""
    return ["rounds" if states == "rounds" else "residual"] * bool(states) + ["weights"] * bool(weights)


def states_of(stack: StackOutput, wanted: States) -> Any:
    """Return the states after every executed step, in order, or those that left each round of the loop."""
    if not wanted:
        return None
    if wanted == "rounds":
        return stack.left
    last: dict[int, Tensor] = {}
    for (_, step, _, what), found in stack.captures.items():
        if what == "residual":
            last[step] = found
    return tuple(last[step] for step in sorted(last))


def weights_of(stack: StackOutput, wanted: bool | None, kind: str = "self_attention") -> Any:
    """Return the weights of every executed attention of a kind, in order."""
    if not wanted:
        return None
    captures = stack.captures.items()
    found = {step: x for (_, step, one, what), x in captures if one == kind and what == "weights"}
    return tuple(found[step] for step in sorted(found))


def returned(output: Any, return_dict: bool | None) -> Any:
    """Return an output as it is, or as a tuple where the caller wants one."""
    return output if return_dict is not False else output.to_tuple()
