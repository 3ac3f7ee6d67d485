"""One example of a data set, before it becomes token ids, and the fingerprint of a stream of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

NOT_IN_PASSAGE = -1
"""`answer_start` of a question whose answer the passage does not hold: nothing to learn, and no output is right."""


@dataclass(frozen=True, slots=True)
class Example:
    """A pair of texts, or one text for a language model.

    Args:
        source: what the model reads; None for language models.
        target: what it writes; for language models, the text.
        continues: the target goes on where the source ends: a language model reads both as one text, of which only the
            target counts.
        columns: metadata such as a category, carried through to the metrics and never shown to the model.
    """

    source: str | None
    target: str
    columns: dict[str, object] = field(default_factory=dict)
    continues: bool = False


def fingerprint(examples: Iterable[Example]) -> tuple[str, int]:
    """Return the SHA-256 and the number of the examples, in their order.

    One JSON line per example is hashed: ``[source, target, columns]``, ASCII only, keys sorted, no spaces. Equal rows
    in equal order give equal fingerprints, whatever file format they were read from. The stream is read once and
    never held.
    """
    digest = hashlib.sha256()
    n_examples = 0
    for example in examples:
        record = [example.source, example.target, example.columns]
        line = json.dumps(record, sort_keys=True, ensure_ascii=True, separators=(",", ":"), default=str)
        digest.update(line.encode("ascii") + b"\n")
        n_examples += 1
    return digest.hexdigest(), n_examples
