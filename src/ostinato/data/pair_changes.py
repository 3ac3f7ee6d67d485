"""What a task of translation changes of pairs before they are tokenised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ostinato.data.example import Example
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class PairChanges:
    """Changes to a pair of texts.

    Args:
        tag: column with the language of the target: `<2de>` and a blank are written before a source whose target is
            German (`de`); None: nothing is.
        letters: of the target, each with the one that stands in its place.
        is_swapped: source and target change places; `letters` are then the source's.
    """

    tag: str | None = None
    letters: dict[str, str] = field(default_factory=dict)
    is_swapped: bool = False

    def of(self, example: Example) -> Example:
        """Return the changed pair.

        Raises:
            DataError: it names no language in that column.
        """
        if self.tag is not None and example.columns.get(self.tag) in (None, ""):
            raise DataError(f"has no language in column {self.tag!r} (task.target_tag)")
        source, target = example.source or "", example.target
        if self.is_swapped:
            return replace(example, source=self.of_source(target, example.columns), target=source)
        return replace(example, source=self.of_source(source, example.columns), target=self._with_letters(target))

    def of_source(self, text: str, columns: Mapping[str, object]) -> str:
        """Return what the model reads, changed as in a pair.

        No tag is written where its column is not there or empty, nor where the text begins with it.
        """
        if self.tag is not None and (value := columns.get(self.tag)) not in (None, ""):
            tag = f"<2{value}> "
            text = text if text.startswith(tag) else tag + text
        return self._with_letters(text) if self.is_swapped else text

    def _with_letters(self, text: str) -> str:
        return text.translate({ord(letter): other for letter, other in self.letters.items()})
