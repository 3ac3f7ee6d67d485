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

"none" removes the sub-layer with its residual and its norm. A decoder-only model has shared-dec, no-dec and one-wide
(one wide set in its only stack); an encoder-only model has shared-enc, no-enc and one-wide. A variant changes which
parameter sets the steps use and how wide the shared sets are; all other settings stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple

from ostinato.config.base import inert
from ostinato.config.stack import FeedForwardConfig, StackConfig
from ostinato.errors import Inert, Problem

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

_COMMON_BANK = "both"
"""Bank of the set that both stacks use, where the model names none."""


class _Variant(NamedTuple):
    """What becomes of each stack's feed-forward; a stack that is not named keeps its own."""

    stacks: Mapping[str, Literal["shared", "none"]]
    is_one_set: bool = False
    is_parity: bool = False

    @property
    def shared(self) -> list[str]:
        """Names of the stacks whose steps share a set."""
        return [name for name, change in self.stacks.items() if change == "shared"]


_VARIANTS: dict[FfnVariant, _Variant] = {
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


def _variants_of(stacks: Mapping[str, StackConfig]) -> dict[FfnVariant, _Variant]:
    """Return the variants that a model with these stacks can have."""
    if len(stacks) > 1:
        return _VARIANTS
    (only,) = stacks
    found = {name: variant for name, variant in _VARIANTS.items() if set(variant.stacks) == {only}}
    return found | {"one-wide": _Variant({only: "shared"}, is_parity=True)}


def apply_variant(
    stacks: Mapping[str, StackConfig], name: FfnVariant | None, shared_d_ff: SharedWidth
) -> dict[str, StackConfig]:
    """Return the stacks with a variant applied to their feed-forwards.

    Args:
        name: of the variant; None, or one the model cannot have: the stacks as given (`variant_problems` says why).
        shared_d_ff: width d'_ff of the shared sets. None: as given (one-wide: parity). "parity": so wide that all
            feed-forwards together are as wide as they were before: (N_e + N_d) d_ff where there is one shared set and
            nothing else. That keeps the matrices' parameters; biases and norms differ (the paper, section 2.4, does
            not count them).
    """
    variant = None if name is None else _variants_of(stacks).get(name)
    if variant is None:
        return dict(stacks)
    changed = _changed(stacks, variant)
    width: float | None
    if shared_d_ff == "parity" or (shared_d_ff is None and variant.is_parity):
        width = _parity_width(stacks, changed, variant)
    else:
        width = shared_d_ff
    if width is not None:
        for stack in variant.shared:
            changed[stack] = _with_ffn(changed[stack], d_ff=max(1, round(width)))
    return changed


def variant_problems(
    stacks: Mapping[str, StackConfig], name: FfnVariant | None, shared_d_ff: SharedWidth, path: str
) -> Iterator[Problem]:
    """Yield a variant that the model cannot have, and a width that belongs to no feed-forward."""
    key, known = f"{path}ffn_variant", _variants_of(stacks)
    if name is not None and name not in known:
        lacks = "without an encoder" if "decoder" in stacks else "without a decoder"
        yield Problem(key, name, f"a model {lacks} has only {', '.join(known)}")
        return
    variant = _Variant({}) if name is None else known[name]
    if shared_d_ff is not None and not variant.shared:
        reason = f"is the width of shared feed-forwards, and {key}={name or 'null'} shares none"
        yield Problem(f"{path}shared_d_ff", shared_d_ff, reason)
    if name is None:
        return
    for stack in variant.stacks:
        if stacks[stack].ffn.is_absent:
            reason = f"takes the feed-forwards of {path}{stack}, which has none ({path}{stack}.ffn.share)"
            yield Problem(key, name, reason)
    is_parity = shared_d_ff == "parity" or (shared_d_ff is None and variant.is_parity)
    for stack, change in variant.stacks.items():
        ffn, where = stacks[stack].ffn, f"{path}{stack}.ffn."
        reason = (
            f"has no effect with {key}={name}, which {'shares' if change == 'shared' else 'removes'} these: remove it"
        )
        spread = {"share", "n_unique"}
        useless = type(ffn).model_fields.keys() - {"d_ff"} if change == "none" else {"bank"} | spread
        if is_parity:  # the sets that are replaced say how wide the shared one is
            useless = useless - spread
        elif change == "none":
            useless = useless | {"d_ff"}
        if variant.is_one_set:
            useless = useless - {"bank"}
        yield from inert(ffn, where, reason, but=type(ffn).model_fields.keys() - useless)
        if change == "none" and ffn.kind != "dense":
            yield Inert(f"{where}kind", ffn.kind, reason)
    for stack, config in stacks.items():
        if config.ffn.bank in stacks and config.ffn.bank != stack:
            reason = f"is the name of the other stack's own sets, which {key}={name} spreads by itself: use another"
            yield Problem(f"{path}{stack}.ffn.bank", config.ffn.bank, reason)
    if shared_d_ff == "parity" and variant.shared:
        width = _parity_width(stacks, _changed(stacks, variant), variant)
        if width is not None and width < 1:
            yield Problem(f"{path}shared_d_ff", shared_d_ff, "leaves no width for the shared feed-forwards")


def _changed(stacks: Mapping[str, StackConfig], variant: _Variant) -> dict[str, StackConfig]:
    """Return the stacks with their feed-forwards shared or removed, at the width they have."""
    bank = None
    if variant.is_one_set:
        bank = next((stack.ffn.bank for stack in stacks.values() if stack.ffn.bank is not None), _COMMON_BANK)
    updates: dict[str, dict[str, object]] = {
        "shared": {"share": "all", "n_unique": None, "bank": bank},
        "none": {"share": "none", "n_unique": None},
    }
    changed = {name: _with_ffn(stacks[name], **updates[change]) for name, change in variant.stacks.items()}
    return {name: changed.get(name, stack) for name, stack in stacks.items()}


def _with_ffn(stack: StackConfig, **update: object) -> StackConfig:
    return stack.model_copy(update={"ffn": stack.ffn.model_copy(update=update)})


def _parity_width(
    before: Mapping[str, StackConfig], after: Mapping[str, StackConfig], variant: _Variant
) -> float | None:
    """Return the width at which the shared sets hold what all sets held before; None where a scheme is impossible."""
    try:
        old, new = _sets(before), _sets(after)
    except ValueError:  # A sharing scheme that does not fit its number of steps is a problem of its stack.
        return None
    total = sum(ffn.d_ff for _, ffn in old.values())
    kept = sum(ffn.d_ff for stack, ffn in new.values() if stack not in variant.shared)
    n_shared = sum(stack in variant.shared for stack, _ in new.values())
    return (total - kept) / n_shared if n_shared else None


def _sets(stacks: Mapping[str, StackConfig]) -> dict[tuple[str, int], tuple[str, FeedForwardConfig]]:
    """Return every feed-forward set of a model, by bank and number, with the first stack that uses it."""
    found: dict[tuple[str, int], tuple[str, FeedForwardConfig]] = {}
    for name, stack in stacks.items():
        for number in stack.ffn.sets(stack.n_steps):
            if number is not None:
                found.setdefault((stack.ffn.bank or name, number), (name, stack.ffn))
    return found
