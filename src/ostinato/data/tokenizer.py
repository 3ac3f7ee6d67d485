"""Text to token ids and back.

Ids 0 to 3 belong to the special symbols and have no text: the entries of a vocabulary begin at id 4. A corpus that
contains the word ``<pad>`` or ``<eos>`` therefore gets an ordinary id for it, and can never end or mask a sentence.

- words: what white space separates; ``decode(encode(x)) == " ".join(x.split())``.
- characters: every character, spaces included; ``decode(encode(x)) == x``.
- bpe, unigram: pieces of UTF-8 bytes, so that no text is unknown; ``decode(encode(x)) == x``.
- file: an existing ``tokenizer.json``, whose own ids are moved up by four; as lossless as that file is.
- hf: an existing ``tokenizer.json`` with its own ids and special symbols; see `KeptTokenizer`.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tokenizers

from ostinato.config.special_ids import SpecialIds
from ostinato.data.disk import read_json_object
from ostinato.data.subwords import train_subwords
from ostinato.errors import CheckpointError, ConfigError, DataError, Problem, see
from ostinato.system_errors import kind_of, naming

if TYPE_CHECKING:
    from ostinato.config.common import Reads
    from ostinato.config.data import DataConfig, TokenizerConfig
    from ostinato.data.example import Example

_SPECIAL = SpecialIds()
PAD_ID, BOS_ID, EOS_ID, UNK_ID = _SPECIAL.pad, _SPECIAL.bos, _SPECIAL.eos, 3
N_SPECIAL = 4
SPECIAL_TOKENS = frozenset(range(N_SPECIAL))
UNKNOWN_TEXT = "\N{DOUBLE QUESTION MARK}"
"""The text of an unknown token: a sign that hardly occurs in any corpus, so that no reference equals it."""

_FORMAT, _VERSION = "ostinato-tokenizer", 1
Unknown = Literal["error", "replace"]
_WORD, _LINE = re.compile(r"\S+"), re.compile(r"\S(?:.*\S)?", re.DOTALL)


class Tokenizer(ABC):
    """Text to ids and back; made by `train`, `load`, or one of the subclasses."""

    kind: str
    vocab_size: int
    """Rows of an embedding table, the special symbols included; of labels their number."""
    special_ids: SpecialIds = _SPECIAL
    """Ids of padding, begin, end and mask symbol."""
    special_tokens: frozenset[int] = SPECIAL_TOKENS
    """All ids that stand for no text."""

    @property
    def special_texts(self) -> dict[int, str]:
        """How special symbols are shown, by their ids."""
        return {PAD_ID: "<pad>", BOS_ID: "<bos>", EOS_ID: "<eos>", UNK_ID: "<unk>"}

    @staticmethod
    def train(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
        """Build the vocabulary of `texts`; the same texts give the same tokenizer in every process.

        Raises:
            DataError: there are no texts, or `config.path` is no tokenizer file.
        """
        if config.kind == "file":
            return _read_existing(Path(str(config.path)))
        if config.kind == "hf":
            return read_kept(Path(str(config.path)))
        if config.kind in ("words", "characters"):
            return SymbolTokenizer.count(config.kind, texts, config.min_count, config.vocab_size)
        model = train_subwords(config.kind, texts, config.n_trained - N_SPECIAL)
        return SubwordTokenizer(config.kind, model, leading_space=True)

    @abstractmethod
    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text, without begin and end symbols.

        Raises:
            DataError: a symbol is not in the vocabulary and `unknown` is "error"; the message names it.
        """

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
        content = {"format": _FORMAT, "version": _VERSION, "kind": self.kind, **self._content()}
        with naming(path):
            Path(path).write_text(json.dumps(content, ensure_ascii=True, indent=1) + "\n", encoding="ascii")

    @staticmethod
    def load(path: Path) -> Tokenizer:
        """Read a tokenizer that `save` wrote.

        Raises:
            CheckpointError: the file is missing, damaged, or of another format or version.
        """
        content = read_json_object(Path(path))
        if content.get("format") != _FORMAT:
            raise CheckpointError(f"{path}: is not an Ostinato tokenizer (data.tokenizer.kind=file reads other ones)")
        return _from_content(content, Path(path))


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
        kept = [symbol for symbol in _by_frequency(counts) if counts[symbol] >= min_count]
        if not kept:
            reason = f"none of the {len(counts)} {kind} occurs {min_count} times" if counts else "there is no text"
            raise DataError(f"cannot build a tokenizer of {kind}: {reason}")
        return cls(kind, kept if vocab_size is None else kept[: vocab_size - N_SPECIAL])

    def extended(self, texts: Iterable[str]) -> SymbolTokenizer:
        """Return this tokenizer with the new symbols of `texts` after its own, the most frequent first."""
        counts = Counter(symbol for text in texts for symbol in self._split(text) if symbol not in self._ids)
        return SymbolTokenizer(self._symbol_kind, [*self.symbols, *_by_frequency(counts)])

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`."""
        ids = [self._ids.get(symbol, UNK_ID) for symbol in self._split(text)]
        if unknown == "error" and UNK_ID in ids:
            symbol = self._split(text)[ids.index(UNK_ID)]
            raise _unknown_symbol(symbol, f"{len(self.symbols)} {self.kind}")
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


class SubwordTokenizer(Tokenizer):
    """A model of the `tokenizers` library, its ids moved up by four.

    Args:
        content: the JSON text of the model.
        leading_space: whether texts are encoded with one space before them, which `decode` removes; see `subwords`.

    Raises:
        ValueError: the JSON is no such model.
    """

    def __init__(self, kind: str, content: str, leading_space: bool) -> None:
        self.kind, self._leading_space = kind, leading_space
        try:
            self._model = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)) from error
        # The model's special symbols are plain text here, and its padding and truncation would change a sentence.
        self._model.encode_special_tokens = True
        self._model.no_padding()
        self._model.no_truncation()
        # Unigram names the id that stands for unknown text, the other models a token.
        settings = json.loads(content)["model"]
        token = settings.get("unk_token")
        self._unknown: int | None = settings.get("unk_id")
        if self._unknown is None and token is not None:
            self._unknown = self._model.token_to_id(token)
        self._n_pieces = max(self._model.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocab_size = N_SPECIAL + self._n_pieces

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`."""
        encoding = self._tokenize(text)
        pieces: list[int] = encoding.ids
        if unknown == "error" and self._unknown is not None and self._unknown in pieces:
            start, end = self._characters(encoding)[pieces.index(self._unknown)]
            raise _unknown_symbol(text[start:end], f"{self._n_pieces} pieces")
        return [UNK_ID if piece == self._unknown else N_SPECIAL + piece for piece in pieces]

    def moved_up(self, first: Sequence[str]) -> dict[str, Any]:
        """Return the model as JSON with our ids: `first` are the symbols that have those before its own.

        Raises:
            ValueError: the model has such a piece, which would then have two ids.
        """
        content: dict[str, Any] = json.loads(self._model.to_str())
        model, shift = content["model"], len(first)
        if taken := [text for text in first if self._model.token_to_id(text) is not None]:
            raise ValueError(f"it has pieces {taken}, which are special symbols")
        if isinstance(model["vocab"], list):  # unigram: pieces with scores, in the order of their ids
            worst = min((score for _, score in model["vocab"]), default=0.0)
            model["vocab"] = [[text, worst] for text in first] + model["vocab"]
            model["unk_id"] = None if model["unk_id"] is None else model["unk_id"] + shift
        else:
            numbered = {piece: i + shift for piece, i in model["vocab"].items()}
            model["vocab"] = {text: i for i, text in enumerate(first)} | numbered
        for added in content["added_tokens"]:
            added["id"] += shift
        content["post_processor"] = None
        if self._leading_space:
            content["normalizer"] = {"type": "Prepend", "prepend": " "}
            strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
            content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"], strip]}
        return content

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of every piece; see `Tokenizer.spans`."""
        found = []
        for start, end in self._characters(self._tokenize(text)):
            found.append(_without_space(text, start, end))
        return found

    def _tokenize(self, text: str) -> tokenizers.Encoding:
        try:
            return self._model.encode(" " + text if self._leading_space else text, add_special_tokens=False)
        # Half of a surrogate pair, or an unknown symbol where the model has no unknown token.
        except Exception as error:
            raise DataError(f"cannot tokenize {text!r}: {error}") from error

    def _characters(self, encoding: tokenizers.Encoding) -> list[tuple[int, int]]:
        shift = int(self._leading_space)
        return [(max(start - shift, 0), end - shift) for start, end in encoding.offsets]

    def _text(self, ids: Sequence[int]) -> str:
        parts = []
        for is_unknown, group in groupby(ids, key=lambda i: i == UNK_ID):
            pieces = [i - N_SPECIAL for i in group]
            parts.append(UNKNOWN_TEXT if is_unknown else self._model.decode(pieces, skip_special_tokens=False))
        text = "".join(parts)
        return text.removeprefix(" ") if self._leading_space else text

    def _content(self) -> dict[str, Any]:
        return {"leading_space": self._leading_space, "model": json.loads(self._model.to_str())}


