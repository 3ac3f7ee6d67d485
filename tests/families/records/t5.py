"""T5 and T5 1.1, whose positions are relative."""

from __future__ import annotations

from family import Family

from ostinato.interop.names.pairs import t5

FAMILIES = [
    Family("t5-relu", "dense/t5-toy", t5),
    Family("t5-gated", "dense/t5-v1.1-toy", t5),
]
