"""Extractive question answering: an answer is a part of the passage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

from ostinato.data.example import NOT_IN_PASSAGE, Example
from ostinato.data.lines import read_lines
from ostinato.data.paths import find_files
from ostinato.errors import DataError
from ostinato.tasks.base import Only
from ostinato.tasks.files import LanguagesConfig, LanguagesTask
from ostinato.tasks.own_files import check_no_data_set, paths_of, read_split

_BLANKS = str.maketrans("\t\r\n", "   ")


class SpanExtractionConfig(LanguagesConfig):
    """Settings of extractive question answering; the files are named under `data`."""

    only: ClassVar[tuple[Only, ...]] = (
        Only(("languages",), "format", ("squad",)),
        Only(("languages",), "language_field", but=(None,)),
    )
    kind: Literal["span_extraction"] = "span_extraction"
    format: Literal["squad", "lines"] = "squad"
    """squad: JSON as SQuAD v1.1, XQuAD, MLQA and TyDiQA-GoldP have it. lines: JSON lines or CSV (a cell of
    TSV holds no tab), the source a question, one tab and a passage, the target one or several answers with tabs between
    them, and, where it is there, the character of the passage at which the first answer begins in `answer_start`."""
    languages: dict[str, str] | None = None
    """squad: language of every file, by its name without folder; becomes the column `language_field`."""

    @property
    def fields(self) -> frozenset[str]:
        """Those of pairs, none of JSON in SQuAD's form."""
        return super().fields if self.format == "lines" else frozenset()


class SpanExtractionTask(LanguagesTask):
    """Question answering by extraction: which part of a passage answers a question; exact match and F1 of SQuAD.

    Splits: data.train, data.dev, data.test as they are given. Every question of a file in SQuAD's form is an example;
    training learns its first answer, and all answers are right when it is measured. Questions without an answer (SQuAD
    2.0) are an error. With train_languages train and dev keep only those languages, and test keeps all.
    Tokens: data.tokenizer; an encoder reads `<bos> question <eos> passage <eos>` and gives a start and an end. Passages
    that are longer than data.max_source_length are cut (data.over_length=truncate), where others read several windows
    of them: an answer behind the cut counts as wrong.
    Metric: answer_em and answer_f1, normalised as by SQuAD's script (for English: articles and ASCII punctuation), by
    language.
    Selection: dev, as training.selection says.
    Departures: one window of a passage; MLQA's own script normalises by language, so that its numbers differ for
    languages with other articles.
    """

    config: SpanExtractionConfig
    answers = "span"
    metrics = ("answer_em", "answer_f1")

    def _examples(self, split: str) -> Iterator[Example]:
        if self.config.format == "lines":
            examples = self._read_lines(split)
        else:
            check_no_data_set(self.data, split, "task.format=lines reads data sets")
            paths = find_files(paths_of(self.data, split))
            examples = (example for path in paths for example in self._read_squad(path))
        yield from self.config.select(examples, split)

    def _read_lines(self, split: str) -> Iterator[Example]:
        for example in read_split(self.data, split):
            # Questions without an answer are as little supported here as in SQuAD's form.
            if example.columns.get("answer_start") == NOT_IN_PASSAGE:
                raise DataError(
                    f"the passage does not hold the answer {example.target!r}: answer_start is {NOT_IN_PASSAGE}"
                )
            yield example

    def _read_squad(self, path: Path) -> Iterator[Example]:
        columns = self.config.language_column((self.config.languages or {}).get(path.name))
        try:
            articles = json.loads("\n".join(line for _, line in read_lines(path)))["data"]
            for article in articles:
                for paragraph in article["paragraphs"]:
                    for question in paragraph["qas"]:
                        yield _example(paragraph["context"], question, columns)
        except (AttributeError, OSError, RecursionError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: not a file in SQuAD's form: {error!r}") from error
        except DataError as error:
            raise DataError(f"{path}: {error}") from error


def _example(context: str, question: dict[str, Any], columns: dict[str, object]) -> Example:
    """Return one question; each white-space character becomes one blank, so that positions in the passage stay."""
    answers = [(answer["text"].translate(_BLANKS), answer["answer_start"]) for answer in question["answers"]]
    if not answers:
        raise DataError(f"the question {question['id']!r} has no answer: SQuAD 2.0's are not supported")
    text, start = answers[0]
    targets = dict.fromkeys(answer for answer, _ in answers)
    source = f"{question['question'].translate(_BLANKS).strip()}\t{context.translate(_BLANKS)}"
    return Example(source, "\t".join([text, *(t for t in targets if t != text)]), columns | {"answer_start": start})
