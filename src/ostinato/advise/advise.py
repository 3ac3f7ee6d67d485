"""The question and its answer: candidates, search, comparison, and the files that say what came of it."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ostinato.advise.answer import LATENCY, Answer, decisive, is_too_slow, make_answer
from ostinato.advise.candidates import BASE, Candidates, make_candidates
from ostinato.advise.checks import NoAdviceError, baseline, check_data, why_not
from ostinato.advise.comparison import adjusted_means, compare, scores_by_seed
from ostinato.advise.halving import Found, Halving, search
from ostinato.advise.journal import Journal
from ostinato.advise.latency import Latencies
from ostinato.advise.limits import Limits
from ostinato.advise.own_data import is_data, recipe_of_data
from ostinato.advise.pace import PROBES, Pace
from ostinato.advise.report import REPORT, is_report, write_report
from ostinato.advise.runs import SweepTrainer, best_of, range_of
from ostinato.advise.trials import TimeUp, Trainer, TrialOutcome, sign_of
from ostinato.config.files import parse_overrides
from ostinato.config.measures import as_overrides
from ostinato.config.recipe import Recipe
from ostinato.config.space import SpaceConfig
from ostinato.config.training import Mode
from ostinato.data.disk import finite, make_folder, write_text
from ostinato.data.output_files import check_output
from ostinato.data.registry import DataAccess
from ostinato.errors import ConfigError, Problem
from ostinato.experiments.inference import ALPHA
from ostinato.experiments.sweep.executors import Executor
from ostinato.experiments.sweep.pool import LocalPool
from ostinato.experiments.sweep.watch import Watcher
from ostinato.tasks.checks import mode_of
from ostinato.tasks.recipes import check_derived, load_recipe, write_derived

RECIPE, TRIALS, ANSWER = "recommended.yaml", "trials.jsonl", "answer.json"
MOST_SEEDS = 5
"""Of candidates of the last stage that are not told apart."""
_RESERVE = 0.03
"""Share of the time that is kept for the answer, between the two limits below in seconds."""
_LEAST_RESERVE, _MOST_RESERVE = 15.0, 120.0
_ENDS = 1.5
"""The end takes at most so many times what reading the question did, besides."""
_OF_TOKENS = ("loss", "perplexity", "token_accuracy")
"""Means over tokens, which are other ones with another tokenizer."""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Args:
        source: a recipe's name or file, or data of the user's own. overrides: `dotted.key=value`, of all candidates.
        hours: for everything. out: folder of the answer. store: of runs. metric: None: the recipe's selection metric.
        n_workers: trainings at once. n_threads: CPU threads of each.
        command: that asks it, for the head of the recommended recipe.
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
    command: str = ""


@dataclass(frozen=True, slots=True)
class Advice:
    """An answer with what is beside it.

    Args:
        recipe: the file that `ostinato train` takes. report: the page.
    """

    answer: Answer
    candidates: Candidates
    outcomes: list[TrialOutcome]
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
    began: float | None = None,
) -> Advice:
    """Answer a question: what it takes is bounded by its hours; killed, it goes on when it is asked again.

    Args:
        say: takes a line for people at each step. watcher: makes what shows the progress of a stage.
        make_executor: where trainings are done; None: `question.n_workers` processes of this machine.
        began: `time.monotonic()` from which the hours count; None: now.

    Raises:
        ConfigError: a recipe or budget that cannot be used, too little time, a folder with another question's search.
        DataError: data that cannot be read, or too little of it. NoAdviceError: nothing can be advised, and why.
    """
    began = time.monotonic() if began is None else began
    if not math.isfinite(question.hours):
        raise ConfigError([Problem("--hours", question.hours, "must be a number of hours")])
    check_derived(question.out / RECIPE)
    check_output(question.out / REPORT, overwrite=True, is_ours=is_report)
    reading = time.monotonic()
    task = _read(question, access)
    say(f"{len(task.candidates.found)} candidates of {task.limits}; {len(task.candidates.left_out)} left out")
    # What the end takes is like what the beginning took: recipes that are read, libraries that are imported.
    reserve = max(_LEAST_RESERVE, min(_MOST_RESERVE, _RESERVE * 3600 * question.hours))
    deadline = began + 3600 * question.hours - reserve - _ENDS * (time.monotonic() - reading)
    with closing(Journal(question.out, task.as_dict(question.space))) as journal:
        trainer = SweepTrainer(
            f"advise {task.recipe.name}",
            task.base,
            task.overrides,
            task.recipe,
            task.candidates.found,
            task.metric,
            question.store,
            make_executor=make_executor or (lambda: LocalPool(question.n_workers)),
            deadline=deadline,
            access=access,
            watcher=watcher,
            n_threads=question.n_threads,
        )
        halving = Halving(
            tuple(question.space.rates),
            task.mode,
            BASE,
            most_seeds=MOST_SEEDS,
            length=task.recipe.training.n_updates,
            best=best_of(task.metric),
            bounds=range_of(task.metric),
        )
        costs = {one.name: one.figures["macs"] for one in task.candidates.found}
        pace = Pace(journal, costs, halving, question.n_workers, deadline)
        device = task.recipe.training.device
        clock = Latencies(journal, task.candidates.found, task.limits, question.n_threads, device)
        found, n_tried = _searched(trainer, halving, pace, clock, say)
        make_folder(question.out)
        write_text(question.out / TRIALS, "".join(json.dumps(finite(asdict(one))) + "\n" for one in found.outcomes))
        answer = _answered(
            question, task, decisive(found, task.mode, clock.too_slow()), halving, pace, clock, n_tried=n_tried, say=say
        )
        path = _write_recipe(question, task, answer)
        report = write_report(question.out, answer, task.candidates, found, question.space, str(path))
        advice = Advice(answer, task.candidates, found.outcomes, path, report)
        write_text(
            question.out / ANSWER, json.dumps(advice.as_dict(), indent=2, ensure_ascii=False, default=str) + "\n"
        )
        return advice


@dataclass(frozen=True, slots=True)
class _Task:
    """What is trained, and what decides.

    Args:
        base, overrides: of `recipe`. n_examples: of its selection split. data: hash of what is trained and selected on.
        without: the best score there without a model.
    """

    base: str
    overrides: list[str]
    recipe: Recipe
    metric: str
    mode: Mode
    n_examples: int
    data: str
    without: tuple[str, float] | None
    candidates: Candidates

    @property
    def limits(self) -> Limits:
        """The budget, that of the recipe where none was given."""
        return self.candidates.limits

    def as_dict(self, space: SpaceConfig) -> dict[str, Any]:
        """Return all that the answer depends on but time."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "candidates": {one.name: one.settings for one in self.candidates.found},
            "rates": space.rates,
            # What they assume of training and decoding is the recipe's.
            "limits": {key: value for key, value in asdict(self.limits).items() if key != "assumed"},
            "metric": self.metric,
            "data": self.data,
        }


