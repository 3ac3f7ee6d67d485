"""Bytes that autograd saves for the backward pass of one training pass, counted from the configuration.

What every use of a sub-layer saves is in `ostinato.budget.sub_layer_activations`, what an LSTM saves is estimated in
`ostinato.budget.recurrent`. Here are their sum and the rest. With N tokens, D = d_model, V vocabulary rows, w = 4 bytes
(2 under bfloat16 autocast, where what is marked * stays at 4):

    embeddings      ids 8 N, dropout N D bytes
    output          the states the projection reads N D, log-probabilities N V *, labels 8 N
    copies          under autocast a bfloat16 copy of every weight

The output and what follows the loop are counted for every prediction that has a gradient (`training.round_loss`), with
the states that leave the round, which the next round may save, too.

Halting, with R rounds, per stack. The pass counted is one in which every token runs every round:

    stick_breaking  per gate, R - 1 of them: the hidden layer before and after gelu 2 N D *, with dropout N D * more;
                    log-softmax, halting probability and alpha 4 N *
                    per round what is left N *; once the last round's states N D *, if R > 1
    act             per round the probability and the weight 2 N *, with one probability a sentence N * more, masks 2 N
                    (N in the first);
                    the states that left it N D *, unless the next round starts from them as they are;
                    interpolate: per round but the first the output so far N D * and its weight N *
    exit            per round what is left, the probability and what they make 5 N *, per round but the last a mask N
    select          per round with a router what it makes N D *, the probability and the gate 2 N *; N * more where it
                    may leave some out
    all             the states a gate reads N D *, where nothing else saves them as they are

With stick_breaking a token shows others its expected state, whether it goes on or not. With act a token that goes on
shows its state as it is. Where steps are recomputed, stick_breaking holds one more N D * a round but the first: the
sum of the states so far, weighted by their halting probabilities.

All rounds and every token of them are counted, whatever depth is assumed, as a batch runs in which no token halts (as
in a run's first updates, `training.halting.off_updates`). One whose tokens halt early saves less, but one of which few
halt can save more: rounds then have masks or places of rows, and act a second input of keys and values.
"""

# Why formulas, when running the model under `torch.autograd.graph.saved_tensors_hooks` gives the same numbers (tests do
# that)? A pass needs values where a count has none: meta and fake tensors stop at the first question about them (is
# there padding, who halts, which expert). Real passes over a few short sentences, extrapolated, take about a thousand
# times as long and need torch; and hooks say neither which part a tensor belongs to nor what a recomputed step saves.

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ostinato.budget.attention_activations import turns_bytes
from ostinato.budget.by_round import time_bytes
from ostinato.budget.loops import PlannedSegment, planned_segments
from ostinato.budget.recurrent import recurrent_bytes
from ostinato.budget.sizes import (
    PlannedUse,
    embedding_map_weights,
    keys_width,
    n_choices,
    n_outputs,
    planned_uses,
    plans,
    transform_weights,
    value_gate_size,
    vocabulary,
)
from ostinato.budget.sub_layer_activations import (
    copied_weights,
    norm_bytes,
    reads_what_enters_the_step,
    saves_its_states,
    use_bytes,
)
from ostinato.budget.training_pass import FLOAT, ID, TrainingPass, reads_expected_states
from ostinato.config.halting import ActConfig, ExitConfig, SelectConfig, StickBreakingConfig, TokenChoiceConfig
from ostinato.config.positions import AlibiConfig, BucketsConfig, RotaryConfig
from ostinato.config.sub_layers import AttentionConfig


