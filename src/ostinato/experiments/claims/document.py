"""The claims as a document: what the papers say, what was found, at which scale, by which command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ostinato.experiments.claims.files import (
    STATES,
    Claim,
    Outcome,
    State,
    claims_directory,
    command,
    list_claims,
    read_outcome,
)
from ostinato.experiments.claims.forest import with_interval
from ostinato.experiments.claims.staleness import scores_said, state_of, why_stale
from ostinato.experiments.results import markdown

TITLES = {
    "universal-transformer": "Universal Transformers (Dehghani et al. 2019)",
    "sparse-universal-transformer": "Sparse Universal Transformer (Tan et al. 2023)",
    "one-wide-ffn": "One Wide Feedforward is All You Need (Pessoa Pires et al. 2023)",
    "x-moe": "On the Representation Collapse of Sparse Mixture of Experts (Chi et al. 2022)",
    "depth": "The Impact of Depth on Compositional Generalization (Petty et al. 2024)",
}
"""Every paper by the name its claims have."""
_HEAD = """\
# What the papers say, and what we found

Made by `ostinato claims --markdown` from the claim files and their outcomes, which `ostinato reproduce` writes; the
plots by `ostinato claims --plots docs/results`. None is edited by hand. A claim's numbers and bands are committed
before it is run (`ostinato claims --check`); a band's limit is the smallest effect of interest. `supported`: every
number's 95 % interval lies in its band; `contradicted`: one lies outside; `inconclusive`: the seeds do not tell, and
how many would is said; `void`: a control is not as it must be; `not run`: nobody has run it here yet; `stale`: the
claim, or what its arms compute, has changed since. Every claim stays, whatever came of it. All runs are small: what a
claim's scale cannot show is said beside it.
"""
SUMMARY = ["claim", "number", "effect [95 % interval]", "unit", "agrees", "n", "verdict"]
CHECKED = ["what", "agrees", "found", "n", "verdict"]
Pairs = Sequence[tuple[Claim, Outcome | None]]


def document(paper: str | None = None) -> str:
    """Return the document, of one paper or of all; every outcome is the library's own."""
    by_paper = library_outcomes(paper)
    # Found once: it computes what arms compute.
    whys = {
        name: [None if outcome is None else why_stale(claim, outcome) for claim, outcome in mine]
        for name, mine in by_paper.items()
    }
    states = {
        name: [state_of(outcome, why) for (_, outcome), why in zip(mine, whys[name], strict=True)]
        for name, mine in by_paper.items()
    }
    lines = [[TITLES[name], *(own.count(one) for one in STATES)] for name, own in states.items()]
    parts = [_HEAD, markdown(["paper", *STATES], lines)]
    for name, mine in by_paper.items():
        parts += [f"## {TITLES[name]}\n", conclusion(mine, states[name])]
        if any(with_interval(*pair) for pair in mine):
            parts.append(f"![Every number with its interval](claims-{name}.svg)\n")
        parts.append(
            markdown(
                SUMMARY, [line for pair, own in zip(mine, states[name], strict=True) for line in _summary(*pair, own)]
            )
        )
        told = zip(mine, states[name], whys[name], strict=True)
        parts += [part for pair, own, why in told for part in _claim(*pair, own, why)]
    return "\n".join(parts)


def library_outcomes(paper: str | None = None) -> dict[str, list[tuple[Claim, Outcome | None]]]:
    """Return the claims of one paper or of all with the outcomes that come with the library, by paper."""
    found = [(claim, read_outcome(claim, [claims_directory()])) for claim in list_claims()]
    return {name: [pair for pair in found if pair[0].config.paper == name] for name in TITLES if paper in (None, name)}


def conclusion(claims: Pairs, states: Sequence[State]) -> str:
    """Return what can be said of a paper, written from the verdicts."""
    said = {one: [pair for pair, own in zip(claims, states, strict=True) if own == one] for one in STATES}
    sentences = [f"**What we can say.** {len(claims)} claims are registered."]
    if said["supported"]:
        sentences.append(f"Supported at our scale: {_named(said['supported'])}.")
    if said["contradicted"]:
        sentences.append(f"Contradicted at our scale: {_named(said['contradicted'])}.")
    if said["inconclusive"]:
        sentences.append(f"The seeds do not decide: {_named(said['inconclusive'])}.")
    if said["void"]:
        sentences.append(f"A control failed, so that nothing follows: {_named(said['void'])}.")
    if said["stale"]:
        sentences.append(f"To be run again, because the claim or its arms have changed: {_named(said['stale'])}.")
    if said["not run"]:
        hours = sum(claim.config.minutes for claim, _ in said["not run"]) / 60
        n = len(said["not run"])
        sentences.append(
            f"Of {n} other{'s' * (n > 1)} we know nothing yet; they would take {hours:.1f} hours on two cores."
        )
    return " ".join(sentences) + "\n"