def _read(question: Question, access: DataAccess | None) -> _Task:
    """Return what a question is about, refusing what cannot be told."""
    base, overrides = question.source, list(question.overrides)
    if "seed" in (given := parse_overrides(overrides)):
        raise ConfigError([Problem("seed", given["seed"], f"the search trains seeds 1 to {MOST_SEEDS}: remove it")])
    if is_data(base):
        base, overrides = recipe_of_data(base, overrides, question.out / "data")
    recipe = load_recipe(base, overrides)
    metric = question.metric or recipe.training.selection.metric
    mode = mode_of(metric)
    selected = [f"training.selection.metric={metric}", f"training.selection.mode={mode}"]
    load_recipe(base, [*overrides, *selected])  # refuses a metric that the task cannot have
    task, n_examples, data = check_data(recipe, access)
    candidates = make_candidates(base, overrides, question.space, question.limits, access)
    first, *others = candidates.found
    if other := next((one for one in others if one.tokenizer != first.tokenizer), None):
        why = hint = ""
        if metric in _OF_TOKENS:
            why = "is a mean over tokens"
            hint = "choose by --metric bits_per_byte or word_perplexity (of texts), or by one of outputs"
        elif metric == "sequence_accuracy_forced" and recipe.data.unknown == "replace":
            why, hint = "counts unknown tokens that are predicted as right", "choose by one of outputs"
        if why:
            reason = f"{why}, and those of {first.name} and of {other.name} are not the same: {hint}"
            raise ConfigError([Problem("training.selection.metric", metric, reason)])
    without = baseline(recipe, task, metric)
    return _Task(base, overrides, recipe, metric, mode, n_examples, data, without, candidates)


