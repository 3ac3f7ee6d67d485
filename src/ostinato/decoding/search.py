"""The search loop: one for greedy, sampling and beam search, over any model with `encode` and `step`.

Scores. A hypothesis of n generated tokens (end symbol included) and log-probability s scores s / length_penalty(n);
see `ostinato.decoding.beams.length_penalty`.

Lengths. A sentence may generate at most max_length + floor(max_length_ratio * source tokens) tokens, and must generate
min_length + floor(min_length_ratio * source tokens) of them: before that, the end symbol is impossible. The end symbols
of both sides count; a prefix does not.

Every step ranks the continuations of a sentence's K hypotheses. Those among the first K that are an end symbol finish
and are set aside; the best K others are continued. (Greedy and sampling: K = 1.) A sentence stops

    - at its length limit;
    - greedy, sampling: when its only hypothesis ends;
    - beam search: when no live hypothesis can beat the worst of the n_best best finished ones, even if all its further
      tokens were certain: s / length_penalty(limit) <= worst. Its outputs are those of a search run to the limit. With
      `stopping="count"` also when K hypotheses have finished, although a better one may follow.

The best finished hypotheses are the result; where none finished, the best live ones, marked `finished=False`. The
encoder runs once, a prompt runs once per sentence, sentences that stopped are removed from the batch (but not where
steps are recorded, `ostinato.decoding.static_cache`), and a hypothesis that has finished is replaced by a live one.

Letters: S sentences still in the batch, K hypotheses of each, N proposals of each, T columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from math import floor
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ostinato.config.decoding import DecodingConfig
from ostinato.config.special_ids import SpecialIds
from ostinato.data.batch import Batch, Tokens
from ostinato.decoding.beams import Beams, Hypothesis, Outputs
from ostinato.decoding.proposals import make_proposer, next_log_probs
from ostinato.decoding.static_cache import StaticSteps
from ostinato.errors import ConfigError, DataError, Problem
from ostinato.kernels import on_device, packing
from ostinato.nn.cache import Cache
from ostinato.nn.execution import Execution, RoundsBySentence

# Stopped sentences are removed from the batch when they are at least this part of it: removing copies the cache of the
# others, so that doing it for every single sentence would cost more than it saves. One at its limit goes at once: the
# places after it may be none that the model knows.
_REMOVED_AT = 1 / 8
_NEARLY = 1e-9
"""Ratios are decimal numbers: 0.29 times 100 is 28.999999999999996."""


OnStep = Callable[[Mapping[int, list[int]]], object]
"""Called after every step of a search with the ids so far of every sentence's best live hypothesis, the end symbol
included, by the sentence's row in the first batch. What finishes may be another one."""


@runtime_checkable
class Decodable(Protocol):
    """What the search asks of a model."""

    @property
    def special_ids(self) -> SpecialIds:
        """Ids of padding, begin and end symbol."""

    def encode(self, batch: Batch, *, n_steps: int | None = None) -> Cache:
        """Return the cache that decoding starts from, one row a sentence."""

    def step(self, ids_BT: Tensor, cache: Cache, keep_BT: Tensor | None = None) -> Tensor:
        """Add T target columns to the cache and return the logits after the last one, `[B, V]`, which the search may
        overwrite."""


@runtime_checkable
class HasExecution(Protocol):
    """A model that runs as it is told, as all of this library do."""

    @property
    def current_execution(self) -> Execution:
        """How it runs now."""

    def checked(self, execution: Execution | None) -> Execution:
        """Return how a call runs.

        Raises:
            ConfigError: it cannot run so.
        """


def search(
    model: Decodable,
    batch: Batch,
    config: DecodingConfig,
    prefix: Tokens | None = None,
    n_steps: int | None = None,
    on_step: OnStep | None = None,
    *,
    execution: Execution | None = None,
) -> list[Hypothesis]:
    """Search the best output for every sentence of a batch, in the batch's order; see `search_n_best`."""
    return [found[0] for found in search_n_best(model, batch, config, prefix, n_steps, on_step, execution=execution)]


@runtime_checkable
class Evaluable(Protocol):
    """A model that can be put in evaluation mode, as every `torch.nn.Module` can."""

    def modules(self) -> Iterator[nn.Module]:
        """Return all its modules."""

    def eval(self) -> object:
        """Put it in evaluation mode."""


