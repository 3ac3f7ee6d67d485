"""Other libraries: their weights under their names, to models of this one and back.

`ostinato.interop.weights` says what a table of names is and applies it in both directions; `ostinato.interop.names` has
the tables of models whose weights are public. `ostinato.interop.recursive` makes dense models ones of repeated steps.
"""

from ostinato.interop.recursive import to_recursive
from ostinato.interop.weights import (
    Change,
    HalfSplit,
    Part,
    Reshaped,
    Rule,
    Table,
    Transposed,
    from_ours,
    load_weights,
    rules_of_layers,
    to_ours,
)

__all__ = [
    "Change",
    "HalfSplit",
    "Part",
    "Reshaped",
    "Rule",
    "Table",
    "Transposed",
    "from_ours",
    "load_weights",
    "rules_of_layers",
    "to_ours",
    "to_recursive",
]
