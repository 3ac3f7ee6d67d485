"""Generation of texts from texts: encode, batch by length, search, decode."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, repeat
from typing import Any, Protocol, runtime_checkable

import torch

from ostinato.config.common import CommonModelConfig
from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.config.files import say_once
from ostinato.data.batch import Batch, Tokens
from ostinato.data.batching import evaluation_batches
from ostinato.data.collate import Row
from ostinato.data.inputs import Input
from ostinato.data.tokenizer import Tokenizer
from ostinato.data.tokenizers import Tokenizers
from ostinato.decoding.beams import Hypothesis
from ostinato.decoding.search import Decodable, Evaluable, inference, left_padded, search_n_best
from ostinato.decoding.work import BatchRunner, InThisProcess, batch_key
from ostinato.errors import ConfigError, DataError, Problem

_WINDOW = 4096
"""Inputs read before the first output: enough to sort into batches of equal length."""

END_TEXT = "<eos>"
"""How the end symbol is shown among tokens."""


@runtime_checkable
class TextModel(Decodable, Evaluable, Protocol):
    """What generation of texts asks of a model."""

    @property
    def config(self) -> CommonModelConfig:
        """What the model is."""

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One output.

    Args:
        text: the output with the prefix that was given; a language model's prompt is not repeated: the text goes on
            behind it, with the blank that comes first.
        score, log_prob, finished: see `ostinato.decoding.Hypothesis`.
        n_tokens: number of generated tokens, the end symbol included.
        tokens, token_log_probs: the generated tokens and their log-probabilities; None without `token_scores`. Every
            token is written by itself, behind a prompt as it goes on behind the token before it.
        others: the next best outputs, best first; empty with `n_best` = 1.
    """

    text: str
    score: float
    log_prob: float
    finished: bool
    n_tokens: int
    tokens: list[str] | None = None
    token_log_probs: list[float] | None = None
    others: tuple[Generation, ...] = ()


def generate(
    model: TextModel,
    texts: Sequence[str | Input],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: DecodingConfig,
    *,
    as_prompts: bool = False,
    n_steps: int | None = None,
) -> list[Generation]:
    """Return an output for every text, in the order given.

    Args:
        texts: an `Input` may hold a prefix of its output.
        as_prompts: the texts are prompts of a language model, and not sources.

    Raises:
        DataError: a text that is too long or cannot be encoded, by its number; nothing is generated then.
    """
    generator = _Generator(model, tokenizers, data, config, as_prompts, n_steps, InThisProcess(model))
    rows = [generator.row(text, index) for index, text in enumerate(texts)]
    outputs = generator.finish(generator.start(rows))
    return [outputs[row.index] for row in rows]


def generate_stream(
    model: TextModel,
    texts: Iterable[str | Input],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: DecodingConfig,
    *,
    as_prompts: bool = False,
    n_steps: int | None = None,
    window: int = _WINDOW,
    on_progress: Callable[[int], None] | None = None,
    runner: BatchRunner | None = None,
) -> Iterator[Generation | DataError]:
    """Yield the output of every text, or the error of a text that cannot be encoded, in the order given.

    `window` texts at a time are read, sorted by length and searched. Sampled outputs do not depend on the window. For
    `as_prompts` see `generate`.

    Args:
        on_progress: called after every batch with the number of texts that it finished.
        runner: does the searches (`ostinato.evaluation.workers`); None: this process. With several processes the next
            window is read while one is searched. The outputs are the same.
    """
    if window < 1:
        raise ConfigError([Problem("window", window, "must be at least 1")])
    runner = runner or InThisProcess(model)
    generator = _Generator(model, tokenizers, data, config, as_prompts, n_steps, runner)
    numbered = enumerate(texts)
    started: deque[tuple[list[int], dict[int, Generation | DataError], _Started]] = deque()

    def finish() -> Iterator[Generation | DataError]:
        indices, outputs, searches = started.popleft()
        outputs.update(generator.finish(searches, on_progress))
        for index in indices:
            yield outputs[index]

    while chunk := list(islice(numbered, window)):
        outputs: dict[int, Generation | DataError] = {}
        rows = []
        for index, text in chunk:
            try:
                rows.append(generator.row(text, index))
            except DataError as error:
                outputs[index] = error
        if on_progress is not None and outputs:
            on_progress(len(outputs))
        started.append(([index for index, _ in chunk], outputs, generator.start(rows)))
        if len(started) > bool(runner.n_ahead):
            yield from finish()
    while started:
        yield from finish()


