"""Bytes that autograd saves at one use of attention, with experts or without; the decision for experts aside.

The table of `ostinato.budget.sub_layer_activations` says what they are. A tensor that two operations save counts once:
what is saved is noted by name.
"""

from __future__ import annotations

from typing import NamedTuple

from ostinato.budget.sizes import PlannedUse, inner_width, keys_width, n_choices, value_gate_size
from ostinato.budget.training_pass import FLOAT, HALF, ID, TrainingPass, reads_expected_states, states_of_experts
from ostinato.config.experts import ExpertAttentionConfig, HeadExpertAttentionConfig
from ostinato.config.positions import AlibiConfig, BucketsConfig, RotaryConfig, WindowConfig
from ostinato.config.sub_layers import AttentionConfig


class _Numbers(NamedTuple):
    """A tensor: what it is called, and how many numbers it has."""

    name: str
    n: int


def turns_bytes(run: TrainingPass, planned: PlannedUse, rotary: RotaryConfig) -> int:
    """Return the bytes of cosines and sines of all columns, the same for all sentences."""
    assert isinstance(planned.sub, AttentionConfig)  # what relates positions
    n_turned = rotary.n_turned(planned.sub.head_width(run.config.d_model)) or 0
    return run.width * run.lengths[planned.stack] * n_turned


