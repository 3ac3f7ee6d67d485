"""What rounds have of their own (`ostinato.nn.by_round`): parameters, products and saved bytes.

With D = d_model, I and J the widths of queries and of keys, F = d_ff, N tokens, r the rank, w bytes of a number that a
product reads (* float32 whatever the precision), per use:

    delta        attention      r (3 D + I + 2 J) + r (I + D), with an output gate r (D + I) more; to the memory
                                r (D + I) + r (I + D)
                 feed-forward   r (D + F) for each map to the hidden layer, r (F + D) back
                 as many MACs a token; saves A x, w r N for each of these maps, and under autocast a second copy of what
                 the first maps read w N D, and one of A and B
                 experts        as without; of the last map A of all k choices, k r I or k r F MACs in place of one, and
                                B of their sum; saves the A of all k and the sum, w r (k + 1) N; attention under
                                autocast reads states for queries and for keys, and copies gates w k N
    modulation   2 D by round; by time 2 D^2 + 2 D for all rounds; saves what is scaled and what is gated N D * each,
                 and of expected states what is scaled N D *
    vectors      D a round
    time         2 (256 D + D^2 + 2 D), for all rounds

What is made of the number of a round alone (W SiLU(c) + b, F(t)) costs the same in every pass, however many tokens it
has, and less than one token: it is not among the MACs.
"""

from __future__ import annotations

from typing import NamedTuple

from ostinato.budget.sizes import PlannedUse, hidden_branches, inner_width, keys_width
from ostinato.budget.training_pass import FLOAT
from ostinato.config.experts import ExpertAttentionConfig, ExpertFeedForwardConfig
from ostinato.config.sub_layers import AttentionConfig, DenseFeedForwardConfig

_N_SINUSOIDS = 256


class DeltaMap(NamedTuple):
    """A x of one map, and B of it.

    Args:
        reads, gives: widths. makes_keys: keys, or values.
        n_rows: that a token has of what it reads; B is of their sum. n_saved: numbers for the backward pass, by rank.
    """

    reads: int
    gives: int
    makes_keys: bool = False
    n_rows: int = 1
    n_saved: int = 1

    @property
    def size(self) -> int:
        """Parameters, by rank."""
        return self.reads + self.gives

    @property
    def products(self) -> int:
        """Products of a token, by rank."""
        return self.n_rows * self.reads + self.gives


def delta_maps(planned: PlannedUse, d_model: int) -> list[DeltaMap]:
    """Return the maps to which a use adds something of low rank."""
    if planned.use.delta is None:
        return []
    match planned.sub:
        case AttentionConfig() as attention:
            inner, keys = inner_width(attention, d_model), keys_width(attention, d_model)
            made = [] if planned.use.kind == "cross_attention" else [DeltaMap(d_model, keys, makes_keys=True)] * 2
            gate = [DeltaMap(d_model, inner)] if attention.output_gate else []
            out = DeltaMap(inner, d_model)
            if isinstance(attention, ExpertAttentionConfig):
                k = attention.top_k
                out = out._replace(n_rows=k, n_saved=1 + (k if attention.has_router else 0))
            return [DeltaMap(d_model, inner), *made, *gate, out]
        case DenseFeedForwardConfig() | ExpertFeedForwardConfig() as ffn:
            up, down = DeltaMap(d_model, ffn.d_ff), DeltaMap(ffn.d_ff, d_model)
            if isinstance(ffn, ExpertFeedForwardConfig):
                down = down._replace(n_rows=ffn.top_k, n_saved=ffn.top_k + 1)
            return [up] * hidden_branches(ffn) + [down]
    raise TypeError(f"no deltas are known for {type(planned.sub).__name__}")


def delta_size(planned: PlannedUse, d_model: int, *, of_keys: bool | None = None) -> int:
    """Return the parameters of a delta: those that make keys and values, the others, or (None) all."""
    maps = delta_maps(planned, d_model)
    return planned.delta_rank * sum(one.size for one in maps if of_keys is None or one.makes_keys == of_keys)


def delta_products(planned: PlannedUse, d_model: int, *, of_keys: bool) -> int:
    """Return a delta's products of a token: those that make keys and values, or the others."""
    maps = delta_maps(planned, d_model)
    return planned.delta_rank * sum(one.products for one in maps if one.makes_keys == of_keys)


def modulation_size(planned: PlannedUse, d_model: int) -> int:
    """Return the parameters of a modulation; those by time are the same in all rounds."""
    if planned.use.modulation is None:
        return 0
    return 2 * d_model * (d_model + 1 if planned.is_timed else 1)


def time_size(d_model: int) -> int:
    """Return the parameters of what modulations by time are made of."""
    return 2 * (_N_SINUSOIDS * d_model + d_model**2 + 2 * d_model)


def delta_bytes(planned: PlannedUse, tokens: int, d_model: int, width: int, *, reads_twice: bool) -> int:
    """Return the bytes that a delta saves for the backward pass.

    Args:
        width: bytes of a number that a product reads. reads_twice: keys are made of other states than queries.
    """
    maps = [one for one in delta_maps(planned, d_model) if not (one.makes_keys and planned.borrows_keys)]
    saved = width * tokens * planned.delta_rank * sum(one.n_saved for one in maps)
    if width == FLOAT or not maps:
        return saved
    # Autocast copies what is read for every product: queries, keys and values are one, or two; a gate is another.
    n_gates = planned.sub.top_k if isinstance(planned.sub, ExpertAttentionConfig) else 0
    n_products = 1 + (any(one.makes_keys for one in maps) and (reads_twice or n_gates > 0))
    n_products += isinstance(planned.sub, AttentionConfig) and planned.sub.output_gate
    return saved + width * tokens * (d_model * n_products + n_gates)


def modulation_bytes(planned: PlannedUse, tokens: int, d_model: int, *, reads_twice: bool) -> int:
    """Return the bytes that a modulation saves for the backward pass: what is scaled, what is gated, and vectors."""
    if planned.use.modulation is None:
        return 0
    n_vectors = (2 if reads_twice else 1) * (4 if planned.is_timed else 1)
    return FLOAT * d_model * (tokens * (3 if reads_twice else 2) + n_vectors)


def time_bytes(d_model: int, n_rounds: int) -> int:
    """Return the bytes that the times of all rounds save for the backward pass."""
    return FLOAT * n_rounds * (2 * (_N_SINUSOIDS + 2 * d_model) + d_model)
