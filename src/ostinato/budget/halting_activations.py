"""Bytes that autograd keeps of halting, counted from the configuration.

What is counted is the pass in which every token runs every round. With N tokens, D = d_model, R rounds, w bytes a
number (2 under bfloat16 autocast, where what is marked * stays at 4), per stack:

    stick_breaking  per gate, R - 1 of them: the hidden layer before and after gelu 2 N D *, with dropout N D * more;
                    log-softmax, halting probability and alpha 4 N *
                    per round what is left N *; once the last round's states N D *, if R > 1
    act             per round the probability and the weight 2 N *, with one probability a sentence N * more, masks 2 N
                    (N in the first);
                    the states that left it N D *, unless the next round starts from them as they are;
                    interpolate: per round but the first the output so far N D * and its weight N *
    both            the states a gate reads N D *, where nothing else keeps them as they are

and with stick_breaking per use of a sub-layer that mixes tokens, in every round but the first, since a token shows
others its expected state, whether it goes on or not:

    expected states the states they are made of N D *, where the sub-layer's own input is not those
                    attention: a second input of keys and values N D; pre-norm: a second norm

With act a token that goes on shows its state as it is. Where steps are recomputed, stick_breaking holds one more N D *
a round but the first: the sum of states given out.

All rounds and every token of them are counted, whatever depth is assumed, as a batch runs in which no token halts (as
in a run's first updates, `training.halting.off_updates`). One whose tokens halt early keeps less, but one of which few
halt can keep more: rounds then have masks or places of rows, and act a second input of keys and values.
"""

from __future__ import annotations

from ostinato.budget.passes import FLOAT, TrainingPass
from ostinato.budget.sizes import PlannedUse
from ostinato.config.experts import ExpertAttentionConfig, RoutedConfig
from ostinato.config.halting import ActConfig, StickBreakingConfig
from ostinato.config.stack import StackConfig
from ostinato.config.sub_layers import AttentionConfig, SeparableConvConfig


def halting_bytes(run: TrainingPass, stack: str, firsts: list[PlannedUse | None]) -> int:
    """Return what a stack's gates and mixed states keep, and what is held for recomputed steps.

    Args:
        firsts: for every round the first use in it, None for a round in which nothing runs.
    """
    config, tokens = run.config.stacks()[stack], run.tokens(stack)
    match config.halting:
        case StickBreakingConfig() as rule:
            return _stick_breaking(run, config, rule, tokens, firsts)
        case ActConfig() as rule:
            return _act(run, config, rule, tokens, firsts)
    return 0


def reads_expected_states(planned: PlannedUse) -> bool:
    """Return True for a use that reads expected states of stick-breaking in place of the states themselves."""
    mixes = planned.use.kind == "self_attention" or isinstance(planned.sub, SeparableConvConfig)
    return isinstance(planned.stack_config.halting, StickBreakingConfig) and mixes and planned.round > 0


def expected_states_bytes(run: TrainingPass, planned: PlannedUse) -> int:
    """Return what a use that reads expected states keeps besides what it keeps of its own, a second norm aside."""
    states = run.tokens(planned.stack) * run.config.d_model
    kept = 0 if _keeps_states(run, planned) else FLOAT * states
    # Under autocast experts have a copy of the states for keys and values in any case.
    has_copy = run.is_mixed and isinstance(planned.sub, ExpertAttentionConfig)
    return kept + (run.width * states if isinstance(planned.sub, AttentionConfig) and not has_copy else 0)


def _keeps_states(run: TrainingPass, planned: PlannedUse | None) -> bool:
    """Return True where a use keeps the states it starts from, unchanged and in full precision."""
    if planned is None:
        return False
    if planned.stack_config.norm.placement == "pre":
        # A convolution reads expected states only.
        return not (isinstance(planned.sub, SeparableConvConfig) and reads_expected_states(planned))
    if isinstance(planned.sub, RoutedConfig) and planned.sub.has_router:
        return True
    return not run.is_mixed and not isinstance(planned.sub, SeparableConvConfig)


def _stick_breaking(
    run: TrainingPass, config: StackConfig, rule: StickBreakingConfig, tokens: int, firsts: list[PlannedUse | None]
) -> int:
    n_rounds, states = len(firsts), FLOAT * tokens * run.config.d_model
    kept = (n_rounds - 1) * ((3 if rule.dropout else 2) * states + 4 * FLOAT * tokens)
    # What is left is a constant as long as no gate was asked.
    kept += n_rounds * FLOAT * tokens + (states if n_rounds > 1 else 0)
    for planned in firsts[1:]:
        is_kept = run.is_recomputed or (planned is not None and reads_expected_states(planned))
        if _has_signal(config) or not (is_kept or _keeps_states(run, planned)):
            kept += states
    return kept + ((n_rounds - 1) * states if run.is_recomputed else 0)


def _act(run: TrainingPass, config: StackConfig, rule: ActConfig, tokens: int, firsts: list[PlannedUse | None]) -> int:
    n_rounds, states = len(firsts), FLOAT * tokens * run.config.d_model
    kept = tokens * (n_rounds * FLOAT * (3 if rule.scope == "global" else 2) + 2 * n_rounds - 1)
    kept += (n_rounds if _has_signal(config) else 1) * states
    if rule.mix == "interpolate":
        kept += (n_rounds - 1) * (states + FLOAT * tokens)
    if run.is_recomputed:
        return kept
    return kept + states * sum(not _keeps_states(run, planned) for planned in firsts)


def _has_signal(config: StackConfig) -> bool:
    """Return True where something is added to the states before every round."""
    return config.positions.kind == "coordinates"