def activation_parts(run: TrainingPass, n_steps: int | None, vocab_size: int | None) -> dict[str, int]:
    """Return the bytes by part: ``<stack>.<kind>``, ``.norms``, ``.dropout``, ``embeddings``, ``output``, ``copies``.

    ``<stack>.<kind>.router`` is what choosing experts saves, ``<stack>.halting`` what gates and mixed states do.
    ``copies`` are the bfloat16 copies of weights. Where steps are recomputed, a stack saves ``<stack>.steps`` (the
    states between them) and what all its steps share; ``recomputed`` is all that the most costly step saves while its
    own backward pass runs.
    """
    config, parts = run.config, Counter[str]()
    uses = list(planned_uses(config, n_steps))
    steps: dict[tuple[str, int], Counter[str]] = {}
    for planned in uses:
        steps.setdefault((planned.stack, planned.step), Counter()).update(use_bytes(run, planned))
    side_by_side = Counter((one.stack, one.step) for one in uses if reads_what_enters_the_step(one))
    for (stack, step), n_readers in side_by_side.items():
        # Their norms save the same states, once.
        steps[stack, step][f"{stack}.norms"] -= (n_readers - 1) * FLOAT * run.tokens(stack) * config.d_model
    (*_, last) = config.readers()
    behind = {one.step for one in uses if one.stack == last and one.is_after_loop}
    for (stack, step), saved in steps.items():
        # What follows the loop runs once for every prediction.
        n = run.n_predictions if stack == last and step in behind else 1
        if run.is_recomputed:
            parts[f"{stack}.steps"] += n * FLOAT * run.tokens(stack) * config.d_model
        else:
            parts.update({part: n * n_bytes for part, n_bytes in saved.items()})
    if run.is_recomputed:
        parts["recomputed"] = max((saved.total() for saved in steps.values()), default=0)
    loops = {own.stack: own for own in planned_segments(config, n_steps) if own.segment.is_loop}
    for name, plan in plans(config, n_steps).items():
        first = {one.round: one for one in reversed(uses) if one.stack == name and one.is_looped}
        looped = loops.get(name)
        parts[f"{name}.halting"] += _halting(run, name, [first.get(r) for r in range(plan.n_rounds)], looped)
    for own in planned_segments(config, n_steps):
        tokens = run.tokens(own.stack)
        n_after = run.n_predictions if own.stack == last else 1
        n = n_after if own.is_after_loop else 1
        parts[own.part] += n * own.saved_of_injection(tokens, config.d_model, run.width)
        if own.segment.time is not None:
            parts[f"{own.stack}.modulation"] += n * time_bytes(config.d_model, own.n_rounds)
        for name in own.norms:
            parts[f"{own.stack}.norms"] += n * norm_bytes(own.norm_of(name), tokens, config.d_model)
        if own.is_loop and n_after > 1:  # its end is that of every prediction
            parts[own.part] += (n_after - 1) * own.saved_at_end(tokens, config.d_model, run.width)
            if (end := own.segment.end_norm) is not None:
                parts[f"{own.stack}.norms"] += (n_after - 1) * norm_bytes(own.norm_of(end), tokens, config.d_model)
        parts["copies"] += run.copy_of(sum(w.products for w in (own.of_input, own.of_rounds, own.end_map)))
    parts.update(_shared(run, uses))
    parts.update(recurrent_bytes(run))
    parts.update(_ends(run, vocabulary(config, "target", vocab_size)))
    return {part: n for part, n in parts.items() if n}


def _ends(run: TrainingPass, n_rows: int) -> Counter[str]:
    """Return what embeddings, final norms, output projection or head, and loss save."""
    config, found = run.config, Counter[str]()
    width = config.embedding_width
    (*_, last), outputs = config.readers(), n_outputs(config)
    for name, stack in config.stacks().items():
        words = run.tokens(name) * (config.max_words or 1)
        found["embeddings"] += ID * words
        # The words that masks multiply, and which of them are padding: every fact is taken to be the longest.
        found["facts"] += 0 if config.max_words is None else words * (FLOAT * width + 1)
        found[f"{name}.dropout"] += run.tokens(name) * width if config.dropout else 0
        if stack.norm.has_final:
            n_ends = run.n_predictions if name == last else 1
            found[f"{name}.norms"] += n_ends * norm_bytes(stack.norm.of_final, run.tokens(name), config.d_model)
        found[f"{name}.norms"] += norm_bytes(stack.norm, run.tokens(name), width) if stack.norm.embedding else 0
        # All sentences have the same positions.
        found["embeddings"] += ID * run.lengths[name] if stack.positions.kind == "learned" else 0
        if mapped := embedding_map_weights(config).products:
            found["embeddings"] += run.width * run.tokens(name) * width
            found["copies"] += run.copy_of(mapped)
    tokens = run.tokens(last)
    if outputs is None:
        of_one = run.width * tokens * width + FLOAT * tokens * n_rows + ID * tokens
        of_one += _transform_bytes(run, tokens)
        # The cap keeps tanh.
        of_one += 0 if config.output.soft_cap is None else FLOAT * tokens * n_rows
        found["output"] = run.n_predictions * of_one
        found["copies"] += run.copy_of(n_rows * width + transform_weights(config).products)
        return found
    n_read = run.batch if config.reads == "classification" else tokens
    n_labels = 2 * run.batch if config.reads == "span" else n_read
    # A head reads states after dropout of its own, which is torch's and saves numbers.
    read = (run.width + (FLOAT if config.dropout else 0)) * n_read * config.d_model
    found["head"] = run.n_predictions * (read + FLOAT * n_read * outputs + ID * n_labels)
    found["copies"] += run.copy_of(outputs * config.d_model)
    return found


