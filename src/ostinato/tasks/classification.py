"""Classification of sentences and of pairs of sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from ostinato.config.data import FieldName
from ostinato.config.files import say_once
from ostinato.data.example import Example
from ostinato.data.pair_changes import PairChanges
from ostinato.errors import DataError
from ostinato.tasks.files import LanguagesConfig, LanguagesTask
from ostinato.tasks.own_files import read_split

_OTHERS = "other_labels"
"""Column of the labels that an example has not."""


class ClassificationConfig(LanguagesConfig):
    """Settings of classification; the files are named under `data`."""

    kind: Literal["classification"] = "classification"
    pair_field: FieldName | None = None
    """Key or column of a second text. None: `data.source_field` holds all, two texts with one tab between them."""
    skipped_labels: list[FieldName] = Field(default_factory=lambda: ["-"])
    """Labels whose examples are left out; a note counts them. SNLI marks with - that its annotators did not agree."""
    choices: Annotated[list[FieldName], Field(min_length=2)] | None = None
    """All labels, to be ranked in dev and test by their probability as targets: `ranking`. None: they are not."""

    @property
    def pair_changes(self) -> PairChanges:
        """The second text stands behind the first."""
        return PairChanges(second=self.pair_field)


class ClassificationTask(LanguagesTask):
    """Classification: a label for a sentence or a pair, from JSON lines or TSV; by language and zero-shot, too.

    Splits: data.train, data.dev, data.test as they are given (SNLI, MultiNLI and XNLI: source_field=sentence1,
    target_field=gold_label, task.pair_field=sentence2; GLUE's SST-2: sentence, label). Examples with a label in
    skipped_labels are left out of every split. With train_languages train and dev keep only those languages and test
    keeps all: zero-shot transfer as in XTREME, where dev selects in the language of training.
    Tokens: data.tokenizer. An encoder reads `<bos> text <eos>`, of pairs `<bos> text <eos> text <eos>`; there are no
    segment embeddings (as in XLM-R). Other models write the label as text.
    Metric: accuracy and macro-F1 over the classes, by language; `macro` in results is the mean over languages, each
    counting once, which `ostinato table --by` averages over seeds. A label that training lacks is an error. With
    task.choices also `ranking`, classification by likelihood: the share of examples whose label is more probable than
    all others, for models that write it.
    Selection: dev, as training.selection says; nothing is selected on other languages.
    Departures: nothing is downloaded, and test sets without labels (GLUE's) cannot be scored; GLUE's other metrics
    (Matthews and rank correlations) are not there.
    """

    config: ClassificationConfig
    metrics = ("accuracy", "macro_f1")

    def _configure(self) -> None:
        super()._configure()
        if self.config.choices is not None:
            self.forced, self.contrast = ("ranking",), _OTHERS

    def _examples(self, split: str) -> Iterator[Example]:
        changes = self.config.pair_changes
        for number, example in enumerate(self.config.select(self._not_skipped(split), split), 1):
            example = self._with_other_labels(example, f"{split}: example {number}")
            try:
                yield changes.of(example)
            except DataError as error:
                raise DataError(f"{split}: example {number} {error}") from error

    def _not_skipped(self, split: str) -> Iterator[Example]:
        """Yield the examples that are not left out, and say in the end how many are."""
        n, skipped = 0, Counter[str]()
        for example in read_split(self.data, split):
            n += 1
            if (label := example.target.strip()) in self.config.skipped_labels:
                skipped[label] += 1
            else:
                yield example
        if skipped:
            labels = ", ".join(skipped)
            say_once(f"{split}: {skipped.total():,} of {n:,} examples are left out (task.skipped_labels: {labels})")

    def _with_other_labels(self, example: Example, where: str) -> Example:
        """Return an example with a column of the labels that it has not, where they are ranked."""
        choices = self.config.choices
        if choices is None:
            return example
        if example.target not in choices:
            raise DataError(f"{where}: its label {example.target!r} is not among task.choices: {', '.join(choices)}")
        others = [label for label in choices if label != example.target]
        return replace(example, columns=example.columns | {_OTHERS: others})
