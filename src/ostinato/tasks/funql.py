"""FunQL, the functional query language of GeoQuery (Kate et al. 2005), in the form of Shaw et al. 2021 (2010.12725).

The normal form shows the arity of every function (c: all things of a kind, such as `city`; r: a relation):

    c(all) -> c        c(x) -> intersection(c, x)        largest_one(r(x)) -> largest_one(r, x), and smallest_one
    most(r(s(x))) -> most(r, s, x), and fewest            everything else stays

Places that a question names become m0 and m1 on both sides, in the order of the length of their identifiers, and round
brackets, commas and names are separate tokens:

    give me the cities in virginia     answer(city(loc_2(stateid('virginia'))))
    give me the cities in m0           answer ( intersection ( city , loc_2 ( m0 ) ) )
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_KINDS = frozenset({"capital", "city", "lake", "major", "mountain", "place", "river", "state"})
_FLATTENED = {"largest_one": 1, "smallest_one": 1, "most": 2, "fewest": 2}
"""Functions, and how many of the relations nested in them become arguments of their own."""
_ENTITY = re.compile(r"(?P<kind>cityid|stateid|riverid|placeid|countryid)\((?P<name>[^(),]+)(?:,(?P<state>[^(),]+))?\)")
_TOKEN = re.compile(r"[(),]|[^(),]+")
_ANYWHERE = "_"
_NATION = ("america", "continental us", "united states", "us", "usa", "country")
_STATES = {
    "az": "arizona",
    "dc": "district of columbia",
    "ga": "georgia",
    "ma": "massachusetts",
    "me": "maine",
    "mn": "minnesota",
    "mo": "missouri",
    "pa": "pennsylvania",
    "sd": "south dakota",
    "tx": "texas",
    "wa": "washington",
}
"""The states of the cities that the queries name with their state."""


@dataclass(frozen=True, slots=True)
class _Term:
    """A function with its arguments; without arguments, a name or a place."""

    name: str
    arguments: tuple[_Term, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({','.join(map(str, self.arguments))})" if self.arguments else self.name


def clean_question(text: str) -> str:
    """Return a question in lower case, without its last punctuation, blanks before apostrophes closed."""
    return text.strip().lower().rstrip("?").rstrip(".").rstrip().replace(" '", "")


def clean_query(text: str) -> str:
    """Return a query without quotes and without blanks round its commas."""
    return re.sub(r" *, *", ",", text.strip().replace("'", ""))


def normalise(query: str) -> str:
    """Return the normal form of a cleaned query.

    Raises:
        ValueError: brackets that do not match, or a flattened function without the relations it needs.
    """
    term, rest = _parse(query)
    if rest:
        raise ValueError(f"{rest!r} follows a complete query")
    return str(_normal(term))


def _parse(text: str) -> tuple[_Term, str]:
    if place := _ENTITY.match(text):
        return _Term(place[0]), text[place.end() :]
    name = re.match(r"[^(),]+", text)
    if name is None:
        raise ValueError(f"expected a name before {text!r}")
    rest = text[name.end() :]
    if not rest.startswith("("):
        return _Term(name[0]), rest
    arguments: list[_Term] = []
    while rest[:1] in ("(", ","):
        argument, rest = _parse(rest[1:])
        arguments.append(argument)
    if not rest.startswith(")"):
        raise ValueError(f"{name[0]} is not closed before {rest!r}")
    return _Term(name[0], tuple(arguments)), rest[1:]


def _normal(term: _Term) -> _Term:
    if term.name in _KINDS and term.arguments:
        (inner,) = term.arguments
        return _Term(term.name) if inner == _Term("all") else _Term("intersection", (_Term(term.name), _normal(inner)))
    if term.name in _FLATTENED:
        relations: list[_Term] = []
        for _ in range(_FLATTENED[term.name]):
            if len(term.arguments) != 1 or not term.arguments[0].arguments:
                raise ValueError(f"{term.name} needs a relation, not {term}")
            relations.append(_Term(term.arguments[0].name))
            term = _Term(term.name, term.arguments[0].arguments)
        return _Term(term.name, (*relations, *map(_normal, term.arguments)))
    return _Term(term.name, tuple(map(_normal, term.arguments)))


def anonymise(question: str, query: str) -> tuple[str, str]:
    """Replace the places that a question names by m0 and m1, in the question and in the query.

    The longest identifier is replaced first, and of a place's names the longest one in the question. A place that the
    question does not name stays in the query.
    """
    places = {place[0]: place for place in _ENTITY.finditer(query)}
    words = question.split(" ")
    for identifier in sorted(places, key=_quoted_length, reverse=True):
        for alias in sorted(_aliases(places[identifier]), key=len, reverse=True):
            wanted = alias.split(" ")
            start = next((i for i in range(len(words)) if words[i : i + len(wanted)] == wanted), None)
            if start is not None:
                marker = "m1" if any("m0" in word for word in words) else "m0"
                words[start : start + len(wanted)] = [marker]
                query = query.replace(identifier, marker)
                break
    return " ".join(words), query


def _quoted_length(identifier: str) -> int:
    """Return the length of an identifier with its quotes, by which the published data orders places."""
    return len(identifier) + 2 * (identifier.count(",") - identifier.count(f",{_ANYWHERE}"))


def _aliases(place: re.Match[str]) -> tuple[str, ...]:
    kind, name, state = place["kind"], place["name"], place["state"]
    if kind == "countryid":
        return _NATION
    if kind != "cityid" or state == _ANYWHERE:
        return (name,)
    return f"{name} {_STATES.get(state, state)}", f"{name} {state}"


def spaced(query: str) -> str:
    """Return a query with blanks between brackets, commas and names."""
    return " ".join(_TOKEN.findall(query))
