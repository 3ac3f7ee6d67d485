"""How much of a split is cut where `data.over_length` is "truncate": what is cut is in no loss and no score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["text", "source", "target", "story"]
"""What is cut; of a story, facts are counted in place of tokens."""
_HINT = "raise it to use them"
_HINT_OF_TEXTS = (
    "data.block_length cuts texts into blocks and loses none; word_perplexity and bits_per_byte need whole texts"
)


@dataclass(slots=True)
class _Count:
    """Of one kind: the limit in tokens (facts); texts, and those that are cut; tokens, and those beyond the limit."""

    limit: int
    n: int = 0
    n_cut: int = 0
    n_tokens: int = 0
    n_unused: int = 0


class Cuts:
    """Counts what is cut of the examples of one split."""

    def __init__(self) -> None:
        self._counts: dict[Kind, _Count] = {}

    def add(self, kind: Kind, n_tokens: int, limit: int) -> None:
        """Count a text of so many tokens, symbols included, of which `limit` are used."""
        count = self._counts.setdefault(kind, _Count(limit))
        count.n += 1
        count.n_tokens += n_tokens
        if n_tokens > limit:
            count.n_cut += 1
            count.n_unused += n_tokens - limit

    def add_all(self, kind: Kind, lengths: NDArray[np.int32], limit: int) -> None:
        """Count many texts at once."""
        count = self._counts.setdefault(kind, _Count(limit))
        too_long = lengths[lengths > limit]
        count.n += len(lengths)
        count.n_tokens += int(lengths.sum(dtype="int64"))
        count.n_cut += len(too_long)
        count.n_unused += int(too_long.sum(dtype="int64")) - len(too_long) * limit

    def notes(self, name: str) -> list[str]:
        """Return a line for every kind of which something is cut; `name`: of the split."""
        lines = []
        for kind, count in self._counts.items():
            if not count.n_cut:
                continue
            unit, kinds = ("facts", "stories") if kind == "story" else ("tokens", f"{kind}s")
            key = f"data.max_{'target' if kind in ('text', 'target') else 'source'}_length"
            cut = f"{count.n_cut:,} of {count.n:,} {kinds} were cut to {key} = {count.limit:,} {unit}"
            unused = f"{count.n_unused:,} of {count.n_tokens:,} {unit} are not used"
            lines.append(f"{name}: {cut}: {unused}; {_HINT_OF_TEXTS if kind == 'text' else _HINT}")
        return lines
