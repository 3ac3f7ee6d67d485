"""`ostinato claims` and `ostinato reproduce`: the papers' claims, and their reproduction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli.completion import claim_names
from ostinato.cli.options import STORE, AccessOption, InputOption, JsonOption, StoreOption, options_given, read_inputs
from ostinato.cli.output import check_output_file, console, print_json, print_line, print_stderr, print_table

if TYPE_CHECKING:
    from ostinato.experiments.claims.files import Claim, Outcome

OUTCOMES = Path("runs/claims")
_OF_RUNS = ("given", "store", "workers", "take")
"""Options that say something of runs, which counts and timings have none of."""
OutcomesOption = Annotated[
    Path, typer.Option("--outcomes", help="Folder of your own outcomes; they come before those of the library.")
]


def claims(
    context: typer.Context,
    paper: Annotated[str | None, typer.Option(help="Only this paper's.")] = None,
    outcomes: OutcomesOption = OUTCOMES,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the library's own outcomes in full.")] = False,
    plots: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write a forest plot of every paper, claims-PAPER.svg.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Check that every claim was committed before its runs, and stayed as it was."),
    ] = False,
    record_scores: Annotated[
        bool,
        typer.Option("--record-scores", help="Write what tiny versions of arms score into outcomes that lack it."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the papers' claims and their outcomes.

    supported: every number is shown to lie in its band, with Holm's correction for how many numbers a claim has: the
    95 % intervals are those of each alone. contradicted: one is shown to lie outside. inconclusive: the seeds do not
    tell. void: a control is not as it must be. stale: the claim, or the code that it measures, has changed since it was
    run; what was found then follows it.
    """
    from ostinato.experiments.claims.files import claims_directory, list_claims, read_outcome, with_variants

    if " " in (named := options_given(context, ("markdown", "plots", "check", "record_scores"))):
        raise typer.BadParameter("choose one of them", param_hint=named)
    if json and named not in ("", "--check"):
        raise typer.BadParameter(f"{named} writes no JSON", param_hint="--json")
    if options_given(context, ["outcomes"]) and named not in ("", "--record-scores"):
        raise typer.BadParameter(f"{named} is for the outcomes of the library", param_hint="--outcomes")
    if paper is not None and paper not in (papers := sorted({claim.config.paper for claim in list_claims()})):
        raise typer.BadParameter(f"'{paper}' must be one of {', '.join(papers)}", param_hint="--paper")
    if markdown:
        from ostinato.experiments.claims.document import document

        print_line(document(paper).rstrip())
    elif plots is not None:
        _draw(paper, plots)
    elif check:
        _check(paper, json)
    elif record_scores:
        _record_scores(paper, outcomes)
    else:
        folders = [outcomes, claims_directory()]
        wanted = with_variants(claim for claim in list_claims() if paper in (None, claim.config.paper))
        pairs = [(claim, read_outcome(claim, folders)) for claim in wanted]
        # Of variants those that were run: `reproduce` says which claims have one.
        found = [_described(claim, outcome) for claim, outcome in pairs if outcome or claim.variant is None]
        if json:
            print_json(found)
        else:
            _print(found)


def _draw(paper: str | None, folder: Path) -> None:
    from ostinato.data.disk import make_folder
    from ostinato.experiments.claims.document import library_outcomes
    from ostinato.experiments.claims.forest import draw_forest

    make_folder(folder)  # first: to read the outcomes takes a minute
    for name, mine in library_outcomes(paper).items():
        if path := draw_forest(mine, folder / f"claims-{name}.svg"):
            print_line(str(path))


def _check(paper: str | None, json: bool) -> None:
    from ostinato.experiments.claims.files import claims_directory
    from ostinato.experiments.claims.registration import check_outcomes

    problems = check_outcomes(claims_directory(), paper)
    if json:
        print_json([{"claim": name, "problem": reason} for name, reason in problems.items() if reason])
    else:
        print_table(["claim", "registered before its runs"], [[k, v or "yes"] for k, v in problems.items()])
    if any(problems.values()):
        raise typer.Exit(1)


def _record_scores(paper: str | None, outcomes: Path) -> None:
    from ostinato.experiments.claims.files import list_claims, read_outcome, with_variants, write_outcome
    from ostinato.experiments.claims.staleness import with_scores

    for claim in with_variants(list_claims()):
        old = read_outcome(claim, [outcomes]) if paper in (None, claim.config.paper) else None
        if old is not None and (new := with_scores(claim, old)) is not old:
            print_line(str(write_outcome(claim, new, outcomes)))


