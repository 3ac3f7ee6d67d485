"""How good the advice of `ostinato advise` is: replayed against a grid that was trained in full.

    python benchmarks/advise.py grid reversal --out advise-reversal.jsonl --hours 1
    python benchmarks/advise.py replay advise-reversal.jsonl advise-relay.jsonl

`grid` trains the recipe, a default Transformer, and 24 combinations of the default space, at equal parameters, at the
recipe's learning rate with one seed: for U updates each, and for U / 40, U / 13 and U / 4, with schedules as long. It
goes on where it was stopped: from the rows that are written, then from the runs in the store. `replay` runs the search
on the short trainings only, which take a tenth of the compute (multiply-accumulates times updates) of the 25 long
ones, lets it continue their curves to U, and looks up what it advised.

    regret         (score at U of the advised candidate - best score at U) / (worst - best)
    random         the mean regret of the best of so many candidates, drawn at random and trained in full, as take the
                   compute of the search: of 25 a tenth is two and a half, the mean of the best of two and of three
    default        regret of the default Transformer
    shared         the mean regret of the candidates that share the weights of all steps, without experts or halting, of
                   whatever depth, width and positions
    worse          by how much the advised candidate is worse than the default Transformer; half interval: by how much
                   it may be, half of the 90 % interval that was given for its score at U
    covered        whether that interval holds the score
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ostinato.advise.candidates import BASE, Candidate, make_candidates
from ostinato.advise.curves import Expected
from ostinato.advise.halving import N_STAGES, Found, Halving, drift_of, expect, search
from ostinato.advise.limits import Limits
from ostinato.advise.runs import SweepTrainer, best_of, range_of
from ostinato.advise.space import load_space
from ostinato.advise.trials import TimeUp, Trainer, Trial, TrialOutcome, best_by_candidate, order
from ostinato.config.measures import as_overrides
from ostinato.config.recipe import Recipe
from ostinato.config.training import Mode
from ostinato.data.output_files import check_output, new_file
from ostinato.errors import DataError
from ostinato.experiments.results import markdown, read_rows, write_rows
from ostinato.experiments.sweep.pool import LocalPool
from ostinato.tasks.checks import mode_of
from ostinato.tasks.recipes import load_recipe

_SHORT = (
    *("data.tokens_per_batch=1024", "training.selection.max_examples=500"),
    *("model.d_model=64", "model.encoder.ffn.d_ff=256", "model.decoder.ffn.d_ff=256"),
)
_RELAY = (
    *("data.tokens_per_batch=768", "training.selection.max_examples=500"),
    *("model.encoder.n_steps=2", "model.encoder.positions.kind=sinusoidal"),
    *("model.encoder.self_attention.share=individual", "model.encoder.ffn={kind: dense, share: individual, d_ff: 256}"),
    *("model.decoder.n_steps=2", "model.decoder.positions.kind=sinusoidal", "model.decoder.ffn.d_ff=256"),
)
"""The recipe is a Universal Transformer of 0.09 M parameters, a budget that the default Transformer does not meet."""
TASKS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "reversal": ("digits/transformer", 1200, ("data.tokens_per_batch=352", "training.selection.max_examples=300")),
    "relay": ("relay/fixed-depth", 1200, _RELAY),
    "logical-inference": ("logical-inference/transformer", 1200, _SHORT),
    "cogs-vf": ("cogs-vf/transformer", 1200, ()),
    "parity": ("parity/transformer", 2000, ()),
    "listops": ("listops/transformer", 1200, _SHORT),
}
"""Recipe, U and further settings. Every recipe is that of a default Transformer: weights of its own in every step, no
experts, no halting. Nothing of the last two was looked at while the search was written."""
DEFAULT = BASE
"""The candidate that is the default Transformer."""
PARTS = (40, 13, 4)
"""Stages have U / part updates."""
SHARED = "shared"
REGRETS = ["regret", "random", "default", "shared"]
MOST_REGRET, LEAST_HELD = 0.1, 0.9
MOST_COMPUTE = 0.11
"""Of all long trainings: a tenth, to whole updates and candidates."""
SEED = 1
CHUNK = 5
"""Trainings of every worker after which rows are written."""


class Grid:
    """A trainer that looks outcomes up.

    Args:
        rows: of `grid`, of one task.
    """

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self._rows = {(row["candidate"], row["updates"]): row for row in rows}

    def train(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        """Return what is stored of the trials."""
        missing = [trial for trial in trials if (trial.candidate, trial.updates) not in self._rows]
        if missing:
            raise DataError(f"the grid lacks {missing[0].candidate} with {missing[0].updates} updates: train it first")
        return [outcome_of(self._rows[trial.candidate, trial.updates]) for trial in trials]

    def done(self, stage: str, trials: Sequence[Trial]) -> list[TrialOutcome]:
        """Return the same: nothing takes time."""
        return self.train(stage, trials)


def outcome_of(row: dict[str, Any]) -> TrialOutcome:
    """Return a row of a grid as an outcome."""
    trial = Trial(row["candidate"], 1.0, SEED, row["updates"])
    loss = math.inf if row["loss"] is None else row["loss"]
    return TrialOutcome(trial, row["score"], loss, tuple((u, y) for u, y in row["curve"]), row["seconds"])


def stage_sizes(length: int) -> list[int]:
    """Return the updates of the three stages."""
    return [max(1, round(length / part)) for part in PARTS]


def train_grid(task: str, out: Path, store: Path, hours: float, workers: int, changes: Sequence[str]) -> bool:
    """Train what a task's grid lacks as far as the hours go, and write its rows; return whether it is whole.

    Rows that are there stay, whatever the store has; they are written again after every few trainings.

    Raises:
        DataError: the file holds rows of another grid.
    """
    base, length, own = TASKS[task]
    overrides = [*own, f"training.n_updates={length}", *changes]
    recipe = load_recipe(base, overrides)
    candidates = make_candidates(base, overrides, load_space("default"), Limits()).found
    metric = recipe.training.selection.metric
    head = {"task": task, "length": length, "metric": metric, "recipe": base, "overrides": overrides}
    rows = stored_rows(out, head, candidates)
    check_output(out, overwrite=True)
    trainer = SweepTrainer(
        f"advise-grid {task}",
        base,
        overrides,
        recipe,
        candidates,
        metric,
        store,
        make_executor=lambda: LocalPool(workers),
        deadline=time.monotonic() + 3600 * hours,
    )
    named = {one.name: one for one in candidates}
    for updates in [*stage_sizes(length), length]:
        label = f"{updates} updates"
        done = {row["candidate"] for row in rows if row["updates"] == updates}
        missing = [Trial(name, 1.0, SEED, updates) for name in named if name not in done]
        for trials in in_chunks(missing, CHUNK * workers):
            outcomes, is_whole = trained(trainer, label, trials)
            rows += [row_of(head, one, named[one.trial.candidate]) for one in outcomes]
            with new_file(out, overwrite=True) as partial:
                write_rows(rows, partial)
            n_done = sum(row["updates"] == updates for row in rows)
            print(f"{task}, {label}: {n_done} of {len(named)} trainings", flush=True)
            if not is_whole:
                return False
    return True


def stored_rows(out: Path, head: dict[str, Any], candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return the rows of a grid's file; those of trainings that failed are left out, which are done again.

    Args:
        head: what all rows of the grid have in common.

    Raises:
        DataError: a row of another grid, or of a candidate that had other settings.
    """

    def recipe_of(settings: dict[str, Any]) -> Recipe:
        return load_recipe(head["recipe"], [*head["overrides"], *as_overrides(settings)])

    def is_same(stored: dict[str, Any] | None, now: dict[str, Any] | None) -> bool:
        # A later version may also set what a recipe has anyway.
        return stored == now or (stored is not None and now is not None and recipe_of(stored) == recipe_of(now))

    settings = {one.name: one.settings for one in candidates}
    rows = read_rows(out) if out.is_file() else []
    for row in rows:
        name = row.get("candidate")
        if not head.items() <= row.items() or not is_same(row.get("settings"), settings.get(name)):
            asked = f"{head['task']}, {head['length']:,} updates"
            raise DataError(f"{out}: {name!r} is of another grid than {asked}, or of other settings: name another file")
    return [row for row in rows if row["score"] is not None]


