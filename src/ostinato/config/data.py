"""What a data source is: files, tokenizers, lengths and batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from ostinato.config.base import Config, Size
from ostinato.errors import Inert, Problem

_LEAST_BYTE_VOCABULARY = 260
_SUBWORDS = 8000


FieldName = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""A column by its name, or by its number, which YAML does not read as text."""


class TokenizerConfig(Config):
    """How text becomes tokens."""

    alike: ClassVar[tuple[frozenset[str], ...]] = (frozenset({"words", "characters"}), frozenset({"bpe", "unigram"}))
    """Kinds that mean the same by their other settings: a derived recipe that names another kind keeps those of a kind
    that is alike."""

    kind: Literal["words", "characters", "bpe", "unigram", "file", "hf"] = "words"
    """words: split at white space, lossless for task symbols. bpe, unigram: trained on the training split. file: an
    existing tokenizer.json, whose ids are moved up by four. hf: one whose ids are kept, special symbols included."""
    vocab_size: Annotated[int, Field(ge=8, le=2**31 - 1)] | None = None
    """Rows, the 4 special symbols included. bpe, unigram: how many to train; None: 8000. words, characters: at most so
    many, the most frequent ones, of those that occur equally often the first by code points; None: all."""
    min_count: Size = 1
    """words, characters: rarer ones become the unknown token."""
    path: str | None = None
    """file: an existing tokenizer.json. hf: one, or the folder that holds it."""

    @property
    def n_trained(self) -> int:
        """Rows of a vocabulary of subwords."""
        return _SUBWORDS if self.vocab_size is None else self.vocab_size

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A file needs a path, and only a file has one; byte pieces need room for every byte."""
        if (self.kind in ("file", "hf")) != (self.path is not None):
            yield Problem(f"{path}path", self.path, f"is needed with {path}kind=file and {path}kind=hf, and only there")
        if self.kind in ("bpe", "unigram") and self.n_trained < _LEAST_BYTE_VOCABULARY:
            reason = f"{self.kind} keeps all 256 bytes and 4 special symbols: use at least {_LEAST_BYTE_VOCABULARY}"
            yield Problem(f"{path}vocab_size", self.vocab_size, reason)
        if self.kind in ("file", "hf") and self.vocab_size is not None:
            reason = f"has no effect with {path}kind={self.kind}, which has its own"
            yield Inert(f"{path}vocab_size", self.vocab_size, reason)
        if self.kind not in ("words", "characters") and self.min_count > 1:
            reason = f"has no effect with {path}kind={self.kind}, which counts no symbols: remove it"
            yield Inert(f"{path}min_count", self.min_count, reason)


class MaskingConfig(Config):
    """What a model with a masked head has to guess: see `ostinato.data.objectives`."""

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of the tokens of a text that are labels."""
    mean_span: Annotated[float, Field(ge=1)] = 1.0
    """1: tokens one by one. Above: runs of tokens, of a geometric distribution with this mean, cut at 10."""
    keep: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the labels that are shown all the same."""
    random: Annotated[float, Field(ge=0, le=1)] = 0.1
    """Share of the labels that are replaced by some other token; the rest by the mask symbol."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Shares of the same whole."""
        if self.keep + self.random > 1:
            yield Problem(f"{path}random", self.random, f"with {path}keep = {self.keep} they exceed 1")


class MixtureConfig(Config):
    """Training on several data sets, drawn more evenly than by their sizes: see `ostinato.data.mixture`."""

    column: FieldName
    """Names each example's data set: a language, or task.origin_column (task files)."""
    temperature: Annotated[float, Field(ge=1)] = 1.0
    """T of shares n^(1 / T): 1 by size, larger ones more evenly."""
    weights: Annotated[dict[str, Annotated[float, Field(gt=0)]], Field(min_length=1)] | None = None
    """Shares of the data sets by name, {wiki: 2, books: 1}, whatever their sizes; all of them are named. None: by size
    and temperature."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Weights say everything."""
        if self.weights is not None and self.temperature != 1.0:
            yield Inert(f"{path}temperature", self.temperature, f"has no effect with {path}weights: remove it")


