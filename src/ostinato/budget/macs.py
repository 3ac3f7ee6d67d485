"""Multiply-accumulates of one forward pass, counted from the configuration: at an expected depth (`count_macs`), and of
sentences whose depths are known (`MacCounter`).

With D = d_model, I = n_heads d_head, F = d_ff, S keys, T queries, V vocabulary rows, per use of a sub-layer:

    self-attention projections     2 D I T + 2 D J T, J = n_kv_heads d_head (I unless given); an output gate D I T
    scores and values              2 I T S       (S = T; causal attention counts as full T^2)
                                   in a segment with keys: all, round r reads r sets of keys: 2 r I T S
    values by token                C H_kv T for the gate, C = gate_width; where keys and values are made
    window positions               I (2 W + 1) T (scores of the queries with the table; gathering is free)
    cross-attention, per use       2 D I T for queries and output, 2 I T S for scores and values
    cross-attention, per set       2 D J S for keys and values: steps that share a set share them
    feed-forward                   2 D F T, gated 3 D F T
    separable convolution          (D kernel_in + F kernel_out + 2 D F) T
    map of embeddings              W D for every token of its stack, of embeddings of width W (d_embedding)
    transform before the output    D W T
    output projection              W V T, W = D without d_embedding (of a masked head as if every token were masked: it
                                   costs W V a mask)
    heads with C labels            tagging D C T, span 2 D T, classification D C
    low-rank deltas                rank times the widths of what every map reads and gives, T; of experts k times what
                                   the last map reads (`budget.by_round`)
    injection                      linear D^2 T, and D^2 T a round; decay D^2 T; a map at the end of a segment D^2 T
    gates of halting               stick_breaking (R - 1) (D^2 + 2 D) T, act and exit R D T, of a stack of R rounds;
                                   select D T for every round with a router
    exits after training           in place of gates; by what is predicted: R - 1 times all that follows the loop

and of sub-layers with E experts, k = top_k of them a token (Sparse Universal Transformer, section 2.7):

    self-attention projections     (2 k D I + 2 D J) T for queries and output, and for keys and values
    scores and values              2 k I T S
    window positions               k I (2 W + 1) T
    cross-attention, per use       2 k D I T, 2 k I T S; per set 2 D J S
    feed-forward                   2 k D F T, gated 3 k D F T; sparse layer: n_layers times that
    router, per use                linear E D T; mlp (D^2 + E D) T; hypersphere d_e (D + E) T, a part of its own

so that E costs something in the router only.

A token that takes part in d of the R rounds of its stack is then frozen: of later rounds it costs only the keys and
values that others attend to. Where every round has one use of each kind:

    of the first d rounds          queries and output 2 D I, scores and values 2 I S over all S keys, window scores,
                                   feed-forward, experts, routers, cross-attention's 2 D I and 2 I S
    keys and values                2 D J (d + c), with c the different sets (in pre-norm stacks: with norms) of
                                   self-attention in rounds d + 1 to R: 1 where all rounds share them, R - d where every
                                   round has its own; 0 for d = R, and where a router chooses, because it hides whom
                                   it leaves out
    gates                          stick_breaking min(d, R - 1) (D^2 + 2 D), act and exit d D, select D for
                                   every router of the first min(d + 1, R) rounds, among all of all; token_choice R D
    once, whatever d is            output projection; the memory's keys and values, once a set

and for a d between two whole numbers what lies between their costs, linearly. An expected depth is taken for every
token's, and some token is taken to run all R rounds: where all rounds share their weights that is an upper limit for
every distribution of depths with this mean, because no cost grows faster the deeper a token is. Three kinds of stacks
compute halted tokens all the same, so that d = R whatever is assumed: ACT and exits with freeze_halted_state: false,
which go on changing them, and stacks with separable convolutions, which read their columns. Where a router chooses
among all tokens in every round, the d rounds of a token are counted as if they were the first ones.

An LSTM has no rounds; its products are in `ostinato.budget.recurrent`.

Biases, norms, activations, softmax, embeddings, rotations and gates are element-wise and are not counted, as in
`torch.utils.flop_counter` (which counts 2 FLOPs for a MAC, and a sum weighted by gates where it is made by a matrix
product). The counts of Sparse Universal Transformer, Table 1 are reproduced at S = T = 10 without scores and values:
`MacCount.without_attention`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from ostinato.budget.depth import ONE_ROUND, ExpectedDepth, expected_depths
from ostinato.budget.parameters import count_parameters
from ostinato.budget.products import HEAD, SCORES, WINDOW, Product, TokenMacs, products, sentence_macs, token_macs
from ostinato.budget.sizes import Rounds, inner_width, n_choices, planned_uses
from ostinato.config.model import ModelConfig
from ostinato.config.sub_layers import AttentionConfig
from ostinato.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class MacCount:
    """What a forward pass over one sentence costs, in multiply-accumulates.

    Args:
        total: the whole pass.
        by_part: adding up to `total`: ``<stack>.<kind>.projections``, ``.scores`` (scores and values), ``.positions``
            (window scores), ``<stack>.ffn``, ``<stack>.sparse_layer``, ``output``; of routed sub-layers
            ``<stack>.<kind>.router``; ``embeddings``, the map from d_embedding; ``head`` of encoder-only models. Parts
            that cost nothing are left out.
        per_source_token: the encoder and the cross-attention keys and values, divided by the source length; 0 for
            language models.
        per_target_token: everything else, divided by the target length; without a classification's head, which is
            paid once a sentence.
        per_generated_token: one token in cached decoding, attending to `context` target tokens, itself included; 0 for
            encoder-only models, which generate none.
    """

    total: int
    by_part: dict[str, int]
    per_source_token: int
    per_target_token: int
    per_generated_token: int

    @property
    def per_token(self) -> int:
        """One token of a language model; for seq2seq the same as `per_target_token`."""
        return self.per_target_token

    @property
    def without_attention(self) -> int:
        """The pass without attention scores and values and window scores: what does not grow with the length."""
        return self.total - sum(n for part, n in self.by_part.items() if part.endswith((f".{SCORES}", f".{WINDOW}")))


def count_macs(
    config: ModelConfig,
    source_length: int,
    target_length: int,
    *,
    context: int | None = None,
    n_steps: int | None = None,
    vocab_size: int | None = None,
    expected_depth: Mapping[str, float] | None = None,
    exits: Mapping[str, bool] | None = None,
) -> MacCount:
    """Return the multiply-accumulates of one forward pass over one sentence.

    Args:
        config: the model.
        source_length, target_length: tokens of each side, begin and end symbols included; language models have no
            source, and ignore its length.
        context: target tokens a generated token attends to, itself included; default: `target_length`.
        n_steps: rounds at call time, for stacks whose rounds are all shared.
        vocab_size: rows of the vocabulary where the configuration leaves it open.
        expected_depth: rounds a token is expected to take part in, by stack; see `expected_depths`. Default: all.
        exits: stacks whose tokens stop by a criterion, and whether it needs predictions (`TokenModel.exits`).

    Raises:
        ConfigError: a length below 1, a vocabulary size that is neither set nor passed, an `expected_depth` that
            cannot be, or `n_steps` for stacks that cannot change it.
    """
    length = source_length if config.has_two_sides else target_length
    depths = expected_depths(config, expected_depth, n_steps=n_steps, source_length=length, exits=exits or ())
    context = target_length if context is None else context
    named = {"source_length": source_length} if config.has_two_sides else {}
    named |= {"target_length": target_length, "context": context}
    if problems := [Problem(key, n, "a sentence has at least one token") for key, n in named.items() if n < 1]:
        raise ConfigError(problems)
    source_length = source_length if config.has_two_sides else 0
    of_stacks = products(config, n_steps, vocab_size, exits)
    costs = _token_costs(of_stacks, depths, source_length, target_length)
    lengths = {"source": source_length, "target": target_length}
    exact: dict[str, Fraction] = {}
    for (part, side), macs in costs.items():
        exact[part] = exact.get(part, Fraction()) + macs * lengths[side]
    by_part = {part: round(macs) for part, macs in exact.items() if macs}
    if once := sentence_macs(config):
        by_part[HEAD] = once
    generated = _token_costs(of_stacks, depths, source_length, context)
    return MacCount(
        total=sum(by_part.values()),
        by_part=by_part,
        per_source_token=_of_side(costs, "source"),
        per_target_token=_of_side(costs, "target"),
        per_generated_token=_of_side(generated, "target") if config.generates else 0,
    )


def _token_costs(
    of_stacks: Mapping[str, Sequence[Product]],
    depths: Mapping[str, ExpectedDepth],
    source_length: int,
    target_length: int,
) -> dict[tuple[str, str], Fraction]:
    """Return what one token of every side costs of every part, exactly."""
    found: dict[tuple[str, str], Fraction] = {}
    for stack, of_stack in of_stacks.items():
        depth_of = depths.get(stack, ONE_ROUND)
        counted = Fraction(depth_of.counted)
        below = math.floor(counted)
        # Between two whole depths lies a straight line.
        for depth, share in ((below, 1 - counted + below), (below + 1, counted - below)):
            if share:
                for key, token in token_macs(of_stack, depth, depth_of.deepest).items():
                    found[key] = found.get(key, Fraction()) + share * token.at(source_length, target_length)
    return found


def _of_side(costs: Mapping[tuple[str, str], Fraction], side: str) -> int:
    return round(sum(macs for (_, own), macs in costs.items() if own == side))


def kaplan_forward_flops(config: ModelConfig, n_ctx: int, *, n_steps: int | None = None) -> int | None:
    """Return C_forward = 2 N + 2 n_layer n_ctx d_attn, floating-point operations of a forward pass a token.

    Kaplan et al. (2020), table 1. N: parameters without embeddings, output projection and head, which are shared ones
    at every step that uses them, and top_k of the experts, so that it is a cost where weights are shared, too; in their
    models these are the stored ones. Petty et al. (2024), section 2, have all parameters for N, embeddings and output
    included: 2 per parameter of those more. d_attn: n_heads d_head, of experts top_k times that. A count of its own
    beside `count_macs`, which has half of 2 N for the same products, scores AND values over all n_ctx keys, and the
    output projection, and leaves out biases and norms.

    Args:
        n_ctx: tokens of the sequence. n_steps: rounds at call time.

    Returns:
        None where the formula says nothing: for models that read two sides, and for recurrences.

    Raises:
        ConfigError: `n_steps` for stacks that cannot change it.
    """
    if config.has_two_sides or not config.stacks():
        return None
    # No count here depends on the vocabulary.
    n = count_parameters(config, n_steps=n_steps, vocab_size=1).executed_without_embeddings
    attention = [one.sub for one in planned_uses(config, n_steps) if isinstance(one.sub, AttentionConfig)]
    return 2 * n + 2 * n_ctx * sum(inner_width(sub, config.d_model) * n_choices(sub) for sub in attention)


class SentenceMacs(NamedTuple):
    """Multiply-accumulates of one teacher-forced pass over one or more sentences whose depths are known.

    Args:
        full: every token runs all rounds, by the model's own rule: `count_macs` of the sentence's lengths, where these
            do not say how many rounds it has.
        realised: of a pass over the sentence alone: every token costs the rounds it took part in and, once halted, its
            keys and values; rounds in which no token of the sentence takes part do not run. Padding costs nothing.
            A stack whose halted tokens are computed all the same (`ExpectedDepth.skips_halted`) counts all rounds: how
            long it runs depends on its batch. Predictions by which tokens stop are made for all of its tokens.
    """

    full: int
    realised: int


class MacCounter:
    """Counts sentences of one model; the costs of a token are added up once for every depth.

    Args:
        config: with its vocabulary sizes. n_steps: rounds at call time, of all stacks or by name.
        exits: stacks whose tokens stop by a criterion, and whether it needs predictions (`TokenModel.exits`).

    Raises:
        ConfigError: as `count_macs`.
    """

    def __init__(self, config: ModelConfig, *, n_steps: Rounds = None, exits: Mapping[str, bool] | None = None) -> None:
        self._full = products(config, n_steps, None)
        self._exits = exits or {}
        self._realised = products(config, n_steps, None, self._exits) if self._exits else self._full
        # A recurrence over positions is a stack of one round, in which every token takes part.
        depths = expected_depths(config, n_steps=n_steps, exits=self._exits)
        self._depths = dict.fromkeys(config.recurrences(), ONE_ROUND) | depths
        self._sides = {stack: config.side_of(stack) for stack in self._full}
        self._once = sentence_macs(config)
        self._of_token = cache(self._count_token)

    def count(self, depths: Mapping[str, Sequence[int]]) -> SentenceMacs:
        """Return what a sentence costs.

        Args:
            depths: by stack how many of its tokens took part in 1, 2, ... rounds, as many numbers as the stack has
                rounds; by recurrence how many tokens it read, one number.
        """
        lengths = {self._sides[stack]: sum(found) for stack, found in depths.items()}
        source, target = lengths.get("source", 0), lengths["target"]
        full = realised = self._once
        for stack, found in depths.items():
            n_rounds, own = self._depths[stack].rounds, self._sides[stack]
            everyone = [0] * (n_rounds - 1) + [lengths[own]]
            full += self._stack(stack, everyone, source, target)
            counted = found if self._depths[stack].skips_halted else everyone
            realised += self._stack(stack, counted, source, target, exits=stack in self._exits)
        return SentenceMacs(full, realised)

    def _stack(self, stack: str, found: Sequence[int], source: int, target: int, *, exits: bool = False) -> int:
        """Return what one stack costs, the memory's keys and values included."""
        own, total = self._sides[stack], 0
        counts = {depth: n for depth, n in enumerate(found, 1) if n}
        deepest = max(counts, default=0)
        for depth, n in counts.items():
            total += n * self._of_token(stack, depth, deepest, exits).get(own, TokenMacs()).at(source, target)
        if own != "source":
            of_memory = self._of_token(stack, deepest, deepest, exits).get("source", TokenMacs())
            total += source * of_memory.at(source, target)
        return total

    def _count_token(self, stack: str, depth: int, deepest: int, exits: bool) -> dict[str, TokenMacs]:
        """Return what a token of each side costs, all parts together."""
        sums: dict[str, TokenMacs] = {}
        of_stack = (self._realised if exits else self._full)[stack]
        for (_, side), part in token_macs(of_stack, depth, deepest).items():
            sums[side] = TokenMacs(*(a + b for a, b in zip(sums.get(side, TokenMacs()), part, strict=True)))
        return sums