def in_chunks(trials: Sequence[Trial], size: int) -> Iterator[Sequence[Trial]]:
    """Yield trials, so many at once."""
    for first in range(0, len(trials), size):
        yield trials[first : first + size]


def trained(trainer: Trainer, label: str, trials: Sequence[Trial]) -> tuple[list[TrialOutcome], bool]:
    """Train as far as the time goes; return the outcomes, and whether they are all."""
    try:
        return trainer.train(label, trials), True
    except TimeUp:
        return trainer.done(label, trials), False


def row_of(head: dict[str, Any], one: TrialOutcome, candidate: Candidate) -> dict[str, Any]:
    """Return an outcome as a row of the grid."""
    return {
        **head,
        "candidate": candidate.name,
        "levels": candidate.levels,
        "settings": candidate.settings,
        "parameters": candidate.figures["parameters"],
        "macs": candidate.figures["macs"],
        "seed": one.trial.seed,
        "updates": one.trial.updates,
        **one.origin,
        "score": one.score,
        "loss": one.loss if math.isfinite(one.loss) else None,
        "curve": [list(point) for point in one.curve],
        "seconds": one.seconds,
        **({"reason": one.reason} if one.reason else {}),
    }


def up_to(rows: Sequence[dict[str, Any]], length: int) -> list[dict[str, Any]]:
    """Return the rows of trainings of at most so many updates, as a grid of that length."""
    return [row | {"length": length} for row in rows if row["updates"] <= length]


