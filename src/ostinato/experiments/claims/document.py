"""The claims as a document: what the papers say, what was found, at which scale, by which command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ostinato.experiments.claims.files import (
    STATES,
    Claim,
    Outcome,
    claims_directory,
    command,
    list_claims,
    read_outcome,
)
from ostinato.experiments.claims.staleness import state, why_stale
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

Made by `ostinato claims --markdown` from the claim files and their outcomes, which `ostinato reproduce` writes; none
is edited by hand. A claim's numbers and bands are written before it is run; a band's limit is the smallest effect of
interest. `supported`: every number's 95 % interval over seeds lies in its band; `contradicted`: one lies outside;
`inconclusive`: the seeds do not tell, and how many would is said; `void`: a control is not as it must be; `not run`:
nobody has run it here yet; `stale`: the claim, or the code that it measures, has changed since, and what was found then
stands below. Every claim stays, whatever came of it. All runs are small: what a claim's scale cannot show is said
beside it, and most have a `gpu` variant (`--variant gpu`) that nobody has run.
"""


def document(paper: str | None = None) -> str:
    """Return the document, of one paper or of all; every outcome is the library's own."""
    papers = [name for name in TITLES if paper in (None, name)]
    found = [(claim, read_outcome(claim, [claims_directory()])) for claim in list_claims()]
    by_paper = {name: [pair for pair in found if pair[0].config.paper == name] for name in papers}
    states = {name: [state(*pair) for pair in mine] for name, mine in by_paper.items()}
    lines = [[TITLES[name], *(own.count(state) for state in STATES)] for name, own in states.items()]
    parts = [_HEAD, markdown(["paper", *STATES], lines)]
    for name, mine in by_paper.items():
        parts.append(f"## {TITLES[name]}\n")
        parts += [part for claim, outcome in mine for part in _claim(claim, outcome)]
    return "\n".join(parts)


def _claim(claim: Claim, outcome: Outcome | None) -> Iterator[str]:
    config = claim.config
    why = None if outcome is None else why_stale(claim, outcome)
    then = "" if outcome is None or why is None else f" ({outcome.verdict}; {why})"
    # Not in the heading: its anchor, which others link to, must not change with the verdict.
    yield f"### {claim.name}\n"
    yield f"**{state(claim, outcome)}**{then}\n"
    yield f"{config.statement} ({config.where})\n"
    if outcome is None:
        lines = [[e.what, band_text(e.band), "", "", ""] for e in config.expect]
        lines += [[f"control: {c.what}", band_text(c.band), "", "", ""] for c in config.controls]
    else:
        lines = list(checks(outcome.head))
    yield markdown(CHECKED, lines)
    if config.limits:
        yield f"{config.limits}\n"
    ran = f"Run on {outcome.head['date']} with ostinato {outcome.made_with}. " if outcome else ""
    yield f"{ran}About {config.minutes:g} minutes on two cores: `{command(claim)}`\n"


CHECKED = ["what", "agrees", "found", "n", "verdict"]


def checks(found: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield for every number and control of an outcome the cells of `CHECKED`."""
    for one in found["numbers"]:
        interval = "" if one["low"] in (None, one["high"]) else f" [{one['low']:.4g}, {one['high']:.4g}]"
        said = one["verdict"]
        if said == "inconclusive" and one["seeds_needed"] is not None:
            said += f" ({one['seeds_needed']} seeds would tell)"
        yield [one["what"], band_text(one["band"]), f"{one['value']:.4g}{interval}", str(len(one["by_seed"])), said]
    for one in found["controls"]:
        said = "as it must be" if one["is_so"] else "void"
        yield [f"control: {one['what']}", band_text(one["band"]), f"{one['value']:.4g}", "", said]


def band_text(band: Sequence[float | None]) -> str:
    """Return a band in words."""
    low, high = band
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
