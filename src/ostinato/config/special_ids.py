"""Which token ids stand for padding, the begin symbol, the end symbol and the mask symbol; the tag of what has none."""

from __future__ import annotations

from collections.abc import Iterator

from ostinato.config.base import Config, SizeOrZero
from ostinato.errors import Problem

NO_LABEL = "<no-label>"
"""Stands in the tags of a sequence for a word that has none: it is read, but is in no loss and no score."""


class SpecialIds(Config):
    """Token ids with a meaning of their own, of source and target alike.

    Two of them may be one id, as in vocabularies whose padding is also the begin symbol (T5) or the end symbol (GPT-2):
    masks, and not ids, say which tokens are padding.
    """

    pad: SizeOrZero = 0
    """What stands behind the end of a shorter sequence; never generated, unless it is the end symbol."""
    bos: SizeOrZero = 1
    """The begin symbol, before every target; never generated, unless it is the end symbol."""
    eos: SizeOrZero = 2
    """The end symbol, after every source and every target."""
    mask: SizeOrZero | None = None
    """The symbol of a masked token, of encoder-only models; null: the row after those of the tokenizer."""

    def size_problems(self, path: str, vocab_size: int) -> Iterator[Problem]:
        """Ids that an embedding of so many rows does not have."""
        for name, value in self:
            if value is not None and value >= vocab_size:
                yield Problem(f"{path}{name}", value, f"must be below the size of the vocabulary, {vocab_size}")
