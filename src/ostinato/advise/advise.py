"""The question and its answer: candidates, search, comparison, and the files that say what came of it."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ostinato.advise.answer import LATENCY, Answer, is_too_slow, make_answer
from ostinato.advise.candidates import BASE, Candidate, Candidates, make_candidates
from ostinato.advise.checks import NoAdviceError, baseline, check_data, why_not
from ostinato.advise.halving import Halving, search
from ostinato.advise.journal import Journal
from ostinato.advise.limits import Limits
from ostinato.advise.own_data import is_data, recipe_of_data
from ostinato.advise.pace import PROBES, Pace
from ostinato.advise.report import write_report
from ostinato.advise.runs import SweepTrainer, mode_of
from ostinato.advise.trials import Outcome, TimeUp
from ostinato.config.recipe import Recipe
from ostinato.config.space import SpaceConfig
from ostinato.data.disk import make_folder, write_text
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError
from ostinato.evaluation.timing import Effort
from ostinato.experiments.claims.inference import ALPHA, judge
from ostinato.experiments.sweep.executors import Executor
from ostinato.experiments.sweep.pool import LocalPool
from ostinato.experiments.sweep.watch import Watcher
from ostinato.experiments.timing.latency import Timer
from ostinato.experiments.timing.workloads import Candidate as Timed
from ostinato.experiments.timing.workloads import Workload
from ostinato.tasks.recipes import check_derived, load_recipe, write_derived

RECIPE, TRIALS, ANSWER = "recommended.yaml", "trials.jsonl", "answer.json"
MOST_SEEDS = 5
"""Of candidates of the last stage that are not told apart."""
_RESERVE = 0.03
"""Share of the time that is kept for the answer, between the two limits below in seconds."""
_LEAST_RESERVE, _MOST_RESERVE = 15.0, 120.0
LATENCY_EFFORT = Effort(rounds=5, least=3, seconds=5.0)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Args:
        source: a recipe's name or file, or data of the user's own. overrides: `dotted.key=value`, of all candidates.
        hours: for everything. out: folder of the answer. store: of runs. metric: None: the recipe's selection metric.
        n_workers: trainings at once. n_threads: CPU threads of each.
    """

    source: str
    out: Path
    store: Path
    space: SpaceConfig
    limits: Limits = field(default_factory=Limits)
    overrides: tuple[str, ...] = ()
    metric: str | None = None
    hours: float = 2.0
    n_workers: int = 1
    n_threads: int = 1


@dataclass(frozen=True, slots=True)
class Advice:
    """An answer with what is beside it.

    Args:
        recipe: the file that `ostinato train` takes. report: the page.
    """

    answer: Answer
    candidates: Candidates
    outcomes: list[Outcome]
    recipe: Path
    report: Path

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return self.answer.as_dict() | {
            "left_out": [asdict(one) for one in self.candidates.left_out],
            "n_untried": self.candidates.n_untried,
            "recipe": str(self.recipe),
            "report": str(self.report),
        }


def advise(
    question: Question,
    *,
    access: DataAccess | None = None,
    say: Say = lambda line: None,
    watcher: Callable[[], Watcher] = Watcher,
    make_executor: Callable[[], Executor] | None = None,
) -> Advice:
    """Answer a question: what it takes is bounded by its hours; killed, it goes on when it is asked again.

    Args:
        say: takes a line for people at each step. watcher: makes what shows the progress of a stage.
        make_executor: where trainings are done; None: `question.n_workers` processes of this machine.

    Raises:
        ConfigError: a recipe or budget that cannot be used, too little time, a folder with another question's search.
        DataError: data that cannot be read, or too little of it. NoAdviceError: nothing can be advised, and why.
    """
    began = time.monotonic()
    reserve = min(_MOST_RESERVE, max(_LEAST_RESERVE, _RESERVE * 3600 * question.hours))
    deadline = began + 3600 * question.hours - reserve
    check_derived(question.out / RECIPE)
    base, overrides = question.source, list(question.overrides)
    if is_data(base):
        base, overrides = recipe_of_data(base, overrides, question.out / "data")
    recipe = load_recipe(base, overrides)
    metric = question.metric or recipe.training.selection.metric
    mode = mode_of(metric)
    load_recipe(
        base, [*overrides, f"training.selection.metric={metric}", f"training.selection.mode={mode}"]
    )  # refuses an unknown metric
    task, n_examples = check_data(recipe, access)
    without = baseline(recipe, task, metric)
    candidates = make_candidates(base, overrides, question.space, question.limits, access)
    say(f"{len(candidates.found)} candidates of {candidates.limits}; {len(candidates.left_out)} left out")
    journal = Journal(question.out, _asked(recipe, candidates, question, metric))
    trainer = SweepTrainer(
        f"advise {recipe.name}",
        base,
        overrides,
        recipe,
        candidates.found,
        metric,
        question.store,
        make_executor=make_executor or (lambda: LocalPool(question.n_workers)),
        deadline=deadline,
        access=access,
        watcher=watcher,
        n_threads=question.n_threads,
    )
    rates = tuple(question.space.rates)
    planned = Halving(rates, mode, BASE, most_seeds=MOST_SEEDS, length=recipe.training.n_updates)
    costs = {one.name: one.figures["macs"] for one in candidates.found}
    pace = Pace(journal, costs, planned, question.n_workers, deadline, recipe.training.n_updates)
    try:
        pace.probe(trainer)
    except TimeUp:
        raise ConfigError(
            f"--hours is too short: two trainings of the recipe, of {PROBES[0]} and {PROBES[1]} updates, take longer"
        ) from None
    names, rates = pace.shorten(question.space.rates)
    say(f"{len(names)} of them are tried, at {len(rates)} learning rates")
    halving = replace(planned, rates=rates)
    clock = _Latency(journal, candidates.found, candidates.limits, question.n_threads)

    def size_of(stage: int, going_on: Sequence[Outcome]) -> int:
        updates = pace.size_of(stage, going_on, names, rates)
        say(f"stage {stage + 1}: {len(going_on) or len(names)} candidates, {updates} updates")
        return updates

    found = search(
        names,
        trainer,
        halving,
        size_of,
        is_open=clock.is_met,
        has_time=pace.has_time,
        are_apart=lambda outcomes, name: _are_apart(outcomes, name, halving),
    )
    last = found.stages[-1] if found.stages else []
    make_folder(question.out)
    write_text(question.out / TRIALS, "".join(json.dumps(asdict(one)) + "\n" for one in found.outcomes))
    if (reason := why_not(last, metric, mode, n_examples, without)) is not None:
        raise NoAdviceError(f"no advice: {reason}")
    for name in dict.fromkeys(one.trial.candidate for one in last):
        if found.is_complete and time.monotonic() < deadline:
            clock.seconds_of(name)
    answer = make_answer(
        found,
        candidates.found,
        question.space,
        metric,
        mode,
        candidates.limits,
        latencies=clock.known(),
        length=recipe.training.n_updates,
        trainings_an_hour={
            one.trial.candidate: 3600 * question.n_workers / pace.seconds_of(one.trial) for one in last if one.score
        },
        n_untried=candidates.n_untried + len(candidates.found) - len(names),
    )
    if is_too_slow(answer.best, candidates.limits):
        seconds = 1000 * answer.best.figures[LATENCY]
        raise NoAdviceError(f"no advice: none is as fast as asked: {answer.best.name} takes {seconds:.3g} ms")
    path = _write_recipe(question, base, overrides, recipe, answer, candidates.found)
    report = write_report(question.out, answer, candidates, found, question.space, str(path))
    advice = Advice(answer, candidates, found.outcomes, path, report)
    write_text(question.out / ANSWER, json.dumps(advice.as_dict(), indent=2, ensure_ascii=False, default=str) + "\n")
    return advice


