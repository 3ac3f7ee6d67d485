"""Rows of tokens that have halted: gathered away before a round, and the caches of rounds that no token runs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ostinato.kernels import places_where
from ostinato.nn.context import HaltedRows, Pass, Round
from ostinato.nn.execution import Execution
from ostinato.nn.halting import HaltingPass
from ostinato.nn.rows import Rows, kept_and_halted
from ostinato.nn.shapes import Tensor
from ostinato.nn.sub_layer import Runnable

_LEAST_GAIN = 1 / 16
"""Part of the rows that must have nothing to do before they are gathered away."""


def pays_to_gather(halting: HaltingPass, execution: Execution) -> bool:
    """Return whether the rows that take part are few enough to gather them."""
    n = len(halting.rows)
    return halting.n_active < n if execution.compaction == "always" else halting.n_active <= (1 - _LEAST_GAIN) * n


def gather_active(
    index: int,
    active_N: Tensor,
    states_ND: Tensor,
    halting: HaltingPass,
    halted: tuple[HaltedRows, ...],
    run: Pass,
) -> tuple[Tensor, tuple[HaltedRows, ...]]:
    """Gather away the rows that take no part in a round; return the states of the others, and all that are away and may
    still be looked at."""
    kept_M, halted_L = kept_and_halted(active_N, halting.n_active)
    rows = halting.rows
    visible_LD = halting.narrow(kept_M, halted_L, states_ND)
    places_L = halted_L if rows.index_N is None else rows.index_N[halted_L]
    # Before the first round it is padding, at which no token looks.
    if not index or halting.hides:
        return states_ND.index_select(0, kept_M), halted
    if run.cache is None and (sentences_U := halting.rows.sentences_U) is not None:
        # Of a sentence that is done no token looks any more; where there is a cache, later columns do.
        is_left_B = torch.zeros(rows.n_sentences, dtype=torch.bool, device=places_L.device)
        is_left_B.index_fill_(0, sentences_U, True)  # `torch.isin` would sort, and read how many differ
        looked_L = is_left_B.index_select(0, places_L.div(rows.n_columns, rounding_mode="floor"))
        left = halting.rows.counts()
        n_looked = sum(before - after for before, after in zip(rows.counts(), left, strict=True) if after)
        chosen_L = places_where(looked_L, n_looked)
        places_L, visible_LD = places_L.index_select(0, chosen_L), visible_LD.index_select(0, chosen_L)
    new = (HaltedRows(places_L, visible_LD),) if places_L.shape[0] else ()
    return states_ND.index_select(0, kept_M), halted + new


def rows_of_round(halting: HaltingPass, run: Pass) -> tuple[Tensor | None, Rows]:
    """Return which rows a round computes, of a pass in which others come back after it, and their places; None: all
    that are there."""
    execution = run.execution
    if execution.compaction == "never" or halting.active_N is None or not pays_to_gather(halting, execution):
        return None, halting.rows
    # Where no row takes part all are computed, masked: no layer is given an empty tensor, processes that run together
    # do the same, and weights get a gradient of zeros in place of none.
    if not halting.n_active and (torch.is_grad_enabled() or execution.any_process is not None):
        return None, halting.rows
    return halting.rows_of_round()


def fill_caches(
    rounds: Sequence[Sequence[Sequence[Runnable]]],
    times: Sequence[Tensor | None],
    first: int,
    run: Pass,
    states_0D: Tensor,
    rows: Rows,
    halted: tuple[HaltedRows, ...],
) -> None:
    """Fill the caches of rounds in which no token takes part: later ones may go deeper, and look back at them."""
    for index, (steps, time_D) in enumerate(zip(rounds, times, strict=True), first):
        here = Round.of(run, index, rows, None, None, halted, time_D=time_D)
        for step in steps:
            for sub_layer in step:
                sub_layer.fill_cache(states_0D, run, here)