def _named(claims: Pairs) -> str:
    return "; ".join(
        f"{_decapitalised(claim.config.statement)} ([{claim.config.name}](#{_anchor(claim)}))" for claim, _ in claims
    )


def _decapitalised(sentence: str) -> str:
    """Return a sentence to stand inside another."""
    text = " ".join(sentence.split()).rstrip(".")
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def _anchor(claim: Claim) -> str:
    """Return the anchor of a claim's heading, as Markdown readers make it: letters, digits and hyphens."""
    return claim.name.replace("/", "")


def _summary(claim: Claim, outcome: Outcome | None, said: State) -> Iterator[list[str]]:
    """Yield a line for every number of a claim."""
    name = f"[{claim.config.name}](#{_anchor(claim)})"
    numbers = None if outcome is None or said == "stale" else outcome.head["numbers"]
    for place, one in enumerate(claim.config.expect):
        cells = [name if place == 0 else "", one.what]
        if numbers is None:
            yield [*cells, "", one.unit, band_text(one.band), "", said]
        else:
            found = numbers[place]
            verdict = "void" if said == "void" else _verdict(found)
            yield [*cells, _effect(found), one.unit, band_text(one.band), str(len(found["by_seed"])), verdict]


def _claim(claim: Claim, outcome: Outcome | None, said: State, why: str | None) -> Iterator[str]:
    config = claim.config
    then = "" if outcome is None or why is None else f" ({outcome.verdict}; {why})"
    # Not in the heading: its anchor, which others link to, must not change with the verdict.
    yield f"### {claim.name}\n"
    yield f"**{said}**{then}. {config.statement} ({config.where})\n"
    if config.controls:
        lines = [[one.what, one.unit, band_text(one.band), ""] for one in config.controls]
        if outcome is not None and said != "stale":
            for line, found in zip(lines, outcome.head["controls"], strict=True):
                line[3] = f"{found['value']:.4g}, {'as it must be' if found['is_so'] else 'void'}"
        yield markdown(["control", "unit", "must be", "found"], lines)
    design = config.design
    if design is not None:
        equal = "" if design.equal is None else f"; equal {design.equal.budget} (within {design.equal.tolerance:.1%})"
        tuning = design.tuning
        grid = (
            ""
            if tuning is None
            else f"; every arm chose {tuning.key} of {', '.join(map(str, tuning.values))} by {tuning.measure}, "
            f"seeds {', '.join(map(str, tuning.seeds))}"
        )
        yield f"Arms differ in {', '.join(design.differ_in)}{equal}{grid}.\n"
    if outcome is not None and said != "stale" and design is not None and design.tuning is not None:
        ends = {str(design.tuning.values[0]), str(design.tuning.values[-1])}
        chosen = {arm: str(one["chosen"]) for arm, one in outcome.head["tuning"].items()}
        words = [f"{arm} {value}{' (an end of the grid)' if value in ends else ''}" for arm, value in chosen.items()]
        yield f"Chosen: {', '.join(words)}.\n"
    if config.limits:
        yield f"{config.limits}\n"
    ran = f"Run on {outcome.head['date']} with ostinato {outcome.made_with}. " if outcome else ""
    if outcome is not None and (scores := scores_said(claim, outcome)) is not None:
        ran += f"Scores of tiny versions: {scores}. "
    yield f"{ran}About {config.minutes:g} minutes on two cores: `{command(claim)}`\n"


def checks(found: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield for every number and control of an outcome the cells of `CHECKED`."""
    for one in found["numbers"]:
        yield [one["what"], band_text(one["band"]), _effect(one), str(len(one["by_seed"])), _verdict(one)]
    for one in found["controls"]:
        said = "as it must be" if one["is_so"] else "void"
        yield [f"control: {one['what']}", band_text(one["band"]), f"{one['value']:.4g}", "", said]


def _effect(found: Mapping[str, Any]) -> str:
    is_exact = found["low"] in (None, found["high"])
    interval = "" if is_exact else f" [{found['low']:.4g}, {found['high']:.4g}]"
    return f"{found['value']:.4g}{interval}"


def _verdict(found: Mapping[str, Any]) -> str:
    said: str = found["verdict"]
    if said == "inconclusive" and found["seeds_needed"] is not None:
        said += f" ({found['seeds_needed']} seeds would tell)"
    return said


def band_text(band: Sequence[float | None]) -> str:
    """Return a band in words."""
    low, high = band
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