def _searched(trainer: Trainer, halving: Halving, pace: Pace, clock: Latencies, say: Say) -> tuple[Found, int]:
    """Return what the search found, and how many candidates were tried."""
    try:
        pace.probe(trainer)
    except TimeUp:
        first, second = PROBES
        reason = f"two trainings of the recipe, of {first} and {second} updates, take longer"
        raise ConfigError(f"--hours is too short: {reason}") from None
    names, rates = pace.shorten(halving.rates)
    say(f"{len(names)} of them are tried, at {len(rates)} learning rate{'s' if len(rates) > 1 else ''}")

    def size_of(stage: int, going_on: Sequence[TrialOutcome]) -> int:
        updates = pace.size_of(stage, going_on, names, rates)
        say(f"stage {stage + 1}: {len(going_on) or len(names)} candidates, {updates} updates")
        return updates

    found = search(
        names,
        trainer,
        replace(halving, rates=rates),
        size_of,
        is_open=clock.is_met,
        has_time=pace.has_time,
        are_apart=lambda outcomes, name: _are_apart(outcomes, name, halving.mode),
    )
    return found, len(names)


def _are_apart(outcomes: Sequence[TrialOutcome], name: str, mode: Mode) -> bool:
    """Return whether a candidate of the last stage is told apart from the best one, by the seeds so far."""
    sign = sign_of(mode)
    scores = scores_by_seed(outcomes)
    means = adjusted_means(scores)
    best = min(means, key=lambda key: sign * means[key])
    compared = compare(scores, best, mode)
    return name in compared and compared[name].p <= ALPHA


def _answered(
    question: Question,
    task: _Task,
    ranked: Found,
    halving: Halving,
    pace: Pace,
    clock: Latencies,
    *,
    n_tried: int,
    say: Say,
) -> Answer:
    """Return what the outcomes say.

    Raises:
        NoAdviceError: nothing that could be advised.
    """
    last = ranked.stages[-1] if ranked.stages else []
    judged = (task.metric, task.mode, task.n_examples, task.without)
    if (reason := why_not(last, *judged, is_complete=ranked.is_complete)) is not None:
        raise NoAdviceError(f"no advice: {reason}")
    if ranked.is_complete:
        clock.measure(dict.fromkeys(one.trial.candidate for one in last), pace.deadline, say)

    def answer_so_far() -> Answer:
        return make_answer(
            ranked,
            task.candidates.found,
            question.space,
            task.metric,
            task.mode,
            task.limits,
            latencies=clock.known(),
            length=halving.length,
            most_seeds=halving.most_seeds,
            trainings_an_hour={
                one.trial.candidate: 3600 * question.n_workers / pace.seconds_of(one.trial)
                for one in last
                if one.score is not None
            },
            n_untried=len(task.candidates.found) - n_tried,
            without=task.without,
        )

    answer = answer_so_far()
    # Whoever asks for a latency is advised nothing that was not measured: the best one that was not, until one is met.
    # Where one was met already, the last stage had such candidates only, and the recipe: that is measured in any case.
    while task.limits.latency is not None and LATENCY not in answer.best.figures:
        known = clock.known().keys()
        if known and known == clock.too_slow() and time.monotonic() >= pace.deadline:
            raise NoAdviceError("no advice: of those that were measured in the time none is as fast as asked")
        clock.seconds_of(answer.best.name)
        answer = answer_so_far()
    if is_too_slow(answer.best, task.limits):
        fastest, seconds = min(clock.known().items(), key=lambda named: named[1])
        raise NoAdviceError(
            f"no advice: none is as fast as asked: {fastest}, the fastest, takes {1000 * seconds:.3g} ms"
        )
    return answer


def _write_recipe(question: Question, task: _Task, answer: Answer) -> Path:
    """Write the recommended recipe: the candidate's settings over the recipe, at the rate that was best."""
    best = answer.best
    chosen = next(one for one in task.candidates.found if one.name == best.name)
    settings = {**chosen.settings, "training.optimizer.lr": task.recipe.training.optimizer.lr * best.rate}
    if question.metric is not None:
        settings |= {"training.selection.metric": task.metric, "training.selection.mode": task.mode}
    return write_derived(
        question.out / RECIPE,
        task.base,
        overrides=[*task.overrides, *as_overrides(settings)],
        description=f"Advised among {len(answer.standings)} candidates of {answer.limits}: {best.name}",
        command=question.command or f"ostinato advise {shlex.quote(question.source)} ...",
    )
