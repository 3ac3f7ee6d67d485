"""What a call is given and returns, between the Hugging Face library's terms and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ostinato.data.batch import Tokens
from ostinato.errors import ConfigError, Problem
from ostinato.nn.positions import positions_where_gaps
from ostinato.nn.types import StackOutput

States = bool | Literal["rounds"] | None
"""What `output_hidden_states` asks for: True: the states after every executed step; "rounds": after every round."""
IGNORED = -100
"""A label that does not count, in the Hugging Face library."""
_WITHOUT_EFFECT = (
    "assistant_tokenizer",
    "cache_position",
    "is_first_iteration",
    "next_sequence_length",
    "token_type_ids",
    "tokenizer",
    "use_cache",
)
"""What the library's own code hands to every model, and ours compute without: tokenizers are for its `stop_strings`."""


def check_others(others: Mapping[str, Any], mask_BS: Tensor | None, *, is_start: bool = True) -> None:
    """Refuse arguments that a call does not know: another name, or what other models compute by and ours do not.

    Args:
        others: those that are left, by name. mask_BS: the attention mask. is_start: there is no cache.

    Raises:
        ConfigError: all of them; positions that are not the numbers of the real tokens; a mask of pairs of columns.
    """
    given = {name: value for name, value in others.items() if value is not None and name not in _WITHOUT_EFFECT}
    places = given.pop("position_ids", None)
    problems = [Problem(name, type(value).__name__, "is no argument of this model") for name, value in given.items()]
    if mask_BS is not None and mask_BS.ndim != 2:
        problems.append(Problem("attention_mask", list(mask_BS.shape), "must be of columns: [B, T]"))
    elif places is not None and not _are_consecutive(places, mask_BS, is_start):
        reason = "must count the real tokens of every row: sequences that are packed into one are not told apart"
        problems.append(Problem("position_ids", list(places.shape), reason))
    if problems:
        raise ConfigError(problems)


def _are_consecutive(places_BT: Tensor, mask_BS: Tensor | None, is_start: bool) -> bool:
    keep_BT = torch.ones_like(places_BT, dtype=torch.bool)
    if mask_BS is not None and mask_BS.shape[-1] >= places_BT.shape[-1]:
        keep_BT = mask_BS[:, -places_BT.shape[-1] :].bool()
    if is_start:
        return bool(((places_BT == keep_BT.long().cumsum(-1) - 1) | ~keep_BT).all())
    return bool(((places_BT.diff(dim=-1) == 1) | ~(keep_BT[:, 1:] & keep_BT[:, :-1])).all())


def tokens_of(ids_BT: Tensor, mask_BS: Tensor | None) -> Tokens:
    """Return ids with their mask, the last T columns of `mask_BS`; None: no padding.

    Where padding stands before real tokens, positions count the real ones only.
    """
    if mask_BS is None:
        return Tokens(ids_BT, torch.ones_like(ids_BT, dtype=torch.bool))
    keep_BT = mask_BS[:, -ids_BT.shape[1] :].bool()
    return Tokens(ids_BT, keep_BT, positions_where_gaps(keep_BT))


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
