"""Subword models of the `tokenizers` library: training on bytes, and lossless decoding.

Trained models see UTF-8 bytes (all 256 are always in the vocabulary, so nothing is unknown) and one space before the
first word, so that a word has the same pieces at the beginning of a text as inside it; `decode` removes it. Special
symbols are not in these vocabularies: `ostinato.data.tokenizer` has ids for them.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ostinato.data.unigram import train_unigram
from ostinato.errors import DataError


class Subwords:
    """Text to pieces and back.

    Args:
        content: the JSON text of a `tokenizers` model.
        leading_space: whether texts are encoded with one space before them.

    Raises:
        ValueError: the JSON is no such model.
    """

    def __init__(self, content: str, leading_space: bool) -> None:
        try:
            self._model = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)) from error
        # The model's special symbols are plain text here, and its padding and truncation would change a sentence.
        self._model.encode_special_tokens = True
        self._model.no_padding()
        self._model.no_truncation()
        self._leading_space = leading_space
        self._unknown = _unknown_piece(json.loads(content)["model"], self._model)
        self.n_pieces = max(self._model.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int | None]:
        """Return piece ids, None for what the model does not know."""
        ids: list[int] = self._tokenize(text).ids
        return [None if piece == self._unknown else piece for piece in ids]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of `text` that every piece stands for."""
        shift = int(self._leading_space)
        return [(max(start - shift, 0), end - shift) for start, end in self._tokenize(text).offsets]

    def first_unknown(self, text: str) -> str:
        """Return the part of `text` that its first unknown piece stands for."""
        encoding = self._tokenize(text)
        start, end = next(
            span for piece, span in zip(encoding.ids, encoding.offsets, strict=True) if piece == self._unknown
        )
        shift = int(self._leading_space)
        return text[max(start - shift, 0) : end - shift]

    def decode(self, pieces: Sequence[int | None], unknown_text: str) -> str:
        """Return the text of pieces, `unknown_text` for every run of None."""
        parts = []
        for is_unknown, group in groupby(pieces, key=lambda piece: piece is None):
            known = [piece for piece in group if piece is not None]
            parts.append(unknown_text if is_unknown else self._model.decode(known, skip_special_tokens=False))
        text = "".join(parts)
        return text.removeprefix(" ") if self._leading_space else text

    def to_dict(self) -> dict[str, Any]:
        """Return the model as JSON data; `from_dict` reads it."""
        return {"leading_space": self._leading_space, "model": json.loads(self._model.to_str())}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Subwords:
        """Build the model that `to_dict` described."""
        return cls(json.dumps(content["model"]), bool(content["leading_space"]))

    def _tokenize(self, text: str) -> tokenizers.Encoding:
        try:
            return self._model.encode(" " + text if self._leading_space else text, add_special_tokens=False)
        # Half of a surrogate pair, or an unknown symbol where the model has no unknown token.
        except Exception as error:
            raise DataError(f"cannot tokenize {text!r}: {error}") from error


def train(kind: str, texts: Iterable[str], n_pieces: int) -> Subwords:
    """Train at most `n_pieces` pieces of bytes, fewer where the texts have no more pairs to merge.

    `TokenizerConfig` checks that `n_pieces` is at least the 256 bytes.

    Raises:
        DataError: there is no text.
    """
    texts = [" " + text for text in texts if text]
    if not texts:
        raise DataError(f"cannot train a {kind} tokenizer: there is no text")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "unigram":
        words = Counter(word for text in texts for word, _ in split.pre_tokenize_str(text))
        model = tokenizers.Tokenizer(models.Unigram(train_unigram(words, alphabet, n_pieces)))
    else:
        model = tokenizers.Tokenizer(models.BPE())
    model.pre_tokenizer = split
    model.decoder = decoders.ByteLevel()
    if kind == "bpe":
        trainer = trainers.BpeTrainer(
            vocab_size=n_pieces, initial_alphabet=alphabet, special_tokens=[], show_progress=False
        )
        with _one_thread():
            model.train_from_iterator(texts, trainer)
    return Subwords(model.to_str(), leading_space=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run the library on one thread: sums then have one order, and processes can fork later without its thread pool."""
    name = "TOKENIZERS_PARALLELISM"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _unknown_piece(model: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> int | None:
    """Return the id that stands for unknown text: Unigram names an id, the other models a token."""
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    token = model.get("unk_token")
    return None if token is None else tokenizer.token_to_id(token)
