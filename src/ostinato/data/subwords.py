"""Training of subword models of the `tokenizers` library.

Trained models see UTF-8 bytes (all 256 are always in the vocabulary, so nothing is unknown) and one space before the
first word, so that a word has the same pieces at the beginning of a text as inside it. Special symbols are not in these
vocabularies: `ostinato.data.tokenizer` has ids for them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from ostinato.data.unigram import train_unigram
from ostinato.errors import DataError


def train_subwords(kind: str, texts: Iterable[str], n_pieces: int) -> str:
    """Train at most `n_pieces` pieces of bytes, fewer where the texts have no more pairs to merge; return JSON.

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
    content: str = model.to_str()
    return content


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
