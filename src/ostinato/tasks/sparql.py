"""SPARQL queries of CFQ and MCWQ as targets: tokens, and the shorter form of Zheng and Lapata (2022, 2010.11818).

A query is `HEAD WHERE { clause . clause }`, a clause a triple `s p o` or `FILTER ( a != b )`. The shorter form writes
together what shares its parts, in alphabetical order, so that the order of clauses no longer matters:

    1. triples with equal s and p become one, their o a list;
    2. those with equal p and list of o become one, their s a list;
    3. those with equal lists of s and o become one, their p a list;
    4. each is written `s .. p .. o ..`, every list sorted; clauses, FILTERs among them, are sorted, joined by ` . `.

    M0 p ?x0 . M1 p ?x0 . M0 q ?x0 . M1 q ?x0     ->     M0 M1 p q ?x0

Some predicates of Freebase are inverses of others. `turn_inverses` replaces ten of them by their inverses, with subject
and object exchanged, before the clauses are joined. The paper says that there are ten; its text does not name them, so
that these ten, of films and founders, may be others.
"""

from __future__ import annotations

from collections.abc import Iterable

_INVERSES = {
    "film.director.film": "film.film.directed_by",
    "film.editor.film": "film.film.edited_by",
    "film.writer.film": "film.film.written_by",
    "film.cinematographer.film": "film.film.cinematography",
    "film.producer.films_executive_produced": "film.film.executive_produced_by",
    "film.producer.film|ns:film.production_company.films": "film.film.produced_by|ns:film.film.production_companies",
    "film.costumer_designer.costume_design_for_film": "film.film.costume_design_by",
    "film.actor.film/ns:film.performance.film": "film.film.starring/ns:film.performance.actor",
    "film.film_distributor.films_distributed/ns:film.film_film_distributor_relationship.film": (
        "film.film.distributors/ns:film.film_film_distributor_relationship.distributor"
    ),
    "organization.organization_founder.organizations_founded": "organization.organization.founders",
}


def tokenise(query: str) -> str:
    """Return a published query as tokens: a first `ns:` dropped, `m.` written `m_`, `count(*)` in four tokens."""
    tokens = []
    for token in query.replace("count(*)", "count ( * )").split():
        bare = token.removeprefix("ns:")
        tokens.append(f"m_{bare[2:]}" if bare.startswith("m.") else bare)
    return " ".join(tokens)


def simplify(query: str, *, turn_inverses: bool = False) -> str:
    """Return the shorter form of a tokenised query.

    Raises:
        ValueError: it is no query of this kind, with the part and the reason.
    """
    head, brace, body = query.partition("{ ")
    if not brace or not body.endswith("}"):
        raise ValueError(f"{query!r} is no query of the form 'HEAD WHERE {{ clauses }}'")
    filters, triples = [], []
    for clause in body[:-1].strip().split(" . "):
        words = clause.split()
        if words[:1] == ["FILTER"]:
            filters.append(clause.strip())
        elif len(words) == 3:
            subject, predicate, object_ = words
            if turn_inverses and predicate in _INVERSES:
                subject, predicate, object_ = object_, _INVERSES[predicate], subject
            triples.append((subject, predicate, object_))
        else:
            raise ValueError(f"{clause!r} is neither a triple nor a FILTER")
    clauses = sorted([*filters, *_join_clauses(triples)])
    return f"{head}{{ {' . '.join(clauses)} }}"


def _join_clauses(triples: Iterable[tuple[str, str, str]]) -> Iterable[str]:
    """Yield the joined clauses of some triples, each list sorted and without repetitions."""
    joined: list[tuple[frozenset[str], ...]] = [(frozenset([s]), frozenset([p]), frozenset([o])) for s, p, o in triples]
    for place in (2, 0, 1):
        found: dict[tuple[frozenset[str], ...], frozenset[str]] = {}
        for parts in joined:
            rest = (*parts[:place], *parts[place + 1 :])
            found[rest] = found.get(rest, frozenset()) | parts[place]
        joined = [(*rest[:place], united, *rest[place:]) for rest, united in found.items()]
    for parts in joined:
        yield " ".join(word for part in parts for word in sorted(part))
