"""The feed-forward variants of One Wide FFN by name (Pessoa Pires et al. 2023, table 1 and table 3).

    name                    encoder feed-forward        decoder feed-forward
    shared-enc              one set for all steps       as given
    shared-dec              as given                    one set for all steps
    shared-enc-shared-dec   one set                     another set
    shared-enc-dec          one set, which both stacks use
    no-enc                  none                        as given
    no-dec                  as given                    none
    no-enc-no-dec           none                        none
    shared-enc-no-dec       one set                     none
    no-enc-shared-dec       none                        one set
    one-wide                one set, as wide as all feed-forwards it replaces together; none in the decoder

"none" takes the sub-layer with its residual and its norm. Decoder-only models have shared-dec, no-dec and one-wide,
which there is one wide set in the decoder. A variant changes how the sets of a model are spread and how wide the shared
ones are; everything else stays as the model has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

from ostinato.errors import Problem

if TYPE_CHECKING:
    from ostinato.config.model import FeedForwardConfig, StackConfig

FfnVariant = Literal[
    "shared-enc",
    "shared-dec",
    "shared-enc-shared-dec",
    "shared-enc-dec",
    "no-enc",
    "no-dec",
    "no-enc-no-dec",
    "shared-enc-no-dec",
    "no-enc-shared-dec",
    "one-wide",
]
SharedWidth = int | Literal["parity"] | None

_COMMON = "both"
"""Bank of the set that both stacks use, where the model names none."""


class _Variant(NamedTuple):
    """What becomes of each stack's feed-forward; stacks that are not named keep theirs."""

    sides: Mapping[str, Literal["shared", "none"]]
    is_one_set: bool = False
    is_parity: bool = False


_SEQ2SEQ: dict[FfnVariant, _Variant] = {
    "shared-enc": _Variant({"encoder": "shared"}),
    "shared-dec": _Variant({"decoder": "shared"}),
    "shared-enc-shared-dec": _Variant({"encoder": "shared", "decoder": "shared"}),
    "shared-enc-dec": _Variant({"encoder": "shared", "decoder": "shared"}, is_one_set=True),
    "no-enc": _Variant({"encoder": "none"}),
    "no-dec": _Variant({"decoder": "none"}),
    "no-enc-no-dec": _Variant({"encoder": "none", "decoder": "none"}),
    "shared-enc-no-dec": _Variant({"encoder": "shared", "decoder": "none"}),
    "no-enc-shared-dec": _Variant({"encoder": "none", "decoder": "shared"}),
    "one-wide": _Variant({"encoder": "shared", "decoder": "none"}, is_parity=True),
}
_DECODER_ONLY: dict[FfnVariant, _Variant] = {
    "shared-dec": _Variant({"decoder": "shared"}),
    "no-dec": _Variant({"decoder": "none"}),
    "one-wide": _Variant({"decoder": "shared"}, is_parity=True),
}
_ENCODER_ONLY: dict[FfnVariant, _Variant] = {
    "shared-enc": _Variant({"encoder": "shared"}),
    "no-enc": _Variant({"encoder": "none"}),
    "one-wide": _Variant({"encoder": "shared"}, is_parity=True),
}


def spread_feed_forwards(
    stacks: Mapping[str, StackConfig], variant: FfnVariant | None, shared_d_ff: SharedWidth
) -> dict[str, StackConfig]:
    """Return the stacks with a variant applied to their feed-forwards.

    Args:
        variant: its name; None, or one the model cannot have: the stacks as given (`variant_problems` says why).
        shared_d_ff: width d'_ff of the shared sets. None: as given (one-wide: parity). "parity": so wide that all
            feed-forwards together are as wide as they were before: (N_e + N_d) d_ff where there is one shared set and
            nothing else. That keeps the matrices' parameters; biases and norms differ (the paper, section 2.4, does
            not count them).
    """
    known = _variants(stacks).get(variant) if variant is not None else None
    if known is None:
        return dict(stacks)
    spread = {name: _spread(stack, known, name, stacks) for name, stack in stacks.items()}
    width = "parity" if shared_d_ff is None and known.is_parity else shared_d_ff
    if width == "parity":
        width = _parity_width(stacks, spread, known)
    if width is None:
        return spread
    return {
        name: _with_ffn(stack, d_ff=width) if known.sides.get(name) == "shared" else stack
        for name, stack in spread.items()
    }