def stages_of(rows: Sequence[dict[str, Any]]) -> list[int]:
    """Return the updates of the stages: the shorter lengths that a grid has, the last one again where they are fewer.

    Raises:
        DataError: it has none.
    """
    shorter = sorted({row["updates"] for row in rows if row["updates"] < row["length"]})
    if not shorter:
        raise DataError(f"a grid of {rows[0]['length']:,} updates has no shorter trainings to search by")
    return [*shorter, *[shorter[-1]] * (N_STAGES - len(shorter))]


def whole_part(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the candidates that have a long training."""
    done = {row["candidate"] for row in rows if row["updates"] == row["length"]}
    return [row for row in rows if row["candidate"] in done]


def replay(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what the search advises on a grid, and how that compares.

    Raises:
        DataError: long trainings are missing.
    """
    if not rows:
        raise DataError("no candidate of this grid has a long training")
    length, metric, sizes = rows[0]["length"], rows[0]["metric"], stages_of(rows)
    mode, final = mode_of(metric), long_trainings(rows)
    best = best_of(metric)
    halving = Halving((1.0,), mode, BASE, n_seeds=1, most_seeds=1, length=length, best=best, bounds=range_of(metric))
    found = search(list(final), Grid(rows), halving, lambda stage, _: sizes[stage])
    regrets = regrets_of(final, mode)
    drift = drift_of(found, best)

    def expected(one: TrialOutcome) -> Expected:
        return expect(found, one, length, best=best, drift=drift).within(*range_of(metric))

    last = found.stages[-1]
    advised = best_by_candidate(last, mode)[0]
    name, interval, compute = advised.trial.candidate, expected(advised), used_share(found, rows)
    return {
        "task": rows[0]["task"],
        "candidates": len(final),
        "compute": compute,
        "advised": name,
        "best": min(final, key=lambda name: order(final[name], mode)),
        "regret": regrets[name],
        "random": random_regret(list(regrets.values()), compute * len(final)),
        "default": regrets.get(DEFAULT),
        "shared": shared_regret(rows, regrets),
        **against_default(final, name, mode, interval),
        "expected": [interval.low, interval.high],
        "final": final[name].score,
        "covered": holds(interval, final[name]),
        "covered in last stage": sum(holds(expected(one), final[one.trial.candidate]) for one in last),
        "last stage": len(last),
        "notes": notes(rows),
    }


def long_trainings(rows: Sequence[dict[str, Any]]) -> dict[str, TrialOutcome]:
    """Return the outcome of every candidate's long training.

    Raises:
        DataError: of some there is none.
    """
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    final = {row["candidate"]: outcome_of(row) for row in rows if row["updates"] == row["length"]}
    if n_missing := len(names) - len(final):
        raise DataError(f"{rows[0]['task']}: {n_missing} of {len(names)} long trainings are missing")
    return {name: final[name] for name in names}


def regrets_of(final: dict[str, TrialOutcome], mode: Mode) -> dict[str, float]:
    """Return the regret of every candidate; 1 of those that failed."""
    costs = {name: order(one, mode)[0] for name, one in final.items()}
    known = [cost for cost in costs.values() if math.isfinite(cost)]
    best, spread = min(known), max(known) - min(known)
    return {
        name: 1.0 if cost == math.inf else (cost - best) / spread if spread else 0.0 for name, cost in costs.items()
    }


def random_regret(regrets: Sequence[float], n_draws: float) -> float:
    """Return the mean regret of the best of so many candidates, drawn at random without replacement.

    Of n sorted regrets the i-th (from 0) is the best of k drawn in C(n - 1 - i, k - 1) of C(n, k) cases. Between two
    numbers of draws the mean is a line.
    """
    n, ranked = len(regrets), sorted(regrets)

    def best_of_draws(k: int) -> float:
        return sum(regret * math.comb(n - 1 - i, k - 1) for i, regret in enumerate(ranked)) / math.comb(n, k)

    n_draws = min(max(n_draws, 1.0), float(n))
    few, more = math.floor(n_draws), math.ceil(n_draws)
    return best_of_draws(few) + (n_draws - few) * (best_of_draws(more) - best_of_draws(few))


def against_default(final: dict[str, TrialOutcome], name: str, mode: Mode, interval: Expected) -> dict[str, Any]:
    """Return by how much the advised candidate is worse than the default Transformer, and half of its interval."""
    if DEFAULT not in final or final[name].score is None:
        return {"worse": None, "half interval": None, "within": None if DEFAULT not in final else False}
    worse = order(final[name], mode)[0] - order(final[DEFAULT], mode)[0]
    half = (interval.high - interval.low) / 2
    return {"worse": worse if math.isfinite(worse) else None, "half interval": half, "within": worse <= half}


def holds(interval: Expected, one: TrialOutcome) -> bool:
    """Return whether an interval holds the score of a long training."""
    return one.score is not None and interval.low <= one.score <= interval.high


def used_share(found: Found, rows: Sequence[dict[str, Any]]) -> float:
    """Return the multiply-accumulates of the search over those of all long trainings, see `macs_of`."""
    macs = macs_of(rows)
    used = {one.trial for one in found.outcomes}
    whole = sum(macs[row["candidate"]] * row["updates"] for row in rows if row["updates"] == row["length"])
    return sum(macs[trial.candidate] * trial.updates for trial in used) / whole


def macs_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return every candidate's multiply-accumulates; 1 of all, so that updates count, where a row does not say."""
    is_known = all("macs" in row for row in rows)
    return {row["candidate"]: row["macs"] if is_known else 1.0 for row in rows}


def shared_regret(rows: Sequence[dict[str, Any]], regrets: dict[str, float]) -> float | None:
    """Return the mean regret of the candidates whose weights are shared in all steps, without experts or halting."""
    plain = {"experts": "no experts", "halting": "no halting", "plan": SHARED}
    named = {row["candidate"] for row in rows if all(row["levels"].get(axis) == level for axis, level in plain.items())}
    return fmean(regrets[name] for name in named) if named else None


def notes(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what a reader has to know of where the rows of a grid come from."""
    origins = Counter((row.get("version"), row.get("commit")) for row in rows)
    named = [
        f"{n} of {f'{version} at {commit[:8]}' if commit else version or 'no version that they name'}"
        for (version, commit), n in origins.most_common()
    ]
    found = [f"rows are {', '.join(named)}"] if len(named) > 1 or (None, None) in origins else []
    return found + (["compute is in updates: rows name no macs"] if any("macs" not in row for row in rows) else [])


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the outcomes as a table; then medians, goals, and notes on the rows."""
    columns = ["task", "candidates", "compute", *REGRETS, "worse", "half interval", "covered", "advised", "best"]
    lines = [[str(one[column]) if column == "covered" else one[column] for column in columns] for one in found]
    medians = [(name, [one[name] for one in found if one[name] is not None]) for name in REGRETS]
    middle = ", ".join(f"{name} {median(values):.3f}" for name, values in medians if values)
    last = [f"{one['task']}: {note}" for one in found for note in one["notes"]]
    return "\n".join([markdown(columns, lines), f"medians: {middle}", *goals(found), *last, ""])


def goals(found: Sequence[dict[str, Any]]) -> list[str]:
    """Return which of the goals are met."""
    regret = median(one["regret"] for one in found)
    n_within, n_held = (sum(bool(one[name]) for one in found) for name in ("within", "covered"))
    n_last, n_of = (sum(one[name] for one in found) for name in ("covered in last stage", "last stage"))
    judged = {
        f"six tasks or more: {len(found)}": len(found) >= 6,
        f"a tenth of the compute: {max(one['compute'] for one in found):.3f} at most": all(
            one["compute"] < MOST_COMPUTE for one in found
        ),
        f"a median regret of at most {MOST_REGRET}: {regret:.3f}": regret <= MOST_REGRET,
        "never worse than the default Transformer by more than half of the 90 % interval: "
        f"{n_within} of {len(found)} are not": n_within == len(found),
        f"intervals hold the final score in {LEAST_HELD:.0%} of the cases: {n_last} of {n_of} of the last stages, "
        f"{n_held} of {len(found)} of those advised": n_last >= LEAST_HELD * n_of,
    }
    return [f"{'met' if is_met else 'missed'}: {goal}" for goal, is_met in judged.items()]


def main() -> None:
    """Train a grid, or replay the search on grids."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    grid = commands.add_parser("grid", help="train a task's grid")
    grid.add_argument("task", choices=TASKS)
    grid.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="further settings, such as files of data")
    grid.add_argument("--out", type=Path, required=True, help="JSON lines")
    grid.add_argument("--store", type=Path, default=Path("runs/store"))
    grid.add_argument("--hours", type=float, default=2.0, help="time (default %(default)s); again: it goes on")
    grid.add_argument("--workers", type=int, default=1)
    again = commands.add_parser("replay", help="replay the search on grids")
    again.add_argument("grids", nargs="+", type=Path)
    again.add_argument("--length", type=int, help="take the trainings of so many updates as the long ones")
    again.add_argument("--partial", action="store_true", help="of a grid that is not whole, the candidates that are")
    again.add_argument("--out", type=Path, help="write the outcomes as JSON lines")
    given = parser.parse_args()
    if given.command == "grid":
        train_grid(given.task, given.out, given.store, given.hours, given.workers, given.changes)
        return
    grids = [read_rows(path) for path in given.grids]
    if given.length is not None:
        grids = [up_to(rows, given.length) for rows in grids]
    try:
        found = [replay(whole_part(rows) if given.partial else rows) for rows in grids]
    except DataError as error:
        parser.error(str(error))
    if given.out is not None:
        write_rows(found, given.out)
    print(table(found))


if __name__ == "__main__":
    main()
