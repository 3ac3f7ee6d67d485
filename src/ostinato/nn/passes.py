"""What one run of the depth loop knows beside the states: of the whole pass, and of the round it is in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ostinato.nn.attention import Visibility
from ostinato.nn.cache import Cache, KeysOf, keys_of
from ostinato.nn.chains import Chains, HaltedKeys
from ostinato.nn.halting import HaltingPass, Round
from ostinato.nn.rows import Rows, kept_and_halted
from ostinato.nn.shapes import Bool, Int, Tensor
from ostinato.nn.types import CaptureKey, Routing
from ostinato.plan import Plan


@dataclass(frozen=True, slots=True)
class Halted:
    """Rows that were gathered away before a round.

    Args:
        round: 0-based. places_L: b T + t of every row. seen_LD: what they look like to others from then on.
    """

    round: int
    places_L: Int[Tensor, "L"]
    seen_LD: Tensor


@dataclass(frozen=True, slots=True)
class Known:
    """Keys and values of all tokens as one parameter set last made them, in the 0-based round `round`.

    Args:
        away: those of tokens that had been gathered away by then, which stay what they are: (places, rows) each.
    """

    round: int
    kv_MI: Tensor
    away: tuple[tuple[Tensor, Tensor], ...] = ()


@dataclass(slots=True)
class Pass:
    """One pass; made anew for every call.

    `positions` are those of the new columns, `key_positions` those of all visible columns (cached ones first).
    `visibility` is that of all new columns as queries. `keep_BT` tells the real ones among them; None where all are.
    `chains` run what compiled kernels can, where they may.
    `known` is what rounds to come may reuse of keys and values, `last_uses` the last step at which each is read,
    `halted_keys` what chains reuse of tokens that have halted.
    """

    visibility: Visibility
    positions: Int[Tensor, "#B T"]
    key_positions: Int[Tensor, "#B S"]
    keep_BT: Bool[Tensor, "B T"] | None = None
    memory_BSD: Tensor | None = None
    memory_visibility: Visibility = field(default_factory=Visibility)
    cache: Cache | None = None
    cross_kv: dict[str, Tensor] = field(default_factory=dict)
    chains: Chains | None = None
    biases: dict[str, Tensor | None] = field(default_factory=dict)
    known: dict[KeysOf, Known] = field(default_factory=dict)
    last_uses: Mapping[KeysOf, int] = field(default_factory=dict)
    halted_keys: dict[KeysOf, HaltedKeys] = field(default_factory=dict)
    request: Collection[str] = ()
    captures: dict[CaptureKey, Tensor] = field(default_factory=dict)
    routings: list[Routing] = field(default_factory=list)

    @property
    def n_beams(self) -> int:
        """Hypotheses that share a sentence's memory."""
        return 1 if self.cache is None else self.cache.n_beams

    @property
    def single(self) -> Chains | None:
        """What runs the sub-layers of a single new column by compiled kernels; None: plain code does."""
        return self.chains if self.positions.shape[1] == 1 else None


@dataclass(frozen=True, slots=True)
class Here:
    """The round a step runs in. It never changes, so that the step may be recomputed when later rounds have run.

    Args:
        index: of the round, 0-based. around: how it looks to its rows. rows: the tokens it computes.
        keep_N: real ones among them; None where all are.
        positions_BA, visibility: of the rows as queries.
        halted: all that were gathered away so far.
        known: what earlier steps knew of keys and values.
    """

    index: int
    around: Round
    rows: Rows
    keep_N: Bool[Tensor, "N"] | None
    positions_BA: Int[Tensor, "#B A"]
    visibility: Visibility
    halted: tuple[Halted, ...] = ()
    known: dict[KeysOf, Known] = field(default_factory=dict)

    @classmethod
    def at(cls, index: int, around: Round, rows: Rows, run: Pass, halted: tuple[Halted, ...]) -> Here:
        """Return a round of a pass, given who is left in it."""
        keep_N = None
        if run.keep_BT is not None and rows.index_N is None:
            keep_N = run.keep_BT.flatten()
        if (columns_BA := rows.columns()) is None:
            return cls(index, around, rows, keep_N, run.positions, run.visibility, halted)
        positions_BT = run.positions.expand(rows.n_sentences, -1)
        visibility = replace(run.visibility, columns_BA=columns_BA)
        return cls(index, around, rows, keep_N, positions_BT.gather(1, columns_BA), visibility, halted)

    def knowing(self, run: Pass) -> Here:
        """Return the same round at a later step."""
        return replace(self, known=dict(run.known)) if run.known else self

    @property
    def weight_N(self) -> Tensor | None:
        """What is left of every row for this round; None: 1."""
        return self.keep_N if self.around.weight_N is None else self.around.weight_N


def last_uses(plan: Plan, *, is_pre_norm: bool) -> dict[KeysOf, int]:
    """Return the last step at which every maker of keys and values is used."""
    return {
        keys_of(use, is_pre_norm=is_pre_norm): step.index
        for step in plan.steps
        for use in step.uses
        if use.kind == "self_attention"
    }


def narrow(
    index: int, active_N: Tensor, states_ND: Tensor, halting: HaltingPass, halted: tuple[Halted, ...]
) -> tuple[Tensor, tuple[Halted, ...]]:
    """Gather away the rows that take no part in a round; return the states of the others, and who is away."""
    kept_M, halted_L = kept_and_halted(active_N)
    rows = halting.rows
    shown_LD = halting.narrow(kept_M, halted_L, states_ND)
    places_L = halted_L if rows.index_N is None else rows.index_N[halted_L]
    # Before the first round it is padding, at which nobody looks.
    gone = (Halted(index, places_L, shown_LD),) if index else ()
    return states_ND.index_select(0, kept_M), halted + gone
