"""Tokenizers whose vocabulary is a closed list: words, characters, labels.

- words: what white space separates; ``decode(encode(x)) == " ".join(x.split())``.
- characters: every character, spaces included; ``decode(encode(x)) == x``.
- classification: a text is one label. tagging: white space separates labels.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from ostinato.config.special_ids import NO_LABEL
from ostinato.data.tokenizer import N_SPECIAL, UNK_ID, UNKNOWN_TEXT, Tokenizer, Unknown, unknown_symbol
from ostinato.errors import DataError

_WORD, _LINE = re.compile(r"\S+"), re.compile(r"\S(?:.*\S)?", re.DOTALL)


class SymbolTokenizer(Tokenizer):
    """A closed list of words or characters; id 4 is the most frequent one."""

    def __init__(self, kind: Literal["words", "characters"], symbols: Sequence[str]) -> None:
        self.kind = self._symbol_kind = kind
        self.symbols = list(symbols)
        self.vocab_size = N_SPECIAL + len(self.symbols)
        self._ids = {symbol: N_SPECIAL + i for i, symbol in enumerate(self.symbols)}
        self._split: Callable[[str], Sequence[str]] = str.split if kind == "words" else list
        self._glue = " " if kind == "words" else ""

    @classmethod
    def count(
        cls,
        kind: Literal["words", "characters"],
        texts: Iterable[str],
        min_count: int = 1,
        vocab_size: int | None = None,
    ) -> SymbolTokenizer:
        """Build the vocabulary of `texts`: most frequent first, then in the order of code points.

        Args:
            min_count: rarer symbols are left out. vocab_size: ids at most, special symbols included; None: no limit.
        """
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(text.split() if kind == "words" else text)
        kept = _by_frequency(counts, min_count)
        if not kept:
            reason = f"none of the {len(counts)} {kind} occurs {min_count} times" if counts else "there is no text"
            raise DataError(f"cannot build a tokenizer of {kind}: {reason}")
        return cls(kind, kept if vocab_size is None else kept[: vocab_size - N_SPECIAL])

    def extended(self, texts: Iterable[str], min_count: int = 1, vocab_size: int | None = None) -> SymbolTokenizer:
        """Return this tokenizer with the new symbols of `texts` after its own, the most frequent first.

        Args:
            min_count: new symbols that are rarer are left out. vocab_size: ids at most, its own included, all of which
                are kept; None: no limit.
        """
        counts = Counter(symbol for text in texts for symbol in self._split(text) if symbol not in self._ids)
        n_new = None if vocab_size is None else max(vocab_size - self.vocab_size, 0)
        return SymbolTokenizer(self._symbol_kind, [*self.symbols, *_by_frequency(counts, min_count)[:n_new]])

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`."""
        ids = [self._ids.get(symbol, UNK_ID) for symbol in self._split(text)]
        if unknown == "error" and UNK_ID in ids:
            symbol = self._split(text)[ids.index(UNK_ID)]
            raise unknown_symbol(symbol, f"{len(self.symbols)} {self.kind}")
        return ids

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of every symbol; see `Tokenizer.spans`."""
        if self.kind == "words":
            return [match.span() for match in _WORD.finditer(text)]
        return [(i, i if symbol.isspace() else i + 1) for i, symbol in enumerate(text)]

    def _text(self, ids: Sequence[int]) -> str:
        return self._glue.join(UNKNOWN_TEXT if i == UNK_ID else self.symbols[i - N_SPECIAL] for i in ids)

    def _content(self) -> dict[str, Any]:
        return {"symbols": self.symbols}


class LabelTokenizer(Tokenizer):
    """A closed list of labels, without special symbols; id 0 is the most frequent one.

    classification: a text is one label, white space at its ends aside. tagging: white space separates labels,
    and `NO_LABEL` is none of them.
    """

    unknown_id = None

    def __init__(self, kind: Literal["classification", "tagging"], labels: Sequence[str]) -> None:
        self.kind = kind
        self.labels = list(labels)
        self.vocab_size = len(self.labels)
        self._ids = {label: i for i, label in enumerate(self.labels)}

    @classmethod
    def count(cls, kind: Literal["classification", "tagging"], texts: Iterable[str]) -> LabelTokenizer:
        """Take the labels of `texts`: most frequent first, then in the order of code points."""
        counts = Counter(label for text in texts for label in _labels(kind, text))
        if not counts:
            raise DataError("there are no labels")
        return cls(kind, _by_frequency(counts))

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the labels' ids; a label that is not in the training data is always an error."""
        found = _labels(self.kind, text)
        for label in found:
            if label not in self._ids:
                some = ", ".join(map(repr, self.labels[:10]))
                raise DataError(f"{label!r} is not among the {len(self.labels)} labels of the training data ({some})")
        return [self._ids[label] for label in found]

    def knows(self, text: str) -> bool:
        """Return whether all labels of a text are in the training data."""
        return all(label in self._ids for label in _labels(self.kind, text))

    def decode(self, ids: Iterable[int]) -> str:
        """Return the labels of ids, with blanks between them."""
        return self._text(list(ids))

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of every label."""
        return [match.span() for match in (_LINE if self.kind == "classification" else _WORD).finditer(text)]

    def _text(self, ids: Sequence[int]) -> str:
        return " ".join(self.labels[i] for i in ids)

    def _content(self) -> dict[str, Any]:
        return {"labels": self.labels}


def _by_frequency(counts: Counter[str], min_count: int = 1) -> list[str]:
    kept = [symbol for symbol, count in counts.items() if count >= min_count]
    return sorted(kept, key=lambda symbol: (-counts[symbol], symbol))


def _labels(kind: str, text: str) -> list[str]:
    return [text.strip()] if kind == "classification" else [label for label in text.split() if label != NO_LABEL]