class AttentionBytes:
    """Counts what one use of attention saves. Numbers are those of all heads: of one query for every token, and with
    experts of one for every expert that a token gets."""

    def __init__(self, run: TrainingPass, planned: PlannedUse, attention: AttentionConfig) -> None:
        self.run, self.planned, self.attention = run, planned, attention
        stack, d_model = planned.stack, run.config.d_model
        self.is_cross = planned.use.kind == "cross_attention"
        self.is_given = self.is_cross or planned.borrows_keys  # keys and values come from elsewhere
        self.relative = None if self.is_cross else planned.relative
        self.has_reach = self.relative is not None and self.relative.reach is not None
        seen = "encoder" if self.is_cross else stack
        self.tokens, self.length, self.n_keys = run.tokens(stack), run.lengths[stack], run.tokens(seen)
        self.n, self.n_sets = n_choices(attention), planned.n_key_sets
        self.states = run.width * self.tokens * d_model  # bytes of one copy of them
        self.inner = inner_width(attention, d_model)
        self.queries, self.keys = self.n * self.tokens * self.inner, self.n_keys * keys_width(attention, d_model)
        self.all_keys = self.n_keys * self.inner * self.n_sets  # of every head of queries
        self.scores = self.n * self.tokens * attention.n_heads
        self.weights = self.scores * run.lengths[seen] * self.n_sets
        self.copies_heads = run.copies_heads(attention)
        self.is_grouped = attention.n_key_heads < attention.n_heads
        self.has_value_experts = isinstance(attention, HeadExpertAttentionConfig) and not planned.borrows_keys
        self.has_own_values = (planned.use.scores is not None or self.has_value_experts) and not self.is_given
        self.outputs = self.queries * (attention.top_k if isinstance(attention, HeadExpertAttentionConfig) else 1)
        self.kept: dict[str, int] = {}

    def total(self) -> int:
        """Return the bytes."""
        states = self._states()
        q, k, v = self._projected()
        q, k, v = self._as_read(q, k, v)
        self._biases()
        return states + self._products(q, k, v) + sum(self.kept.values())

    def _states(self) -> int:
        """What maps and gates read and give, queries, keys and values aside."""
        run, attention, is_mixed = self.run, self.attention, self.run.is_mixed
        saved = self.states
        if isinstance(attention, ExpertAttentionConfig):
            # Queries, and keys and values, have each a copy of the states in autocast's type.
            own = states_of_experts(run, attention, self.tokens)
            saved = own + (saved if is_mixed and not self.is_cross else 0)
        if isinstance(attention, HeadExpertAttentionConfig):
            # In float32 the routers save the states that all of them read.
            saved = (saved if is_mixed else 0) + (self.states if is_mixed and self.has_value_experts else 0)
            if self.has_value_experts:  # what experts give, and autocast's copy of their gates
                gates = HALF * attention.top_k * attention.n_key_heads * self.n_keys
                saved += run.width * attention.top_k * self.keys + (gates if is_mixed else 0)
        if attention.output_gate:  # the gate, what it lets through, and autocast's copy of what it reads
            saved += 2 * run.width * self.queries + (self.states if is_mixed else 0)
        if self.has_own_values and is_mixed and not self.has_value_experts:
            saved += self.states  # autocast's copy of what values are made of
        if value_gate_size(self.planned):
            config = self.planned.stack_config.value_embeddings
            assert config is not None  # there is a gate: itself, doubled, and autocast's copy of what it reads
            gate = 2 * run.width * attention.n_key_heads + (HALF * config.gate_width if is_mixed else 0)
            saved += self.tokens * gate
        return saved

    def _projected(self) -> tuple[_Numbers, _Numbers, _Numbers]:
        """Return queries, keys and values as tensors: packed, or of two products."""
        attention = self.attention
        has_own_queries = (
            self.is_given or isinstance(attention, ExpertAttentionConfig) or reads_expected_states(self.planned)
        )
        if has_own_queries or attention.bias == "qk":
            # Keys and values of the memory are a set's, and counted there.
            keys_values = _Numbers("keys and values", 0 if self.is_given else 2 * self.keys)
            return _Numbers("queries", self.queries), keys_values, keys_values
        if self.has_own_values:  # keys are copied to their values
            keys_values = _Numbers("keys and values", 2 * self.keys)
            return _Numbers("queries and keys", self.queries + self.keys), keys_values, keys_values
        packed = _Numbers("packed", self.queries + 2 * self.keys)
        return packed, packed, packed

    def _as_read(self, q: _Numbers, k: _Numbers, v: _Numbers) -> tuple[_Numbers, _Numbers, _Numbers]:
        """Note what norms and turns save; return queries, keys and values as the products read them."""
        relative, is_normed_first = self.relative, self.attention.qk_norm_at == "before"
        if is_normed_first:
            q, k = self._normed(q, k)
        if isinstance(relative, RotaryConfig):
            turned = 0 if self.planned.borrows_keys else self.keys
            q, k = _Numbers("turned q", self.queries), _Numbers("turned k", turned)
            # One query a token turns by the angles that all steps share: `activations._table_bytes`.
            self.kept["angles"] = turns_bytes(self.run, self.planned, relative) * self.n if self.n > 1 else 0
        if not is_normed_first:
            q, k = self._normed(q, k)
        if value_gate_size(self.planned) and v.name == "packed":  # keys are copied to their values
            copied = _Numbers("keys and values", 2 * self.keys)
            k, v = copied if k is v else k, copied
        if self.n_sets > 1:  # those of several rounds, side by side
            n = self.n_sets * self.keys
            k, v = _Numbers("sets of keys", n), _Numbers("sets of values", n)
        return q, k, v

    def _normed(self, q: _Numbers, k: _Numbers) -> tuple[_Numbers, _Numbers]:
        """Note what norms of queries and keys save, where there are any."""
        if self.attention.qk_norm == "none":
            return q, k
        return self._norm(q, self.queries, "q"), k if self.is_given else self._norm(k, self.keys, "k")

    def _norm(self, x: _Numbers, n: int, name: str) -> _Numbers:
        attention, run = self.attention, self.run
        self.kept[f"{name} as float32" if run.is_mixed else x.name] = FLOAT * n if run.is_mixed else run.width * x.n
        self.kept[f"{name}, root"] = FLOAT * n // attention.head_width(run.config.d_model)
        self.kept[f"{name} before weights"] = FLOAT * n if attention.qk_norm == "rms" else 0
        return _Numbers(f"normed {name}", n)

    def _biases(self) -> None:
        """Note what a learned bias of the scores saves."""
        match self.relative:
            case WindowConfig(window=window):
                reach = 2 * window + 1
                tables = self.run.batch if self.copies_heads else 1 if self.run.is_mixed else 0
                numbers = self.queries + self.scores * reach + tables * self.inner * reach
                self.kept["window"] = self.run.width * numbers
                self.kept["distances"] = self.n * ID * self.length**2 + self._mask
            case BucketsConfig():
                self.kept["hidden keys"] = self._mask

    def _products(self, q: _Numbers, k: _Numbers, v: _Numbers) -> int:
        """Return what the products with keys and values save; note what others may save, too."""
        width, dropped = self.run.width, self.weights if self.attention.dropout else 0  # a byte a weight
        learns_bias = isinstance(self.relative, WindowConfig | BucketsConfig)
        if not (self.run.is_mixed or learns_bias):  # the compiled kernel
            self._keep(q, k, v)
            self._mask_of_scores()
            return width * self.outputs + 2 * FLOAT * self.scores + dropped
        if dropped:  # plain products
            if self.copies_heads:
                # The memory's keys, once normed, and its values lie in order: they are a set's.
                is_of_set = self.is_cross and self.attention.qk_norm != "none" and not self.is_grouped
                self.kept["copies of heads"] = width * (self.queries + (0 if is_of_set else 2 * self.all_keys))
            else:
                self._keep(q, *([_Numbers("repeated", 2 * self.all_keys)] if self.is_grouped else [k, v]))
            return width * (self.weights + self.outputs) + dropped
        if learns_bias:  # plain products in float32
            if self.is_grouped or self.run.is_mixed or self.copies_heads:
                self.kept["values"] = FLOAT * self.all_keys
            else:
                self._keep(v)
            return FLOAT * (self.queries + self.all_keys + self.weights) + width * self.outputs
        self._keep(q, k, v)
        self._mask_of_scores()
        is_turned = self.attention.qk_norm != "none" or isinstance(self.relative, RotaryConfig)
        if self.outputs > self.queries:
            self.kept["output of every choice"] = width * self.outputs
        elif is_turned and self.attention.n_heads > 1:
            self.kept["output in the order of queries"] = width * self.queries
        return width * self.queries + FLOAT * self.scores

    def _keep(self, *tensors: _Numbers) -> None:
        self.kept.update({one.name: self.run.width * one.n for one in tensors})

    def _mask_of_scores(self) -> None:
        """Note the mask that a kernel keeps. The order of the columns needs none; prefixes, several queries a token or
        sets of keys, and a reach do."""
        run, is_many = self.run, self.n > 1 or self.n_sets > 1
        if isinstance(self.relative, AlibiConfig):
            # In a stack that hides no keys all steps with the same table save one tensor: `activations._table_bytes`.
            is_own = self._mask or is_many or run.is_mixed
            places = self._places or self.n * self.n_sets * self.length**2
            self.kept["mask"] = run.width * self.attention.n_heads * places if is_own else 0
        elif not self.is_cross and (run.config.sees_prefix or is_many or self.has_reach or self.planned.sees_some):
            self.kept["mask"] = run.width * self._mask

    @property
    def _places(self) -> int:
        """Places of the mask, of every query by itself: later keys, far ones and those left out are hidden."""
        one = self.run.mask(self.planned.stack) or (self.length**2 if self.has_reach else 0)
        return self.n * self.n_sets * (self.run.batch * self.length**2 if self.planned.sees_some else one)

    @property
    def _mask(self) -> int:
        """Places of the mask that is saved: where each query of a sentence sees the same keys, one row for all."""
        hides = bool(self.run.mask(self.planned.stack)) or self.has_reach
        if self.planned.sees_some and not hides:
            return self.n_sets * self.run.batch * self.length
        return self._places
