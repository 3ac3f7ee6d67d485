"""The claims as a document: what the papers say, what was found, at which scale, by which command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ostinato.config.claim import CountSource, TimingSource
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
from ostinato.experiments.claims.staleness import claim_recipes, scores_said, state_of, why_stale
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
number is shown to lie in its band; `contradicted`: one is shown to lie outside; `inconclusive`: the seeds do not tell,
and how many would is said, up to 1,000; `void`: a control is not as it must be; `not run`: nobody has run it here
yet; `stale`: the claim, or what its arms compute, has changed since. Shown is what a test says with Holm's
correction: the more numbers a claim has, the surer each must be. The 95 % intervals are those of one number alone, so
that one may lie in its band where the verdict is `inconclusive`; of where the best of several stands there is none.
Every claim stays, whatever came of it. After "The paper" stands what it says, in our words and with its own numbers;
after "We" what was measured here, and a verdict is about that alone. All runs are small: what a claim's scale cannot
show is said beside it.

Claims that were not run are in the tables only; `ostinato claims` lists what the papers say, and
`ostinato reproduce PAPER/CLAIM` runs one.
"""
_DIRTY = """\
`-dirty` behind a commit: the checkout had changes that were not committed, and which ones is not recorded. Such an
outcome stands as long as today's code counts or computes the same ([how this is told](../claims.md#outcomes)).
"""
_MOST = 10
"""Numbers of a claim that are listed outside the table."""
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
    is_dirty = any(outcome and "dirty" in outcome.made_with for mine in by_paper.values() for _, outcome in mine)
    parts = [_HEAD, *([_DIRTY] if is_dirty else []), markdown(["paper", *STATES], lines)]
    ends = [(claim, own) for name, mine in by_paper.items() for (claim, _), own in zip(mine, states[name], strict=True)]
    if n_counted := sum(own == "supported" and isinstance(claim.config.source, CountSource) for claim, own in ends):
        parts.append(
            f"{n_counted} of the supported count parameters and multiply-accumulates: no seed is in them, and sizes "
            "that a paper leaves open were chosen to meet its totals. The others are trained or timed.\n"
        )
    for name, mine in by_paper.items():
        parts += [f"## {TITLES[name]}\n", conclusion(mine, states[name])]
        if any(with_interval(*pair) for pair in mine):
            parts.append(f"![Every number with its interval](claims-{name}.svg)\n")
        parts.append(
            markdown(
                SUMMARY, [line for pair, own in zip(mine, states[name], strict=True) for line in _summary(*pair, own)]
            )
        )
        for (claim, outcome), own, why in zip(mine, states[name], whys[name], strict=True):
            if outcome is not None:
                parts += _claim(claim, outcome, own, why, mine)
    return "\n".join(parts)


def library_outcomes(paper: str | None = None) -> dict[str, list[tuple[Claim, Outcome | None]]]:
    """Return the claims of one paper or of all with the outcomes that come with the library, by paper."""
    found = [(claim, read_outcome(claim, [claims_directory()])) for claim in list_claims()]
    return {name: [pair for pair in found if pair[0].config.paper == name] for name in TITLES if paper in (None, name)}


def conclusion(claims: Pairs, states: Sequence[State]) -> str:
    """Return what can be said of a paper, written from the verdicts: a line for every claim that was run."""
    not_run = [claim for (claim, _), own in zip(claims, states, strict=True) if own == "not run"]
    text = f"**What we can say.** {len(claims)} claims are registered, {len(claims) - len(not_run)} of them run."
    if n := len(not_run):
        hours = sum(claim.config.minutes for claim in not_run) / 60
        text += f" Of {n} other{'s' * (n > 1)} we know nothing yet; they would take {hours:.1f} hours on two cores."
    found = sorted(zip(claims, states, strict=True), key=lambda one: STATES.index(one[1]))
    lines = [
        f"- **{own}**: {_link(claim, outcome)}. {_paper_says(claim)} {_measured(claim, outcome, own, claims)}".rstrip()
        for (claim, outcome), own in found
        if outcome is not None
    ]
    return "\n".join([text, "", *lines]).rstrip() + "\n"


def _paper_says(claim: Claim) -> str:
    text = " ".join(claim.config.statement.split())
    return f"The paper ({claim.config.where}): {text}"


def _measured(claim: Claim, outcome: Outcome, said: State, claims: Pairs) -> str:
    """Return what was measured, and of what; nothing where that is no longer what the claim says.

    Args:
        claims: those of the paper, one of which may have a wider grid.
    """
    if said == "stale":
        return ""
    numbers = outcome.head["numbers"]
    listed = []
    for one, found in zip(claim.config.expect, numbers, strict=True):
        own = "" if said in (found["verdict"], "void") else f"; {found['verdict']}"
        listed.append(f"{one.what}: {_effect(found)} ({one.unit}; band: {band_text(one.band)}{own})")
    if len(numbers) > _MOST:
        listed = [f"{len(numbers)} numbers, which are in the table"]
    return f"We {_setting(claim, outcome)}: {'; '.join(listed)}.{_grid_ends(claim, outcome, claims)}"


def _setting(claim: Claim, outcome: Outcome) -> str:
    """Return what was done: on which task, with models of which size, how often."""
    if isinstance(claim.config.source, CountSource):
        return "counted"
    n = _span(str(len(one["by_seed"])) for one in outcome.head["numbers"])
    if isinstance(claim.config.source, TimingSource):
        return f"timed ({n} rounds)"
    task = next(iter(claim_recipes(claim).values())).task
    # What tells tasks of one kind apart.
    kinds = [getattr(task, key) for key in ("operation", "corpus", "model_kind") if hasattr(task, key)]
    trained = [row for row in outcome.rows if row["n_updates"] and "control" not in row] or outcome.rows
    size = _span(f"{row['parameters'] / 1e6:.2g}" for row in trained)
    length = _span(f"{row['n_updates']:,}" for row in trained)
    return f"trained (task {', '.join([task.kind, *kinds])}, {size} M parameters, {length} updates, {n} seeds)"