def _transform_bytes(run: TrainingPass, tokens: int) -> int:
    """Return what the transform before the output projection saves: its input, what is activated, and its norm's."""
    transform, width = run.config.output.transform, run.config.embedding_width
    if transform is None:
        return 0
    saved = run.width * tokens * run.config.d_model
    # What relu gives is what it saves, and what is read next, as long as that is no copy; others save what they read.
    is_copied = run.is_mixed if transform.norm is not None else run.config.output.scale_at(run.config.d_model) != 1.0
    if transform.activation != "none" and (transform.activation != "relu" or is_copied):
        saved += run.width * tokens * width
    return saved + (0 if transform.norm is None else norm_bytes(transform.norm, tokens, width))


def _shared(run: TrainingPass, uses: Iterable[PlannedUse]) -> Counter[str]:
    """Return what a pass makes once for all steps that share it; it is saved even where steps are recomputed."""
    d_model, found = run.config.d_model, Counter[str]()
    sets: dict[tuple[str, str], PlannedUse] = {}
    tables: set[str] = set()
    for planned in uses:
        # In order, so that a set is used whole by its first use if by any.
        sets.setdefault((planned.use.kind, planned.use.weights), planned)
        if value_gate_size(planned) and (values := f"values {planned.use.values}") not in tables:
            tables.add(values)
            width = keys_width(planned.stack_config.self_attention, d_model)
            found[f"{planned.stack}.self_attention"] += FLOAT * run.tokens(planned.stack) * width
            found["copies"] += 0 if run.is_recomputed else run.copy_of(value_gate_size(planned))
        if planned.use.position is not None and planned.use.position not in tables:
            tables.add(planned.use.position)
            found[f"{planned.stack}.self_attention"] += _table_bytes(run, planned)
    is_memory_saved = False
    for planned in sets.values():
        if not run.is_recomputed:
            found["copies"] += run.copy_of(copied_weights(planned, d_model)[1])
        if planned.use.kind == "cross_attention" and isinstance(planned.sub, AttentionConfig):
            attention, memory = planned.sub, run.tokens("encoder")
            inner = keys_width(attention, d_model)
            # Where plain products drop weights every use saves copies of its own, unless it is recomputed.
            repeats, lie_in_order = attention.n_key_heads < attention.n_heads, attention.qk_norm != "none"
            copies = repeats or (run.copies_heads(attention) and not lie_in_order)
            is_copied = attention.dropout and run.is_mixed and copies and not run.is_recomputed
            saved = 0 if is_copied else 2 * memory * inner
            # One tensor of states serves all sets, unless autocast copies it for each.
            saved += memory * d_model if run.is_mixed or not is_memory_saved else 0
            found[f"{planned.stack}.cross_attention"] += run.width * saved + _key_norm_bytes(run, attention, memory)
            found["copies"] += run.copy_of(2 * inner * d_model)
            is_memory_saved = True
    return found


def _table_bytes(run: TrainingPass, planned: PlannedUse) -> int:
    """Return what one table of relative positions saves once a pass for all steps that use it."""
    squared = run.lengths[planned.stack] ** 2
    match planned.relative:
        case BucketsConfig():
            return ID * squared
        case RotaryConfig() as rotary:
            return turns_bytes(run, planned, rotary)
        case AlibiConfig(reach=None) if isinstance(planned.sub, AttentionConfig) and not run.is_mixed:
            # A stack that hides keys makes a mask of it at every step, and so do several queries a token.
            is_shared = not run.mask(planned.stack) and n_choices(planned.sub) == 1
            return FLOAT * planned.sub.n_heads * squared if is_shared else 0
    return 0


