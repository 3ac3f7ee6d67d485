"""Tokenizers of pieces of words, by models of the `tokenizers` library.

- bpe, unigram: pieces of UTF-8 bytes, so that no text is unknown; ``decode(encode(x)) == x``.
- file: an existing ``tokenizer.json``, whose own ids are moved up by four; as lossless as that file is.
- hf: an existing ``tokenizer.json`` with its own ids and special symbols; see `KeptTokenizer`.

`ostinato.data.subwords` trains such models.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import tokenizers

from ostinato.config.special_ids import SpecialIds
from ostinato.data.tokenizer import N_SPECIAL, UNK_ID, UNKNOWN_TEXT, Tokenizer, Unknown, unknown_symbol
from ostinato.errors import DataError

_PRIVATE = "\ue000"
"""Of Unicode's private use area: around names that no text has."""
_UNKNOWN = f"{_PRIVATE}unknown{_PRIVATE}"


class SubwordTokenizer(Tokenizer):
    """A model of the `tokenizers` library, its ids moved up by four.

    Args:
        content: the JSON text of the model.
        leading_space: whether texts are encoded with one space before them, which `decode` removes; see `subwords`.

    Raises:
        ValueError: the JSON is no such model.
    """

    def __init__(self, kind: str, content: str, leading_space: bool) -> None:
        self.kind, self.leading_space = kind, leading_space
        # Its special symbols are none of ours: a text may have them.
        self._model = _PlainTextModel(content, hides_special=False)
        self._unknown, self._n_pieces = self._model.unknown, self._model.n_ids
        self.vocab_size = N_SPECIAL + self._n_pieces

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`."""
        encoding = self._tokenize(text)
        pieces: list[int] = encoding.ids
        if unknown == "error" and self._unknown is not None and self._unknown in pieces:
            start, end = self._characters(encoding)[pieces.index(self._unknown)]
            raise unknown_symbol(text[start:end], f"{self._n_pieces} pieces")
        return [UNK_ID if piece == self._unknown else N_SPECIAL + piece for piece in pieces]

    def moved_up(self, first: Sequence[str]) -> dict[str, Any]:
        """Return the model as JSON with our ids.

        Args:
            first: texts of the special symbols, which have the ids before the model's own, from 0.

        Raises:
            ValueError: the model has such a piece, which would then have two ids.
        """
        content = self._model.content()
        model, shift = content["model"], len(first)
        if taken := [text for text in first if self._model.id_of(text) is not None]:
            raise ValueError(f"it has pieces {taken}, which are special symbols")
        if isinstance(model["vocab"], list):  # unigram: pieces with scores, in the order of their ids
            worst = min((score for _, score in model["vocab"]), default=0.0)
            model["vocab"] = [[text, worst] for text in first] + model["vocab"]
            unknown: dict[str, Any] = {"unk_id": UNK_ID}
        else:
            numbered = {piece: i + shift for piece, i in model["vocab"].items()}
            model["vocab"] = {text: i for i, text in enumerate(first)} | numbered
            unknown = {"unk_token": first[UNK_ID]}
        if self._unknown is not None:  # its own piece would give unknown text another id than `encode` does
            model |= unknown
        for added in content["added_tokens"]:
            added["id"] += shift
        content["post_processor"] = None
        if self.leading_space:
            content["normalizer"] = {"type": "Prepend", "prepend": " "}
            strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], strip]}
        return content

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of every piece; see `Tokenizer.spans`."""
        return [_without_space(text, start, end) for start, end in self._characters(self._tokenize(text))]

    def _tokenize(self, text: str) -> tokenizers.Encoding:
        try:
            return self._model.encode(" " + text if self.leading_space else text, with_others=False)
        # Half of a surrogate pair, or an unknown symbol where the model has no unknown token.
        except Exception as error:
            raise DataError(f"cannot tokenize {text!r}: {error}") from error

    def _characters(self, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
        shift = int(self.leading_space)
        return [(max(start - shift, 0), end - shift) for start, end in encoding.offsets]

    def _text(self, ids: Sequence[int]) -> str:
        if self._unknown is not None:
            pieces = [self._unknown if i == UNK_ID else i - N_SPECIAL for i in ids]
            text = self._model.decode(pieces, with_special=True)
        else:  # pieces of bytes: no text is unknown, but a model may write that id
            parts = []
            for is_unknown, group in groupby(ids, key=lambda i: i == UNK_ID):
                pieces = [i - N_SPECIAL for i in group]
                parts.append(UNKNOWN_TEXT if is_unknown else self._model.decode(pieces, with_special=True))
            text = "".join(parts)
        return text.removeprefix(" ") if self.leading_space else text

    def _content(self) -> dict[str, Any]:
        return {"leading_space": self.leading_space, "model": self._model.content()}


class KeptTokenizer(Tokenizer):
    """A model of the `tokenizers` library as it is: its own ids, special symbols and post-processing.

    What its post-processing puts around a text belongs to the text, but for the begin symbol before it and the end
    symbol behind it, which rows of ids have anyway. Special symbols in a text are plain text, and are left out of what
    `decode` returns.

    Args:
        content: the JSON text of the model. special_ids: which of its ids begin, end, pad and mask.
        vocab_size: rows of the embedding it is for; None: its greatest id plus one.

    Raises:
        ValueError: the JSON is no such model, or has no special symbols of these ids.
    """

    kind = "hf"

    def __init__(self, content: str, special_ids: SpecialIds, vocab_size: int | None = None) -> None:
        self._model = _PlainTextModel(content, hides_special=True)
        self.unknown_id = self._model.unknown
        self.vocab_size = self._model.n_ids if vocab_size is None else vocab_size
        added = {int(one["id"]) for one in json.loads(content).get("added_tokens") or () if one["special"]}
        # Special symbols that no text becomes need no row: published models lack that of a mask, or of padding.
        if (n_ids := self._model.n_ids_but(added)) > self.vocab_size:
            raise ValueError(f"it has {n_ids} ids, and the embedding {self.vocab_size} rows")
        self.special_ids = special_ids
        named = {i for _, i in special_ids if i is not None}
        if too_large := sorted(i for i in named if i >= self.vocab_size):
            raise ValueError(f"special ids {too_large} are not below its {self.vocab_size} ids")
        self.special_tokens = frozenset(added | named | (set() if self.unknown_id is None else {self.unknown_id}))

    @property
    def special_texts(self) -> dict[int, str]:
        """How special symbols are shown, by their ids."""
        return {i: self._model.text_of(i) or "<pad>" for i in self.special_tokens}

    def to_json(self) -> str:
        """Return the text of its tokenizer.json."""
        return json.dumps(self._model.content(), ensure_ascii=False, indent=2)

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`."""
        pieces = self._pieces(text)
        ids = [piece for piece, _ in pieces]
        if unknown == "error" and self.unknown_id is not None and self.unknown_id in ids:
            start, end = pieces[ids.index(self.unknown_id)][1]
            raise unknown_symbol(text[start:end], f"{self.vocab_size} pieces")
        return ids

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of every piece; see `Tokenizer.spans`."""
        return [_without_space(text, start, end) for _, (start, end) in self._pieces(text)]

    def _pieces(self, text: str) -> list[tuple[int, tuple[int, int]]]:
        """Return ids and characters, without the begin and end symbol that post-processing adds."""
        try:
            found = self._model.encode(text, with_others=True)
        except Exception as error:  # half of a surrogate pair, or an unknown symbol where there is no unknown token
            raise DataError(f"cannot tokenize {text!r}: {error}") from error
        pieces, added = list(zip(found.ids, found.offsets, strict=True)), found.special_tokens_mask
        first = int(bool(pieces) and bool(added[0]) and pieces[0][0] == self.special_ids.bos)
        last = len(pieces) - int(len(pieces) > first and bool(added[-1]) and pieces[-1][0] == self.special_ids.eos)
        return pieces[first:last]

    def _text(self, ids: Sequence[int]) -> str:
        return self._model.decode(ids, with_special=False)

    def _content(self) -> dict[str, Any]:
        return {
            "special_ids": self.special_ids.model_dump(),
            "vocab_size": self.vocab_size,
            "model": self._model.content(),
        }


