"""How good the advice of `ostinato advise` is: replayed against a grid that was trained in full.

    python benchmarks/advise.py grid reversal --out advise-reversal.jsonl --hours 1
    python benchmarks/advise.py replay advise-reversal.jsonl advise-relay.jsonl

`grid` trains the recipe and the 24 combinations of the default space, at equal parameters, at the recipe's learning
rate with one seed: for U updates each, and for U / 40, U / 13 and U / 4, with schedules as long. It goes on where it
was stopped. `replay` runs the search on the short trainings only, which take a tenth of the compute of the 25 long
ones, lets it continue their curves to U, and looks up what it advised.

    regret       (score at U of the advised candidate - best score at U) / (worst - best)
    random       the mean regret of the better of two candidates drawn at random, trained in full: a tenth of the
                 compute is two and a half of them
    recipe       regret of the recipe itself; shared: of its Universal Transformer, the same with shared weights
    covered      whether the 90 % interval that was given for the score at U holds it
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

from ostinato.advise.candidates import BASE, Candidate, make_candidates
from ostinato.advise.halving import N_STAGES, Found, Halving, expect, search
from ostinato.advise.limits import Limits
from ostinato.advise.runs import SweepTrainer, best_of, mode_of, range_of
from ostinato.advise.space import load_space
from ostinato.advise.trials import Outcome, TimeUp, Trainer, Trial, best_by_candidate, order
from ostinato.data.disk import make_folder
from ostinato.errors import DataError
from ostinato.experiments.results import markdown, read_rows, write_rows
from ostinato.experiments.sweep.pool import LocalPool
from ostinato.tasks.recipes import load_recipe

TASKS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "reversal": ("digits/transformer", 400, ("data.tokens_per_batch=352", "training.selection.max_examples=300")),
    "relay": ("relay/fixed-depth", 800, ()),
    "logical-inference": ("logical-inference/transformer", 2000, ()),
    "cogs-vf": ("cogs-vf/transformer", 2000, ()),
    "parity": ("parity/transformer", 2000, ()),
    "listops": ("listops/transformer", 2000, ()),
}
"""Recipe, U and further settings. Nothing of the last two was looked at while the search was written."""
PARTS = (40, 13, 4)
"""Stages have U / part updates."""
SHARED = "shared"
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

    def train(self, stage: str, trials: Sequence[Trial]) -> list[Outcome]:
        """Return what is stored of the trials."""
        missing = [trial for trial in trials if (trial.candidate, trial.updates) not in self._rows]
        if missing:
            raise DataError(f"the grid lacks {missing[0].candidate} with {missing[0].updates} updates: train it first")
        return [outcome_of(self._rows[trial.candidate, trial.updates]) for trial in trials]

    def done(self, stage: str, trials: Sequence[Trial]) -> list[Outcome]:
        """Return the same: nothing takes time."""
        return self.train(stage, trials)


def outcome_of(row: dict[str, Any]) -> Outcome:
    """Return a row of a grid as an outcome."""
    trial = Trial(row["candidate"], 1.0, SEED, row["updates"])
    loss = math.inf if row["loss"] is None else row["loss"]
    return Outcome(trial, row["score"], loss, tuple((u, y) for u, y in row["curve"]), row["seconds"])


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
    make_folder(out.parent)
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
            write_rows(rows, out)
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
    settings = {one.name: one.settings for one in candidates}
    rows = read_rows(out) if out.is_file() else []
    for row in rows:
        name = row.get("candidate")
        if not head.items() <= row.items() or row.get("settings") != settings.get(name):
            asked = f"{head['task']}, {head['length']:,} updates"
            raise DataError(f"{out}: {name!r} is of another grid than {asked}, or of other settings: name another file")
    return [row for row in rows if row["score"] is not None]


def in_chunks(trials: Sequence[Trial], size: int) -> Iterator[Sequence[Trial]]:
    """Yield trials, so many at once."""
    for first in range(0, len(trials), size):
        yield trials[first : first + size]


def trained(trainer: Trainer, label: str, trials: Sequence[Trial]) -> tuple[list[Outcome], bool]:
    """Train as far as the time goes; return the outcomes, and whether they are all."""
    try:
        return trainer.train(label, trials), True
    except TimeUp:
        return trainer.done(label, trials), False


def row_of(head: dict[str, Any], one: Outcome, candidate: Candidate) -> dict[str, Any]:
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
    """Return the updates of the stages: the shorter lengths that a grid has, the last one again where they are two."""
    shorter = sorted({row["updates"] for row in rows if row["updates"] < row["length"]})
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
    length, metric = rows[0]["length"], rows[0]["metric"]
    mode, sizes = mode_of(metric), stages_of(rows)
    names = list(dict.fromkeys(row["candidate"] for row in rows))
    final = {row["candidate"]: outcome_of(row) for row in rows if row["updates"] == length}
    if lacking := [name for name in names if name not in final]:
        raise DataError(f"{rows[0]['task']}: {len(lacking)} of {len(names)} long trainings are missing")
    halving = Halving((1.0,), mode, BASE, n_seeds=1, most_seeds=1, length=length)
    found = search(names, Grid(rows), halving, lambda stage, _: sizes[stage])
    advised = best_by_candidate(found.stages[-1], mode)[0]
    expected = expect(found, advised, length, best=best_of(metric)).within(*range_of(metric))
    scores = {name: one.score for name, one in final.items() if one.score is not None}
    sign = 1.0 if mode == "min" else -1.0
    best, worst = min(sign * y for y in scores.values()), max(sign * y for y in scores.values())

    def regret(name: str) -> float:
        score = scores.get(name)
        return 1.0 if score is None else (sign * score - best) / (worst - best) if worst > best else 0.0

    actual = scores.get(advised.trial.candidate)
    return {
        "task": rows[0]["task"],
        "candidates": len(names),
        "compute": used_share(found, final),
        "advised": advised.trial.candidate,
        "best": min(final, key=lambda name: order(final[name], mode)),
        "regret": regret(advised.trial.candidate),
        "random": fmean(min(regret(a), regret(b)) for a, b in combinations(names, 2)),
        "recipe": regret(BASE) if BASE in final else None,
        "shared": shared_regret(rows, regret),
        "expected": [expected.low, expected.high],
        "final": actual,
        "covered": actual is not None and expected.low <= actual <= expected.high,
        "covered in last stage": coverage(found, scores, length, metric),
    }


def used_share(found: Found, final: dict[str, Outcome]) -> float:
    """Return the updates of the search over those of all long trainings."""
    used = {one.trial for one in found.outcomes}
    return sum(trial.updates for trial in used) / sum(one.trial.updates for one in final.values())


def coverage(found: Found, scores: dict[str, float], length: int, metric: str) -> float:
    """Return the share of the candidates of the last stage whose interval holds their score at U."""
    hits = []
    for one in found.stages[-1]:
        expected = expect(found, one, length, best=best_of(metric)).within(*range_of(metric))
        name = one.trial.candidate
        hits.append(name in scores and expected.low <= scores[name] <= expected.high)
    return fmean(hits)


def shared_regret(rows: Sequence[dict[str, Any]], regret: Any) -> float | None:
    """Return the mean regret of the candidates whose weights are shared in all steps, without experts or halting."""
    plain = {"experts": "no experts", "halting": "no halting", "plan": SHARED}
    named = {row["candidate"] for row in rows if all(row["levels"].get(axis) == level for axis, level in plain.items())}
    return fmean(map(regret, sorted(named))) if named else None


def table(found: Sequence[dict[str, Any]]) -> str:
    """Return the outcomes as a table, with the medians at its end."""
    columns = ["task", "candidates", "compute", "regret", "random", "recipe", "shared", "covered", "advised", "best"]
    lines = [[one[column] if column != "covered" else str(one[column]) for column in columns] for one in found]
    medians = [median(one["regret"] for one in found), median(one["random"] for one in found)]
    text = markdown(columns, lines)
    covered = sum(one["covered"] for one in found)
    last = f"median regret {medians[0]:.3f}, of random search {medians[1]:.3f}; {covered} of {len(found)} covered"
    return f"{text}\n{last}\n"


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
    found = [replay(whole_part(rows) if given.partial else rows) for rows in grids]
    if given.out is not None:
        write_rows(found, given.out)
    print(table(found))


if __name__ == "__main__":
    main()