class KeptTokenizer(Tokenizer):
    """A model of the `tokenizers` library as it is: its own ids, special symbols and post-processing.

    What its post-processing puts around a text belongs to the text, but for the begin symbol before it and the end
    symbol behind it, which rows of ids have anyway. Special symbols in a text are plain text, and are left out of what
    `decode` returns.

    Args:
        content: the JSON text of the model. special_ids: which of its ids begin, end, pad and mask.
        vocab_size: rows of the embedding it is for; None: its greatest id and one.

    Raises:
        ValueError: the JSON is no such model, or has no special symbols of these ids.
    """

    kind = "hf"

    def __init__(self, content: str, special_ids: SpecialIds, vocab_size: int | None = None) -> None:
        try:
            self._model = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(str(error)) from error
        self._model.encode_special_tokens = True
        self._model.no_padding()
        self._model.no_truncation()
        settings = json.loads(content)
        model = settings["model"]
        unknown = model.get("unk_token")
        self._unknown: int | None = model.get("unk_id")
        if self._unknown is None and unknown is not None:
            self._unknown = self._model.token_to_id(unknown)
        n_ids = max(self._model.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.vocab_size = n_ids if vocab_size is None else vocab_size
        if n_ids > self.vocab_size:
            raise ValueError(f"it has {n_ids} ids, and the embedding {self.vocab_size} rows")
        self.special_ids = special_ids
        named = {i for _, i in special_ids if i is not None}
        if too_large := sorted(i for i in named if i >= self.vocab_size):
            raise ValueError(f"special ids {too_large} are not below its {self.vocab_size} ids")
        added = {int(one["id"]) for one in settings.get("added_tokens") or () if one["special"]}
        self.special_tokens = frozenset(added | named | (set() if self._unknown is None else {self._unknown}))

    @property
    def special_texts(self) -> dict[int, str]:
        """How special symbols are shown, by their ids."""
        return {i: self._model.id_to_token(i) or "<pad>" for i in self.special_tokens}

    def to_json(self) -> str:
        """Return the text of its tokenizer.json."""
        return str(self._model.to_str(pretty=True))

    def encode(self, text: str, *, unknown: Unknown = "error") -> list[int]:
        """Return the ids of a text; see `Tokenizer.encode`."""
        pieces = self._pieces(text)
        ids = [piece for piece, _ in pieces]
        if unknown == "error" and self._unknown is not None and self._unknown in ids:
            start, end = pieces[ids.index(self._unknown)][1]
            raise _unknown_symbol(text[start:end], f"{self.vocab_size} pieces")
        return ids

    def spans(self, text: str) -> list[tuple[int, int]]:
        """Return the characters of every piece; see `Tokenizer.spans`."""
        return [_without_space(text, start, end) for _, (start, end) in self._pieces(text)]

    def _pieces(self, text: str) -> list[tuple[int, tuple[int, int]]]:
        """Return ids and characters, without the begin and end symbol that post-processing adds."""
        try:
            found = self._model.encode(text)
        except Exception as error:  # half of a surrogate pair, or an unknown symbol where there is no unknown token
            raise DataError(f"cannot tokenize {text!r}: {error}") from error
        pieces, added = list(zip(found.ids, found.offsets, strict=True)), found.special_tokens_mask
        first = int(bool(pieces) and bool(added[0]) and pieces[0][0] == self.special_ids.bos)
        last = len(pieces) - int(len(pieces) > first and bool(added[-1]) and pieces[-1][0] == self.special_ids.eos)
        return pieces[first:last]

    def _text(self, ids: Sequence[int]) -> str:
        parts = []
        for is_unknown, group in groupby(ids, key=lambda i: i == self._unknown):
            pieces = list(group)
            parts.append(UNKNOWN_TEXT if is_unknown else self._model.decode(pieces))
        return "".join(parts)

    def _content(self) -> dict[str, Any]:
        return {
            "special_ids": self.special_ids.model_dump(),
            "vocab_size": self.vocab_size,
            "model": json.loads(self._model.to_str()),
        }


class LabelTokenizer(Tokenizer):
    """A closed list of labels, without special symbols; id 0 is the most frequent one.

    classification: a text is one label, white space at its ends aside. tagging: white space separates labels.
    """

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


def _without_space(text: str, start: int, end: int) -> tuple[int, int]:
    piece = text[start:end]
    return (end - len(piece.lstrip()), start + len(piece.rstrip())) if piece.strip() else (end, end)


def _by_frequency(counts: Counter[str]) -> list[str]:
    return sorted(counts, key=lambda symbol: (-counts[symbol], symbol))


def _labels(kind: str, text: str) -> list[str]:
    return [text.strip()] if kind == "classification" else text.split()


@dataclass(frozen=True, eq=False, slots=True)
class Tokenizers:
    """The tokenizers of source and target; the same object where they share a vocabulary."""

    source: Tokenizer
    target: Tokenizer

    @property
    def is_joint(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.source is self.target

    @classmethod
    def train(cls, data: DataConfig, examples: Iterable[Example], reads: Reads = "pair") -> Tokenizers:
        """Build one joint tokenizer, or one for each side where `data.target_tokenizer` is set.

        Args:
            reads: `ModelConfig.reads` of the model: with a head for labels the targets are labels and no text.

        Raises:
            ConfigError: a language model's data, which has no source, with a tokenizer for the target alone.
            DataError: there are no examples.
        """
        if reads in ("classification", "tagging", "span"):
            rows = list(examples)
            text = Tokenizer.train(data.tokenizer, [example.source for example in rows if example.source is not None])
            return cls(text, text).with_labels(rows, reads)
        if data.target_tokenizer is None:
            joint = Tokenizer.train(data.tokenizer, _all_texts(examples))
            return cls(joint, joint)
        rows = list(examples)
        sources = [example.source for example in rows if example.source is not None]
        if rows and not sources:
            reason = "the examples have no source, so there is one side only: remove it and use data.tokenizer"
            raise ConfigError([Problem("data.target_tokenizer", data.target_tokenizer.kind, reason)])
        target = Tokenizer.train(data.target_tokenizer, [example.target for example in rows])
        return cls(Tokenizer.train(data.tokenizer, sources), target)

    def extended(self, examples: Iterable[Example]) -> Tokenizers:
        """Return tokenizers with the new symbols of the examples after the symbols of these.

        Raises:
            ConfigError: the tokenizers are of subwords, which cannot be extended.
        """
        rows = list(examples)
        if self.is_joint:
            joint = _extended(self.source, _all_texts(rows))
            return Tokenizers(joint, joint)
        source = _extended(self.source, [example.source for example in rows if example.source is not None])
        # A new task has a new list of labels anyway.
        if isinstance(self.target, LabelTokenizer):
            return Tokenizers(source, self.target)
        return Tokenizers(source, _extended(self.target, [example.target for example in rows]))

    def with_labels(self, examples: Iterable[Example], reads: Reads) -> Tokenizers:
        """Return the source's tokenizer beside the labels of the examples; beside itself where there are no labels."""
        if reads == "classification" or reads == "tagging":
            return Tokenizers(self.source, LabelTokenizer.count(reads, [example.target for example in examples]))
        return Tokenizers(self.source, self.source)

    def save(self, directory: Path) -> None:
        """Write ``joint.json``, or ``source.json`` and ``target.json``."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        sides = {"joint": self.source} if self.is_joint else {"source": self.source, "target": self.target}
        for name, tokenizer in sides.items():
            tokenizer.save(directory / f"{name}.json")

    @classmethod
    def load(cls, directory: Path) -> Tokenizers:
        """Read what `save` wrote."""
        directory = Path(directory)
        if (directory / "joint.json").exists():
            joint = Tokenizer.load(directory / "joint.json")
            return cls(joint, joint)
        return cls(Tokenizer.load(directory / "source.json"), Tokenizer.load(directory / "target.json"))


def _extended(tokenizer: Tokenizer, texts: Iterable[str]) -> Tokenizer:
    if isinstance(tokenizer, SymbolTokenizer):
        return tokenizer.extended(texts)
    reason = f"the run's tokenizer is one of subwords ({tokenizer.kind}), which cut every text: leave it out"
    raise ConfigError([Problem("training.extend_vocabulary", True, reason)])


def _all_texts(examples: Iterable[Example]) -> Iterator[str]:
    for example in examples:
        if example.source is not None:
            yield example.source
        yield example.target


def _unknown_symbol(symbol: str, vocabulary: str) -> DataError:
    fix = f"data.unknown=replace reads such symbols as the unknown token{see('own-data')}"
    return DataError(f"{symbol!r} is not among the {vocabulary} of the vocabulary, which is the training data's: {fix}")


def _from_content(content: dict[str, Any], path: Path) -> Tokenizer:
    if content.get("version") != _VERSION:
        raise CheckpointError(f"{path}: tokenizer format {content.get('version')!r}, but this version reads {_VERSION}")
    kind = content.get("kind")
    try:
        if kind in ("words", "characters"):
            symbols = content["symbols"]
            if len(set(symbols)) != len(symbols) or not all(isinstance(symbol, str) for symbol in symbols):
                raise ValueError("the symbols are not distinct strings")
            return SymbolTokenizer(kind, symbols)
        if kind in ("classification", "tagging"):
            return LabelTokenizer(kind, content["labels"])
        if kind == KeptTokenizer.kind:
            special = SpecialIds.model_validate(content["special_ids"])
            return KeptTokenizer(json.dumps(content["model"]), special, int(content["vocab_size"]))
        return SubwordTokenizer(str(kind), json.dumps(content["model"]), bool(content["leading_space"]))
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: the tokenizer is damaged: {error!r}") from error


_ROLES = {"pad": ("pad",), "bos": ("cls", "bos", "eos"), "eos": ("sep", "eos"), "mask": ("mask",)}
"""By our special symbol the names that tokenizer_config.json may have for it, the first that is there."""


def read_kept(path: Path, given: Mapping[str, int] | None = None, vocab_size: int | None = None) -> Tokenizer:
    """Read a tokenizer.json, or that of a folder, as a tokenizer that keeps its ids.

    Special symbols are those of the tokenizer_config.json beside it.

    Args:
        given: ids of special symbols where that file does not count. vocab_size: see `KeptTokenizer`.

    Raises:
        DataError: there is no such file, or it names no end symbol.
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"{path}: holds no tokenizer.json: a tokenizer that transformers can convert is written so by "
            "its save_pretrained"
        )
    content = read_json_object(file, DataError)
    if content.get("format") == _FORMAT:
        return _from_content(content, file)
    found = dict(given or {})
    beside = file.with_name("tokenizer_config.json")
    texts = read_json_object(beside, DataError) if beside.is_file() else {}
    try:
        model = tokenizers.Tokenizer.from_str(json.dumps(content))
        for name, roles in _ROLES.items():
            symbols = (texts.get(f"{role}_token") for role in roles)
            ids = (model.token_to_id(_symbol(symbol)) for symbol in symbols if symbol is not None)
            if name not in found and (known := next((i for i in ids if i is not None), None)) is not None:
                found[name] = known
        if "eos" not in found:
            raise ValueError(f"no end symbol: {beside.name} beside it names none")
        special = SpecialIds(**{"bos": found["eos"], "pad": found["eos"], **found})
        return KeptTokenizer(json.dumps(content), special, vocab_size)
    except Exception as error:  # the library raises nothing narrower
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: cannot be read as a tokenizer: {reason}") from error


def _symbol(given: object) -> str:
    """Return a special symbol's text, which older files write as an object."""
    return str(given["content"]) if isinstance(given, dict) else str(given)


def _read_existing(path: Path) -> Tokenizer:
    if (kind := kind_of(path)) is not None:
        raise DataError(f"{path}: data.tokenizer.path is {kind}, not a file")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if isinstance(content, dict) and content.get("format") == _FORMAT:
            return _from_content(content, path)
        return SubwordTokenizer("file", text, leading_space=False)
    except OSError as error:
        raise DataError(f"{path}: cannot read data.tokenizer.path: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: data.tokenizer.path is no tokenizer.json: {error}") from error
