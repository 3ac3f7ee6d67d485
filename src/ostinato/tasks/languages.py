"""Settings and reading that tasks in several languages share: train in some, measure in all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ostinato.config.data import FieldName
from ostinato.data.example import Example
from ostinato.errors import DataError, Problem
from ostinato.tasks.base import TaskConfig

_MEASURED = "test"


class LanguagesConfig(TaskConfig):
    """Settings of a task whose examples may be in several languages."""

    language_field: FieldName | None = None
    """Column that names each example's language, for scores by language and their mean."""
    train_languages: list[FieldName] | None = None
    """Languages of train and dev; test keeps all: zero-shot transfer, as XTREME has it. None: all."""

    def problems(self, path: str = "") -> Iterator[Problem]:
        """Languages are told apart by a column."""
        if self.train_languages is not None and self.language_field is None:
            yield Problem(f"{path}language_field", None, f"is needed with {path}train_languages")

    @property
    def by(self) -> tuple[str, ...]:
        """Columns that scores are reported by."""
        return () if self.language_field is None else (self.language_field,)

    def of_split(self, examples: Iterable[Example], split: str) -> Iterator[Example]:
        """Yield the examples of a split that its languages leave.

        Raises:
            DataError: an example without a language, or none in the languages of training.
        """
        wanted, column = self.train_languages, self.language_field
        if wanted is None or column is None or split == _MEASURED:
            yield from examples
            return
        n_kept, seen = 0, dict[str, None]()
        for number, example in enumerate(examples, 1):
            if column not in example.columns:
                raise DataError(f"{split}: example {number} has no column {column!r} (task.language_field)")
            language = str(example.columns[column])
            seen.setdefault(language)
            if language in wanted:
                n_kept += 1
                yield example
        if not n_kept:
            raise DataError(f"{split}: no example in {', '.join(wanted)}; its languages are {', '.join(seen)}")