@dataclass(frozen=True, slots=True)
class Search:
    """The `ostinato.decoding.work.Work` of generation: `search_n_best` of a batch and the prefixes of its outputs."""

    config: DecodingConfig
    n_steps: int | None = None

    def __call__(self, model: TextModel, item: tuple[Batch, Tokens | None]) -> list[list[Hypothesis]]:
        """Return the outputs of every sentence."""
        batch, prefix = item
        moved = None if prefix is None else prefix.to(model.device)
        return search_n_best(model, batch.to(model.device), self.config, moved, self.n_steps)

    def pack(self, result: list[list[Hypothesis]]) -> list[list[dict[str, Any]]]:
        """Return a result as what JSON can hold."""
        return [[asdict(one) for one in found] for found in result]

    def unpack(self, packed: list[list[dict[str, Any]]]) -> list[list[Hypothesis]]:
        """Return the result that was packed."""
        return [[Hypothesis(**one) for one in found] for found in packed]

    def key(self, item: tuple[Batch, Tokens | None]) -> str:
        """Return what tells a batch from others."""
        return batch_key(*item, asked=(self.config, self.n_steps))


@dataclass(frozen=True, slots=True)
class _Started:
    """Rows whose outputs are searched: the target ids given of every row, the batches, and how to wait for each."""

    given: dict[int, list[int]]
    batches: list[tuple[Batch, Callable[[], list[list[Hypothesis]]]]]


def encode_prompt(model: TextModel, text: str, tokenizer: Tokenizer, data: DataConfig) -> list[int]:
    """Return the ids of a prompt; an empty one has none, although a tokenizer may give it some.

    It is never cut, whatever `data.over_length` says: what is written goes on where it ends. With its begin symbol it
    may have `data.max_target_length` tokens, and no more than there are learned positions.

    Raises:
        DataError: it cannot be encoded, or is too long.
    """
    if not text:
        return []
    ids = tokenizer.encode(text, unknown=data.unknown)
    n, n_positions = 1 + len(ids), getattr(model, "longest_target", None)
    if n_positions is not None and n > n_positions:
        raise DataError(f"{n} tokens, but the model has {n_positions} positions: shorten the prompt")
    if n > (longest := data.max_target_length):
        reason = f"data.max_target_length is {longest}: a prompt is not cut: --set data.max_target_length={n}"
        raise DataError(f"{n} tokens, but {reason}")
    return ids


