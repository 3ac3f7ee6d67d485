"""Random programs for Learning to Execute: two public generators, implemented from their descriptions.

`draw_family` (the task families of Dehghani et al. 2019, from an example program of DeepMind's Sonnet): an expression
built from the inside. Each of N operations takes the result so far and new numbers of exactly L digits, and gets round
brackets; the outermost brackets are dropped, and the value is taken modulo 10^(L+1):

    A+B   A-B   A*B   AifB<CelseD   AifB>CelseD   x=Afor[k]x+=B  (A + k B, k ~ U{1..9})

`draw_script` (Zaremba and Sutskever 2014, arXiv 1410.4615): lines of Python and a last `print`. Difficulty (L, N) is
drawn again for the program, for every new number (uniform in 1..10^L), loop count and multiplier (uniform in 1..4L).
Each of N operations, drawn from the six below, takes the result so far, once, and new numbers, in shuffled order; lines
end with `#`, the program with `@`, the target with a full stop:

    pair (A+B) (A-B)    small multiplication (A*k) (k*A)    identity A    conditional (C if A>B else D), or <
    variable v=A; then (v+B) (v-B)                          loop v=A, for x in range(k):v+=B or v-=B, then v
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

FAMILIES: dict[str, tuple[str, ...]] = {
    "addition": ("+",),
    "algebra": ("+", "-", "*"),
    "control": ("if", "for"),
    "program": ("+", "-", "if"),
    "all": ("+", "-", "*", "if", "for"),
    "copy": (),
    "double": (),
    "reverse": (),
}
"""Operations by family; the families without operations repeat or reverse a number.

Which operations the paper's `program` has is not published: ours is the generator's + - if, `all` is the other reading.
"""
MEMORY = tuple(family for family, operations in FAMILIES.items() if not operations)

_N_VARIABLES = 10
_MOST_REPEATS = 9
_LINE_END, _PROGRAM_END, _ANSWER_END = "#", "@", "."

Difficulty = Callable[[], tuple[int, int]]
"""Returns a length and a nesting, which may differ from call to call."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its output; `length` is the greatest length of its numbers that was drawn."""

    source: str
    target: str
    length: int
    nesting: int


def draw_family(rng: Random, family: str, length: int, nesting: int) -> Program:
    """Return a program of a family with numbers of `length` digits and `nesting` operations (memory: one number)."""
    if family in MEMORY:
        number = str(_digits(rng, length))
        target = {"copy": number, "double": number * 2, "reverse": number[::-1]}[family]
        return Program(number, target, length, 1)
    value, text = _digits(rng, length), ""
    for _ in range(nesting):
        value, inner = _apply_operation(rng, rng.choice(FAMILIES[family]), value, text or str(value), length)
        text = f"({inner})"
    return Program(text[1:-1], str(value % 10 ** (length + 1)), length, nesting)


def _apply_operation(rng: Random, operation: str, value: int, text: str, length: int) -> tuple[int, str]:
    """Return value and text, without brackets, of one operation on the result so far."""
    other = _digits(rng, length)
    if operation == "if":
        left, right, sign = other, _digits(rng, length), rng.choice("<>")
        other = _digits(rng, length)
        holds = left < right if sign == "<" else left > right
        return value if holds else other, f"{text}if{left}{sign}{right}else{other}"
    if operation == "for":
        times = rng.randint(1, _MOST_REPEATS)
        return value + times * other, f"x={text}for[{times}]x+={other}"
    results = {"+": value + other, "-": value - other, "*": value * other}
    return results[operation], f"{text}{operation}{other}"


def _digits(rng: Random, length: int) -> int:
    return rng.randint(10 ** (length - 1), 10**length - 1)


def draw_script(rng: Random, difficulty: Difficulty) -> Program:
    """Return a script; `difficulty` is called for the program and for every number in it."""
    _, nesting = difficulty()
    script = _Script(rng, difficulty, rng.sample("abcdefghij", _N_VARIABLES))
    operations = (script.pair, script.product, script.operand, script.variable, script.loop, script.conditional)
    for _ in range(nesting):
        script.result = rng.choice(operations)()
    text, value = script.operand()
    lines = [*script.lines, f"print({text}){_PROGRAM_END}"]
    return Program(_LINE_END.join(lines), f"{value}{_ANSWER_END}", script.longest, nesting)


Term = tuple[str, int]
"""An expression and its value."""


@dataclass
class _Script:
    """A script under construction; every operation returns its expression and value, and may add lines."""

    rng: Random
    difficulty: Difficulty
    names: list[str]
    lines: list[str] = field(default_factory=list)
    result: Term | None = None
    longest: int = 0

    def operand(self) -> Term:
        """Return the result so far, which is used once, or else a new number."""
        if self.result is not None:
            term, self.result = self.result, None
            return term
        value = self.rng.randint(1, 10 ** self._length())
        return str(value), value

    def operands(self, n: int) -> list[Term]:
        """Return n operands in random order, the result so far among them."""
        drawn = [self.operand() for _ in range(n)]
        self.rng.shuffle(drawn)
        return drawn

    def pair(self) -> Term:
        left, right = self.operands(2)
        return self._sum(left, right)

    def product(self) -> Term:
        (text, value), factor = self.operand(), self._factor()
        form = self.rng.choice((f"({text}*{factor})", f"({factor}*{text})"))
        return form, value * factor

    def variable(self) -> Term:
        (text, value), right = self.operands(2)
        name = self.names.pop()
        self.lines.append(f"{name}={text};")
        return self._sum((name, value), right)

    def loop(self) -> Term:
        (start, value), (added, step) = self.operands(2)
        name, times, sign = self.names.pop(), self._factor(), self.rng.choice("+-")
        self.lines += [f"{name}={start}", f"for x in range({times}):{name}{sign}={added}"]
        return name, value + times * step if sign == "+" else value - times * step

    def conditional(self) -> Term:
        (left, low), (right, high), yes, no = self.operands(4)
        sign = self.rng.choice("<>")
        holds = low < high if sign == "<" else low > high
        return f"({yes[0]} if {left}{sign}{right} else {no[0]})", (yes if holds else no)[1]

    def _sum(self, left: Term, right: Term) -> Term:
        sign = self.rng.choice("+-")
        return f"({left[0]}{sign}{right[0]})", left[1] + right[1] if sign == "+" else left[1] - right[1]

    def _factor(self) -> int:
        return self.rng.randint(1, 4 * self._length())

    def _length(self) -> int:
        length, _ = self.difficulty()
        self.longest = max(self.longest, length)
        return length