@contextmanager
def inference(model: Evaluable, *, packs_weights: bool = True) -> Iterator[None]:
    """Put a model in evaluation mode without gradients; afterwards every module has its earlier mode.

    Do not yield from inside: gradients would stay off in the caller's code. The weights must not change, and hooks that
    are registered inside may not be called.

    Args:
        packs_weights: copy weights into the form a CPU multiplies by fastest; see `ostinato.kernels.packed`.
    """
    if training := [module for module in model.modules() if module.training]:
        model.eval()  # of many modules that takes as long as a token
    try:
        with torch.inference_mode(), packing(packs_weights):
            yield
    finally:
        for module in training:
            module.training = True


@torch.inference_mode()
def search_n_best(
    model: Decodable,
    batch: Batch,
    config: DecodingConfig,
    prefix: Tokens | None = None,
    n_steps: int | None = None,
    on_step: OnStep | None = None,
    at_most: int | None = None,
    *,
    execution: Execution | None = None,
) -> list[list[Hypothesis]]:
    """Search the `config.n_best` best outputs for every sentence of a batch, best first, in the batch's order.

    There are fewer where fewer have finished within the length limit. Their ids differ; their texts may not, where a
    tokenizer writes one text in several ways. The model is used as it stands: put it in evaluation mode first.

    Args:
        batch: the sources, also those that a language model reads in one sequence with the target: they become its
            prompt. Of texts a language model only takes the number of sentences.
        prefix: target tokens that are given, padded on the left, begin symbol first: a language model's prompt, or a
            translation's beginning. None: the begin symbol alone. Limits and scores count only what is generated.
        n_steps: rounds to run instead of the plans' own (fully shared plans only).
        on_step: see `OnStep`; an error that it raises ends the search.
        at_most: tokens of an output, where the settings allow more.
        execution: how the model runs, where its `encode` takes one; None: as it does.

    Sampling draws from one stream a sentence, seeded with `config.seed` and its row number `batch.indices` (its place
    in the batch where there is none).

    Raises:
        ConfigError: `cached_rounds` of a model that cannot keep some rounds only; rounds by sentence, of which some
            leave the batch. DataError: a prefix that does not fit the batch or is padded on the right.
    """
    n_sentences = batch.n_sentences
    if n_sentences == 0:
        return []
    special_ids = model.special_ids
    prompt = make_prompt(batch, prefix, special_ids)
    given: dict[str, Any] = {} if execution is None else {"execution": execution}
    if execution is None and isinstance(model, HasExecution):
        execution = model.current_execution
    if execution is not None and isinstance(execution.rounds.get("decoder"), RoundsBySentence):
        raise ConfigError([Problem("rounds.decoder", "by sentence", "a search gives all its sentences one number")])
    is_static = config.static_cache or (execution is not None and execution.static_cache)
    lengths = _lengths(batch, prompt, config, getattr(model, "longest_target", None), at_most, is_static=is_static)
    if batch.prefix_lengths_B is None:  # texts: what a prefix language model is given, is its prefix
        batch = replace(batch, prefix_lengths_B=prompt.keep_BT.sum(1))
    device = prompt.ids_BT.device
    indices = batch.indices or range(n_sentences)
    propose = make_proposer(config, indices, [most for _, most in lengths], device)
    cache = model.encode(batch, n_steps=n_steps, **given)
    if (config.cached_rounds is not None or is_static) and execution is not None and isinstance(model, HasExecution):
        n_kept = execution.cached_rounds or config.cached_rounds  # what a call says comes first
        cache.execution = model.checked(replace(execution, cached_rounds=n_kept, static_cache=is_static))
    logits_RV = model.step(prompt.ids_BT, cache, prompt.keep_BT)
    if cache.execution is not None and cache.execution.static_cache:
        # Other ways may read numbers, for which no recorded step waits.
        cache.execution = replace(cache.execution, expert_backend="dense", compaction="never")
    K = config.beam
    if K > 1:
        cache.expand(K, n_sentences)
        logits_RV = logits_RV.repeat_interleave(K, dim=0)
    beams = Beams(lengths, config, special_ids.eos, device)
    is_static = cache.execution is not None and cache.execution.static_cache
    n_steps_left = max(most for _, most in lengths) - 1  # nothing follows the last token
    step = StaticSteps(model.step, cache, n_steps_left) if is_static else lambda ids_R1: model.step(ids_R1, cache)
    removed_at = 1.0 if is_static else _REMOVED_AT  # fewer rows would be another step
    outputs: list[Outputs] = []
    while True:
        x_RV, so_far_SK = next_log_probs(logits_RV, beams.log_prob_SK, special_ids)
        beams.advance(propose(beams.mask_early_ends(x_RV), so_far_SK, beams.length))
        if on_step is not None:
            on_step(beams.leading())
        stopped = beams.who_stopped()
        n_stopped = sum(stopped)
        is_over = n_stopped == len(stopped)
        is_due = n_stopped >= removed_at * len(stopped) or (beams.has_reached_a_limit and not is_static)
        if not is_over and K > 1:
            cache.reorder(beams.continued())
        if is_over or (n_stopped and is_due):
            outputs.append(beams.outputs([i for i, stop in enumerate(stopped) if stop]))
            if is_over:
                break
            stay = [i for i, stop in enumerate(stopped) if not stop]
            stay_S = on_device(stay, device)
            beams.keep(stay, stay_S)
            propose.keep(stay_S)
            cache.keep(stay_S)
        logits_RV = step(beams.last_ids_R1)
    found = dict(chain.from_iterable(output.read() for output in outputs))
    return [found[row] for row in range(n_sentences)]


