"""What tasks change of pairs before they are tokenised, and of inputs before they are answered."""

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
        second: column of a second text, which the source gets behind a tab; None: the source is all.
    """

    tag: str | None = None
    letters: dict[str, str] = field(default_factory=dict)
    is_swapped: bool = False
    second: str | None = None

    def of(self, example: Example) -> Example:
        """Return the changed pair.

        Raises:
            DataError: it names no language in that column, or has no second text.
        """
        if self.tag is not None and example.columns.get(self.tag) in (None, ""):
            raise DataError(f"has no language in column {self.tag!r} (task.target_tag)")
        if self.second is not None and not isinstance(example.columns.get(self.second), str):
            raise DataError(f"has no text {self.second!r} (task.pair_field)")
        columns = {name: value for name, value in example.columns.items() if name != self.second}
        source, target = example.source or "", example.target
        if self.is_swapped:
            source, target = target, source
        else:
            target = self._with_letters(target)
        return replace(example, source=self.of_source(source, example.columns), target=target, columns=columns)

    def of_source(self, text: str, columns: Mapping[str, object]) -> str:
        """Return what the model reads, changed as in a pair.

        No tag is written where its column is not there or empty, nor where the text begins with it. Where the column of
        the second text is not there, the text may hold both.

        Raises:
            DataError: there is no second text.
        """
        if self.second is not None:
            if isinstance(second := columns.get(self.second), str):
                text = "\t".join(one.replace("\t", " ").strip() for one in (text, second))
            elif "\t" not in text:
                reason = "give it, or write both texts with one tab between them"
                raise DataError(f"has no text {self.second!r} (task.pair_field): {reason}")
        if self.tag is not None and (value := columns.get(self.tag)) not in (None, ""):
            tag = f"<2{value}> "
            text = text if text.startswith(tag) else tag + text
        return self._with_letters(text) if self.is_swapped else text

    def of_prefix(self, text: str) -> str:
        """Return the beginning of an output with the letters that targets have."""
        return text if self.is_swapped or not text else self._with_letters(text)

    def _with_letters(self, text: str) -> str:
        return text.translate({ord(letter): other for letter, other in self.letters.items()})
