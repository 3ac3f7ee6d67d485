"""Classification of sentences and of pairs of sentences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ostinato.config.data import FieldName
from ostinato.data.example import Example
from ostinato.data.sources import read_examples
from ostinato.errors import DataError
from ostinato.tasks.files import LanguagesConfig, LanguagesTask, paths_of


class ClassificationConfig(LanguagesConfig):
    """Settings of classification; the files are named under `data`."""

    kind: Literal["classification"] = "classification"
    pair_field: FieldName | None = None
    """Key or column of a second text. None: `data.source_field` holds all, two texts with one tab between them."""
    skipped_labels: list[FieldName] = Field(default_factory=lambda: ["-"])
    """Labels whose examples are left out: SNLI marks with - that its annotators did not agree."""


class ClassificationTask(LanguagesTask):
    """Classification: a label for a sentence or a pair, from JSON lines or TSV; by language and zero-shot, too.

    Splits: data.train, data.dev, data.test as they are given (SNLI, MultiNLI and XNLI: source_field=sentence1,
    target_field=gold_label, task.pair_field=sentence2; GLUE's SST-2: sentence, label). Examples with a label in
    skipped_labels are left out of every split. With train_languages train and dev keep only those languages and test
    keeps all: zero-shot transfer as in XTREME, where dev selects in the language of training.
    Tokens: data.tokenizer. An encoder reads `<bos> text <eos>`, of pairs `<bos> text <eos> text <eos>`; there are no
    segment embeddings (as in XLM-R). Other models write the label as text.
    Metric: accuracy and macro-F1 over the classes, by language; `macro` in results is the mean over languages, each
    counting once, which `ostinato table --by` averages over seeds. A label that training lacks is an error.
    Selection: dev, as training.selection says; nothing is selected on other languages.
    Departures: nothing is downloaded, and test sets without labels (GLUE's) cannot be scored; GLUE's other metrics
    (Matthews and rank correlations) are not there.
    """

    config: ClassificationConfig
    metrics = ("accuracy", "macro_f1")

    def _examples(self, split: str) -> Iterator[Example]:
        examples = read_examples(paths_of(self.data, split), self.data)
        kept = (example for example in examples if example.target.strip() not in self.config.skipped_labels)
        field = self.config.pair_field
        for number, example in enumerate(self.config.select(kept, split), 1):
            if field is None:
                yield example
                continue
            second = example.columns.get(field)
            if not isinstance(second, str):
                raise DataError(f"{split}: example {number} has no text {field!r} (task.pair_field)")
            columns = {name: value for name, value in example.columns.items() if name != field}
            texts = [text.replace("\t", " ").strip() for text in (example.source or "", second)]
            yield Example("\t".join(texts), example.target, columns)