def _lengths(
    batch: Batch,
    prompt: Tokens,
    config: DecodingConfig,
    longest: int | None,
    at_most: int | None = None,
    *,
    is_static: bool,
) -> list[tuple[int, int]]:
    """Return the least and the most tokens of every sentence, by the length of its source, or else of its prompt.

    The most is at least one token, and the least is never more than the most.

    Args:
        longest: columns that the decoder has positions for, of which the prompt takes some; None: any number.
        at_most: see `search_n_best`.
        is_static: see `Execution.static_cache`.
    """
    if config.max_length_ratio == config.min_length_ratio == 0.0:
        sources = [0] * batch.n_sentences
    elif batch.prefix_lengths_B is not None:
        sources = batch.prefix_lengths_B.tolist()
    else:
        sources = (prompt if batch.source is None else batch.source).keep_BT.sum(dim=1).tolist()
    found = []
    given = [0] * batch.n_sentences
    if longest is not None:  # in tensors of fixed sizes all rows go on until the last one ends
        given = [prompt.ids_BT.shape[1]] * batch.n_sentences if is_static else prompt.keep_BT.sum(1).tolist()
    for n, n_given in zip(sources, given, strict=True):
        more, fewer = (floor(ratio * n + _NEARLY) for ratio in (config.max_length_ratio, config.min_length_ratio))
        most = max(1, config.max_length + more)
        if at_most is not None:
            most = max(1, min(most, at_most))
        if longest is not None:  # the last token is not read again
            most = max(1, min(most, longest - n_given + 1))
        found.append((min(most, config.min_length + fewer), most))
    return found


def make_prompt(batch: Batch, given: Tokens | None, special_ids: SpecialIds) -> Tokens:
    """Return the columns of the target that a search starts from.

    They are the begin symbol, or the prefix that is `given`; where the batch's pairs are one sequence, the source with
    its end symbol comes before it.

    Raises:
        DataError: `given` does not fit the batch or is padded on the right.
    """
    device = batch.target.ids_BT.device
    if given is None:
        ids_B1 = torch.full((batch.n_sentences, 1), special_ids.bos, device=device)
        given = Tokens(ids_B1, torch.ones_like(ids_B1, dtype=torch.bool))
    else:
        n_rows, n_columns = given.ids_BT.shape
        if n_rows != batch.n_sentences:
            raise DataError(f"the prefix has {n_rows} rows, but the batch has {batch.n_sentences} sentences")
        if n_columns == 0 or not bool(given.keep_BT[:, -1].all()):
            raise DataError(
                "every row of a prefix must end in a real token: pad it on the left, and begin it with <bos>"
            )
    if batch.prefix_lengths_B is None:
        return given
    sources = [ids[:n] for ids, n in zip(real_ids(batch.target), batch.prefix_lengths_B.tolist(), strict=True)]
    rows = [source + ids for source, ids in zip(sources, real_ids(given), strict=True)]
    return left_padded(rows, special_ids.pad, device)


def left_padded(sequences: Sequence[Sequence[int]], pad: int, device: torch.device) -> Tokens:
    """Return sequences side by side, padded on the left with an id."""
    width = max(map(len, sequences))
    ids_BT = torch.tensor([[pad] * (width - len(ids)) + list(ids) for ids in sequences], device=device)
    n_padding_B1 = torch.tensor([[width - len(ids)] for ids in sequences], device=device)
    return Tokens(ids_BT, torch.arange(width, device=device) >= n_padding_B1)


def real_ids(tokens: Tokens) -> list[list[int]]:
    """Return the ids of every row, without its padding."""
    return [
        [i for i, is_real in zip(ids, keep, strict=True) if is_real]
        for ids, keep in zip(tokens.ids_BT.tolist(), tokens.keep_BT.tolist(), strict=True)
    ]