class DataSetConfig(Config):
    """A data set of the library datasets of Hugging Face (extra hf), in place of files: see `ostinato.data.hub`."""

    hf: Annotated[str, Field(min_length=1)]
    """A file (.parquet, .arrow, .csv, .tsv, .json, .jsonl, .txt), a folder of them or of save_to_disk, or a name of the
    hub, which is fetched where the library's cache has it not."""
    split: Annotated[str, Field(min_length=1)]
    """Its split, or parts where it is not streamed: train, train[:10%], train[:5]+train[-5:]. A single file is a split
    of any name."""
    subset: str | None = None
    """Which of several data sets under one name: mrpc of glue."""
    columns: dict[str, str] | None = None
    """What is read, by its name here: {source: sentence1, target: label}; a dot leads into a column: translation.en.
    None: all columns, under their own names."""
    streaming: bool = False
    """Read row by row, without a copy in the library's cache first."""
    revision: str | None = None
    """Commit or tag of the hub's repository."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """A column is read under one name or more, but not none; streams have no parts."""
        if self.columns is not None and not self.columns:
            yield Problem(f"{path}columns", self.columns, "name one column or more, or null")
        if self.streaming and not {"[", "+"}.isdisjoint(self.split):
            reason = f"streaming reads one whole split: name one, or remove {path}streaming"
            yield Problem(f"{path}split", self.split, reason)


Paths = str | list[str] | DataSetConfig | None
NamedPaths = dict[str, str | list[str] | DataSetConfig]


def _named_test(value: object) -> object:
    """Return a data set given as data.test as a split of this name: other groups name splits."""
    return {"test": value} if isinstance(value, dict) and "hf" in value else value


class DataConfig(Config):
    """Files of the user's own, tokenizers, and how examples are batched."""

    train: Paths = None
    """A file of JSON lines, TSV, text, Parquet or Arrow, also .gz or .zst; a folder, a pattern (texts/*.jsonl), or a
    list of these. A list of two text files is parallel text. Or a data set of Hugging Face, {hf: folder or name,
    split: train}."""
    dev: Paths = None
    """Files as for train: evaluated while training."""
    test: Annotated[str | list[str] | NamedPaths | None, BeforeValidator(_named_test)] = None
    """Files as for train: evaluated at the end. Several test splits by name: {test: a.jsonl, gen: b.jsonl}."""
    source_field: FieldName = "source"
    """JSON lines: key of the source; TSV: name or 0-based number of its column."""
    target_field: FieldName = "target"
    """JSON lines: key of the target; TSV: name or 0-based number of its column."""
    text_field: FieldName = "text"
    """Key of the text, for language models."""
    tokenizer: TokenizerConfig = TokenizerConfig()
    """Tokenizer of the source, and of the target where target_tokenizer is null."""
    target_tokenizer: TokenizerConfig | None = None
    """None: one joint tokenizer for both sides."""
    tokens_per_batch: Size = 4096
    """The batch size in padded tokens: rows times length of the longer side, or of both in one sequence."""
    eval_tokens_per_batch: Size = 8192
    """Padded tokens in one batch of an evaluation or a search, which keep no activations for a backward pass."""
    max_source_length: Size = 1024
    """In tokens, the end symbol included; of the source alone, also where a decoder-only model reads both sides."""
    max_target_length: Size = 1024
    """In tokens of the target, the end symbol included; of a text that a masked model reads the begin symbol, too."""
    block_length: Annotated[int, Field(ge=2, le=2**31 - 1)] | None = None
    """Texts are packed into blocks of so many tokens, an end symbol after each text; None: a text is a row of its own.
    Every block begins with the begin symbol; a text may then be longer than max_target_length."""
    block_attention: Literal["block", "text"] = "block"
    """block: a token sees everything before it in its block. text: only its own text, whose positions begin at 0 and
    which begins with the begin symbol; the rest of a text that a block cuts is a text of its own in the next one."""
    mixture: MixtureConfig | None = None
    """How often each data set of a mixture is drawn in training; None: every example once an epoch. Blocks hold texts
    of one data set only."""
    packed: Literal["auto", "always", "never"] = "auto"
    """Whether data.train is tokenised once into files that are mapped into memory (`ostinato data pack`). auto: where
    it has more than 64 MiB, or is streamed from a hub, and models read texts or pairs. never: its rows are held in
    memory."""
    masking: MaskingConfig = MaskingConfig()
    """How tokens are masked for model.head.kind=masked."""
    over_length: Literal["error", "drop", "truncate"] = "error"
    """What happens to a longer example. In evaluation nothing is ever dropped: it is an error or truncated."""
    unknown: Literal["error", "replace"] = "error"
    """What happens to a symbol that training never saw: a named error, or the unknown token."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Names of test splits are new ones; blocks are needed to have texts apart in them."""
        if self.block_attention == "text" and self.block_length is None:
            reason = f"has no effect without {path}block_length: remove it"
            yield Inert(f"{path}block_attention", self.block_attention, reason)
        if isinstance(self.test, dict):
            if not self.test:
                yield Problem(f"{path}test", self.test, "name one file or more, or null")
            for name in {"train", "dev"} & self.test.keys():
                yield Problem(f"{path}test", name, f"is the name of data.{name}: choose another")


def tokenizer_problems(overrides: Iterable[str], path: str = "") -> Iterator[Problem]:
    """Yield those of `dotted.key=value` that would change the tokenizers of a run, whose model knows no other ids."""
    for key, _, value in (override.partition("=") for override in overrides):
        if key.startswith(("data.tokenizer", "data.target_tokenizer")):
            reason = "a run keeps the tokenizers that it was trained with: leave it out"
            yield Problem(f"{path}{key}", value, reason)
