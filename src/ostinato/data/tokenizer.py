"""What a tokenizer is: text to token ids and back.

Ids 0 to 3 belong to the special symbols and have no text: the entries of a vocabulary begin at id 4. A corpus that
contains the word ``<pad>`` or ``<eos>`` therefore gets an ordinary id for it, and can never end or mask a sentence.
Tokenizers of words, characters and labels are in `ostinato.data.symbols`, those of pieces in `ostinato.data.pieces`;
`ostinato.data.tokenizers` trains and reads them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from ostinato.config.special_ids import SpecialIds
from ostinato.errors import DataError, see
from ostinato.system_errors import naming

_SPECIAL = SpecialIds()
PAD_ID, BOS_ID, EOS_ID, UNK_ID = _SPECIAL.pad, _SPECIAL.bos, _SPECIAL.eos, 3
N_SPECIAL = 4
SPECIAL_TOKENS = frozenset(range(N_SPECIAL))
UNKNOWN_TEXT = "\N{DOUBLE QUESTION MARK}"
"""The text of an unknown token: a sign that hardly occurs in any corpus, so that no reference equals it."""

FORMAT, VERSION = "ostinato-tokenizer", 1
"""What the files of `Tokenizer.save` say they are."""
Unknown = Literal["error", "replace"]


class Tokenizer(ABC):
    """Text to ids and back."""

    kind: str
    vocab_size: int
    """Rows of an embedding table, the special symbols included; of labels their number."""
    special_ids: SpecialIds = _SPECIAL
    """Ids of padding, begin, end and mask symbol."""
    special_tokens: frozenset[int] = SPECIAL_TOKENS
    """All ids that stand for no text."""
    unknown_id: int | None = UNK_ID
    """That of text which is not in the vocabulary; None: there is none."""

    @property
    def special_texts(self) -> dict[int, str]:
        """How special symbols are shown, by their ids."""
        return {PAD_ID: "<pad>", BOS_ID: "<bos>", EOS_ID: "<eos>", UNK_ID: "<unk>"}

    @abstractmethod
    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text, without begin and end symbols.

        Raises:
            DataError: a symbol is not in the vocabulary and `unknown` is "error"; the message names it.
        """

    def lacks(self, texts: Iterable[str]) -> bool:
        """Return whether it reads a symbol of these texts as the unknown token."""
        unknown = self.unknown_id
        return unknown is not None and any(unknown in self.encode(text, unknown="replace") for text in texts)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without padding, begin and end symbols; an unknown token is `UNKNOWN_TEXT`.

        Raises:
            DataError: an id is outside the vocabulary.
        """
        special = self.special_ids
        kept = [int(i) for i in ids if i not in (special.pad, special.bos, special.eos)]
        for i in kept:
            if not 0 <= i < self.vocab_size:
                raise DataError(f"token id {i} is outside the vocabulary of {self.vocab_size} ids")
        return self._text(kept)

    def decode_after(self, before: Sequence[int], ids: Sequence[int]) -> str:
        """Return what `decode` of all these ids writes behind that of `before`: with the blank between them.

        Where the whole does not begin with the text of `before` (which may end within a character), the text of `ids`
        alone.
        """
        first, whole = self.decode(before), self.decode([*before, *ids])
        return whole.removeprefix(first) if whole.startswith(first) else self.decode(ids)

    @abstractmethod
    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return for every id of `encode` its characters start .. end in the text, without white space at its ends.

        Pieces of one character all have that character. The span of white space alone is empty.
        """

    @abstractmethod
    def _text(self, ids: Sequence[int]) -> str: ...

    @abstractmethod
    def _content(self) -> dict[str, Any]: ...

    def save(self, path: Path) -> None:
        """Write the tokenizer as one JSON file."""
        content = {"format": FORMAT, "version": VERSION, "kind": self.kind, **self._content()}
        with naming(path):
            Path(path).write_text(json.dumps(content, ensure_ascii=True, indent=1) + "\n", encoding="ascii")


def unknown_symbol(symbol: str, vocabulary: str) -> DataError:
    """Return the error that names a symbol without an id."""
    fix = f"data.unknown=replace reads such symbols as the unknown token{see('own-data')}"
    return DataError(f"{symbol!r} is not among the {vocabulary} of the vocabulary, which is the training data's: {fix}")