def _print(found: list[dict[str, Any]]) -> None:
    from ostinato.experiments.claims.files import STATES

    columns = ["claim", "outcome", "date", "made with", "minutes", "what the paper says"]
    rows = []
    for one in found:
        then = f" ({one['verdict']})" if one["why_stale"] else ""
        said = [one[key] for key in ("date", "made_with", "minutes", "statement")]
        rows.append([one["claim"], one["outcome"] + then, *said])
    print_table(columns, rows)
    for why in dict.fromkeys(one["why_stale"] for one in found if one["why_stale"]):
        print_line(f"stale, {why}: {', '.join(one['claim'] for one in found if one['why_stale'] == why)}")
    counts = {state: sum(one["outcome"] == state for one in found) for state in STATES}
    print_line(", ".join(f"{n} {state}" for state, n in counts.items() if n))


def reproduce(
    context: typer.Context,
    claim: Annotated[
        str, typer.Argument(metavar="CLAIM", help="A claim's name, or a claim file.", autocompletion=claim_names)
    ],
    variant: Annotated[str | None, typer.Option(help="gpu: sized for an hour of a large GPU.")] = None,
    given: InputOption = None,
    store: StoreOption = STORE,
    workers: Annotated[int, typer.Option(min=1, help="Runs at once.")] = 1,
    outcomes: OutcomesOption = OUTCOMES,
    take: Annotated[
        list[Path] | None, typer.Option(metavar="RUN", help="A finished run to take over, if it is one of the claim's.")
    ] = None,
    access: AccessOption = None,
    json: JsonOption = False,
) -> None:
    """Run a claim, and judge its numbers by their bands.

    Exit code 1 where the claim is not supported. The outcome is kept, with the rows it comes from.
    """
    from ostinato.experiments.claims import files as library
    from ostinato.experiments.claims.document import CHECKED, checks
    from ostinato.experiments.claims.reproduce import Resources
    from ostinato.experiments.claims.reproduce import reproduce as run
    from ostinato.experiments.claims.staleness import why_stale
    from ostinato.experiments.sweep.pool import LocalPool
    from ostinato.experiments.sweep.watch import LinesWatcher, make_watcher

    chosen = library.load_claim(claim)
    if variant is not None:
        chosen = library.variant(chosen, variant)
    source = chosen.config.source.kind
    if source != "sweep" and (named := options_given(context, _OF_RUNS)):
        raise typer.BadParameter(f"{chosen.name} trains no runs (source: {source})", param_hint=named)
    check_output_file(library.outcome_path(chosen, outcomes), overwrite=True)
    if not json:
        print_line(f"{chosen.name} ({chosen.config.where}): {chosen.config.statement}")
    means = Resources(
        store,
        access=access,
        inputs=read_inputs(given),
        take=take or (),
        on_event=LinesWatcher(print_stderr).say,  # where nobody hears it, the work goes on
        executor=LocalPool(workers),
        watcher=make_watcher(None if json else console(), print_stderr),
    )
    outcome = run(chosen, means, library.read_outcome(chosen, [outcomes]))
    path = library.write_outcome(chosen, outcome, outcomes)
    if json:
        print_json(outcome.head)
    else:
        print_table(CHECKED, list(checks(outcome.head)))
        print_line(outcome.verdict)
        if why := why_stale(chosen, outcome):
            print_line(f"stale, {why}")
        print_line(f"outcome: {path}")
    if outcome.verdict != "supported":
        raise typer.Exit(1)


def _described(claim: Claim, outcome: Outcome | None) -> dict[str, Any]:
    """Return a claim and its outcome as JSON."""
    from ostinato.experiments.claims.files import command
    from ostinato.experiments.claims.staleness import scores_said, state_of, why_stale

    head = outcome.head if outcome else {}
    why = why_stale(claim, outcome) if outcome else None
    return {
        "claim": claim.name,
        "where": claim.config.where,
        "statement": claim.config.statement,
        "outcome": state_of(outcome, why),
        "verdict": head.get("verdict"),
        "why_stale": why,
        "made_with": outcome.made_with if outcome else None,
        "scores": scores_said(claim, outcome) if outcome else None,
        "date": head.get("date"),
        "command": command(claim),
        "minutes": claim.config.minutes,
        "gpu": claim.config.gpu is not None,
        "limits": claim.config.limits,
        "numbers": head.get("numbers"),
        "controls": head.get("controls"),
    }
