"""From texts to texts: encode, batch by length, search, decode, in the order given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch

from ostinato.config.data import DataConfig
from ostinato.config.decoding import DecodingConfig
from ostinato.data.batch import Tokens
from ostinato.data.batching import Row, evaluation_batches
from ostinato.data.tokenizer import BOS_ID, PAD_ID, Tokenizers
from ostinato.decoding.hypothesis import Hypothesis
from ostinato.decoding.inference import inference
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
    n_steps: int | None = None,
) -> list[Generation]:
    """Return an output for every source (for a language model: every prompt), in the order given.

    Raises:
        DataError: a text that is too long or cannot be encoded, by its number; nothing is generated then.
    """
    rows = [_encode(model, text, index, tokenizers, data) for index, text in enumerate(texts)]
    return _generate(model, rows, tokenizers, data, config, n_steps)


def generate_stream(
    model: Seq2Seq | LanguageModel,
    texts: Iterable[str],
    tokenizers: Tokenizers,
    data: DataConfig,
    config: DecodingConfig,
    *,
    n_steps: int | None = None,
    window: int = _WINDOW,
) -> Iterator[Generation | DataError]:
    """Yield for every text its output, or the error that kept it from having one, in the order given.

    `window` texts are read, answered, and forgotten at a time. Sampled outputs do not depend on the window.
    """
    numbered = enumerate(texts)
    while chunk := list(islice(numbered, window)):
        answers: dict[int, Generation | DataError] = {}
        rows = []
        for index, text in chunk:
            try:
                rows.append(_encode(model, text, index, tokenizers, data))
            except DataError as error:
                answers[index] = error
        found = _generate(model, rows, tokenizers, data, config, n_steps)
        answers.update((row.index, generation) for row, generation in zip(rows, found, strict=True))
        for index, _ in chunk:
            yield answers[index]


def _encode(model: Seq2Seq | LanguageModel, text: str, index: int, tokenizers: Tokenizers, data: DataConfig) -> Row:
    """Encode a source, or a prompt as the target; its end or begin symbol counts towards the longest length."""
    is_prompt = isinstance(model, LanguageModel)
    tokenizer, longest, key = (
        (tokenizers.target, data.max_target_length, "max_target_length")
        if is_prompt
        else (tokenizers.source, data.max_source_length, "max_source_length")
    )
    try:
        ids = tokenizer.encode(text, unknown=data.unknown)
    except DataError as error:
        raise DataError(f"input line {index + 1}: {error}") from error
    if len(ids) >= longest:
        if data.over_length != "truncate":
            fix = f"raise data.{key}, or set data.over_length=truncate"
            raise DataError(f"input line {index + 1}: {len(ids) + 1} tokens, but data.{key} is {longest}: {fix}")
        ids = ids[: longest - 1]
    return Row(None, ids, {}, index) if is_prompt else Row(ids, [], {}, index)


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
            if batch.source is None:
                prompts = _left_padded([by_index[index].target_ids for index in batch.indices], model.device)
            hypotheses = search(model, batch.to(model.device), config, prefix=prompts, n_steps=n_steps)
            found.update(zip(batch.indices, hypotheses, strict=True))
    return [_decoded(found[row.index], tokenizers) for row in rows]


def _decoded(h: Hypothesis, tokenizers: Tokenizers) -> Generation:
    return Generation(tokenizers.target.decode(h.ids), h.score, h.log_prob, h.finished, h.n_tokens)


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> Tokens:
    """Return prompts behind a begin symbol, padded on the left."""
    width = 1 + max(map(len, prompts))
    ids = [[PAD_ID] * (width - 1 - len(prompt)) + [BOS_ID, *prompt] for prompt in prompts]
    ids_BT = torch.tensor(ids, device=device)
    return Tokens(ids_BT, ids_BT != PAD_ID)
