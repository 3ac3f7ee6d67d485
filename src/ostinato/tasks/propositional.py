"""Propositional formulas: their meaning, the relation between two of them, and random pairs (Bowman et al. 2015).

The meaning of a formula over six variables is the set of the 64 worlds it is true in, held as the bits of an integer.
With both = L and R, left = L without R, right = R without L, neither = the worlds in none of them, the relation of L to
R is

    =  equivalence      left and right empty             ^  negation       both and neither empty
    <  entailment       left empty                       >  reverse        right empty
    |  alternation      both empty                       v  cover          neither empty
    #  independence     none of these

the first one that holds. The order matters only where a side is a tautology or a contradiction, which the data set has
not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

VARIABLES = "abcdef"
ALL_WORLDS = (1 << 2 ** len(VARIABLES)) - 1
MEANINGS = {
    name: sum(1 << world for world in range(2 ** len(VARIABLES)) if world >> place & 1)
    for place, name in enumerate(VARIABLES)
}
"""The worlds in which each variable is true: bit w stands for the world whose binary digits are the truth values."""
RELATIONS = "=<>^|v#"

_N_SAMPLED = 4
_SIZE = 12
_OPERATORS = frozenset(("and", "or", "not"))


@dataclass(frozen=True, slots=True)
class Pair:
    """Two formulas as text, and the relation of the left to the right one."""

    left: str
    right: str
    relation: str

    @property
    def n_ops(self) -> int:
        """Operators in the longer side."""
        return max(count_operators(self.left), count_operators(self.right))


def count_operators(formula: str) -> int:
    """Return how many of `and`, `or`, `not` a formula has."""
    return sum(token in _OPERATORS for token in formula.split())


def relation(left: int, right: int) -> str:
    """Return the symbol of the relation between two meanings."""
    both, only_left, only_right = left & right, left & ~right, right & ~left
    neither = ALL_WORLDS & ~(left | right)
    holds = (
        ("=", not only_left and not only_right),
        ("^", not both and not neither),
        ("<", not only_left),
        (">", not only_right),
        ("|", not both),
        ("v", not neither),
    )
    return next((symbol for symbol, is_so in holds if is_so), "#")


def meaning(formula: str) -> int:
    """Return the worlds a formula is true in.

    The formula is a variable, `( not X )`, `( X ( and Y ) )` or `( X ( or Y ) )`, tokens separated by blanks.

    Raises:
        ValueError: anything else.
    """
    tokens = formula.split()
    value, end = _read(tokens, 0)
    if end != len(tokens):
        raise ValueError(f"{formula!r}: nothing may follow token {end}")
    return value


def _read(tokens: list[str], start: int) -> tuple[int, int]:
    """Return the meaning of the formula that begins at a token, and where it ends."""
    match tokens[start : start + 2]:
        case [name, *_] if name in MEANINGS:
            return MEANINGS[name], start + 1
        case ["(", "not"]:
            value, end = _read(tokens, start + 2)
            return ALL_WORLDS & ~value, _close(tokens, end)
        case ["(", _]:
            left, middle = _read(tokens, start + 1)
            operator = tokens[middle : middle + 2]
            if operator not in (["(", "and"], ["(", "or"]):
                raise ValueError(f"{' '.join(tokens)!r}: expected '( and' or '( or' at token {middle + 1}")
            right, end = _read(tokens, middle + 2)
            value = left & right if operator[1] == "and" else left | right
            return value, _close(tokens, _close(tokens, end))
    raise ValueError(f"{' '.join(tokens)!r}: expected a variable or '(' at token {start + 1}")


def _close(tokens: list[str], place: int) -> int:
    if tokens[place : place + 1] != [")"]:
        raise ValueError(f"{' '.join(tokens)!r}: expected ')' at token {place + 1}")
    return place + 1


class _Drawn(NamedTuple):
    text: str
    meaning: int


def draw_pairs(rng: Random) -> Iterator[Pair]:
    """Yield random pairs without end.

    Both sides use the same four of the six variables. Pairs with a tautology or a contradiction are drawn again.
    """
    while True:
        variables = rng.sample(VARIABLES, _N_SAMPLED)
        left, right = _draw(rng, variables, _SIZE), _draw(rng, variables, _SIZE)
        if not {left.meaning, right.meaning} & {0, ALL_WORLDS}:
            yield Pair(left.text, right.text, relation(left.meaning, right.meaning))


def _draw(rng: Random, variables: list[str], size: int) -> _Drawn:
    """Draw a formula within a size budget: and, or with 2/9 each, else a variable; negated with 1/3."""
    ninth = int(rng.random() * 9)
    if ninth >= 4 or size < 2:
        name = variables[int(rng.random() * len(variables))]
        drawn = _Drawn(name, MEANINGS[name])
    else:
        left, right = _draw(rng, variables, size // 2), _draw(rng, variables, size // 2)
        if ninth < 2:
            drawn = _Drawn(f"( {left.text} ( and {right.text} ) )", left.meaning & right.meaning)
        else:
            drawn = _Drawn(f"( {left.text} ( or {right.text} ) )", left.meaning | right.meaning)
    if rng.random() * 3 < 1:
        return _Drawn(f"( not {drawn.text} )", ALL_WORLDS & ~drawn.meaning)
    return drawn
