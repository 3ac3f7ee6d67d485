"""Tokenizers of a model's two sides: trained from texts, read from files, saved beside a run."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from ostinato.config.special_ids import SpecialIds
from ostinato.data.disk import read_json_object
from ostinato.data.pieces import KeptTokenizer, SubwordTokenizer
from ostinato.data.subwords import train_subwords
from ostinato.data.symbols import LabelTokenizer, SymbolTokenizer
from ostinato.data.tokenizer import FORMAT, N_SPECIAL, VERSION, Tokenizer
from ostinato.errors import CheckpointError, ConfigError, DataError, Problem, on_one_line
from ostinato.system_errors import kind_of

if TYPE_CHECKING:
    from ostinato.config.common import Reads
    from ostinato.config.data import DataConfig, TokenizerConfig
    from ostinato.data.example import Example


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
            text = train_tokenizer(data.tokenizer, [example.source for example in rows if example.source is not None])
            return cls(text, text).with_labels(rows, reads)
        if data.target_tokenizer is None:
            joint = train_tokenizer(data.tokenizer, _all_texts(examples))
            return cls(joint, joint)
        rows = list(examples)
        sources = [example.source for example in rows if example.source is not None]
        if rows and not sources:
            reason = "the examples have no source, so there is one side only: remove it and use data.tokenizer"
            raise ConfigError([Problem("data.target_tokenizer", data.target_tokenizer.kind, reason)])
        target = train_tokenizer(data.target_tokenizer, [example.target for example in rows])
        return cls(train_tokenizer(data.tokenizer, sources), target)

    def extended(self, data: DataConfig, examples: Iterable[Example]) -> Tokenizers:
        """Return tokenizers with the new symbols of the examples after the symbols of these.

        Args:
            data: says how often a new symbol has to occur, and how many ids there are at most.

        Raises:
            ConfigError: the tokenizers are of subwords, which cannot be extended, or as large as `data` allows.
        """
        rows = list(examples)
        if self.is_joint:
            joint = _extended(self.source, data, "tokenizer", list(_all_texts(rows)))
            return Tokenizers(joint, joint)
        sources = [example.source for example in rows if example.source is not None]
        source = _extended(self.source, data, "tokenizer", sources)
        # A new task has a new list of labels anyway.
        if isinstance(self.target, LabelTokenizer):
            return Tokenizers(source, self.target)
        name = "target_tokenizer" if data.target_tokenizer else "tokenizer"
        return Tokenizers(source, _extended(self.target, data, name, [example.target for example in rows]))

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
        """Read what `save` wrote.

        Raises:
            CheckpointError: a file is missing, damaged, or of another format or version.
        """
        directory = Path(directory)
        if (directory / "joint.json").exists():
            joint = load_tokenizer(directory / "joint.json")
            return cls(joint, joint)
        return cls(load_tokenizer(directory / "source.json"), load_tokenizer(directory / "target.json"))


def train_tokenizer(config: TokenizerConfig, texts: Iterable[str]) -> Tokenizer:
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


def load_tokenizer(path: Path) -> Tokenizer:
    """Read a tokenizer that `Tokenizer.save` wrote.

    Raises:
        CheckpointError: the file is missing, damaged, or of another format or version.
    """
    content = read_json_object(Path(path))
    if content.get("format") != FORMAT:
        raise CheckpointError(f"{path}: is not an Ostinato tokenizer (data.tokenizer.kind=file reads other ones)")
    return _from_content(content, Path(path))


_ROLES = {"pad": ("pad",), "bos": ("cls", "bos", "eos"), "eos": ("sep", "eos"), "mask": ("mask",)}
"""By our special symbol the names that tokenizer_config.json may have for it, the first that is there."""
_USUAL = {"pad": ("[PAD]", "<pad>"), "bos": ("[CLS]", "<s>"), "eos": ("[SEP]", "</s>"), "mask": ("[MASK]", "<mask>")}
"""Texts of special symbols that older files do not name, because the classes of their tokenizers do (BERT, ALBERT)."""
_NAMES_OF_SYMBOLS = "tokenizer_config.json"


def tokenizer_file(path: Path) -> Path:
    """Return the file behind what `data.tokenizer.path` names: a file, or a folder with a tokenizer.json."""
    return path / "tokenizer.json" if path.is_dir() else path


def tokenizer_files(config: TokenizerConfig, noted: Container[str] = ()) -> list[Path]:
    """Return the files that an existing tokenizer is read from; empty where `path` is not set.

    Args:
        noted: paths of files that were there once, and may be gone.
    """
    if config.path is None:
        return []
    inside = Path(config.path, "tokenizer.json")
    file = inside if str(inside) in noted else tokenizer_file(Path(config.path))
    beside = file.with_name(_NAMES_OF_SYMBOLS)
    is_there = config.kind == "hf" and (str(beside) in noted or beside.is_file())
    return [file, beside] if is_there else [file]


def read_kept(path: Path, given: Mapping[str, Sequence[int]] | None = None, vocab_size: int | None = None) -> Tokenizer:
    """Read a tokenizer.json, or that of a folder, as a tokenizer that keeps its ids.

    Special symbols are those of the tokenizer_config.json beside it, or have their usual texts.

    Args:
        given: ids of special symbols, of which that file only chooses one where there are several; else the first.
        vocab_size: see `KeptTokenizer`. Symbols that have no row are left out.

    Raises:
        DataError: there is no such file, or it names no end symbol.
    """
    file = tokenizer_file(path)
    if not file.is_file():
        raise DataError(
            f"{path}: holds no tokenizer.json: a tokenizer that transformers can convert is written so by "
            "its save_pretrained"
        )
    content = read_json_object(file, DataError)
    if content.get("format") == FORMAT:
        return _from_content(content, file)
    given = given or {}
    found = {name: ids[0] for name, ids in given.items()}
    beside = file.with_name(_NAMES_OF_SYMBOLS)
    texts = read_json_object(beside, DataError) if beside.is_file() else {}
    try:
        model = tokenizers.Tokenizer.from_str(json.dumps(content))
        special = {one.content: i for i, one in model.get_added_tokens_decoder().items() if one.special}
        for name, roles in _ROLES.items():
            symbols = [_symbol(symbol) for role in roles if (symbol := texts.get(f"{role}_token")) is not None]
            ids = [model.token_to_id(symbol) for symbol in symbols]
            if name not in given:
                ids += [special.get(symbol) for symbol in _USUAL[name]]
            known = next((i for i in ids if i is not None and (vocab_size is None or i < vocab_size)), None)
            if known is not None and known in given.get(name, [known]):
                found[name] = known
        if "eos" not in found:
            raise ValueError(
                f"no end symbol: {beside.name} beside it names none (save_pretrained of transformers writes them)"
            )
        ids_of = SpecialIds(**{"bos": found["eos"], "pad": found["eos"], **found})
        return KeptTokenizer(json.dumps(content), ids_of, vocab_size)
    except Exception as error:  # the library raises nothing narrower
        reason = on_one_line(error)
        raise DataError(f"{file}: cannot be read as a tokenizer: {reason}") from error


def _read_existing(path: Path) -> Tokenizer:
    if (kind := kind_of(path)) is not None:
        raise DataError(f"{path}: data.tokenizer.path is {kind}, not a file")
    try:
        text = path.read_text(encoding="utf-8")
        content = json.loads(text)
        if isinstance(content, dict) and content.get("format") == FORMAT:
            return _from_content(content, path)
        return SubwordTokenizer("file", text, leading_space=False)
    except OSError as error:
        raise DataError(f"{path}: cannot read data.tokenizer.path: {error.strerror}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{path}: data.tokenizer.path is no tokenizer.json: {error}") from error


def _from_content(content: dict[str, Any], path: Path) -> Tokenizer:
    if content.get("version") != VERSION:
        raise CheckpointError(f"{path}: tokenizer format {content.get('version')!r}, but this version reads {VERSION}")
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


def _symbol(given: object) -> str:
    """Return a special symbol's text, which older files write as an object."""
    return str(given["content"]) if isinstance(given, dict) else str(given)


def _extended(tokenizer: Tokenizer, data: DataConfig, name: str, texts: Sequence[str]) -> Tokenizer:
    config: TokenizerConfig = getattr(data, name)
    if isinstance(tokenizer, SymbolTokenizer):
        n_ids, most = tokenizer.vocab_size, config.vocab_size
        has_room = most is None or most > n_ids
        if has_room or tokenizer.extended(texts, config.min_count).vocab_size == n_ids:  # nothing is new
            return tokenizer.extended(texts, config.min_count, most)
        limit = f"data.{name} of kind {tokenizer.kind} has vocab_size={most}"
        reason = f"has no effect: the run has {n_ids} ids, and {limit}: raise it"
    else:
        reason = f"the run's tokenizer is one of subwords ({tokenizer.kind}), which cut every text: leave it out"
    raise ConfigError([Problem("training.extend_vocabulary", True, reason)])


def _all_texts(examples: Iterable[Example]) -> Iterator[str]:
    for example in examples:
        if example.source is not None:
            yield example.source
        yield example.target