class _PlainTextModel:
    """A model of the library to which its special symbols are plain text.

    The library can be told not to look for special symbols in a text; models that have them among their own pieces
    (as Unigram and whole words do) find them all the same, but for `hides_special`: then they get names that no text
    has. A symbol that merges of byte pairs are made of keeps its name.

    Attributes:
        unknown: its id of unknown text, if it has one. n_ids: its greatest id plus one.

    Raises:
        ValueError: the JSON is no such model.
    """

    def __init__(self, content: str, *, hides_special: bool) -> None:
        try:
            model = tokenizers.Tokenizer.from_str(content)
            given = json.loads(content)
            _check_templates(given.get("post_processor"))
            added = [one for one in given.get("added_tokens") or () if hides_special and one["special"]]
            self._special = {int(one["id"]): str(one["content"]) for one in added}
            merged = _merged(given["model"])
            self._names = {text: f"{_PRIVATE}{i}{_PRIVATE}" for i, text in self._special.items() if text not in merged}
            self._texts = {name: text for text, name in self._names.items()}
            if self._names:
                model = tokenizers.Tokenizer.from_str(json.dumps(_renamed(given, self._names)))
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)) from error
        model.encode_special_tokens = True
        model.no_padding()  # this, and truncation, would change a sentence
        model.no_truncation()
        self._model = model
        self.n_ids: int = max(model.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        # Unigram names the id that stands for unknown text, the other models a token.
        settings = given["model"]
        self.unknown: int | None = settings.get("unk_id")
        if self.unknown is None and (token := settings.get("unk_token")) is not None:
            self.unknown = self.id_of(token)

    def n_ids_but(self, special: Collection[int]) -> int:
        """Return one more than the greatest id that a text can become while none of its pieces is one of `special`."""
        around = self.encode("", with_others=True).ids
        unknown = [] if self.unknown is None else [self.unknown]
        pieces = (i for i in self._model.get_vocab(with_added_tokens=True).values() if i not in special)
        return max([*around, *unknown, *pieces], default=-1) + 1

    def encode(self, text: str, *, with_others: bool) -> tokenizers.Encoding:
        """Return the pieces of a text; `with_others`: and what post-processing puts around it."""
        return self._model.encode(text, add_special_tokens=with_others)

    def decode(self, ids: Sequence[int], *, with_special: bool) -> str:
        """Return a text; unknown pieces are `UNKNOWN_TEXT`, with the blanks around them that all pieces have."""
        model = self._model if self.unknown is None or self.unknown not in ids else self._with_unknown
        return str(model.decode(ids, skip_special_tokens=not with_special)).replace(_UNKNOWN, UNKNOWN_TEXT)

    @cached_property
    def _with_unknown(self) -> tokenizers.Tokenizer:
        """The model with a name for unknown pieces that no text has, and by which they are shown.

        A piece that merges make keeps its name, and is shown by it.
        """
        assert self.unknown is not None
        content, name = json.loads(self._model.to_str()), str(self._model.id_to_token(self.unknown))
        names = {} if name in _merged(content["model"]) else {name: _UNKNOWN}
        for added in content["added_tokens"]:
            added["special"] &= added["content"] != name
        return tokenizers.Tokenizer.from_str(json.dumps(_renamed(content, names)))

    def id_of(self, text: str) -> int | None:
        """Return the id of a piece or a special symbol."""
        found: int | None = self._model.token_to_id(self._names.get(text, text))
        return found

    def text_of(self, number: int) -> str | None:
        """Return the text of a piece or a special symbol."""
        found: str | None = self._special.get(number) or self._model.id_to_token(number)
        return found

    def content(self) -> dict[str, Any]:
        """Return the content of its tokenizer.json."""
        return _renamed(json.loads(self._model.to_str()), self._texts)


def _check_templates(processor: Mapping[str, Any] | None) -> None:
    """Refuse a template whose symbols have no ids: the library ends the program when it first uses it."""
    if processor is None:
        return
    for one in processor.get("processors") or ():
        _check_templates(one)
    known = processor.get("special_tokens") or {}
    pieces = [*(processor.get("single") or ()), *(processor.get("pair") or ())]
    symbols = {piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece}
    if lacking := sorted(symbols - known.keys()):
        raise ValueError(f"its post_processor names no ids of the symbols {lacking}, which it puts around texts")


def _merged(model: Mapping[str, Any]) -> set[str]:
    """Return what merges of byte pairs put together, and what comes of it."""
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges") or ()]
    return {text for pair in pairs for text in (*pair, "".join(pair))}


def _renamed(content: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the content of a tokenizer.json in which symbols have other names."""
    model = dict(content["model"])
    if isinstance(vocabulary := model.get("vocab"), dict):
        model["vocab"] = {names.get(text, text): i for text, i in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    added = [one | {"content": names.get(one["content"], one["content"])} for one in content.get("added_tokens") or ()]
    return content | {"model": model, "added_tokens": added}


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return (end - len(piece.lstrip()), start + len(piece.rstrip())) if piece.strip() else (end, end)
