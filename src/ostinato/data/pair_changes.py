"""What a task of translation changes of pairs before they are tokenised."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ostinato.data.example import Example
from ostinato.errors import DataError


@dataclass(frozen=True, slots=True)
class PairChanges:
    """Changes to a pair of texts, in this order.

    Args:
        tag: column with the language of the target: `<2de>` and a blank are written before a source whose target is
            German (`de`); None: nothing is.
        letters: of the target, each with the one that stands in its place. is_swapped: source and target change places.
    """

    tag: str | None = None
    letters: dict[str, str] = field(default_factory=dict)
    is_swapped: bool = False

    def of(self, example: Example) -> Example:
        """Return the changed pair.

        Raises:
            DataError: it has no such column.
        """
        source, target = example.source or "", example.target
        if self.tag is not None:
            if self.tag not in example.columns:
                raise DataError(f"has no column {self.tag!r} (task.target_tag)")
            source = f"<2{example.columns[self.tag]}> {source}"
        target = target.translate({ord(letter): other for letter, other in self.letters.items()})
        return replace(
            example, source=target if self.is_swapped else source, target=source if self.is_swapped else target
        )
