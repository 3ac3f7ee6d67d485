"""From texts to texts: encode, batch by length, search, decode, in the order given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.data.batching import Row, evaluation_batches
from ostinato.data.tokenizer import BOS_ID, Tokenizers
from ostinato.decoding.hypothesis import Hypothesis
from ostinato.decoding.inference import inference
from ostinato.decoding.prompts import left_padded
from ostinato.decoding.search import search
from ostinato.errors import DataError
from ostinato.models.language_model import LanguageModel
from ostinato.models.seq2seq import Seq2Seq

_WINDOW = 4096
"""Inputs read before the first of them is answered: enough to sort into batches of equal length."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One output.

    Args:
        text: what was generated; a language model's prompt is not repeated.
        score, log_prob, finished: see `ostinato.decoding.Hypothesis`. n_tokens: generated, the end symbol included.
    """

    text: str
    score: float
    log_prob: float
    finished: bool
    n_tokens: int


def generate_texts(
    model: Seq2Seq | LanguageModel,
    texts: Sequence[str],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: DecodingConfig,
    *,
    as_prompts: bool = False,
    n_steps: int | None = None,
) -> list[Generation]:
    """Return an output for every text, in the order given.

    Args:
        as_prompts: the texts are beginnings for a language model to go on from, and not sources.

    Raises:
        DataError: a text that is too long or cannot be encoded, by its number; nothing is generated then.
    """
    encode = _Encoder(model, tokenizers, data, as_prompts)
    rows = [encode(text, index) for index, text in enumerate(texts)]
    return _generate(model, rows, tokenizers, data, config, n_steps)


def generate_stream(
    model: Seq2Seq | LanguageModel,
    texts: Iterable[str],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: DecodingConfig,
    *,
    as_prompts: bool = False,
    n_steps: int | None = None,
    window: int = _WINDOW,
) -> Iterator[Generation | DataError]:
    """Yield for every text its output, or the error that kept it from having one, in the order given.

    `window` texts are read, answered, and forgotten at a time. Sampled outputs do not depend on the window. For
    `as_prompts` see `generate_texts`.
    """
    encode = _Encoder(model, tokenizers, data, as_prompts)
    numbered = enumerate(texts)
    while chunk := list(islice(numbered, window)):
        answers: dict[int, Generation | DataError] = {}
        rows = []
        for index, text in chunk:
            try:
                rows.append(encode(text, index))
            except DataError as error:
                answers[index] = error
        found = _generate(model, rows, tokenizers, data, config, n_steps)
        answers.update((row.index, generation) for row, generation in zip(rows, found, strict=True))
        for index, _ in chunk:
            yield answers[index]


class _Encoder:
    """Makes a row of a source, or of a prompt as the target; its end or begin symbol counts towards the length."""

    def __init__(
        self, model: Seq2Seq | LanguageModel, tokenizers: Tokenizers, data: DataConfig, as_prompts: bool
    ) -> None:
        self.joins_pairs, self.data, self.as_prompts = model.config.joins_pairs, data, as_prompts
        self.tokenizer, self.longest, self.key = (
            (tokenizers.target, data.max_target_length, "max_target_length")
            if as_prompts
            else (tokenizers.source, data.max_source_length, "max_source_length")
        )

    def __call__(self, text: str, index: int) -> Row:
        """Encode the text of one line."""
        try:
            ids = self.tokenizer.encode(text, unknown=self.data.unknown)
        except DataError as error:
            raise DataError(f"input line {index + 1}: {error}") from error
        if len(ids) >= self.longest:
            if self.data.over_length != "truncate":
                problem = f"{len(ids) + 1} tokens, but data.{self.key} is {self.longest}"
                fix = f"raise data.{self.key}, or set data.over_length=truncate"
                raise DataError(f"input line {index + 1}: {problem}: {fix}")
            ids = ids[: self.longest - 1]
        if self.as_prompts:
            return Row(None, ids, {}, index)
        return Row(ids, [], {}, index, is_joined=self.joins_pairs)


def _generate(
    model: Seq2Seq | LanguageModel,
    rows: Sequence[Row],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: DecodingConfig,
    n_steps: int | None,
) -> list[Generation]:
    by_index = {row.index: row for row in rows}
    found: dict[int, Hypothesis] = {}
    budget = max(1, data.eval_tokens_per_batch // config.beam)
    with inference(model):
        for batch in evaluation_batches(rows, budget, window=max(1, len(rows))):
            prompts = None
            if not batch.has_sources:
                begun = [[BOS_ID, *by_index[index].target_ids] for index in batch.indices]
                prompts = left_padded(begun, model.device)
            hypotheses = search(model, batch.to(model.device), config, prefix=prompts, n_steps=n_steps)
            found.update(zip(batch.indices, hypotheses, strict=True))
    return [_decoded(found[row.index], tokenizers) for row in rows]


def _decoded(h: Hypothesis, tokenizers: Tokenizers) -> Generation:
    return Generation(tokenizers.target.decode(h.ids), h.score, h.log_prob, h.finished, h.n_tokens)