def _span(values: Iterable[str]) -> str:
    """Return the one value that all are, or the smallest and the largest."""
    found = sorted(set(values), key=lambda text: float(text.replace(",", "")))
    return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"


def _grid_ends(claim: Claim, outcome: Outcome, claims: Pairs) -> str:
    """Return which arms chose an end of their grid, and the claim that has a wider one; nothing where none did."""
    tuning = None if claim.config.design is None else claim.config.design.tuning
    if tuning is None:
        return ""
    chosen = {arm: one["chosen"] for arm, one in outcome.head["tuning"].items()}
    at_ends = {arm: value for arm, value in chosen.items() if value in (tuning.values[0], tuning.values[-1])}
    if not at_ends:
        return ""
    who = "Every arm" if at_ends.keys() == chosen.keys() else ", ".join(at_ends)
    values = " or ".join(str(value) for value in dict.fromkeys(at_ends.values()))
    text = f" {who} chose an end of the grid ({tuning.key} {values} of {', '.join(map(str, tuning.values))})"
    text += ", so that a value beyond it may be better."
    for wider, ran in claims:
        if wider.config.name == f"{claim.config.name}-wide-grid":
            text += f" {_link(wider, ran)} has a wider grid: {'not run' if ran is None else ran.verdict}."
    return text


def _link(claim: Claim, outcome: Outcome | None) -> str:
    """Return the name of a claim, with a link to its section, which one that was run has."""
    return claim.config.name if outcome is None else f"[{claim.config.name}](#{_anchor(claim)})"


def _anchor(claim: Claim) -> str:
    """Return the anchor of a claim's heading, as Markdown readers make it: letters, digits and hyphens."""
    return claim.name.replace("/", "")


def _summary(claim: Claim, outcome: Outcome | None, said: State) -> Iterator[list[str]]:
    """Yield a line for every number of a claim."""
    name = _link(claim, outcome)
    numbers = None if outcome is None or said == "stale" else outcome.head["numbers"]
    for place, one in enumerate(claim.config.expect):
        cells = [name if place == 0 else "", one.what]
        if numbers is None:
            yield [*cells, "", one.unit, band_text(one.band), "", said]
        else:
            found = numbers[place]
            verdict = "void" if said == "void" else _verdict(found)
            yield [*cells, _effect(found), one.unit, band_text(one.band), str(len(found["by_seed"])), verdict]


def _claim(claim: Claim, outcome: Outcome, said: State, why: str | None, claims: Pairs) -> Iterator[str]:
    config = claim.config
    then = "" if why is None else f" ({outcome.verdict}; {why})"
    # Not in the heading: its anchor, which others link to, must not change with the verdict.
    yield f"### {claim.name}\n"
    yield f"**{said}**{then}. {_paper_says(claim)}\n"
    if measured := _measured(claim, outcome, said, claims):
        yield f"{measured}\n"
    if config.controls:
        lines = [[one.what, one.unit, band_text(one.band), ""] for one in config.controls]
        if said != "stale":
            for line, found in zip(lines, outcome.head["controls"], strict=True):
                line[3] = f"{_figure(found['value'])}, {'as it must be' if found['is_so'] else 'void'}"
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
    if said != "stale" and design is not None and design.tuning is not None:
        ends = {str(design.tuning.values[0]), str(design.tuning.values[-1])}
        chosen = {arm: str(one["chosen"]) for arm, one in outcome.head["tuning"].items()}
        words = [f"{arm} {value}{' (an end of the grid)' if value in ends else ''}" for arm, value in chosen.items()]
        yield f"Chosen: {', '.join(words)}.\n"
    if config.limits:
        yield f"{config.limits}\n"
    ran = f"Run on {outcome.head['date']} with ostinato {outcome.made_with}. "
    if (scores := scores_said(claim, outcome)) is not None:
        ran += f"Scores of tiny versions: {scores}. "
    yield f"{ran}About {config.minutes:g} minutes on two cores: `{command(claim)}`\n"


def checks(found: Mapping[str, Any]) -> Iterator[list[str]]:
    """Yield for every number and control of an outcome the cells of `CHECKED`."""
    for one in found["numbers"]:
        yield [one["what"], band_text(one["band"]), _effect(one), str(len(one["by_seed"])), _verdict(one)]
    for one in found["controls"]:
        said = "as it must be" if one["is_so"] else "void"
        yield [f"control: {one['what']}", band_text(one["band"]), _figure(one["value"]), "", said]


def _effect(found: Mapping[str, Any]) -> str:
    is_exact = found["low"] in (None, found["high"])
    interval = "" if is_exact else f" [{_figure(found['low'])}, {_figure(found['high'])}]"
    return f"{_figure(found['value'])}{interval}"


def _verdict(found: Mapping[str, Any]) -> str:
    said: str = found["verdict"]
    if said == "inconclusive" and found["seeds_needed"] is not None:
        said += f" ({found['seeds_needed']} seeds would tell)"
    return said


def band_text(band: Sequence[float | None]) -> str:
    """Return a band in words."""
    low, high = (None if limit is None else _figure(limit, 6) for limit in band)
    if low is None:
        return f"at most {high}"
    return f"at least {low}" if high is None else f"{low} to {high}"


def _figure(value: float, digits: int = 4) -> str:
    """Return a number; large ones, parameters and multiply-accumulates, without a power of ten."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:.{digits}g} M"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.{digits}g}"
