"""Families with absolute positions: GPT-2, BERT, ALBERT, BART, Marian.

Their classes number columns where no positions are given, whatever the mask says: so do these calls, of batches with
padding on the left.
"""

from __future__ import annotations

from family import PLAIN, RIGHT, Family, Variant

from ostinato.interop.names.encoders import albert, bert
from ostinato.interop.names.gpt2 import gpt2
from ostinato.interop.names.pairs import bart

LEFT = Variant("left", inputs="left/", by_column=True, checks=("numbers", "rows"))
COUNTED = Variant("left_positions", inputs="left_positions/")

FAMILIES = [
    Family("gpt2", "dense/gpt2-toy", gpt2, variants=(PLAIN, LEFT, COUNTED, RIGHT)),
    Family("bert", "dense/bert-toy", bert, variants=(PLAIN, LEFT, RIGHT)),
    Family("albert", "dense/albert-toy", albert, variants=(PLAIN, LEFT, RIGHT)),
    Family("bart", "dense/bart-toy", bart, variants=(PLAIN, LEFT, RIGHT)),
    Family("marian", "dense/marian-toy", bart, variants=(PLAIN, LEFT, RIGHT)),
]
