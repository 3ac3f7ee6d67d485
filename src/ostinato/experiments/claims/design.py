"""What a claim trains: the arms that its numbers name, alike in all but one thing, each with settings it chose itself.

An expectation or a control names terms, `arm/measure`. Of the claim's sweep only their arms, the runs those start from
and their measures are left, so that claims share a sweep and each costs what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from ostinato.config.claim import ComparedConfig, DesignConfig, ExpectationConfig, SweepSource, TuningConfig
from ostinato.config.files import parse_overrides
from ostinato.config.load import check_settings
from ostinato.config.measures import AnalysisMeasure, Measure, as_overrides
from ostinato.config.schema import leaves
from ostinato.config.sweep import ArmConfig, SweepConfig
from ostinato.errors import ConfigError, Problem, TrainingError
from ostinato.experiments.claims.statistics import measured_by, terms_of
from ostinato.experiments.sweep.files import first_recipe, load_sweep, read_sweep_settings
from ostinato.experiments.sweep.measure_checks import comparison_problems
from ostinato.experiments.sweep.run_key import key_settings
from ostinato.tasks.registry import build_task
from ostinato.training.prepare import with_splits

_LENGTH = "training.n_updates"
_FILES = ("train", "dev", "test")
"""Settings of data that are no part of an address: there the hash of the examples takes their place."""

Rows = list[dict[str, Any]]


def source_sweep(source: SweepSource, inputs: Mapping[str, str] | None) -> SweepConfig:
    """Return the sweep of a claim with the claim's own seeds; `named_part` makes the claim's changes of its arms.

    Args:
        inputs: the user's files; None: where only settings are looked at, "input:NAME" stays as it is.

    Raises:
        ConfigError: with all that is wrong with it.
    """
    settings = read_sweep_settings(source.sweep) if isinstance(source.sweep, str) else source.sweep
    sweep = check_settings(settings, SweepConfig) if inputs is None else load_sweep(settings, inputs)
    if source.seeds is None:
        return sweep
    arms = [arm.model_copy(update={"seeds": None}) for arm in sweep.arms]
    return sweep.model_copy(update={"arms": arms, "seeds": source.seeds})


def named_by(expectations: Iterable[ExpectationConfig]) -> set[tuple[str, str]]:
    """Return every (arm, measure) that numbers are computed from."""
    terms = (term for expectation in expectations for term in terms_of(expectation.statistic))
    pairs = (one.partition("/") for term in terms for one in measured_by(term))
    return {(arm, measure) for arm, _, measure in pairs}


def named_part(
    sweep: SweepConfig, source: SweepSource, named: set[tuple[str, str]], overrides: Sequence[str] = ()
) -> tuple[SweepConfig, list[ComparedConfig]]:
    """Return the arms and measures of a sweep that numbers name, and the comparisons that they name.

    The arms have the claim's changes, `source.overrides`, and then those of `overrides`.

    Raises:
        ConfigError: arms or measures that the sweep does not have, or a change of the claim's that some arm has of its
            own: it would make an untrained arm a trained one.
    """
    compared = [one for one in source.compared if (one.arm, one.name) in named]
    names = dict.fromkeys([*(arm for arm, _ in sorted(named)), *(arm for one in compared for arm in one.others)])
    known = {arm.name: arm for arm in sweep.arms}
    if missing := [name for name in names if name not in known]:
        raise ConfigError([Problem("expect", name, f"is no arm; there are {', '.join(known)}") for name in missing])
    of_several = {(one.arm, one.name) for one in compared}
    problems = []
    for name, own in sorted(named - of_several):
        if not any(_gives(measure, own) for measure in sweep.measures_of(name)):
            there = [f"{one.name}.*" if _has_parts(one) else one.name for one in sweep.measures_of(name)]
            there += [one.name for one in source.compared if one.arm == name]
            reason = f"is no measure of {name}; there are {', '.join(there) or 'none'}"
            problems.append(Problem("expect", f"{name}/{own}", reason))
    if problems:
        raise ConfigError(problems)
    waiting = list(names)
    while waiting:
        after = known[waiting.pop()].after
        if after is not None and after not in names:
            names[after] = None
            waiting.append(after)
    measures = [measure for measure in sweep.measures if any(_gives(measure, own) for _, own in named)]
    arms = [arm for arm in sweep.arms if arm.name in names]
    _check_changes(arms, source.overrides)
    arms = [_changed(arm, (*source.overrides, *overrides)) for arm in arms]
    return sweep.model_copy(update={"arms": arms, "measures": measures}), compared


def _has_parts(measure: Measure) -> bool:
    """Return whether a measure gives several values, NAME.PART."""
    return "*" in (measure.picks or "")


def _gives(measure: Measure, name: str) -> bool:
    """Return whether a value of a measure may have a name."""
    return name.startswith(f"{measure.name}.") if _has_parts(measure) else name == measure.name


def _changed(arm: ArmConfig, changes: Sequence[str], **others: Any) -> ArmConfig:
    """Return an arm with changes after its own, as overrides of a recipe are: a group adds to what is inside it.

    Args:
        changes: `dotted.key=value`. others: fields of the arm that are replaced.
    """
    return arm.model_copy(update={"set": parse_overrides([*arm.overrides(), *changes]), **others})


def _check_changes(arms: Sequence[ArmConfig], overrides: Sequence[str]) -> None:
    """Refuse changes of settings in which the arms differ by what each sets itself.

    Raises:
        ConfigError: all of them, with what two arms say.
    """
    problems = []
    for text in overrides:
        keys = [key for key, _ in leaves(parse_overrides([text]))]
        own = {
            arm.name: {
                name: value
                for name, value in leaves(arm.set)
                if any(f"{name}.".startswith(f"{key}.") or f"{key}.".startswith(f"{name}.") for key in keys)
            }
            for arm in arms
        }
        first, said = next(iter(own.items()))
        for other, others in own.items():
            if others != said:
                reason = (
                    f"{first} sets {said or 'nothing'} there itself, {other} {others or 'nothing'}: one would be lost"
                )
                problems.append(Problem("source.overrides", text, reason))
                break
    if problems:
        raise ConfigError(problems)


def with_seeds(sweep: SweepConfig, wanted: set[tuple[str, int]]) -> SweepConfig:
    """Return the part of a sweep that trains some (arm, seed), and the runs that those start from."""
    needed, waiting = set(wanted), list(wanted)
    while waiting:
        name, seed = waiting.pop()
        arm = sweep.arm(name)
        if arm.after is not None and (start := (arm.after, sweep.start_seed(arm, seed))) not in needed:
            needed.add(start)
            waiting.append(start)
    arms = []
    for arm in sweep.arms:
        if seeds := [seed for seed in sweep.seeds_of(arm) if (arm.name, seed) in needed]:
            arms.append(arm.model_copy(update={"seeds": seeds}))
    return sweep.model_copy(update={"arms": arms})


def check_alike(sweep: SweepConfig, design: DesignConfig) -> None:
    """Refuse arms that differ in more than the design says, or have seeds that settings were chosen on.

    Arms that start from others are compared among themselves, and may start from different ones; of all others where
    they start is a setting as any other. An untrained arm may differ from the others in length.

    Raises:
        ConfigError: every setting that differs, with its values in two arms; the seeds.
    """
    seeds = {(seed, seed + arm.seed_shift) for arm in sweep.arms for seed in sweep.seeds_of(arm)}
    tuned_on = [] if design.tuning is None else design.tuning.seeds  # shifted as the arms are
    if both := sorted({seed for seed, own in seeds if seed in tuned_on or own in design.pilot_seeds}):
        reason = "settings were chosen on them: the claim needs others"
        raise ConfigError([Problem("source.seeds", both, reason)])
    settings: dict[str, dict[str, Any]] = {}
    for arm in sweep.arms:
        recipe = first_recipe(sweep, arm)
        start = recipe.training.init_from if arm.after is None else None
        of_arm = key_settings(recipe, start, first_names=True)
        of_arm |= {f"data.{name}": getattr(recipe.data, name) for name in _FILES}
        settings[arm.name] = {key: value for key, value in of_arm.items() if key != "seed"}

    def generation(arm: ArmConfig) -> int:
        return 0 if arm.after is None else 1 + generation(sweep.arm(arm.after))

    problems = []
    for _, group in groupby(sorted(sweep.arms, key=generation), generation):
        # Trained arms are compared with a trained one: the length of an untrained one says nothing of theirs.
        first, *others = sorted((arm.name for arm in group), key=lambda name: settings[name].get(_LENGTH) == 0)
        for other in others:
            a, b = settings[first], settings[other]
            for key in dict.fromkeys([*a, *b]):
                is_named = any(key == own or key.startswith(f"{own}.") for own in design.differ_in)
                is_untrained = key == _LENGTH and b.get(key) == 0
                if a.get(key) != b.get(key) and not is_named and not is_untrained:
                    reason = f"{other} has {b.get(key)!r}, {first} {a.get(key)!r}: design.differ_in does not name it"
                    problems.append(Problem(key, None, reason))
    if problems:
        raise ConfigError(problems)


def check_compared(sweep: SweepConfig, compared: Iterable[ComparedConfig]) -> None:
    """Refuse measures of several runs that name a study, a column or a split that no run of their arms will have.

    Raises:
        ConfigError: all of them.
    """
    problems = (
        problem
        for measure in compared
        for name in (measure.arm, *measure.others)
        for problem in comparison_problems(measure, first_recipe(sweep, sweep.arm(name)))
    )
    if once := {str(problem): problem for problem in problems}:
        raise ConfigError(once.values())


def check_tuning(
    sweep: SweepConfig, source: SweepSource, tuning: TuningConfig, expect: Iterable[ExpectationConfig]
) -> None:
    """Refuse settings that are chosen on a split that the claim's numbers are of; those of controls may be of it.

    Args:
        sweep: with all of its measures.

    Raises:
        ConfigError: names the split.
    """
    reported, compared = named_part(sweep, source, named_by(expect))

    def split_of(measure: object) -> str | None:
        """Return the split that a measure is of; None: of none, as a count of parameters."""
        if not isinstance(measure, AnalysisMeasure | ComparedConfig) or measure.split is not None:
            return getattr(measure, "split", None)
        recipe = first_recipe(sweep, sweep.arms[0])
        scored = with_splits(recipe, build_task(recipe.task, recipe.data)).evaluation.splits
        return scored[0] if scored else None

    splits = {split_of(measure) for measure in (*reported.measures, *compared)} - {None}
    for measure in sweep.measures:
        if measure.name == tuning.measure and (split := split_of(measure)) in splits:
            reason = f"is of the split {split}, which the claim reports: name a measure of another one"
            raise ConfigError([Problem("design.tuning.measure", tuning.measure, reason)])


def tuned(sweep: SweepConfig, tuning: TuningConfig, run: Callable[[SweepConfig], Rows]) -> dict[str, Any]:
    """Return the setting that every arm chooses, and what it was tried with.

    Every trained arm is trained with every value on the tuning seeds; the best mean over them is chosen.

    Args:
        run: trains a sweep and returns its rows, without those of trials whose loss is not finite.

    Returns:
        By arm {chosen, tried: {value: mean, or None where a trial has no row}}.

    Raises:
        ConfigError: no such measure, or one of several values; arms that start from others, whose start would have to
            be tuned first.
        TrainingError: an arm that has no value with all of its rows.
    """
    measures = [measure for measure in sweep.measures if measure.name == tuning.measure]
    if not measures:
        raise ConfigError(
            [Problem("design.tuning.measure", tuning.measure, "is no measure that the claim's sweep has")]
        )
    if any(map(_has_parts, measures)):
        reason = "gives several values, and one is needed to choose by: name one in place of * in its path"
        raise ConfigError([Problem("design.tuning.measure", tuning.measure, reason)])
    trained = [arm for arm in sweep.arms if first_recipe(sweep, arm).training.n_updates]
    if started := [arm.name for arm in trained if arm.after is not None]:
        raise ConfigError([Problem("design.tuning", started[0], "starts from another arm: give it its settings")])
    tries = {(arm.name, str(value)): value for arm in trained for value in tuning.values}
    trials = [
        _changed(arm, as_overrides({tuning.key: value}), name=f"{arm.name}, {value}", seeds=None)
        for arm in trained
        for value in tuning.values
    ]
    name = f"{sweep.name}-tuning"
    # The measure may be one of some arms only; here it is of all.
    of_all = [measure.model_copy(update={"arms": None}) for measure in measures]
    changed = {"name": name, "arms": trials, "seeds": tuning.seeds, "measures": of_all, "equal": None}
    rows = run(sweep.model_copy(update=changed))
    found: dict[str, Any] = {}
    for arm in trained:
        means: dict[str, float] = {}
        for value in tuning.values:
            own = [row["values"][tuning.measure] for row in rows if row["arm"] == f"{arm.name}, {value}"]
            if len(own) == len(tuning.seeds):
                means[str(value)] = fmean(own)
        if not means:
            reason = f"with no value of {tuning.key} all trials have a finite loss: give design.tuning other values"
            raise TrainingError(f"{arm.name}: {reason}")
        best = (max if tuning.mode == "max" else min)(means, key=lambda value: means[value])
        tried = {str(value): means.get(str(value)) for value in tuning.values}
        found[arm.name] = {"chosen": tries[arm.name, best], "tried": tried}
    return found


def with_chosen(sweep: SweepConfig, tuning: TuningConfig, found: Mapping[str, Any]) -> SweepConfig:
    """Return a sweep whose arms have the setting that they chose; untrained ones chose nothing."""
    arms = [
        _changed(arm, as_overrides({tuning.key: found[arm.name]["chosen"]})) if arm.name in found else arm
        for arm in sweep.arms
    ]
    return sweep.model_copy(update={"arms": arms})
