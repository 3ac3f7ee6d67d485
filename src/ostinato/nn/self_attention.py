"""Self-attention as a sub-layer: its keys, its cache, its positions, and what is left of tokens that have halted.

Queries are made of the rows of the round. Keys and values are those of all columns: of the rows as they are visible,
of tokens that were gathered away as they last looked, of cached columns as they were. What a halted token looks like
never changes, so that the same weights (and norm before them) make its keys and values once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ostinato.kernels import autocast_dtype, unbind
from ostinato.nn.bank import Banks
from ostinato.nn.cache import KeyValues
from ostinato.nn.context import HaltedRows, Keys, KeysOf, Pass, Round
from ostinato.nn.experts import Decision
from ostinato.nn.relative import RelativePositions, Turns, bias_of_queries, repeat_for_choices
from ostinato.nn.rows import lay_rows, take_rows
from ostinato.nn.shapes import Bool, Float, Tensor
from ostinato.nn.sub_layer import SubLayer, capture_weights, router_name
from ostinato.plan import Step, Use


class SelfAttention(SubLayer):
    """One use of self-attention, dense or of experts.

    Args:
        looks_back_only: no token of the stack ever sees a later one.
        sees_some: in some rounds it sees only the tokens that take part in them.
        rounds: the numbers that this step has in all rounds of its loop up to its own; None: its own only.
        Others: see `SubLayer`.
    """

    def __init__(
        self,
        stack: str,
        step: Step,
        use: Use,
        banks: Banks,
        *,
        looks_back_only: bool,
        sees_some: bool = False,
        rounds: Sequence[int] | None = None,
        **named: Any,
    ) -> None:
        super().__init__(stack, step, use, banks, **named)
        self.looks_back_only, self.sees_some = looks_back_only, sees_some
        self.keys_from, self.makes_keys = step.keys, step.makes_keys
        self.rounds = rounds or (step.index,)
        self._keys_of = step.segment, use.weights, use.before_keys, use.delta, use.modulation, use.values

    def keys_of(self, here: Round) -> KeysOf:
        """Return what makes keys and values in a round."""
        is_timed = here.time_D is not None and self.use.modulation is not None
        return *self._keys_of, int(here.index) if is_timed else None

    @property
    def relation(self) -> RelativePositions | None:
        """The table of relative positions; None where there is none."""
        name = self.use.position
        return None if name is None else self._banks.relative[name]  # type: ignore[return-value]

    def transform(
        self,
        module: Any,
        read_ND: Tensor,
        scored_ND: Tensor,
        decision: Decision | None,
        states_ND: Tensor,
        run: Pass,
        here: Round,
    ) -> Float[Tensor, "N D"]:
        """Return what every row reads in its sentence."""
        if not self.makes_keys:
            x_NI = self.attend(module, module.queries(scored_ND, decision), self.shared_keys(run), run, here)
            return module.output(module.gated(x_NI, scored_ND), decision)  # type: ignore[no-any-return]
        new = self.newly_halted(run, here)
        if here.visible is None and not new:
            valued_ND = None if scored_ND is read_ND else read_ND
            to = self.route_values(module, scored_ND, scored_ND.shape[0], run, here)
            q_NI, kv_NJ = module.queries_keys_values(scored_ND, decision, valued_ND, *to)
            kv_NJ = self.with_tokens(kv_NJ, scored_ND, here.rows.index_N, run)
        else:
            visible_ND = states_ND if here.visible is None else here.visible(states_ND)
            q_NI, kv_NJ = module.queries(scored_ND, decision), self.keys_values(module, visible_ND, new, run, here)
        x_NI = self.read(module, q_NI, self.of_columns(kv_NJ, new, run, here), run, here)
        return module.output(module.gated(x_NI, scored_ND), decision)  # type: ignore[no-any-return]

    def read(self, attention: Any, q_NI: Tensor, kv_MJ: Tensor, run: Pass, here: Round) -> Float[Tensor, "N I"]:
        """Return what the queries of the rows read, heads and choices side by side, given keys of the new columns."""
        keys = self.remember(attention, kv_MJ, run, here)
        return self.attend(attention, q_NI, self.shared_keys(run) if self.keys_from else keys, run, here)

    def shared_keys(self, run: Pass) -> Keys:
        """Return the keys and values of all steps whose keys it reads, side by side."""
        sets = [run.keys[step] for step in self.keys_from]
        if len(sets) == 1:
            return sets[0]
        keeps, keep_BM = [one.keep_BM for one in sets], None
        if known := [keep_BM for keep_BM in keeps if keep_BM is not None]:
            keep_BM = torch.cat([torch.ones_like(known[0]) if one is None else one for one in keeps], dim=1)
        k_BHMK, v_BHMK = (torch.cat(parts, dim=2) for parts in zip(*(one[:2] for one in sets), strict=True))
        return Keys(k_BHMK, v_BHMK, keep_BM, len(sets))

    def attend(self, attention: Any, q_NI: Tensor, keys: Keys, run: Pass, here: Round) -> Float[Tensor, "N I"]:
        """Return what the queries of the rows read of keys and values."""
        rows, relation, n_sets = here.rows, self.relation, keys.n_sets
        k, v = rows.of_sentences(keys.k_BHMK), rows.of_sentences(keys.v_BHMK)
        visibility = replace(here.visibility, keep_BS=keys.keep_BM, n_sets=n_sets)
        if rows.sentences_U is not None:
            visibility = visibility.of_sentences(rows.of_sentences)
        q, n, bias = attention.query_heads(rows.queries(q_NI)), attention.n_choices, None
        if attention.q_norm is not None or (relation is not None and relation.rotates):
            q = self._entering(attention, q, attention.q_norm, repeat_for_choices(here.positions_BA, n), run)
        if relation is not None:
            if relation.depends_on_queries:
                distance_BAS = rows.of_sentences(run.key_positions)[:, None, :] - here.positions_BA[:, :, None]
                bias = relation.bias(q, repeat_for_choices(distance_BAS, n), attention.scale, self.looks_back_only)
            elif relation.needs_bias:
                bias = bias_of_queries(rows.of_sentences(self._static_bias(relation, run)), visibility.columns_BA)
            if relation.reach is not None:
                visibility = replace(visibility, near_BAS=self._near(relation.reach, run, here))
        if bias is not None and n_sets > 1:
            bias = bias.repeat(1, 1, 1, n_sets)
        if "weights" in run.request:
            weights_BHQS = attention.weights(q, k, visibility, bias).unflatten(-1, (n_sets, -1)).sum(-2)
            capture_weights(self, weights_BHQS, run, here)
        draws, ranges = run.execution.dropout_draws, None if rows.occupied is None else rows.ranges(k)
        return rows.from_queries(attention.attend(q, k, v, visibility, bias, ranges=ranges, draws=draws))

    def newly_halted(self, run: Pass, here: Round) -> tuple[HaltedRows, ...]:
        """Return the groups of halted rows of which these weights have made no keys and values yet."""
        return here.halted[len(run.halted_keys.get(self.keys_of(here), ())) :]

    def keys_values(
        self, attention: Any, visible_ND: Tensor, new: Sequence[HaltedRows], run: Pass, here: Round
    ) -> Float[Tensor, "N J"]:
        """Return keys and values of rows that look like this, and of newly halted ones behind them: one product."""
        n = visible_ND.shape[0]
        if new:
            shown = [rows.visible_LD for rows in new]
            visible_ND = torch.cat([visible_ND, *shown]) if n or len(new) > 1 else shown[0]
        read_ND = self.prepared(visible_ND, self.modulation(here))
        norm = self.norm(self.use.scores)
        scored_ND = read_ND if norm is None else norm(read_ND)
        to = self.route_values(attention, scored_ND, n, run, here)
        kv_NJ: Tensor = attention.keys_values(scored_ND, None if norm is None else read_ND, *to)
        if self.use.values is None:
            return kv_NJ
        index_N = here.rows.index_N
        if new:
            index_N = torch.cat([here.rows.places(visible_ND.device)[:n], *(rows.places_L for rows in new)])
        return self.with_tokens(kv_NJ, scored_ND, index_N, run)

    def with_tokens(
        self, kv_NJ: Float[Tensor, "N J"], read_ND: Float[Tensor, "N D"], index_N: Tensor | None, run: Pass
    ) -> Float[Tensor, "N J"]:
        """Return keys and values with what the tokens themselves add to their values.

        Args:
            index_N: place b T + t of every row; None: they are all columns.
        """
        if self.use.values is None:
            return kv_NJ
        rows_NJ = take_rows(self._rows_of_tokens(self.use.values, run).flatten(0, 1), index_N)
        return self._banks.values[self.use.values](kv_NJ, rows_NJ, read_ND)  # type: ignore[no-any-return]

    def _rows_of_tokens(self, name: str, run: Pass) -> Float[Tensor, "B T J"]:
        """Return the rows of a table of values of all new columns, taken once a pass for all rounds."""
        if name not in run.values:
            run.values[name] = self._banks.values[name].rows(run.ids_BT)  # type: ignore[operator]
        return run.values[name]

    def route_values(
        self, attention: Any, scored_ND: Tensor, n: int, run: Pass, here: Round
    ) -> tuple[()] | tuple[Decision]:
        """Choose experts of values, where there are any, for all real tokens: others see them after they have halted.

        Args:
            n: rows of the round, which come first and are recorded; 0: none of them is among these.
        """
        if not attention.has_value_experts:
            return ()
        keep_N = run.keep_N() if here.rows.index_N is None and n else None
        backend, draws = run.execution.expert_backend, run.execution.dropout_draws
        decision: Decision = attention.route_values(scored_ND, keep_N, backend=backend, draws=draws)
        if n:
            name = router_name(self.use, "values")
            routing = decision.routing(name, self.stack, self.step, here.rows, here.weight_N)
            assert routing is not None  # there is always a choice
            run.routings.append(routing)
            if "input" in run.request:  # under a halting rule these are other states than those of queries
                key = self.stack, self.step, self.use.kind, "values_input"
                run.captures[key] = here.rows.grid(scored_ND[:n])
        return (decision,)

    def of_columns(self, kv_NJ: Tensor, new: Sequence[HaltedRows], run: Pass, here: Round) -> Float[Tensor, "M J"]:
        """Return keys and values of all new columns, M = B T; zeros of gathered padding.

        Args:
            kv_NJ: those of the rows, and of newly halted ones behind them.
        """
        if here.rows.index_N is None:
            return kv_NJ
        sizes = [len(here.rows), *(len(rows.places_L) for rows in new)]
        kv_here_NJ, *made = torch.split(kv_NJ, sizes) if new else (kv_NJ,)
        return lay_rows([(here.rows.index_N, kv_here_NJ), *self.of_halted(new, made, run, here)], here.rows.n_tokens)

    def of_halted(
        self, new: Sequence[HaltedRows], made: Sequence[Tensor], run: Pass, here: Round
    ) -> list[tuple[Tensor, Tensor]]:
        """Return places, keys and values of all rows that were gathered away, a pair a group; `made`: of the new."""
        key = self.keys_of(here)
        known = [*run.halted_keys.get(key, ()), *zip((rows.places_L for rows in new), made, strict=True)]
        if not run.recomputes:  # a step that is run again must find what it found the first time
            run.halted_keys[key] = known
        return known

    def remember(self, attention: Any, kv_MJ: Tensor, run: Pass, here: Round) -> Keys:
        """Return keys and values by head of all columns, cached ones first; cache the new ones, and leave all to
        steps that read them, too."""
        kv_2BHTK: Tensor = attention.key_value_heads(kv_MJ.view(here.rows.n_sentences, here.rows.n_columns, -1))
        k, v = unbind(kv_2BHTK)
        relation, rotated = self.relation, k
        if attention.k_norm is not None or (relation is not None and relation.rotates):
            rotated = self._entering(attention, k, attention.k_norm, run.positions, run)
        keys = Keys(rotated, v, here.visibility.keep_BS)
        if run.cache is not None:
            n_kept, round_index = run.execution.cached_rounds, len(self.rounds) - 1
            slot = self.rounds[round_index if n_kept is None else round_index % n_kept]
            if slot not in run.cache.self_kv:
                run.cache.self_kv[slot] = KeyValues()
            cached = run.cache.self_kv[slot]
            if n_kept is not None:
                cached.length = run.cache.length  # an earlier round of this pass may have been here
            new_2BHTK = kv_2BHTK if rotated is k else torch.stack([rotated, v])
            k, v = cached.append(new_2BHTK).unbind(0)
            keys = Keys(k, v, here.visibility.keep_BS)
        if self.keys_from:  # a step that is run again must leave what it left the first time
            run.keys.setdefault(self.step, keys)
        return keys

    def _entering(
        self, attention: Any, x_BHTK: Tensor, norm: nn.Module | None, positions_BT: Tensor, run: Pass
    ) -> Tensor:
        """Return queries or keys as they enter the product, normed and turned by their positions."""
        relation = self.relation
        turn = None
        if relation is not None and relation.rotates:
            turn = partial(relation.rotate, turns=self._turns(relation, positions_BT, x_BHTK.dtype, run))
        return attention.normed_and_turned(x_BHTK, norm, turn)  # type: ignore[no-any-return]

    def _turns(self, relation: RelativePositions, positions_BT: Tensor, dtype: torch.dtype, run: Pass) -> Turns:
        """Return the turns of positions; those of all new columns are computed once a pass for all sub-layers with the
        same table."""
        if positions_BT is not run.positions:  # rows that were gathered, or several choices of a token
            return relation.turns(positions_BT, dtype)
        assert self.use.position is not None  # not user input: it has a relation
        key = self.use.position, dtype
        if key not in run.turns:
            run.turns[key] = relation.turns(positions_BT, dtype)
        return run.turns[key]

    def fill_cache(self, states_0D: Tensor, run: Pass, here: Round) -> None:
        """Cache the new columns of a round in which no row takes part."""
        if not self.makes_keys:
            return
        attention, new = self.module, self.newly_halted(run, here)
        # Rows that are not gathered away are there, as they are seen.
        visible_ND = states_0D if here.visible is None else here.visible(states_0D)
        kv_NJ = self.keys_values(attention, visible_ND, new, run, here)
        self.remember(attention, self.of_columns(kv_NJ, new, run, here), run, here)

    def prepare(self, run: Pass) -> None:
        """Make a bias and turns that depend on positions only, and take the rows of a table of values."""
        if self.use.values is not None and self.makes_keys:
            self._rows_of_tokens(self.use.values, run)
        relation = self.relation
        if relation is not None and relation.needs_bias and not relation.depends_on_queries:
            self._static_bias(relation, run)
        if relation is not None and relation.rotates:
            dtype = autocast_dtype(run.positions.device) or next(self.module.parameters()).dtype
            self._turns(relation, run.positions, dtype, run)

    def _static_bias(self, relation: RelativePositions, run: Pass) -> Tensor:
        """Return the bias of all new columns, computed once a pass for all sub-layers with the same table."""
        assert self.use.position is not None  # not user input: it has a relation
        if self.use.position not in run.biases:
            # In place of queries, of which a token may have several: the bias depends on positions only.
            like = run.positions[:, None, :, None].to(next(self.module.parameters()).dtype)
            distance_BTS = run.key_positions[:, None, :] - run.positions[:, :, None]
            run.biases[self.use.position] = relation.bias(like, distance_BTS, 1.0, self.looks_back_only)
        return run.biases[self.use.position]

    def _near(self, reach: int, run: Pass, here: Round) -> Bool[Tensor, "#B A S"]:
        """Return which keys are within reach of the queries."""
        key_positions = here.rows.of_sentences(run.key_positions)
        return (key_positions[:, None, :] - here.positions_BA[:, :, None]).abs() <= reach