def _key_norm_bytes(run: TrainingPass, attention: AttentionConfig, n_keys: int) -> int:
    """Return what the norm of the memory's keys saves: its input, their roots, and what its weights multiply."""
    if attention.qk_norm == "none":
        return 0
    width = keys_width(attention, run.config.d_model)
    # In float32 the input is packed with the values.
    numbers = (1 if run.is_mixed else 2) * width + attention.n_key_heads
    return FLOAT * n_keys * (numbers + (width if attention.qk_norm == "rms" else 0))


def _halting(run: TrainingPass, stack: str, firsts: list[PlannedUse | None], loop: PlannedSegment | None) -> int:
    """Return what a stack's gates and mixed states save, and what is held for recomputed steps.

    Args:
        firsts: for every round the first use in it, None for a round in which nothing runs.
        loop: the segment in which tokens halt, of a stack that has some.
    """
    config, numbers = run.config.stacks()[stack], FLOAT * run.tokens(stack)
    states, n_rounds = numbers * run.config.d_model, len(firsts)
    # A gate is asked before the signal of the next round is added to the states it reads.
    has_signal = config.positions.kind == "coordinates" or (loop is not None and loop.segment.vectors is not None)
    if loop is not None and loop.changes_states:
        # So it is with what is injected, which may save the states that it changes itself.
        has_signal = not loop.saves_states(run.width)
    match config.halting:
        case StickBreakingConfig() as rule:
            saved = (n_rounds - 1) * ((3 if rule.dropout else 2) * states + 4 * numbers)
            # What is left is a constant as long as no gate was asked.
            saved += n_rounds * numbers + (states if n_rounds > 1 else 0)
            for planned in firsts[1:]:
                if loop is not None and loop.saves_states(run.width):
                    continue
                if planned is None and not has_signal:
                    continue  # the same states enter the next round, and are counted there
                is_saved = run.is_recomputed or saves_its_states(run, planned)
                is_saved = is_saved or (planned is not None and reads_expected_states(planned))
                saved += states if has_signal or not is_saved else 0
            return saved + ((n_rounds - 1) * states if run.is_recomputed else 0)
        case ExitConfig():
            saved = n_rounds * 5 * numbers + (n_rounds - 1) * run.tokens(stack)
            if loop is None or not loop.saves_states(run.width):
                for planned in firsts[1:]:
                    if planned is None and not has_signal:
                        continue  # the same states leave the round, whose gate is counted next
                    is_saved = not has_signal and (run.is_recomputed or saves_its_states(run, planned))
                    saved += 0 if is_saved else states
            # The last ones are saved by the final norm, or by a projection of all of them, which autocast gives a copy.
            is_read = config.norm.has_final or (not run.is_mixed and run.config.reads != "classification")
            return saved + (0 if is_read else states)
        case SelectConfig() as rule:
            saved = 0
            for planned, capacity in zip(firsts, rule.capacities_of(n_rounds), strict=True):
                if capacity is None:
                    continue
                saved += states + (2 if capacity == 1 else 3) * numbers
                # The scores, where nothing else has kept them.
                saved += numbers if rule.z and capacity == 1 else 0
                if loop is not None and loop.saves_states(run.width):
                    continue
                if planned is None and rule.mix == "add" and not has_signal:
                    continue  # the round leaves them as they are
                is_saved = planned is not None and (run.is_recomputed or saves_its_states(run, planned))
                saved += states if has_signal or not is_saved else 0
            return saved
        case TokenChoiceConfig() as rule:
            # Probabilities and what each round leaves; the places of gates, and gates; who ends in a round.
            saved = n_rounds * (numbers + states + run.tokens(stack)) + 3 * numbers
            saved += (n_rounds + 1) * numbers if rule.z else 0
            planned = firsts[0]
            # A round that leaves them as they are leaves those that the router reads.
            is_saved = planned is None or run.is_recomputed or saves_its_states(run, planned)
            return saved + (states if has_signal or not is_saved else 0)
        case ActConfig() as rule:
            saved = n_rounds * numbers * (3 if rule.scope == "global" else 2)
            saved += run.tokens(stack) * (2 * n_rounds - 1)  # masks
            saved += (n_rounds if has_signal else 1) * states
            saved += (n_rounds - 1) * (states + numbers) if rule.mix == "interpolate" else 0
            if run.is_recomputed:
                return saved
            # What leaves a round in which nothing runs is what entered it.
            return saved + states * sum(one is not None and not saves_its_states(run, one) for one in firsts)
    return 0
