"""The string edits of PCFG SET (Hupkes et al. 2020, arXiv 1908.08351): their results, and random sequences of them.

S -> F1 S | F2 S , S | X        X: letters A1 .. Z20

copy(x) = x                        reverse(x) = x_n .. x_1            shift(x) = x_2 .. x_n x_1
swap_first_last(x) = x_n x_2 .. x_1   repeat(x) = x x                 echo(x) = x x_n
append(x, y) = x y                 prepend(x, y) = y x                remove_first(x, y) = y    remove_second(x, y) = x
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from random import Random

Letters = list[str]

UNARY: dict[str, Callable[[Letters], Letters]] = {
    "copy": lambda x: x,
    "reverse": lambda x: x[::-1],
    "shift": lambda x: [*x[1:], *x[:1]],
    "swap_first_last": lambda x: [x[-1], *x[1:-1], x[0]] if len(x) > 1 else x,
    "repeat": lambda x: x + x,
    "echo": lambda x: [*x, x[-1]],
}
BINARY: dict[str, Callable[[Letters, Letters], Letters]] = {
    "append": lambda x, y: x + y,
    "prepend": lambda x, y: y + x,
    "remove_first": lambda x, y: y,
    "remove_second": lambda x, y: x,
}
FUNCTIONS = (*UNARY, *BINARY)
SEPARATOR = ","
TWIN = "_twin"
"""Ends the name of a synonym."""
HELD_OUT_PAIRS = (
    ("swap_first_last", "repeat"),
    ("append", "remove_second"),
    ("repeat", "remove_second"),
    ("append", "swap_first_last"),
)
"""Neighbouring functions that training for systematicity never has."""

EXCEPTIONS = {
    ("reverse", "echo"): ("echo", "copy"),
    ("prepend", "remove_first"): ("remove_second", "append"),
    ("echo", "remove_first"): ("copy", "append"),
    ("prepend", "reverse"): ("remove_second", "echo"),
}
"""Neighbouring functions that get another meaning in the test of overgeneralisation: that of these two."""

LETTERS = tuple(f"{letter}{number}" for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for number in range(1, 21))
_SHORTEST, _LONGEST = 2, 5
_MOST_CHARACTERS = 500
_SIZES = (154, 1243, 1920, 1793, 1336, 994, 631, 480, 326, 243, 193, 147, 77, 60, 37, 17, 17, 16, 8, 7, 7, 4, 4, 5)
"""How many of the published test sequences have 1, 2, 3 .. functions (two more have 28)."""


def apply_edits(source: str) -> str:
    """Return the result of a sequence of functions and letters.

    Raises:
        ValueError: it is no such sequence, with the token and the reason.
    """
    tokens = source.split()
    letters, rest = _apply(tokens, 0)
    if rest != len(tokens):
        raise ValueError(f"token {rest + 1}: {tokens[rest]!r} follows a complete sequence")
    return " ".join(letters)


def exceptional_results(source: str) -> set[str]:
    """Return the results of a sequence in which one or all of its exceptions have their other meaning; empty without.

    Raises:
        ValueError: as `apply_edits`.
    """
    tokens = source.split()
    places = [i for i, pair in enumerate(pairwise(tokens)) if pair in EXCEPTIONS]
    results = set()
    for chosen in [*([place] for place in places), places]:
        changed = list(tokens)
        for place in chosen:
            changed[place : place + 2] = EXCEPTIONS[tokens[place], tokens[place + 1]]
        if chosen:
            results.add(apply_edits(" ".join(changed)))
    return results


def _apply(tokens: Sequence[str], start: int) -> tuple[Letters, int]:
    """Return the value of the sequence that begins at a token, and the number of the token after it."""
    name = tokens[start].removesuffix(TWIN) if start < len(tokens) else ""
    if name in UNARY:
        letters, end = _apply(tokens, start + 1)
        return UNARY[name](letters), end
    if name in BINARY:
        first, comma = _apply(tokens, start + 1)
        if comma >= len(tokens) or tokens[comma] != SEPARATOR:
            raise ValueError(f"token {comma + 1}: {name} needs a second argument after {SEPARATOR!r}")
        second, end = _apply(tokens, comma + 1)
        return BINARY[name](first, second), end
    end = start
    while end < len(tokens) and tokens[end][0].isupper():
        end += 1
    if end == start:
        shown = repr(tokens[start]) if start < len(tokens) else "the end"
        raise ValueError(f"token {start + 1}: {shown} is neither a function nor a letter")
    return list(tokens[start:end]), end


def functions_of(source: str) -> list[str]:
    """Return the functions of a sequence in their order, synonyms by their first name."""
    return [name for token in source.split() if (name := token.removesuffix(TWIN)) in UNARY or name in BINARY]


def has_held_out_pair(source: str) -> bool:
    """Return whether two neighbouring tokens are one of the pairs held out for systematicity."""
    tokens = source.split()
    return any(pair in HELD_OUT_PAIRS for pair in pairwise(tokens))


def draw_edits(rng: Random, most: int | None = None) -> Iterator[str]:
    """Yield random sequences without end, repetitions among them, of up to `most` functions (None: 24).

    The number of functions has the distribution of the published test set, every function the same probability. The
    functions after a binary one are divided uniformly between its arguments, and letters are 2 to 5 uniform ones.
    Sequences of 500 characters and more are drawn again, as published.
    """
    weights = _SIZES[:most]
    sizes = range(1, len(weights) + 1)
    while True:
        source = " ".join(_draw(rng, rng.choices(sizes, weights)[0]))
        if len(source) < _MOST_CHARACTERS:
            yield source


def _draw(rng: Random, n_functions: int) -> Iterator[str]:
    if n_functions == 0:
        yield from rng.choices(LETTERS, k=rng.randint(_SHORTEST, _LONGEST))
        return
    name = rng.choice(FUNCTIONS)
    yield name
    if name in UNARY:
        yield from _draw(rng, n_functions - 1)
        return
    n_first = rng.randint(0, n_functions - 1)
    yield from _draw(rng, n_first)
    yield SEPARATOR
    yield from _draw(rng, n_functions - 1 - n_first)
