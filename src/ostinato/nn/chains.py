"""Sub-layers of one new position a sentence as calls of compiled kernels: what cached decoding does at every token.

A token meets few rows and many small operations: what takes time then is to say what is to be done. Sub-layers that
follow each other are one call, norms, residuals and experts included, where attention knows no relative positions and
`ostinato.nn.links` knows all modules. Where there are more rows, keys and values are read by a kernel, and the rest is
the depth loop's own code (`ostinato.nn.stack`), which is the plain twin of all of it. What a chain does leaves no
records of routing.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import TYPE_CHECKING, NamedTuple

import torch

from ostinato.kernels import (
    MOST_ROWS,
    AttentionLink,
    CachedKeys,
    Chain,
    FeedForwardLink,
    compiled_session,
)
from ostinato.nn.bank import Banks
from ostinato.nn.cache import KeyValues, keys_of
from ostinato.nn.keys_in_place import KeyValuesInPlace
from ostinato.nn.links import attention_link, feed_forward_link
from ostinato.nn.relative import RelativePositions
from ostinato.nn.shapes import Bool, Float, Tensor
from ostinato.plan import Step, Use

if TYPE_CHECKING:
    from ostinato.nn.passes import Here, Pass

_MORE_OF_EXPERTS = 8
"""Times as many rows, where all are experts: plain code sorts and gathers them."""
_Place = tuple[Step, Use]


class _Prepared(NamedTuple):
    """A chain, how many times `MOST_ROWS` it takes, and where in it attention stands."""

    chain: Chain
    more_rows: int
    self_attention: list[tuple[int, _Place]]
    cross_attention: list[tuple[int, _Place]]


class HaltedKeys(NamedTuple):
    """Keys and values of rows that were gathered away, `[L, 2 H K]`: of the first groups of them, and their places."""

    n_groups: int
    places_L: Tensor
    kv_LJ: Tensor


class Chains:
    """The chains of one stack, each prepared when it is first wanted.

    Args:
        banks: where the weights are; they stay as they are while this lives. is_pre_norm: placement of the norms.
    """

    def __init__(self, banks: Banks, *, is_pre_norm: bool) -> None:
        self._banks, self._is_pre_norm = banks, is_pre_norm
        self._prepared: dict[tuple[int, int, str], _Prepared | None] = {}

    def reads(self, use: Use) -> bool:
        """Return whether kernels can read the keys of a self-attention, dense or of experts."""
        relation = self._banks.relation(use.position)
        return relation is None or type(relation) is RelativePositions

    def run(self, states_ND: Float[Tensor, "N D"], places: Sequence[_Place], run: Pass, here: Here) -> Tensor | None:
        """Return the states after some sub-layers that follow each other; None where plain code must run them."""
        (first, use), (last, _) = places[0], places[-1]
        key = first.index, last.index, use.kind if len(places) == 1 else ""
        if key not in self._prepared:
            self._prepared[key] = self._prepare(places)
        prepared = self._prepared[key]
        if prepared is None or states_ND.shape[0] > MOST_ROWS * prepared.more_rows:
            return None
        chain, _, of_self, of_cross = prepared
        shown_ND: Tensor | None = here.around.visible(states_ND)
        if shown_ND is states_ND:
            shown_ND = None
        if of_self and not self._can_write(of_self, run, shown_ND):
            return None
        for index, (step, use) in of_self:
            keys = self.next_keys(step, run, here)
            if here.halted:
                self._write_halted(step, use, run, here)
            chain.read(index, keys)
        for index, (_, use) in of_cross:
            chain.read(index, self.memory_keys(use, run, here))
        return chain(states_ND.contiguous(), None if shown_ND is None else shown_ND.contiguous())

    def _can_write(self, of_self: list[tuple[int, _Place]], run: Pass, shown_ND: Tensor | None) -> bool:
        """Return whether a chain makes keys and values of what is to be seen of its rows."""
        if shown_ND is not None and [index for index, _ in of_self] != [0]:
            return False
        return all(self.is_in_place(step, use, run) for _, (step, use) in of_self)

    def fill(self, step: Step, use: Use, run: Pass, here: Here) -> None:
        """Put keys and values of the new position into the cache of a step in which no row takes part any more."""
        self.next_keys(step, run, here)
        if here.halted:
            self._write_halted(step, use, run, here)

    def _write_halted(self, step: Step, use: Use, run: Pass, here: Here) -> None:
        """Put keys and values of rows that were gathered away at the new position, of what the rows look like since.

        They are made once by the same weights (and a norm before them).
        """
        maker = keys_of(use, is_pre_norm=self._is_pre_norm)
        known = run.halted_keys.get(maker)
        n_known = 0 if known is None else known.n_groups
        if known is None or n_known < len(here.halted):
            seen_LD = torch.cat([rows.seen_LD for rows in here.halted[n_known:]])
            if self._is_pre_norm and use.norm is not None:
                seen_LD = self._banks.norm[use.norm](seen_LD)
            made_LJ = self._banks.attention(use.kind, use.weights).keys_values(seen_LD)
            made_LJ = made_LJ if known is None else torch.cat([known.kv_LJ, made_LJ])
            places_L = torch.cat([rows.places_L for rows in here.halted])
            known = run.halted_keys[maker] = HaltedKeys(len(here.halted), places_L, made_LJ)
        newest_2RHK = self._in_place(step, run).newest()
        newest_2RHK[:, known.places_L] = known.kv_LJ.view(-1, 2, *newest_2RHK.shape[2:]).transpose(0, 1)

    def is_in_place(self, step: Step, use: Use, run: Pass) -> bool:
        """Return whether kernels read what this step's self-attention has cached."""
        return isinstance(self.cached(step, use, run), KeyValuesInPlace)

    def cached(self, step: Step, use: Use, run: Pass) -> KeyValues | KeyValuesInPlace:
        """Return the cache of a step's self-attention, made when it is first used."""
        assert run.cache is not None
        if (found := run.cache.self_kv.get(step.index)) is None:
            attention = self._banks.attention(use.kind, use.weights)
            found = KeyValuesInPlace(attention) if self.reads(use) else KeyValues()
            run.cache.self_kv[step.index] = found
        return found

    def next_keys(self, step: Step, run: Pass, here: Here) -> CachedKeys:
        """Return what a kernel reads at the new position, whose keys and values are still to be written."""
        assert run.cache is not None
        kv = self._in_place(step, run)
        return kv.next(here.rows.n_sentences, _in_rows(run.cache.keep_BS), here.rows.index_N)

    def _in_place(self, step: Step, run: Pass) -> KeyValuesInPlace:
        assert run.cache is not None
        kv = run.cache.self_kv[step.index]
        assert isinstance(kv, KeyValuesInPlace)
        return kv

    def memory_keys(self, use: Use, run: Pass, here: Here) -> CachedKeys:
        """Return the keys of the sentences' memory, which have been made."""
        assert run.cache is not None
        kv_2BHSK, found = run.cross_kv[use.weights], run.cache.cross_keys.get(use.weights)
        if found is None or found.kv_2RHSK is not kv_2BHSK:
            attention = self._banks.attention(use.kind, use.weights)
            found = run.cache.cross_keys[use.weights] = CachedKeys(kv_2BHSK, attention.scale, attention.n_choices)
        keep_BS = _in_rows(run.cache.memory_keep_BS)
        return found.see(kv_2BHSK.shape[3], None, keep_BS, here.rows.index_N, run.n_beams)

    def _prepare(self, places: Sequence[_Place]) -> _Prepared | None:
        """Return the chain of some sub-layers; None where kernels do not know one of them."""
        links = [self._link(use) for _, use in places]
        known = [link for link in links if link is not None]
        if len(known) < len(links):
            return None
        of_self, of_cross = (
            [(index, place) for index, place in enumerate(places) if place[1].kind == kind]
            for kind in ("self_attention", "cross_attention")
        )
        more_rows = _MORE_OF_EXPERTS if all(link.call.route for link in known) else 1
        return _Prepared(Chain(known), more_rows, of_self, of_cross)

    def _link(self, use: Use) -> AttentionLink | FeedForwardLink | None:
        norm = None if use.norm is None else self._banks.norm[use.norm]
        if use.delta is not None or not self.reads(use):
            return None
        if use.kind == "ffn":
            module = self._banks.feed_forward(use.weights)
            return feed_forward_link(module, norm, is_before=self._is_pre_norm)
        attention = self._banks.attention(use.kind, use.weights)
        makes_keys = use.kind == "self_attention"
        return attention_link(attention, norm, is_before=self._is_pre_norm, makes_keys=makes_keys)


def chains_of(x: Tensor, banks: Banks, owner: object, *, is_pre_norm: bool) -> Chains | None:
    """Return the chains of a stack, kept as long as weights stay as they are; None where plain code must run.

    Args:
        x: states. owner: whose they are.
    """
    session = None if banks.training else compiled_session(x)
    if session is None:
        return None
    # A chain says what it reads before it is called: every thread needs its own.
    key = owner, get_ident()
    if key not in session.calls:
        session.calls[key] = Chains(banks, is_pre_norm=is_pre_norm)
    found: Chains = session.calls[key]
    return found


def _in_rows(keep_BS: Bool[Tensor, "B S"] | None) -> Bool[Tensor, "B S"] | None:
    """Return a keep mask whose rows lie in one stretch each."""
    if keep_BS is None or (keep_BS.stride(1) == 1 and keep_BS.dtype == torch.bool):
        return keep_BS
    return keep_BS.bool().contiguous()