def variant_problems(
    stacks: Mapping[str, StackConfig], variant: FfnVariant | None, shared_d_ff: SharedWidth, path: str
) -> Iterator[Problem]:
    """Yield a variant that the model cannot have, and a width that nothing has."""
    variants = _variants(stacks)
    key = f"{path}ffn_variant"
    if variant is not None and variant not in variants:
        lacks = "without an encoder" if "decoder" in stacks else "without a decoder"
        yield Problem(key, variant, f"a model {lacks} has only {', '.join(variants)}")
        return
    sides = variants[variant].sides if variant is not None else {}
    shared = [name for name, side in sides.items() if side == "shared"]
    if shared_d_ff is not None and not shared:
        reason = f"is the width of shared feed-forwards, and {key}={variant or 'null'} shares none"
        yield Problem(f"{path}shared_d_ff", shared_d_ff, reason)
    for name in sides:
        ffn = stacks[name].ffn
        if ffn.share == "none" or (isinstance(ffn.share, list) and not any(s is not None for s in ffn.share)):
            reason = f"takes the feed-forwards of {path}{name}, which has none ({path}{name}.ffn.share)"
            yield Problem(key, variant, reason)
    for name, stack in stacks.items():
        if variant is not None and stack.ffn.bank in stacks and stack.ffn.bank != name:
            reason = f"is the name of the other stack's own sets, which {key}={variant} spreads by itself: use another"
            yield Problem(f"{path}{name}.ffn.bank", stack.ffn.bank, reason)
    if variant is not None and shared and shared_d_ff == "parity" and _room(stacks, variants[variant]) < len(shared):
        yield Problem(f"{path}shared_d_ff", shared_d_ff, "leaves no width for the shared feed-forwards")


def _variants(stacks: Mapping[str, StackConfig]) -> dict[FfnVariant, _Variant]:
    if len(stacks) == 1:
        return _ENCODER_ONLY if "encoder" in stacks else _DECODER_ONLY
    return _SEQ2SEQ


def _spread(stack: StackConfig, variant: _Variant, name: str, stacks: Mapping[str, StackConfig]) -> StackConfig:
    """Return a stack whose feed-forward is shared, gone, or as it was."""
    side = variant.sides.get(name)
    if side is None:
        return stack
    if side == "none":
        return _with_ffn(stack, share="none", n_unique=None)
    bank = None
    if variant.is_one_set:
        bank = next((s.ffn.bank for s in stacks.values() if s.ffn.bank is not None), _COMMON)
    return _with_ffn(stack, share="all", n_unique=None, bank=bank)


def _with_ffn(stack: StackConfig, **update: object) -> StackConfig:
    return stack.model_copy(update={"ffn": stack.ffn.model_copy(update=update)})


def _parity_width(before: Mapping[str, StackConfig], after: Mapping[str, StackConfig], variant: _Variant) -> int | None:
    """Return the width at which shared sets hold what all sets held before; None where a scheme is impossible."""
    try:
        left, n_shared = _left_for_shared(before, after, variant)
    except ValueError:
        return None
    return max(1, round(left / n_shared)) if n_shared else None


def _room(stacks: Mapping[str, StackConfig], variant: _Variant) -> int:
    """Return the width that parity leaves to all shared sets together; that of one where a scheme is impossible."""
    spread = {name: _spread(stack, variant, name, stacks) for name, stack in stacks.items()}
    try:
        return _left_for_shared(stacks, spread, variant)[0]
    except ValueError:
        return len(stacks)


def _left_for_shared(
    before: Mapping[str, StackConfig], after: Mapping[str, StackConfig], variant: _Variant
) -> tuple[int, int]:
    """Return the width of all sets before less that of the sets that stay, and the number of shared sets."""
    old, new = _sets(before), _sets(after)
    shared = {key for key, (name, _) in new.items() if variant.sides.get(name) == "shared"}
    kept = sum(ffn.d_ff for key, (_, ffn) in new.items() if key not in shared)
    return sum(ffn.d_ff for _, ffn in old.values()) - kept, len(shared)


def _sets(stacks: Mapping[str, StackConfig]) -> dict[tuple[str, int], tuple[str, FeedForwardConfig]]:
    """Return every feed-forward set of a model, by bank and number, with the first stack that uses it."""
    found: dict[tuple[str, int], tuple[str, FeedForwardConfig]] = {}
    for name, stack in stacks.items():
        for number in stack.ffn.sets(stack.n_steps):
            if number is not None:
                found.setdefault((stack.ffn.bank or name, number), (name, stack.ffn))
    return found