class _Generator:
    """Encodes inputs as rows, and generates the outputs of rows.

    A row has a source and the prefix of its target, or a prompt as its target; its end or begin symbol counts towards
    the length.
    """

    def __init__(
        self,
        model: TextModel,
        tokenizers: Tokenizers,
        data: DataConfig,
        config: DecodingConfig,
        as_prompts: bool,
        n_steps: int | None,
        runner: BatchRunner,
    ) -> None:
        self.model, self.tokenizers, self.data, self.config = model, tokenizers, data, config
        self.as_prompts, self.runner, self.search = as_prompts, runner, Search(config, n_steps)
        self.special_ids = model.special_ids

    def row(self, text: str | Input, index: int) -> Row:
        """Encode one input.

        Raises:
            DataError: it cannot be encoded, or is too long; names where it stands.
        """
        given = Input(text) if isinstance(text, str) else text
        if given.error is not None:
            raise given.error
        try:
            if self.as_prompts:
                if given.prefix:
                    raise DataError(
                        "a language model's input is itself the beginning of its output: leave out the prefix"
                    )
                ids = encode_prompt(self.model, given.text, self.tokenizers.target, self.data)
                return Row(None, ids, {}, index, special_ids=self.special_ids)
            source = self._source(given.text)
            target: list[int] = []
            if given.prefix:  # of an empty text a tokenizer may make a blank
                target = self.tokenizers.target.encode(given.prefix, unknown=self.data.unknown)
            if target and len(target) >= (longest := self.data.max_target_length):
                reason = f"the beginning of its output has {len(target) + 1} tokens, and is not cut"
                raise DataError(f"{reason}: data.max_target_length is {longest}: raise it")
            is_joined = self.model.config.joins_pairs
            n, n_positions = len(source) + len(target) + 2, getattr(self.model, "longest_target", None)
            if is_joined and n_positions is not None and n > n_positions:
                raise DataError(f"{n} tokens, but the model has {n_positions} positions: shorten the text")
            return Row(source, target, {}, index, is_joined=is_joined, special_ids=self.special_ids)
        except DataError as error:
            raise DataError(f"{given.where or f'input line {index + 1}'}: {error}") from error

    def _source(self, text: str) -> list[int]:
        ids = self.tokenizers.source.encode(text, unknown=self.data.unknown)
        key, longest = "data.max_source_length", self.data.max_source_length
        if len(ids) < longest:
            return ids
        if self.data.over_length == "truncate":
            say_once(f"longer inputs are cut to {key} = {longest} tokens (data.over_length=truncate)")
            return ids[: longest - 1]
        raise DataError(f"{len(ids) + 1} tokens, but {key} is {longest}: raise {key}, or set data.over_length=truncate")

    def start(self, rows: Sequence[Row]) -> _Started:
        """Submit the search of the outputs of rows."""
        given = {row.index: row.target_ids for row in rows}
        budget = max(1, self.data.eval_tokens_per_batch // self.config.beam)
        batches = []
        for batch in evaluation_batches(rows, budget, window=max(1, len(rows))):
            prefixes = [[self.special_ids.bos, *given[index]] for index in batch.indices]
            prefix = None
            if any(len(ids) > 1 for ids in prefixes):
                prefix = left_padded(prefixes, self.special_ids.pad, torch.device("cpu"))
            batches.append((batch, self.runner.submit(self.search, (batch, prefix))))
        return _Started(given, batches)

    def finish(self, started: _Started, on_progress: Callable[[int], None] | None = None) -> dict[int, Generation]:
        """Return the output of every row by its index."""
        outputs: dict[int, Generation] = {}
        with inference(self.model, packs_weights=self.config.pack_weights):
            for batch, wait in started.batches:
                for index, hypotheses in zip(batch.indices, wait(), strict=True):
                    best, *others = (self._generation(hypothesis, started.given[index]) for hypothesis in hypotheses)
                    outputs[index] = replace(best, others=tuple(others))
                if on_progress is not None:
                    on_progress(len(batch.indices))
        return outputs

    def _generation(self, found: Hypothesis, given: list[int]) -> Generation:
        tokenizer, log_probs, ids = self.tokenizers.target, found.token_log_probs, [*given, *found.ids]
        text = tokenizer.decode_after(given, found.ids) if self.as_prompts else tokenizer.decode(ids)
        tokens = None
        if log_probs is not None:
            before = [given[-1:], *([i] for i in found.ids)] if self.as_prompts else repeat(list[int]())
            tokens = [tokenizer.decode_after(last, [i]) for last, i in zip(before, found.ids, strict=False)]
            tokens += [END_TEXT] * found.finished
        return Generation(text, found.score, found.log_prob, found.finished, found.n_tokens, tokens, log_probs)
