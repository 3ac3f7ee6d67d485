"""LAMBADA: the last word of a passage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from ostinato.config.data import DataConfig
from ostinato.data.example import Example
from ostinato.data.registry import DataAccess
from ostinato.data.sources import read_examples
from ostinato.errors import DataError
from ostinato.tasks.base import TaskConfig
from ostinato.tasks.files import OwnFilesTask, paths_of

_SIZES = {"dev": 4_869, "test": 5_153}


class LambadaConfig(TaskConfig):
    """Settings of LAMBADA; the files are named under `data`."""

    kind: Literal["lambada"] = "lambada"
    form: Literal["language_model", "reading"] = "language_model"
    """language_model: the last word is scored after its passage. reading: passage and last word are a pair, in training
    too."""

    passages: Literal["pairs", "texts"] = "pairs"
    """Of dev and test. pairs: passage and last word apart, JSON lines. texts: whole, cut before their last word."""

    @property
    def has_sources(self) -> bool:
        """Whether passage and last word are read as a pair."""
        return self.form == "reading"


class LambadaTask(OwnFilesTask):
    """LAMBADA (Paperno et al. 2016): predict the last word of a passage of a novel, as a language model or by reading.

    Splits: data.train, a text a line, or JSON lines with data.text_field (the released novels); data.dev and data.test,
    JSON lines with passage and last word (data.source_field, data.target_field), or with passages=texts texts, whose
    last white-space separated word is taken. Published: dev 4,869, test 5,153 passages.
    form=language_model: training reads whole texts; of dev and test only the last word counts. form=reading: pairs, of
    training texts too.
    Metric: of form=language_model loss per token of last words, `word_perplexity`, the perplexity of last words, and
    `sequence_accuracy_forced`, their accuracy: a word is right where each of its tokens is the most probable one. The
    papers' are over a vocabulary of 60,000 words with unknown words in it; with subwords perplexities of words are
    comparable and accuracy is stricter. Of form=reading exact match of what is written or classified.
    Tokens: data.tokenizer; passages are not cut, so data.max_target_length must hold them (form=language_model).
    Selection: dev; without dev on a part of the training text that is kept apart by hand.
    """

    config_type = LambadaConfig
    config: LambadaConfig

    def __init__(self, config: TaskConfig, data: DataConfig, access: DataAccess | None = None) -> None:
        super().__init__(config, data, access)
        self.metrics = ("exact_match",) if self.config.has_sources else ()
        self.forced = () if self.config.has_sources else ("word_perplexity", "sequence_accuracy_forced")

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of LAMBADA's own splits."""
        return {split: n for split, n in _SIZES.items() if split in self.splits()}

    def _examples(self, split: str) -> Iterator[Example]:
        is_training = split == self.splits()[0]
        are_texts = is_training or self.config.passages == "texts"
        kind = "language_model" if are_texts else "seq2seq"
        for number, example in enumerate(read_examples(paths_of(self.data, split), self.data, kind), 1):
            if is_training and not self.config.has_sources:
                yield example
                continue
            source, target = _split(example, f"{split}: example {number}")
            yield Example(source, target, example.columns, continues=not self.config.has_sources)


def _split(example: Example, where: str) -> tuple[str, str]:
    """Return what comes before the last word, and the last word."""
    if example.source is not None:
        return example.source, example.target
    before, _, last = example.target.rstrip().rpartition(" ")
    if not before.strip():
        raise DataError(f"{where} has one word only: there is nothing before it")
    return before, last