def _asked(recipe: Recipe, candidates: Candidates, question: Question, metric: str) -> dict[str, Any]:
    """Return all that the answer depends on but time."""
    return {
        "recipe": recipe.model_dump(mode="json"),
        "candidates": {one.name: one.settings for one in candidates.found},
        "rates": question.space.rates,
        "limits": asdict(candidates.limits),
        "metric": metric,
    }


def _are_apart(outcomes: Sequence[Outcome], name: str, halving: Halving) -> bool:
    """Return whether a candidate of the last stage is told apart from the best one, by the seeds so far."""
    scores: dict[str, dict[int, float]] = {}
    for one in outcomes:
        if one.score is not None:
            scores.setdefault(one.trial.candidate, {})[one.trial.seed] = one.score
    sign = 1.0 if halving.mode == "min" else -1.0
    best = min(scores, key=lambda key: sign * sum(scores[key].values()) / len(scores[key]))
    if name == best:
        return False
    sample = [sign * (scores[name][seed] - scores[best][seed]) for seed in scores[best] if seed in scores[name]]
    return bool(sample) and judge(sample, (0.0, None)).p_supported <= ALPHA


def _write_recipe(
    question: Question, base: str, overrides: list[str], recipe: Recipe, answer: Answer, candidates: Sequence[Candidate]
) -> Path:
    """Write the recommended recipe: the candidate's settings over the recipe, at the rate that was best."""
    best = answer.best
    chosen = next(one for one in candidates if one.name == best.name)
    rate = recipe.training.optimizer.lr * best.rate
    settings = {**chosen.settings, "training.optimizer.lr": rate}
    return write_derived(
        question.out / RECIPE,
        base,
        overrides=[*overrides, *(f"{key}={json.dumps(value)}" for key, value in settings.items())],
        description=f"Advised among {len(answer.standings)} candidates of {answer.limits}: {best.name}",
        command=shlex.join(["ostinato", "advise", question.source, *question.overrides, "--out", str(question.out)]),
    )


class _Latency:
    """Measured latency, of candidates that are asked for; measured once, and kept."""

    def __init__(self, journal: Journal, candidates: Sequence[Candidate], limits: Limits, n_threads: int) -> None:
        self._journal, self._limits, self._n_threads = journal, limits, n_threads
        self._models = {one.name: one.model for one in candidates}
        self._known: dict[str, float] = {}

    def known(self) -> dict[str, float]:
        """Return the seconds of those that were measured."""
        return dict(self._known)

    def seconds_of(self, name: str) -> float:
        """Return the seconds of one candidate."""
        if name not in self._known:
            self._known[name] = self._journal.decide(f"latency of {name}", lambda: self._measure(name))
        return self._known[name]

    def is_met(self, name: str) -> bool:
        """Return whether a candidate is as fast as the budget asks; True where it asks nothing."""
        return self._limits.latency is None or self.seconds_of(name) <= self._limits.latency.seconds

    def _measure(self, name: str) -> float:
        model, limits = self._models[name], self._limits
        batch_size = limits.latency.batch_size if limits.latency else 1
        kind = "decoding" if model.generates else "forward"
        workload = Workload(kind, batch_size, limits.source_length, limits.target_length)  # type: ignore[arg-type]
        (measured,) = Timer("auto", self._n_threads).measure([Timed(name, model)], [workload], LATENCY_EFFORT)
        return measured.median_s
