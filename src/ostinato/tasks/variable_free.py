"""From the logical forms of COGS to their variable-free form (Qiu et al. 2022, arXiv 2112.07610).

A logical form is a list of terms, joined by ` ; ` after a definite noun and by ` AND ` otherwise. A term is
`label ( a )` or `label ( a , b )`, its label a dotted list that begins with the predicate:

    * cat ( x _ 1 ) ; sleep . agent ( x _ 2 , x _ 1 )     ->     sleep ( agent = * cat )

Every first argument is a node, named by the predicate of its first term (the `*` of a definite noun kept). A term with
two arguments is an edge, labelled by the rest of its label; edges keep the order of the terms. The tree is written from
the one node that no edge points to: a node without edges as its name, others as `name ( label = child , label = child
)`. An argument that is no node must be a proper name, and is written as it is. A node with two parents (the subject of
a control verb) is written twice, so mentions of one referent and of two like ones look the same: the form says less
than the original.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TERM = re.compile(r"(?P<definite>\* )?(?P<label>\S+(?: \. \S+)*) \( (?P<arguments>[^()]+) \)")
_VARIABLE = re.compile(r"x _ \d+")


@dataclass
class _Node:
    name: str
    edges: list[tuple[str, str]] = field(default_factory=list)

    @property
    def predicate(self) -> str:
        return self.name.removeprefix("* ")


def variable_free(logical_form: str) -> str:
    """Return the variable-free form of a logical form, tokens separated by single blanks.

    Raises:
        ValueError: a form that is no tree of terms, with the term and the reason.
    """
    nodes: dict[str, _Node] = {}
    for term in re.split(r" ; | AND ", logical_form):
        _add_term(nodes, term)
    pointed_at = {child for node in nodes.values() for _, child in node.edges}
    roots = [variable for variable in nodes if variable not in pointed_at]
    if len(roots) != 1:
        raise ValueError(f"{len(roots)} nodes that no edge points to ({', '.join(roots) or 'none'}); there must be one")
    return _write(nodes, roots[0], ())


def _add_term(nodes: dict[str, _Node], term: str) -> None:
    match = _TERM.fullmatch(term)
    if match is None:
        raise ValueError(f"{term!r} is no term of the form 'label ( a )' or 'label ( a , b )'")
    predicate, *rest = match["label"].split(" . ")
    arguments = match["arguments"].split(" , ")
    if len(arguments) > 2 or (len(arguments) == 2) != bool(rest):
        raise ValueError(f"{term!r} has {len(arguments)} arguments, which does not fit its label")
    node = nodes.setdefault(arguments[0], _Node(f"{match['definite'] or ''}{predicate}"))
    if node.predicate != predicate:
        raise ValueError(f"{term!r}: {arguments[0]} already is {node.predicate!r}")
    if rest:
        node.edges.append((" . ".join(rest), arguments[1]))


def _write(nodes: dict[str, _Node], argument: str, above: tuple[str, ...]) -> str:
    """Write what hangs below an argument; `above` are the nodes on the way to it."""
    if argument in above:
        raise ValueError(f"{argument} hangs below itself")
    if argument not in nodes:
        if _VARIABLE.fullmatch(argument):
            raise ValueError(f"{argument} is used, but no term says what it is")
        return argument
    node = nodes[argument]
    if not node.edges:
        return node.name
    below = (f"{label} = {_write(nodes, child, (*above, argument))}" for label, child in node.edges)
    return f"{node.name} ( {' , '.join(below)} )"
