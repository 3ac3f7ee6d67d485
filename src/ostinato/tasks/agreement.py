"""Subject-verb agreement: which form of a verb a language model finds more probable, by the nouns before the verb.

The generator's grammar, with number in { singular, plural } for every noun:

    sentence -> the N (P the N)^a V        V agrees with the first N

An attractor is a noun between subject and verb whose number is not the subject's.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import ClassVar, Literal

from ostinato.config.base import Count, NumberOrZero, Size
from ostinato.config.data import FieldName
from ostinato.data.example import Example
from ostinato.errors import DataError
from ostinato.tasks.base import PAIR_FIELDS, TEXT_FIELD, Only, Task, TaskConfig
from ostinato.tasks.own_files import read_split

NOUNS = ("author", "bird", "boat", "doctor", "farmer", "garden", "key", "letter", "pilot", "river", "song", "tower")
VERBS = ("appear", "change", "disappear", "fall", "move", "return", "shine", "sing", "sleep", "stand", "turn", "wait")
PREPOSITIONS = ("above", "behind", "beside", "near", "of", "with")


class AgreementConfig(TaskConfig):
    """Settings of subject-verb agreement."""

    only: ClassVar[tuple[Only, ...]] = (
        Only(("n_train", "n_eval", "train_nouns", "max_attractors", "seed"), "origin", ("generated",)),
        Only(("train_form", "wrong_field", "by_field"), "origin", ("files",)),
    )
    kind: Literal["agreement"] = "agreement"
    origin: Literal["generated", "files"] = "generated"
    """files: data.train holds texts, data.dev and data.test pairs with a wrong target."""
    train_form: Literal["texts", "prefixes"] = "texts"
    """files: texts: data.train holds whole sentences. prefixes: pairs like those of dev, of which a model reads the
    sentence up to the verb and the verb, and nothing after it."""
    n_train: Size = 20_000
    """Examples in train."""
    n_eval: Size = 200
    """generated: examples of each number of attractors in dev and in test."""
    train_nouns: NumberOrZero = 2
    """generated: most nouns between subject and verb in train."""
    max_attractors: NumberOrZero = 5
    """generated: most in dev and test."""
    wrong_field: FieldName = "wrong"
    """files: column of the wrong form."""
    by_field: FieldName | None = "n_attractors"
    """files: column that scores are reported by."""
    seed: Count = 0
    """generated: of the data; independent of the seed of training."""

    @property
    def has_sources(self) -> bool:
        """False: texts, for language models."""
        return False

    @property
    def reads_own_files(self) -> bool:
        """Whether the sentences are the user's."""
        return self.origin == "files"

    @property
    def fields(self) -> frozenset[str]:
        """Of files those of pairs, and that of the texts of train."""
        texts = TEXT_FIELD if self.train_form == "texts" else frozenset()
        return texts | PAIR_FIELDS if self.reads_own_files else texts

    @property
    def of_train(self) -> tuple[str, ...]:
        """The number of sentences, and of nouns in them."""
        return "n_train", "train_nouns"


class AgreementTask(Task):
    """Subject-verb agreement (Linzen et al. 2016): is the right form of the verb more probable than the wrong one?

    Splits of origin=generated: train (`n_train` sentences, 0 to `train_nouns` nouns between subject and verb, of any
    number), dev and test (`n_eval` for each of 0 to `max_attractors` attractors, no other nouns in between): more
    attractors than train_nouns are longer than anything in training. Sentences with few nouns repeat between splits.
    origin=files: data.train are texts (data.text_field, or plain text); data.dev and data.test are JSON lines with the
    sentence up to the verb (data.source_field), the right form (data.target_field) and the wrong one (wrong_field).
    In 4 rows of the Linzen test set of Gulordava et al. (2018) both forms are the same, which always counts as wrong.
    Tokens: words for generated sentences, else data.tokenizer.
    Metric: `ranking`: share of examples whose right form has the greater probability after the same words, forms of
    several tokens by the product; by attractors, `macro` their mean. Chance is 0.5, and a model that follows the last
    noun has 1 for no attractor and 0 for any. Loss and token accuracy are of the right form.
    Selection: dev, by loss of the right forms.
    Departures: generated sentences replace those of Wikipedia (Linzen et al.: 9 % of the dependencies train, 1 %
    validation, the rest test, all intervening nouns attractors). Universal Transformers trains on sentences up to and
    including the verb: train_form=prefixes; by default whole ones are read.
    """

    config: AgreementConfig
    forced = ("ranking",)
    contrast = "wrong"

    def _configure(self) -> None:
        self.by = ("n_attractors",)
        if self.config.reads_own_files:
            self.contrast = self.config.wrong_field
            self.by = () if self.config.by_field is None else (self.config.by_field,)

    def _examples(self, split: str) -> Iterator[Example]:
        return self._read(split) if self.config.reads_own_files else self._drawn(split)

    def _read(self, split: str) -> Iterator[Example]:
        """Yield the examples of the user's files; training pairs as one text each."""
        wrong_field = self.config.wrong_field
        if split == "train" and self.config.train_form == "texts":
            yield from read_split(self.data, split, "language_model")
            return
        for number, pair in enumerate(read_split(self.data, split), 1):
            if split == "train":
                between = "" if (pair.source or "")[-1:].isspace() else " "  # as in dev and test, where it goes on
                yield Example(None, f"{pair.source}{between}{pair.target}")
                continue
            if not isinstance(pair.columns.get(wrong_field), str):
                raise DataError(f"{split}: example {number} has no text {wrong_field!r} (task.wrong_field)")
            yield Example(pair.source, pair.target, pair.columns, continues=True)

    def _drawn(self, split: str) -> Iterator[Example]:
        config = self.config
        rng = Random(f"{config.seed}/agreement/{split}")
        if split == "train":
            for _ in range(config.n_train):
                is_plural = rng.random() < 0.5
                others = [rng.random() < 0.5 for _ in range(rng.randint(0, config.train_nouns))]
                prefix, verb, _ = _sentence(rng, is_plural, others)
                yield Example(None, f"{prefix} {verb}")
            return
        for n_attractors in range(config.max_attractors + 1):
            for _ in range(config.n_eval):
                is_plural = rng.random() < 0.5
                prefix, verb, wrong = _sentence(rng, is_plural, [not is_plural] * n_attractors)
                columns: dict[str, object] = {"wrong": wrong, "n_attractors": n_attractors}
                yield Example(prefix, verb, columns, continues=True)


def _sentence(rng: Random, is_plural: bool, others: list[bool]) -> tuple[str, str, str]:
    """Return a sentence up to its verb, then the verb's right and wrong form.

    Args:
        others: for every noun between subject and verb, whether it is plural.
    """
    words = ["the", _noun(rng, is_plural)]
    for other in others:
        words += [rng.choice(PREPOSITIONS), "the", _noun(rng, other)]
    plural = rng.choice(VERBS)
    forms = [f"{plural}s", plural]
    return " ".join(words), forms[is_plural], forms[not is_plural]


def _noun(rng: Random, is_plural: bool) -> str:
    return rng.choice(NOUNS) + "s" * is_plural
