"""LAMBADA: the last word of a passage."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

from ostinato.data.example import NOT_IN_PASSAGE, Example
from ostinato.errors import DataError
from ostinato.tasks.base import PAIR_FIELDS, TEXT_FIELD, Task
from ostinato.tasks.files import OwnFilesConfig
from ostinato.tasks.own_files import read_split

_SIZES = {"dev": 4_869, "test": 5_153}
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=\S)")


class LambadaConfig(OwnFilesConfig):
    """Settings of LAMBADA; the files are named under `data`."""

    kind: Literal["lambada"] = "lambada"
    form: Literal["language_model", "reading", "extraction"] = "language_model"
    """language_model: the last word is scored after its passage. reading: passage and last word are a pair, in training
    too. extraction: reading by an encoder with model.head.kind=span, which points at a word of the passage."""

    passages: Literal["pairs", "texts"] = "pairs"
    """Of dev and test. pairs: passage and last word apart, JSON lines. texts: whole, cut before their last word."""

    @property
    def has_sources(self) -> bool:
        """Whether passage and last word are read as a pair."""
        return self.form != "language_model"

    @property
    def fields(self) -> frozenset[str]:
        """That of texts, and where dev and test are pairs those of pairs."""
        return TEXT_FIELD if self.passages == "texts" else TEXT_FIELD | PAIR_FIELDS


class LambadaTask(Task):
    """LAMBADA (Paperno et al. 2016): predict the last word of a passage of a novel, as a language model or by reading.

    Splits: data.train, a text a line, or JSON lines with data.text_field (the released novels); data.dev and data.test,
    JSON lines with passage and last word (data.source_field, data.target_field), or with passages=texts texts, whose
    last white-space separated word is taken. Published: dev 4,869, test 5,153 passages. The control set, passages
    of the same novels that nobody selected, is a test split of its own: data.test={test: FILE, control: FILE}.
    form=language_model: training reads whole texts; of dev and test only the last word counts. form=reading: pairs, of
    training texts too. form=extraction: the last sentence, without its last word, is a question to the passage before
    it, and the last word is to be found there; training texts where it is not are left out, in dev and test they stay
    and count as wrong (the word occurs before the last sentence in 80 % of the published test passages).
    Metric: of form=language_model loss per token of last words, `word_perplexity`, the perplexity of last words, and
    `sequence_accuracy_forced`, their accuracy: a word is right where each of its tokens is the most probable one. Of
    the other forms exact match of the written, classified or extracted word.
    Tokens: data.tokenizer; passages are not cut, so data.max_target_length must hold them (form=language_model).
    Selection: dev; without dev on a part of the training text that is kept apart by hand.
    Departures: the papers' scores are over a vocabulary of 60,000 words with unknown words in it; with subwords
    perplexities of words are comparable and accuracy is stricter. There is no `word_perplexity` where a last word is an
    unknown token. How the reading form of Dehghani et al. (2019) gives
    its answer is not described; ours writes it, or points at it (extraction).
    """

    config: LambadaConfig
    answers = "last_word"

    def _configure(self) -> None:
        super()._configure()
        self.metrics = ("exact_match",) if self.config.has_sources else ()
        self.forced = () if self.config.has_sources else ("word_perplexity", "sequence_accuracy_forced")

    def published_sizes(self) -> dict[str, int]:
        """Return the sizes of LAMBADA's own splits."""
        return {split: n for split, n in _SIZES.items() if split in self.splits()}

    def _examples(self, split: str) -> Iterator[Example]:
        is_training = split == self.train_split
        are_texts = is_training or self.config.passages == "texts"
        kind = "language_model" if are_texts else "seq2seq"
        for number, example in enumerate(read_split(self.data, split, kind), 1):
            if is_training and not self.config.has_sources:
                yield example
                continue
            source, target = example.source, example.target
            if source is None:
                words = target.split()
                if len(words) < 2:
                    raise DataError(f"{split}: example {number} has one word only: there is nothing before it")
                source, target = target.rstrip()[: -len(words[-1]) - 1], words[-1]
            if self.config.form != "extraction":
                yield Example(source, target, example.columns, continues=not self.config.has_sources)
                continue
            question, passage = question_of(source)
            start = last_place(target, passage)
            if start != NOT_IN_PASSAGE or not is_training:
                yield Example(f"{question}\t{passage}", target, example.columns | {"answer_start": start})


def question_of(text: str) -> tuple[str, str]:
    """Return the last sentence of a text and the text before it, white space as blanks; one sentence is both."""
    text = re.sub(r"\s", " ", text).strip()
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return (text[ends[-1] :], text[: ends[-1]].rstrip()) if ends else (text, text)


def last_place(word: str, passage: str) -> int:
    """Return the first character of the last occurrence of a whole word in a passage; else `NOT_IN_PASSAGE`."""
    places = [match.start() for match in re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", passage)]
    return places[-1] if places else NOT_IN_PASSAGE
